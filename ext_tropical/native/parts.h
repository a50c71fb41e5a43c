// Parts of a network of tables: cut to some values of each variable, split where no table connects them, and elimination of variables.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sweeps.h"

namespace tropical::relaxation {

// A table of a part. Its greatest entry is 0: the part has the rest as its constant.
struct Factor {
  std::vector<int32_t> variables;  // in rising order
  std::vector<double> entries;     // row-major
  std::vector<double> messages;    // of its variables one after another; none of fewer than two
  int32_t source = -1;             // the factor in another part that it comes from
};

struct Part {
  std::vector<int32_t> origin;  // the number of each variable in the whole network
  std::vector<int64_t> sizes;
  std::vector<Factor> factors;
  double constant = 0;
  double slack = 0;              // what sums of entries may have lost to rounding
  std::vector<int32_t> labels;   // a known assignment, or nothing
  bool is_impossible = false;
  int64_t count() const { return static_cast<int64_t>(sizes.size()); }
  int64_t entries() const {
    int64_t all = 0;
    for (const Factor& f : factors) all += static_cast<int64_t>(f.entries.size());
    return all;
  }
};

// A part of another one.
struct Subset {
  Part part;
  std::vector<int32_t> variables;             // in the other one
  std::vector<std::vector<int32_t>> values;   // of these there; nothing if they are all that there are

  // Puts labels of the part into those of the other one.
  void lift(const std::vector<int32_t>& labels, std::vector<int32_t>& to) const {
    for (size_t i = 0; i < labels.size(); ++i) to[variables[i]] = values.empty() ? labels[i] : values[i][labels[i]];
  }
};

// Takes the greatest entry out of a factor into the constant.
inline void normalise(Factor& factor, Part& part) {
  const double most = *std::max_element(factor.entries.begin(), factor.entries.end());
  if (most == -kInf) {
    part.is_impossible = true;
    return;
  }
  if (most == 0) return;
  double size = 0;
  for (double& x : factor.entries) {
    x -= most;
    if (x > -kInf) size = std::max(size, -x);
  }
  part.constant += most;
  part.slack += kRounding * size;
}

struct HashOfVariables {
  size_t operator()(const std::vector<int32_t>& variables) const {
    size_t hash = variables.size();
    for (int32_t v : variables) hash = hash * 1000003 + static_cast<size_t>(v);
    return hash;
  }
};

// Adds factors; those of the same variables become one.
class Factors {
 public:
  explicit Factors(Part& part) : part_(part), own_(part.sizes.size(), -1) {}
  void add(Factor factor) {
    if (factor.variables.empty()) {
      const double x = factor.entries[0];
      part_.is_impossible |= x == -kInf;
      if (x > -kInf) part_.constant += x;
      return;
    }
    const int32_t next = static_cast<int32_t>(part_.factors.size());
    if (factor.source >= 0 && factor.variables.size() > 1) return part_.factors.push_back(std::move(factor));  // one of another part, as it is
    int32_t& at = factor.variables.size() == 1 ? own_[factor.variables[0]] : places_.try_emplace(factor.variables, -1).first->second;
    if (at < 0) {
      at = next;
      part_.factors.push_back(std::move(factor));
      return;
    }
    Factor& known = part_.factors[at];
    double size = 0;
    for (size_t i = 0; i < known.entries.size(); ++i) {
      known.entries[i] += factor.entries[i];
      if (known.entries[i] > -kInf) size = std::max(size, std::fabs(known.entries[i]));
    }
    part_.slack += kRounding * size;
    if (known.messages.empty()) known.messages = std::move(factor.messages);
    else if (!factor.messages.empty())
      for (size_t i = 0; i < known.messages.size(); ++i) known.messages[i] += factor.messages[i];
  }
  void finish() {
    for (Factor& f : part_.factors) normalise(f, part_);
  }

 private:
  Part& part_;
  std::vector<int32_t> own_;                           // the factor of each variable alone
  std::unordered_map<std::vector<int32_t>, int32_t, HashOfVariables> places_;  // and of several
};

// The entries of a factor at some values of its variables, as a factor of the variables that have several.
inline Factor cut(const Factor& factor, const std::vector<int64_t>& sizes, const std::vector<std::vector<int32_t>>& kept, const std::vector<int32_t>& number) {
  struct Axis {
    int32_t name;
    int64_t stride;
    const std::vector<int32_t>* values;
    int64_t message;
  };
  std::vector<Axis> axes;
  int64_t start = 0, stride = 1, count = 1, messages = 0;
  for (int32_t v : factor.variables) messages += sizes[v];
  for (size_t k = factor.variables.size(); k-- > 0;) {
    const int32_t v = factor.variables[k];
    messages -= sizes[v];
    if (kept[v].size() == 1) {
      start += kept[v][0] * stride;
    } else {
      axes.push_back({number[v], stride, &kept[v], messages});
      count *= static_cast<int64_t>(kept[v].size());
    }
    stride *= sizes[v];
  }
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.name < b.name; });
  Factor found;
  const size_t rank = axes.size();
  found.entries.resize(count);
  for (const Axis& axis : axes) found.variables.push_back(axis.name);
  if (rank > 1 && !factor.messages.empty())
    for (const Axis& axis : axes)
      for (int32_t a : *axis.values) found.messages.push_back(factor.messages[axis.message + a]);
  std::vector<size_t> index(rank);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = start;
    for (size_t k = 0; k < rank; ++k) at += axes[k].stride * (*axes[k].values)[index[k]];
    found.entries[i] = factor.entries[at];
    for (size_t k = rank; k-- > 0;) {
      if (++index[k] < axes[k].values->size()) break;
      index[k] = 0;
    }
  }
  return found;
}

// The part that has some values of each variable, at least one. Variables of one value are gone.
inline Subset restricted(const Part& part, const std::vector<std::vector<int32_t>>& kept) {
  Subset found;
  Part& to = found.part;
  to.constant = part.constant;
  to.slack = part.slack;
  std::vector<int32_t> number(part.count(), -1);
  bool knows = !part.labels.empty();
  for (int64_t v = 0; v < part.count(); ++v) {
    if (!part.labels.empty()) knows &= std::find(kept[v].begin(), kept[v].end(), part.labels[v]) != kept[v].end();
    if (kept[v].size() == 1) continue;
    number[v] = static_cast<int32_t>(found.variables.size());
    found.variables.push_back(static_cast<int32_t>(v));
    to.origin.push_back(part.origin[v]);
    to.sizes.push_back(static_cast<int64_t>(kept[v].size()));
  }
  Factors factors(to);
  for (const Factor& f : part.factors) factors.add(cut(f, part.sizes, kept, number));
  factors.finish();
  for (int32_t v : found.variables) {
    const auto place = knows ? std::find(kept[v].begin(), kept[v].end(), part.labels[v]) : kept[v].begin();
    if (knows) to.labels.push_back(static_cast<int32_t>(place - kept[v].begin()));
    found.values.push_back(kept[v]);
  }
  return found;
}

// The sets of variables that factors connect, as parts. The constant stays with the whole.
inline std::vector<Subset> components(Part part) {
  std::vector<int32_t> root(part.count()), place(part.count(), -1), number(part.count());
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](int32_t v) {
    while (root[v] != v) v = root[v] = root[root[v]];
    return v;
  };
  for (const Factor& f : part.factors)
    for (int32_t v : f.variables) root[find(v)] = find(f.variables[0]);
  std::vector<Subset> found;
  for (int32_t v = 0; v < part.count(); ++v) {
    int32_t& at = place[find(v)];
    if (at < 0) {
      at = static_cast<int32_t>(found.size());
      found.emplace_back();
    }
    Subset& subset = found[at];
    number[v] = static_cast<int32_t>(subset.variables.size());
    subset.variables.push_back(v);
    subset.part.origin.push_back(part.origin[v]);
    subset.part.sizes.push_back(part.sizes[v]);
    if (!part.labels.empty()) subset.part.labels.push_back(part.labels[v]);
  }
  for (Factor& f : part.factors) {
    Part& to = found[place[find(f.variables[0])]].part;
    for (int32_t& v : f.variables) v = number[v];
    to.factors.push_back(std::move(f));
  }
  return found;
}

// What an assignment of some variables can gain over the known labels of these, whatever the others are: a part of these variables, in which the
// known labels have 0. A variable that may have no possible entry with its known label is taken out of `is_in`.
inline Subset gains(const Part& part, std::vector<char>& is_in) {
  Subset found;
  std::vector<Factor> made;
  for (bool changed = true; changed;) {
    changed = false;
    made.clear();
    for (const Factor& f : part.factors) {
      Factor gain;
      std::vector<int64_t> strides(f.variables.size());  // in the gain
      int64_t count = 1;
      for (size_t k = f.variables.size(); k-- > 0;) {
        const int32_t v = f.variables[k];
        if (!is_in[v]) continue;
        strides[k] = count;
        count *= part.sizes[v];
        gain.variables.push_back(v);
      }
      if (gain.variables.empty()) continue;
      std::reverse(gain.variables.begin(), gain.variables.end());
      gain.entries.assign(count, -kInf);
      std::vector<int32_t> index(f.variables.size());
      bool is_safe = true;
      for (size_t i = 0; i < f.entries.size(); ++i) {
        int64_t at = 0, known = 0;
        for (size_t k = 0; k < f.variables.size(); ++k) {
          const int32_t v = f.variables[k];
          at += strides[k] * index[k];
          known = known * part.sizes[v] + (is_in[v] ? part.labels[v] : index[k]);
        }
        if (f.entries[i] > -kInf) {
          const double beside = f.entries[known];
          is_safe &= beside > -kInf;
          gain.entries[at] = std::max(gain.entries[at], f.entries[i] - beside);
        }
        for (size_t k = f.variables.size(); k-- > 0;) {
          if (++index[k] < part.sizes[f.variables[k]]) break;
          index[k] = 0;
        }
      }
      if (!is_safe) {  // the others are looked at first, so that few rounds do
        for (int32_t v : gain.variables) is_in[v] = 0;
        changed = true;
        continue;
      }
      if (gain.variables.size() == f.variables.size()) {
        gain.messages = f.messages;
        gain.source = static_cast<int32_t>(&f - part.factors.data());
      }
      made.push_back(std::move(gain));
    }
  }
  Part& to = found.part;
  std::vector<int32_t> number(part.count(), -1);
  for (int32_t v = 0; v < part.count(); ++v) {
    if (!is_in[v]) continue;
    number[v] = static_cast<int32_t>(found.variables.size());
    found.variables.push_back(v);
    to.origin.push_back(part.origin[v]);
    to.sizes.push_back(part.sizes[v]);
    to.labels.push_back(part.labels[v]);
  }
  Factors factors(to);
  for (Factor& f : made) {
    for (int32_t& v : f.variables) v = number[v];
    factors.add(std::move(f));
  }
  factors.finish();
  return found;
}

// --- elimination ---

// An order of elimination.
class Order {
 public:
  enum class By {
    kSize,   // the variable of the fewest candidates first
    kFront,  // breadth first from a variable at the border, as a front that passes: the width of a grid is that of its front
  };

  explicit Order(const Part& part, By by = By::kSize) : part_(part), by_(by), near_(part.count()) {
    for (const Factor& f : part.factors)
      for (int32_t v : f.variables) near_[v].insert(near_[v].end(), f.variables.begin(), f.variables.end());
    for (int32_t v = 0; v < part.count(); ++v) {
      std::vector<int32_t>& near = near_[v];
      near.push_back(v);
      std::sort(near.begin(), near.end());
      near.erase(std::unique(near.begin(), near.end()), near.end());
      if (by == By::kSize) queue_.emplace(candidates(v), v);
    }
    if (by == By::kFront) go_through();
  }

  // The next variable, or -1 where its candidates are more than `most`.
  int32_t next(double most) {
    while (by_ == By::kSize ? !queue_.empty() : passed_ < sequence_.size()) {
      const auto [cost, v] = by_ == By::kSize ? queue_.top() : std::pair(candidates(sequence_[passed_]), sequence_[passed_]);
      const bool is_stale = near_[v].empty() || cost != candidates(v);
      if (cost > most && !is_stale) return -1;
      if (by_ == By::kSize) {
        queue_.pop();
      } else {
        ++passed_;
      }
      if (is_stale) continue;
      cost_ = cost;
      const std::vector<int32_t> others = std::move(near_[v]);
      near_[v].clear();
      for (int32_t u : others) {
        if (u == v) continue;
        both_.clear();
        std::set_union(near_[u].begin(), near_[u].end(), others.begin(), others.end(), std::back_inserter(both_));
        both_.erase(std::lower_bound(both_.begin(), both_.end(), v));
        near_[u].swap(both_);
        if (by_ == By::kSize) queue_.emplace(candidates(u), u);
      }
      return v;
    }
    return -1;
  }

  // Those of the variable that `next` gave.
  double cost() const { return cost_; }

 private:
  // From the variable that is passed last where one begins anywhere.
  void go_through() {
    std::vector<char> is_seen;
    for (int round = 0; round < 2; ++round) {
      std::vector<int32_t> starts(sequence_.rbegin(), sequence_.rend());
      if (round == 0) {
        starts.resize(part_.count());
        std::iota(starts.begin(), starts.end(), 0);
      }
      is_seen.assign(part_.count(), 0);
      sequence_.clear();
      for (int32_t start : starts) {
        if (is_seen[start]) continue;
        is_seen[start] = 1;
        sequence_.push_back(start);
        for (size_t h = sequence_.size() - 1; h < sequence_.size(); ++h)
          for (int32_t u : near_[sequence_[h]]) {
            if (is_seen[u]) continue;
            is_seen[u] = 1;
            sequence_.push_back(u);
          }
      }
    }
  }

  double candidates(int32_t v) const {
    double count = 1;
    for (int32_t u : near_[v]) count *= static_cast<double>(part_.sizes[u]);
    return count;
  }

  const Part& part_;
  const By by_;
  std::vector<int32_t> sequence_;
  size_t passed_ = 0;
  std::vector<std::vector<int32_t>> near_;  // the variables in a table with each, itself among them, rising; none where it is eliminated
  std::vector<int32_t> both_;
  std::priority_queue<std::pair<double, int32_t>, std::vector<std::pair<double, int32_t>>, std::greater<>> queue_;
  double cost_ = 0;
};

// The candidates of an elimination of all variables; inf where they are more than `most`, or those of one variable more than `most_at_once`.
inline double cost_of_elimination(const Part& part, Order::By by, double most, double most_at_once = kInf) {
  Order order(part, by);
  double all = 0;
  for (int64_t i = 0; i < part.count(); ++i) {
    if (order.next(std::min(most, most_at_once)) < 0) return kInf;
    all += order.cost();
    if (all > most) return kInf;
  }
  return all;
}

// By the cheaper order.
inline double cost_of_elimination(const Part& part, double most, double most_at_once = kInf) {
  const double by_size = cost_of_elimination(part, Order::By::kSize, most, most_at_once);
  return std::min(by_size, cost_of_elimination(part, Order::By::kFront, std::min(most, by_size), most_at_once));
}

// A variable that is gone: its best value for each assignment of others.
struct Step {
  int32_t variable;
  std::vector<int32_t> others;
  std::vector<uint8_t> small;   // of fewer than 256 values
  std::vector<int32_t> large;
  void reserve(int64_t values, int64_t cells) { values <= 256 ? small.resize(cells) : large.resize(cells); }
  void put(int64_t cell, int32_t value) { small.empty() ? large[cell] = value : small[cell] = static_cast<uint8_t>(value); }
  int32_t at(int64_t cell) const { return small.empty() ? large[cell] : small[cell]; }
};

// The maximum over a variable of the sum of factors.
class Maximum {
 public:
  Maximum(const Part& part, int32_t variable, const std::vector<const Factor*>& held) : part_(part), held_(held) {
    step_.variable = variable;
    for (const Factor* f : held)
      for (int32_t v : f->variables)
        if (v != variable) step_.others.push_back(v);
    std::sort(step_.others.begin(), step_.others.end());
    step_.others.erase(std::unique(step_.others.begin(), step_.others.end()), step_.others.end());
    result_.variables = step_.others;
    for (int32_t v : step_.others) cells_ *= part.sizes[v];
    result_.entries.resize(cells_);
    step_.reserve(part.sizes[variable], cells_);
    if (step_.others.size() > 1) add_messages();
    run();
  }
  Factor& result() { return result_; }
  Step& step() { return step_; }

 private:
  static constexpr int64_t kBlock = 256;  // cells that are compared together

  // How a factor moves: with the variable, and along each of the others.
  struct Moves {
    const double* entries;
    int64_t own = 0;
    std::vector<int64_t> strides;
    std::vector<int32_t> inner;  // of the cells of a block
    int64_t base = 0;
    bool is_fixed = true, is_dense = true;  // in a block
  };

  void add_messages() {
    std::vector<int64_t> starts(part_.count(), -1);
    int64_t all = 0;
    for (int32_t v : step_.others) {
      starts[v] = all;
      all += part_.sizes[v];
    }
    result_.messages.resize(all);
    for (const Factor* f : held_) {
      const double* m = f->messages.data();
      if (f->messages.empty()) continue;
      for (int32_t v : f->variables) {
        if (v != step_.variable)
          for (int64_t a = 0; a < part_.sizes[v]; ++a) result_.messages[starts[v] + a] += m[a];
        m += part_.sizes[v];
      }
    }
  }

  Moves moves_of(const Factor& f, size_t outer, int64_t block) const {
    Moves moves{f.entries.data(), 0, std::vector<int64_t>(step_.others.size()), std::vector<int32_t>(block)};
    int64_t stride = 1;
    for (size_t k = f.variables.size(); k-- > 0;) {
      const int32_t v = f.variables[k];
      if (v == step_.variable) {
        moves.own = stride;
      } else {
        const auto place = std::lower_bound(step_.others.begin(), step_.others.end(), v) - step_.others.begin();
        moves.strides[place] = stride;
      }
      stride *= part_.sizes[v];
    }
    for (int64_t j = 0; j < block; ++j) {
      int64_t rest = j, at = 0;
      for (size_t k = step_.others.size(); k-- > outer;) {
        at += moves.strides[k] * (rest % part_.sizes[step_.others[k]]);
        rest /= part_.sizes[step_.others[k]];
      }
      moves.inner[j] = static_cast<int32_t>(at);
      moves.is_fixed &= at == 0;
      moves.is_dense &= at == j;
    }
    return moves;
  }

  void run() {
    const std::vector<int32_t>& others = step_.others;
    size_t outer = others.size();
    int64_t block = 1;
    while (outer > 0 && block * part_.sizes[others[outer - 1]] <= kBlock) block *= part_.sizes[others[--outer]];
    std::vector<Moves> all;
    for (const Factor* f : held_) all.push_back(moves_of(*f, outer, block));
    std::vector<int64_t> index(outer);
    std::vector<double> sum(block);
    for (int64_t start = 0; start < cells_; start += block) {
      compare(all, start, block, sum);
      for (size_t k = outer; k-- > 0;) {
        const bool more = ++index[k] < part_.sizes[others[k]];
        const int64_t moved = more ? 1 : 1 - part_.sizes[others[k]];
        for (Moves& m : all) m.base += moved * m.strides[k];
        if (more) break;
        index[k] = 0;
      }
    }
  }

  // The best value of some cells.
  void compare(const std::vector<Moves>& all, int64_t start, int64_t block, std::vector<double>& sum) {
    double* best = &result_.entries[start];
    for (int64_t a = 0; a < part_.sizes[step_.variable]; ++a) {
      double fixed = 0;
      std::fill(sum.begin(), sum.end(), 0);
      for (const Moves& m : all) {
        const double* from = m.entries + m.base + a * m.own;
        if (m.is_fixed) {
          fixed += from[0];
        } else if (m.is_dense) {
          for (int64_t j = 0; j < block; ++j) sum[j] += from[j];
        } else {
          for (int64_t j = 0; j < block; ++j) sum[j] += from[m.inner[j]];
        }
      }
      for (int64_t j = 0; j < block; ++j) {
        const double x = sum[j] + fixed;
        if (a > 0 && !(x > best[j])) continue;
        best[j] = x;
        step_.put(start + j, static_cast<int32_t>(a));
      }
    }
  }

  const Part& part_;
  const std::vector<const Factor*>& held_;
  int64_t cells_ = 1;
  Factor result_;
  Step step_;
};

struct Eliminated {
  Subset core;               // of the variables that are left
  std::vector<Step> steps;   // in the order of elimination
  double candidates = 0;
};

// Eliminates variables while the candidates of the next one are at most `most`.
inline Eliminated eliminated(Part part, double most) {
  Eliminated found;
  std::vector<std::vector<int32_t>> held(part.count());
  for (size_t f = 0; f < part.factors.size(); ++f)
    for (int32_t v : part.factors[f].variables) held[v].push_back(static_cast<int32_t>(f));
  std::vector<char> is_gone(part.count());
  const bool is_whole = most == kInf;
  const double by_size = is_whole ? cost_of_elimination(part, Order::By::kSize, kInf) : 0;
  const bool is_front = is_whole && cost_of_elimination(part, Order::By::kFront, by_size) < by_size;
  Order order(part, is_front ? Order::By::kFront : Order::By::kSize);
  for (int32_t v = order.next(most); v >= 0; v = order.next(most)) {
    std::vector<const Factor*> from;
    for (int32_t f : held[v]) from.push_back(&part.factors[f]);
    Maximum maximum(part, v, from);
    found.candidates += order.cost();
    found.steps.push_back(std::move(maximum.step()));
    is_gone[v] = 1;
    const std::vector<int32_t> gone = std::move(held[v]);
    for (int32_t f : gone) {
      for (int32_t u : part.factors[f].variables)
        if (u != v) held[u].erase(std::find(held[u].begin(), held[u].end(), f));
      part.factors[f] = Factor();
    }
    Factor& result = maximum.result();
    double size = 0;
    for (double x : result.entries)
      if (x > -kInf) size = std::max(size, std::fabs(x));
    part.slack += kRounding * size * static_cast<double>(gone.size());
    normalise(result, part);
    if (part.is_impossible) break;
    for (int32_t u : result.variables) held[u].push_back(static_cast<int32_t>(part.factors.size()));
    if (!result.variables.empty()) part.factors.push_back(std::move(result));
  }
  Part& to = found.core.part;
  to.constant = part.constant;
  to.slack = part.slack;
  to.is_impossible = part.is_impossible;
  if (part.is_impossible) return found;
  std::vector<int32_t> number(part.count(), -1);
  for (int32_t v = 0; v < part.count(); ++v) {
    if (is_gone[v]) continue;
    number[v] = static_cast<int32_t>(found.core.variables.size());
    found.core.variables.push_back(v);
    to.origin.push_back(part.origin[v]);
    to.sizes.push_back(part.sizes[v]);
    if (!part.labels.empty()) to.labels.push_back(part.labels[v]);
  }
  Factors factors(to);
  for (Factor& f : part.factors) {
    if (f.variables.empty()) continue;
    for (int32_t& v : f.variables) v = number[v];
    factors.add(std::move(f));
  }
  factors.finish();
  return found;
}

// The best values of the variables that were eliminated, beside those of the others.
inline void follow(const std::vector<Step>& steps, const std::vector<int64_t>& sizes, std::vector<int32_t>& labels) {
  for (size_t i = steps.size(); i-- > 0;) {
    int64_t cell = 0;
    for (int32_t v : steps[i].others) cell = cell * sizes[v] + labels[v];
    labels[steps[i].variable] = steps[i].at(cell);
  }
}

}  // namespace tropical::relaxation
