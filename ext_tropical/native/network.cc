// The questions to a plan under selective semirings and log-sum-exp. Ordinary sums are in sums.cc.
//
// All questions are one forward pass, `Values` by `solve_step`, and one of three ways back: `walk` chooses a candidate of each step (the first
// winner, a sample, the n-th best), `weigh_step` goes through all candidates with their shares (derivatives under log-sum-exp), `at_labels`
// reads or adds entries of the tables alone.
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

#include "last.h"
#include "log_steps.h"
#include "sums.h"

namespace tropical {
namespace {

using namespace plans;

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
  if (is_for_tiles(context.ask.algebra, step)) search_by_tiles<T>(context, step, lhs, rhs, value, winners);
  else search<T>(context, step, lhs, rhs, value, winners);
  if constexpr (std::is_floating_point<T>::value)
    if (context.ask.algebra == Algebra::kLogSumExp && !step.contracted.empty()) {
      const Runs cells(step.cells), choices(step.candidates);
      if (sums) sums->make(step.count);
      log_sums<T>(context, cells, choices, lhs, rhs, value, goes_by_cell(cells, choices), sums);
    }
}

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
    case Question::kSum: in = tables, out = {plan.cells}; break;
    case Question::kScaledSum: in = tables, out = {plan.cells, plan.cells}; break;
    case Question::kSumTangent: in = join(tables, {plan.cells}), out = {plan.cells}; break;
    case Question::kSumCotangent: in = join(tables, {plan.cells, plan.cells}), out = active; break;
    case Question::kSamples: in = join(tables, {times(draws(plan), plan.cells)}), out = {labels}; break;
    default: refuse("an unknown question");
  }
  if (ask.question >= Question::kSum) {
    const int64_t order = order_of(ask, plan);
    if (order < 0) refuse("another number of tangents than the active tables have");
    for (int64_t j = 0; j < order; ++j) in = join(in, active);
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

// The plan, read once for the last calls: that takes as long as to answer a small one.
std::shared_ptr<const Plan> plan_of(const Ask& ask) {
  const auto make = [&] { return std::make_shared<const Plan>(read(ask)); };
  if (ask.question == Question::kSamples || ask.question == Question::kBest) return make();  // depends on the sizes of results
  static auto* const last = new Last<Plan>(16, int64_t{32} << 20);  // never freed: threads may end after it
  std::vector<int64_t> key(ask.plan, ask.plan + ask.length);
  key.push_back(ask.question >= Question::kTotal && ask.question <= Question::kAddEntries);  // may leave values unread
  return last->find(std::move(key), make, [](const Plan& plan) { return static_cast<int64_t>(512 * plan.terms.size()); });
}

}  // namespace

std::string answer(Pool& pool, const Ask& ask, const Kernels& kernels) {
  try {
    const bool is_float = ask.type == Type::kF32 || ask.type == Type::kF64, is_bool = ask.type == Type::kBool;
    const bool is_log = ask.algebra == Algebra::kLogSumExp;
    if (ask.type < Type::kF32 || ask.type > Type::kBool || ask.algebra < Algebra::kMaxPlus || ask.algebra > Algebra::kSumProduct) refuse("an unknown type or semiring");
    if (is_bool != (ask.algebra == Algebra::kOrAnd) || (is_log && !is_float)) refuse("a type that the semiring does not take");
    const bool is_sum = ask.algebra == Algebra::kSumProduct;
    if (is_sum != (ask.question >= Question::kSum) || (is_sum && !is_float)) refuse("a question that the semiring has no answer to");
    const bool needs_log = !is_sum && ask.question >= Question::kLogTangent && ask.question != Question::kBest;
    if (ask.question == Question::kLabels ? is_log : needs_log && !is_log) refuse("a question that the semiring has no answer to");
    if (ask.question == Question::kBest && (ask.algebra != Algebra::kMaxPlus || !is_float)) refuse("a question that the semiring has no answer to");
    const std::shared_ptr<const Plan> kept = plan_of(ask);
    const Plan& plan = *kept;
    require_sizes(plan, ask);
    if (is_sum) return answer_sums(pool, ask, plan, kernels), "";
    if (answer_log_sums(pool, ask, plan, kernels)) return "";
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
