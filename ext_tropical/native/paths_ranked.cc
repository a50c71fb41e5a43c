// The k shortest paths without loops: Yen's algorithm with Lawler's classes, which do not overlap. A class has all paths that begin with the
// same edges and go on by none of some edges. Its best path is searched only when its lower bound is the least of all.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "paths.h"

namespace tropical {
namespace {

constexpr int32_t kNone = -1;
constexpr double kInf = std::numeric_limits<double>::infinity();

size_t at(int64_t i) { return static_cast<size_t>(i); }

// An edge that some path to the target may take. Its excess is what a shortest path to the target gains by that edge; that of a path is the sum of
// those of its edges, and orders paths as their lengths do.
struct Edge {
  int32_t head, number;
  double weight, excess;
};

// A class, with its best path once that is found.
struct Class {
  double excess;  // of the best path; before it is found no more than that
  bool is_found;
  int64_t turn;                 // in which it was made; of equal classes the first is taken first
  int32_t parent, kept;         // its paths begin with so many edges of a path that was found before
  double kept_excess;           // of these edges
  std::vector<int32_t> barred;  // edges that do not come next
  std::vector<int32_t> found;   // the edges after those that are kept
};

bool comes_later(const Class& a, const Class& b) {
  if (a.excess != b.excess) return a.excess > b.excess;
  return a.is_found != b.is_found ? b.is_found : a.turn > b.turn;
}

// Marks of nodes or edges, which all go at once.
class Marks {
 public:
  explicit Marks(size_t count) : marks_(count, 0) {}
  void clear() { ++now_; }
  void set(int32_t i) { marks_[at(i)] = now_; }
  bool has(int32_t i) const { return marks_[at(i)] == now_; }

 private:
  std::vector<int64_t> marks_;
  int64_t now_ = 1;
};

class Ranking {
 public:
  // `distances` are those to the target, and `next` is the number of the first edge of a shortest path to it.
  template <class T>
  Ranking(const RankedPaths& asked, const T* distances, const int32_t* next)
      : asked_(asked), rows_(at(asked.nodes) + 1, 0), after_(at(asked.nodes), kNone), is_passed_(at(asked.nodes)), is_blocked_(at(asked.nodes)), is_reached_(at(asked.nodes)), is_barred_(0) {
    const T* const weights = static_cast<const T*>(asked.weights);
    const std::vector<double> rest = rests(weights, distances, next);
    const auto is_node = [&](int32_t v) { return v >= 0 && v < asked.nodes; };
    const auto is_edge = [&](int64_t e) {
      const int32_t u = asked.senders[e], v = asked.receivers[e];
      return is_node(u) && is_node(v) && u != v && std::isfinite(weights[e]) && std::isfinite(rest[at(u)]) && std::isfinite(rest[at(v)]);
    };
    for (int64_t e = 0; e < asked.edges; ++e)
      if (is_edge(e)) ++rows_[at(asked.senders[e]) + 1];
    std::partial_sum(rows_.begin(), rows_.end(), rows_.begin());
    edges_.resize(at(rows_.back()));
    std::vector<int32_t> free(rows_);
    for (int64_t e = 0; e < asked.edges; ++e) {
      if (!is_edge(e)) continue;
      const int32_t u = asked.senders[e], v = asked.receivers[e], slot = free[at(u)]++;
      const double weight = static_cast<double>(weights[e]);
      edges_[at(slot)] = {v, static_cast<int32_t>(e), weight, std::max(0.0, weight + rest[at(v)] - rest[at(u)])};
      if (next[u] == e && u != asked.target) after_[at(u)] = slot;
    }
    is_barred_ = Marks(edges_.size());
    sums_.resize(at(asked.nodes)), before_.resize(at(asked.nodes));
  }

  void run() {
    if (asked_.source == asked_.target) {
      paths_.emplace_back();
    } else {
      is_passed_.set(source());
      offer({0, false, 0, kNone, 0, 0, {}, {}}, source());
      while (!classes_.empty() && static_cast<int64_t>(paths_.size()) < asked_.count) {
        std::pop_heap(classes_.begin(), classes_.end(), comes_later);
        Class next = std::move(classes_.back());
        classes_.pop_back();
        if (next.is_found) split(std::move(next));
        else if (search(next)) put(std::move(next));
      }
    }
    write();
  }

 private:
  int32_t source() const { return static_cast<int32_t>(asked_.source); }

  // Sums along the shortest paths to the target, in more digits than those of the search.
  template <class T>
  std::vector<double> rests(const T* weights, const T* distances, const int32_t* next) const {
    std::vector<double> rest(at(asked_.nodes), kInf);
    std::vector<int32_t> way;
    rest[at(asked_.target)] = 0;
    for (int32_t v = 0; v < asked_.nodes; ++v) {
      int32_t u = v;
      for (; std::isfinite(distances[u]) && rest[at(u)] == kInf && next[u] != kNone; u = asked_.receivers[next[u]]) way.push_back(u);
      for (; !way.empty(); u = way.back(), way.pop_back()) rest[at(way.back())] = static_cast<double>(weights[next[way.back()]]) + rest[at(u)];
    }
    return rest;
  }

  void put(Class&& one) {
    classes_.push_back(std::move(one));
    std::push_heap(classes_.begin(), classes_.end(), comes_later);
  }

  void mark_barred(const Class& one) {
    is_barred_.clear();
    for (const int32_t slot : one.barred) is_barred_.set(slot);
  }
  // Whether an edge may come right after the kept ones.
  bool is_open(int32_t slot) const { return !is_barred_.has(slot) && !is_passed_.has(edges_[at(slot)].head); }

  // Adds a class unless it is empty at first sight; `node` is the last one that its paths share, and all of these are marked.
  void offer(Class one, int32_t node) {
    mark_barred(one);
    double least = kInf;
    for (int32_t slot = rows_[at(node)]; slot < rows_[at(node) + 1]; ++slot)
      if (is_open(slot)) least = std::min(least, edges_[at(slot)].excess);
    if (least == kInf) return;
    one.excess = one.kept_excess + least, one.turn = turn_++;
    put(std::move(one));
  }

  // The path of a class that was found, and the classes of the others of its paths: those that leave it after so many edges.
  void split(Class one) {
    std::vector<int32_t> path;
    if (one.kept) path.assign(paths_[at(one.parent)].begin(), paths_[at(one.parent)].begin() + one.kept);
    path.insert(path.end(), one.found.begin(), one.found.end());
    const int32_t number = static_cast<int32_t>(paths_.size());
    paths_.push_back(path);
    is_passed_.clear();
    int32_t node = source();
    double excess = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(path.size()); ++i) {
      is_passed_.set(node);
      if (i >= one.kept) {
        std::vector<int32_t> barred = i == one.kept ? std::move(one.barred) : std::vector<int32_t>();
        barred.push_back(path[at(i)]);
        offer({0, false, 0, number, i, excess, std::move(barred), {}}, node);
      }
      node = edges_[at(path[at(i)])].head, excess += edges_[at(path[at(i)])].excess;
    }
  }

  // Dijkstra by excess, from the last node that the paths share to the first node whose shortest path to the target passes none of the shared ones.
  // False where the class has no path.
  bool search(Class& one) {
    is_passed_.clear(), is_blocked_.clear(), is_reached_.clear();
    int32_t spur = source();
    for (int32_t i = 0; i < one.kept; ++i) {
      is_passed_.set(spur);
      spur = edges_[at(paths_[at(one.parent)][at(i)])].head;
    }
    is_passed_.set(spur);
    mark_barred(one);
    heap_.clear();
    const auto take = [&](double sum, int32_t slot) {
      const int32_t v = edges_[at(slot)].head;
      sum += edges_[at(slot)].excess;
      if (is_reached_.has(v) && sums_[at(v)] <= sum) return;
      is_reached_.set(v);
      sums_[at(v)] = sum, before_[at(v)] = slot;
      heap_.emplace_back(sum, v);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    };
    for (int32_t slot = rows_[at(spur)]; slot < rows_[at(spur) + 1]; ++slot)
      if (is_open(slot)) take(one.kept_excess, slot);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const auto [sum, u] = heap_.back();
      heap_.pop_back();
      if (sum > sums_[at(u)]) continue;
      if (is_clear(u)) {
        one.excess = sum, one.is_found = true;
        follow(u, spur, one.found);
        return true;
      }
      for (int32_t slot = rows_[at(u)]; slot < rows_[at(u) + 1]; ++slot)
        if (!is_passed_.has(edges_[at(slot)].head)) take(sum, slot);
    }
    return false;
  }

  // Whether the shortest path from a node passes none of the shared nodes.
  bool is_clear(int32_t node) {
    int32_t v = node;
    while (v != asked_.target && !is_passed_.has(v) && !is_blocked_.has(v)) v = edges_[at(after_[at(v)])].head;
    if (v == asked_.target) return true;
    for (int32_t u = node; u != v; u = edges_[at(after_[at(u)])].head) is_blocked_.set(u);
    return false;
  }

  // The edges from the spur over a node to the target.
  void follow(int32_t node, int32_t spur, std::vector<int32_t>& path) {
    path.clear();
    for (int32_t v = node; v != spur; v = tail(before_[at(v)])) path.push_back(before_[at(v)]);
    std::reverse(path.begin(), path.end());
    for (int32_t v = node; v != asked_.target; v = edges_[at(after_[at(v)])].head) path.push_back(after_[at(v)]);
  }
  int32_t tail(int32_t slot) const { return asked_.senders[edges_[at(slot)].number]; }

  void write() {
    struct Row {
      double length;
      std::vector<int32_t> numbers;
    };
    std::vector<Row> found;
    for (const std::vector<int32_t>& path : paths_) {
      Row row{0, {}};
      for (const int32_t slot : path) row.length += edges_[at(slot)].weight, row.numbers.push_back(edges_[at(slot)].number);
      found.push_back(std::move(row));
    }
    std::sort(found.begin(), found.end(), [](const Row& a, const Row& b) {
      if (a.length != b.length) return a.length < b.length;
      return a.numbers.size() != b.numbers.size() ? a.numbers.size() < b.numbers.size() : a.numbers < b.numbers;
    });
    for (size_t i = 0; i < found.size(); ++i) {
      asked_.lengths[i] = found[i].length;
      asked_.passed[i] = static_cast<int32_t>(found[i].numbers.size()) + 1;
      std::copy(found[i].numbers.begin(), found[i].numbers.end(), asked_.numbers + static_cast<int64_t>(i) * (asked_.nodes - 1));
    }
  }

  const RankedPaths& asked_;
  std::vector<int32_t> rows_;   // the edges of node v are the slots rows_[v] to rows_[v + 1] - 1
  std::vector<Edge> edges_;     // by sender
  std::vector<int32_t> after_;  // the slot of the first edge of the shortest path from each node
  std::vector<std::vector<int32_t>> paths_;
  std::vector<Class> classes_;  // a heap
  int64_t turn_ = 0;
  // Of one search.
  Marks is_passed_, is_blocked_, is_reached_, is_barred_;
  std::vector<double> sums_;
  std::vector<int32_t> before_;
  std::vector<std::pair<double, int32_t>> heap_;
};

template <class T>
std::string ranked(Pool& pool, const RankedPaths& asked) {
  // The search from the target, along the edges backwards.
  const int32_t start = static_cast<int32_t>(asked.target);
  std::vector<T> distances(at(asked.nodes));
  std::vector<int32_t> next(at(asked.nodes));
  Paths back{asked.type, Algebra::kMinPlus, asked.nodes, asked.edges, 1, 0, {asked.receivers, asked.senders, asked.weights, &start, nullptr}, distances.data(), next.data(), {}};
  back.batch.strides.resize(Paths::kInputs);
  const std::string problem = run_paths(pool, back);
  if (!problem.empty()) return problem;
  const double whole = static_cast<double>(distances[at(asked.source)]);
  if (std::isfinite(whole)) Ranking(asked, distances.data(), next.data()).run();
  else std::fill_n(asked.lengths, asked.count, whole);
  return "";
}

}  // namespace

std::string run_ranked_paths(Pool& pool, const RankedPaths& asked) {
  std::fill_n(asked.lengths, asked.count, kInf), std::fill_n(asked.passed, asked.count, 0);
  const auto is_node = [&](int64_t v) { return v >= 0 && v < asked.nodes; };
  if (asked.count == 0 || !is_node(asked.source) || !is_node(asked.target)) return "";
  return asked.type == Type::kF32 ? ranked<float>(pool, asked) : ranked<double>(pool, asked);
}

}  // namespace tropical
