// Sweeps over a factor graph, as TRW-S (Kolmogorov 2006) and SRMP (Kolmogorov 2015) with single variables between the tables.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bounds.h"

namespace tropical::relaxation {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kRounding = 0x1p-52;      // twice that of one operation, so that products of roundings need no term of their own
constexpr double kImprovement = 1e-7;      // a bound that falls by less in kFlat looks, relative to itself, stays as it is
constexpr int kFlat = 10;

// A sum that loses no digits to its order (Neumaier).
struct Sum {
  double high = 0, low = 0;
  void add(double x) {
    const double sum = high + x;
    low += std::fabs(high) >= std::fabs(x) ? (high - sum) + x : (x - sum) + high;
    high = sum;
  }
  double value() const { return high + low; }
};

struct Table {
  std::vector<int32_t> variables;
  std::vector<int64_t> messages;  // where those to each variable begin
  const double* data;
  int32_t first, last;
  // Of a table of two variables, as most are, once more without a vector between.
  bool is_pair = false;
  int32_t pair[2] = {0, 0};
  int64_t sizes[2] = {0, 0}, starts[2] = {0, 0};
};

struct Place {
  int32_t table, slot;
};

struct Graph {
  std::vector<int64_t> sizes, starts;      // of the values of each variable; one more start than variables
  std::vector<Table> tables;               // of two variables and more
  std::vector<double> own, own_sizes;      // for each value the sum of the tables of this variable alone, and that of their magnitudes
  std::vector<int64_t> own_counts;         // of these tables, for each variable
  std::vector<std::vector<Place>> places;  // of each variable in tables
  Sum constant;                            // of the tables of no variable
  int64_t message_count = 0;
  bool has_impossible = false;  // entries
  bool is_impossible = false;   // a table of no variable
  int64_t count() const { return static_cast<int64_t>(sizes.size()); }

  // Variables without tables.
  void begin(std::vector<int64_t> all) {
    sizes = std::move(all);
    starts.resize(sizes.size() + 1);
    std::partial_sum(sizes.begin(), sizes.end(), starts.begin() + 1);
    own.resize(starts.back());
    own_sizes.resize(starts.back());
    own_counts.resize(sizes.size());
    places.resize(sizes.size());
  }

  // A table of variables, row-major. It stays where it is.
  void add(std::vector<int32_t> variables, const double* data) {
    const int64_t rank = static_cast<int64_t>(variables.size());
    int64_t entries = 1;
    for (int32_t v : variables) entries *= sizes[v];
    for (int64_t i = 0; i < entries; ++i) has_impossible |= data[i] == -kInf;
    if (rank == 0) {
      is_impossible |= data[0] == -kInf;
      constant.add(data[0] == -kInf ? 0 : data[0]);
    } else if (rank == 1) {
      const int32_t v = variables[0];
      ++own_counts[v];
      for (int64_t a = 0; a < entries; ++a) {
        own[starts[v] + a] += data[a];
        own_sizes[starts[v] + a] += std::fabs(data[a]);
      }
    } else {
      Table table{std::move(variables), {}, data, 0, 0};
      for (int64_t k = 0; k < rank; ++k) {
        const int32_t v = table.variables[k];
        table.messages.push_back(message_count);
        message_count += sizes[v];
        places[v].push_back({static_cast<int32_t>(tables.size()), static_cast<int32_t>(k)});
      }
      const auto ends = std::minmax_element(table.variables.begin(), table.variables.end());
      table.first = *ends.first;
      table.last = *ends.second;
      table.is_pair = rank == 2;
      for (int64_t k = 0; k < 2; ++k) {
        table.pair[k] = table.variables[k];
        table.sizes[k] = sizes[table.pair[k]];
        table.starts[k] = table.messages[k];
      }
      tables.push_back(std::move(table));
    }
  }
};

inline std::string read(const BoundsAsked& asked, Graph& graph) {
  const int64_t *at = asked.graph, *end = at + asked.length;
  if (asked.length < 2) return "a graph without counts";
  const int64_t variables = *at++, tables = *at++;
  if (variables < 0 || tables < 0 || end - at < variables) return "a graph that is cut off";
  for (int64_t v = 0; v < variables; ++v)
    if (at[v] < 1) return "a variable without values";
  graph.begin({at, at + variables});
  at += variables;
  for (int64_t f = 0; f < tables; ++f) {
    const double* data = asked.tables[f];
    if (at == end) return "a graph that is cut off";
    const int64_t rank = *at++;
    if (rank < 0 || end - at < rank) return "a graph that is cut off";
    for (int64_t k = 0; k < rank; ++k)
      if (at[k] < 0 || at[k] >= variables) return "a variable that is not there";
    graph.add({at, at + rank}, data);
    at += rank;
  }
  return at == end ? "" : "a graph that is too long";
}

class Sweeps {
 public:
  Sweeps(const Graph& graph, double* messages, int32_t* labels, double* uppers)
      : g_(graph), messages_(messages), best_(labels), uppers_(uppers), labels_(graph.count()), pins_(graph.count(), -1), no_pins_(graph.count(), -1) {
    int64_t widest = 1;
    size_t most = 1, rank = 1;
    for (int64_t v = 0; v < g_.count(); ++v) {
      widest = std::max(widest, g_.sizes[v]);
      most = std::max(most, g_.places[v].size());
    }
    for (const Table& t : g_.tables) rank = std::max(rank, t.variables.size());
    row_.resize(widest);
    total_.resize(widest);
    found_.resize(widest * most);
    index_.resize(rank);
    weights_.resize(g_.count());
    for (int64_t v = 0; v < g_.count(); ++v) {
      int64_t after = 0, before = 0;
      for (const Place& p : g_.places[v]) {
        after += g_.tables[p.table].last != v;
        before += g_.tables[p.table].first != v;
      }
      weights_[v] = 1.0 / static_cast<double>(std::max<int64_t>({after, before, 1}));
    }
  }

  // Marks what can have no possible assignment: its messages are inf, so that an entry less its messages is -inf. False: nothing is possible.
  bool propagate() {
    allowed_.assign(g_.own.size(), 1);
    for (size_t i = 0; i < g_.own.size(); ++i) allowed_[i] = g_.own[i] > -kInf;
    if (!g_.has_impossible) return true;
    for (bool changed = true; changed;) {
      changed = false;
      mark();
      for (int64_t v = 0; v < g_.count(); ++v) {
        bool any = false;
        for (const Place& p : g_.places[v]) {
          fold(p, no_pins_, row_.data());
          for (int64_t a = 0; a < g_.sizes[v]; ++a) {
            char& is = allowed_[g_.starts[v] + a];
            if (is && row_[a] == -kInf) {
              is = 0;
              changed = true;
              for (const Place& q : g_.places[v]) to(q)[a] = kInf;
            }
          }
        }
        for (int64_t a = 0; a < g_.sizes[v]; ++a) any |= allowed_[g_.starts[v] + a] != 0;
        if (!any) return false;
      }
    }
    return true;
  }

  // `upper` is the bound before. No step of a sweep raises it, so it holds in each.
  void sweep(bool forward, bool rounding, double upper) {
    if (rounding) std::fill(pins_.begin(), pins_.end(), -1);
    for (int64_t i = 0; i < g_.count(); ++i) {
      const int64_t v = forward ? i : g_.count() - 1 - i;
      if (rounding) choose(v);
      pass(v, forward, upper);
    }
    if (rounding) {
      climb();
      keep();
    }
  }

  // The upper bound of these messages.
  double upper() {
    Sum sum, allowance;
    sum.add(g_.constant.value());
    for (size_t f = 0; f < g_.tables.size(); ++f) {
      const Table& t = g_.tables[f];
      const Place place{static_cast<int32_t>(f), 0};
      const double* m = to(place);
      fold(place, no_pins_, row_.data());
      double most = -kInf, size = 0;
      for (int64_t a = 0; a < g_.sizes[t.variables[0]]; ++a) most = std::max(most, row_[a] - m[a]);
      for (size_t k = 0; k < t.variables.size(); ++k) size += largest(Place{place.table, static_cast<int32_t>(k)});
      sum.add(most);
      allowance.add((std::fabs(most) + 2 * size) * static_cast<double>(t.variables.size()));
    }
    for (int64_t v = 0; v < g_.count(); ++v) {
      double most = -kInf, size = 0;
      for (int64_t a = 0; a < g_.sizes[v]; ++a) {
        const int64_t at = g_.starts[v] + a;
        if (!allowed_[at]) continue;
        double x = g_.own[at], sizes = g_.own_sizes[at];
        for (const Place& p : g_.places[v]) {
          x += to(p)[a];
          sizes += std::fabs(to(p)[a]);
        }
        most = std::max(most, x);
        size = std::max(size, sizes);
      }
      sum.add(most);
      allowance.add(size * static_cast<double>(static_cast<int64_t>(g_.places[v].size()) + g_.own_counts[v]));
    }
    rounding_ = kRounding * (allowance.value() + std::fabs(sum.value()));
    return sum.value() + rounding_;
  }

  // The exact maximum over the trees of a random induced forest, the other variables as they are.
  void move(std::mt19937_64& random) {
    labels_.assign(best_, best_ + g_.count());
    std::vector<int32_t> order(g_.count()), parent(g_.count(), -1), by(g_.count(), -1), taken(g_.tables.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    std::vector<char> is_in(g_.count()), is_seen(g_.count());
    std::vector<int32_t> root(g_.count()), near;
    std::iota(root.begin(), root.end(), 0);
    const auto find = [&](int32_t v) {
      while (root[v] != v) v = root[v] = root[root[v]];
      return v;
    };
    for (int32_t v : order) {
      near.clear();
      bool fits = true;
      for (const Place& p : g_.places[v]) {
        if (taken[p.table] > 1) fits = false;
        if (taken[p.table] != 1 || !fits) continue;
        for (int32_t u : g_.tables[p.table].variables)
          if (is_in[u]) near.push_back(find(u));
      }
      std::sort(near.begin(), near.end());
      if (!fits || std::adjacent_find(near.begin(), near.end()) != near.end()) continue;
      is_in[v] = 1;
      for (const Place& p : g_.places[v]) ++taken[p.table];
      for (int32_t r : near) root[r] = v;
    }
    std::vector<double> score(g_.own.size());
    std::vector<int32_t> tree;
    for (int32_t start = 0; start < g_.count(); ++start) {
      if (!is_in[start] || is_seen[start]) continue;
      tree.assign(1, start);
      is_seen[start] = 1;
      for (size_t h = 0; h < tree.size(); ++h) {
        const int32_t v = tree[h];
        for (const Place& p : g_.places[v])
          for (int32_t u : g_.tables[p.table].variables)
            if (is_in[u] && !is_seen[u]) {
              is_seen[u] = 1;
              parent[u] = v;
              by[u] = p.table;
              tree.push_back(u);
            }
      }
      for (int32_t v : tree) {
        double* own = &score[g_.starts[v]];
        std::copy_n(&g_.own[g_.starts[v]], g_.sizes[v], own);
        for (const Place& p : g_.places[v]) {
          if (taken[p.table] > 1) continue;  // an edge of the forest
          const auto [data, stride] = line(p, labels_.data());
          for (int64_t a = 0; a < g_.sizes[v]; ++a) own[a] += data[a * stride];
        }
      }
      for (size_t h = tree.size(); h-- > 1;) {
        const int32_t v = tree[h], p = parent[v];
        for (int64_t b = 0; b < g_.sizes[p]; ++b) {
          const int64_t a = best_of(v, by[v], p, b, score);
          labels_[p] = static_cast<int32_t>(b);
          score[g_.starts[p] + b] += line(slot_of(by[v], v), labels_.data()).at(a) + score[g_.starts[v] + a];
        }
      }
      for (int32_t v : tree) {
        const double* own = &score[g_.starts[v]];
        labels_[v] = static_cast<int32_t>(parent[v] < 0 ? std::max_element(own, own + g_.sizes[v]) - own : best_of(v, by[v], parent[v], labels_[parent[v]], score));
      }
    }
    keep();
  }

  // The score of an assignment.
  double score(const int32_t* labels) const {
    Sum sum = g_.constant;
    for (int64_t v = 0; v < g_.count(); ++v) sum.add(g_.own[g_.starts[v] + labels[v]]);
    for (const Table& t : g_.tables) {
      const double x = t.data[place(t, labels)];
      if (x == -kInf) return x;
      sum.add(x);
    }
    return sum.value() == sum.value() ? sum.value() : -kInf;  // an own score may be -inf
  }

  double lower() {
    if (best_[0] < 0) return -kInf;
    if (!has_best_) {
      best_score_ = score(best_);
      has_best_ = true;
    }
    return best_score_;
  }

  // For each variable the most by which a table with it, or the sum of its messages and own scores, has less at some labels than at its greatest
  // entry. The sum over all tables and variables is the gap between the upper bound and the score of the labels.
  std::vector<double> losses(const int32_t* labels) {
    std::vector<double> found(g_.count());
    for (int64_t v = 0; v < g_.count(); ++v) {
      double most = -kInf, here = 0;
      for (int64_t a = 0; a < g_.sizes[v]; ++a) {
        if (!allowed_[g_.starts[v] + a]) continue;
        double x = g_.own[g_.starts[v] + a];
        for (const Place& p : g_.places[v]) x += to(p)[a];
        most = std::max(most, x);
        if (a == labels[v]) here = x;
      }
      found[v] = most - here;
    }
    for (size_t f = 0; f < g_.tables.size(); ++f) {
      const Table& t = g_.tables[f];
      const Place first{static_cast<int32_t>(f), 0};
      fold(first, no_pins_, row_.data());
      double most = -kInf, here = t.data[place(t, labels)];
      for (int64_t a = 0; a < g_.sizes[t.variables[0]]; ++a) most = std::max(most, row_[a] - to(first)[a]);
      for (size_t k = 0; k < t.variables.size(); ++k) here -= messages_[t.messages[k] + labels[t.variables[k]]];
      for (int32_t v : t.variables) found[v] = std::max(found[v], most - here);
    }
    return found;
  }

  void mark() {
    for (int64_t v = 0; v < g_.count(); ++v)
      for (const Place& p : g_.places[v])
        for (int64_t a = 0; a < g_.sizes[v]; ++a) {
          double& m = to(p)[a];
          if (!allowed_[g_.starts[v] + a]) m = kInf;
        }
  }

  void unmark() {
    for (int64_t i = 0; i < g_.message_count; ++i)
      if (messages_[i] == kInf) messages_[i] = 0;
  }

 private:
  // Entries along one variable, the others fixed.
  struct Line {
    const double* data;
    int64_t stride;
    double at(int64_t a) const { return data[a * stride]; }
  };

  double* to(const Place& p) { return messages_ + g_.tables[p.table].messages[p.slot]; }

  double largest(const Place& p) {
    double most = 0;
    const int32_t v = g_.tables[p.table].variables[p.slot];
    for (int64_t a = 0; a < g_.sizes[v]; ++a)
      if (allowed_[g_.starts[v] + a]) most = std::max(most, std::fabs(to(p)[a]));
    return most;
  }

  Place slot_of(int32_t table, int32_t variable) const {
    const auto& all = g_.tables[table].variables;
    return {table, static_cast<int32_t>(std::find(all.begin(), all.end(), variable) - all.begin())};
  }

  int64_t place(const Table& t, const int32_t* labels) const {
    int64_t at = 0;
    for (int32_t v : t.variables) at = at * g_.sizes[v] + labels[v];
    return at;
  }

  Line line(const Place& p, const int32_t* labels) const {
    const Table& t = g_.tables[p.table];
    int64_t at = 0, stride = 1;
    for (size_t k = 0; k < t.variables.size(); ++k) {
      const int32_t v = t.variables[k];
      at = at * g_.sizes[v] + (static_cast<int32_t>(k) == p.slot ? 0 : labels[v]);
      if (static_cast<int32_t>(k) > p.slot) stride *= g_.sizes[v];
    }
    return {t.data + at, stride};
  }

  int64_t best_of(int32_t v, int32_t table, int32_t other, int64_t value, const std::vector<double>& score) {
    labels_[other] = static_cast<int32_t>(value);
    const Line entries = line(slot_of(table, v), labels_.data());
    int64_t best = 0;
    double most = -kInf;
    for (int64_t a = 0; a < g_.sizes[v]; ++a) {
      const double x = entries.at(a) + score[g_.starts[v] + a];
      if (x > most) {
        most = x;
        best = a;
      }
    }
    return best;
  }

  // The entries of a table of two variables at the pin of the other one; no data where it has none.
  Line fold_pair(const Table& t, int32_t slot, const std::vector<int32_t>& pins) const {
    const int32_t other = pins[t.pair[1 - slot]];
    const int64_t width = t.sizes[1];
    if (other < 0) return {nullptr, 0};
    return slot == 0 ? Line{t.data + other, width} : Line{t.data + other * width, 1};
  }

  // `fold` of a table of two variables without pins.
  void fold_rows(const Table& t, int32_t slot, double* out) const {
    const int64_t rows = t.sizes[0], width = t.sizes[1];
    const double *other = messages_ + t.starts[1 - slot], *e = t.data;
    if (rows == 2 && width == 2) {
      const double b = e[1 + slot], c = e[2 - slot];  // beside the second value of the other variable, and of this one
      out[0] = std::max(e[0] - other[0], b - other[1]);
      out[1] = std::max(c - other[0], e[3] - other[1]);
    } else if (slot == 0) {
      for (int64_t a = 0; a < rows; ++a, e += width) {
        double most = -kInf;
        for (int64_t c = 0; c < width; ++c) most = std::max(most, e[c] - other[c]);
        out[a] = most;
      }
    } else {
      std::fill_n(out, width, -kInf);
      for (int64_t a = 0; a < rows; ++a, e += width)
        for (int64_t c = 0; c < width; ++c) out[c] = std::max(out[c], e[c] - other[a]);
    }
  }

  // For each value of a variable the greatest entry of a table less the messages to its other variables; only entries at the pins, which need
  // no messages.
  void fold(const Place& p, const std::vector<int32_t>& pins, double* out) {
    const Table& t = g_.tables[p.table];
    if (t.is_pair) {
      const Line entries = fold_pair(t, p.slot, pins);
      if (entries.data == nullptr) return fold_rows(t, p.slot, out);
      for (int64_t a = 0; a < t.sizes[p.slot]; ++a) out[a] = entries.at(a);
      return;
    }
    const int64_t rank = static_cast<int64_t>(t.variables.size()), last = rank - 1;
    const int64_t size = g_.sizes[t.variables[p.slot]], width = g_.sizes[t.variables[last]];
    std::fill_n(out, size, -kInf);
    const auto pin = [&](int64_t k) { return k == p.slot ? -1 : pins[t.variables[k]]; };
    for (int64_t k = 0; k < last; ++k) index_[k] = std::max(pin(k), 0);
    const double* last_messages = messages_ + t.messages[last];
    const int32_t last_pin = pin(last);
    for (bool more = true; more;) {
      double base = 0;
      int64_t at = 0;
      for (int64_t k = 0; k < last; ++k) {
        const int32_t v = t.variables[k];
        at = at * g_.sizes[v] + index_[k];
        if (k != p.slot && pins[v] < 0) base += messages_[t.messages[k] + index_[k]];
      }
      const double* entries = t.data + at * width;
      if (p.slot == last) {
        for (int64_t c = 0; c < width; ++c) {
          const double x = entries[c] - base;
          out[c] = x > out[c] ? x : out[c];
        }
      } else {
        double most = -kInf;
        if (last_pin >= 0) {
          most = entries[last_pin];
        } else {
          for (int64_t c = 0; c < width; ++c) {
            const double x = entries[c] - last_messages[c];
            most = x > most ? x : most;
          }
        }
        double& found = out[index_[p.slot]];
        found = std::max(found, most - base);
      }
      more = false;
      for (int64_t k = last; k-- > 0 && !more;) {
        if (pin(k) >= 0) continue;
        more = ++index_[k] < g_.sizes[t.variables[k]];
        if (!more) index_[k] = 0;
      }
    }
  }

  // For each value the sum of the variable's own score and of what `fold` finds in each table, which is left in `found_`.
  void collect(int64_t v, const std::vector<int32_t>& pins) {
    const int64_t size = g_.sizes[v];
    std::copy_n(&g_.own[g_.starts[v]], size, total_.data());
    double* found = found_.data();
    for (const Place& p : g_.places[v]) {
      fold(p, pins, found);
      for (int64_t a = 0; a < size; ++a) total_[a] += found[a];
      found += size;
    }
  }

  // Takes from the tables of a variable what they hold of it, and gives a share to each that has variables still to come.
  void pass(int64_t v, bool forward, double upper) {
    collect(v, no_pins_);
    const int64_t size = g_.sizes[v];
    const char* allowed = &allowed_[g_.starts[v]];
    double most = -kInf;
    for (int64_t a = 0; a < size; ++a)
      if (allowed[a]) most = std::max(most, total_[a]);
    // The tables of the variable hold nothing of it now, so with another value the bound falls by as much as its total.
    double* uppers = uppers_ + g_.starts[v];
    for (int64_t a = 0; a < size; ++a)
      uppers[a] = allowed[a] ? std::min(uppers[a], upper - (most - total_[a]) + 2 * rounding_ + 4 * kRounding * (std::fabs(upper) + std::fabs(most) + std::fabs(total_[a]))) : -kInf;
    const double* found = found_.data();
    for (const Place& p : g_.places[v]) {
      const Table& t = g_.tables[p.table];
      const bool gives = (forward ? t.last : t.first) != v;
      double* m = to(p);
      for (int64_t a = 0; a < size; ++a)
        if (allowed[a]) m[a] = found[a] - (gives ? weights_[v] * (total_[a] - most) : 0.0);
      found += size;
    }
  }

  // The label of a variable that is best beside those chosen before.
  void choose(int64_t v) {
    collect(v, pins_);
    const int64_t size = g_.sizes[v];
    int64_t best = 0;
    double most = -kInf;
    for (int64_t a = 0; a < size; ++a)
      if (allowed_[g_.starts[v] + a] && total_[a] > most) {
        most = total_[a];
        best = a;
      }
    labels_[v] = pins_[v] = static_cast<int32_t>(best);
  }

  // Changes single labels while that raises the score.
  void climb() {
    constexpr int kRounds = 20;
    bool changed = true;
    for (int round = 0; changed && round < kRounds; ++round) {
      changed = false;
      for (int64_t v = 0; v < g_.count(); ++v) {
        const int64_t size = g_.sizes[v];
        std::copy_n(&g_.own[g_.starts[v]], size, total_.data());
        for (const Place& p : g_.places[v]) {
          const Line entries = line(p, labels_.data());
          for (int64_t a = 0; a < size; ++a) total_[a] += entries.at(a);
        }
        const int64_t best = std::max_element(total_.begin(), total_.begin() + size) - total_.begin();
        if (total_[best] > total_[labels_[v]]) {
          labels_[v] = static_cast<int32_t>(best);
          changed = true;
        }
      }
    }
  }

  // Keeps the labels if their score is the best so far.
  void keep() {
    const double known = lower(), found = score(labels_.data());
    if (found > known || best_[0] < 0) {
      std::copy(labels_.begin(), labels_.end(), best_);
      best_score_ = found;
      has_best_ = true;
    }
  }

  const Graph& g_;
  double* messages_;
  int32_t* best_;
  double* uppers_;
  double rounding_ = 0;  // of the upper bound
  double best_score_ = -kInf;
  bool has_best_ = false;
  std::vector<int32_t> labels_, pins_, no_pins_;
  std::vector<double> row_, total_, found_, weights_;
  std::vector<int64_t> index_;
  std::vector<char> allowed_;
};

}  // namespace tropical::relaxation
