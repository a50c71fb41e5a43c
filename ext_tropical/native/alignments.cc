// Alignments: cut into strips, walked back from the kinds of columns that the strips left, one pair of sequences a task.
#include "alignments.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>

namespace tropical {
namespace {

constexpr int64_t kPair = 0, kFirst = 1, kSecond = 2, kStart = 3;

std::vector<Strip> strips_of(const Alignment& a) {
  const int64_t nodes = a.rows + 1, count = (nodes + kMostLanes - 1) / kMostLanes, lanes = ((nodes + count - 1) / count + 15) / 16 * 16;
  std::vector<Strip> strips;
  for (int64_t row = 0; row <= a.rows; row += lanes) {
    Strip s{row, lanes, 0, a.columns + lanes - 1};
    if (a.is_banded) s.first = std::max<int64_t>(row - a.band, 0), s.last = std::min(s.last, row + 2 * (lanes - 1) + a.band);
    if (s.first > s.last) break;  // from here on no node is in the band
    strips.push_back(s);
  }
  return strips;
}

// Memory for one call, cut from one piece.
class Room {
 public:
  char* take(int64_t bytes) {
    const int64_t at = size_;
    size_ += (bytes + 63) / 64 * 64;
    return data_.get() ? data_.get() + at : nullptr;
  }
  void allocate() {
    data_.reset(static_cast<char*>(::operator new(static_cast<size_t>(size_), std::align_val_t(64))));
    size_ = 0;
  }

 private:
  struct Free {
    void operator()(char* data) const { ::operator delete(data, std::align_val_t(64)); }
  };
  std::unique_ptr<char, Free> data_;
  int64_t size_ = 0;
};

// The columns of the path whose last one leads to node (i, j), in order, and then rows of -1.
void walk(const Alignment& a, const std::vector<Strip>& strips, const std::vector<uint8_t*>& codes, int64_t i, int64_t j, int64_t room, int32_t* path) {
  const auto code_at = [&](int64_t i, int64_t j) -> int64_t {
    const size_t which = static_cast<size_t>(i / strips[0].lanes);
    if (which >= strips.size()) return kStart;
    const Strip& s = strips[which];
    const int64_t lane = i - s.row, t = lane + j;
    return t < s.first || t > s.last ? kStart : codes[which][(t - s.first) * s.lanes + lane];
  };
  const int64_t fields = a.affine ? 3 : a.local ? 2 : 1;
  int64_t count = 0;
  if (!a.begins(i, j)) {
    for (int64_t kind = a.local ? kPair : a.has_free_end() ? code_at(i, j) >> 6 : code_at(i, j) % 4; kind != kStart && count < room;) {
      if ((kind != kSecond && i == 0) || (kind != kFirst && j == 0)) break;  // only where the score is NaN
      int32_t* const column = path + 2 * count++;
      column[0] = static_cast<int32_t>(a.warps || kind != kSecond ? i - 1 : -1);
      column[1] = static_cast<int32_t>(a.warps || kind != kFirst ? j - 1 : -1);
      i -= kind != kSecond, j -= kind != kFirst;
      if (a.begins(i, j)) break;
      kind = code_at(i, j) >> 2 * std::min(kind, fields - 1) & 3;
    }
  }
  for (int64_t k = 0; k < count / 2; ++k)
    for (int side = 0; side < 2; ++side) std::swap(path[2 * k + side], path[2 * (count - 1 - k) + side]);
  std::fill(path + 2 * count, path + 2 * room, -1);
}

template <class T>
void align_one(const Alignments& asked, int64_t number, const Kernels& kernels) {
  Alignment a = asked.one;
  const int64_t rows = a.rows, columns = a.columns, entries = rows * columns;
  a.scores = static_cast<const T*>(a.scores) + number * entries;
  a.gap = static_cast<const T*>(a.gap) + number, a.gap_open = static_cast<const T*>(a.gap_open) + number;
  bool fits = true;
  if (asked.lengths) {
    a.rows = asked.lengths[2 * number], a.columns = asked.lengths[2 * number + 1];
    fits = a.rows >= 0 && a.rows <= rows && a.columns >= 0 && a.columns <= columns;
  }
  const bool counts = asked.results.size() == 3, wants_path = asked.results.size() == 2;
  const T zero = -static_cast<T>(__builtin_inff()), one = 0, own_zero = a.is_minimum ? -zero : zero;
  T score = a.local ? one : zero;
  int32_t* const path = wants_path ? static_cast<int32_t*>(asked.results[1]) + 2 * number * (rows + columns) : nullptr;
  StripBack back{};
  double ended = 0;
  back.ended = &ended;
  if (counts) {
    back.counts = static_cast<T*>(asked.results[0]) + number * entries;
    back.gap = static_cast<T*>(asked.results[1]) + number, back.gap_open = static_cast<T*>(asked.results[2]) + number;
    std::fill_n(static_cast<T*>(back.counts), entries, T(0));
    *static_cast<T*>(back.gap) = *static_cast<T*>(back.gap_open) = T(0);
  }
  if (!fits) {
    if (!counts) static_cast<T*>(asked.results[0])[number] = own_zero;
    if (path) std::fill_n(path, 2 * (rows + columns), -1);
    return;
  }
  const std::vector<Strip> strips = strips_of(a);
  std::vector<StripRoom> rooms(strips.size());
  std::vector<uint8_t*> codes(strips.size());
  int64_t end[2] = {0, 0};
  const int64_t item = sizeof(T), row = row_size(strips[0].lanes) * item, turn = kTurn * strips[0].lanes * item;
  const int kinds = a.affine ? 3 : 1;
  Room room;
  for (int pass = 0; pass < 2; ++pass) {
    if (pass) room.allocate();
    StripRoom shared{};
    shared.count = 3, shared.score = &score, shared.end = end;
    for (void*& above : shared.above) above = room.take((columns + 3) * item);
    shared.scores = room.take(turn);
    if (!counts)
      for (int kind = 0; kind < kinds; ++kind) shared.kept[kind] = room.take(3 * row);
    for (size_t i = 0; i < strips.size(); ++i) {
      const int64_t steps = strips[i].last - strips[i].first + 1;
      rooms[i] = shared;
      if (wants_path) rooms[i].codes = codes[i] = reinterpret_cast<uint8_t*>(room.take(steps * strips[i].lanes));
      if (!counts) continue;
      rooms[i].count = steps + 2;
      for (int kind = 0; kind < kinds; ++kind) rooms[i].kept[kind] = room.take((steps + 2) * row);
    }
    if (counts) {
      for (void*& flow : back.flows) flow = room.take(3 * row);
      for (void*& below : back.below) below = room.take((columns + 1) * item);
      back.turn = room.take(turn);
    }
  }
  const T begin = score;
  bool has_nan = false;
  const auto forward = [&](bool* quick) {
    score = begin;
    for (void* above : rooms[0].above) std::fill_n(static_cast<T*>(above), columns + 3, zero);
    if (!a.local) *static_cast<T*>(rooms[0].above[0]) = one;
    for (size_t i = 0; i < strips.size(); ++i) rooms[i].has_nan = quick, kernels.strip(a, strips[i], rooms[i]);
  };
  if (!a.is_log) forward(&has_nan);
  if (a.is_log || has_nan) forward(nullptr);
  if (!counts) static_cast<T*>(asked.results[0])[number] = a.is_minimum ? T(0) - score : score;
  if (path) {
    if (!a.local && !a.has_free_end()) end[0] = a.rows + a.columns, end[1] = a.rows;
    if (score == zero) end[0] = end[1] = 0;
    walk(a, strips, codes, end[1], end[0] - end[1], rows + columns, path);
  }
  if (counts) {
    for (void* below : back.below) std::fill_n(static_cast<T*>(below), columns + 1, T(0));
    for (size_t i = strips.size(); i-- > 0;) kernels.strip_back(a, strips[i], rooms[i], back);
    if (a.local) ended += std::exp((static_cast<double>(one) - static_cast<double>(score)) / a.temperature);  // the alignment without columns
    if ((a.local || a.has_free_end()) && ended > 0 && std::isfinite(ended)) {
      const T inverse = static_cast<T>(1 / ended);
      for (int64_t i = 0; i < entries; ++i) static_cast<T*>(back.counts)[i] *= inverse;
      *static_cast<T*>(back.gap) *= inverse, *static_cast<T*>(back.gap_open) *= inverse;
    }
  }
}

}  // namespace

void align(Pool& pool, const Alignments& asked, const Kernels& kernels) {
  parallel(pool, asked.batch, [&](int64_t i) {
    asked.one.type == Type::kF32 ? align_one<float>(asked, i, kernels) : align_one<double>(asked, i, kernels);
  });
}

void align_alone(const Alignments& asked, const Kernels& kernels) {
  asked.one.type == Type::kF32 ? align_one<float>(asked, 0, kernels) : align_one<double>(asked, 0, kernels);
}

std::string fill(Alignments& asked, int64_t type, int64_t algebra, double temperature, int64_t rules, int64_t band) {
  Alignment& a = asked.one;
  a.type = static_cast<Type>(type), a.temperature = temperature;
  const Algebra known = static_cast<Algebra>(algebra);
  a.is_log = known == Algebra::kLogSumExp, a.is_minimum = known == Algebra::kMinPlus;
  a.warps = rules & 1, a.affine = rules & 2, a.local = rules & 4;
  a.first_begin = rules & 8, a.first_end = rules & 16, a.second_begin = rules & 32, a.second_end = rules & 64;
  a.is_banded = band >= 0, a.band = band;
  a.stride = a.columns, a.first = a.second = nullptr;
  constexpr int64_t most = int64_t{1} << 29;
  if (a.type != Type::kF32 && a.type != Type::kF64) return "needs float32 or float64";
  if ((known != Algebra::kMaxPlus && !a.is_minimum && !a.is_log) || rules < 0 || rules > 127 || (a.warps && (a.affine || a.local)) || (a.local && rules > 7) || band > most) return "malformed attributes";
  if (asked.batch < 0 || a.rows < 1 || a.columns < 1 || a.rows > most || a.columns > most) return "sizes out of range";
  if (asked.results.size() < 1 || asked.results.size() > 3 || (asked.results.size() == 3 && !a.is_log) || (asked.results.size() == 2 && a.is_log)) return "malformed results";
  return "";
}

}  // namespace tropical
