// The best assignment: bounds, values left out, elimination, parts, and a choice on a variable, in turn.
#include "optimum.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "parts.h"
#include "sweeps.h"

namespace tropical {
namespace {
using namespace relaxation;

constexpr double kLimitGrows = 16;     // times, where sweeps leave out nothing
constexpr int kSweeps = 4;             // of a batch
constexpr int kSweepsOfALook = 4;      // one of which rounds
constexpr int kBatches = 40;
constexpr int kBatchesOfARound = 2;
constexpr double kLeast = 1e-3;        // of a score: less decides no more than the number of tables
constexpr int kBatchesInChoice = 2;    // of a part in which some variable was chosen
constexpr double kMany = 0.75;         // of the values: where fewer are left, the rest is left out at once
constexpr double kWorthwhile = 0.15;   // of the gap: a batch that closes less is the last one
constexpr double kPassesOfSweep = 12;  // entries that an elimination passes in the time of a double sweep, for each entry
constexpr double kWorkOfCandidate = 0.05;  // a candidate of an elimination by a plan, in entries passed here
constexpr double kWorthPlanning = 5e6;     // entries passed in the time that a plan takes to be made
constexpr int64_t kLarge = 20000;          // entries of a part whose elimination is not looked at while something else is left to try
constexpr int kDeepest = 200;          // parts of parts
constexpr int kRounds = 30;            // of sets that may be persistent
constexpr double kShareOfGap = 0.25;   // of its mean over the variables: where bound and score differ by more, a variable is uncertain

// Of a part, where only assignments better than a cutoff are asked for.
struct Solution {
  std::vector<int32_t> labels;
  bool is_found = false;  // whether there are labels, which are better than the cutoff
  double score = -kInf;   // of the labels
  double upper = -kInf;   // no assignment is better than this and than the cutoff
};

using Values = std::vector<std::vector<int32_t>>;  // of each variable

class Search {
 public:
  Search(const OptimumAsked& asked, const Part& whole) : asked_(asked), most_work_(asked.limits[kWork]) {
    whole_.sizes = whole.sizes;
    for (const Factor& f : whole.factors) {
      whole_.factors.emplace_back();
      whole_.factors.back().variables = f.variables;
    }
  }

  // The best assignment of a part, if it is better than `cutoff`. Variables of at most `most` candidates are eliminated before the first sweeps.
  Solution solve(Part part, double cutoff, double most) {
    const std::vector<int64_t> sizes = part.sizes;
    Eliminated found = eliminated(std::move(part), most);
    work_ += found.candidates;
    Part& core = found.core.part;
    Solution solution;
    if (core.is_impossible) return solution;
    if (core.count() > 0) {
      solution = bounded(std::move(core), cutoff, most);
    } else {
      solution.score = core.constant;
      solution.upper = tightened(core.constant + core.slack);
      solution.is_found = core.constant > cutoff;
    }
    if (!solution.is_found) return solution;
    std::vector<int32_t> labels(sizes.size());
    found.core.lift(solution.labels, labels);
    follow(found.steps, sizes, labels);
    solution.labels = std::move(labels);
    return solution;
  }

  double work() const { return work_; }

 private:
  double tightened(double upper) const { return asked_.is_integral ? std::floor(upper) : upper; }
  bool is_closed(double lower, double upper) const { return tightened(upper) - lower <= (asked_.is_integral ? 0 : asked_.least / 20); }
  double limit(OptimumLimit which) const { return asked_.limits[which]; }
  bool is_over() const { return work_ > most_work_ || depth_ > kDeepest; }

  // Takes no more time than an elimination of the whole, which is so much faster for each candidate.
  void limit_by_elimination() {
    const double cost = cost_of_elimination(whole_, limit(kOfWhole), limit(kAtOnce));
    if (cost < kInf) most_work_ = std::min(most_work_, work_ + kWorthPlanning + kWorkOfCandidate * cost);
  }

  Solution bounded(Part part, double cutoff, double most) {
    ++depth_;
    Solution solution = reduced(std::move(part), cutoff, most);
    --depth_;
    return solution;
  }

  // A part in the form of sweeps.
  struct Relaxed {
    Graph graph;
    std::vector<double> messages, uppers;
    std::vector<int32_t> labels;
    Sweeps sweeps;
    explicit Relaxed(const Part& part)
        : messages(put(part, graph)),
          uppers(graph.own.size(), kInf),
          labels(part.labels.empty() ? std::vector<int32_t>(part.count(), -1) : part.labels),
          sweeps(graph, messages.data(), labels.data(), uppers.data()) {}
  };

  // Sweeps, and what follows from them.
  Solution reduced(Part part, double cutoff, double most) {
    const bool is_whole = std::exchange(is_first_, false);
    auto relaxed = std::make_unique<Relaxed>(part);
    Sweeps& sweeps = relaxed->sweeps;
    Solution solution;
    if (!sweeps.propagate()) return solution;
    sweeps.mark();
    solution.upper = tightened(improve(sweeps, part, cutoff, relaxed->uppers, choices_ > 0 ? kBatchesInChoice : kBatches));
    sweeps.unmark();
    solution.score = sweeps.lower();
    solution.is_found = solution.score > cutoff;
    const double known = std::max(solution.score, cutoff);
    if (solution.score > -kInf) part.labels = relaxed->labels;
    if (solution.is_found) solution.labels = relaxed->labels;
    if (is_closed(known, solution.upper)) return solution;

    keep(relaxed->messages, part);
    for (double& x : relaxed->uppers) x = tightened(x + part.slack);
    Values kept = values_above(known, part, relaxed->graph, relaxed->uppers, solution.is_found);
    if (has_empty(kept)) {  // no assignment is better
      solution.upper = known;
      return solution;
    }
    const bool is_large = part.entries() > kLarge;
    bool cheap = !is_large && is_cheap(part);
    if (is_whole && !cheap && !is_large) limit_by_elimination();
    const double all = static_cast<double>(relaxed->uppers.size());
    const double slack = part.slack;
    if (!cheap && !part.labels.empty() && count_of(kept) > kMany * all && !is_over()) {
      const std::vector<char> stays = persistent(part, sweeps, solution.upper - known);
      for (int64_t v = 0; v < part.count(); ++v)
        if (stays[v]) kept[v] = {part.labels[v]};
    }
    if (is_large && count_of(kept) == all) cheap = is_cheap(part);
    Solution found;
    const double missed = known + (part.slack - slack);  // what is better by more is still there, with the persistent labels
    if (count_of(kept) < all) {
      Subset rest = restricted(part, kept);
      relaxed.reset();
      part = Part();
      found = by_parts(std::move(rest), single(kept), known, most);
    } else if (is_over() && !cheap) {
      for (int32_t v : part.origin) asked_.undecided[v] = 1;
      return solution;
    } else if (cheap || most >= limit(kLast) || choices_ > 0) {
      const bool fair = cheap || cost_of_elimination(part, std::min(limit(kCandidates), limit(kFair) * passes(part))) < kInf;
      found = fair ? solve(std::move(part), known, kInf) : by_choice(part, relaxed->graph, relaxed->uppers, known);
    } else {
      relaxed.reset();
      found = solve(std::move(part), known, most * kLimitGrows);
    }
    solution.upper = std::min(solution.upper, std::max(found.upper, missed));
    if (!found.is_found) return solution;
    solution.is_found = true;
    solution.score = found.score;
    solution.labels = std::move(found.labels);
    return solution;
  }

  // Which variables have their known labels in some best assignment: a set of which no assignment gains anything, whatever the others are.
  // Variables where bound and score differ are left out. Of a set that is not proved the uncertain ones go, and what is left is tried again.
  std::vector<char> persistent(Part& part, Sweeps& sweeps, double gap) {
    std::vector<char> stays(part.count());
    std::vector<char> tried = low(sweeps.losses(part.labels.data()), gap);
    Part warm = part;
    for (int round = 0; round < kRounds && !is_over(); ++round) {
      Subset subset = gains(warm, tried);
      std::fill(tried.begin(), tried.end(), 0);
      bool again = false;
      for (Subset& one : components(std::move(subset.part))) {
        const Trial trial = try_set(one.part, warm);
        if (trial.is_proved) part.slack += trial.most;
        for (size_t i = 0; i < one.variables.size(); ++i) {
          const int32_t v = subset.variables[one.variables[i]];
          stays[v] |= trial.is_proved;
          tried[v] = !trial.is_proved && trial.certain[i];
          again |= tried[v] != 0;
        }
      }
      if (!again) break;
    }
    return stays;
  }

  struct Trial {
    bool is_proved = false;     // nothing is gained
    double most = 0;            // of what is gained, up to rounding
    std::vector<char> certain;  // the variables that may still be in a set for which that is proved
  };

  // Whether an assignment of a set of variables gains something over the known one. Its messages are put into those of `warm`.
  Trial try_set(Part& set, Part& warm) {
    Trial trial;
    Relaxed relaxed(set);
    Sweeps& sweeps = relaxed.sweeps;
    trial.certain.resize(set.count());
    if (!sweeps.propagate()) return trial;
    sweeps.mark();
    const double known = sweeps.lower();
    double upper = tightened(improve(sweeps, set, known, relaxed.uppers, kBatchesOfARound));
    trial.is_proved = is_closed(known, upper);
    if (sweeps.lower() > known) {
      for (int64_t v = 0; v < set.count(); ++v) trial.certain[v] = relaxed.labels[v] == set.labels[v];
    } else {
      trial.certain = low(sweeps.losses(set.labels.data()), upper - known);
    }
    sweeps.unmark();
    keep(relaxed.messages, set);
    for (const Factor& f : set.factors)
      if (f.source >= 0) warm.factors[f.source].messages = f.messages;
    if (!trial.is_proved && sweeps.lower() == known && is_cheap(set)) {
      upper = std::max(known, solve(std::move(set), known, kInf).upper);
      trial.is_proved = is_closed(known, upper);
    }
    trial.most = std::max(upper - known, 0.0);
    return trial;
  }

  // Where a loss is no more than a share of its mean.
  static std::vector<char> low(const std::vector<double>& losses, double sum) {
    const double most = kShareOfGap * sum / static_cast<double>(losses.size());
    std::vector<char> found(losses.size());
    for (size_t v = 0; v < losses.size(); ++v) found[v] = losses[v] <= most;
    return found;
  }

  bool is_cheap(const Part& part) const { return cost_of_elimination(part, std::min(limit(kCandidates), limit(kCheap) * passes(part))) < kInf; }

  // The entries that an elimination passes in the time of a double sweep.
  static double passes(const Part& part) { return kPassesOfSweep * static_cast<double>(part.entries()); }

  // The upper bound after sweeps, until it is closed, falls by little, or leaves out many values.
  double improve(Sweeps& sweeps, const Part& part, double cutoff, const std::vector<double>& uppers, int batches) {
    double upper = sweeps.upper() + part.slack;
    const auto is_enough = [&] { return is_closed(std::max(sweeps.lower(), cutoff), upper); };
    for (int batch = 0; batch < batches && work_ <= most_work_; ++batch) {
      const double before = upper;
      for (int i = 0; i < kSweeps && !is_enough(); ++i) {
        const bool looks = i % kSweepsOfALook == kSweepsOfALook - 1;
        sweeps.sweep(true, looks, upper);
        sweeps.sweep(false, false, upper);
        if (looks) upper = std::min(upper, sweeps.upper() + part.slack);
      }
      if (!is_enough() && sweeps.lower() > -kInf) sweeps.move(random_);
      work_ += passes(part) * (kSweeps + 1);
      const double known = std::max(sweeps.lower(), cutoff);
      if (is_enough()) break;
      double left = 0;
      for (double x : uppers) left += x + part.slack > known;
      if (left < kMany * static_cast<double>(uppers.size())) break;
      if (batch > 0 && before - upper < kWorthwhile * (upper - known)) break;
    }
    return upper;
  }

  // Each part, of which there may be one; of variables with one value `fixed` has it.
  Solution by_parts(Subset subset, std::vector<int32_t> fixed, double cutoff, double most) {
    Solution solution;
    if (subset.part.is_impossible) return solution;
    const double constant = subset.part.constant + subset.part.slack;
    double score = subset.part.constant;
    std::vector<int32_t> labels(subset.part.sizes.size());
    std::vector<Subset> all = components(std::move(subset.part));
    std::sort(all.begin(), all.end(), [](const Subset& a, const Subset& b) { return a.part.count() < b.part.count(); });
    bool is_complete = true;
    double upper = constant;  // of parts that are not solved yet the bound is 0, the sum of their greatest entries
    for (Subset& one : all) {
      const Solution found = solve(std::move(one.part), cutoff - upper, most);
      upper += found.upper;
      if (tightened(upper) <= cutoff) return solution;
      is_complete &= found.is_found;
      score += found.score;
      if (is_complete) one.lift(found.labels, labels);
    }
    solution.upper = tightened(upper);
    solution.is_found = is_complete && score > cutoff;
    if (!solution.is_found) return solution;
    solution.score = score;
    subset.lift(labels, fixed);
    solution.labels = std::move(fixed);
    return solution;
  }

  // One value of a variable, then the others.
  Solution by_choice(const Part& part, const Graph& graph, const std::vector<double>& uppers, double cutoff) {
    int64_t chosen = 0, first = 0;
    double most = -kInf, second = 0;
    for (int64_t v = 0; v < part.count(); ++v) {
      const double* own = &uppers[graph.starts[v]];
      const int64_t best = std::max_element(own, own + part.sizes[v]) - own;
      double next = -kInf;
      for (int64_t a = 0; a < part.sizes[v]; ++a)
        if (a != best) next = std::max(next, own[a]);
      const double tables_of_a_value = static_cast<double>(graph.places[v].size()) / static_cast<double>(part.sizes[v]);
      const double decides = (own[best] - next + kLeast * std::fabs(own[best])) * tables_of_a_value;
      if (decides <= most) continue;
      most = decides;
      chosen = v;
      first = best;
      second = next;
    }
    ++choices_;
    Values kept(part.count());
    for (int64_t v = 0; v < part.count(); ++v) {
      kept[v].resize(part.sizes[v]);
      std::iota(kept[v].begin(), kept[v].end(), 0);
    }
    kept[chosen] = {static_cast<int32_t>(first)};
    Solution solution = by_parts(restricted(part, kept), single(kept), cutoff, limit(kFirst));
    kept[chosen].clear();
    for (int32_t a = 0; a < part.sizes[chosen]; ++a)
      if (a != first) kept[chosen].push_back(a);
    const double known = solution.is_found ? solution.score : cutoff;
    Solution other;
    if (second > known) other = by_parts(restricted(part, kept), single(kept), known, limit(kFirst));
    --choices_;
    other.upper = std::max(solution.upper, std::min(second, other.upper));
    if (other.is_found) return other;
    solution.upper = other.upper;
    return solution;
  }

  // The tables of a part in a graph; their messages.
  static std::vector<double> put(const Part& part, Graph& graph) {
    std::vector<double> messages;
    graph.begin(part.sizes);
    graph.constant.add(part.constant);
    for (const Factor& f : part.factors) {
      graph.add(f.variables, f.entries.data());
      std::copy(f.messages.begin(), f.messages.end(), std::back_inserter(messages));
      if (f.messages.empty()) messages.resize(graph.message_count);
    }
    return messages;
  }

  static void keep(const std::vector<double>& messages, Part& part) {
    auto at = messages.begin();
    for (Factor& f : part.factors) {
      if (f.variables.size() < 2) continue;
      int64_t count = 0;
      for (int32_t v : f.variables) count += part.sizes[v];
      f.messages.assign(at, at + count);
      at += count;
    }
  }

  // The values that a better assignment may have, and those of the known one.
  static Values values_above(double known, const Part& part, const Graph& graph, const std::vector<double>& uppers, bool has_labels) {
    Values kept(part.count());
    for (int64_t v = 0; v < part.count(); ++v)
      for (int32_t a = 0; a < part.sizes[v]; ++a)
        if (uppers[graph.starts[v] + a] > known || (has_labels && part.labels[v] == a)) kept[v].push_back(a);
    return kept;
  }

  static bool has_empty(const Values& kept) {
    return std::any_of(kept.begin(), kept.end(), [](const auto& values) { return values.empty(); });
  }

  static double count_of(const Values& kept) {
    double count = 0;
    for (const auto& values : kept) count += static_cast<double>(values.size());
    return count;
  }

  // The first value of each variable.
  static std::vector<int32_t> single(const Values& kept) {
    std::vector<int32_t> labels;
    for (const auto& values : kept) labels.push_back(values[0]);
    return labels;
  }

  const OptimumAsked& asked_;
  Part whole_;  // its variables
  double work_ = 0, most_work_;
  int depth_ = 0, choices_ = 0;
  bool is_first_ = true;
  std::mt19937_64 random_{0};
};

// The tables as they are given: of variables in any order, and several of the same ones.
Part read_part(const OptimumAsked& asked, const Graph& graph) {
  Part part;
  part.sizes = graph.sizes;
  part.origin.resize(graph.count());
  std::iota(part.origin.begin(), part.origin.end(), 0);
  const int64_t* at = asked.graph + 2 + graph.count();
  for (int64_t f = 0; f < asked.graph[1]; ++f) {
    const int64_t rank = *at++;
    Factor factor;
    factor.variables.assign(at, at + rank);
    at += rank;
    int64_t count = 1;
    for (int32_t v : factor.variables) count *= graph.sizes[v];
    factor.entries.assign(asked.tables[f], asked.tables[f] + count);
    part.factors.push_back(std::move(factor));
  }
  return part;
}

}  // namespace

std::string run_optimum(const OptimumAsked& asked) {
  Graph graph;
  const std::string problem = read({asked.graph, asked.length, asked.tables, 0, 0, 0, 0, nullptr, nullptr, nullptr, nullptr}, graph);
  if (!problem.empty()) return problem;
  const Part raw = read_part(asked, graph);
  Values all(graph.count());
  for (int64_t v = 0; v < graph.count(); ++v) {
    all[v].resize(graph.sizes[v]);
    std::iota(all[v].begin(), all[v].end(), 0);
  }
  Subset whole = restricted(raw, all);
  std::vector<int32_t> labels(graph.count());
  Search search(asked, whole.part);
  Solution found;
  std::fill_n(asked.undecided, graph.count(), 0);
  if (!whole.part.is_impossible) {
    found.score = found.upper = whole.part.constant;
    found.is_found = true;
    if (whole.part.count() > 0) found = search.solve(std::move(whole.part), -kInf, asked.limits[kFirst]);
    if (found.is_found) whole.lift(found.labels, labels);
  }
  std::copy(labels.begin(), labels.end(), asked.labels);
  // The parts have the constants of the tables, and sums of another order: only the gap is taken from there.
  std::vector<double> messages(graph.message_count), uppers(graph.own.size());
  Sweeps judge(graph, messages.data(), asked.labels, uppers.data());
  const double score = found.is_found ? judge.score(asked.labels) : -kInf;
  asked.numbers[kLower] = score;
  asked.numbers[kUpper] = found.is_found ? score + std::max(found.upper - found.score, 0.0) : found.upper;
  asked.numbers[kPassed] = search.work();
  return "";
}

std::string run_cost(const int64_t* graph, int64_t length, double most, double most_at_once, double* result) {
  const int64_t *at = graph, *end = graph + length;
  if (length < 2 || graph[0] < 0 || end - at - 2 < graph[0]) return "a graph that is cut off";
  Part part;
  const int64_t variables = *at++, tables = *at++;
  part.sizes.assign(at, at + variables);
  at += variables;
  for (int64_t f = 0; f < tables; ++f) {
    if (at == end || *at < 0 || end - at - 1 < *at) return "a graph that is cut off";
    Factor factor;
    factor.variables.assign(at + 1, at + 1 + *at);
    at += 1 + *at;
    for (int32_t v : factor.variables)
      if (v < 0 || v >= variables) return "a variable that is not there";
    part.factors.push_back(std::move(factor));
  }
  *result = cost_of_elimination(part, most, most_at_once);
  return "";
}

}  // namespace tropical
