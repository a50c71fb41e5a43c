// One step of a plan: candidate by candidate (`search`), or as batched matrices (`search_by_tiles`). The constants say from which size on.
#pragma once
#include <cstring>
#include <functional>
#include <type_traits>

#include "plan.h"

namespace tropical::plans {

constexpr int64_t kWorthThreads = int64_t{1} << 20;   // candidates of a step from which threads share it
constexpr int64_t kWorthCall = int64_t{1} << 9;       // candidates from which tiles are faster that read operands where they lie
constexpr int64_t kWorthTiles = int64_t{1} << 17;     // candidates from which packed tiles are faster

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
  if (std::is_same<T, uint8_t>::value || algebra == Algebra::kSumProduct) return T(0);
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
template <class Work>
void over_runs(const Context& context, const Runs& runs, int64_t candidates, const Work& work) {
  const int64_t parts = candidates < kWorthThreads ? 1 : std::min(runs.runs(), 4 * std::max<int64_t>(context.pool.threads(), 1));
  if (parts < 2) return work(0, runs.runs());
  parallel(context.pool, parts, [&](int64_t i) { work(runs.runs() * i / parts, runs.runs() * (i + 1) / parts); });
}

// Whether runs go along the candidates of a cell, not along cells: a fold along candidates ends in one number, which costs more than to fold
// cells side by side, unless there are few of them.
inline bool goes_by_cell(const Runs& cells, const Runs& choices) { return choices.length() > 4 * cells.length(); }

// `cells` and `choices`: runs of the step's cells and of its candidates.
template <class T>
inline void search(const Context& context, const Step& step, const Runs& cells, const Runs& choices, const void* lhs, const void* rhs, T* value, Winners* winners) {
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

template <class T>
inline void search(const Context& context, const Step& step, const void* lhs, const void* rhs, T* value, Winners* winners) {
  search<T>(context, step, Runs(step.cells), Runs(step.candidates), lhs, rhs, value, winners);
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

inline Roles roles_of(const Step& step) {
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
inline bool lie_as_one(const std::vector<Axis>& axes, bool is_right, int64_t& stride) {
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
inline bool lies(const Roles& roles, bool is_right, const void* data, Operand& to) {
  to.data = data;
  return lie_as_one(roles.batch, is_right, to.batch) && lie_as_one(roles.candidates, is_right, to.contracted) &&
         lie_as_one(is_right ? roles.columns : roles.rows, is_right, to.own);
}

inline bool are_matrices(const Step& step) {
  return step.right >= 0 && std::all_of(step.candidates.begin(), step.candidates.end(), [](const Axis& a) { return a.left && a.right; });
}

// Whether the tiles are faster; those of booleans pack bits, which pays off for large steps alone.
inline bool is_for_tiles(Algebra algebra, const Step& step) {
  const int64_t work = times(step.count, step.choices);
  const bool has_tiles = algebra <= Algebra::kOrAnd || algebra == Algebra::kSumProduct;
  if (!has_tiles || work < (algebra == Algebra::kOrAnd ? kWorthTiles : kWorthCall) || !are_matrices(step)) return false;
  const Roles roles = roles_of(step);
  Operand side;
  if (roles.is_in_order && lies(roles, false, nullptr, side) && lies(roles, true, nullptr, side)) return true;
  return work >= kWorthTiles && step.choices >= 16 && roles.counts[1] >= 16 && roles.counts[2] >= 16;
}

// The axes of an operand as batched matrices, as left strides.
inline std::vector<Axis> side(const Roles& roles, bool is_right) {
  std::vector<Axis> axes = roles.batch;
  axes.insert(axes.end(), roles.candidates.begin(), roles.candidates.end());
  const auto& own = is_right ? roles.columns : roles.rows;
  axes.insert(axes.end(), own.begin(), own.end());
  for (Axis& a : axes) a = {a.extent, is_right ? a.right : a.left, 0};
  return axes;
}

// The entries of one operand (of the left strides) in row-major order of axes.
template <class T>
inline void pack(const Context& context, const void* from, const std::vector<Axis>& axes, T* to) {
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
inline std::vector<Axis> back(const Step& step, const Roles& roles) {
  std::vector<Axis> axes = step.cells;
  int64_t stride = 1;
  for (size_t i = roles.order.size(); i-- > 0; stride *= axes[roles.order[i]].extent) axes[roles.order[i]].left = stride;
  for (Axis& a : axes) a.right = 0;
  return axes;
}

inline std::vector<Axis> forth(const Step& step, const Roles& roles) {
  std::vector<Axis> axes;
  for (size_t i : roles.order) {
    int64_t stride = 1;
    for (size_t j = i + 1; j < step.cells.size(); ++j) stride *= step.cells[j].extent;
    axes.push_back({step.cells[i].extent, stride, 0});
  }
  return axes;
}

template <class T>
inline void search_by_tiles(const Context& context, const Step& step, const void* lhs, const void* rhs, T* value, Winners* winners) {
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

}  // namespace tropical::plans
