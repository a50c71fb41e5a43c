// Sweeps as in bounds.cc, in double, and the way back through them.
#include "network_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tropical {

std::string read_structure(const int64_t* graph, int64_t length, Structure& s) {
  const int64_t *at = graph, *const end = graph + length;
  if (length < 2) return "a graph without counts";
  const int64_t variables = *at++, tables = *at++;
  if (variables < 0 || tables < 0 || end - at < variables) return "a graph that is cut off";
  s.sizes.assign(at, at + variables);
  at += variables;
  for (int64_t size : s.sizes) {
    if (size < 1) return "a variable without values";
    s.starts.push_back(s.values);
    s.values += size;
  }
  s.places.resize(static_cast<size_t>(variables));
  for (int64_t f = 0; f < tables; ++f) {
    if (at == end) return "a graph that is cut off";
    const int64_t rank = *at++;
    if (rank < 0 || end - at < rank) return "a graph that is cut off";
    Factor t;
    t.start = s.entries;
    t.variables.assign(at, at + rank);
    at += rank;
    t.strides.resize(static_cast<size_t>(rank));
    for (int64_t v : t.variables) {
      if (v < 0 || v >= variables) return "a variable that is not there";
      t.sizes.push_back(s.sizes[v]);
    }
    for (int64_t k = rank; k-- > 0; t.count *= t.sizes[k]) t.strides[k] = t.count;
    for (int64_t k = 0; rank > 1 && k < rank; ++k) {
      t.messages.push_back(s.messages);
      s.messages += t.sizes[k];
      s.places[t.variables[k]].push_back({f, k});
    }
    if (rank > 1) {
      t.first = *std::min_element(t.variables.begin(), t.variables.end());
      t.last = *std::max_element(t.variables.begin(), t.variables.end());
    }
    s.entries += t.count;
    s.tables.push_back(std::move(t));
  }
  for (int64_t v = 0; v < variables; ++v) {
    int64_t after = 0, before = 0;
    for (const Structure::Place& p : s.places[v]) {
      after += s.tables[p.table].last != v;
      before += s.tables[p.table].first != v;
    }
    s.weights.push_back(1.0 / static_cast<double>(std::max<int64_t>({after, before, 1})));
  }
  return at == end ? "" : "a graph that is too long";
}

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A network of one batch.
class Relaxed {
 public:
  Relaxed(const Structure& structure, int64_t sweeps, bool records)
      : s_(structure), sweeps_(sweeps), records_(records), entries_(s_.entries), own_(s_.values), messages_(s_.messages) {
    int64_t widest = 1;
    size_t most = 1, rank = 1;
    for (int64_t size : s_.sizes) widest = std::max(widest, size);
    for (const auto& places : s_.places) most = std::max(most, places.size());
    for (const Factor& t : s_.tables) rank = std::max(rank, t.sizes.size());
    total_.resize(widest);
    found_.resize(widest * most);
    which_.resize(widest * most);
    index_.resize(rank);
    if (!records_) return;
    chosen_.resize(2 * sweeps_ * s_.messages);
    tops_.resize(2 * sweeps_ * s_.sizes.size());
    of_entries_.resize(s_.entries);
    of_own_.resize(s_.values);
    of_messages_.resize(s_.messages);
  }

  std::vector<double>& entries() { return entries_; }
  const std::vector<double>& shares() const { return of_entries_; }

  double bound() {
    for (double x : entries_)
      if (!(x < kInf)) {
        std::fill(of_entries_.begin(), of_entries_.end(), 0.0);
        return std::numeric_limits<double>::quiet_NaN();
      }
    std::fill(own_.begin(), own_.end(), 0.0);
    std::fill(messages_.begin(), messages_.end(), 0.0);
    for (const Factor& t : s_.tables)
      if (t.sizes.size() == 1)
        for (int64_t a = 0; a < t.count; ++a) own_[s_.starts[t.variables[0]] + a] += entries_[t.start + a];
    const int64_t count = static_cast<int64_t>(s_.sizes.size());
    for (int64_t pass = 0; pass < 2 * sweeps_; ++pass)
      for (int64_t i = 0; i < count; ++i) step(pass, pass % 2 ? count - 1 - i : i);
    const double found = ended();
    if (!records_) return found;
    if (found == -kInf) {
      std::fill(of_entries_.begin(), of_entries_.end(), 0.0);
      return found;
    }
    for (int64_t pass = 2 * sweeps_; pass-- > 0;)
      for (int64_t i = count; i-- > 0;) step_back(pass, pass % 2 ? count - 1 - i : i);
    for (const Factor& t : s_.tables) {
      if (t.sizes.empty()) of_entries_[t.start] = 1;
      if (t.sizes.size() == 1) std::copy_n(&of_own_[s_.starts[t.variables[0]]], t.count, &of_entries_[t.start]);
    }
    return found;
  }

 private:
  using Place = Structure::Place;

  double* to(std::vector<double>& messages, const Place& p) { return messages.data() + s_.tables[p.table].messages[p.slot]; }

  // Whether a table has variables that come later in this pass.
  bool gives(const Place& p, int64_t pass, int64_t v) const {
    const Factor& t = s_.tables[p.table];
    return (pass % 2 ? t.first : t.last) != v;
  }

  // For each value of a variable the greatest entry of a table less the messages to its other variables, and the first entry that is.
  void fold(const Place& p, double* out, int64_t* which) {
    const Factor& t = s_.tables[p.table];
    const int64_t rank = static_cast<int64_t>(t.sizes.size()), last = rank - 1, width = t.sizes[last];
    const double* const to_last = messages_.data() + t.messages[last];
    std::fill_n(out, t.sizes[p.slot], -kInf);
    std::fill_n(which, t.sizes[p.slot], t.start);
    if (rank == 2) {  // most tables
      const double* const other = messages_.data() + t.messages[1 - p.slot];
      int64_t at = t.start;
      for (int64_t r = 0; r < t.sizes[0]; ++r)
        for (int64_t c = 0; c < width; ++c, ++at) {
          const int64_t a = p.slot == 0 ? r : c;
          const double x = entries_[at] - other[p.slot == 0 ? c : r];
          if (x > out[a]) out[a] = x, which[a] = at;
        }
      return;
    }
    std::fill(index_.begin(), index_.end(), 0);
    for (int64_t at = t.start; at < t.start + t.count; at += width) {
      double base = 0;
      for (int64_t k = 0; k < last; ++k)
        if (k != p.slot) base += messages_[t.messages[k] + index_[k]];
      for (int64_t c = 0; c < width; ++c) {
        const int64_t a = p.slot == last ? c : index_[p.slot];
        const double x = entries_[at + c] - (p.slot == last ? base : base + to_last[c]);
        if (x > out[a]) out[a] = x, which[a] = at + c;
      }
      for (int64_t k = last; k-- > 0;) {
        if (++index_[k] < t.sizes[k]) break;
        index_[k] = 0;
      }
    }
  }

  // Takes from the tables of a variable what they hold of it, and gives a share to each that has variables still to come. A value that has no
  // possible assignment has messages inf.
  void step(int64_t pass, int64_t v) {
    const int64_t size = s_.sizes[v];
    std::copy_n(&own_[s_.starts[v]], size, total_.data());
    double* found = found_.data();
    int64_t* which = which_.data();
    for (const Place& p : s_.places[v]) {
      fold(p, found, which);
      for (int64_t a = 0; a < size; ++a) total_[a] += found[a];
      found += size, which += size;
    }
    const int64_t top = std::max_element(total_.begin(), total_.begin() + size) - total_.begin();
    const double most = total_[top];
    if (records_) tops_[pass * s_.sizes.size() + v] = top;
    found = found_.data(), which = which_.data();
    for (const Place& p : s_.places[v]) {
      double* const m = to(messages_, p);
      int64_t* const chosen = records_ ? &chosen_[pass * s_.messages + s_.tables[p.table].messages[p.slot]] : nullptr;
      const double weight = gives(p, pass, v) ? s_.weights[v] : 0.0;
      for (int64_t a = 0; a < size; ++a) {
        const bool is_possible = total_[a] > -kInf;
        m[a] = !is_possible ? kInf : weight == 0 ? found[a] : found[a] - weight * (total_[a] - most);
        if (records_) chosen[a] = is_possible ? which[a] : -1;
      }
      found += size, which += size;
    }
  }

  // The bound of these messages, and its derivative by them.
  double ended() {
    std::fill(of_entries_.begin(), of_entries_.end(), 0.0);
    std::fill(of_own_.begin(), of_own_.end(), 0.0);
    std::fill(of_messages_.begin(), of_messages_.end(), 0.0);
    double sum = 0;
    for (size_t f = 0; f < s_.tables.size(); ++f) {
      const Factor& t = s_.tables[f];
      if (t.sizes.empty()) sum += entries_[t.start];
      if (t.sizes.size() < 2) continue;
      const Place p{static_cast<int64_t>(f), 0};
      fold(p, found_.data(), which_.data());
      const double* const m = to(messages_, p);
      int64_t best = 0;
      for (int64_t a = 0; a < t.sizes[0]; ++a) {
        found_[a] -= m[a];
        if (found_[a] > found_[best]) best = a;
      }
      sum += found_[best];
      if (!records_) continue;
      spread(p, which_[best], 1);
      to(of_messages_, p)[best] -= 1;
    }
    for (size_t v = 0; v < s_.sizes.size(); ++v) {
      std::copy_n(&own_[s_.starts[v]], s_.sizes[v], total_.data());
      for (int64_t a = 0; a < s_.sizes[v]; ++a)
        for (const Place& p : s_.places[v]) total_[a] = to(messages_, p)[a] == kInf ? -kInf : total_[a] + to(messages_, p)[a];
      const int64_t top = std::max_element(total_.begin(), total_.begin() + s_.sizes[v]) - total_.begin();
      sum += total_[top];
      if (!records_) continue;
      of_own_[s_.starts[v] + top] += 1;
      for (const Place& p : s_.places[v]) to(of_messages_, p)[top] += 1;
    }
    return sum;
  }

  // Adds to the derivative by an entry, and by the messages that it lacked for a variable.
  void spread(const Place& p, int64_t entry, double x) {
    const Factor& t = s_.tables[p.table];
    of_entries_[entry] += x;
    for (size_t k = 0; k < t.sizes.size(); ++k)
      if (static_cast<int64_t>(k) != p.slot) of_messages_[t.messages[k] + (entry - t.start) / t.strides[k] % t.sizes[k]] -= x;
  }

  // From the derivative by the messages that `step` made to that by what it read.
  void step_back(int64_t pass, int64_t v) {
    const int64_t size = s_.sizes[v];
    const auto chosen = [&](const Place& p) { return &chosen_[pass * s_.messages + s_.tables[p.table].messages[p.slot]]; };
    double* const of_total = total_.data();
    std::fill_n(of_total, size, 0.0);
    double of_most = 0;
    for (const Place& p : s_.places[v]) {
      if (!gives(p, pass, v)) continue;
      for (int64_t a = 0; a < size; ++a) {
        const double given = chosen(p)[a] < 0 ? 0.0 : s_.weights[v] * to(of_messages_, p)[a];
        of_total[a] -= given;
        of_most += given;
      }
    }
    of_total[tops_[pass * s_.sizes.size() + v]] += of_most;
    for (int64_t a = 0; a < size; ++a) of_own_[s_.starts[v] + a] += of_total[a];
    for (const Place& p : s_.places[v]) {
      double* const m = to(of_messages_, p);
      for (int64_t a = 0; a < size; ++a) {
        const double x = m[a] + of_total[a];
        m[a] = 0;
        if (chosen(p)[a] >= 0 && x != 0) spread(p, chosen(p)[a], x);
      }
    }
  }

  const Structure& s_;
  const int64_t sweeps_;
  const bool records_;
  std::vector<double> entries_, own_, messages_;            // own: for each value the sum of the tables of this variable alone
  std::vector<double> of_entries_, of_own_, of_messages_;   // the derivatives by them
  std::vector<int64_t> chosen_, tops_;                      // of each pass: the entry behind each message, or -1; the best value of each variable
  std::vector<double> total_, found_;
  std::vector<int64_t> which_, index_;
};

template <class T>
void run(Pool& pool, const NetworkBound& asked) {
  const Structure& s = *asked.structure;
  const int64_t batches = asked.batch.count(), tasks = std::min(batches, 4 * pool.threads());
  parallel(pool, tasks, [&](int64_t task) {
    Relaxed network(s, asked.sweeps, asked.shares != nullptr);
    for (int64_t b = task * batches / tasks; b < (task + 1) * batches / tasks; ++b) {
      for (size_t f = 0; f < s.tables.size(); ++f) {
        const Factor& t = s.tables[f];
        const T* const given = static_cast<const T*>(asked.tables[f]) + asked.batch.place(f, b) * t.count;
        std::copy_n(given, t.count, network.entries().begin() + t.start);
      }
      static_cast<T*>(asked.bound)[b] = static_cast<T>(network.bound());
      if (asked.shares == nullptr) continue;
      T* const to = static_cast<T*>(asked.shares) + b * s.entries;
      for (int64_t i = 0; i < s.entries; ++i) to[i] = static_cast<T>(network.shares()[i]);
    }
  });
}

template <class T>
void multiply(Pool& pool, const TablesDot& asked) {
  int64_t entries = 0;
  for (int64_t count : asked.counts) entries += count;
  parallel(pool, asked.batch.count(), [&](int64_t b) {
    const T* flat = static_cast<const T*>(asked.flat) + asked.batch.place(0, b) * entries;
    double sum = 0;
    for (size_t f = 0; f < asked.counts.size(); ++f) {
      const int64_t count = asked.counts[f];
      if (asked.is_transposed) {
        const T x = static_cast<const T*>(asked.inputs[0])[asked.batch.place(1, b)];
        T* const to = static_cast<T*>(asked.results[f]) + b * count;
        for (int64_t i = 0; i < count; ++i) to[i] = flat[i] * x;
      } else {
        const T* const table = static_cast<const T*>(asked.inputs[f]) + asked.batch.place(f + 1, b) * count;
        for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(flat[i]) * static_cast<double>(table[i]);
      }
      flat += count;
    }
    if (!asked.is_transposed) static_cast<T*>(asked.results[0])[b] = static_cast<T>(sum);
  });
}

}  // namespace

std::string run_tables_dot(Pool& pool, const TablesDot& asked) {
  const size_t tables = asked.counts.size();
  if (asked.inputs.size() != (asked.is_transposed ? 1 : tables) || asked.results.size() != (asked.is_transposed ? tables : 1)) return "malformed attributes";
  asked.type == Type::kF32 ? multiply<float>(pool, asked) : multiply<double>(pool, asked);
  return "";
}

std::string run_network_bound(Pool& pool, const NetworkBound& asked) {
  const size_t tables = asked.structure->tables.size();
  if (asked.sweeps < 0 || asked.tables.size() != tables) return "malformed attributes";
  asked.type == Type::kF32 ? run<float>(pool, asked) : run<double>(pool, asked);
  return "";
}

}  // namespace tropical
