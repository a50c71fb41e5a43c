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
//
// What all calls of a plan have in common is prepared once for the last plans: strides, and which way each product is taken.
#include "sums.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "last.h"
#include "steps.h"

namespace tropical {
namespace {

using namespace plans;

constexpr int32_t kZero = -(1 << 28);     // the exponent of zeros: below every other
constexpr int64_t kMostOrder = 8;         // of a derivative: its products are 3 to this power
constexpr int64_t kMostLanes = 256;       // of a chunk
constexpr int64_t kChunkBytes = 1 << 22;  // of the values of a chunk, where it has more lanes than a vector
constexpr int64_t kGroups = 16;           // of chunks, each of which adds up cotangents of tables without lanes
constexpr int64_t kMostDots = 512;        // products in cells that sum all lanes, above which a product of matrices takes less
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

template <class T>
constexpr T high_of() {
  T found = 1;
  for (int i = 0; i < kFar<T>; ++i) found *= 2;
  return found;
}
template <class T>
constexpr T kHigh = high_of<T>();

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
  if (x == T(1) && exponent >= std::numeric_limits<T>::min_exponent && exponent < std::numeric_limits<T>::max_exponent) return power_of_two<T>(exponent);
  return std::ldexp(x, static_cast<int>(std::clamp<int64_t>(exponent, -(1 << 20), 1 << 20)));
}

// Memory of values that are no longer needed, for those that follow, in this call or the next: a page that was just got from the system is slow.
// Small blocks are kept by each thread, larger ones by all.
class Memory {
 public:
  struct GiveBack {
    int64_t bytes = 0;
    void operator()(char* data) const {
      if (bytes <= kMostOwn) Own::of_thread().give_back(Bytes(data), bytes);
      else shared().give_back(Bytes(data), bytes);
    }
  };
  using Block = std::unique_ptr<char[], GiveBack>;

  static Block take(int64_t bytes) {
    bytes = rounded_up(bytes);
    Bytes found = bytes <= kMostOwn ? Own::of_thread().taken(bytes) : shared().taken(bytes);
    return Block(found.release(), {bytes});
  }

 private:
  static constexpr int64_t kMostOwn = 1 << 16, kMostKept = int64_t{64} << 20, kMostOwnKept = int64_t{32} << 20;

  static Memory& shared() {
    static Memory* const made = new Memory;  // never freed: threads may end after it
    return *made;
  }

  static int exponent(int64_t bytes) { return 63 - __builtin_clzll(static_cast<uint64_t>(bytes)); }

  // One of few sizes, which have at most a quarter more than is needed: so blocks fit again.
  static int64_t rounded_up(int64_t bytes) {
    const int64_t step = int64_t{1} << std::max(exponent(std::max<int64_t>(bytes, 1)) - 2, 6);
    return std::max((bytes + step - 1) / step * step, step);
  }

  class Own {
   public:
    static Own& of_thread() {
      thread_local Own own;
      return own;
    }
    Bytes taken(int64_t bytes) {
      std::vector<Bytes>& fitting = free_[number(bytes)];
      if (fitting.empty()) return room(bytes, 1);
      Bytes found = std::move(fitting.back());
      fitting.pop_back();
      free_bytes_ -= bytes;
      return found;
    }
    void give_back(Bytes data, int64_t bytes) {
      if (free_bytes_ + bytes > kMostOwnKept) return;
      free_[number(bytes)].push_back(std::move(data));
      free_bytes_ += bytes;
    }

   private:
    // Of a size that `rounded_up` returns: four of each power of two.
    static size_t number(int64_t bytes) { return static_cast<size_t>(4 * exponent(bytes) + (bytes >> std::max(exponent(bytes) - 2, 0)) % 4); }
    std::vector<Bytes> free_[4 * 17];
    int64_t free_bytes_ = 0;
  };

  Bytes taken(int64_t bytes) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (auto& fitting = free_[bytes]; !fitting.empty()) {
      Bytes found = std::move(fitting.back());
      fitting.pop_back();
      free_bytes_ -= bytes, live_ += bytes;
      return found;
    }
    lock.unlock();
    Bytes made = room(bytes, 1);
    lock.lock();
    live_ += bytes;
    return made;
  }

  void give_back(Bytes data, int64_t bytes) {
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

// Entries times a power of two for each lane: (entries, lanes), or (entries) with one power. No data: zeros. Few products change the powers, so what
// is computed of a plane shares them with it.
template <class T>
struct Plane {
  Memory::Block block{nullptr, {}};
  const T* data = nullptr;
  int64_t lanes = 1;
  int32_t common = 0;                     // the exponent of all lanes
  std::shared_ptr<const int32_t[]> more;  // for each lane what is added to it, if that differs

  T* make(int64_t count, int64_t wide) {
    block = Memory::take(times(times(count, wide), sizeof(T)));
    data = own(), lanes = wide;
    return own();
  }
  T* own() const { return reinterpret_cast<T*>(block.get()); }
  int32_t exponent(int64_t lane) const { return more ? common + more[lane] : common; }
  void set_exponents(std::unique_ptr<int32_t[]> each) {
    if (lanes == 1) common = each[0], more = nullptr;
    else common = 0, more = std::move(each);
  }
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
void scale_lanes(T* x, int64_t count, const std::vector<int64_t>& powers) {
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
  void largest(const T* x, int64_t count, int64_t lanes, T* most) const {
    std::fill(most, most + lanes, T(0));
    kernels.magnitudes(type, x, count, lanes, most);
  }
};

// Brings the entries of all lanes near 1, where some are far from it: so this is rarely done. `sizes`: the largest magnitude of each lane.
template <class T>
void normalize(Plane<T>& plane, int64_t count, const T* sizes) {
  const int64_t lanes = plane.lanes;
  constexpr T high = kHigh<T>, low = 1 / high;
  int32_t far = 0;
  for (int64_t l = 0; l < lanes; ++l) far += !((sizes[l] >= low) & (sizes[l] < high));
  if (far == 0) return;
  std::vector<int64_t> powers(at(lanes), 0);
  std::unique_ptr<int32_t[]> exponents(new int32_t[at(lanes)]);
  bool is_far = false;
  for (int64_t l = 0; l < lanes; ++l) {
    const int32_t power = excess(sizes[l]);
    exponents[at(l)] = power == kZero ? kZero : plane.exponent(l) + power;
    if (power != kZero && power != 0) powers[at(l)] = -power, is_far = true;
  }
  plane.set_exponents(std::move(exponents));
  if (is_far) scale_lanes(plane.own(), count, powers);
}

// What one thread writes for each lane, and forgets.
template <class T>
struct Scratch {
  std::vector<T> most, first, second;
  explicit Scratch(int64_t lanes) : most(at(lanes)), first(at(lanes)), second(at(lanes)) {}
};

// Adds one plane to another of as many lanes.
template <class T>
void add(const Tools& tools, Scratch<T>& scratch, Plane<T>& to, const Plane<T>& more, int64_t count) {
  const int64_t lanes = to.lanes;
  T* const x = to.own();
  const T* const y = more.data;
  if (to.more == more.more) {
    const int32_t top = std::max(to.common, more.common);
    const T kept = scaled(T(1), to.common - top), added = scaled(T(1), more.common - top);
    for (int64_t i = 0; i < count * lanes; ++i) x[i] = x[i] * kept + y[i] * added;
    to.common = top;
  } else {
    T *const kept = scratch.first.data(), *const added = scratch.second.data();
    std::unique_ptr<int32_t[]> exponents(new int32_t[at(lanes)]);
    for (int64_t l = 0; l < lanes; ++l) {
      const int32_t top = std::max(to.exponent(l), more.exponent(l));
      kept[l] = scaled(T(1), to.exponent(l) - top);
      added[l] = scaled(T(1), more.exponent(l) - top);
      exponents[at(l)] = top;
    }
    to.set_exponents(std::move(exponents));
    for (int64_t i = 0; i < count * lanes; i += lanes)
      for (int64_t l = 0; l < lanes; ++l) x[i + l] = x[i + l] * kept[l] + y[i + l] * added[l];
  }
  tools.largest(x, count, lanes, scratch.most.data());
  normalize(to, count, scratch.most.data());
}

// A product of two values, or the sum of one, for chunks of some lanes.
struct Contraction {
  Step step;            // with the lanes as the last axis of its cells
  Runs cells, choices;  // without them
  bool left_has_lanes = false, right_has_lanes = false, sums_lanes = false;
  int64_t count = 1;  // of cells without lanes
  bool is_for_tiles = false;
  bool is_for_dots = false;  // sums lanes in few cells: then `choices` are without them
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
    c.cells = Runs(c.step.cells);
    c.is_for_dots = sums_lanes && c.left_has_lanes && c.cells.count() * c.step.choices <= kMostDots;
    if (c.is_for_dots) c.choices = Runs(c.step.candidates);
    if (sums_lanes && (c.left_has_lanes || c.right_has_lanes)) {
      c.step.contracted.push_back(-1);
      c.step.candidates.push_back({lanes, c.left_has_lanes, c.right_has_lanes});
      c.step.choices = times(c.step.choices, lanes);
    }
    if (!c.is_for_dots) c.choices = Runs(c.step.candidates);
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

// The entries of a table without its lanes; of distinct labels those on a diagonal.
Runs entries_of(const Plan& plan, int64_t table, const std::vector<int64_t>& labels, bool is_diagonal) {
  std::vector<Axis> axes;
  int64_t inner = 1;  // of the same label, for entries off the diagonal
  const auto& term = plan.terms[at(table)];
  if (is_diagonal) {
    for (int64_t label : labels) axes.push_back({plan.size(label), plan.stride(table, label), 0});
  } else {
    for (size_t i = term.size(); i-- > 0; inner *= plan.size(term[i]))
      if (!has(plan.lanes, term[i])) axes.insert(axes.begin(), Axis{plan.size(term[i]), inner, 0});
  }
  return Runs(axes);
}

// each(first entry, address, what each entry adds to it, how many), for a few entries at a time: they fit into a cache with all their lanes.
template <class Each>
void over_entries(const Runs& runs, const Each& each) {
  constexpr int64_t few = 16;
  int64_t entry = 0;
  for (int64_t r = 0; r < runs.runs(); ++r) {
    const Runs::Run run = runs.run(r);
    for (int64_t i = 0; i < run.count; i += few) {
      const int64_t count = std::min(few, run.count - i);
      each(entry, run.left, runs.left().data() + i, count);
      entry += count;
    }
  }
}

// What calls of one plan have in common, which takes as long to make as a small network to compute.
struct Prepared {
  const Plan plan;
  const Layout layout;
  const int64_t wide;                            // lanes of a chunk
  std::vector<bool> is_moving;                   // values that depend on active tables
  std::vector<Contraction> forward, backward;    // for each step; and two for each step, where there is a way back
  std::vector<Runs> entries, diagonals;          // of each table; and, where there is a way back, of each active one

  // `bytes`: of an entry with all its planes, of `item` bytes each.
  Prepared(const Plan& given, bool is_transposed, int64_t item, int64_t bytes, int64_t threads)
      : plan(given), layout(plan), wide(lanes_of_chunk(item, bytes, threads)), is_moving(plan.terms.size(), false), forward(plan.steps.size()) {
    for (int64_t i : plan.active) is_moving[at(i)] = true;
    for (int64_t i = 0; i < plan.tables; ++i) entries.push_back(entries_of(plan, i, {}, false));
    if (is_transposed) {
      backward.resize(2 * plan.steps.size()), diagonals.resize(entries.size());
      for (int64_t i : plan.active) diagonals[at(i)] = entries_of(plan, i, layout.distinct(i), true);
    }
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const Step& step = plan.steps[s];
      const int64_t number = plan.tables + static_cast<int64_t>(s), lanes = layout.has_lanes(number) ? wide : 1;
      is_moving[at(number)] = is_moving[at(step.left)] || (step.right >= 0 && is_moving[at(step.right)]);
      forward[s] = layout.forward(static_cast<int64_t>(s), lanes);
      for (const bool is_right : {false, true}) {
        const int64_t operand = is_right ? step.right : step.left;
        if (is_transposed && operand >= 0 && is_moving[at(operand)]) backward[2 * s + is_right] = layout.backward(static_cast<int64_t>(s), is_right, lanes);
      }
    }
  }

  int64_t bytes() const {
    int64_t found = 0;
    for (const auto* each : {&forward, &backward})
      for (const Contraction& c : *each) found += 512 + 16 * (c.cells.length() + c.choices.length());
    for (const auto* each : {&entries, &diagonals})
      for (const Runs& runs : *each) found += 64 + 16 * runs.length();
    return found;
  }

 private:
  int64_t lanes_of_chunk(int64_t item, int64_t bytes, int64_t threads) const {
    const int64_t vector = 64 / item;
    int64_t all = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(plan.terms.size()); ++i)
      if (layout.has_lanes(i)) all += layout.count(i) * bytes;
    const int64_t fitting = std::clamp(kChunkBytes / std::max<int64_t>(all, 1) / vector * vector, vector, kMostLanes);
    const int64_t per_thread = (layout.lanes() + threads - 1) / std::max<int64_t>(threads, 1);
    return std::min(fitting, (per_thread + vector - 1) / vector * vector);
  }
};

std::shared_ptr<const Prepared> prepared(const Ask& ask, const Plan& plan, bool is_transposed, int64_t item, int64_t planes, int64_t threads) {
  static auto* const last = new Last<Prepared>(16, int64_t{64} << 20);  // never freed: threads may end after it
  std::vector<int64_t> key(ask.plan, ask.plan + ask.length);
  key.insert(key.end(), {is_transposed, item, planes, threads});
  const auto make = [&] { return std::make_shared<const Prepared>(plan, is_transposed, item, item * planes, threads); };
  return last->find(std::move(key), make, [](const Prepared& made) { return made.bytes(); });
}

// Where each of some lanes lies in an array that has some of the lanes' labels: `stride` apart, if there is one label; the last one again for lanes
// beyond the last.
struct Places {
  int64_t first = 0, stride = 0, used = 1;
  std::vector<int64_t> each;  // of several labels
  Places() = default;         // of a table without lanes
  Places(const Plan& plan, int64_t term, int64_t from, int64_t lanes, int64_t all) : used(std::min(lanes, all - from)) {
    if (plan.lanes.size() == 1) {
      stride = plan.stride(term, plan.lanes[0]), first = from * stride;
      return;
    }
    for (int64_t l = from; l < from + lanes; ++l) {
      int64_t rest = std::min(l, all - 1), offset = 0;
      for (size_t i = plan.lanes.size(); i-- > 0; rest /= plan.size(plan.lanes[i])) offset += rest % plan.size(plan.lanes[i]) * plan.stride(term, plan.lanes[i]);
      each.push_back(offset);
    }
  }
  int64_t at(int64_t lane) const { return each.empty() ? first + std::min(lane, used - 1) * stride : each[static_cast<size_t>(lane)]; }

  // to[i * lanes + l] = from[entries[i] + at(l)], for a few entries: where lanes lie far apart, their entries are read side by side.
  template <class S, class T>
  void read(const S* from, const int64_t* entries, int64_t count, int64_t lanes, T* to) const {
    if (!each.empty() || stride == 1 || lanes == 1) {
      for (int64_t i = 0; i < count; ++i)
        for (int64_t l = 0; l < lanes; ++l) to[i * lanes + l] = static_cast<T>(from[entries[i] + at(l)]);
      return;
    }
    for (int64_t l = 0; l < used; ++l) {
      const S* const own = from + first + l * stride;
      for (int64_t i = 0; i < count; ++i) to[i * lanes + l] = static_cast<T>(own[entries[i]]);
    }
    for (int64_t i = 0; i < count; ++i) std::fill(to + i * lanes + used, to + (i + 1) * lanes, to[i * lanes + used - 1]);
  }
};

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
      : pool_(pool), given_(given), inner_(given.ask), plan_(given.plan), kernels_(kernels), tools_{kernels, kTypeOf<T>, kernels.folds(kTypeOf<T>, Algebra::kSumProduct)}, planes_(size_t{1} << given.order),
        prepared_(prepared(given.ask, given.plan, given.is_transposed(), sizeof(T), static_cast<int64_t>(planes_), pool.threads())), layout_(prepared_->layout), shared_(plan_.terms.size()) {
    inner_.algebra = Algebra::kSumProduct, inner_.type = kTypeOf<T>;
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
  // Powers of two of lanes, and the exponents that they are of.
  struct Weights {
    std::vector<T> of;
    std::shared_ptr<const int32_t[]> bar, factor;
    int32_t top = 0;
  };

  // What belongs to a chunk of lanes: values, and cotangents, by their numbers.
  struct Room {
    Room(const Sums& sums, Pool& pool, int64_t lanes, int64_t first, int64_t used)
        : values(sums.plan_.terms.size()), bars(sums.plan_.terms.size()), offsets(at(lanes), 0.0), lanes(lanes), first(first), used(used), scratch(lanes),
          context{pool, sums.inner_, sums.kernels_, sums.tools_.folds} {}
    std::vector<Planes<T>> values, bars;
    std::vector<double> offsets;  // for each lane what scores were taken less than
    int64_t lanes, first, used;   // lanes in memory, the number of the first one, and how many are of the batch
    mutable Scratch<T> scratch;
    mutable Weights weights;
    Context context;
  };

  int64_t steps() const { return static_cast<int64_t>(plan_.steps.size()); }
  int64_t values() const { return static_cast<int64_t>(plan_.terms.size()); }
  const Planes<T>& value(const Room& room, int64_t i) const { return layout_.has_lanes(i) ? room.values[at(i)] : shared_of(room, i); }
  const Planes<T>& shared_of(const Room& room, int64_t i) const { return room.values[at(i)].empty() ? shared_[at(i)] : room.values[at(i)]; }

  // Chunks in groups, and then the way back through what has no lanes.
  void run_chunks(Room& all) {
    const int64_t wide = prepared_->wide, chunks = (layout_.lanes() + wide - 1) / wide;
    const int64_t groups = writes_shared() ? 1 : std::min(chunks, kGroups);
    std::vector<std::vector<Planes<T>>> totals(at(groups));
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
          if (total[at(i)][s].data) gather(all, all.bars[at(i)], s, std::move(total[at(i)][s]), layout_.distinct_count(i));
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
      multiply(room, prepared_->forward[at(s)], value(room, step.left), step.right < 0 ? nullptr : &value(room, step.right), room.values[at(number)]);
      for (int64_t operand : {step.left, step.right})
        if (frees && operand >= 0) room.values[at(operand)].clear();
    }
  }

  void multiply(const Room& room, const Contraction& c, const Planes<T>& left, const Planes<T>* right, Planes<T>& to) {
    to.resize(planes_);
    for (size_t set = 0; set < planes_; ++set) {
      if (!right) {
        if (left[set].data) gather(room, to, set, product(room, c, left[set], nullptr, set == 0), c.count);
        continue;
      }
      for (size_t part = set;; part = (part - 1) & set) {
        const Plane<T>&a = left[part], &b = (*right)[set ^ part];
        if (a.data && b.data) gather(room, to, set, product(room, c, a, &b, set == 0), c.count);
        if (part == 0) break;
      }
    }
  }

  // Adds to a plane, which may be zero.
  void gather(const Room& room, Planes<T>& to, size_t set, Plane<T> more, int64_t count) {
    if (to.size() <= set) to.resize(set + 1);
    if (to[set].data) add(tools_, room.scratch, to[set], more, count);
    else to[set] = std::move(more);
  }

  // `is_value`: not of tangents, nor a cotangent.
  Plane<T> product(const Room& room, const Contraction& c, const Plane<T>& a, const Plane<T>* b, bool is_value) {
    Plane<T> out;
    const int64_t lanes = c.has_lanes() ? room.lanes : 1;
    T* const to = out.make(c.count, lanes);
    T* const most = room.scratch.most.data();
    const void *lhs = a.data, *const rhs = b ? b->data : nullptr;
    Plane<T> aligned;
    if (c.sums_lanes && c.left_has_lanes) {
      out.common = weigh_lanes(room, a, b);
      if (!c.is_for_dots) aligned = weighed(room, a, layout_.count(c.step.left)), lhs = aligned.data;
    } else {
      add_exponents(a, b, out);
    }
    bool is_far = true;
    if (c.is_for_dots) {
      most[0] = T(0);
      is_far = over_lanes(room, c, lhs, rhs, to, most, room.context.kernels.lane_dots);
    } else if (c.is_for_tiles || lanes == 1) {
      if (c.is_for_tiles) search_by_tiles<T>(room.context, c.step, lhs, rhs, to, nullptr);
      else search<T>(room.context, c.step, c.cells, c.choices, lhs, rhs, to, nullptr);
      tools_.largest(to, c.count, lanes, most);
    } else {
      is_far = by_lanes(room, c, lhs, rhs, to, most);
    }
    if (is_value && given_.is_log() && loses(to, c.count, lanes, most)) is_lost_ = true;
    if (is_far) normalize(out, c.count, most);
    return out;
  }

  // Those of a product.
  static void add_exponents(const Plane<T>& a, const Plane<T>* b, Plane<T>& out) {
    out.common = std::max(a.common + (b ? b->common : 0), kZero);
    if (!b || !b->more) {
      out.more = a.more;
    } else if (!a.more) {
      out.more = b->more;
    } else {
      std::unique_ptr<int32_t[]> each(new int32_t[at(out.lanes)]);
      for (int64_t l = 0; l < out.lanes; ++l) each[at(l)] = std::max(a.more[l] + b->more[l], kZero);
      out.more = std::move(each);
    }
  }

  // Powers of two by which the lanes of a cotangent are multiplied, so that its products with the other operand have one exponent, which is
  // returned; 0 for lanes beyond the batch. Most cotangents of a chunk have the same.
  static int32_t weigh_lanes(const Room& room, const Plane<T>& bar, const Plane<T>* factor) {
    const int32_t common = bar.common + (factor ? factor->common : 0);
    Weights& known = room.weights;
    const auto more = factor ? factor->more : nullptr;
    if (!known.of.empty() && known.bar == bar.more && known.factor == more) return std::max(common + known.top, kZero);
    const auto exponent = [&](int64_t l) { return (bar.more ? bar.more[l] : 0) + (more ? more[l] : 0); };
    int32_t top = exponent(0);
    for (int64_t l = 1; l < room.used; ++l) top = std::max(top, exponent(l));
    known.of.assign(at(room.lanes), T(0));
    for (int64_t l = 0; l < room.used; ++l) known.of[at(l)] = scaled(T(1), exponent(l) - top);
    known.bar = bar.more, known.factor = more, known.top = top;
    return std::max(common + top, kZero);
  }

  static Plane<T> weighed(const Room& room, const Plane<T>& bar, int64_t count) {
    const T* const weights = room.weights.of.data();
    const int64_t lanes = room.lanes;
    Plane<T> found;
    T* const to = found.make(count, lanes);
    for (int64_t i = 0; i < count * lanes; i += lanes)
      for (int64_t l = 0; l < lanes; ++l) to[i + l] = l < room.used ? bar.data[i + l] * weights[l] : T(0);
    return found;
  }

  // Writes the largest magnitude of each lane, and returns whether one is far from 1.
  bool by_lanes(const Room& room, const Contraction& c, const void* lhs, const void* rhs, T* to, T* most) {
    std::fill(most, most + room.lanes, T(0));
    const auto run = room.context.kernels.lane_sums;
    if (c.step.count * c.step.choices < kWorthThreads || room.context.pool.threads() == 1) return over_lanes(room, c, lhs, rhs, to, most, run);
    std::mutex mutex;
    bool is_far = false;
    over_runs(room.context, c.cells, c.step.count * c.step.choices, [&](int64_t from, int64_t end) {
      std::vector<T> own(at(room.lanes), T(0));
      const bool is_own_far = over_lanes(room, c, lhs, rhs, to, own.data(), run, from, end);
      const std::lock_guard<std::mutex> lock(mutex);
      is_far |= is_own_far;
      for (int64_t l = 0; l < room.lanes; ++l) most[l] = std::max(most[l], own[at(l)]);
    });
    return is_far;
  }

  // A kernel for runs of cells; all, if `end` is negative.
  static bool over_lanes(const Room& room, const Contraction& c, const void* lhs, const void* rhs, T* to, T* most, bool (*run)(const LaneSums&), int64_t from = 0, int64_t end = -1) {
    const int64_t wide = c.has_lanes() ? room.lanes : 1, lanes = c.is_for_dots ? room.used : room.lanes;
    constexpr double high = kHigh<T>, low = 1 / high;
    bool is_far = false;
    for (int64_t r = from; r < (end < 0 ? c.cells.runs() : end); ++r) {
      const Runs::Run cell = c.cells.run(r);
      for (int64_t k = 0; k < c.choices.runs(); ++k) {
        const Runs::Run choice = c.choices.run(k);
        const T *const left = static_cast<const T*>(lhs) + cell.left + choice.left, *const right = rhs ? static_cast<const T*>(rhs) + cell.right + choice.right : nullptr;
        is_far |= run({kTypeOf<T>, lanes, cell.count, choice.count, left, right, c.left_has_lanes, c.right_has_lanes, k > 0, c.cells.left().data(), c.cells.right().data(),
             c.choices.left().data(), c.choices.right().data(), to + cell.first * wide, most, low, high, room.weights.of.data()});
      }
    }
    return is_far;
  }

  // Where each lane lies in a table; one place in a table without lanes.
  Places places_of(const Room& room, int64_t table) const {
    if (!layout_.has_lanes(table)) return {};
    return {plan_, table, room.first, room.lanes, layout_.lanes()};
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
    const int64_t count = layout_.count(table), lanes = value.lanes;
    T* const most = room.scratch.most.data();
    const Places places = places_of(room, table);
    Plane<T> plane;
    T* const to = plane.make(count, lanes);
    over_entries(prepared_->entries[at(table)], [&](int64_t entry, int64_t address, const int64_t* entries, int64_t some) {
      T* const own = to + entry * lanes;
      const T* const weights = value.data + entry * lanes;
      places.read(from + address, entries, some, lanes, own);
      for (int64_t i = 0; i < some * lanes; ++i) own[i] = weights[i] == T(0) ? T(0) : weights[i] * own[i];
    });
    plane.common = value.common, plane.more = value.more;
    tools_.largest(to, count, lanes, most);
    normalize(plane, count, most);
    return plane;
  }

  // exp((score - the largest one of the lane) / T).
  Plane<T> read_scores(Room& room, int64_t table) {
    const S* const from = static_cast<const S*>(given_.table(table).data);
    const int64_t count = layout_.count(table), lanes = layout_.has_lanes(table) ? room.lanes : 1;
    const Places places = places_of(room, table);
    constexpr T infinity = std::numeric_limits<T>::infinity();
    T *const most = room.scratch.first.data(), *const least = room.scratch.second.data(), *const sizes = room.scratch.most.data();
    std::fill(most, most + lanes, -infinity), std::fill(least, least + lanes, infinity);
    Plane<T> plane;
    T* const to = plane.make(count, lanes);
    bool is_known = true;
    over_entries(prepared_->entries[at(table)], [&](int64_t entry, int64_t address, const int64_t* entries, int64_t some) {
      places.read(from + address, entries, some, lanes, to + entry * lanes);
      for (int64_t i = entry; i < entry + some; ++i)
        for (int64_t l = 0; l < lanes; ++l) {
          const T score = to[i * lanes + l];
          most[l] = score > most[l] ? score : most[l];
          least[l] = score < least[l] && score != -infinity ? score : least[l];
          is_known &= score < infinity;  // nor NaN
        }
    });
    for (int64_t l = 0; l < lanes; ++l) {
      if (most[l] == -infinity) most[l] = T(0);  // of an impossible table
      else is_known &= most[l] - least[l] < kLost * std::log(2.0) * given_.ask.temperature;
      room.offsets[at(l)] += most[l];
    }
    const Folds folds = kernels_.folds(kTypeOf<T>, Algebra::kLogSumExp);
    if (lanes == 1) folds.weights(to, nullptr, count, most, 0, given_.ask.temperature, to);
    else for (int64_t i = 0; i < count; ++i) folds.weights(to + i * lanes, nullptr, lanes, most, 1, given_.ask.temperature, to + i * lanes);
    tools_.largest(to, count, lanes, sizes);
    normalize(plane, count, sizes);
    if (!is_known) is_lost_ = true;
    return plane;
  }

  // Whether a lane has entries that are not 0 so far below its largest one that their products may be lost.
  static bool loses(const T* x, int64_t count, int64_t lanes, const T* most) {
    constexpr int64_t few = 8;
    constexpr T infinity = std::numeric_limits<T>::infinity();
    T least_of_one[few];
    std::vector<T> least_of_many(lanes == 1 ? 0 : at(lanes));
    T* const least = lanes == 1 ? least_of_one : least_of_many.data();
    const int64_t wide = lanes == 1 ? few : lanes;
    std::fill(least, least + wide, infinity);
    int64_t i = 0;
    for (; i + wide <= count * lanes; i += wide)
      for (int64_t l = 0; l < wide; ++l) {
        const T y = x[i + l] > T(0) ? x[i + l] : infinity;
        least[l] = y < least[l] ? y : least[l];
      }
    for (; i < count * lanes; ++i) least[0] = x[i] > T(0) ? std::min(least[0], x[i]) : least[0];
    const T rate = power_of_two<T>(-kLost);
    bool is_lost = false;
    for (int64_t l = 0; l < wide; ++l) {
      const T top = most[lanes == 1 ? 0 : l];
      is_lost |= !(top < infinity) || least[l] < top * rate;
    }
    return is_lost;
  }

  Plane<T> read_plane(const Room& room, int64_t table, const void* data) {
    const S* const from = static_cast<const S*>(data);
    const int64_t count = layout_.count(table);
    T* const most = room.scratch.most.data();
    Plane<T> plane;
    if (layout_.has_lanes(table)) {
      const Places places = places_of(room, table);
      T* const to = plane.make(count, room.lanes);
      over_entries(prepared_->entries[at(table)], [&](int64_t entry, int64_t address, const int64_t* entries, int64_t some) {
        places.read(from + address, entries, some, room.lanes, to + entry * room.lanes);
      });
      tools_.largest(to, count, room.lanes, most);
      normalize(plane, count, most);
      return plane;
    }
    if constexpr (std::is_same<S, T>::value) {
      tools_.largest(from, count, 1, most);
      const int32_t power = excess(most[0]);
      if (power == kZero || std::abs(power) <= kFar<T>) {  // where it lies
        plane.data = from;
        plane.common = power == kZero ? kZero : 0;
        return plane;
      }
    }
    T* const to = plane.make(count, 1);
    std::copy(from, from + count, to);
    tools_.largest(to, count, 1, most);
    normalize(plane, count, most);
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
        const T x = plane.data ? plane.data[i * plane.lanes + l] : T(0);
        int64_t exponent = plane.data ? plane.exponent(l) : 0;
        if (given_.is_log()) {
          const Plane<T>& sums = last[0];
          const T sum = sums.data[i * sums.lanes + l];
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
    std::unique_ptr<int32_t[]> exponents(new int32_t[at(room.lanes)]);
    for (int64_t l = 0; l < room.lanes; ++l) {  // the last lane again for those beyond it, since zeros would be far from 1
      const int64_t base = (room.first + std::min(l, room.used - 1)) * cells;
      int32_t top = kZero;
      const auto exponent = [&](int64_t i) { return given_.is_log() ? last.exponent(l) : given_.exponents()[base + addresses[at(i)]]; };
      const auto entry = [&](int64_t i) {
        const T bar = static_cast<T>(given[base + addresses[at(i)]]);
        if (!given_.is_log()) return bar;
        const T sum = last.data[i * last.lanes + l];
        return sum == T(0) ? T(0) : bar / sum;
      };
      for (int64_t i = 0; i < cells; ++i)
        if (entry(i) != T(0)) top = std::max(top, (std::isfinite(entry(i)) ? std::ilogb(entry(i)) : 0) - exponent(i));
      for (int64_t i = 0; i < cells; ++i) to[i * room.lanes + l] = entry(i) == T(0) ? T(0) : scaled(entry(i), -int64_t{exponent(i)} - top);
      exponents[at(l)] = top;
    }
    planes.back().set_exponents(std::move(exponents));
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
        if (operand < 0 || !prepared_->is_moving[at(operand)]) continue;
        const bool sums_lanes = with_lanes && !layout_.has_lanes(operand);
        const Contraction& c = prepared_->backward[at(2 * s + is_right)];
        Planes<T>& to = sums_lanes ? (*totals)[at(operand)] : room.bars[at(operand)];
        for (size_t set = 0; set < planes_; ++set) {
          const Plane<T>& bar = room.bars[at(number)].size() > set ? room.bars[at(number)][set] : none_;
          if (!bar.data) continue;
          if (other < 0) {
            gather(room, to, set, product(room, c, bar, nullptr, false), c.count);
            continue;
          }
          for (size_t part = set;; part = (part - 1) & set) {
            const Plane<T>& factor = value(room, other)[set ^ part];
            if (factor.data) gather(room, to, part, product(room, c, bar, &factor, false), c.count);
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
      const Places places = places_of(room, i);
      const int64_t wide = bar.lanes;
      std::vector<Power<T>> powers;
      std::vector<int64_t> exponents;
      for (int64_t l = 0; l < wide; ++l) {
        exponents.push_back(int64_t{bar.exponent(l)} + (given_.is_log() ? weights.exponent(l) : 0));
        powers.emplace_back(exponents.back());
      }
      over_entries(prepared_->diagonals[at(i)], [&](int64_t entry, int64_t address, const int64_t* entries, int64_t some) {
        for (int64_t l = 0; l < room.used; ++l) {
          S* const own = to + address + places.at(l);
          for (int64_t k = 0; k < some; ++k) {
            T found = bar.data[(entry + k) * wide + l];
            if (given_.is_log()) {
              const T weight = weights.data[(entry + k) * wide + l];
              if (weight == T(0)) continue;
              found *= weight;
            }
            own[entries[k]] += static_cast<S>(powers[at(l)].of(found, exponents[at(l)]));
          }
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
  const size_t planes_;
  const std::shared_ptr<const Prepared> prepared_;
  const Layout& layout_;
  std::vector<Planes<T>> shared_;  // values without lanes
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
