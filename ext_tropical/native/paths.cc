// Shortest paths: Dijkstra with a radix heap; a queue of nodes where weights are negative.
#include "paths.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

namespace tropical {

int64_t Batch::count() const {
  int64_t n = 1;
  for (int64_t size : sizes) n *= size;
  return n;
}

int64_t Batch::place(size_t operand, int64_t number) const {
  int64_t at = 0;
  for (size_t axis = sizes.size(); axis-- > 0; number /= sizes[axis]) at += number % sizes[axis] * strides[operand][axis];
  return at;
}

namespace {

constexpr int32_t kNone = -1;

// Numbers that are ordered as the values are; no value is NaN, and 0 and -0 are one.
template <class T>
struct Number {
  static constexpr bool kFloat = std::is_floating_point_v<T>;
  using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  using Entry = std::conditional_t<sizeof(T) == 8, unsigned __int128, uint64_t>;  // a key, then a node
  static constexpr Key kSign = Key(1) << (8 * sizeof(T) - 1);
  static constexpr T none() { return kFloat ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max(); }
  static constexpr T least() { return kFloat ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::min(); }
  static Key key(T value) {
    Key k;
    if constexpr (kFloat) value += T(0);
    std::memcpy(&k, &value, sizeof k);
    return k ^ (kFloat && (k & kSign) ? ~Key(0) : kSign);
  }
  static T value(Key k) {
    T v;
    k ^= kFloat && !(k & kSign) ? ~Key(0) : kSign;
    std::memcpy(&v, &k, sizeof v);
    return v;
  }
};

// The value of a path and one more edge; integers beyond the type stop at its ends.
template <class T, bool kGreatest>
T joined(T value, T weight) {
  if constexpr (kGreatest) {
    return weight > value ? weight : value;
  } else if constexpr (Number<T>::kFloat) {
    return value + weight;
  } else {
    constexpr T none = Number<T>::none(), least = Number<T>::least();
    if (weight == none || value == least) return weight == none ? none : least;
    return static_cast<T>(std::clamp<int64_t>(int64_t{value} + int64_t{weight}, least, none));
  }
}

// A sum of weights in twice the digits, each with an allowance for the rounding of whoever computed it: cycles of weight 0 up to rounding are
// positive then. Sums of these are ordered as the numbers are.
template <class T>
struct Sum {
  T value, rest;
  friend bool operator<(const Sum& a, const Sum& b) { return a.value < b.value || (a.value == b.value && a.rest < b.rest); }
  friend bool operator==(const Sum& a, const Sum& b) { return a.value == b.value && a.rest == b.rest; }
  Sum plus(T weight, T allowance) const {
    if (weight == Number<T>::none() || value == Number<T>::none()) return {Number<T>::none(), T(0)};
    const T sum = value + weight, part = sum - value, lost = (value - (sum - part)) + (weight - part);
    const T small = (rest + lost) + allowance, whole = sum + small;
    return std::isfinite(whole) ? Sum{whole, small - (whole - sum)} : Sum{sum, T(0)};
  }
};

template <class T>
T start(bool is_greatest) {
  return is_greatest ? Number<T>::least() : T(0);
}

// Edges by sender, those of one sender in their order: the edges of node v are the slots rows[v] to rows[v + 1] - 1. Edges of weight NaN are
// no edges here: what they lead to is marked afterwards.
template <class T>
struct Graph {
  int32_t nodes = 0;
  std::vector<int32_t> rows;
  const int32_t *heads = nullptr, *order = nullptr;  // the number of each slot's edge; nullptr: its own
  const T *weights = nullptr, *given = nullptr;
  std::vector<int32_t> own_heads, own_order;
  std::vector<T> own_weights;
  bool has_negative = false, has_nan = false;

  void make(const Paths& asked, int64_t number) {
    const int64_t edges = asked.edges;
    const auto input = [&](int i) { return static_cast<const int32_t*>(asked.inputs[i]) + asked.batch.place(static_cast<size_t>(i), number) * edges; };
    const int32_t *const senders = input(Paths::kSenders), *const receivers = input(Paths::kReceivers);
    const auto is_node = [&](int32_t v) { return static_cast<uint32_t>(v) < static_cast<uint32_t>(nodes); };
    nodes = static_cast<int32_t>(asked.nodes);
    given = static_cast<const T*>(asked.inputs[Paths::kWeights]) + asked.batch.place(Paths::kWeights, number) * edges;
    bool is_ready = true, negative = false, nan = false;  // without branches this takes next to no time
    for (int64_t k = 0; k < edges; ++k) is_ready &= is_node(senders[k]) & is_node(receivers[k]) & (k == 0 || senders[k - 1] <= senders[k]);
    for (int64_t k = 0; k < edges; ++k) negative |= given[k] < 0, nan |= given[k] != given[k];
    has_negative = negative, has_nan = nan;
    rows.assign(static_cast<size_t>(nodes) + 1, 0);
    heads = receivers, weights = given;
    if (is_ready) {
      int32_t v = 0;
      for (int64_t k = 0; k < edges; ++k)
        while (v < senders[k]) rows[static_cast<size_t>(++v)] = static_cast<int32_t>(k);
      while (v < nodes) rows[static_cast<size_t>(++v)] = static_cast<int32_t>(edges);
    } else {
      const auto is_edge = [&](int64_t k) { return is_node(senders[k]) && is_node(receivers[k]); };
      for (int64_t k = 0; k < edges; ++k)
        if (is_edge(k)) ++rows[static_cast<size_t>(senders[k]) + 1];
      for (size_t v = 0; v < static_cast<size_t>(nodes); ++v) rows[v + 1] += rows[v];
      own_heads.resize(static_cast<size_t>(rows.back())), own_order.resize(own_heads.size());
      std::vector<int32_t> next(rows);
      for (int64_t k = 0; k < edges; ++k)
        if (is_edge(k)) {
          const size_t slot = static_cast<size_t>(next[static_cast<size_t>(senders[k])]++);
          own_heads[slot] = receivers[k], own_order[slot] = static_cast<int32_t>(k);
        }
      heads = own_heads.data(), order = own_order.data();
    }
    if (is_ready && !nan) return;
    own_weights.resize(static_cast<size_t>(rows.back()));
    for (size_t slot = 0; slot < own_weights.size(); ++slot) {
      const T w = given[edge(static_cast<int32_t>(slot))];
      own_weights[slot] = w != w ? Number<T>::none() : w;
    }
    weights = own_weights.data();
  }
  int32_t row(int32_t v) const { return rows[static_cast<size_t>(v)]; }
  int32_t edge(int32_t slot) const { return order ? order[slot] : slot; }
};

// A heap of which no entry is less than the last one that it gave: an entry lies in the bucket of the highest bit in which it differs
// from that one, so that it moves at most as often as a key has bits. Entries of one key come in any order.
template <class T>
class RadixHeap {
 public:
  using Key = typename Number<T>::Key;
  using Entry = typename Number<T>::Entry;
  void clear() {
    for (auto& bucket : buckets_) bucket.clear();
    last_ = 0;
  }
  void push(Key key, int32_t node) { bucket(key).push_back(Entry(key) << 32 | static_cast<uint32_t>(node)); }
  // The next entry for which is_live(key, node); false where there is none.
  template <class Live>
  bool pop(Key& key, int32_t& node, const Live& is_live) {
    while (buckets_[0].empty()) {
      size_t i = 1;
      while (i <= kBits && buckets_[i].empty()) ++i;
      if (i > kBits) return false;
      std::vector<Entry>& from = buckets_[i];
      size_t live = 0;
      Key least = ~Key(0);
      for (const Entry e : from)
        if (is_live(static_cast<Key>(e >> 32), static_cast<int32_t>(static_cast<uint32_t>(e)))) from[live++] = e, least = std::min(least, static_cast<Key>(e >> 32));
      from.resize(live);
      if (live == 0) continue;
      last_ = least;
      for (const Entry e : from) bucket(static_cast<Key>(e >> 32)).push_back(e);
      from.clear();
    }
    const Entry e = buckets_[0].back();
    buckets_[0].pop_back();
    key = static_cast<Key>(e >> 32), node = static_cast<int32_t>(static_cast<uint32_t>(e));
    return true;
  }

 private:
  static constexpr size_t kBits = 8 * sizeof(T);
  std::vector<Entry>& bucket(Key key) { return buckets_[key == last_ ? 0 : 64 - static_cast<size_t>(__builtin_clzll(key ^ last_))]; }
  std::vector<Entry> buckets_[kBits + 1];
  Key last_ = 0;
};

// The search from one source after another; memory is kept.
template <class T, bool kGreatest>
class Search {
 public:
  using Key = typename Number<T>::Key;

  // is_target may be nullptr; else it has `targets` nodes.
  void run(const Graph<T>& g, int32_t source, const std::vector<char>* is_target, int64_t targets, T* values, int32_t* last) {
    graph_ = &g, source_ = source, values_ = values, last_ = last;
    std::fill_n(values, g.nodes, kNoPath), std::fill_n(last, g.nodes, kNone);
    if (source < 0 || source >= g.nodes) return;
    if (!kGreatest && g.has_negative) by_rounds(), settle();
    else by_heap(g.has_nan ? nullptr : is_target, targets);  // beside NaN it is not known what is farther
    for (int32_t v = 0; g.order && v < g.nodes; ++v)
      if (last[v] != kNone) last[v] = g.order[last[v]];
    if (g.has_nan) mark_nan();
  }

 private:
  static constexpr T kNoPath = Number<T>::none();
  struct Node {
    Key key;
    int32_t hops, last;
  };

  static bool is_endless(T value) { return !kGreatest && value == Number<T>::least(); }
  static bool is_endless(const Sum<T>& sum) { return is_endless(sum.value); }
  static bool is_none(T value) { return value == kNoPath; }
  static bool is_none(const Sum<T>& sum) { return sum.value == kNoPath; }
  T after(T value, int32_t slot) const { return joined<T, kGreatest>(value, graph_->weights[slot]); }
  Sum<T> after(const Sum<T>& sum, int32_t slot) const {
    const T weight = graph_->weights[slot];
    return sum.plus(weight, 2 * std::numeric_limits<T>::epsilon() * std::max(std::abs(weight), floor_));
  }

  // Dijkstra.
  void by_heap(const std::vector<char>* is_target, int64_t targets) {
    const Graph<T>& g = *graph_;
    const Key top = Number<T>::key(kNoPath);
    nodes_.assign(static_cast<size_t>(g.nodes), Node{top, 0, kNone});
    heap_.clear();
    Node* const nodes = nodes_.data();
    const auto is_live = [nodes](Key key, int32_t v) { return nodes[v].key == key; };
    Key key = Number<T>::key(start<T>(kGreatest)), limit = top;
    nodes[source_].key = key;
    heap_.push(key, source_);
    bool is_flat = false;  // some best path has an edge that changes nothing: edges are counted afterwards
    for (int32_t u; heap_.pop(key, u, is_live);) {
      if (nodes[u].key != key) continue;
      if (key > limit) break;
      if (is_target && (*is_target)[static_cast<size_t>(u)] && --targets == 0) limit = key;
      const T value = Number<T>::value(key);
      const int32_t hops = nodes[u].hops + 1;
      for (int32_t slot = g.row(u); slot < g.row(u + 1); ++slot) {
        const int32_t v = g.heads[slot];
        const Key arriving = Number<T>::key(joined<T, kGreatest>(value, g.weights[slot]));
        Node& node = nodes[v];
        if (arriving > node.key || arriving == top) continue;
        is_flat |= arriving == key;
        if (arriving < node.key) {
          node = {arriving, hops, slot};
          heap_.push(arriving, v);
        } else if (hops < node.hops || (hops == node.hops && slot < node.last)) {
          node.hops = hops, node.last = slot;
        }
      }
    }
    for (int32_t v = 0; v < g.nodes; ++v)
      if (nodes[v].key <= limit) values_[v] = Number<T>::value(nodes[v].key), last_[v] = nodes[v].last;
    if (is_flat) grow(values_);
  }

  // Negative weights. Rounds of Dijkstra along the other edges, then one step along negative ones from the nodes that were reached: a few negative
  // edges cost little more than none. What takes more rounds begins anew with a queue, for which these values are no good beginning.
  void by_rounds() {
    const Graph<T>& g = *graph_;
    values_[source_] = 0;
    heap_.clear();
    heap_.push(Number<T>::key(T(0)), source_);
    const auto is_live = [this](Key key, int32_t v) { return Number<T>::key(values_[v]) == key; };
    const auto step = [&](int32_t u, bool is_negative) {
      for (int32_t slot = g.row(u); slot < g.row(u + 1); ++slot) {
        const T arriving = joined<T, kGreatest>(values_[u], g.weights[slot]);
        const int32_t v = g.heads[slot];
        if ((g.weights[slot] < 0) != is_negative || !(arriving < values_[v])) continue;
        values_[v] = arriving;
        heap_.push(Number<T>::key(arriving), v);
        if (is_negative) stack_.push_back(v);
      }
    };
    stack_.assign(1, source_);
    for (size_t left = 3 * static_cast<size_t>(g.nodes); !stack_.empty();) {
      if (left == 0) return by_queue(values_);
      queue_.clear();
      Key key;
      for (int32_t u; heap_.pop(key, u, is_live);)
        if (is_live(key, u)) queue_.push_back(u), step(u, false);
      left -= std::min(left, queue_.size());
      heap_.clear(), stack_.clear();
      for (int32_t u : queue_) step(u, true);
    }
    grow(values_);
  }

  // Bellman, Ford and Moore: nodes whose value became better wait in a queue. Every so many turns a cycle is looked for among the nodes
  // before; nodes that one leads to are better without end.
  template <class V>
  void by_queue(V* values) {
    const Graph<T>& g = *graph_;
    const size_t n = static_cast<size_t>(g.nodes);
    std::fill_n(values, n, V{kNoPath});
    before_.assign(n, kNone), waits_.assign(n, 0), queue_.resize(n);
    size_t head = 0, waiting = 0, turns = 0;
    const auto put = [&](int32_t v) {
      if (waits_[static_cast<size_t>(v)]) return;
      waits_[static_cast<size_t>(v)] = 1;
      queue_[(head + waiting++) % n] = v;
    };
    values[source_] = V{};
    put(source_);
    while (waiting) {
      const int32_t u = queue_[head];
      head = (head + 1) % n, --waiting;
      waits_[static_cast<size_t>(u)] = 0;
      if (is_endless(values[u])) continue;
      for (int32_t slot = g.row(u); slot < g.row(u + 1); ++slot) {
        const V arriving = after(values[u], slot);
        const int32_t v = g.heads[slot];
        if (!(arriving < values[v])) continue;
        if (is_endless(arriving)) {
          spread(values, v);
          if (is_endless(values[u])) break;
          continue;
        }
        values[v] = arriving, before_[static_cast<size_t>(v)] = u;
        put(v);
      }
      if (++turns % n == 0) end_cycles(values);
    }
    grow(values);
  }

  template <class V>
  void end_cycles(V* values) {
    marks_.assign(static_cast<size_t>(graph_->nodes), 0);
    for (int32_t v = 0; v < graph_->nodes; ++v) {
      int32_t u = v;
      for (; u != kNone && !marks_[static_cast<size_t>(u)]; u = before_[static_cast<size_t>(u)]) marks_[static_cast<size_t>(u)] = v + 1;
      if (u != kNone && marks_[static_cast<size_t>(u)] == v + 1 && !is_endless(values[u])) spread(values, u);
    }
  }

  // Values without end from here.
  template <class V>
  void spread(V* values, int32_t from) {
    values[from] = V{Number<T>::least()};
    stack_.assign(1, from);
    flood([&](int32_t u) { before_[static_cast<size_t>(u)] = kNone; },
          [&](int32_t v) {
            const bool is_new = !is_endless(values[v]);
            values[v] = V{Number<T>::least()};
            return is_new;
          });
  }

  // Visits the nodes on the stack, and whatever an edge leads to for which is_new(node).
  template <class Visit, class New>
  void flood(const Visit& visit, const New& is_new) {
    while (!stack_.empty()) {
      const int32_t u = stack_.back();
      stack_.pop_back();
      visit(u);
      for (int32_t slot = graph_->row(u); slot < graph_->row(u + 1); ++slot)
        if (graph_->weights[slot] != kNoPath && is_new(graph_->heads[slot])) stack_.push_back(graph_->heads[slot]);
    }
  }

  // The tree of fewest edges, given the values: breadth first over edges on best paths.
  template <class V>
  void grow(const V* values) {
    const Graph<T>& g = *graph_;
    hops_.assign(static_cast<size_t>(g.nodes), kNone);
    queue_.clear();
    std::fill_n(last_, g.nodes, kNone);
    if (is_endless(values[source_])) return;
    hops_[static_cast<size_t>(source_)] = 0;
    queue_.push_back(source_);
    for (size_t i = 0; i < queue_.size(); ++i) {
      const int32_t u = queue_[i], hops = hops_[static_cast<size_t>(u)] + 1;
      for (int32_t slot = g.row(u); slot < g.row(u + 1); ++slot) {
        const int32_t v = g.heads[slot];
        int32_t& known = hops_[static_cast<size_t>(v)];
        if (is_none(values[v]) || is_endless(values[v]) || !(after(values[u], slot) == values[v])) continue;
        if (known == kNone) known = hops, last_[v] = slot, queue_.push_back(v);
        else if (known == hops && slot < last_[v]) last_[v] = slot;
      }
    }
  }

  // Where rounding alone made a cycle better, its nodes and what they lead to have no value yet that is the sum of a path. They are searched
  // again by sums of twice the digits, in which cycles of weight 0 up to rounding are positive.
  void settle() {
    if constexpr (Number<T>::kFloat && !kGreatest) {
      const Graph<T>& g = *graph_;
      const size_t n = static_cast<size_t>(g.nodes);
      marks_.assign(n, 0);
      for (int32_t v = 0; v < g.nodes; ++v)
        if (is_none(values_[v]) ? false : v == source_ ? values_[v] != 0 : hops_[static_cast<size_t>(v)] == kNone) marks_[static_cast<size_t>(v)] = 1, stack_.push_back(v);
      if (stack_.empty()) return;
      flood([](int32_t) {}, [&](int32_t v) { return !std::exchange(marks_[static_cast<size_t>(v)], 1); });
      const std::vector<int32_t> searched(marks_), kept(last_, last_ + n);
      floor_ = 0;
      for (int32_t slot = 0; slot < g.row(g.nodes); ++slot)
        if (std::isfinite(g.weights[slot])) floor_ = std::max(floor_, std::abs(g.weights[slot]));
      floor_ = std::min(floor_, T(1));
      sums_.resize(n);
      by_queue(sums_.data());
      for (size_t v = 0; v < n; ++v)
        if (searched[v] && !is_none(sums_[v])) values_[v] = Number<T>::least();
      values_[source_] = is_endless(sums_[static_cast<size_t>(source_)]) ? Number<T>::least() : T(0);
      for (const int32_t u : queue_)  // from the source on
        for (int32_t slot = g.row(u); slot < g.row(u + 1); ++slot) {
          const int32_t v = g.heads[slot];
          if (searched[static_cast<size_t>(v)] && last_[v] == slot) values_[v] = after(values_[u], slot);
        }
      for (size_t v = 0; v < n; ++v)
        if (!searched[v]) last_[v] = kept[v];
    }
  }

  // NaN, and no last edge, where an edge of weight NaN leads.
  void mark_nan() {
    if constexpr (Number<T>::kFloat) {
      const Graph<T>& g = *graph_;
      const auto is_nan = [&](int32_t slot) { return g.given[g.edge(slot)] != g.given[g.edge(slot)]; };
      const auto mark = [&](int32_t v) {
        if (values_[v] != values_[v]) return;
        values_[v] = std::numeric_limits<T>::quiet_NaN(), last_[v] = kNone;
        stack_.push_back(v);
      };
      stack_.clear();
      for (int32_t u = 0; u < g.nodes; ++u)
        for (int32_t slot = g.row(u); values_[u] != kNoPath && slot < g.row(u + 1); ++slot)
          if (is_nan(slot)) mark(g.heads[slot]);
      while (!stack_.empty()) {
        const int32_t u = stack_.back();
        stack_.pop_back();
        for (int32_t slot = g.row(u); slot < g.row(u + 1); ++slot)
          if (g.weights[slot] != kNoPath || is_nan(slot)) mark(g.heads[slot]);
      }
    }
  }

  const Graph<T>* graph_ = nullptr;
  int32_t source_ = 0, *last_ = nullptr;
  T* values_ = nullptr;
  std::vector<Node> nodes_;
  RadixHeap<T> heap_;
  std::vector<int32_t> before_, queue_, marks_, hops_, stack_;
  std::vector<char> waits_;
  std::vector<Sum<T>> sums_;
  T floor_ = 0;  // the least weight by which allowances are measured
};

template <class T, bool kGreatest>
void search(Pool& pool, const Paths& asked) {
  const int64_t batch = asked.batch.count();
  bool is_one = true;  // graph for all of the batch
  for (int i : {Paths::kSenders, Paths::kReceivers, Paths::kWeights})
    for (int64_t stride : asked.batch.strides[static_cast<size_t>(i)]) is_one &= stride == 0;
  std::vector<Graph<T>> graphs(static_cast<size_t>(is_one ? std::min<int64_t>(batch, 1) : batch));
  parallel(pool, static_cast<int64_t>(graphs.size()), [&](int64_t i) { graphs[static_cast<size_t>(i)].make(asked, i); });
  // Searches in small graphs share a task.
  const int64_t count = batch * asked.sources, work = asked.nodes + asked.edges + 1;
  const int64_t each = std::max<int64_t>(1, std::min<int64_t>(200000 / work, count / (4 * pool.threads() + 1)));
  parallel(pool, (count + each - 1) / each, [&](int64_t task) {
    Search<T, kGreatest> found;
    std::vector<char> is_target;
    int64_t targets = 0, known = -1;
    for (int64_t i = task * each; i < std::min(count, (task + 1) * each); ++i) {
      const int64_t number = i / asked.sources;
      const auto input = [&](int k, int64_t size) { return static_cast<const int32_t*>(asked.inputs[k]) + asked.batch.place(k, number) * size; };
      if (asked.targets && number != known) {
        is_target.assign(static_cast<size_t>(asked.nodes), 0), targets = 0, known = number;
        const int32_t* const given = input(Paths::kTargets, asked.targets);
        for (int64_t k = 0; k < asked.targets; ++k)
          if (given[k] >= 0 && given[k] < asked.nodes && !is_target[static_cast<size_t>(given[k])]) is_target[static_cast<size_t>(given[k])] = 1, ++targets;
      }
      const int32_t source = input(Paths::kSources, asked.sources)[i % asked.sources];
      found.run(graphs[static_cast<size_t>(is_one ? 0 : number)], source, targets ? &is_target : nullptr, targets, static_cast<T*>(asked.values) + i * asked.nodes, asked.last + i * asked.nodes);
    }
  });
}

template <class T>
void by_algebra(Pool& pool, const Paths& asked) {
  asked.algebra == Algebra::kMinMax ? search<T, true>(pool, asked) : search<T, false>(pool, asked);
}

// A tree from its leaves: first the nodes that no edge leaves, then those that are leaves without these. The ways of some nodes may turn in a
// circle, as `last` is no tree: these are left out.
struct Tree {
  const int32_t* last;
  std::vector<int32_t> before, order;  // the node before each; the number of nodes where the tree begins

  // False where edges lead out of the graph.
  __attribute__((noinline)) bool make(const int32_t* given, const int32_t* senders, int64_t edges, int32_t nodes) {
    const size_t n = static_cast<size_t>(nodes);
    last = given, before.resize(n), order.resize(n + 1), after_.assign(n + 1, 0);
    bool bad = false;
    for (size_t v = 0; v < n; ++v) {
      const bool is_edge = last[v] < edges;
      const int32_t u = last[v] < 0 ? nodes : is_edge ? senders[last[v]] : kNone;
      bad |= static_cast<uint32_t>(u) > static_cast<uint32_t>(nodes) || (u == nodes && last[v] >= 0);
      before[v] = u;
    }
    if (bad) return false;
    // No branch, which would be guessed wrongly at every second node.
    after_[n] = 1;
    for (const int32_t u : before) ++after_[static_cast<size_t>(u)];
    size_t found = 0;
    for (size_t v = 0; v < n; ++v) order[found] = static_cast<int32_t>(v), found += after_[v] == 0;
    for (size_t i = 0; i < found; ++i) {
      const int32_t u = before[static_cast<size_t>(order[i])];
      order[found] = u, found += --after_[static_cast<size_t>(u)] == 0;
    }
    order.resize(found);
    if (found != n) leave_out(n);
    return true;
  }

 private:
  void leave_out(size_t n) {
    std::vector<char> is_lost(n, 1);
    is_lost.push_back(0);
    for (size_t i = order.size(); i-- > 0;) is_lost[static_cast<size_t>(order[i])] = is_lost[static_cast<size_t>(before[static_cast<size_t>(order[i])])];
    order.erase(std::remove_if(order.begin(), order.end(), [&](int32_t v) { return is_lost[static_cast<size_t>(v)] != 0; }), order.end());
  }
  std::vector<int32_t> after_;  // how many nodes are after each, of those not yet found
};

template <class T>
void along(const Tree& tree, const T* x, T* result) {
  const int32_t nodes = static_cast<int32_t>(tree.before.size());
  if (tree.order.size() != tree.before.size()) std::fill_n(result, nodes, T(0));
  for (size_t i = tree.order.size(); i-- > 0;) {
    const int32_t v = tree.order[i], u = tree.before[static_cast<size_t>(v)];
    result[v] = u == nodes ? T(0) : result[u] + x[tree.last[v]];
  }
}

// Adds to `result`. `sums` is memory.
template <class T, class To>
void onto(const Tree& tree, const T* x, std::vector<double>& sums, To* result) {
  const size_t n = tree.before.size();
  sums.resize(n + 1), sums[n] = 0;
  std::copy(x, x + n, sums.begin());
  for (const int32_t v : tree.order) sums[static_cast<size_t>(tree.before[static_cast<size_t>(v)])] += sums[static_cast<size_t>(v)];
  const auto add = [&](int32_t v) {
    if (tree.last[v] >= 0) result[tree.last[v]] += static_cast<To>(sums[static_cast<size_t>(v)]);
  };
  if (tree.order.size() == n)
    for (int32_t v = 0; v < static_cast<int32_t>(n); ++v) add(v);  // in the order of memory
  else
    for (const int32_t v : tree.order) add(v);
}

template <class T>
bool sums(Pool& pool, const TreeSums& asked) {
  const int64_t batch = asked.batch.count(), sources = asked.sources, nodes = asked.nodes, edges = asked.edges;
  std::atomic<bool> is_sound{true};
  T* const result = static_cast<T*>(asked.result);
  // Onto edges as many partial sums whatever the number of threads, so that rounding is the same; none where there is one tree.
  const int64_t parts = asked.onto ? std::min<int64_t>(sources, 4) : sources;
  const bool is_partial = asked.onto && parts != 1;
  std::vector<double> partial(is_partial ? static_cast<size_t>(batch * std::max<int64_t>(parts, 1) * edges) : 0, 0.0);
  // Small trees share a task, and its memory.
  const int64_t count = batch * parts, each = std::max<int64_t>(1, std::min<int64_t>(20000 / (nodes + 1), count / (4 * pool.threads() + 1)));
  parallel(pool, (count + each - 1) / each, [&](int64_t task) {
    Tree tree;
    std::vector<double> memory;
    for (int64_t i = task * each; i < std::min(count, (task + 1) * each); ++i) {
      const int64_t number = i / parts, part = i % parts;
      const auto place = [&](int k) { return asked.batch.place(static_cast<size_t>(k), number); };
      const int32_t* const last = static_cast<const int32_t*>(asked.inputs[TreeSums::kLast]) + place(TreeSums::kLast) * sources * nodes;
      const int32_t* const senders = static_cast<const int32_t*>(asked.inputs[TreeSums::kSenders]) + place(TreeSums::kSenders) * edges;
      const T* const x = static_cast<const T*>(asked.inputs[TreeSums::kX]) + place(TreeSums::kX) * (asked.onto ? sources * nodes : edges);
      if (asked.onto && !is_partial) std::fill_n(result + i * edges, edges, T(0));
      for (int64_t s = part * sources / parts; s < (part + 1) * sources / parts; ++s) {
        if (!tree.make(last + s * nodes, senders, edges, static_cast<int32_t>(nodes))) is_sound = false;
        else if (!asked.onto) along(tree, x, result + i * nodes);
        else if (is_partial) onto(tree, x + s * nodes, memory, partial.data() + i * edges);
        else onto(tree, x + s * nodes, memory, result + i * edges);
      }
    }
  });
  for (int64_t i = 0; is_partial && i < batch * edges; ++i) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) total += partial[static_cast<size_t>((i / edges * parts + part) * edges + i % edges)];
    result[i] = static_cast<T>(total);
  }
  return is_sound;
}

constexpr int64_t kMost = (int64_t{1} << 31) - 1;

}  // namespace

std::string run_paths(Pool& pool, const Paths& asked) {
  if (asked.nodes < 0 || asked.nodes >= kMost || asked.edges < 0 || asked.edges >= kMost) return "too many nodes or edges";
  if (asked.algebra != Algebra::kMinPlus && asked.algebra != Algebra::kMinMax) return "malformed attributes";
  asked.type == Type::kF32 ? by_algebra<float>(pool, asked) : asked.type == Type::kF64 ? by_algebra<double>(pool, asked) : by_algebra<int32_t>(pool, asked);
  return "";
}

std::string run_tree_sums(Pool& pool, const TreeSums& asked) {
  if (asked.nodes < 0 || asked.nodes >= kMost || asked.edges < 0 || asked.edges >= kMost) return "too many nodes or edges";
  return (asked.type == Type::kF32 ? sums<float>(pool, asked) : sums<double>(pool, asked)) ? "" : "last edges or senders lead out of the graph";
}

}  // namespace tropical
