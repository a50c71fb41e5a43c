// The steps of a plan one after another. A step is strides: a list of axes for its cells and one for its candidates.
//
// All questions are one forward pass, `Values` by `solve_step`, and one of three ways back: `walk` chooses a candidate of each step (the first
// winner, a sample, the n-th best), `weigh_step` goes through all candidates with their shares (derivatives under log-sum-exp), `at_labels`
// reads or adds entries of the tables alone. A step is solved candidate by candidate (`search`), as batched matrices (`search_by_tiles`), or as
// products of exponentials (`Products`); the constants below say from which size on.
#include "network.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <unordered_map>

namespace tropical {
namespace {

constexpr int64_t kRun = 512;                         // the most entries of a run
constexpr int64_t kPart = 16;                         // terms that are added one after another
constexpr int64_t kWorthThreads = int64_t{1} << 20;   // candidates of a step from which threads share it
constexpr int64_t kWorthCall = int64_t{1} << 9;       // candidates from which tiles are faster that read operands where they lie
constexpr int64_t kWorthTiles = int64_t{1} << 17;     // candidates from which packed tiles are faster

[[noreturn]] void refuse(const char* what) { throw std::invalid_argument(what); }

int64_t times(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_mul_overflow(a, b, &out) || out > (int64_t{1} << 48)) refuse("a size beyond every machine");
  return out;
}

struct Axis {
  int64_t extent, left, right;
};

// Entries of two operands in row-major order of some axes, in runs of at most kRun that share one table of offsets: an address is a sum of two
// numbers then, and not a division for every axis. Neighbouring axes that lie as one are one, so most runs are long.
class Runs {
 public:
  struct Run {
    int64_t first, left, right, count;
  };

  explicit Runs(const std::vector<Axis>& axes) {
    std::vector<Axis> merged;
    for (const Axis& a : axes) {
      if (a.extent == 1) continue;
      if (!merged.empty() && merged.back().left == a.extent * a.left && merged.back().right == a.extent * a.right)
        merged.back() = {merged.back().extent * a.extent, a.left, a.right};
      else
        merged.push_back(a);
    }
    for (const Axis& a : merged) count_ = times(count_, a.extent);
    if (!merged.empty() && merged.back().extent > kRun) {  // a long last axis is cut
      Axis last = merged.back();
      const int64_t pieces = (last.extent + kRun - 1) / kRun;
      tail_ = last.extent - (pieces - 1) * kRun;
      merged.back() = {pieces, last.left * kRun, last.right * kRun};
      merged.push_back({kRun, last.left, last.right});
      cut_ = pieces;
    }
    size_t split = merged.size();
    while (split > 0 && merged[split - 1].extent * length_ <= kRun && !(cut_ && split < merged.size())) length_ *= merged[--split].extent;
    outer_.assign(merged.begin(), merged.begin() + static_cast<int64_t>(split));
    left_.assign(static_cast<size_t>(length_), 0);
    right_.assign(static_cast<size_t>(length_), 0);
    int64_t filled = 1;
    for (size_t i = merged.size(); i-- > split; filled *= merged[i].extent)
      for (int64_t j = filled; j < filled * merged[i].extent; ++j) {
        left_[static_cast<size_t>(j)] = left_[static_cast<size_t>(j % filled)] + j / filled * merged[i].left;
        right_[static_cast<size_t>(j)] = right_[static_cast<size_t>(j % filled)] + j / filled * merged[i].right;
      }
    for (const Axis& a : outer_) runs_ *= a.extent;
  }

  int64_t count() const { return count_; }   // of all entries
  int64_t runs() const { return runs_; }
  int64_t length() const { return length_; }  // of a run, but for a last one
  const std::vector<int64_t>& left() const { return left_; }
  const std::vector<int64_t>& right() const { return right_; }

  Run run(int64_t i) const {
    Run r{0, 0, 0, length_};
    int64_t rest = i, rows = i;
    if (cut_) {
      rows = i / cut_;
      const bool is_last = i % cut_ == cut_ - 1;
      r.first = rows * ((cut_ - 1) * kRun + tail_) + i % cut_ * kRun;
      if (is_last) r.count = tail_;
    } else {
      r.first = i * length_;
    }
    for (size_t a = outer_.size(); a-- > 0; rest /= outer_[a].extent) {
      const int64_t at = rest % outer_[a].extent;
      r.left += at * outer_[a].left;
      r.right += at * outer_[a].right;
    }
    return r;
  }

 private:
  std::vector<Axis> outer_;
  std::vector<int64_t> left_, right_;
  int64_t count_ = 1, runs_ = 1, length_ = 1, cut_ = 0, tail_ = 0;
};

struct Step {
  int64_t left = -1, right = -1;  // numbers of the operands
  std::vector<int64_t> labels;    // of the result
  std::vector<int64_t> contracted;
  std::vector<Axis> cells, candidates;
  int64_t count = 1, choices = 1;  // cells; candidates of a cell
};

struct Plan {
  std::vector<int64_t> sizes, output, contracted, active;
  std::vector<std::vector<int64_t>> terms;  // of the operands, then of the results of the steps
  std::vector<int64_t> counts;              // their entries
  std::vector<Step> steps;
  int64_t tables = 0, cells = 1;  // operands; entries of the value

  int64_t stride(int64_t term, int64_t label) const {
    int64_t step = 1, found = 0;
    const auto& labels = terms[static_cast<size_t>(term)];
    for (size_t i = labels.size(); i-- > 0; step *= size(labels[i]))
      if (labels[i] == label) found += step;  // a diagonal
    return found;
  }
  int64_t size(int64_t label) const { return sizes[static_cast<size_t>(label)]; }
};

bool has(const std::vector<int64_t>& labels, int64_t label) { return std::find(labels.begin(), labels.end(), label) != labels.end(); }

class Reader {
 public:
  Reader(const int64_t* at, int64_t length) : at_(at), end_(at + length) {}
  int64_t number(int64_t least, int64_t most) {
    if (at_ == end_) refuse("a plan that ends early");
    if (*at_ < least || *at_ > most) refuse("a plan with a number out of range");
    return *at_++;
  }
  std::vector<int64_t> numbers(int64_t count, int64_t least, int64_t most) {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < count; ++i) found.push_back(number(least, most));
    return found;
  }
  void finish() const {
    if (at_ != end_) refuse("a plan with numbers left over");
  }

 private:
  const int64_t *at_, *end_;
};

int64_t entries(const Plan& plan, const std::vector<int64_t>& labels) {
  int64_t count = 1;
  for (int64_t label : labels) count = times(count, plan.size(label));
  return count;
}

Plan read(const Ask& ask) {
  constexpr int64_t most = int64_t{1} << 24;
  Reader in(ask.plan, ask.length);
  Plan plan;
  const auto head = in.numbers(6, 0, most);
  const int64_t labels = head[0], steps = head[2];
  plan.tables = head[1];
  plan.sizes = in.numbers(labels, 1, int64_t{1} << 48);
  plan.output = in.numbers(head[5], 0, labels - 1);
  plan.contracted = in.numbers(head[3], 0, labels - 1);
  plan.active = in.numbers(head[4], 0, plan.tables - 1);
  for (int64_t i = 0; i < plan.tables; ++i) {
    plan.terms.push_back(in.numbers(in.number(0, most), 0, labels - 1));
    plan.counts.push_back(entries(plan, plan.terms.back()));
  }
  std::vector<bool> is_read(static_cast<size_t>(plan.tables + steps));
  std::vector<bool> is_gone(static_cast<size_t>(labels));
  for (int64_t s = 0; s < steps; ++s) {
    Step step;
    step.left = in.number(0, plan.tables + s - 1);
    step.right = in.number(-1, plan.tables + s - 1);
    step.labels = in.numbers(in.number(0, most), 0, labels - 1);
    for (int64_t operand : {step.left, step.right}) {
      if (operand < 0) continue;
      if (is_read[static_cast<size_t>(operand)]) refuse("a plan that reads a value twice");
      is_read[static_cast<size_t>(operand)] = true;
    }
    std::vector<int64_t> seen;
    for (int64_t operand : {step.left, step.right})
      if (operand >= 0)
        for (int64_t label : plan.terms[static_cast<size_t>(operand)])
          if (!has(seen, label)) seen.push_back(label);
    const auto axis = [&](int64_t label) {
      return Axis{plan.size(label), plan.stride(step.left, label), step.right < 0 ? 0 : plan.stride(step.right, label)};
    };
    for (size_t i = 0; i < step.labels.size(); ++i) {
      if (!has(seen, step.labels[i]) || has({step.labels.begin(), step.labels.begin() + static_cast<int64_t>(i)}, step.labels[i]))
        refuse("a plan whose step makes up a label");
      step.cells.push_back(axis(step.labels[i]));
    }
    for (int64_t label : seen)
      if (!has(step.labels, label)) {
        if (is_gone[static_cast<size_t>(label)] || has(plan.output, label)) refuse("a plan that contracts a label too early");
        is_gone[static_cast<size_t>(label)] = true;
        step.contracted.push_back(label);
        step.candidates.push_back(axis(label));
        step.choices = times(step.choices, plan.size(label));
      }
    step.count = entries(plan, step.labels);
    if (step.choices > std::numeric_limits<int32_t>::max()) refuse("more candidates than int32 counts");
    plan.terms.push_back(step.labels);
    plan.counts.push_back(step.count);
    plan.steps.push_back(std::move(step));
  }
  in.finish();
  plan.cells = entries(plan, plan.output);
  if (ask.question == Question::kSamples || ask.question == Question::kBest) {  // cells are samples, or ways
    if (!plan.output.empty() || ask.results.empty() || plan.contracted.empty()) refuse("many assignments of a value with labels, or of no label");
    plan.cells = ask.results.back().count / static_cast<int64_t>(plan.contracted.size());
  }
  for (size_t i = 0; i < plan.contracted.size(); ++i)
    if (has(plan.output, plan.contracted[i]) || std::count(plan.contracted.begin(), plan.contracted.end(), plan.contracted[i]) > 1)
      refuse("a plan with other contracted labels");
  if (ask.question >= Question::kTotal && ask.question <= Question::kAddEntries) {  // these read no step
    for (const auto& term : plan.terms)
      for (int64_t label : term)
        if (!has(plan.contracted, label) && !has(plan.output, label)) refuse("a plan with other contracted labels");
    return plan;
  }
  if (steps < 1) refuse("a plan without steps");
  for (int64_t i = 0; i + 1 < plan.tables + steps; ++i)
    if (!is_read[static_cast<size_t>(i)]) refuse("a plan that leaves a value unread");
  for (size_t i = 0; i < plan.output.size(); ++i)
    if (!has(plan.terms.back(), plan.output[i]) || has({plan.output.begin(), plan.output.begin() + static_cast<int64_t>(i)}, plan.output[i]))
      refuse("a plan whose last result is not the output");
  if (plan.output.size() != plan.terms.back().size()) refuse("a plan whose last result is not the output");
  for (size_t i = 0; i < plan.contracted.size(); ++i)
    if (!is_gone[static_cast<size_t>(plan.contracted[i])]) refuse("a plan with other contracted labels");
  if (std::count(is_gone.begin(), is_gone.end(), true) != static_cast<int64_t>(plan.contracted.size())) refuse("a plan with other contracted labels");
  return plan;
}

using Bytes = std::unique_ptr<char[]>;

Bytes room(int64_t count, int64_t item) { return Bytes(new char[static_cast<size_t>(std::max<int64_t>(times(count, item), 1))]); }

// --- runs of entries -----------------------------------------------------------------------------------------------------------

// A run of an operand: where it lies, if its entries are side by side, else gathered, so that the folds read vectors in either case.
template <class T>
class Gather {
 public:
  Gather(const void* data, const std::vector<int64_t>& offsets) : data_(static_cast<const T*>(data)), offsets_(offsets.data()) {
    const auto n = static_cast<int64_t>(offsets.size());
    while (dense_ < n && offsets[static_cast<size_t>(dense_)] == dense_) ++dense_;
    is_dense_ = dense_ == n;
  }
  const T* run(int64_t base, int64_t count) {
    if (!data_) return nullptr;
    if (is_dense_) return data_ + base;
    for (int64_t i = 0; i < count; ++i) kept_[i] = data_[base + offsets_[i]];
    return kept_;
  }

 private:
  const T* data_;
  const int64_t* offsets_;
  int64_t dense_ = 0;
  bool is_dense_ = false;
  T kept_[kRun];
};

// Winners of a step, in the fewest bytes that hold them: all are kept until the walk back, and most steps have few candidates.
struct Winners {
  Bytes data;
  int64_t item = 0;
  void make(int64_t count, int64_t choices) {
    item = choices <= 256 ? 1 : choices <= 65536 ? 2 : 4;
    data = room(count, item);
  }
  void set(int64_t first, const int32_t* winner, int64_t count) {
    const auto as = [&](auto* to) {
      for (int64_t i = 0; i < count; ++i) to[first + i] = static_cast<std::remove_reference_t<decltype(*to)>>(winner[i]);
    };
    if (item == 1) as(reinterpret_cast<uint8_t*>(data.get()));
    else if (item == 2) as(reinterpret_cast<uint16_t*>(data.get()));
    else as(reinterpret_cast<int32_t*>(data.get()));
  }
  // Calls each(number, winner) for cells, in their order.
  template <class Each>
  void over(const int64_t* cell, int64_t count, const Each& each) const {
    const auto from = [&](const auto* at) {
      for (int64_t i = 0; i < count; ++i) each(i, static_cast<int64_t>(at[cell[i]]));
    };
    if (item == 1) from(reinterpret_cast<const uint8_t*>(data.get()));
    else if (item == 2) from(reinterpret_cast<const uint16_t*>(data.get()));
    else from(reinterpret_cast<const int32_t*>(data.get()));
  }
};

template <class T>
T identity_of(Algebra algebra) {
  if (std::is_same<T, uint8_t>::value) return T(0);
  const bool is_minimum = algebra == Algebra::kMinPlus || algebra == Algebra::kMinMax;
  using Limits = std::numeric_limits<T>;
  if (Limits::has_infinity) return is_minimum ? Limits::infinity() : -Limits::infinity();
  return is_minimum ? Limits::max() : Limits::lowest();
}

// --- one step ------------------------------------------------------------------------------------------------------------------

struct Context {
  Pool& pool;
  const Ask& ask;
  const Kernels& kernels;
  Folds folds;
};

// work(first run, end) over all runs, on threads if there is enough to do.
void over_runs(const Context& context, const Runs& runs, int64_t candidates, const std::function<void(int64_t, int64_t)>& work) {
  const int64_t parts = candidates < kWorthThreads ? 1 : std::min(runs.runs(), 4 * std::max<int64_t>(context.pool.threads(), 1));
  if (parts < 2) return work(0, runs.runs());
  parallel(context.pool, parts, [&](int64_t i) { work(runs.runs() * i / parts, runs.runs() * (i + 1) / parts); });
}

// In lanes: the error of a sum grows with how many terms are added one after another, and lanes are vectors.
template <class T>
T sum_of(const T* x, int64_t count) {
  constexpr int64_t lanes = 16;
  T lane[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int64_t l = 0; l < lanes; ++l) lane[l] += x[i + l];
  for (int64_t l = 0; i < count; ++i, ++l) lane[l] += x[i];
  for (int64_t half = lanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  return lane[0];
}

// What the shares of a step's cells are taken from: exp((candidate - reference) / T) times the inverse of the sum of those. The value will
// not do as a reference without it: it was rounded, by more the larger it is.
template <class T>
struct Sums {
  Bytes data;
  int64_t count = 0;
  void make(int64_t cells) { data = room(times(count = cells, 2), sizeof(T)); }
  T* references() const { return reinterpret_cast<T*>(data.get()); }
  T* inverses() const { return references() + count; }
};

// From the largest candidates the values; and the sums, if they are not nullptr.
template <class T>
void log_sums(const Context& context, const Runs& cells, const Runs& choices, const void* lhs, const void* rhs, T* value, bool by_cell, const Sums<T>* kept) {
  const T temperature = static_cast<T>(context.ask.temperature);
  over_runs(context, cells, cells.count() * choices.count(), [&](int64_t from, int64_t to) {
    const Runs& along = by_cell ? choices : cells;
    Gather<T> left(lhs, along.left()), right(rhs, along.right());
    T weights[kRun], sums[kRun], part[kRun];  // of kPart candidates, for little rounding
    for (int64_t r = from; r < to; ++r) {
      const Runs::Run cell = cells.run(r);
      std::fill(sums, sums + cell.count, T(0)), std::fill(part, part + cell.count, T(0));
      for (int64_t c = 0; c < choices.runs(); ++c) {
        const Runs::Run choice = choices.run(c);
        for (int64_t i = 0; i < (by_cell ? cell.count : choice.count); ++i) {
          const auto& table = by_cell ? cells : choices;
          const int64_t l = cell.left + choice.left + table.left()[static_cast<size_t>(i)], r2 = cell.right + choice.right + table.right()[static_cast<size_t>(i)];
          const int64_t count = by_cell ? choice.count : cell.count;
          context.folds.weights(left.run(l, count), right.run(r2, count), count, value + cell.first + (by_cell ? i : 0), by_cell ? 0 : 1, context.ask.temperature, weights);
          if (by_cell) {
            sums[i] += sum_of(weights, count);
            continue;
          }
          for (int64_t j = 0; j < count; ++j) part[j] += weights[j];
          if (i % kPart != kPart - 1 && i + 1 < choice.count) continue;
          for (int64_t j = 0; j < count; ++j) sums[j] += part[j], part[j] = T(0);
        }
      }
      context.folds.logs(sums, cell.count, weights);
      for (int64_t i = 0; i < cell.count; ++i) {
        T& v = value[cell.first + i];
        const bool is_finite = std::isfinite(v);
        if (kept) kept->references()[cell.first + i] = v, kept->inverses()[cell.first + i] = is_finite ? T(1) / sums[i] : T(1);
        if (is_finite) v += temperature * weights[i];
      }
    }
  });
}

// Whether runs go along the candidates of a cell, not along cells: a fold along candidates ends in one number, which costs more than to fold
// cells side by side, unless there are few of them.
bool goes_by_cell(const Runs& cells, const Runs& choices) { return choices.length() > 4 * cells.length(); }

template <class T>
void search(const Context& context, const Step& step, const void* lhs, const void* rhs, T* value, Winners* winners) {
  const Runs cells(step.cells), choices(step.candidates);
  if (step.contracted.empty()) {
    return over_runs(context, cells, cells.count(), [&](int64_t from, int64_t to) {
      Gather<T> left(lhs, cells.left()), right(rhs, cells.right());
      for (int64_t r = from; r < to; ++r) {
        const Runs::Run cell = cells.run(r);
        context.folds.times(left.run(cell.left, cell.count), right.run(cell.right, cell.count), cell.count, value + cell.first);
      }
    });
  }
  const bool by_cell = goes_by_cell(cells, choices);
  if (winners) winners->make(step.count, step.choices);
  over_runs(context, cells, cells.count() * choices.count(), [&](int64_t from, int64_t to) {
    const Runs& along = by_cell ? choices : cells;
    Gather<T> left(lhs, along.left()), right(rhs, along.right());
    int32_t best[kRun];
    for (int64_t r = from; r < to; ++r) {
      const Runs::Run cell = cells.run(r);
      std::fill(value + cell.first, value + cell.first + cell.count, identity_of<T>(context.ask.algebra));
      std::fill(best, best + cell.count, 0);
      for (int64_t c = 0; c < choices.runs(); ++c) {
        const Runs::Run choice = choices.run(c);
        const auto k = static_cast<int32_t>(choice.first);
        const int64_t l = cell.left + choice.left, r2 = cell.right + choice.right;
        if (by_cell)
          for (int64_t i = 0; i < cell.count; ++i)
            context.folds.candidates(left.run(l + cells.left()[static_cast<size_t>(i)], choice.count), right.run(r2 + cells.right()[static_cast<size_t>(i)], choice.count),
                                     choice.count, value + cell.first + i, winners ? best + i : nullptr, k);
        else
          for (int64_t i = 0; i < choice.count; ++i)
            context.folds.cells(left.run(l + choices.left()[static_cast<size_t>(i)], cell.count), right.run(r2 + choices.right()[static_cast<size_t>(i)], cell.count),
                                cell.count, value + cell.first, winners ? best : nullptr, k + static_cast<int32_t>(i));
      }
      if (winners) winners->set(cell.first, best, cell.count);
    }
  });
}

// --- large steps: as batched matrices ------------------------------------------------------------------------------------------

// The axes of a step as those of batched matrices. Rows are of the operand whose own axes come first in the result: `is_swapped` says that
// this is the right one; then every `left` here is of the right operand.
struct Roles {
  std::vector<Axis> batch, rows, columns, candidates;
  std::vector<size_t> order;  // of the cells' axes: batch, rows, columns
  int64_t counts[3] = {1, 1, 1};
  bool is_swapped = false, is_in_order = false;
};

Roles roles_of(const Step& step) {
  Roles roles;
  const auto own = [](const Axis& a) { return !a.left || !a.right; };
  const auto first = std::find_if(step.cells.begin(), step.cells.end(), own);
  roles.is_swapped = first != step.cells.end() && !first->left;
  std::vector<size_t> groups[3];
  const auto turned = [&](Axis a) { return roles.is_swapped ? Axis{a.extent, a.right, a.left} : a; };
  for (size_t i = 0; i < step.cells.size(); ++i) {
    const Axis a = turned(step.cells[i]);
    const int group = a.left && a.right ? 0 : a.left ? 1 : 2;
    (group == 0 ? roles.batch : group == 1 ? roles.rows : roles.columns).push_back(a);
    groups[group].push_back(i);
    roles.counts[group] *= a.extent;
  }
  for (const auto& group : groups) roles.order.insert(roles.order.end(), group.begin(), group.end());
  roles.is_in_order = std::is_sorted(roles.order.begin(), roles.order.end());
  for (const Axis& a : step.candidates) roles.candidates.push_back(turned(a));
  return roles;
}

// Whether axes of the left strides lie as one, and its stride.
bool lie_as_one(const std::vector<Axis>& axes, bool is_right, int64_t& stride) {
  int64_t extent = 1;
  stride = 0;
  for (size_t i = axes.size(); i-- > 0;) {
    if (axes[i].extent == 1) continue;
    const int64_t own = is_right ? axes[i].right : axes[i].left;
    if (extent == 1) stride = own;
    if (own != stride * extent) return false;
    extent *= axes[i].extent;
  }
  return true;
}

// Whether an operand lies as batched matrices.
bool lies(const Roles& roles, bool is_right, const void* data, Operand& to) {
  to.data = data;
  return lie_as_one(roles.batch, is_right, to.batch) && lie_as_one(roles.candidates, is_right, to.contracted) &&
         lie_as_one(is_right ? roles.columns : roles.rows, is_right, to.own);
}

bool are_matrices(const Step& step) {
  return step.right >= 0 && std::all_of(step.candidates.begin(), step.candidates.end(), [](const Axis& a) { return a.left && a.right; });
}

// Whether the tiles are faster; those of booleans pack bits, which pays off for large steps alone.
bool is_for_tiles(const Context& context, const Step& step) {
  const Algebra algebra = context.ask.algebra;
  const int64_t work = times(step.count, step.choices);
  if (algebra > Algebra::kOrAnd || work < (algebra == Algebra::kOrAnd ? kWorthTiles : kWorthCall) || !are_matrices(step)) return false;
  const Roles roles = roles_of(step);
  Operand side;
  if (roles.is_in_order && lies(roles, false, nullptr, side) && lies(roles, true, nullptr, side)) return true;
  return work >= kWorthTiles && step.choices >= 16 && roles.counts[1] >= 16 && roles.counts[2] >= 16;
}

// The axes of an operand as batched matrices, as left strides.
std::vector<Axis> side(const Roles& roles, bool is_right) {
  std::vector<Axis> axes = roles.batch;
  axes.insert(axes.end(), roles.candidates.begin(), roles.candidates.end());
  const auto& own = is_right ? roles.columns : roles.rows;
  axes.insert(axes.end(), own.begin(), own.end());
  for (Axis& a : axes) a = {a.extent, is_right ? a.right : a.left, 0};
  return axes;
}

// The entries of one operand (of the left strides) in row-major order of axes.
template <class T>
void pack(const Context& context, const void* from, const std::vector<Axis>& axes, T* to) {
  const Runs runs(axes);
  over_runs(context, runs, runs.count(), [&](int64_t first, int64_t end) {
    Gather<T> gather(from, runs.left());
    for (int64_t r = first; r < end; ++r) {
      const Runs::Run run = runs.run(r);
      std::memcpy(to + run.first, gather.run(run.left, run.count), static_cast<size_t>(run.count) * sizeof(T));
    }
  });
}

// The axes of the cells over arrays that lie as the tiles leave them; or, reversed, those of matrices over the cells.
std::vector<Axis> back(const Step& step, const Roles& roles) {
  std::vector<Axis> axes = step.cells;
  int64_t stride = 1;
  for (size_t i = roles.order.size(); i-- > 0; stride *= axes[roles.order[i]].extent) axes[roles.order[i]].left = stride;
  for (Axis& a : axes) a.right = 0;
  return axes;
}

std::vector<Axis> forth(const Step& step, const Roles& roles) {
  std::vector<Axis> axes;
  for (size_t i : roles.order) {
    int64_t stride = 1;
    for (size_t j = i + 1; j < step.cells.size(); ++j) stride *= step.cells[j].extent;
    axes.push_back({step.cells[i].extent, stride, 0});
  }
  return axes;
}

template <class T>
void search_by_tiles(const Context& context, const Step& step, const void* lhs, const void* rhs, T* value, Winners* winners) {
  const Roles roles = roles_of(step);
  if (roles.is_swapped) std::swap(lhs, rhs);
  const int64_t batch = roles.counts[0], rows = roles.counts[1], columns = roles.counts[2], depth = step.choices;
  Problem problem{context.ask.algebra, context.ask.type, batch, depth, rows, columns, {}, {}, value, nullptr};
  Bytes left, right, found, best;
  const auto operand = [&](bool is_right, const void* data, int64_t own, Bytes& packed, Operand& to) {
    if (lies(roles, is_right, data, to)) return;
    packed = room(times(times(batch, depth), own), sizeof(T));
    pack(context, data, side(roles, is_right), reinterpret_cast<T*>(packed.get()));
    to = {packed.get(), depth * own, own, 1};
  };
  operand(false, lhs, rows, left, problem.lhs);
  operand(true, rhs, columns, right, problem.rhs);
  if (!roles.is_in_order) found = room(step.count, sizeof(T)), problem.value = found.get();
  if (winners) best = room(step.count, 4), problem.winner = reinterpret_cast<int32_t*>(best.get());
  solve(context.pool, problem, context.kernels);
  if (!roles.is_in_order) pack(context, found.get(), back(step, roles), value);
  if (!winners) return;
  winners->make(step.count, step.choices);
  if (roles.is_in_order) return winners->set(0, problem.winner, step.count);
  const Bytes turned = room(step.count, 4);
  pack(context, best.get(), back(step, roles), reinterpret_cast<int32_t*>(turned.get()));
  winners->set(0, reinterpret_cast<const int32_t*>(turned.get()), step.count);
}

// --- log-sum-exp by sums of products ---------------------------------------------------------------------------------------------

// exp((a + b - A - B) / T) = exp((a - A) / T) exp((b - B) / T) for the largest entry A of each row and B of each column: as many
// exponentials as entries, not candidates. A product that underflows was less than the least normal number. So a cell counts if its sum of products is so large that all candidates could lose no more than rounding does; the others are `exact`.

// Whether that saves half of the exponentials.
bool is_for_products(const Context& context, const Step& step) {
  if (context.ask.algebra != Algebra::kLogSumExp || step.count * step.choices < kWorthCall || step.choices < 2 || !are_matrices(step)) return false;
  const Roles roles = roles_of(step);
  const int64_t rows = roles.counts[1], columns = roles.counts[2], depth = step.choices;
  return rows * columns * depth >= 2 * (rows * depth + depth * columns + rows * columns);
}

template <class T>
class Products {
 public:
  // One operand as (batch, depth, own): weights exp((x - top) / T), and top, the largest entry of each row or column (batch, own).
  struct Side {
    Bytes weights, tops;
    int64_t own = 0;
    T* weight() const { return reinterpret_cast<T*>(weights.get()); }
    T* top() const { return reinterpret_cast<T*>(tops.get()); }
  };

  Products(const Context& context, const Step& step, const void* lhs, const void* rhs)
      : context_(context), step_(step), roles_(roles_of(step)), choices_(roles_.candidates), temperature_(static_cast<T>(context.ask.temperature)), lhs_(lhs), rhs_(rhs) {
    if (roles_.is_swapped) std::swap(lhs_, rhs_);
    batch_ = roles_.counts[0], depth_ = step.choices, rows_ = roles_.counts[1], columns_ = roles_.counts[2];
    using Limits = std::numeric_limits<T>;
    floor_ = static_cast<T>(depth_) * (4 * Limits::min() / Limits::epsilon());
    make(false, left_);
    make(true, right_);
  }

  void value(T* to) const {
    const Bytes own = roles_.is_in_order ? nullptr : room(step_.count, sizeof(T));
    T* const found = roles_.is_in_order ? to : reinterpret_cast<T*>(own.get());
    product(plain(left_), plain(right_), depth_, rows_, columns_, found);
    over_rows([&](int64_t row, Exact& exact) {
      const T top = left_.top()[row];
      T logs[kRun], values[kRun];
      for (int64_t first = 0; first < columns_; first += kRun) {
        const int64_t count = std::min(columns_ - first, kRun);
        const T* const tops = right_.top() + row / rows_ * columns_ + first;
        T* const sums = found + row * columns_ + first;
        context_.folds.logs(sums, count, logs);
        bool all = true;
        for (int64_t j = 0; j < count; ++j) {  // with what rounding the sum of both tops lost
          const T both = top + tops[j], part = both - top, lost = (top - (both - part)) + (tops[j] - part), log = temperature_ * logs[j], rough = both + log;
          values[j] = rough + (((both - rough) + log) + lost);
          all &= (sums[j] >= floor_) & (values[j] - values[j] == T(0));
        }
        for (int64_t j = 0; j < count && !all; ++j)
          if (!(sums[j] >= floor_) || !std::isfinite(values[j])) values[j] = exact.value(row, first + j);
        std::copy(values, values + count, sums);
      }
    });
    if (own) pack(context_, found, back(step_, roles_), to);
  }

  // The tangent of the value, given that of either operand, or nullptr.
  void tangent(const T* value, const T* left, const T* right, T* to) const {
    if (roles_.is_swapped) std::swap(left, right);
    const Bytes kept = room(step_.count, sizeof(T)), first = room(step_.count, sizeof(T)), second = room(step_.count, sizeof(T));
    const T* const values = in_order(value, kept);
    const Bytes all = totals();
    const auto moved = [&](bool is_right, const T* tangent, const Bytes& sums) {
      const Side& own = is_right ? right_ : left_;
      T* const found = reinterpret_cast<T*>(sums.get());
      if (!tangent) return std::fill(found, found + step_.count, T(0)), found;
      const int64_t count = batch_ * depth_ * own.own;
      const Bytes room_of = room(count, sizeof(T));
      T* const x = reinterpret_cast<T*>(room_of.get());
      pack(context_, tangent, side(roles_, is_right), x);
      for (int64_t i = 0; i < count; ++i) x[i] = own.weight()[i] == T(0) ? T(0) : x[i] * own.weight()[i];
      const Operand changed{x, depth_ * own.own, own.own, 1};
      product(is_right ? plain(left_) : changed, is_right ? changed : plain(right_), depth_, rows_, columns_, found);
      return found;
    };
    T* const sums = moved(false, left, first);
    const T* const others = moved(true, right, second);
    over_rows([&](int64_t row, Exact& exact) {
      weigh(row, values, all, [&](int64_t j, T weight, bool counts) {
        T& sum = sums[row * columns_ + j];
        sum = weight * (sum + others[row * columns_ + j]);
        if (counts && std::isfinite(sum)) return;
        sum = T(0);
        exact.shares(row, j, [&](int64_t l, int64_t r, T w) { sum += w * ((left ? left[l] : T(0)) + (right ? right[r] : T(0))); });
      });
    });
    const Bytes turned = room(step_.count, sizeof(T));
    T* const found = reinterpret_cast<T*>(turned.get());
    pack(context_, sums, back(step_, roles_), found);
    for (int64_t i = 0; i < step_.count; ++i) to[i] += found[i];
  }

  // Adds to the cotangents of the operands, where they are not nullptr; false if a sum is not finite, and nothing was added.
  bool cotangent(const T* value, const T* of_value, T* left, T* right) const {
    if (roles_.is_swapped) std::swap(left, right);
    const Bytes kept = room(step_.count, sizeof(T)), given = room(step_.count, sizeof(T)), shares = room(step_.count, sizeof(T));
    const T *const values = in_order(value, kept), *const cotangents = in_order(of_value, given);
    T* const share = reinterpret_cast<T*>(shares.get());
    const Bytes all = totals();
    std::vector<char> is_bad(static_cast<size_t>(batch_ * rows_));
    over_rows([&](int64_t row, Exact&) {
      weigh(row, values, all, [&](int64_t j, T weight, bool counts) {
        const int64_t at = row * columns_ + j;
        share[at] = weight == T(0) ? T(0) : weight * cotangents[at];
        if (counts && std::isfinite(share[at])) return;
        is_bad[static_cast<size_t>(row)] = 1;
        share[at] = std::numeric_limits<T>::quiet_NaN();  // until the products are made
      });
    });
    const Bytes clean = room(step_.count, sizeof(T));
    T* const shared = reinterpret_cast<T*>(clean.get());
    for (int64_t i = 0; i < step_.count; ++i) shared[i] = share[i] == share[i] ? share[i] : T(0);
    Bytes sums[2];
    T* const to[2] = {left, right};
    for (const bool is_right : {false, true}) {
      if (!to[is_right]) continue;
      const Side &own = is_right ? right_ : left_, &other = is_right ? left_ : right_;
      const int64_t count = batch_ * depth_ * own.own;
      sums[is_right] = room(count, sizeof(T));
      T* const x = reinterpret_cast<T*>(sums[is_right].get());
      const Operand of_cells{shared, rows_ * columns_, is_right ? columns_ : 1, is_right ? 1 : columns_};
      product({other.weight(), depth_ * other.own, 1, other.own}, of_cells, other.own, depth_, own.own, x);
      bool is_finite = true;
      for (int64_t i = 0; i < count; ++i) {
        x[i] = own.weight()[i] == T(0) ? T(0) : x[i] * own.weight()[i];
        is_finite &= x[i] - x[i] == T(0);
      }
      if (!is_finite) return false;
    }
    for (const bool is_right : {false, true}) {
      if (!to[is_right]) continue;
      const Runs runs(side(roles_, is_right));
      const T* const x = reinterpret_cast<const T*>(sums[is_right].get());
      for (int64_t r = 0; r < runs.runs(); ++r) {
        const Runs::Run run = runs.run(r);
        for (int64_t i = 0; i < run.count; ++i) to[is_right][run.left + runs.left()[static_cast<size_t>(i)]] += x[run.first + i];
      }
    }
    Exact exact(*this);
    for (int64_t row = 0; row < batch_ * rows_; ++row)
      for (int64_t j = 0; is_bad[static_cast<size_t>(row)] && j < columns_; ++j) {
        const int64_t at = row * columns_ + j;
        if (share[at] == share[at]) continue;
        exact.shares(row, j, [&](int64_t l, int64_t r, T weight) {
          if (left) left[l] += weight * cotangents[at];
          if (right) right[r] += weight * cotangents[at];
        });
      }
    return true;
  }

 private:
  // Cells from all their candidates.
  class Exact {
   public:
    explicit Exact(const Products& of) : of_(of), choices_(of.choices_), left_(of.lhs_, choices_.left()), right_(of.rhs_, choices_.right()) {}

    T value(int64_t row, int64_t column) {
      const auto [best, sum] = sums(row, column);
      return std::isfinite(best) ? best + of_.temperature_ * std::log(sum) : best;
    }

    // each(left, right, share) for the candidates of a cell.
    template <class Each>
    void shares(int64_t row, int64_t column, const Each& each) {
      const auto [best, sum] = sums(row, column);
      const T inverse = std::isfinite(best) ? T(1) / sum : T(1);
      weights(row, column, best, [&](const T* weight, const Runs::Run& run, int64_t l, int64_t r) {
        for (int64_t i = 0; i < run.count; ++i)
          if (weight[i] != T(0)) each(l + choices_.left()[static_cast<size_t>(i)], r + choices_.right()[static_cast<size_t>(i)], weight[i] * inverse);
      });
    }

   private:
    // The largest candidate, and the sum of exp((candidate - largest) / T).
    std::pair<T, T> sums(int64_t row, int64_t column) {
      T best = -std::numeric_limits<T>::infinity(), sum = T(0);
      over(row, column, [&](const T* a, const T* b, const Runs::Run& run, int64_t, int64_t) { of_.context_.folds.candidates(a, b, run.count, &best, nullptr, 0); });
      weights(row, column, best, [&](const T* weight, const Runs::Run& run, int64_t, int64_t) { sum += sum_of(weight, run.count); });
      return {best, sum};
    }

    // each(weights, run, left, right), where weights are exp((candidate - reference) / T).
    template <class Each>
    void weights(int64_t row, int64_t column, T reference, const Each& each) {
      over(row, column, [&](const T* a, const T* b, const Runs::Run& run, int64_t l, int64_t r) {
        T weights[kRun];
        of_.context_.folds.weights(a, b, run.count, &reference, 0, of_.context_.ask.temperature, weights);
        each(weights, run, l, r);
      });
    }

    template <class Each>
    void over(int64_t row, int64_t column, const Each& each) {
      const Roles& roles = of_.roles_;
      const int64_t b = row / of_.rows_;
      const int64_t l = place(roles.batch, b, false) + place(roles.rows, row % of_.rows_, false), r = place(roles.batch, b, true) + place(roles.columns, column, true);
      for (int64_t c = 0; c < choices_.runs(); ++c) {
        const Runs::Run run = choices_.run(c);
        each(left_.run(l + run.left, run.count), right_.run(r + run.right, run.count), run, l + run.left, r + run.right);
      }
    }
    static int64_t place(const std::vector<Axis>& axes, int64_t index, bool is_right) {
      int64_t found = 0;
      for (size_t i = axes.size(); i-- > 0; index /= axes[i].extent) found += index % axes[i].extent * (is_right ? axes[i].right : axes[i].left);
      return found;
    }
    const Products& of_;
    const Runs& choices_;
    Gather<T> left_, right_;
  };

  void make(bool is_right, Side& to) const {
    const int64_t own = to.own = is_right ? columns_ : rows_, pieces = (own + kRun - 1) / kRun;
    to.weights = room(times(times(batch_, depth_), own), sizeof(T));
    to.tops = room(batch_ * own, sizeof(T));
    pack(context_, is_right ? rhs_ : lhs_, side(roles_, is_right), to.weight());
    std::fill(to.top(), to.top() + batch_ * own, -std::numeric_limits<T>::infinity());
    const auto work = [&](int64_t i) {
      const int64_t b = i / pieces, first = i % pieces * kRun, count = std::min(own - first, kRun);
      T *const x = to.weight() + b * depth_ * own + first, *const top = to.top() + b * own + first;
      for (int64_t k = 0; k < depth_; ++k) context_.folds.cells(x + k * own, nullptr, count, top, nullptr, 0);
      for (int64_t k = 0; k < depth_; ++k) context_.folds.weights(x + k * own, nullptr, count, top, 1, context_.ask.temperature, x + k * own);
    };
    shared(batch_ * pieces, batch_ * depth_ * own * 16, work);
  }

  void shared(int64_t parts, int64_t candidates, const std::function<void(int64_t)>& work) const {
    if (candidates >= kWorthThreads) return parallel(context_.pool, parts, work);
    for (int64_t i = 0; i < parts; ++i) work(i);
  }

  Operand plain(const Side& of) const { return {of.weight(), depth_ * of.own, of.own, 1}; }

  // Sums of products; never by lines, which have none.
  void product(const Operand& lhs, const Operand& rhs, int64_t contracted, int64_t rows, int64_t columns, T* to) const {
    solve(context_.pool, {Algebra::kLogSumExp, context_.ask.type, batch_, contracted, rows, columns, lhs, rhs, to, nullptr}, context_.kernels);
  }

  // work(row, exact cells) for every row of every batch entry.
  template <class Work>
  void over_rows(const Work& work) const {
    const int64_t rows = batch_ * rows_, work_of = step_.count * 16;
    const int64_t parts = work_of < kWorthThreads ? 1 : std::min<int64_t>(rows, 4 * std::max<int64_t>(context_.pool.threads(), 1));
    shared(parts, work_of, [&](int64_t i) {
      Exact exact(*this);
      for (int64_t row = rows * i / parts; row < rows * (i + 1) / parts; ++row) work(row, exact);
    });
  }

  // The sums of products of all cells: their inverses take shares without the value, which was rounded.
  Bytes totals() const {
    Bytes found = room(step_.count, sizeof(T));
    product(plain(left_), plain(right_), depth_, rows_, columns_, reinterpret_cast<T*>(found.get()));
    return found;
  }

  // each(column, the inverse of the total, whether the cell counts) for one row.
  template <class Each>
  void weigh(int64_t row, const T* values, const Bytes& totals, const Each& each) const {
    const T* const total = reinterpret_cast<const T*>(totals.get()) + row * columns_;
    for (int64_t j = 0; j < columns_; ++j) {
      const bool is_none = values[row * columns_ + j] == -std::numeric_limits<T>::infinity();  // so are all candidates
      each(j, is_none ? T(0) : T(1) / total[j], is_none || total[j] >= floor_);
    }
  }

  const T* in_order(const T* cells, const Bytes& room_of) const {
    if (roles_.is_in_order) return cells;
    pack(context_, cells, forth(step_, roles_), reinterpret_cast<T*>(room_of.get()));
    return reinterpret_cast<const T*>(room_of.get());
  }

  const Context& context_;
  const Step& step_;
  const Roles roles_;
  const Runs choices_;
  const T temperature_;
  const void *lhs_, *rhs_;
  int64_t batch_, depth_, rows_, columns_;
  T floor_;
  Side left_, right_;
};

// --- the questions ---------------------------------------------------------------------------------------------------------------

// The plan's last result in the output's order.
template <class T>
void write_output(const Context& context, const Plan& plan, const T* last, T* to) {
  const auto number = static_cast<int64_t>(plan.terms.size()) - 1;
  std::vector<Axis> axes;
  for (int64_t label : plan.output) axes.push_back({plan.size(label), plan.stride(number, label), 0});
  pack(context, last, axes, to);
}

// For each label of the plan the coordinates of every cell of the value: of contracted ones in `labels`, of the others in `own`.
std::vector<const int32_t*> coordinates(const Plan& plan, const int32_t* labels, std::vector<int32_t>& own) {
  std::vector<const int32_t*> found(plan.sizes.size(), nullptr);
  for (size_t i = 0; i < plan.contracted.size(); ++i) found[static_cast<size_t>(plan.contracted[i])] = labels + static_cast<int64_t>(i) * plan.cells;
  own.resize(plan.output.size() * static_cast<size_t>(plan.cells));
  int64_t stride = 1;
  for (size_t i = plan.output.size(); i-- > 0; stride *= plan.size(plan.output[i])) {
    int32_t* const at = own.data() + static_cast<int64_t>(i) * plan.cells;
    const int64_t size = plan.size(plan.output[i]);
    for (int64_t o = 0; o < plan.cells; o += stride) std::fill(at + o, at + o + stride, static_cast<int32_t>(o / stride % size));
    found[static_cast<size_t>(plan.output[i])] = at;
  }
  return found;
}

// Where each cell of the value reads a term, for cells from `first`.
void positions(const Plan& plan, int64_t term, const std::vector<const int32_t*>& at, int64_t first, int64_t count, int64_t* to) {
  std::fill(to, to + count, 0);
  const auto& labels = plan.terms[static_cast<size_t>(term)];
  int64_t stride = 1;
  for (size_t i = labels.size(); i-- > 0; stride *= plan.size(labels[i])) {
    const int32_t* const x = at[static_cast<size_t>(labels[i])] + first;
    if (stride == 1)
      for (int64_t o = 0; o < count; ++o) to[o] += x[o];
    else
      for (int64_t o = 0; o < count; ++o) to[o] += stride * x[o];
  }
}

// The one walk from the last step to the first, which finds the labels of each cell of the value, sample, or way. At each step
// choose(number, at, first, count, cell, chosen) says which candidate the walks from `first` take, of whose cells it gets the places; `at` has
// the labels that are known there. Every value is read by one step, so the order of the steps is enough, and a run of walks stays in the cache.
template <class Choose>
void walk(const Context& context, const Plan& plan, int64_t walks, bool is_parallel, int32_t* labels, const Choose& choose) {
  std::vector<int32_t> own;
  const auto at = coordinates(plan, labels, own);
  const auto run = [&](int64_t number) {
    const int64_t first = number * kRun, count = std::min(walks - first, kRun);
    int64_t cell[kRun], chosen[kRun];
    for (size_t s = plan.steps.size(); s-- > 0;) {
      const Step& step = plan.steps[s];
      positions(plan, plan.tables + static_cast<int64_t>(s), at, first, count, cell);
      choose(s, at, first, count, cell, chosen);
      for (size_t i = step.contracted.size(); i-- > 0;) {
        int32_t* const to = const_cast<int32_t*>(at[static_cast<size_t>(step.contracted[i])]) + first;
        const int64_t size = plan.size(step.contracted[i]);
        for (int64_t o = 0; o < count; ++o) to[o] = static_cast<int32_t>(i ? chosen[o] % size : chosen[o]);
        for (int64_t o = 0; i && o < count; ++o) chosen[o] /= size;
      }
    }
  };
  const int64_t runs = (walks + kRun - 1) / kRun;
  if (is_parallel && runs > 1) return parallel(context.pool, runs, run);
  for (int64_t i = 0; i < runs; ++i) run(i);
}

void walk_back(const Context& context, const Plan& plan, const std::vector<Winners>& winners, int32_t* labels) {
  walk(context, plan, plan.cells, true, labels, [&](size_t s, const auto&, int64_t, int64_t count, const int64_t* cell, int64_t* chosen) {
    if (!plan.steps[s].contracted.empty()) winners[s].over(cell, count, [&](int64_t o, int64_t winner) { chosen[o] = winner; });
  });
}

template <class T>
void solve_step(const Context& context, const Step& step, const void* lhs, const void* rhs, T* value, Winners* winners, Sums<T>* sums) {
  if constexpr (std::is_floating_point<T>::value)
    if (is_for_products(context, step)) return Products<T>(context, step, lhs, rhs).value(value);
  (is_for_tiles(context, step) ? search_by_tiles<T> : search<T>)(context, step, lhs, rhs, value, winners);
  if constexpr (std::is_floating_point<T>::value)
    if (context.ask.algebra == Algebra::kLogSumExp && !step.contracted.empty()) {
      const Runs cells(step.cells), choices(step.candidates);
      if (sums) sums->make(step.count);
      log_sums<T>(context, cells, choices, lhs, rhs, value, goes_by_cell(cells, choices), sums);
    }
}

// Under log-sum-exp, tables without the numbers that all entries of an output's cell share: added to other scores, a large one would cost these
// their digits. Tables whose numbers are small are read where they lie.
template <class T>
class Shared {
 public:
  [[gnu::noinline]] Shared(const Context& context, const Plan& plan) : plan_(plan) {
    for (int64_t i = 0; i < plan.tables; ++i) tables_.push_back(context.ask.inputs[static_cast<size_t>(i)].data);
    if constexpr (std::is_floating_point<T>::value) {
      if (context.ask.algebra != Algebra::kLogSumExp) return;
      double sum = 0;
      for (int64_t i = 0; i < plan.tables; ++i) {
        numbers_.push_back(numbers(i));
        T most = T(0);
        for (T x : numbers_.back()) most = std::max(most, std::abs(x));
        sum += static_cast<double>(most);
      }
      if (sum <= kSmallSum * context.ask.temperature) {
        numbers_.clear();
        return;
      }
      for (int64_t i = 0; i < plan.tables; ++i) take(i);
    }
  }

  const void* table(int64_t i) const { return tables_[static_cast<size_t>(i)]; }

  // Adds to the cells of the output what was taken away.
  [[gnu::noinline]] void give_back(T* out) const {
    if (!std::is_floating_point<T>::value || numbers_.empty()) return;
    std::vector<double> sums(static_cast<size_t>(plan_.cells));
    for (int64_t i = 0; i < plan_.tables; ++i) {
      std::vector<Axis> axes;
      int64_t stride = 1;
      for (size_t a = plan_.output.size(); a-- > 0; stride *= plan_.size(plan_.output[a]))
        axes.insert(axes.begin(), Axis{plan_.size(plan_.output[a]), stride, number_stride(i, plan_.output[a])});
      over_entries(Runs(axes), [&](int64_t cell, int64_t at) { sums[static_cast<size_t>(cell)] += static_cast<double>(numbers_[static_cast<size_t>(i)][static_cast<size_t>(at)]); });
    }
    for (int64_t o = 0; o < plan_.cells; ++o) out[o] = static_cast<T>(static_cast<double>(out[o]) + sums[static_cast<size_t>(o)]);
  }

 private:
  static constexpr double kSmallSum = 64;  // of numbers / T: no probability shows how these are rounded

  const std::vector<int64_t>& labels(int64_t table) const { return plan_.terms[static_cast<size_t>(table)]; }

  // A table has a number for each cell of those of its labels that the output has too.
  int64_t number_stride(int64_t table, int64_t label) const {
    if (!has(labels(table), label)) return 0;
    int64_t stride = 1;
    for (size_t a = labels(table).size(); labels(table)[--a] != label;)
      if (has(plan_.output, labels(table)[a])) stride *= plan_.size(labels(table)[a]);
    return stride;
  }

  [[gnu::noinline]] Runs runs_of(int64_t table) const {
    std::vector<Axis> axes;
    int64_t stride = plan_.counts[static_cast<size_t>(table)];
    for (int64_t label : labels(table)) {
      stride /= plan_.size(label);
      axes.push_back({plan_.size(label), stride, has(plan_.output, label) ? number_stride(table, label) : 0});
    }
    return Runs(axes);
  }

  // each(left, right) for the addresses of all entries.
  template <class Each>
  static void over_entries(const Runs& runs, const Each& each) {
    for (int64_t r = 0; r < runs.runs(); ++r) {
      const Runs::Run run = runs.run(r);
      for (int64_t i = 0; i < run.count; ++i) each(run.left + runs.left()[static_cast<size_t>(i)], run.right + runs.right()[static_cast<size_t>(i)]);
    }
  }

  // What the finite entries have in common: the greatest if all lie below 0, the least if all lie above, else 0.
  static T number(T greatest, T least) {
    const T found = greatest < T(0) ? greatest : std::max(least, T(0));
    return std::isfinite(found) ? found : T(0);
  }

  static T number_of(const T* x, int64_t count) {
    constexpr int64_t lanes = 16;  // vectors
    constexpr T infinity = std::numeric_limits<T>::infinity();
    T greatest[lanes], least[lanes];
    std::fill(greatest, greatest + lanes, -infinity), std::fill(least, least + lanes, infinity);
    const auto see = [&](int64_t l, T value) {
      greatest[l] = value > greatest[l] ? value : greatest[l];
      least[l] = value < least[l] && value != -infinity ? value : least[l];
    };
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      for (int64_t l = 0; l < lanes; ++l) see(l, x[i + l]);
      if (greatest[0] >= T(0) && least[0] <= T(0)) return T(0);
    }
    for (; i < count; ++i) see(0, x[i]);
    return number(*std::max_element(greatest, greatest + lanes), *std::min_element(least, least + lanes));
  }

  std::vector<T> numbers(int64_t table) const {
    const T* const x = static_cast<const T*>(tables_[static_cast<size_t>(table)]);
    const auto& own = labels(table);
    int64_t cells = 1, leading = 0;
    bool is_diagonal = false;
    for (size_t a = 0; a < own.size(); ++a) {
      is_diagonal |= std::count(own.begin(), own.end(), own[a]) > 1;
      if (!has(plan_.output, own[a])) continue;
      cells *= plan_.size(own[a]);
      leading += static_cast<int64_t>(a) == leading;
    }
    std::vector<T> found(static_cast<size_t>(cells));
    if (is_diagonal) return found;
    const int64_t each = plan_.counts[static_cast<size_t>(table)] / cells;
    const bool is_in_blocks = std::none_of(own.begin() + leading, own.end(), [&](int64_t label) { return has(plan_.output, label); });
    if (is_in_blocks) {
      for (int64_t at = 0; at < cells; ++at) found[static_cast<size_t>(at)] = number_of(x + at * each, each);
      return found;
    }
    constexpr T infinity = std::numeric_limits<T>::infinity();
    std::vector<T> greatest(found.size(), -infinity), least(found.size(), infinity);
    over_entries(runs_of(table), [&](int64_t entry, int64_t at) {
      T &most = greatest[static_cast<size_t>(at)], &fewest = least[static_cast<size_t>(at)];
      most = std::max(most, x[entry]);
      if (x[entry] != -infinity) fewest = std::min(fewest, x[entry]);
    });
    for (size_t at = 0; at < found.size(); ++at) found[at] = number(greatest[at], least[at]);
    return found;
  }

  void take(int64_t table) {
    const auto& own = numbers_[static_cast<size_t>(table)];
    if (std::all_of(own.begin(), own.end(), [](T x) { return x == T(0); })) return;
    const T* const x = static_cast<const T*>(tables_[static_cast<size_t>(table)]);
    made_.push_back(room(plan_.counts[static_cast<size_t>(table)], sizeof(T)));
    T* const to = reinterpret_cast<T*>(made_.back().get());
    over_entries(runs_of(table), [&](int64_t entry, int64_t at) { to[entry] = x[entry] - own[static_cast<size_t>(at)]; });
    tables_[static_cast<size_t>(table)] = to;
  }

  const Plan& plan_;
  std::vector<const void*> tables_;
  std::vector<std::vector<T>> numbers_;
  std::vector<Bytes> made_;
};

// All values of a plan, by their numbers. Each is read by one step and freed then, unless the way back needs it, with the sums of log-sum-exp.
template <class T>
class Values {
 public:
  Values(const Context& context, const Plan& plan, std::vector<Winners>* winners, bool keeps)
      : shared_(context, plan), made_(plan.steps.size()), sums_(plan.steps.size()) {
    for (int64_t i = 0; i < plan.tables; ++i) at_.push_back(shared_.table(i));
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const Step& step = plan.steps[s];
      made_[s] = room(step.count, sizeof(T));
      T* const value = reinterpret_cast<T*>(made_[s].get());
      const void* const lhs = at(step.left);
      const void* const rhs = at(step.right);
      solve_step(context, step, lhs, rhs, value, winners ? &(*winners)[s] : nullptr, keeps ? &sums_[s] : nullptr);
      for (int64_t operand : {step.left, step.right})
        if (operand >= plan.tables && !keeps) made_[static_cast<size_t>(operand - plan.tables)].reset();
      at_.push_back(value);
    }
  }
  const void* at(int64_t i) const { return i < 0 ? nullptr : at_[static_cast<size_t>(i)]; }
  const T* last() const { return static_cast<const T*>(at_.back()); }
  const Sums<T>& sums(size_t step) const { return sums_[step]; }
  const Shared<T>& shared() const { return shared_; }

 private:
  Shared<T> shared_;
  std::vector<const void*> at_;
  std::vector<Bytes> made_;
  std::vector<Sums<T>> sums_;
};

template <class T>
void run_steps(const Context& context, const Plan& plan) {
  const Ask& ask = context.ask;
  const bool with_labels = ask.question == Question::kLabels;
  std::vector<Winners> winners(with_labels ? plan.steps.size() : 0);
  const Values<T> values(context, plan, with_labels ? &winners : nullptr, false);
  T* const out = static_cast<T*>(ask.results[0].data);
  write_output(context, plan, values.last(), out);
  values.shared().give_back(out);
  if (with_labels) walk_back(context, plan, winners, static_cast<int32_t*>(ask.results[1].data));
}

void require_labels(const Plan& plan, const int32_t* labels) {
  for (size_t i = 0; i < plan.contracted.size(); ++i)
    for (int64_t o = 0; o < plan.cells; ++o) {
      const int32_t at = labels[static_cast<int64_t>(i) * plan.cells + o];
      if (at < 0 || at >= plan.size(plan.contracted[i])) refuse("labels out of range");
    }
}

template <class T>
void at_labels(const Context& context, const Plan& plan) {
  const Ask& ask = context.ask;
  const auto* const labels = static_cast<const int32_t*>(ask.inputs[0].data);
  require_labels(plan, labels);
  std::vector<int32_t> own;
  const auto at = coordinates(plan, labels, own);
  const bool is_total = ask.question == Question::kTotal || ask.question == Question::kAddTotal;
  const bool adds = ask.question == Question::kAddTotal || ask.question == Question::kAddEntries;
  T* const out = static_cast<T*>(ask.results.empty() ? nullptr : ask.results[0].data);
  if (!adds && is_total) std::fill(out, out + plan.cells, T(0));
  int64_t where[kRun];
  for (size_t i = 0; i < plan.active.size(); ++i) {
    const int64_t rows = is_total ? 0 : static_cast<int64_t>(i) * plan.cells, entries = plan.counts[static_cast<size_t>(plan.active[i])];
    T* const table = static_cast<T*>(adds ? ask.results[i].data : ask.inputs[i + 1].data);
    if (adds) std::fill(table, table + entries, T(0));
    for (int64_t first = 0; first < plan.cells; first += kRun) {
      const int64_t count = std::min(plan.cells - first, kRun);
      positions(plan, plan.active[i], at, first, count, where);
      for (int64_t o = 0; o < count; ++o) {
        if (adds) table[where[o]] += static_cast<const T*>(ask.inputs[1].data)[rows + first + o];
        else if (is_total) out[first + o] += table[where[o]];
        else out[rows + first + o] = table[where[o]];
      }
    }
  }
}

// The sums of a step that was computed by products.
template <class T>
Sums<T> sums_of(const Context& context, const Step& step, const void* lhs, const void* rhs) {
  const Runs cells(step.cells), choices(step.candidates);
  Sums<T> sums;
  sums.make(step.count);
  const Bytes values = room(step.count, sizeof(T));
  search<T>(context, step, lhs, rhs, reinterpret_cast<T*>(values.get()), nullptr);
  log_sums<T>(context, cells, choices, lhs, rhs, reinterpret_cast<T*>(values.get()), goes_by_cell(cells, choices), &sums);
  return sums;
}

// Calls each(cell, left, right, share) for every candidate of a step, a run after another.
template <class T, class Each>
void weigh_step(const Context& context, const Plan& plan, const Values<T>& values, int64_t number, const Each& each) {
  const auto s = static_cast<size_t>(number - plan.tables);
  const Step& step = plan.steps[s];
  const void *const lhs = values.at(step.left), *const rhs = values.at(step.right);
  const Runs cells(step.cells), choices(step.candidates);
  Gather<T> left(lhs, cells.left()), right(rhs, cells.right());
  T weights[kRun];
  const bool contracts = !step.contracted.empty();
  const auto* const value = static_cast<const T*>(values.at(number));
  Sums<T> own;
  if (contracts && !values.sums(s).data) own = sums_of<T>(context, step, lhs, rhs);
  const Sums<T>& sums = own.data ? own : values.sums(s);
  for (int64_t r = 0; r < cells.runs(); ++r) {
    const Runs::Run cell = cells.run(r);
    for (int64_t c = 0; c < choices.runs(); ++c) {
      const Runs::Run choice = choices.run(c);
      for (int64_t i = 0; i < choice.count; ++i) {
        const int64_t l = cell.left + choice.left + choices.left()[static_cast<size_t>(i)], r2 = cell.right + choice.right + choices.right()[static_cast<size_t>(i)];
        if (contracts) {
          context.folds.weights(left.run(l, cell.count), right.run(r2, cell.count), cell.count, sums.references() + cell.first, 1, context.ask.temperature, weights);
          const T* const inverse = sums.inverses() + cell.first;
          for (int64_t j = 0; j < cell.count; ++j) weights[j] *= inverse[j];
        } else {
          for (int64_t j = 0; j < cell.count; ++j) weights[j] = value[cell.first + j] == -std::numeric_limits<T>::infinity() ? T(0) : T(1);
        }
        for (int64_t j = 0; j < cell.count; ++j)
          if (weights[j] != T(0)) each(cell.first + j, l + cells.left()[static_cast<size_t>(j)], r2 + cells.right()[static_cast<size_t>(j)], weights[j]);
      }
    }
  }
}

// Which values depend on the active tables.
std::vector<bool> moving(const Plan& plan) {
  const size_t tables = static_cast<size_t>(plan.tables);
  std::vector<bool> found(tables + plan.steps.size());
  for (int64_t i : plan.active) found[static_cast<size_t>(i)] = true;
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    found[tables + s] = found[static_cast<size_t>(step.left)] || (step.right >= 0 && found[static_cast<size_t>(step.right)]);
  }
  return found;
}

// Tangents or cotangents of the values, by their numbers; nullptr: zero, or not wanted.
template <class T>
class Moved {
 public:
  explicit Moved(const Plan& plan) : plan_(plan), at_(plan.terms.size(), nullptr), made_(plan.terms.size()) {}
  T* operator[](int64_t i) const { return i < 0 ? nullptr : at_[static_cast<size_t>(i)]; }
  // Those of the active tables.
  void set(const std::vector<Buffer>& buffers, size_t first) {
    for (size_t i = 0; i < plan_.active.size(); ++i) at_[static_cast<size_t>(plan_.active[i])] = static_cast<T*>(buffers[first + i].data);
  }
  void zeros(int64_t i) {
    T*& at = at_[static_cast<size_t>(i)];
    if (i >= plan_.tables) {
      made_[static_cast<size_t>(i)] = room(plan_.counts[static_cast<size_t>(i)], sizeof(T));
      at = reinterpret_cast<T*>(made_[static_cast<size_t>(i)].get());
    }
    std::fill(at, at + plan_.counts[static_cast<size_t>(i)], T(0));
  }
  void free(int64_t i) {
    if (i >= 0) made_[static_cast<size_t>(i)].reset();
  }

 private:
  const Plan& plan_;
  std::vector<T*> at_;
  std::vector<Bytes> made_;
};

// The cotangent of the value, in the order of the last result.
template <class T>
void read_cotangent(const Context& context, const Plan& plan, const void* given, T* to) {
  std::vector<Axis> axes;
  for (int64_t label : plan.terms.back()) {
    int64_t stride = 1, found = 0;
    for (size_t i = plan.output.size(); i-- > 0; stride *= plan.size(plan.output[i]))
      if (plan.output[i] == label) found = stride;
    axes.push_back({plan.size(label), found, 0});
  }
  pack(context, given, axes, to);
}

// Makes the tangent of a step's result.
template <class T>
void step_tangent(const Context& context, const Plan& plan, const Values<T>& values, int64_t number, Moved<T>& moved) {
  const Step& step = plan.steps[static_cast<size_t>(number - plan.tables)];
  const auto* const value = static_cast<const T*>(values.at(number));
  moved.zeros(number);
  T *const own = moved[number], *const left = moved[step.left], *const right = moved[step.right];
  if (is_for_products(context, step)) return Products<T>(context, step, values.at(step.left), values.at(step.right)).tangent(value, left, right, own);
  weigh_step<T>(context, plan, values, number,
                [&](int64_t cell, int64_t l, int64_t r, T weight) { own[cell] += weight * ((left ? left[l] : T(0)) + (right ? right[r] : T(0))); });
}

template <class T>
void log_derivative(const Context& context, const Plan& plan) {
  const Ask& ask = context.ask;
  const Values<T> values(context, plan, nullptr, true);
  const std::vector<bool> is_wanted = moving(plan);
  const int64_t values_count = static_cast<int64_t>(plan.terms.size()), last = values_count - 1;
  Moved<T> moved(plan);
  if (ask.question == Question::kLogTangent) {
    moved.set(ask.inputs, static_cast<size_t>(plan.tables));
    for (int64_t i = plan.tables; i < values_count; ++i) {
      if (!is_wanted[static_cast<size_t>(i)]) continue;
      step_tangent(context, plan, values, i, moved);
      const Step& step = plan.steps[static_cast<size_t>(i - plan.tables)];
      moved.free(step.left), moved.free(step.right);
    }
    if (plan.active.empty()) moved.zeros(last);
    return write_output(context, plan, moved[last], static_cast<T*>(ask.results[0].data));
  }
  moved.set(ask.results, 0);
  for (int64_t i : plan.active) moved.zeros(i);
  moved.zeros(last);
  read_cotangent(context, plan, ask.inputs[static_cast<size_t>(plan.tables)].data, moved[last]);
  for (int64_t i = last; i >= plan.tables; --i) {
    if (!is_wanted[static_cast<size_t>(i)]) continue;
    const Step& step = plan.steps[static_cast<size_t>(i - plan.tables)];
    for (int64_t operand : {step.left, step.right})
      if (operand >= plan.tables && is_wanted[static_cast<size_t>(operand)]) moved.zeros(operand);
    T *const own = moved[i], *const left = moved[step.left], *const right = moved[step.right];
    const auto* const value = static_cast<const T*>(values.at(i));
    if (!is_for_products(context, step) || !Products<T>(context, step, values.at(step.left), values.at(step.right)).cotangent(value, own, left, right))
      weigh_step<T>(context, plan, values, i, [&](int64_t cell, int64_t l, int64_t r, T weight) {
        if (left) left[l] += weight * own[cell];
        if (right) right[r] += weight * own[cell];
      });
    moved.free(i);
  }
}

// The second derivative. A share w of a step's result v moves along tangents t by w (t_left + t_right - t_v) / T. So forward the first
// tangents come along with the second ones, and backward every cotangent has a second one beside it; no step is differentiated twice.
template <class T>
void log_curvature(const Context& context, const Plan& plan) {
  const Ask& ask = context.ask;
  const Values<T> values(context, plan, nullptr, true);
  const std::vector<bool> is_wanted = moving(plan);
  const size_t tables = static_cast<size_t>(plan.tables);
  const int64_t values_count = static_cast<int64_t>(plan.terms.size()), last = values_count - 1;
  const T rate = static_cast<T>(1 / ask.temperature);
  const bool is_forward = ask.question == Question::kLogBend;
  Moved<T> along(plan), first(plan), second(plan);  // t; the first derivative, and how it moves
  along.set(ask.inputs, tables + (is_forward ? plan.active.size() : 1));
  const auto weigh = [&](int64_t i, const auto& each) {
    const Step& step = plan.steps[static_cast<size_t>(i - plan.tables)];
    const T *const own = along[i], *const left = along[step.left], *const right = along[step.right];
    weigh_step<T>(context, plan, values, i, [&](int64_t cell, int64_t l, int64_t r, T weight) {
      each(cell, l, r, weight, weight * ((left ? left[l] : T(0)) + (right ? right[r] : T(0)) - own[cell]) * rate);
    });
  };
  if (is_forward) first.set(ask.inputs, tables);
  for (int64_t i = plan.tables; i < values_count; ++i) {
    if (!is_wanted[static_cast<size_t>(i)]) continue;
    step_tangent(context, plan, values, i, along);
    if (!is_forward) continue;
    step_tangent(context, plan, values, i, first);
    second.zeros(i);
    const Step& step = plan.steps[static_cast<size_t>(i - plan.tables)];
    const T *const left = first[step.left], *const right = first[step.right], *const left2 = second[step.left], *const right2 = second[step.right];
    T* const own = second[i];
    weigh(i, [&](int64_t cell, int64_t l, int64_t r, T weight, T moves) {
      own[cell] += weight * ((left2 ? left2[l] : T(0)) + (right2 ? right2[r] : T(0))) + moves * ((left ? left[l] : T(0)) + (right ? right[r] : T(0)));
    });
    for (int64_t operand : {step.left, step.right}) along.free(operand), first.free(operand), second.free(operand);
  }
  if (is_forward) {
    if (plan.active.empty()) second.zeros(last);
    return write_output(context, plan, second[last], static_cast<T*>(ask.results[0].data));
  }
  second.set(ask.results, 0);
  for (int64_t i : plan.active) second.zeros(i);
  first.zeros(last), second.zeros(last);
  read_cotangent(context, plan, ask.inputs[tables].data, first[last]);
  for (int64_t i = last; i >= plan.tables; --i) {
    if (!is_wanted[static_cast<size_t>(i)]) continue;
    const Step& step = plan.steps[static_cast<size_t>(i - plan.tables)];
    for (int64_t operand : {step.left, step.right})
      if (operand >= plan.tables && is_wanted[static_cast<size_t>(operand)]) first.zeros(operand), second.zeros(operand);
    const T *const own = first[i], *const own2 = second[i];
    T *const left = first[step.left], *const right = first[step.right], *const left2 = second[step.left], *const right2 = second[step.right];
    weigh(i, [&](int64_t cell, int64_t l, int64_t r, T weight, T moves) {
      const T slope = weight * own[cell], bend = weight * own2[cell] + moves * own[cell];
      if (left) left[l] += slope;
      if (right) right[r] += slope;
      if (left2) left2[l] += bend;
      if (right2) right2[r] += bend;
    });
    along.free(i), first.free(i), second.free(i);
  }
}

// The number of steps that contract.
int64_t draws(const Plan& plan) {
  return std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return !step.contracted.empty(); });
}

// Draws labels: of each step a candidate, by its share of the cell's value. Walks are samples.
template <class T>
void sample(const Context& context, const Plan& plan) {
  const Ask& ask = context.ask;
  const Values<T> values(context, plan, nullptr, true);
  const auto* const numbers = static_cast<const T*>(ask.inputs[static_cast<size_t>(plan.tables)].data);
  auto* const labels = static_cast<int32_t*>(ask.results[0].data);
  const int64_t samples = plan.cells;
  if (!std::isfinite(values.last()[0])) return std::fill(labels, labels + static_cast<int64_t>(plan.contracted.size()) * samples, -1);
  std::vector<int64_t> row;  // of the numbers, for each step
  for (size_t s = 0; s < plan.steps.size(); ++s) row.push_back(s ? row.back() + !plan.steps[s - 1].contracted.empty() : 0);
  walk(context, plan, samples, true, labels, [&](size_t s, const auto& at, int64_t first, int64_t count, const int64_t* cell, int64_t* chosen) {
    const Step& step = plan.steps[s];
    if (step.contracted.empty()) return;
    const auto* const lhs = static_cast<const T*>(values.at(step.left));
    const auto* const rhs = static_cast<const T*>(values.at(step.right));
    const auto* const value = static_cast<const T*>(values.at(plan.tables + static_cast<int64_t>(s)));
    const Runs choices(step.candidates);
    T left[kRun], right[kRun], weights[kRun];
    for (int64_t o = 0; o < count; ++o) {
      int64_t l = 0, r = 0;
      for (size_t i = 0; i < step.labels.size(); ++i) {
        const int64_t label = at[static_cast<size_t>(step.labels[i])][first + o];
        l += label * step.cells[i].left, r += label * step.cells[i].right;
      }
      const auto weigh = [&](const Runs::Run& run) {
        for (int64_t i = 0; i < run.count; ++i) left[i] = lhs[l + run.left + choices.left()[static_cast<size_t>(i)]];
        if (rhs)
          for (int64_t i = 0; i < run.count; ++i) right[i] = rhs[r + run.right + choices.right()[static_cast<size_t>(i)]];
        context.folds.weights(left, rhs ? right : nullptr, run.count, value + cell[o], 0, ask.temperature, weights);
      };
      T total = 0;
      for (int64_t c = 0; c < choices.runs(); ++c) {
        const Runs::Run run = choices.run(c);
        weigh(run);
        for (int64_t i = 0; i < run.count; ++i) total += weights[i];
      }
      const T target = numbers[row[s] * samples + first + o] * total;
      T sum = 0;
      chosen[o] = 0;  // the last candidate that counts, if the sum is rounded down
      for (int64_t c = 0; c < choices.runs() && !(sum > target); ++c) {
        const Runs::Run run = choices.run(c);
        if (choices.runs() > 1) weigh(run);
        for (int64_t i = 0; i < run.count && !(sum > target); ++i) {
          sum += weights[i];
          if (weights[i] > T(0)) chosen[o] = run.first + i;
        }
      }
    }
  });
}

// The best ways to make a cell, found when they are asked for: L. Huang and D. Chiang, Better k-best parsing (2005), algorithm 3.
template <class T>
class Ways {
 public:
  struct Way {
    T value;
    int64_t choice;       // the candidate
    int64_t left, right;  // how many ways of each operand's cell are better
  };

  Ways(const Plan& plan, const Values<T>& values) : plan_(plan), values_(values), nodes_(plan.steps.size()) {}

  // The way of a cell of a step that has n better ones; nullptr if there are fewer. It holds until the next call.
  const Way* way(size_t step, int64_t cell, int64_t n) {
    std::vector<Want> wants{{step, cell, n}};
    while (!wants.empty()) {  // no recursion: plans may be deep
      const Want want = wants.back();
      if (advance(want, &wants)) wants.pop_back();
    }
    Node& node = nodes_[step][cell];
    return node.found.size() > static_cast<size_t>(n) ? &node.found[static_cast<size_t>(n)] : nullptr;
  }

  // Where a candidate of a cell reads both operands.
  std::pair<int64_t, int64_t> places(size_t number, int64_t cell, int64_t choice) const {
    const Step& step = plan_.steps[number];
    int64_t left = 0, right = 0;
    for (size_t i = step.cells.size(); i-- > 0; cell /= step.cells[i].extent)
      left += cell % step.cells[i].extent * step.cells[i].left, right += cell % step.cells[i].extent * step.cells[i].right;
    for (size_t i = step.candidates.size(); i-- > 0; choice /= step.candidates[i].extent)
      left += choice % step.candidates[i].extent * step.candidates[i].left, right += choice % step.candidates[i].extent * step.candidates[i].right;
    return {left, right};
  }

 private:
  struct Want {
    size_t step;
    int64_t cell, n;
  };
  struct Node {
    std::vector<Way> found, heap;
    bool is_open = false, has_next = true;  // whether the heap was filled; whether it has all that may follow the last way found
  };

  static bool is_worse(const Way& a, const Way& b) {
    if (a.value != b.value) return a.value < b.value;
    return std::tie(a.choice, a.left, a.right) > std::tie(b.choice, b.left, b.right);
  }

  // Whether a want is met or cannot be; else what it needs first is added to the wants.
  bool advance(const Want& want, std::vector<Want>* wants) {
    const Step& step = plan_.steps[want.step];
    Node& node = nodes_[want.step][want.cell];
    if (!node.is_open) {
      for (int64_t c = 0; c < step.choices; ++c) push(&node, want, c, 0, 0);
      node.is_open = true;
    }
    while (node.found.size() <= static_cast<size_t>(want.n)) {
      if (!node.has_next) {  // each pair of ranks follows one other: the right rank goes up, and the left one where the right is 0
        const Way last = node.found.back();
        const auto at = places(want.step, want.cell, last.choice);
        bool waits = needs(step.right, at.second, last.right + 1, wants);
        if (last.right == 0) waits |= needs(step.left, at.first, last.left + 1, wants);
        if (waits) return false;
        push(&node, want, last.choice, last.left, last.right + 1);
        if (last.right == 0) push(&node, want, last.choice, last.left + 1, 0);
        node.has_next = true;
      }
      if (node.heap.empty()) return true;
      std::pop_heap(node.heap.begin(), node.heap.end(), is_worse);
      node.found.push_back(node.heap.back());
      node.heap.pop_back();
      node.has_next = false;
    }
    return true;
  }

  bool needs(int64_t operand, int64_t cell, int64_t n, std::vector<Want>* wants) {
    if (operand < plan_.tables) return false;
    const size_t step = static_cast<size_t>(operand - plan_.tables);
    Node& node = nodes_[step][cell];
    if (node.found.size() > static_cast<size_t>(n) || (node.is_open && node.has_next && node.heap.empty())) return false;
    wants->push_back({step, cell, n});
    return true;
  }

  // The value of an operand's cell in the n-th way, -inf if there is none.
  T value(int64_t operand, int64_t cell, int64_t n) {
    if (operand < 0) return n ? -std::numeric_limits<T>::infinity() : T(0);
    if (n == 0) return static_cast<const T*>(values_.at(operand))[cell];
    if (operand < plan_.tables) return -std::numeric_limits<T>::infinity();
    const Node& node = nodes_[static_cast<size_t>(operand - plan_.tables)][cell];
    return node.found.size() > static_cast<size_t>(n) ? node.found[static_cast<size_t>(n)].value : -std::numeric_limits<T>::infinity();
  }

  void push(Node* node, const Want& want, int64_t choice, int64_t left, int64_t right) {
    const Step& step = plan_.steps[want.step];
    const auto at = places(want.step, want.cell, choice);
    const T lhs = value(step.left, at.first, left), rhs = value(step.right, at.second, right);
    const T sum = step.right < 0 ? (right ? -std::numeric_limits<T>::infinity() : lhs) : lhs + rhs;
    if (!(sum > -std::numeric_limits<T>::infinity())) return;
    node->heap.push_back({sum, choice, left, right});
    std::push_heap(node->heap.begin(), node->heap.end(), is_worse);
  }

  const Plan& plan_;
  const Values<T>& values_;
  std::vector<std::unordered_map<int64_t, Node>> nodes_;
};

// The best values in order, as many as there are cells, with their labels; -inf and -1 where there are fewer. Walks are ways: each carries how
// many better ways there are of the cells that it has to visit.
template <class T>
void best_ways(const Context& context, const Plan& plan) {
  const Values<T> values(context, plan, nullptr, true);
  T* const best = static_cast<T*>(context.ask.results[0].data);
  auto* const labels = static_cast<int32_t*>(context.ask.results[1].data);
  const T top = values.last()[0];
  std::fill(best, best + plan.cells, top != top ? top : -std::numeric_limits<T>::infinity());
  std::fill(labels, labels + static_cast<int64_t>(plan.contracted.size()) * plan.cells, -1);
  if (top != top) return;
  Ways<T> ways(plan, values);
  const size_t last = plan.steps.size() - 1;
  int64_t count = 0;
  for (; count < plan.cells; ++count) {
    const auto* const found = ways.way(last, 0, count);
    if (!found) break;
    best[count] = found->value;
  }
  std::vector<int64_t> ranks(plan.terms.size() * kRun);
  const auto rank = [&](int64_t value) { return ranks.data() + value * kRun; };
  // Not in parallel: a way of one cell asks for ways of others, which are kept.
  walk(context, plan, count, false, labels, [&](size_t s, const auto&, int64_t first, int64_t walks, const int64_t* cell, int64_t* chosen) {
    const Step& step = plan.steps[s];
    int64_t* const own = rank(plan.tables + static_cast<int64_t>(s));
    for (int64_t o = 0; o < walks; ++o) {
      const auto* const found = ways.way(s, cell[o], s == last ? first + o : own[o]);  // parts of a way that was found exist
      chosen[o] = found->choice;
      rank(step.left)[o] = found->left;
      if (step.right >= 0) rank(step.right)[o] = found->right;
    }
  });
}

// The sizes of the inputs and results of a question.
void require_sizes(const Plan& plan, const Ask& ask) {
  std::vector<int64_t> tables(plan.counts.begin(), plan.counts.begin() + plan.tables), active, in, out;
  for (int64_t i : plan.active) active.push_back(plan.counts[static_cast<size_t>(i)]);
  const int64_t labels = times(static_cast<int64_t>(plan.contracted.size()), plan.cells), rows = times(static_cast<int64_t>(active.size()), plan.cells);
  const auto join = [](std::vector<int64_t> a, const std::vector<int64_t>& b) { return a.insert(a.end(), b.begin(), b.end()), a; };
  switch (ask.question) {
    case Question::kValue: in = tables, out = {plan.cells}; break;
    case Question::kLabels: in = tables, out = {plan.cells, labels}; break;
    case Question::kTotal: in = join({labels}, active), out = {plan.cells}; break;
    case Question::kEntries: in = join({labels}, active), out = {rows}; break;
    case Question::kAddTotal: in = {labels, plan.cells}, out = active; break;
    case Question::kAddEntries: in = {labels, rows}, out = active; break;
    case Question::kLogTangent: in = join(tables, active), out = {plan.cells}; break;
    case Question::kLogCotangent: in = join(tables, {plan.cells}), out = active; break;
    case Question::kLogCurvature: in = join(join(tables, {plan.cells}), active), out = active; break;
    case Question::kLogBend: in = join(join(tables, active), active), out = {plan.cells}; break;
    case Question::kBest: in = tables, out = {plan.cells, labels}; break;
    case Question::kSamples: in = join(tables, {times(draws(plan), plan.cells)}), out = {labels}; break;
    default: refuse("an unknown question");
  }
  const auto same = [](const std::vector<int64_t>& want, const std::vector<Buffer>& have) {
    return want.size() == have.size() && std::equal(want.begin(), want.end(), have.begin(), [](int64_t a, const Buffer& b) { return a == b.count; });
  };
  if (!same(in, ask.inputs)) refuse("operands of other sizes than the plan's");
  if (!same(out, ask.results)) refuse("results of other sizes than the plan's");
}

template <class T>
void run(const Context& context, const Plan& plan) {
  const Question question = context.ask.question;
  if (question <= Question::kLabels) return run_steps<T>(context, plan);
  if (question <= Question::kAddEntries) return at_labels<T>(context, plan);
  if constexpr (std::is_floating_point<T>::value) {
    if (question == Question::kBest) return best_ways<T>(context, plan);
    if (question >= Question::kLogBend) return log_curvature<T>(context, plan);
    return question == Question::kSamples ? sample<T>(context, plan) : log_derivative<T>(context, plan);
  }
}

}  // namespace

std::string answer(Pool& pool, const Ask& ask, const Kernels& kernels) {
  try {
    const bool is_float = ask.type == Type::kF32 || ask.type == Type::kF64, is_bool = ask.type == Type::kBool;
    const bool is_log = ask.algebra == Algebra::kLogSumExp;
    if (ask.type < Type::kF32 || ask.type > Type::kBool || ask.algebra < Algebra::kMaxPlus || ask.algebra > Algebra::kLogSumExp) refuse("an unknown type or semiring");
    if (is_bool != (ask.algebra == Algebra::kOrAnd) || (is_log && !is_float)) refuse("a type that the semiring does not take");
    const bool needs_log = ask.question >= Question::kLogTangent && ask.question != Question::kBest;
    if (ask.question == Question::kLabels ? is_log : needs_log && !is_log) refuse("a question that the semiring has no answer to");
    if (ask.question == Question::kBest && (ask.algebra != Algebra::kMaxPlus || !is_float)) refuse("a question that the semiring has no answer to");
    const Plan plan = read(ask);
    require_sizes(plan, ask);
    const Context context{pool, ask, kernels, kernels.folds(ask.type, ask.algebra)};
    switch (ask.type) {
      case Type::kF32: run<float>(context, plan); break;
      case Type::kF64: run<double>(context, plan); break;
      case Type::kI32: run<int32_t>(context, plan); break;
      case Type::kBool: run<uint8_t>(context, plan); break;
    }
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace tropical
