// Chains of states: one of the batch a task.
#include "chains.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>

namespace tropical {
namespace {

struct Free {
  void operator()(void* data) const { ::operator delete(data, std::align_val_t(64)); }
};

// What each input and result has for one chain.
struct Sizes {
  int64_t inputs[5], results[4];
  explicit Sizes(const Chains& asked) {
    const Chain& c = asked.one;
    const int64_t matrix = (c.band ? c.band : c.states) * c.states;
    const int64_t in[] = {c.states, c.rows * matrix, c.steps * c.states, 1, c.samples * c.steps};
    const int64_t out[] = {1, c.states, c.rows * matrix, c.steps * c.states};
    std::copy(in, in + 5, inputs), std::copy(out, out + 4, results);
    if (asked.asks == Chains::kSamples) results[0] = c.samples * c.steps;
    if (c.algebra != Algebra::kLogSumExp) results[1] = c.steps;
  }
};

template <class T>
void run_one(const Chains& asked, const Sizes& sizes, int64_t number, const Kernels& kernels) {
  Chain c = asked.one;
  int64_t places[5] = {}, rest = number;
  for (size_t axis = asked.batch.size(); axis-- > 0; rest /= asked.batch[axis])
    for (int i = 0; i < 5; ++i)
      if (asked.inputs[i]) places[i] += rest % asked.batch[axis] * asked.strides[i][axis];
  const auto input = [&](int i) { return static_cast<const T*>(asked.inputs[i]) + places[i] * sizes.inputs[i]; };
  const auto result = [&](size_t i) { return static_cast<T*>(asked.results[i]) + number * sizes.results[i]; };
  const auto states = [&](size_t i) { return static_cast<int32_t*>(asked.results[i]) + number * sizes.results[i]; };
  c.initial = input(0), c.transition = input(1), c.emission = input(2);
  c.length = asked.inputs[3] ? static_cast<const int32_t*>(asked.inputs[3])[places[3]] : c.steps;
  const bool is_log = c.algebra == Algebra::kLogSumExp, draws = asked.asks == Chains::kSamples, has_detail = asked.asks == Chains::kDetail;
  if (draws) c.uniforms = input(4), c.path = states(0);
  else c.score = result(0);
  if (has_detail && !is_log) c.path = states(1);
  if (has_detail && is_log) c.d_initial = result(1), c.d_transition = result(2), c.d_emission = result(3);
  const bool is_none = c.length < 1 || c.length > c.steps;
  if (c.path) {
    const int64_t from = is_none ? 0 : c.length;
    for (int64_t s = 0; s < (draws ? c.samples : 1); ++s) std::fill(c.path + s * c.steps + from, c.path + (s + 1) * c.steps, -1);
  }
  if (is_none) {
    const T infinity = INFINITY;
    const bool is_minimum = c.algebra == Algebra::kMinPlus || c.algebra == Algebra::kMinMax;
    if (c.score) *static_cast<T*>(c.score) = c.algebra == Algebra::kMaxMul ? T(0) : is_minimum ? infinity : -infinity;
    for (size_t i = 1; c.d_emission && i < 4; ++i) std::fill_n(result(i), sizes.results[i], T(0));
    return;
  }
  if (asked.keeps_marks && has_detail) c.every = std::max<int64_t>(1, static_cast<int64_t>(std::sqrt(static_cast<double>(c.steps))));
  const std::unique_ptr<void, Free> memory(::operator new(static_cast<size_t>(kernels.chain(c, nullptr)), std::align_val_t(64)));
  kernels.chain(c, memory.get());
}

}  // namespace

void run_chains(Pool& pool, const Chains& asked, const Kernels& kernels) {
  const Sizes sizes(asked);
  int64_t count = 1;
  for (int64_t size : asked.batch) count *= size;
  // Chains that are short share a task.
  const int64_t work = asked.one.steps * asked.one.states * asked.one.states, each = std::max<int64_t>(1, std::min<int64_t>(200000 / (work + 1), count / (4 * pool.threads() + 1)));
  parallel(pool, (count + each - 1) / each, [&](int64_t task) {
    for (int64_t i = task * each; i < std::min(count, (task + 1) * each); ++i)
      asked.one.type == Type::kF32 ? run_one<float>(asked, sizes, i, kernels) : run_one<double>(asked, sizes, i, kernels);
  });
}

std::string problem_of(const Chains& asked) {
  const Chain& c = asked.one;
  constexpr int64_t most = int64_t{1} << 31;
  const bool is_log = c.algebra == Algebra::kLogSumExp, is_known = is_log || c.algebra == Algebra::kMaxPlus || c.algebra == Algebra::kMinPlus || c.algebra == Algebra::kMaxMul || c.algebra == Algebra::kMinMax;
  if (c.type != Type::kF32 && c.type != Type::kF64) return "needs float32 or float64";
  if (!is_known || asked.asks < 0 || asked.asks > 2 || (asked.asks == Chains::kSamples && !is_log)) return "malformed attributes";
  if (c.states < 1 || c.steps < 1 || c.states >= most || c.steps >= most || c.band < 0 || c.band > c.states) return "sizes out of range";
  if (c.rows != 1 && c.rows != c.steps - 1) return "malformed transitions";
  const size_t results = asked.asks != Chains::kDetail ? 1 : is_log ? 4 : 2;
  return asked.results.size() == results ? "" : "malformed results";
}

}  // namespace tropical
