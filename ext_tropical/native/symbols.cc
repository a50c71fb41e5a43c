// Alignments of symbols: in lanes of 16 and 32 bits where all scores are whole numbers, in strips of floats elsewhere. A path is found from rows that are kept at intervals, and from
// what goes from lane to lane: these cut the table into blocks, of which those that the path passes are computed once more.
#include "symbols.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

namespace tropical {
namespace {

constexpr int64_t kPair = 0, kFirst = 1, kSecond = 2, kStart = 3, kEnd = 4;

// --- whole numbers --------------------------------------------------------------------------------

// An alignment whose scores are whole numbers, the better the larger.
struct Whole {
  int64_t rows, columns, kinds;  // kinds: of the second sequence's symbols
  const int32_t *first, *second;
  bool first_begin, first_end, second_begin, second_end, local;
  int32_t gap, open;
  std::vector<int32_t> scores;
  int64_t apart;  // more than values of neighbours differ

  bool begins(int64_t i, int64_t j) const { return (i == 0 && (j == 0 || second_begin || local)) || (j == 0 && (first_begin || local)); }
  int64_t score(int64_t i, int64_t j) const { return scores[static_cast<size_t>(first[i - 1] * kinds + second[j - 1])]; }
  // The value of a node in row or column 0.
  int64_t at_side(int64_t i, int64_t j) const { return begins(i, j) ? 0 : open + (i + j - 1) * gap; }
};

// A score as a whole number: `low` stands for what is forbidden. False if it is none.
template <class T>
bool as_whole(T x, bool is_minimum, int32_t low, int32_t& to) {
  constexpr double most = 1 << 28;
  const double value = is_minimum ? -static_cast<double>(x) : static_cast<double>(x);
  const double zero = std::is_integral<T>::value ? (is_minimum ? -static_cast<double>(std::numeric_limits<T>::max()) : static_cast<double>(std::numeric_limits<T>::lowest())) : -HUGE_VAL;
  if (value == zero) {
    to = low;
    return true;
  }
  if (!(value >= -most && value <= most) || value != std::floor(value)) return false;
  to = static_cast<int32_t>(value);
  return true;
}

// False where an alignment is not one of whole numbers, or not one in which gaps are worse than none and the first of a gap is not better than
// others: lanes have neither -inf nor a gap that costs more in two steps than in one.
template <class T>
bool is_whole(const Alignment& a, const int32_t* first, const int32_t* second, const int64_t* kinds, Whole& w) {
  constexpr int32_t none = std::numeric_limits<int32_t>::lowest();
  if (!as_whole(*static_cast<const T*>(a.gap), a.is_minimum, none, w.gap)) return false;
  w.open = w.gap;
  if (a.affine && !as_whole(*static_cast<const T*>(a.gap_open), a.is_minimum, none, w.open)) return false;
  if (w.gap == none || w.open == none || w.open > w.gap || w.gap > 0 || a.warps || a.is_banded || a.rows < 1 || a.columns < 1 || kinds[0] > 256) return false;
  w.rows = a.rows, w.columns = a.columns, w.kinds = kinds[1], w.first = first, w.second = second;
  w.first_begin = a.first_begin, w.first_end = a.first_end, w.second_begin = a.second_begin, w.second_end = a.second_end, w.local = a.local;
  const int32_t low = 2 * w.open - 1;  // worse than two gaps, so no alignment has it
  w.scores.resize(static_cast<size_t>(kinds[0] * kinds[1]));
  int32_t most = 0;
  for (size_t i = 0; i < w.scores.size(); ++i) {
    if (!as_whole(static_cast<const T*>(a.scores)[i], a.is_minimum, low, w.scores[i])) return false;
    w.scores[i] = std::max(w.scores[i], low), most = std::max(most, w.scores[i]);
  }
  w.apart = most + 2 * -static_cast<int64_t>(w.open) + 1;
  const int64_t exact = sizeof(T) == 4 && !std::is_integral<T>::value ? 1 << 24 : 1 << 30;
  return (a.rows + a.columns + 2) * w.apart <= exact;
}

// --- rows in lanes --------------------------------------------------------------------------------

// Memory whose first entry is aligned to a cache line, with room for one before it.
class Aligned {
 public:
  template <class T>
  T* room(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T)) + 64;
    if (bytes > size_) data_.reset(static_cast<char*>(::operator new(static_cast<size_t>(bytes), std::align_val_t(64)))), size_ = bytes;
    return reinterpret_cast<T*>(data_.get() + 64);
  }
  template <class T>
  T* at() const { return reinterpret_cast<T*>(data_.get() + 64); }

 private:
  struct Free {
    void operator()(char* data) const { ::operator delete(data, std::align_val_t(64)); }
  };
  std::unique_ptr<char, Free> data_;
  int64_t size_ = 0;
};

// Some columns of a table in lanes: column l * span + r behind `column` is lane l of vector r.
struct Layout {
  bool is_wide;
  int64_t column, columns, lanes, span;
  Layout(const Kernels& kernels, bool is_wide, int64_t column, int64_t columns) : is_wide(is_wide), column(column), columns(columns) {
    lanes = kernels.lane_bytes / (is_wide ? 4 : 2), span = (columns + lanes - 1) / lanes;
  }
  int64_t size() const { return lanes * span; }
  int64_t place(int64_t column) const { return column % span * lanes + column / span; }
};

template <class T>
void spread(const Layout& layout, const int32_t* from, int64_t base, T* to) {
  for (int64_t r = 0; r < layout.span; ++r)
    for (int64_t l = 0; l < layout.lanes; ++l) to[r * layout.lanes + l] = static_cast<T>(from[std::min(l * layout.span + r, layout.columns - 1)] - base);
}

template <class T>
void spread_scores(const Whole& w, const Layout& layout, int64_t row, int64_t rows, T* to) {
  const int32_t none = static_cast<int32_t>(w.kinds);
  std::vector<int32_t> symbols(static_cast<size_t>(layout.size()));
  for (int64_t i = 0; i < layout.span; ++i)
    for (int64_t l = 0; l < layout.lanes; ++l) {
      const int64_t column = l * layout.span + i;
      symbols[static_cast<size_t>(i * layout.lanes + l)] = column < layout.columns ? w.second[layout.column + column] : none;
    }
  std::vector<T> scores(static_cast<size_t>(none + 1));
  std::vector<bool> is_there(w.scores.size() / static_cast<size_t>(none));
  for (int64_t i = row; i < row + rows; ++i) {
    const int32_t symbol = w.first[i];
    if (is_there[static_cast<size_t>(symbol)]) continue;
    is_there[static_cast<size_t>(symbol)] = true;
    for (int32_t k = 0; k < none; ++k) scores[static_cast<size_t>(k)] = static_cast<T>(w.scores[static_cast<size_t>(symbol * w.kinds + k)]);
    scores.back() = static_cast<T>(2 * w.open - 1);
    T* const mine = to + symbol * layout.size();
    for (int64_t k = 0; k < layout.size(); ++k) mine[k] = scores[static_cast<size_t>(symbols[static_cast<size_t>(k)])];
  }
}

// A table of some columns, of which the last row so far is here.
struct Table {
  const Whole& w;
  Layout layout;
  int64_t base = 0;
  Aligned values, ahead, scores;
  Table(const Whole& w, const Layout& layout) : w(w), layout(layout) {}

  template <class T>
  void begin_as(const int32_t* h, const int32_t* e, int64_t row, int64_t rows) {
    spread(layout, h, base, values.room<T>(layout.size()));
    spread(layout, e, base, ahead.room<T>(layout.size()));
    spread_scores(w, layout, row, rows, scores.room<T>(layout.size() * static_cast<int64_t>(w.scores.size()) / w.kinds));
  }
  // From the values of a row, and of what goes on from it by the first sequence.
  void begin(const int32_t* h, const int32_t* e, int64_t row, int64_t rows) { layout.is_wide ? begin_as<int32_t>(h, e, row, rows) : begin_as<int16_t>(h, e, row, rows); }
  int64_t value_at(const Aligned& from, int64_t column) const {
    const int64_t place = layout.place(column);
    return base + (layout.is_wide ? from.at<int32_t>()[place] : from.at<int16_t>()[place]);
  }
  std::vector<int32_t> row_of(const Aligned& from) const {
    std::vector<int32_t> to(static_cast<size_t>(layout.columns));
    for (int64_t j = 0; j < layout.columns; ++j) to[static_cast<size_t>(j)] = static_cast<int32_t>(value_at(from, j));
    return to;
  }
};

// A row that is kept, and what goes from lane to lane in those after it.
struct Kept {
  int64_t row;
  Table table;                 // without scores
  std::vector<int32_t> edges;  // for each row the lanes' last values, and what goes on into each by the second sequence
};

// The best end so far.
struct Best {
  int64_t score, sum, row;
  void meet(int64_t value, int64_t i, int64_t j) {
    if (value > score || (value == score && (i + j < sum || (i + j == sum && i < row)))) score = value, sum = i + j, row = i;
  }
};

// How many rows may be computed before values may leave the lanes, after values were moved to the middle; 0 if none.
int64_t rows_that_fit(Table& t) {
  if (t.layout.is_wide) return 1024;
  constexpr int64_t low = -30000, high = 32767, spread_of_rows = 4096;
  const int64_t apart = t.w.apart;
  if (apart > 1024) return 0;
  const int64_t rows = spread_of_rows / apart, margin = (rows + 4) * apart;
  int16_t* const values = t.values.at<int16_t>();
  int16_t least = values[0], most = values[0];
  for (int64_t i = 0; i < t.layout.size(); ++i) least = std::min(least, values[i]), most = std::max(most, values[i]);
  if (least - margin >= low && most + margin <= high) return rows;
  if (most - least + 2 * margin > high - low) return 0;
  const int16_t by = static_cast<int16_t>(least - margin - low);
  int16_t* const ahead = t.ahead.at<int16_t>();
  for (int64_t i = 0; i < t.layout.size(); ++i) values[i] = static_cast<int16_t>(values[i] - by), ahead[i] = static_cast<int16_t>(ahead[i] - by);
  t.base += by;
  return rows;
}

Best rows_of(const Whole& w, const Kernels& kernels, std::vector<Kept>* kept) {
  const int64_t m = w.rows, n = w.columns;
  std::vector<int32_t> h(static_cast<size_t>(n)), e(static_cast<size_t>(n));
  for (int64_t j = 1; j <= n; ++j) h[static_cast<size_t>(j - 1)] = static_cast<int32_t>(w.at_side(0, j)), e[static_cast<size_t>(j - 1)] = h[static_cast<size_t>(j - 1)] + w.open;
  const int64_t range = std::abs(w.at_side(0, n)) + w.apart;
  auto table = std::make_unique<Table>(w, Layout(kernels, range > 16000 || w.apart > 1024, 0, n));
  table->begin(h.data(), e.data(), 0, m);
  const int64_t most = std::numeric_limits<int64_t>::max();
  Best best{w.local ? 0 : std::numeric_limits<int64_t>::lowest(), w.local ? 0 : most, 0};
  if (w.first_end) best.meet(w.at_side(0, n), 0, n);
  const int64_t interval = std::max<int64_t>(128, 2 * static_cast<int64_t>(std::sqrt(static_cast<double>(m))));
  int64_t kept_until = 0;
  std::vector<int32_t> left, left_second, in_last;
  for (int64_t row = 0; row < m;) {
    int64_t rows = rows_that_fit(*table);
    if (rows == 0) {
      auto wide = std::make_unique<Table>(w, Layout(kernels, true, 0, n));
      wide->begin(table->row_of(table->values).data(), table->row_of(table->ahead).data(), row, m - row);
      table = std::move(wide), kept_until = row;
      continue;
    }
    const Layout& layout = table->layout;
    if (kept && row >= kept_until) {
      kept->push_back({row, Table(w, layout), {}});
      Table& copy = kept->back().table;
      const size_t bytes = static_cast<size_t>(layout.size()) * (layout.is_wide ? 4 : 2);
      copy.base = table->base;
      std::memcpy(copy.values.room<char>(static_cast<int64_t>(bytes)), table->values.at<char>(), bytes);
      std::memcpy(copy.ahead.room<char>(static_cast<int64_t>(bytes)), table->ahead.at<char>(), bytes);
      kept_until = row + interval;
    }
    rows = std::min(rows, m - row);
    if (kept) rows = std::min(rows, kept_until - row);
    left.resize(static_cast<size_t>(rows + 1)), left_second.resize(left.size()), in_last.resize(left.size());
    for (int64_t i = 0; i <= rows; ++i) left[static_cast<size_t>(i)] = static_cast<int32_t>(w.at_side(row + i, 0) - table->base);
    for (int64_t i = 0; i < rows; ++i) left_second[static_cast<size_t>(i)] = left[static_cast<size_t>(i + 1)] + w.open;
    SymbolRows s{};
    s.is_wide = layout.is_wide, s.is_local = w.local, s.row = row, s.rows = rows, s.span = layout.span;
    s.gap = w.gap, s.open = w.open, s.floor = static_cast<int32_t>(-table->base);
    s.symbols = w.first + row, s.profile = table->scores.at<char>(), s.values = table->values.at<char>(), s.ahead = table->ahead.at<char>();
    s.left = left.data(), s.left_second = left_second.data();
    size_t edges = 0;
    if (kept) {
      std::vector<int32_t>& mine = kept->back().edges;
      edges = mine.size(), mine.resize(edges + static_cast<size_t>(2 * rows * layout.lanes));
      s.edges = mine.data() + edges;
    }
    if (w.first_end) s.in_last = in_last.data(), s.last = n - 1;
    int32_t found = static_cast<int32_t>(best.score - table->base);
    int64_t end[2] = {best.sum, best.row};
    if (w.local) s.best = &found, s.end = end;
    kernels.symbol_rows(s);
    if (w.local) best = {found + table->base, end[0], end[1]};
    if (kept && table->base) {
      std::vector<int32_t>& mine = kept->back().edges;
      for (; edges < mine.size(); ++edges) mine[edges] += static_cast<int32_t>(table->base);
    }
    row += rows;
    if (w.first_end)
      for (int64_t i = 0; i < rows; ++i) best.meet(in_last[static_cast<size_t>(i)] + table->base, row - rows + i + 1, n);
  }
  if (w.local) return best;
  if (w.second_end) {
    best.meet(w.at_side(m, 0), m, 0);
    for (int64_t j = 1; j <= n; ++j) best.meet(table->value_at(table->values, j - 1), m, j);
  }
  best.meet(table->value_at(table->values, n - 1), m, n);
  return best;
}

// --- the way back ---------------------------------------------------------------------------------

// A block of the table: rows behind a kept one, columns of one of its lanes, with the values of its nodes by their last column.
class Block {
 public:
  Block(const Whole& w, const Kernels& kernels) : w_(w), kernels_(kernels), layout_(kernels, true, 0, 1) {}
  bool has(int64_t i, int64_t j) const { return i > row_ && i <= row_ + rows_ && j > layout_.column && j <= layout_.column + layout_.columns; }

  // The block that ends in node (i, j).
  void compute(const Kept& kept, int64_t i, int64_t j) {
    const Layout& whole = kept.table.layout;
    const int64_t lane = (j - 1) / whole.span, column = lane * whole.span;
    row_ = kept.row, rows_ = i - row_;
    layout_ = Layout(kernels_, true, column, j - column);
    top_.resize(static_cast<size_t>(layout_.columns)), left_.resize(static_cast<size_t>(rows_ + 1));
    std::vector<int32_t> ahead(top_.size()), second(left_.size());
    for (int64_t k = 0; k < layout_.columns; ++k) {
      top_[static_cast<size_t>(k)] = static_cast<int32_t>(kept.table.value_at(kept.table.values, column + k));
      ahead[static_cast<size_t>(k)] = static_cast<int32_t>(kept.table.value_at(kept.table.ahead, column + k));
    }
    for (int64_t k = 0; k <= rows_; ++k) {
      int32_t& value = left_[static_cast<size_t>(k)];
      const int32_t* const edges = kept.edges.data() + (k - 1) * 2 * whole.lanes;
      if (lane == 0) value = static_cast<int32_t>(w_.at_side(row_ + k, 0));
      else value = k ? edges[lane - 1] : static_cast<int32_t>(kept.table.value_at(kept.table.values, column - 1));
      if (k) second[static_cast<size_t>(k - 1)] = lane ? edges[whole.lanes + lane] : value + w_.open;
    }
    Table table(w_, layout_);
    table.begin(top_.data(), ahead.data(), row_, rows_);
    SymbolRows s{};
    s.is_wide = true, s.is_local = w_.local, s.row = row_, s.rows = rows_, s.span = layout_.span;
    s.gap = w_.gap, s.open = w_.open, s.symbols = w_.first + row_, s.profile = table.scores.at<char>(), s.values = table.values.at<char>(), s.ahead = table.ahead.at<char>();
    s.left = left_.data(), s.left_second = second.data();
    s.kept = kept_.room<int32_t>(rows_ * 3 * layout_.size());
    int32_t best = std::numeric_limits<int32_t>::max();
    s.best = &best;
    kernels_.symbol_rows(s);
  }

  // The kind of the column that leads to a node of the block from which one of kind `next` goes on.
  int64_t kind_before(int64_t i, int64_t j, int64_t next) const {
    const int64_t before = value(i - 1, j - 1), first = by(1, i, j), second = by(2, i, j), gap = w_.gap, open = w_.open;
    const int64_t pair = (w_.local ? std::max<int64_t>(before, 0) : before) + w_.score(i, j);
    const int64_t candidates[3] = {pair + (next == kFirst || next == kSecond ? open : 0), first + (next == kFirst ? gap : next == kSecond ? open : 0),
                                   second + (next == kSecond ? gap : next == kFirst ? open : 0)};
    const int64_t kind = std::max_element(candidates, candidates + 3) - candidates;
    return w_.local && next == kPair && candidates[kind] <= 0 ? kStart : kind;
  }

 private:
  int64_t by(int64_t kind, int64_t i, int64_t j) const { return kept_.at<int32_t>()[((i - row_ - 1) * 3 + kind) * layout_.size() + layout_.place(j - layout_.column - 1)]; }
  int64_t value(int64_t i, int64_t j) const {
    if (j == layout_.column) return left_[static_cast<size_t>(i - row_)];
    return i == row_ ? top_[static_cast<size_t>(j - layout_.column - 1)] : by(0, i, j);
  }
  const Whole& w_;
  const Kernels& kernels_;
  Layout layout_;
  int64_t row_ = 0, rows_ = 0;
  std::vector<int32_t> top_, left_;
  Aligned kept_;
};

void walk(const Whole& w, const Kernels& kernels, const std::vector<Kept>& kept, int64_t i, int64_t j, int64_t room, int32_t* path) {
  Block block(w, kernels);
  int64_t count = 0, next = kEnd;
  size_t which = kept.size();
  while (!w.begins(i, j)) {
    if (i && j && !block.has(i, j)) {
      while (which == kept.size() || kept[which].row >= i) --which;
      block.compute(kept[which], i, j);
    }
    next = i == 0 ? kSecond : j == 0 ? kFirst : block.kind_before(i, j, next);
    if (next == kStart) break;
    int32_t* const column = path + 2 * count++;
    column[0] = next == kSecond ? -1 : static_cast<int32_t>(i - 1);
    column[1] = next == kFirst ? -1 : static_cast<int32_t>(j - 1);
    i -= next != kSecond, j -= next != kFirst;
  }
  for (int64_t k = 0; k < count / 2; ++k)
    for (int side = 0; side < 2; ++side) std::swap(path[2 * k + side], path[2 * (count - 1 - k) + side]);
  std::fill(path + 2 * count, path + 2 * room, -1);
}

Best align_whole(const Whole& w, const Kernels& kernels, int64_t room, int32_t* path) {
  std::vector<Kept> kept;
  const Best best = rows_of(w, kernels, path ? &kept : nullptr);
  if (path) walk(w, kernels, kept, best.row, best.sum - best.row, room, path);
  return best;
}

// --- all alignments -------------------------------------------------------------------------------

bool are_inside(const int32_t* symbols, int64_t count, int64_t kinds) {
  return std::all_of(symbols, symbols + count, [&](int32_t x) { return x >= 0 && x < kinds; });
}

template <class T>
void align_one(const SymbolAlignments& asked, int64_t number, const Kernels& kernels) {
  Alignment a = asked.one;
  const int64_t rows = a.rows, columns = a.columns, entries = asked.kinds[0] * asked.kinds[1], room = rows + columns;
  const auto place = [&](SymbolAlignments::Input i) { return asked.batch.place(i, number); };
  const auto integers = [&](SymbolAlignments::Input i, int64_t size) { return static_cast<const int32_t*>(asked.inputs[i]) + place(i) * size; };
  const auto numbers_of = [&](SymbolAlignments::Input i, int64_t size) { return static_cast<const T*>(asked.inputs[i]) + place(i) * size; };
  const int32_t* const first = integers(SymbolAlignments::kFirst, rows);
  const int32_t* const second = integers(SymbolAlignments::kSecond, columns);
  const int32_t* const lengths = integers(SymbolAlignments::kLengths, 2);
  const T* const scores = numbers_of(SymbolAlignments::kScores, entries);
  const T* const gap = numbers_of(SymbolAlignments::kGap, 1);
  const T* const gap_open = numbers_of(SymbolAlignments::kGapOpen, 1);
  a.scores = scores, a.gap = gap, a.gap_open = gap_open;
  T* const score = static_cast<T*>(asked.results[0]) + number;
  int32_t* const path = asked.results.size() > 1 ? static_cast<int32_t*>(asked.results[1]) + 2 * number * room : nullptr;
  constexpr bool is_integer = std::is_integral<T>::value;
  const double infinite = a.is_minimum ? HUGE_VAL : -HUGE_VAL;
  const T zero = is_integer ? (a.is_minimum ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest()) : static_cast<T>(infinite);
  a.rows = lengths[0], a.columns = lengths[1];
  if (a.rows < 0 || a.rows > rows || a.columns < 0 || a.columns > columns || !are_inside(first, a.rows, asked.kinds[0]) || !are_inside(second, a.columns, asked.kinds[1])) {
    *score = zero;
    if (path) std::fill_n(path, 2 * room, -1);
    return;
  }
  Whole w;
  if (is_whole<T>(a, first, second, asked.kinds, w)) {
    const Best best = align_whole(w, kernels, room, path);
    *score = static_cast<T>(a.is_minimum ? -best.score : best.score);
    return;
  }
  using Float = std::conditional_t<is_integer, double, T>;
  std::vector<Float> numbers;
  const auto as_float = [&](T x) { return is_integer && x == zero ? static_cast<Float>(infinite) : static_cast<Float>(x); };
  for (int64_t i = 0; i < entries; ++i) numbers.push_back(as_float(scores[i]));
  const Float gaps[2] = {as_float(*gap), as_float(*gap_open)};
  Float found;
  Alignments one{};
  one.one = a, one.batch = 1, one.lengths = lengths;
  one.one.type = sizeof(Float) == 4 ? Type::kF32 : Type::kF64;
  one.one.rows = rows, one.one.columns = columns, one.one.stride = asked.kinds[1];
  one.one.scores = numbers.data(), one.one.gap = gaps, one.one.gap_open = gaps + 1, one.one.first = first, one.one.second = second;
  one.results.push_back(&found);
  if (path) one.results.push_back(path);
  align_alone(one, kernels);
  *score = is_integer ? found == infinite ? zero : static_cast<T>(static_cast<int64_t>(found)) : static_cast<T>(found);
}

}  // namespace

void align_symbols(Pool& pool, const SymbolAlignments& asked, const Kernels& kernels) {
  parallel(pool, asked.batch.count(), [&](int64_t i) {
    switch (asked.one.type) {
      case Type::kF32: return align_one<float>(asked, i, kernels);
      case Type::kF64: return align_one<double>(asked, i, kernels);
      default: return align_one<int32_t>(asked, i, kernels);
    }
  });
}

std::string fill(SymbolAlignments& asked, int64_t type, int64_t algebra, int64_t rules) {
  constexpr int64_t most = int64_t{1} << 29;
  Alignment& a = asked.one;
  Alignments scored{};  // which takes no integers
  scored.one = a, scored.batch = 1, scored.results = asked.results;
  const bool is_integer = static_cast<Type>(type) == Type::kI32;
  const std::string problem = fill(scored, is_integer ? 1 : type, algebra, 1.0, rules, -1);
  if (!problem.empty()) return problem;
  if (scored.one.is_log || scored.one.warps || asked.results.size() > 2) return "malformed attributes";
  if (asked.kinds[0] < 1 || asked.kinds[1] < 1 || asked.kinds[0] > most || asked.kinds[1] > most || asked.kinds[0] * asked.kinds[1] > most) return "sizes out of range";
  a = scored.one;
  if (is_integer) a.type = Type::kI32;
  return "";
}

}  // namespace tropical
