// Ordinary sums along a plan: what opt_einsum does with NumPy, in one call, with all derivatives.
//
// The value is linear in each table. So beside each number a the runner keeps how it moves along the tangents, with each alone and with several
// together: a + a1 e1 + a2 e2 + a12 e1 e2 + ..., where each e is 0 if squared. These parts are `planes`, numbered by the set of tangents. The
// plane of a product for a set is the sum over its subsets of left[subset] right[rest]; the value's plane for all tangents is the derivative
// along them. The way back makes cotangents of planes by the same products.
//
// A plane has a power of two for each lane, so that no product is beyond the type's range that the value is not. Lanes, the elements of a batch,
// lie innermost: a step does the same with all of them. Chunks of lanes go through all steps, so that their values stay in a cache.
//
// Log-sum-exp is the logarithm of a sum of exponentials of scores, in float64. It is certified: in each value the entries of a lane that are not 0
// must be at least 2^-kLost of the largest, so that no product of two of them is lost. Else the caller sums another way.
#include "sums.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "steps.h"

namespace tropical {
namespace {

using namespace plans;

constexpr int32_t kZero = -(1 << 28);     // the exponent of zeros: below every other
constexpr int64_t kMostOrder = 8;         // of a derivative: its products are 3 to this power
constexpr int64_t kMostLanes = 256;       // of a chunk
constexpr int64_t kChunkBytes = 1 << 22;  // of the values of a chunk, where it has more lanes than a vector
constexpr int64_t kGroups = 16;           // of chunks, each of which adds up cotangents of tables without lanes
constexpr int kLost = 400;

// The work of one thread among others.
struct NoPool : Pool {
  int64_t threads() const override { return 1; }
  void schedule(std::function<void()>) override {}
};

size_t at(int64_t i) { return static_cast<size_t>(i); }

// What is between two exponents is held without care: products of two such numbers, and sums of many, are within the range of the type.
template <class T>
constexpr int kFar = sizeof(T) == 4 ? 24 : 100;

// So the product of the least entries that a certificate allows is a normal number, which no thread takes for 0.
static_assert(2 * (kFar<double> + kLost) < 1022, "a product of certified entries may be lost");

// 2^exponent by its bits, of a normal number.
template <class T>
T power_of_two(int64_t exponent) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int mantissa = std::numeric_limits<T>::digits - 1;
  const auto bits = static_cast<Bits>(exponent + std::numeric_limits<T>::max_exponent - 1) << mantissa;
  T found;
  std::memcpy(&found, &bits, sizeof(T));
  return found;
}

// The exponent of a normal number above 0, by its bits.
template <class T>
int32_t exponent_of(T x) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  Bits bits;
  std::memcpy(&bits, &x, sizeof(T));
  return static_cast<int32_t>(bits >> (std::numeric_limits<T>::digits - 1)) - (std::numeric_limits<T>::max_exponent - 1);
}

// x 2^exponent, also where the power itself is beyond the range of the type.
template <class T>
T scaled(T x, int64_t exponent) {
  if (exponent == 0) return x;
  return std::ldexp(x, static_cast<int>(std::clamp<int64_t>(exponent, -(1 << 20), 1 << 20)));
}

// Memory of values that are no longer needed, for those that follow, in this call or the next: a page that was just got from the system is slow.
class Memory {
 public:
  struct GiveBack {
    int64_t bytes = 0;
    void operator()(char* data) const { memory().give_back(Bytes(data), bytes); }
  };
  using Block = std::unique_ptr<char[], GiveBack>;

  static Block take(int64_t bytes) { return memory().taken(bytes); }

 private:
  static constexpr int64_t kSmall = 4096, kMostKept = int64_t{64} << 20;

  static Memory& memory() {
    static Memory* const made = new Memory;  // never freed: threads may end after it
    return *made;
  }

  // One of few sizes, which have at most a quarter more than is needed: so blocks fit again.
  static int64_t rounded_up(int64_t bytes) {
    int64_t step = 1;
    while (8 * step <= bytes) step *= 2;
    return (bytes + step - 1) / step * step;
  }

  Block taken(int64_t bytes) {
    if (bytes > kSmall) {
      bytes = rounded_up(bytes);
      std::unique_lock<std::mutex> lock(mutex_);
      if (auto& fitting = free_[bytes]; !fitting.empty()) {
        Block found(fitting.back().release(), {bytes});
        fitting.pop_back();
        free_bytes_ -= bytes, live_ += bytes;
        return found;
      }
      lock.unlock();
      Block made(room(bytes, 1).release(), {bytes});
      lock.lock();
      live_ += bytes;
      return made;
    }
    return Block(room(bytes, 1).release(), {bytes});
  }

  void give_back(Bytes data, int64_t bytes) {
    if (bytes <= kSmall) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    live_ -= bytes, free_bytes_ += bytes;
    free_[bytes].push_back(std::move(data));
    while (free_bytes_ > std::max(live_, kMostKept)) {  // the largest go
      auto& last = std::prev(free_.end())->second;
      if (last.empty()) {
        free_.erase(std::prev(free_.end()));
        continue;
      }
      free_bytes_ -= std::prev(free_.end())->first;
      last.pop_back();
    }
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<Bytes>> free_;  // by size
  int64_t live_ = 0, free_bytes_ = 0;
};

// Entries times a power of two for each lane: (entries, lanes), or (entries) with one power. No data: zeros.
template <class T>
struct Plane {
  Memory::Block block{nullptr, {}};
  const T* data = nullptr;
  std::vector<int32_t> exponents;

  T* make(int64_t count, int64_t lanes) {
    block = Memory::take(times(times(count, lanes), sizeof(T)));
    data = own();
    exponents.assign(at(lanes), 0);
    return own();
  }
  T* own() const { return reinterpret_cast<T*>(block.get()); }
  int64_t lanes() const { return static_cast<int64_t>(exponents.size()); }
  int32_t exponent(int64_t lane) const { return exponents[exponents.size() == 1 ? 0 : at(lane)]; }
};

template <class T>
using Planes = std::vector<Plane<T>>;

// A power of two as two factors, since one may be beyond the range; beyond that of both `is_far`.
template <class T>
struct Power {
  T first, second;
  bool is_far = false;
  explicit Power(int64_t exponent) {
    const int64_t most = 2 * std::numeric_limits<T>::max_exponent - 6, half = exponent / 2;
    is_far = exponent > most || exponent < -most;
    first = power_of_two<T>(is_far ? 0 : half), second = power_of_two<T>(is_far ? 0 : exponent - half);
  }
  T of(T x, int64_t exponent) const { return is_far ? scaled(x, exponent) : x * first * second; }
};

// Multiplies each lane by 2^powers[lane].
template <class T>
void scale(T* x, int64_t count, const std::vector<int64_t>& powers) {
  const auto lanes = static_cast<int64_t>(powers.size());
  std::vector<T> first, second;
  for (int64_t exponent : powers) {
    const Power<T> power(exponent);
    first.push_back(power.first), second.push_back(power.second);
  }
  if (lanes == 1) {
    for (int64_t i = 0; i < count; ++i) x[i] = x[i] * first[0] * second[0];
    return;
  }
  for (int64_t i = 0; i < count * lanes; i += lanes)
    for (int64_t l = 0; l < lanes; ++l) x[i + l] = x[i + l] * first[at(l)] * second[at(l)];
}

// The power of two by which a lane with this largest magnitude is to be divided; kZero for a lane of zeros.
template <class T>
int32_t excess(T most) {
  if (most == T(0)) return kZero;
  if (most >= std::numeric_limits<T>::min() && most <= std::numeric_limits<T>::max()) return exponent_of(most);
  return std::isfinite(most) ? std::ilogb(most) : 0;
}

struct Tools {
  const Kernels& kernels;
  Type type;
  Folds folds;

  // The largest magnitude of each lane. NaN is passed over.
  template <class T>
  std::vector<T> largest(const T* x, int64_t count, int64_t lanes) const {
    std::vector<T> most(at(lanes), T(0));
    kernels.magnitudes(type, x, count, lanes, most.data());
    return most;
  }
};

// Brings the entries of all lanes near 1, where some are far from it: so this is rarely done.
template <class T>
void normalize(Plane<T>& plane, int64_t count, const std::vector<T>& most) {
  const int64_t lanes = plane.lanes();
  constexpr int fine = kFar<T>;
  const T high = std::ldexp(T(1), fine), low = std::ldexp(T(1), -fine);
  const T* const sizes = most.data();
  int32_t far = 0;
  for (int64_t l = 0; l < lanes; ++l) far += !((sizes[l] >= low) & (sizes[l] < high));
  if (far == 0) return;
  std::vector<int64_t> powers(at(lanes), 0);
  bool is_far = false;
  for (int64_t l = 0; l < lanes; ++l) {
    const int32_t power = excess(most[at(l)]);
    if (power == kZero) {
      plane.exponents[at(l)] = kZero;
    } else if (power != 0) {
      plane.exponents[at(l)] += power;
      powers[at(l)] = -power;
      is_far = true;
    }
  }
  if (is_far) scale(plane.own(), count, powers);
}

// Adds one plane to another of as many lanes.
template <class T>
void add(const Tools& tools, Plane<T>& to, const Plane<T>& more, int64_t count) {
  const int64_t lanes = to.lanes();
  std::vector<T> kept(at(lanes)), added(at(lanes));
  for (int64_t l = 0; l < lanes; ++l) {
    const int32_t top = std::max(to.exponents[at(l)], more.exponents[at(l)]);
    kept[at(l)] = scaled(T(1), to.exponents[at(l)] - top);
    added[at(l)] = scaled(T(1), more.exponents[at(l)] - top);
    to.exponents[at(l)] = top;
  }
  T* const x = to.own();
  const T* const y = more.data;
  if (lanes == 1)
    for (int64_t i = 0; i < count; ++i) x[i] = x[i] * kept[0] + y[i] * added[0];
  else
    for (int64_t i = 0; i < count * lanes; i += lanes)
      for (int64_t l = 0; l < lanes; ++l) x[i + l] = x[i + l] * kept[at(l)] + y[i + l] * added[at(l)];
  normalize(to, count, tools.largest(x, count, lanes));
}

// A product of two values, or the sum of one, for chunks of some lanes.
struct Contraction {
  Step step;            // with the lanes as the last axis of its cells
  Runs cells, choices;  // without them
  bool left_has_lanes = false, right_has_lanes = false, sums_lanes = false;
  int64_t count = 1;  // of cells without lanes
  bool is_for_tiles = false;
  bool has_lanes() const { return (left_has_lanes || right_has_lanes) && !sums_lanes; }  // of the result
};

// The values of a plan without their lanes.
class Layout {
 public:
  Layout(const Plan& plan) : plan_(plan) {
    for (const auto& term : plan.terms) {
      std::vector<int64_t> own;
      bool has_lanes = false;
      for (int64_t label : term)
        if (has(plan.lanes, label)) has_lanes = true;
        else own.push_back(label);
      labels_.push_back(own);
      counts_.push_back(entries(plan, own));
      distinct_.push_back(own);
      std::vector<int64_t>& once = distinct_.back();
      once.clear();
      for (int64_t label : own)
        if (!has(once, label)) once.push_back(label);
      has_lanes_.push_back(has_lanes);
    }
    for (int64_t label : plan.lanes) lanes_ *= plan.size(label);
  }

  int64_t lanes() const { return lanes_; }
  bool has_lanes(int64_t value) const { return has_lanes_[at(value)]; }
  int64_t count(int64_t value) const { return counts_[at(value)]; }
  // The entries of a cotangent, which has each label once.
  int64_t distinct_count(int64_t value) const { return entries(plan_, distinct_[at(value)]); }
  const std::vector<int64_t>& labels(int64_t value) const { return labels_[at(value)]; }
  const std::vector<int64_t>& distinct(int64_t value) const { return distinct_[at(value)]; }

  Contraction forward(int64_t step, int64_t lanes) const {
    const Step& s = plan_.steps[at(step)];
    return make(labels_[at(plan_.tables + step)], s.left, s.right, lanes);
  }
  // The cotangent of one operand of a step, from that of its result and the other operand; of an operand without lanes their sum.
  Contraction backward(int64_t step, bool is_right, int64_t lanes) const {
    const Step& s = plan_.steps[at(step)];
    const int64_t operand = is_right ? s.right : s.left;
    return make(distinct_[at(operand)], plan_.tables + step, is_right ? s.left : s.right, lanes, !has_lanes(operand));
  }

 private:
  // `lanes`: how many a value with lanes has.
  Contraction make(const std::vector<int64_t>& result, int64_t left, int64_t right, int64_t lanes, bool sums_lanes = false) const {
    Contraction c;
    c.sums_lanes = sums_lanes;
    c.left_has_lanes = has_lanes(left), c.right_has_lanes = right >= 0 && has_lanes(right);
    const int64_t left_step = c.left_has_lanes ? lanes : 1, right_step = c.right_has_lanes ? lanes : 1;
    const auto axis = [&](int64_t label) {
      return Axis{plan_.size(label), left_step * stride(left, label), right < 0 ? 0 : right_step * stride(right, label)};
    };
    c.step.left = left, c.step.right = right;
    for (int64_t label : result) c.step.cells.push_back(axis(label));
    for (int64_t value : {left, right})
      if (value >= 0)
        for (int64_t label : labels_[at(value)])
          if (!has(result, label) && !has(c.step.contracted, label)) {
            c.step.contracted.push_back(label);
            c.step.candidates.push_back(axis(label));
            c.step.choices = times(c.step.choices, plan_.size(label));
          }
    if (sums_lanes && (c.left_has_lanes || c.right_has_lanes)) {
      c.step.contracted.push_back(-1);
      c.step.candidates.push_back({lanes, c.left_has_lanes, c.right_has_lanes});
      c.step.choices = times(c.step.choices, lanes);
    }
    c.cells = Runs(c.step.cells), c.choices = Runs(c.step.candidates);
    c.count = c.step.count = c.cells.count();
    if (c.has_lanes()) {
      c.step.cells.push_back({lanes, c.left_has_lanes, c.right_has_lanes});
      c.step.count = times(c.step.count, lanes);
    }
    const bool is_large = c.count * c.step.choices >= kWorthTiles && c.step.choices >= 16;
    c.is_for_tiles = (is_large || !c.has_lanes()) && plans::is_for_tiles(Algebra::kSumProduct, c.step);
    return c;
  }

  int64_t stride(int64_t value, int64_t label) const {
    const auto& own = labels_[at(value)];
    int64_t step = 1, found = 0;
    for (size_t i = own.size(); i-- > 0; step *= plan_.size(own[i]))
      if (own[i] == label) found += step;  // a diagonal
    return found;
  }

  const Plan& plan_;
  std::vector<std::vector<int64_t>> labels_, distinct_;
  std::vector<int64_t> counts_;
  std::vector<bool> has_lanes_;
  int64_t lanes_ = 1;
};

// Where each of some lanes lies in an array that has some of the lanes' labels; the last one again for lanes beyond the last.
std::vector<int64_t> lane_offsets(const Plan& plan, int64_t term, int64_t first, int64_t lanes, int64_t all) {
  std::vector<int64_t> found;
  found.reserve(at(lanes));
  const int64_t stride = plan.lanes.size() == 1 ? plan.stride(term, plan.lanes[0]) : 0;
  for (int64_t l = first; l < first + lanes; ++l) {
    if (stride) {
      found.push_back(std::min(l, all - 1) * stride);
      continue;
    }
    int64_t rest = std::min(l, all - 1), offset = 0;
    for (size_t i = plan.lanes.size(); i-- > 0; rest /= plan.size(plan.lanes[i]))
      offset += rest % plan.size(plan.lanes[i]) * plan.stride(term, plan.lanes[i]);
    found.push_back(offset);
  }
  return found;
}

// each(entry, address) for the entries of a table without its lanes; of distinct labels the entries on a diagonal.
template <class Each>
void over_entries(const Plan& plan, int64_t table, const std::vector<int64_t>& labels, bool is_diagonal, const Each& each) {
  std::vector<Axis> axes;
  int64_t inner = 1;  // of the same label, for entries off the diagonal
  const auto& term = plan.terms[at(table)];
  if (is_diagonal) {
    for (int64_t label : labels) axes.push_back({plan.size(label), plan.stride(table, label), 0});
  } else {
    for (size_t i = term.size(); i-- > 0; inner *= plan.size(term[i]))
      if (!has(plan.lanes, term[i])) axes.insert(axes.begin(), Axis{plan.size(term[i]), inner, 0});
  }
  const Runs runs(axes);
  int64_t entry = 0;
  for (int64_t r = 0; r < runs.runs(); ++r) {
    const Runs::Run run = runs.run(r);
    for (int64_t i = 0; i < run.count; ++i) each(entry++, run.left + runs.left()[at(i)]);
  }
}

// The inputs of a question by name.
struct Given {
  const Plan& plan;
  const Ask& ask;
  int64_t order;
  const Buffer& table(int64_t i) const { return ask.inputs[at(i)]; }
  bool is_log() const { return ask.algebra == Algebra::kLogSumExp; }
  const int32_t* exponents() const { return has_exponents() ? static_cast<const int32_t*>(ask.inputs[at(plan.tables)].data) : nullptr; }
  const void* cotangent() const { return ask.inputs[at(plan.tables + (is_log() ? 0 : 1))].data; }
  const Buffer& tangent(int64_t j, size_t active) const {
    const int64_t first = plan.tables + (is_log() ? 0 : is_transposed() ? 2 : 1);
    return ask.inputs[at(first + j * static_cast<int64_t>(plan.active.size())) + active];
  }
  bool has_exponents() const { return ask.question >= Question::kSumTangent; }
  bool is_transposed() const { return ask.question == Question::kSumCotangent || ask.question == Question::kLogCotangent; }
};

template <class T>
constexpr Type kTypeOf = sizeof(T) == 4 ? Type::kF32 : Type::kF64;

// The questions, of inputs of type S in numbers of type T.
template <class T, class S = T>
class Sums {
 public:
  Sums(Pool& pool, const Given& given, const Kernels& kernels)
      : pool_(pool), given_(given), inner_(given.ask), plan_(given.plan), kernels_(kernels), tools_{kernels, kTypeOf<T>, kernels.folds(kTypeOf<T>, Algebra::kSumProduct)}, layout_(given.plan), planes_(size_t{1} << given.order), shared_(plan_.terms.size()) {
    inner_.algebra = Algebra::kSumProduct, inner_.type = kTypeOf<T>;
    is_moving_.assign(plan_.terms.size(), false);
    for (int64_t i : plan_.active) is_moving_[at(i)] = true;
    for (int64_t s = 0; s < steps(); ++s) {
      const Step& step = plan_.steps[at(s)];
      is_moving_[at(plan_.tables + s)] = is_moving_[at(step.left)] || (step.right >= 0 && is_moving_[at(step.right)]);
    }
  }

  // Whether the results are right; they are, but for log-sum-exp.
  bool run() {
    if (given_.is_transposed())
      for (size_t i = 0; i < plan_.active.size(); ++i) {
        S* const to = static_cast<S*>(given_.ask.results[i].data);
        std::fill(to, to + plan_.counts[at(plan_.active[i])], S(0));
      }
    const int64_t last = values() - 1;
    const bool is_batch = layout_.has_lanes(last);
    Room all(*this, pool_, 1, 0, 1);
    make_contractions(false, 1);
    forward(all, false, !is_batch && !given_.is_transposed());
    shared_.swap(all.values);
    shared_offset_ = all.offsets[0];
    if (is_lost_) return false;
    if (is_batch) {
      run_chunks(all);
    } else if (!given_.is_transposed()) {
      write_value(all);
    } else {
      all.bars[at(last)] = cotangent_of_value(all);
      backward(all, false, nullptr);
      write_cotangents(all, false);
    }
    return !is_lost_;
  }

 private:
  // What belongs to a chunk of lanes: values, and cotangents, by their numbers.
  struct Room {
    Room(const Sums& sums, Pool& pool, int64_t lanes, int64_t first, int64_t used)
        : values(sums.plan_.terms.size()), bars(sums.plan_.terms.size()), offsets(at(lanes), 0.0), lanes(lanes), first(first), used(used),
          context{pool, sums.inner_, sums.kernels_, sums.tools_.folds} {}
    std::vector<Planes<T>> values, bars;
    std::vector<double> offsets;  // for each lane what scores were taken less than
    int64_t lanes, first, used;   // lanes in memory, the number of the first one, and how many are of the batch
    Context context;
  };

  int64_t steps() const { return static_cast<int64_t>(plan_.steps.size()); }
  int64_t values() const { return static_cast<int64_t>(plan_.terms.size()); }
  const Planes<T>& value(const Room& room, int64_t i) const { return layout_.has_lanes(i) ? room.values[at(i)] : shared_of(room, i); }
  const Planes<T>& shared_of(const Room& room, int64_t i) const { return room.values[at(i)].empty() ? shared_[at(i)] : room.values[at(i)]; }

  // The products of all steps with lanes, or of all without; and those of the way back, two for each step.
  void make_contractions(bool with_lanes, int64_t lanes) {
    forward_.resize(at(steps()));
    if (given_.is_transposed()) backward_.resize(at(2 * steps()));
    for (int64_t s = 0; s < steps(); ++s) {
      if (layout_.has_lanes(plan_.tables + s) != with_lanes) continue;
      forward_[at(s)] = layout_.forward(s, lanes);
      const Step& step = plan_.steps[at(s)];
      for (const bool is_right : {false, true}) {
        const int64_t operand = is_right ? step.right : step.left;
        if (given_.is_transposed() && operand >= 0 && is_moving_[at(operand)]) backward_[at(2 * s + is_right)] = layout_.backward(s, is_right, lanes);
      }
    }
  }

  // Chunks in groups, and then the way back through what has no lanes.
  void run_chunks(Room& all) {
    const int64_t vector = 64 / static_cast<int64_t>(sizeof(T)), lanes = layout_.lanes();
    int64_t bytes = 0;
    for (int64_t i = 0; i < values(); ++i)
      if (layout_.has_lanes(i)) bytes += layout_.count(i) * static_cast<int64_t>(planes_ * sizeof(T));
    const int64_t fitting = std::clamp(kChunkBytes / std::max<int64_t>(bytes, 1) / vector * vector, vector, kMostLanes);
    const int64_t per_thread = (lanes + pool_.threads() - 1) / std::max<int64_t>(pool_.threads(), 1);
    const int64_t wide = std::min(fitting, (per_thread + vector - 1) / vector * vector), chunks = (lanes + wide - 1) / wide;
    const int64_t groups = writes_shared() ? 1 : std::min(chunks, kGroups);
    std::vector<std::vector<Planes<T>>> totals(at(groups));
    make_contractions(true, wide);
    NoPool alone;
    parallel(pool_, groups, [&](int64_t g) {
      totals[at(g)].resize(plan_.terms.size());
      for (int64_t c = chunks * g / groups; c < chunks * (g + 1) / groups; ++c)
        run_chunk(groups == 1 ? pool_ : static_cast<Pool&>(alone), c * wide, wide, &totals[at(g)]);
    });
    if (!given_.is_transposed()) return;
    for (auto& total : totals)
      for (int64_t i = 0; i < values(); ++i)
        for (size_t s = 0; s < total[at(i)].size(); ++s)
          if (total[at(i)][s].data) gather(all.bars[at(i)], s, std::move(total[at(i)][s]), layout_.distinct_count(i));
    backward(all, false, nullptr);
    write_cotangents(all, false);
  }

  void run_chunk(Pool& pool, int64_t first, int64_t lanes, std::vector<Planes<T>>* totals) {
    Room room(*this, pool, lanes, first, std::min(lanes, layout_.lanes() - first));
    forward(room, true, !given_.is_transposed());
    if (is_lost_) return;
    if (!given_.is_transposed()) return write_value(room);
    room.bars.back() = cotangent_of_value(room);
    backward(room, true, totals);
    write_cotangents(room, true);
  }

  // Whether chunks write the same entries: of a table that has some of the lanes' labels.
  bool writes_shared() const {
    if (!given_.is_transposed()) return false;
    return std::any_of(plan_.active.begin(), plan_.active.end(), [&](int64_t i) {
      const auto& term = plan_.terms[at(i)];
      const auto own = std::count_if(plan_.lanes.begin(), plan_.lanes.end(), [&](int64_t label) { return has(term, label); });
      return own > 0 && own < static_cast<int64_t>(plan_.lanes.size());
    });
  }

  // --- forward ---------------------------------------------------------------------------------------------------------------------

  // All values with lanes, or all without. They are freed where they were read, if nothing follows.
  void forward(Room& room, bool with_lanes, bool frees) {
    for (int64_t i = 0; i < plan_.tables; ++i)
      if (layout_.has_lanes(i) == with_lanes) read_table(room, i);
    for (int64_t s = 0; s < steps(); ++s) {
      const int64_t number = plan_.tables + s;
      if (layout_.has_lanes(number) != with_lanes) continue;
      const Step& step = plan_.steps[at(s)];
      multiply(room, forward_[at(s)], value(room, step.left), step.right < 0 ? nullptr : &value(room, step.right), room.values[at(number)]);
      for (int64_t operand : {step.left, step.right})
        if (frees && operand >= 0) room.values[at(operand)].clear();
    }
  }

  void multiply(const Room& room, const Contraction& c, const Planes<T>& left, const Planes<T>* right, Planes<T>& to) {
    to.resize(planes_);
    for (size_t set = 0; set < planes_; ++set) {
      if (!right) {
        if (left[set].data) gather(to, set, product(room, c, left[set], nullptr, set == 0), c.count);
        continue;
      }
      for (size_t part = set;; part = (part - 1) & set) {
        const Plane<T>&a = left[part], &b = (*right)[set ^ part];
        if (a.data && b.data) gather(to, set, product(room, c, a, &b, set == 0), c.count);
        if (part == 0) break;
      }
    }
  }

  // Adds to a plane, which may be zero.
  void gather(Planes<T>& to, size_t set, Plane<T> more, int64_t count) {
    if (to.size() <= set) to.resize(set + 1);
    if (to[set].data) add(tools_, to[set], more, count);
    else to[set] = std::move(more);
  }

  // `is_value`: not of tangents, nor a cotangent.
  Plane<T> product(const Room& room, const Contraction& c, const Plane<T>& a, const Plane<T>* b, bool is_value) {
    Plane<T> out;
    const int64_t lanes = c.has_lanes() ? room.lanes : 1;
    T* const to = out.make(c.count, lanes);
    for (int64_t l = 0; l < lanes; ++l) out.exponents[at(l)] = std::max(a.exponent(l) + (b ? b->exponent(l) : 0), kZero);
    const void *lhs = a.data, *const rhs = b ? b->data : nullptr;
    std::vector<T> most;
    Plane<T> aligned;
    if (c.sums_lanes && c.left_has_lanes) {
      aligned = with_one_exponent(room, a, b, layout_.count(c.step.left), out.exponents[0]);
      lhs = aligned.data;
    }
    if (c.is_for_tiles) search_by_tiles<T>(room.context, c.step, lhs, rhs, to, nullptr);
    else if (lanes == 1) search<T>(room.context, c.step, lhs, rhs, to, nullptr);
    else most = by_lanes(room, c, lhs, rhs, to);
    if (most.empty()) most = tools_.largest(to, c.count, lanes);
    if (is_value && given_.is_log() && loses(to, c.count, most)) is_lost_ = true;
    normalize(out, c.count, most);
    return out;
  }

  // The cotangent of a result with lanes, so that products with the other operand have one power of two; 0 for lanes beyond the batch.
  static Plane<T> with_one_exponent(const Room& room, const Plane<T>& bar, const Plane<T>* factor, int64_t count, int32_t& top) {
    const int64_t lanes = room.lanes;
    std::vector<int32_t> exponents;
    for (int64_t l = 0; l < room.used; ++l) exponents.push_back(bar.exponent(l) + (factor ? factor->exponent(l) : 0));
    top = std::max(*std::max_element(exponents.begin(), exponents.end()), kZero);
    std::vector<T> powers(at(lanes), T(0));
    for (int64_t l = 0; l < room.used; ++l) powers[at(l)] = scaled(T(1), exponents[at(l)] - top);
    Plane<T> found;
    T* const to = found.make(count, lanes);
    for (int64_t i = 0; i < count * lanes; i += lanes)
      for (int64_t l = 0; l < lanes; ++l) to[i + l] = bar.data[i + l] * powers[at(l)];
    return found;
  }

  // Returns the largest magnitude of each lane.
  std::vector<T> by_lanes(const Room& room, const Contraction& c, const void* lhs, const void* rhs, T* to) {
    std::vector<T> most(at(room.lanes), T(0));
    std::mutex mutex;
    over_runs(room.context, c.cells, c.step.count * c.step.choices, [&](int64_t from, int64_t end) {
      std::vector<T> own(at(room.lanes), T(0));
      for (int64_t r = from; r < end; ++r) {
        const Runs::Run cell = c.cells.run(r);
        for (int64_t k = 0; k < c.choices.runs(); ++k) {
          const Runs::Run choice = c.choices.run(k);
          const T *const left = static_cast<const T*>(lhs) + cell.left + choice.left, *const right = rhs ? static_cast<const T*>(rhs) + cell.right + choice.right : nullptr;
          room.context.kernels.lane_sums({kTypeOf<T>, room.lanes, cell.count, choice.count, left, right, c.left_has_lanes, c.right_has_lanes, k > 0, c.cells.left().data(),
                                          c.cells.right().data(), c.choices.left().data(), c.choices.right().data(), to + cell.first * room.lanes, own.data()});
        }
      }
      const std::lock_guard<std::mutex> lock(mutex);
      for (int64_t l = 0; l < room.lanes; ++l) most[at(l)] = std::max(most[at(l)], own[at(l)]);
    });
    return most;
  }

  // Where each lane lies in a table; one place in a table without lanes.
  std::vector<int64_t> places_of(const Room& room, int64_t table) const {
    if (!layout_.has_lanes(table)) return {0};
    return lane_offsets(plan_, table, room.first, room.lanes, layout_.lanes());
  }

  // A table, and its tangents.
  void read_table(Room& room, int64_t i) {
    Planes<T>& planes = room.values[at(i)];
    planes.resize(planes_);
    planes[0] = given_.is_log() ? read_scores(room, i) : read_plane(room, i, given_.table(i).data);
    const auto active = std::find(plan_.active.begin(), plan_.active.end(), i);
    if (active == plan_.active.end()) return;
    for (int64_t j = 0; j < given_.order; ++j)
      planes[size_t{1} << j] = read_tangent(room, i, planes[0], given_.tangent(j, static_cast<size_t>(active - plan_.active.begin())).data);
  }

  // Under log-sum-exp that of the exponentials times the temperature.
  Plane<T> read_tangent(const Room& room, int64_t table, const Plane<T>& value, const void* data) {
    if (!given_.is_log()) return read_plane(room, table, data);
    const S* const from = static_cast<const S*>(data);
    const int64_t count = layout_.count(table), lanes = value.lanes();
    const std::vector<int64_t> places = places_of(room, table);
    Plane<T> plane;
    T* const to = plane.make(count, lanes);
    over_entries(plan_, table, {}, false, [&](int64_t entry, int64_t address) {
      for (int64_t l = 0; l < lanes; ++l) {
        const T weight = value.data[entry * lanes + l];
        to[entry * lanes + l] = weight == T(0) ? T(0) : weight * static_cast<T>(from[address + places[at(l)]]);
      }
    });
    plane.exponents = value.exponents;
    normalize(plane, count, tools_.largest(to, count, lanes));
    return plane;
  }

  // exp((score - the largest one of the lane) / T).
  Plane<T> read_scores(Room& room, int64_t table) {
    const S* const from = static_cast<const S*>(given_.table(table).data);
    const int64_t count = layout_.count(table), lanes = layout_.has_lanes(table) ? room.lanes : 1;
    const std::vector<int64_t> places = places_of(room, table);
    constexpr T infinity = std::numeric_limits<T>::infinity();
    std::vector<T> most(at(lanes), -infinity), least(at(lanes), infinity);
    Plane<T> plane;
    T* const to = plane.make(count, lanes);
    bool is_known = true;
    over_entries(plan_, table, {}, false, [&](int64_t entry, int64_t address) {
      for (int64_t l = 0; l < lanes; ++l) {
        const T score = static_cast<T>(from[address + places[at(l)]]);
        to[entry * lanes + l] = score;
        most[at(l)] = score > most[at(l)] ? score : most[at(l)];
        least[at(l)] = score < least[at(l)] && score != -infinity ? score : least[at(l)];
        is_known &= score < infinity;  // nor NaN
      }
    });
    for (int64_t l = 0; l < lanes; ++l) {
      if (most[at(l)] == -infinity) most[at(l)] = T(0);  // of an impossible table
      else is_known &= most[at(l)] - least[at(l)] < kLost * std::log(2.0) * given_.ask.temperature;
      room.offsets[at(l)] += most[at(l)];
    }
    const Folds folds = kernels_.folds(kTypeOf<T>, Algebra::kLogSumExp);
    if (lanes == 1) folds.weights(to, nullptr, count, most.data(), 0, given_.ask.temperature, to);
    else for (int64_t i = 0; i < count; ++i) folds.weights(to + i * lanes, nullptr, lanes, most.data(), 1, given_.ask.temperature, to + i * lanes);
    normalize(plane, count, tools_.largest(to, count, lanes));
    if (!is_known) is_lost_ = true;
    return plane;
  }

  // Whether a lane has entries that are not 0 so far below its largest one that their products may be lost.
  static bool loses(const T* x, int64_t count, const std::vector<T>& most) {
    const auto lanes = static_cast<int64_t>(most.size()), wide = lanes == 1 ? int64_t{8} : lanes;
    std::vector<T> least(at(wide), std::numeric_limits<T>::infinity());
    T* const to = least.data();
    int64_t i = 0;
    for (; i + wide <= count * lanes; i += wide)
      for (int64_t l = 0; l < wide; ++l) {
        const T y = x[i + l] > T(0) ? x[i + l] : std::numeric_limits<T>::infinity();
        to[l] = y < to[l] ? y : to[l];
      }
    for (; i < count * lanes; ++i) to[0] = x[i] > T(0) ? std::min(to[0], x[i]) : to[0];
    const T rate = power_of_two<T>(-kLost);
    bool is_lost = false;
    for (int64_t l = 0; l < wide; ++l) {
      const T top = most[lanes == 1 ? 0 : at(l)];
      is_lost |= !(top < std::numeric_limits<T>::infinity()) || to[l] < top * rate;
    }
    return is_lost;
  }

  Plane<T> read_plane(const Room& room, int64_t table, const void* data) {
    const S* const from = static_cast<const S*>(data);
    const int64_t count = layout_.count(table);
    Plane<T> plane;
    if (layout_.has_lanes(table)) {
      const std::vector<int64_t> lanes = places_of(room, table);
      T* const to = plane.make(count, room.lanes);
      bool is_last = true;  // lanes lie side by side
      for (int64_t l = 0; l < room.lanes; ++l) is_last &= lanes[at(l)] == lanes[0] + l;
      over_entries(plan_, table, {}, false, [&](int64_t entry, int64_t address) {
        if (is_last) std::copy(from + address + lanes[0], from + address + lanes[0] + room.lanes, to + entry * room.lanes);
        else for (int64_t l = 0; l < room.lanes; ++l) to[entry * room.lanes + l] = from[address + lanes[at(l)]];
      });
      normalize(plane, count, tools_.largest(to, count, room.lanes));
      return plane;
    }
    if constexpr (std::is_same<S, T>::value) {
      const int32_t power = excess(tools_.largest(from, count, 1)[0]);
      if (power == kZero || std::abs(power) <= kFar<T>) {  // where it lies
        plane.data = from;
        plane.exponents = {power == kZero ? kZero : 0};
        return plane;
      }
    }
    T* const to = plane.make(count, 1);
    std::copy(from, from + count, to);
    normalize(plane, count, tools_.largest(to, count, 1));
    return plane;
  }

  // Addresses of the entries of the value in the order of the last result, without the lanes.
  std::vector<int64_t> addresses_of_value() const {
    std::vector<Axis> axes;
    for (int64_t label : layout_.labels(values() - 1)) {
      int64_t stride = 1, found = 0;
      for (size_t i = plan_.output.size(); i-- > 0; stride *= plan_.size(plan_.output[i]))
        if (plan_.output[i] == label) found = stride;
      axes.push_back({plan_.size(label), found, 0});
    }
    std::vector<int64_t> addresses;
    const Runs runs(axes);
    for (int64_t r = 0; r < runs.runs(); ++r) {
      const Runs::Run run = runs.run(r);
      for (int64_t i = 0; i < run.count; ++i) addresses.push_back(run.left + runs.left()[at(i)]);
    }
    return addresses;
  }

  // The plane of all tangents; lanes come first in the value.
  void write_value(const Room& room) {
    const Ask& ask = given_.ask;
    const Planes<T>& last = value(room, values() - 1);
    const Plane<T>& plane = last.back();
    const std::vector<int64_t> addresses = addresses_of_value();
    const auto cells = static_cast<int64_t>(addresses.size());
    S* const out = static_cast<S*>(ask.results[0].data);
    int32_t* const exponents = ask.question == Question::kScaledSum ? static_cast<int32_t*>(ask.results[1].data) : nullptr;
    for (int64_t l = 0; l < room.used; ++l)
      for (int64_t i = 0; i < cells; ++i) {
        const int64_t to = (room.first + l) * cells + addresses[at(i)];
        const T x = plane.data ? plane.data[i * plane.lanes() + l] : T(0);
        int64_t exponent = plane.data ? plane.exponent(l) : 0;
        if (given_.is_log()) {
          const Plane<T>& sums = last[0];
          const T sum = sums.data[i * sums.lanes() + l];
          if (given_.order == 0) out[to] = static_cast<S>(given_.ask.temperature * (std::log(sum) + exponent * std::log(2.0)) + shared_offset_ + room_offset(room, l));
          else out[to] = static_cast<S>(sum == T(0) ? T(0) : scaled(x / sum, exponent - sums.exponent(l)));
          continue;
        }
        if (exponents) {
          int own = 0;
          const bool has_exponent = x != T(0) && std::isfinite(x);
          out[to] = static_cast<S>(has_exponent ? std::frexp(x, &own) : x);
          if (has_exponent && std::abs(out[to]) == S(1)) out[to] /= 2, ++own;  // rounded up
          exponents[to] = has_exponent ? static_cast<int32_t>(exponent + own) : 0;
          continue;
        }
        if (given_.exponents()) exponent -= given_.exponents()[to];
        out[to] = static_cast<S>(scaled(x, exponent));
      }
  }

  double room_offset(const Room& room, int64_t l) const { return layout_.has_lanes(values() - 1) ? room.offsets[at(l)] : 0.0; }

  // --- back ------------------------------------------------------------------------------------------------------------------------

  // The given cotangent, of the plane of all tangents.
  Planes<T> cotangent_of_value(const Room& room) {
    const S* const given = static_cast<const S*>(given_.cotangent());
    const Plane<T>& last = value(room, values() - 1)[0];
    const std::vector<int64_t> addresses = addresses_of_value();
    const auto cells = static_cast<int64_t>(addresses.size());
    Planes<T> planes(planes_);
    T* const to = planes.back().make(cells, room.lanes);
    std::fill(to, to + cells * room.lanes, T(0));
    for (int64_t l = 0; l < room.lanes; ++l) {  // the last lane again for those beyond it, since zeros would be far from 1
      const int64_t base = (room.first + std::min(l, room.used - 1)) * cells;
      int32_t top = kZero;
      const auto exponent = [&](int64_t i) { return given_.is_log() ? last.exponent(l) : given_.exponents()[base + addresses[at(i)]]; };
      const auto entry = [&](int64_t i) {
        const T bar = static_cast<T>(given[base + addresses[at(i)]]);
        if (!given_.is_log()) return bar;
        const T sum = last.data[i * last.lanes() + l];
        return sum == T(0) ? T(0) : bar / sum;
      };
      for (int64_t i = 0; i < cells; ++i)
        if (entry(i) != T(0)) top = std::max(top, (std::isfinite(entry(i)) ? std::ilogb(entry(i)) : 0) - exponent(i));
      for (int64_t i = 0; i < cells; ++i) to[i * room.lanes + l] = entry(i) == T(0) ? T(0) : scaled(entry(i), -int64_t{exponent(i)} - top);
      planes.back().exponents[at(l)] = top;
    }
    return planes;
  }

  // The cotangents of the operands of all steps with lanes, or of all without. What a chunk finds for values without lanes goes to `totals`.
  void backward(Room& room, bool with_lanes, std::vector<Planes<T>>* totals) {
    for (int64_t s = steps(); s-- > 0;) {
      const int64_t number = plan_.tables + s;
      if (layout_.has_lanes(number) != with_lanes || room.bars[at(number)].empty()) continue;
      const Step& step = plan_.steps[at(s)];
      for (const bool is_right : {false, true}) {
        const int64_t operand = is_right ? step.right : step.left, other = is_right ? step.left : step.right;
        if (operand < 0 || !is_moving_[at(operand)]) continue;
        const bool sums_lanes = with_lanes && !layout_.has_lanes(operand);
        const Contraction& c = backward_[at(2 * s + is_right)];
        Planes<T>& to = sums_lanes ? (*totals)[at(operand)] : room.bars[at(operand)];
        for (size_t set = 0; set < planes_; ++set) {
          const Plane<T>& bar = room.bars[at(number)].size() > set ? room.bars[at(number)][set] : none_;
          if (!bar.data) continue;
          if (other < 0) {
            gather(to, set, product(room, c, bar, nullptr, false), c.count);
            continue;
          }
          for (size_t part = set;; part = (part - 1) & set) {
            const Plane<T>& factor = value(room, other)[set ^ part];
            if (factor.data) gather(to, part, product(room, c, bar, &factor, false), c.count);
            if (part == 0) break;
          }
        }
      }
      room.bars[at(number)].clear();
    }
  }

  // The cotangents of the active tables with lanes, or of those without.
  void write_cotangents(const Room& room, bool with_lanes) {
    for (size_t active = 0; active < plan_.active.size(); ++active) {
      const int64_t i = plan_.active[active];
      if (layout_.has_lanes(i) != with_lanes || room.bars[at(i)].empty() || !room.bars[at(i)][0].data) continue;
      const Plane<T>& bar = room.bars[at(i)][0];
      S* const to = static_cast<S*>(given_.ask.results[active].data);
      const Plane<T>& weights = value(room, i)[0];
      const std::vector<int64_t> lanes = places_of(room, i);
      const int64_t wide = bar.lanes();
      std::vector<Power<T>> powers(bar.exponents.begin(), bar.exponents.end());
      over_entries(plan_, i, layout_.distinct(i), true, [&](int64_t entry, int64_t address) {
        for (int64_t l = 0; l < room.used; ++l) {
          const T found = bar.data[entry * wide + l];
          if (!given_.is_log()) to[address + lanes[at(l)]] += static_cast<S>(powers[at(l)].of(found, bar.exponents[at(l)]));
          else if (const T weight = weights.data[entry * wide + l]; weight != T(0)) to[address + lanes[at(l)]] += static_cast<S>(scaled(found * weight, int64_t{bar.exponents[at(l)]} + weights.exponents[at(l)]));
        }
      });
    }
  }

  Pool& pool_;
  const Given& given_;
  Ask inner_;  // of ordinary sums of type T
  const Plan& plan_;
  const Kernels& kernels_;
  const Tools tools_;
  const Layout layout_;
  const size_t planes_;
  std::vector<Planes<T>> shared_;  // values without lanes
  std::vector<bool> is_moving_;
  std::vector<Contraction> forward_, backward_;
  double shared_offset_ = 0;
  std::atomic<bool> is_lost_{false};
  const Plane<T> none_{};
};

// Whether a step is so large, without its lanes, that it is computed as a product of matrices.
bool has_large_step(const Plan& plan) {
  int64_t lanes = 1;
  for (int64_t label : plan.lanes) lanes *= plan.size(label);
  return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) { return step.count / lanes * step.choices >= kWorthTiles; });
}

}  // namespace

int64_t order_of(const Ask& ask, const Plan& plan) {
  if (ask.question <= Question::kScaledSum) return 0;
  const int64_t rest = static_cast<int64_t>(ask.inputs.size()) - plan.tables - (ask.question == Question::kSumCotangent ? 2 : 1), each = static_cast<int64_t>(plan.active.size());
  const int64_t order = each ? rest / each : -1;
  return rest < 0 || !each || rest % each || order > kMostOrder || (ask.question == Question::kSumTangent && order < 1) ? -1 : order;
}

void answer_sums(Pool& pool, const Ask& ask, const Plan& plan, const Kernels& kernels) {
  const Given given{plan, ask, order_of(ask, plan)};
  if (ask.type == Type::kF64) Sums<double>(pool, given, kernels).run();
  else if (has_large_step(plan)) Sums<float>(pool, given, kernels).run();
  else Sums<double, float>(pool, given, kernels).run();  // as fast, since steps are little work, and of a wider range
}

bool answer_log_sums(Pool& pool, const Ask& ask, const Plan& plan, const Kernels& kernels) {
  const Question question = ask.question;
  if (ask.algebra != Algebra::kLogSumExp || (question != Question::kValue && question != Question::kLogTangent && question != Question::kLogCotangent)) return false;
  for (int64_t i = 0; i < plan.tables; ++i)
    for (int64_t label : plan.terms[at(i)])
      if (std::count(plan.terms[at(i)].begin(), plan.terms[at(i)].end(), label) > 1) return false;
  if (has_large_step(plan)) return false;
  if (question == Question::kLogTangent && plan.active.empty()) return false;
  const Given given{plan, ask, question == Question::kLogTangent ? 1 : 0};
  if (ask.type == Type::kF32) return Sums<double, float>(pool, given, kernels).run();
  return Sums<double>(pool, given, kernels).run();
}

}  // namespace tropical
