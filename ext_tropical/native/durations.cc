// Chains with durations: one of the batch a task.
#include "durations.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>

namespace tropical {
namespace {

using Many = ManyDurations;

constexpr int64_t kMuch = 1 << 24;  // bytes that no thread keeps

struct Free {
  void operator()(void* data) const { ::operator delete(data, std::align_val_t(64)); }
};

template <class T>
void run_one(const Many& asked, int64_t number, const Kernels& kernels) {
  Durations c = asked.one;
  const int64_t states = c.states, matrix = c.rows * states * states, lasting = states * c.longest, seen = c.steps * states, drawn = c.samples * c.steps;
  const auto input = [&](int i, int64_t size) { return static_cast<const T*>(asked.inputs[i]) + number * size; };
  const auto result = [&](size_t i, int64_t size) { return static_cast<T*>(asked.results[i]) + number * size; };
  const auto path = [&](size_t i, int64_t size) { return static_cast<int32_t*>(asked.results[i]) + number * size; };
  c.initial = input(Many::kInitial, states), c.transition = input(Many::kTransition, matrix);
  c.durations = input(Many::kDurations, lasting), c.emission = input(Many::kEmission, seen);
  c.length = asked.inputs[Many::kLengths] ? static_cast<const int32_t*>(asked.inputs[Many::kLengths])[number] : c.steps;
  int64_t paths = 0;
  if (asked.asks == Many::kSamples) c.uniforms = input(Many::kUniforms, 2 * drawn), c.path = path(0, drawn), paths = c.samples;
  else c.score = result(0, 1);
  const bool has_uses = asked.asks == Many::kDetail && c.is_log;
  if (asked.asks == Many::kDetail && !c.is_log) c.path = path(1, c.steps), paths = 1;
  if (has_uses) c.d_initial = result(1, states), c.d_transition = result(2, matrix), c.d_durations = result(3, lasting), c.d_emission = result(4, seen);
  const bool is_none = c.length < 1 || c.length > c.steps;
  for (int64_t i = 0; i < paths; ++i) std::fill(c.path + i * c.steps + (is_none ? 0 : c.length), c.path + (i + 1) * c.steps, -1);
  if (is_none) {
    if (c.score) *static_cast<T*>(c.score) = c.is_minimum ? static_cast<T>(INFINITY) : -static_cast<T>(INFINITY);
    const int64_t sizes[] = {1, states, matrix, lasting, seen};
    for (size_t i = 1; has_uses && i < 5; ++i) std::fill_n(result(i, sizes[i]), sizes[i], T(0));
    return;
  }
  const int64_t bytes = kernels.durations(c, nullptr);
  std::unique_ptr<void, Free> own(bytes > kMuch ? ::operator new(static_cast<size_t>(bytes), std::align_val_t(64)) : nullptr);
  kernels.durations(c, own ? own.get() : kept_scratch(bytes));
}

}  // namespace

void run_durations(Pool& pool, const Many& asked, const Kernels& kernels) {
  const Durations& c = asked.one;
  // Chains that are short share a task.
  const int64_t work = c.steps * c.states * (c.longest + c.states), each = std::max<int64_t>(1, std::min<int64_t>(200000 / (work + 1), asked.batch / (4 * pool.threads() + 1)));
  parallel(pool, (asked.batch + each - 1) / each, [&](int64_t task) {
    for (int64_t i = task * each; i < std::min(asked.batch, (task + 1) * each); ++i)
      c.type == Type::kF32 ? run_one<float>(asked, i, kernels) : run_one<double>(asked, i, kernels);
  });
}

std::string fill(Many& asked, int64_t type, int64_t algebra, int64_t is_cut) {
  Durations& c = asked.one;
  constexpr int64_t most = int64_t{1} << 31;
  c.type = static_cast<Type>(type), c.is_cut = is_cut != 0;
  c.is_log = static_cast<Algebra>(algebra) == Algebra::kLogSumExp, c.is_minimum = static_cast<Algebra>(algebra) == Algebra::kMinPlus;
  if (c.type != Type::kF32 && c.type != Type::kF64) return "needs float32 or float64";
  if (!(c.is_log || c.is_minimum || static_cast<Algebra>(algebra) == Algebra::kMaxPlus) || asked.asks < 0 || asked.asks > Many::kSamples || (asked.asks == Many::kSamples && !c.is_log)) return "malformed attributes";
  if (c.states < 1 || c.steps < 1 || c.longest < 1 || c.states >= most || c.steps >= most || c.longest >= most) return "sizes out of range";
  if (c.rows != 1 && c.rows != c.steps - 1) return "malformed transitions";
  const size_t results = asked.asks != Many::kDetail ? 1 : c.is_log ? 5 : 2;
  return asked.results.size() == results ? "" : "malformed results";
}

}  // namespace tropical
