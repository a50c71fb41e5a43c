// Alignments of symbols: in lanes of 8, 16 and 32 bits where all scores are whole numbers, in strips of floats elsewhere. A path is found from rows that are kept at intervals, and from
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
  int64_t most;   // the largest score, or 0
  int64_t apart;  // more than values of neighbours differ

  bool begins(int64_t i, int64_t j) const { return (i == 0 && (j == 0 || second_begin || local)) || (j == 0 && (first_begin || local)); }
  int64_t score(int64_t i, int64_t j) const { return scores[static_cast<size_t>(first[i - 1] * kinds + second[j - 1])]; }
  // The value of a node in row or column 0.
  int64_t at_side(int64_t i, int64_t j) const { return begins(i, j) ? 0 : open + (i + j - 1) * gap; }
};

// A score as a whole number, the better the larger. False if it is none, or none of 28 bits.
bool as_whole(double x, bool is_minimum, int32_t& to) {
  constexpr double most = 1 << 28;
  if (!(x >= -most && x <= most) || x != std::floor(x)) return false;
  to = static_cast<int32_t>(is_minimum ? -x : x);
  return true;
}

// The scores of an alignment in a type that has them exactly; what forbids a pair is infinite.
struct Scores {
  std::vector<double> pairs, gaps;  // gap and gap_open
};

// False where an alignment is not one of whole numbers, or not one in which gaps are worse than none and the first of a gap is not better than
// others: lanes have neither -inf nor a gap that costs more in two steps than in one.
bool is_whole(const Alignment& a, const Scores& scores, const int32_t* first, const int32_t* second, const int64_t* kinds, Whole& w) {
  if (!as_whole(scores.gaps[0], a.is_minimum, w.gap)) return false;
  w.open = w.gap;
  if (a.affine && !as_whole(scores.gaps[1], a.is_minimum, w.open)) return false;
  if (w.open > w.gap || w.gap > 0 || a.rows < 1 || a.columns < 1 || kinds[0] > 256) return false;
  w.rows = a.rows, w.columns = a.columns, w.kinds = kinds[1], w.first = first, w.second = second;
  w.first_begin = a.first_begin, w.first_end = a.first_end, w.second_begin = a.second_begin, w.second_end = a.second_end, w.local = a.local;
  const int32_t low = 2 * w.open - 1;  // worse than two gaps, so no alignment has it
  const double forbidden = a.is_minimum ? HUGE_VAL : -HUGE_VAL;
  w.most = 0;
  for (double x : scores.pairs) {
    int32_t score = low;
    if (x != forbidden && !as_whole(x, a.is_minimum, score)) return false;
    w.scores.push_back(std::max(score, low)), w.most = std::max<int64_t>(w.most, score);
  }
  w.apart = w.most + 2 * -static_cast<int64_t>(w.open) + 1;
  return (a.rows + a.columns + 2) * w.apart <= (a.type == Type::kF32 ? 1 << 24 : 1 << 29);
}

// --- rows in lanes --------------------------------------------------------------------------------

constexpr int64_t kMost16 = 32767, kLow16 = -30000;  // of 16 bits, unless local
constexpr int64_t kSpread = 4096;                     // how far values may move before they are looked at

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

// Runs f(T{}) for the numbers of so many bits.
template <class F>
auto with_bits(int64_t bits, const F& f) { return bits == 8 ? f(int8_t{}) : bits == 16 ? f(int16_t{}) : f(int32_t{}); }

// Some columns of a table in lanes: column l * span + r behind `column` is lane l of vector r.
struct Layout {
  int64_t bits, column, columns, lanes, span;
  Layout(const Kernels& kernels, int64_t bits, int64_t column, int64_t columns) : bits(bits), column(column), columns(columns) {
    lanes = 8 * kernels.lane_bytes / bits, span = (columns + lanes - 1) / lanes;
  }
  int64_t size() const { return lanes * span; }
  int64_t bytes() const { return size() * bits / 8; }
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
  Table(const Whole& w, const Layout& layout) : w(w), layout(layout) {
    if (layout.bits == 32) return;
    base = w.local ? most() + 1 - below(w) : w.at_side(0, w.columns) / 2;  // if local, no value is below that of no column
  }
  int64_t most() const { return (int64_t{1} << (layout.bits - 1)) - 1; }
  // How far below the value of no column numbers are.
  static int64_t below(const Whole& w) { return 3 * -static_cast<int64_t>(w.open) + 2; }

  // From the values of a row, and of what goes on from it by the first sequence.
  void begin(const int32_t* h, const int32_t* e, int64_t row, int64_t rows) {
    with_bits(layout.bits, [&](auto zero) {
      using T = decltype(zero);
      spread(layout, h, base, values.room<T>(layout.size()));
      spread(layout, e, base, ahead.room<T>(layout.size()));
      spread_scores(w, layout, row, rows, scores.room<T>(layout.size() * static_cast<int64_t>(w.scores.size()) / w.kinds));
    });
  }
  void copy_row(const Table& from) {
    base = from.base;
    std::memcpy(values.room<char>(layout.bytes()), from.values.at<char>(), static_cast<size_t>(layout.bytes()));
    std::memcpy(ahead.room<char>(layout.bytes()), from.ahead.at<char>(), static_cast<size_t>(layout.bytes()));
  }
  int64_t value_at(const Aligned& from, int64_t column) const {
    return base + with_bits(layout.bits, [&](auto zero) { return static_cast<int64_t>(from.at<decltype(zero)>()[layout.place(column)]); });
  }
  std::vector<int32_t> row_of(const Aligned& from) const {
    std::vector<int32_t> to(static_cast<size_t>(layout.columns));
    for (int64_t j = 0; j < layout.columns; ++j) to[static_cast<size_t>(j)] = static_cast<int32_t>(value_at(from, j));
    return to;
  }
};

void set_numbers(const Whole& w, const Table& t, SymbolRows& s) {
  s.bits = t.layout.bits, s.is_local = w.local, s.gap = w.gap, s.open = w.open;
  s.floor = static_cast<int32_t>(-t.base), s.most = static_cast<int32_t>(t.most() - w.most);
  s.low = w.local ? s.floor + w.open : s.bits == 16 ? static_cast<int32_t>(kLow16) : -(1 << 30);
}

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

// The number of bits with which a table begins.
int64_t first_bits(const Whole& w) {
  if (w.local) {
    const int64_t least = Table::below(w) + 2 * w.most;
    return least <= 128 ? 8 : least <= kMost16 / 2 ? 16 : 32;
  }
  return w.apart <= kSpread / 4 && std::abs(w.at_side(0, w.columns)) <= kMost16 ? 16 : 32;
}

// How many rows may be computed before values may leave 16 bits, after values were moved to the middle; 0 if none.
int64_t rows_that_fit(Table& t) {
  const int64_t rows = kSpread / t.w.apart, margin = (rows + 4) * t.w.apart;
  int16_t* const values = t.values.at<int16_t>();
  int16_t least = kMost16, most = -kMost16 - 1;
  for (int64_t i = 0; i < t.layout.size(); ++i) least = std::min(least, values[i]), most = std::max(most, values[i]);
  if (least - margin >= kLow16 && most + margin <= kMost16) return rows;
  if (most - least + 2 * margin > kMost16 - kLow16) return 0;
  const int64_t by = least - margin - kLow16;
  const int32_t less = static_cast<int32_t>(by);
  int16_t* const ahead = t.ahead.at<int16_t>();
  for (int64_t i = 0; i < t.layout.size(); ++i) values[i] = static_cast<int16_t>(values[i] - less), ahead[i] = static_cast<int16_t>(ahead[i] - less);
  t.base += by;
  return rows;
}

// All rows of an alignment, one after another.
class Rows {
 public:
  Rows(const Whole& w, const Kernels& kernels, std::vector<Kept>* kept)
      : w_(w), kernels_(kernels), kept_(kept), table_(std::make_unique<Table>(w, Layout(kernels, first_bits(w), 0, w.columns))) {}

  Best best() {
    const int64_t m = w_.rows, n = w_.columns;
    std::vector<int32_t> h(static_cast<size_t>(n)), e(h.size());
    for (size_t j = 0; j < h.size(); ++j) h[j] = static_cast<int32_t>(w_.at_side(0, static_cast<int64_t>(j) + 1)), e[j] = h[j] + w_.open;
    table_->begin(h.data(), e.data(), 0, m);
    best_ = w_.local ? Best{0, 0, 0} : Best{std::numeric_limits<int64_t>::lowest(), std::numeric_limits<int64_t>::max(), 0};
    if (w_.first_end) best_.meet(w_.at_side(0, n), 0, n);
    while (row_ < m) {
      const bool is_checked = table_->layout.bits == 16 && !w_.local;
      const int64_t rows = std::min(is_checked ? rows_that_fit(*table_) : 1024, m - row_);
      if (rows) advance(rows);
      if (!rows || (w_.local && best_.score > most_score())) widen();
    }
    if (w_.local) return best_;
    if (w_.second_end) {
      best_.meet(w_.at_side(m, 0), m, 0);
      for (int64_t j = 1; j <= n; ++j) best_.meet(table_->value_at(table_->values, j - 1), m, j);
    }
    best_.meet(table_->value_at(table_->values, n - 1), m, n);
    return best_;
  }

 private:
  int64_t most_score() const { return table_->base + table_->most() - w_.most; }

  void widen() {
    auto wide = std::make_unique<Table>(w_, Layout(kernels_, 2 * table_->layout.bits, 0, w_.columns));
    wide->begin(table_->row_of(table_->values).data(), table_->row_of(table_->ahead).data(), row_, w_.rows - row_);
    table_ = std::move(wide), kept_until_ = row_;
  }

  void advance(int64_t rows) {
    const Layout& layout = table_->layout;
    if (kept_ && row_ >= kept_until_) {
      kept_->push_back({row_, Table(w_, layout), {}});
      kept_->back().table.copy_row(*table_);
      kept_until_ = row_ + std::max<int64_t>(128, 2 * static_cast<int64_t>(std::sqrt(static_cast<double>(w_.rows))));
    }
    if (kept_) rows = std::min(rows, kept_until_ - row_);
    const size_t count = static_cast<size_t>(rows);
    const int64_t base = table_->base;
    left_.resize(count + 1), left_second_.resize(count), in_last_.resize(count);
    for (size_t i = 0; i <= count; ++i) left_[i] = static_cast<int32_t>(w_.at_side(row_ + static_cast<int64_t>(i), 0) - base);
    for (size_t i = 0; i < count; ++i) left_second_[i] = left_[i + 1] + w_.open;
    SymbolRows s{};
    s.row = row_, s.rows = rows, s.span = layout.span;
    set_numbers(w_, *table_, s);
    s.symbols = w_.first + row_, s.profile = table_->scores.at<char>(), s.values = table_->values.at<char>(), s.ahead = table_->ahead.at<char>();
    s.left = left_.data(), s.left_second = left_second_.data();
    std::vector<int32_t> none, &edges = kept_ ? kept_->back().edges : none;
    const size_t before = edges.size();
    if (kept_) edges.resize(before + static_cast<size_t>(2 * rows * layout.lanes)), s.edges = edges.data() + before;
    if (w_.first_end) s.in_last = in_last_.data(), s.last = w_.columns - 1;
    int32_t found = static_cast<int32_t>(best_.score - base);
    int64_t end[2] = {best_.sum, best_.row};
    if (w_.local) s.best = &found, s.end = end;
    rows = kernels_.symbol_rows(s);
    if (kept_) edges.resize(before + static_cast<size_t>(2 * rows * layout.lanes));
    for (size_t i = before; base && i < edges.size(); ++i) edges[i] += static_cast<int32_t>(base);
    if (w_.local) best_ = {found + base, end[0], end[1]};
    for (int64_t i = 0; w_.first_end && i < rows; ++i) best_.meet(in_last_[static_cast<size_t>(i)] + base, row_ + i + 1, w_.columns);
    row_ += rows;
  }

  const Whole& w_;
  const Kernels& kernels_;
  std::vector<Kept>* kept_;
  std::unique_ptr<Table> table_;
  Best best_{};
  int64_t row_ = 0, kept_until_ = 0;
  std::vector<int32_t> left_, left_second_, in_last_;
};

// --- the way back ---------------------------------------------------------------------------------

// A block of the table: rows behind a kept one, columns from the first of a lane on, with the values of its nodes by their last column.
class Block {
 public:
  Block(const Whole& w, const Kernels& kernels) : w_(w), kernels_(kernels), layout_(kernels, 32, 0, 1) {}
  bool has(int64_t i, int64_t j) const { return i > row_ && i <= row_ + rows_ && j > layout_.column && j <= layout_.column + layout_.columns; }

  // The block that ends in node (i, j).
  void compute(const Kept& kept, int64_t i, int64_t j) {
    const Layout& whole = kept.table.layout;
    const int64_t back = whole.span < kLeast ? std::min(j - 1, kLeast) : 0;  // narrow blocks are slow
    const int64_t lane = (j - 1 - back) / whole.span, column = lane * whole.span;
    row_ = kept.row, rows_ = i - row_;
    layout_ = Layout(kernels_, 32, column, j - column);
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
    s.row = row_, s.rows = rows_, s.span = layout_.span;
    set_numbers(w_, table, s);
    s.symbols = w_.first + row_, s.profile = table.scores.at<char>(), s.values = table.values.at<char>(), s.ahead = table.ahead.at<char>();
    s.left = left_.data(), s.left_second = second.data();
    s.kept = kept_.room<int32_t>(rows_ * 3 * layout_.size());
    int32_t best = std::numeric_limits<int32_t>::max();  // no pair is looked for
    s.best = &best, s.most = best;
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
  static constexpr int64_t kLeast = 128;
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
  const Best best = Rows(w, kernels, path ? &kept : nullptr).best();
  if (path) walk(w, kernels, kept, best.row, best.sum - best.row, room, path);
  return best;
}

// --- all alignments -------------------------------------------------------------------------------

bool are_inside(const int32_t* symbols, int64_t count, int64_t kinds) {
  return std::all_of(symbols, symbols + count, [&](int32_t x) { return x >= 0 && x < kinds; });
}

constexpr int32_t kLeastInteger = std::numeric_limits<int32_t>::lowest(), kMostInteger = std::numeric_limits<int32_t>::max();

// Numbers of a type; the integer that stands for an infinite one as that.
std::vector<double> numbers_of(const Alignment& a, const void* from, int64_t at, int64_t count) {
  if (a.type == Type::kF32) return {static_cast<const float*>(from) + at, static_cast<const float*>(from) + at + count};
  if (a.type == Type::kF64) return {static_cast<const double*>(from) + at, static_cast<const double*>(from) + at + count};
  const int32_t* const integers = static_cast<const int32_t*>(from) + at;
  std::vector<double> found(integers, integers + count);
  for (double& x : found)
    if (x == (a.is_minimum ? kMostInteger : kLeastInteger)) x = a.is_minimum ? HUGE_VAL : -HUGE_VAL;
  return found;
}

void write_score(const Alignment& a, double score, int64_t at, void* to) {
  if (a.type == Type::kF32) static_cast<float*>(to)[at] = static_cast<float>(score);
  else if (a.type == Type::kF64) static_cast<double*>(to)[at] = score;
  else static_cast<int32_t*>(to)[at] = static_cast<int32_t>(std::clamp<double>(score, kLeastInteger, kMostInteger));
}

// In strips of float, or of double.
template <class T>
double align_in_strips(Alignment a, const Scores& scores, const int32_t* lengths, int32_t* path, const Kernels& kernels) {
  const std::vector<T> pairs(scores.pairs.begin(), scores.pairs.end()), gaps(scores.gaps.begin(), scores.gaps.end());
  T found;
  a.type = sizeof(T) == 4 ? Type::kF32 : Type::kF64;
  a.scores = pairs.data(), a.gap = gaps.data(), a.gap_open = gaps.data() + 1;
  Alignments one{};
  one.one = a, one.batch = 1, one.lengths = lengths, one.results.push_back(&found);
  if (path) one.results.push_back(path);
  align_alone(one, kernels);
  return found;
}

void align_one(const SymbolAlignments& asked, int64_t number, const Kernels& kernels) {
  Alignment a = asked.one;
  const int64_t rows = a.rows, columns = a.columns, entries = asked.kinds[0] * asked.kinds[1], room = rows + columns;
  const auto integers = [&](SymbolAlignments::Input i, int64_t size) { return static_cast<const int32_t*>(asked.inputs[i]) + asked.batch.place(i, number) * size; };
  const auto numbers = [&](SymbolAlignments::Input i, int64_t size) { return numbers_of(a, asked.inputs[i], asked.batch.place(i, number) * size, size); };
  const int32_t* const first = integers(SymbolAlignments::kFirst, rows);
  const int32_t* const second = integers(SymbolAlignments::kSecond, columns);
  const int32_t* const lengths = integers(SymbolAlignments::kLengths, 2);
  int32_t* const path = asked.results.size() > 1 ? static_cast<int32_t*>(asked.results[1]) + 2 * number * room : nullptr;
  a.rows = lengths[0], a.columns = lengths[1];
  if (a.rows < 0 || a.rows > rows || a.columns < 0 || a.columns > columns || !are_inside(first, a.rows, asked.kinds[0]) || !are_inside(second, a.columns, asked.kinds[1])) {
    write_score(a, a.is_minimum ? HUGE_VAL : -HUGE_VAL, number, asked.results[0]);
    if (path) std::fill_n(path, 2 * room, -1);
    return;
  }
  const Scores scores{numbers(SymbolAlignments::kScores, entries), {numbers(SymbolAlignments::kGap, 1)[0], numbers(SymbolAlignments::kGapOpen, 1)[0]}};
  Whole w;
  double score;
  if (is_whole(a, scores, first, second, asked.kinds, w)) {
    const double best = static_cast<double>(align_whole(w, kernels, room, path).score);
    score = a.is_minimum ? 0 - best : best;
  } else {
    a.rows = rows, a.columns = columns, a.stride = asked.kinds[1], a.first = first, a.second = second;
    score = a.type == Type::kF32 ? align_in_strips<float>(a, scores, lengths, path, kernels) : align_in_strips<double>(a, scores, lengths, path, kernels);
  }
  write_score(a, score, number, asked.results[0]);
}

}  // namespace

void align_symbols(Pool& pool, const SymbolAlignments& asked, const Kernels& kernels) {
  parallel(pool, asked.batch.count(), [&](int64_t i) { align_one(asked, i, kernels); });
}

std::string fill(SymbolAlignments& asked, int64_t type, int64_t algebra, double temperature, int64_t rules, int64_t band) {
  constexpr int64_t most = int64_t{1} << 29;
  Alignment& a = asked.one;
  Alignments scored{};  // which takes no integers
  scored.one = a, scored.batch = 1, scored.results = asked.results;
  const bool is_integer = static_cast<Type>(type) == Type::kI32;
  const std::string problem = fill(scored, is_integer ? 1 : type, algebra, temperature, rules, band);
  if (!problem.empty()) return problem;
  if (scored.one.is_log || scored.one.warps || scored.one.is_banded || asked.results.size() > 2) return "malformed attributes";
  if (asked.kinds[0] < 1 || asked.kinds[1] < 1 || asked.kinds[0] > most || asked.kinds[1] > most || asked.kinds[0] * asked.kinds[1] > most) return "sizes out of range";
  a = scored.one;
  if (is_integer) a.type = Type::kI32;
  return "";
}

}  // namespace tropical
