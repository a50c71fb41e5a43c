// A step under log-sum-exp: from its largest candidates, or by sums of products of exponentials; and the numbers that all scores share.
#pragma once
#include <cmath>

#include "steps.h"

namespace tropical::plans {

constexpr int64_t kPart = 16;                         // terms that are added one after another

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
inline void log_sums(const Context& context, const Runs& cells, const Runs& choices, const void* lhs, const void* rhs, T* value, bool by_cell, const Sums<T>* kept) {
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

// --- log-sum-exp by sums of products ---------------------------------------------------------------------------------------------

// exp((a + b - A - B) / T) = exp((a - A) / T) exp((b - B) / T) for the largest entry A of each row and B of each column: as many
// exponentials as entries, not candidates. A product that underflows was less than the least normal number. So a cell counts if its sum of products is so large that all candidates could lose no more than rounding does; the others are `exact`.

// Whether that saves half of the exponentials.
inline bool is_for_products(const Context& context, const Step& step) {
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

}  // namespace tropical::plans
