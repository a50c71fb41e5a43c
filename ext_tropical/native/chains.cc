// Chains of states: one of the batch a task.
#include "chains.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace tropical {
namespace {

struct Free {
  void operator()(void* data) const { ::operator delete(data, std::align_val_t(64)); }
};

// How many best paths are wanted.
int64_t paths(const Chains& asked) { return std::max<int64_t>(1, asked.one.k); }

// What each input and result has for one chain.
struct Sizes {
  int64_t inputs[Chains::kInputs], results[4];
  explicit Sizes(const Chains& asked) {
    const Chain& c = asked.one;
    const int64_t matrix = (c.band ? c.band : c.states) * c.states, emission = c.steps * asked.emitted;
    const int64_t in[] = {c.states, c.rows * matrix, emission, 1, c.states, c.samples * c.steps};
    const int64_t out[] = {1, c.states, c.rows * matrix, emission};
    std::copy(in, in + Chains::kInputs, inputs), std::copy(out, out + 4, results);
    if (asked.asks == Chains::kSamples) results[0] = c.samples * c.steps;
    if (c.algebra != Algebra::kLogSumExp) results[0] = paths(asked), results[1] = results[0] * c.steps;
  }
};

// Memory of tasks, which later ones use again.
class Rooms {
 public:
  using Room = std::unique_ptr<void, Free>;
  explicit Rooms(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {}
  Room take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return Room(::operator new(bytes_, std::align_val_t(64)));
    Room room = std::move(free_.back());
    free_.pop_back();
    return room;
  }
  void give(Room room) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(room));
  }

 private:
  size_t bytes_;
  std::mutex mutex_;
  std::vector<Room> free_;
};

// An emission with a column for each state; NaN where it has no such column.
template <class T>
void spread(const T* from, int64_t emitted, const int32_t* columns, int64_t steps, int64_t states, T* to) {
  bool is_inside = true;
  for (int64_t j = 0; j < states; ++j) is_inside &= columns[j] >= 0 && columns[j] < emitted;
  for (int64_t t = 0; is_inside && t < steps; ++t, from += emitted, to += states)
    for (int64_t j = 0; j < states; ++j) to[j] = from[columns[j]];
  for (int64_t t = 0; !is_inside && t < steps; ++t, from += emitted, to += states)
    for (int64_t j = 0; j < states; ++j) to[j] = (columns[j] >= 0 && columns[j] < emitted) ? from[columns[j]] : static_cast<T>(NAN);
}

// Back to the sums of the states of each column, whose states are read one after another: a sum in memory would wait for itself.
template <class T>
void gather(const T* from, int64_t emitted, const int32_t* columns, int64_t steps, int64_t states, T* to) {
  const auto is_column = [&](int64_t j) { return columns[j] >= 0 && columns[j] < emitted; };
  std::vector<int64_t> order(static_cast<size_t>(states)), ends(static_cast<size_t>(emitted) + 1);  // of each column; before, its begin
  for (int64_t j = 0; j < states; ++j)
    if (is_column(j)) ++ends[static_cast<size_t>(columns[j]) + 1];
  for (size_t c = 1; c < ends.size(); ++c) ends[c] += ends[c - 1];
  for (int64_t j = 0; j < states; ++j)
    if (is_column(j)) order[static_cast<size_t>(ends[static_cast<size_t>(columns[j])]++)] = j;
  for (int64_t t = 0; t < steps; ++t, from += states, to += emitted) {
    int64_t k = 0;
    for (int64_t c = 0; c < emitted; ++c) {
      T sums[4] = {};
      for (; k + 4 <= ends[static_cast<size_t>(c)]; k += 4)
        for (int i = 0; i < 4; ++i) sums[i] += from[order[static_cast<size_t>(k + i)]];
      for (; k < ends[static_cast<size_t>(c)]; ++k) sums[0] += from[order[static_cast<size_t>(k)]];
      to[c] = sums[0] + sums[1] + sums[2] + sums[3];
    }
  }
}

// Of the emissions that are spread, and their derivatives.
template <class T>
int64_t own_bytes(const Chains& asked) {
  const int64_t bytes = 2 * asked.one.steps * asked.one.states * static_cast<int64_t>(sizeof(T));
  return asked.inputs[Chains::kColumns] ? (bytes + 63) / 64 * 64 : 0;
}

template <class T>
void run_one(const Chains& asked, const Sizes& sizes, int64_t number, const Kernels& kernels, char* memory) {
  Chain c = asked.one;
  int64_t places[Chains::kInputs] = {}, rest = number;
  for (size_t axis = asked.batch.size(); axis-- > 0; rest /= asked.batch[axis])
    for (int i = 0; i < Chains::kInputs; ++i)
      if (asked.inputs[i]) places[i] += rest % asked.batch[axis] * asked.strides[i][axis];
  const auto input = [&](int i) { return static_cast<const T*>(asked.inputs[i]) + places[i] * sizes.inputs[i]; };
  const auto numbers = [&](int i) { return static_cast<const int32_t*>(asked.inputs[i]) + places[i] * sizes.inputs[i]; };
  const auto result = [&](size_t i) { return static_cast<T*>(asked.results[i]) + number * sizes.results[i]; };
  const auto states = [&](size_t i) { return static_cast<int32_t*>(asked.results[i]) + number * sizes.results[i]; };
  c.initial = input(Chains::kInitial), c.transition = input(Chains::kTransition), c.emission = input(Chains::kEmission);
  c.length = asked.inputs[Chains::kLengths] ? *numbers(Chains::kLengths) : c.steps;
  const bool is_log = c.algebra == Algebra::kLogSumExp, draws = asked.asks == Chains::kSamples, has_detail = asked.has_detail();
  if (draws) c.uniforms = input(Chains::kUniforms), c.path = states(0);
  else c.score = result(0);
  if (has_detail && !is_log) c.path = states(1);
  if (has_detail && is_log) c.d_emission = result(3);
  if (asked.asks == Chains::kDetail && is_log) c.d_initial = result(1), c.d_transition = result(2);
  const bool is_none = c.length < 1 || c.length > c.steps;
  if (c.path) {
    const int64_t from = is_none ? 0 : c.length;
    for (int64_t s = 0; s < (draws ? c.samples : paths(asked)); ++s) std::fill(c.path + s * c.steps + from, c.path + (s + 1) * c.steps, -1);
  }
  if (is_none) {
    const T infinity = INFINITY;
    const bool is_minimum = c.algebra == Algebra::kMinPlus || c.algebra == Algebra::kMinMax;
    if (c.score) std::fill_n(static_cast<T*>(c.score), paths(asked), c.algebra == Algebra::kMaxMul ? T(0) : is_minimum ? infinity : -infinity);
    for (size_t i = 1; c.d_emission && i < 4; ++i)
      if (asked.results[i]) std::fill_n(result(i), sizes.results[i], T(0));
    return;
  }
  if (!asked.inputs[Chains::kColumns]) {
    kernels.chain(c, memory);
    return;
  }
  const int32_t* const columns = numbers(Chains::kColumns);
  const int64_t count = c.steps * c.states;
  T *const emission = reinterpret_cast<T*>(memory), *const derivative = emission + count;
  spread(static_cast<const T*>(c.emission), asked.emitted, columns, c.length, c.states, emission);
  c.emission = emission;
  if (c.d_emission) c.d_emission = derivative;
  kernels.chain(c, memory + own_bytes<T>(asked));
  if (c.d_emission) gather(derivative, asked.emitted, columns, c.steps, c.states, result(3));
}

// The log of a sum of exponentials; -inf of none.
double log_sum(const double* x, int64_t count) {
  const double most = *std::max_element(x, x + count);
  if (!(most > -INFINITY)) return -INFINITY;
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(x[i] - most);
  return most + std::log(sum);
}

// One chain under log-sum-exp by two threads: messages from both ends meet in the middle, and if derivatives are wanted each thread goes on
// where the other one came from. The second half is a chain that runs back, whose derivatives are turned round at the end. False where
// numbers of one scale are not exact, or a chain is none: then nothing is known.
template <class T>
bool run_in_halves(Pool& pool, const Chains& asked, const Kernels& kernels) {
  const Chain& c = asked.one;
  const int64_t S = c.states, middle = c.length / 2;
  const bool is_back = asked.asks == Chains::kDetail;
  const T* const transition = static_cast<const T*>(c.transition);
  T *const d_transition = is_back ? static_cast<T*>(asked.results[2]) : nullptr, *const d_emission = is_back ? static_cast<T*>(asked.results[3]) : nullptr;
  std::vector<T> zeros(S), turned(S * S), uses(is_back ? S * S : 0);
  std::vector<double> last[2], following[2];
  Chain half[2] = {c, c};
  bool is_done[2];
  std::unique_ptr<void, Free> rooms[2];
  for (int64_t i = 0; i < S; ++i)
    for (int64_t j = 0; j < S; ++j) turned[j * S + i] = transition[i * S + j];
  half[0].length = middle, half[1].length = c.length - middle, half[1].is_reversed = true;
  half[1].initial = zeros.data(), half[1].transition = turned.data(), half[1].emission = static_cast<const T*>(c.emission) + middle * S;
  if (is_back) {
    half[0].d_initial = asked.results[1], half[0].d_transition = d_transition, half[0].d_emission = d_emission;
    half[1].d_initial = zeros.data(), half[1].d_transition = uses.data(), half[1].d_emission = d_emission + middle * S;
  }
  for (int h = 0; h < 2; ++h) {
    last[h].resize(S), following[h].resize(S);
    half[h].steps = half[h].length, half[h].last = last[h].data(), half[h].is_done = is_done + h;
    rooms[h].reset(::operator new(static_cast<size_t>(kernels.chain(half[h], nullptr)), std::align_val_t(64)));
  }
  parallel(pool, 2, [&](int64_t h) { kernels.chain(half[h], rooms[h].get()); });
  if (!is_done[0] || !is_done[1]) return false;
  parallel(pool, is_back ? 2 : 1, [&](int64_t h) {
    std::vector<double> terms(S);
    for (int64_t i = 0; i < S; ++i) {
      for (int64_t j = 0; j < S; ++j) terms[j] = (h ? turned.data() : transition)[i * S + j] + last[1 - h][j];
      following[h][i] = log_sum(terms.data(), S);
    }
  });
  std::vector<double> all(S);
  for (int64_t i = 0; i < S; ++i) all[i] = last[0][i] + following[0][i];
  const double score = log_sum(all.data(), S);
  if (!std::isfinite(static_cast<T>(score))) return false;
  *static_cast<T*>(asked.results[0]) = static_cast<T>(score);
  if (!is_back) return true;
  parallel(pool, 2, [&](int64_t h) {
    half[h].last = nullptr, half[h].following = following[h].data();
    kernels.chain(half[h], rooms[h].get());
  });
  if (!is_done[0] || !is_done[1]) return false;
  for (int64_t i = 0; i < S; ++i)
    for (int64_t j = 0; j < S; ++j) d_transition[i * S + j] += uses[j * S + i] + static_cast<T>(std::exp(last[0][i] + transition[i * S + j] + last[1][j] - score));
  for (int64_t t = middle, back = c.length - 1; t < back; ++t, --back) std::swap_ranges(d_emission + t * S, d_emission + (t + 1) * S, d_emission + back * S);
  std::fill(d_emission + c.length * S, d_emission + c.steps * S, T(0));
  return true;
}

// Whether a chain is worth two threads: its steps take longer, in some nanoseconds, than to wake one and join the halves.
bool has_halves(const Pool& pool, const Chains& asked, int64_t count) {
  const Chain& c = asked.one;
  return count == 1 && pool.threads() > 1 && c.algebra == Algebra::kLogSumExp && asked.asks != Chains::kSamples && !c.band && c.rows == 1 && !asked.inputs[Chains::kColumns] && c.length * (c.states * c.states / 16 + c.states + 10) > 110000 + 40 * c.states * c.states;
}

}  // namespace

void run_chains(Pool& pool, const Chains& given, const Kernels& kernels) {
  Chains asked = given;
  const Sizes sizes(asked);
  const bool is_float = asked.one.type == Type::kF32;
  int64_t count = 1;
  for (int64_t size : asked.batch) count *= size;
  Chain& c = asked.one;
  c.initial = asked.inputs[Chains::kInitial], c.transition = asked.inputs[Chains::kTransition], c.emission = asked.inputs[Chains::kEmission];
  c.length = asked.inputs[Chains::kLengths] && count == 1 ? *static_cast<const int32_t*>(asked.inputs[Chains::kLengths]) : c.steps;
  // Numbers with exponents are many bytes for little arithmetic: computed twice they take less time than out of memory.
  const int64_t kept = c.steps * c.states * (c.k ? 4 * c.k : is_float ? 4 : 8) * (c.band && c.algebra == Algebra::kLogSumExp ? 8 : 1);
  if ((asked.has_detail() || asked.asks == Chains::kSamples) && kept > asked.memory) {
    const double rows = std::min<double>(static_cast<double>(asked.memory) / 32, 1 << 18) * static_cast<double>(c.steps) / static_cast<double>(kept);  // those of 2^18 bytes stay in the cache
    c.every = std::max<int64_t>(1, static_cast<int64_t>(std::max(rows, std::sqrt(static_cast<double>(c.steps)))));
  }
  if (count == 1 && pool.threads() > 1) {
    c.pool = &pool;
    c.both = [](void* threads, void (*task)(void*, int64_t), void* data) { parallel(*static_cast<Pool*>(threads), 2, [=](int64_t half) { task(data, half); }); };
  }
  if (has_halves(pool, asked, count) && c.length <= c.steps && (is_float ? run_in_halves<float>(pool, asked, kernels) : run_in_halves<double>(pool, asked, kernels))) return;
  // The memory that a chain needs depends on which results are wanted.
  Chain any = c;
  any.length = c.steps, any.score = asked.results[0];
  if (asked.has_detail() && c.algebra == Algebra::kLogSumExp) any.d_emission = asked.results[3];
  if (asked.asks == Chains::kDetail && c.algebra != Algebra::kLogSumExp) any.path = static_cast<int32_t*>(asked.results[1]);
  Rooms rooms((is_float ? own_bytes<float>(asked) : own_bytes<double>(asked)) + kernels.chain(any, nullptr));
  // Chains that are short share a task.
  const int64_t work = c.steps * c.states * c.states * paths(asked), each = std::max<int64_t>(1, std::min<int64_t>(200000 / (work + 1), count / (4 * pool.threads() + 1)));
  parallel(pool, (count + each - 1) / each, [&](int64_t task) {
    Rooms::Room room = rooms.take();
    char* const memory = static_cast<char*>(room.get());
    for (int64_t i = task * each; i < std::min(count, (task + 1) * each); ++i)
      is_float ? run_one<float>(asked, sizes, i, kernels, memory) : run_one<double>(asked, sizes, i, kernels, memory);
    rooms.give(std::move(room));
  });
}

std::string problem_of(const Chains& asked) {
  const Chain& c = asked.one;
  constexpr int64_t most = int64_t{1} << 31;
  const bool is_log = c.algebra == Algebra::kLogSumExp, is_known = is_log || c.algebra == Algebra::kMaxPlus || c.algebra == Algebra::kMinPlus || c.algebra == Algebra::kMaxMul || c.algebra == Algebra::kMinMax;
  if (c.type != Type::kF32 && c.type != Type::kF64) return "needs float32 or float64";
  if (!is_known || asked.asks < 0 || asked.asks > 3 || (asked.asks >= Chains::kSamples && !is_log) || (asked.asks == Chains::kByEmission && !c.band)) return "malformed attributes";
  if (c.states < 1 || c.steps < 1 || c.states >= most || c.steps >= most || c.band < 0 || c.band > c.states || asked.emitted < 1) return "sizes out of range";
  if (!asked.inputs[Chains::kColumns] && asked.emitted != c.states) return "malformed emissions";
  if (c.rows != 1 && c.rows != c.steps - 1) return "malformed transitions";
  // The kernel writes a state and a place in its list as one number of 32 bits.
  if (c.k < 0 || c.k >= most || (c.k && (is_log || asked.asks != Chains::kDetail)) || c.k > 2 * most / c.states) return "malformed attributes";
  const size_t results = !asked.has_detail() ? 1 : is_log ? 4 : 2;
  return asked.results.size() == results ? "" : "malformed results";
}

}  // namespace tropical
