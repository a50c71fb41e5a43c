// Sums at winners: some rows or columns of the operand are a task, whose entries stay in the second cache until all cells are added.
#include "at_winner.h"

#include <algorithm>
#include <cstring>

namespace tropical {
namespace {

constexpr int64_t kOwn = 16;                      // rows or columns of a task
constexpr int64_t kMostBytes = int64_t{1} << 20;  // of a task's entries; more are added where they lie

template <class T>
void add(const Sum& s, int64_t batch, int64_t first, int64_t count) {
  T* const result = static_cast<T*>(s.result) + batch * s.batch_stride + first * s.own_stride;
  const T* const cell = static_cast<const T*>(s.cell) + batch * s.rows * s.columns + first * (s.to_rows ? s.columns : 1);
  const int32_t* const winner = s.winner + (cell - static_cast<const T*>(s.cell));
  const int64_t bytes = s.contracted * kOwn * static_cast<int64_t>(sizeof(T));
  // Rows of the result that lie a power of two apart would fall into one set of the cache.
  const bool inside = s.contracted_stride == 1 || bytes > kMostBytes;
  T* const to = inside ? result : static_cast<T*>(kept_scratch(bytes));
  const int64_t step = inside ? s.contracted_stride : kOwn, own = inside ? s.own_stride : 1;
  const auto entries = [&](auto each) {
    if (own < step)
      for (int64_t k = 0; k < s.contracted; ++k)
        for (int64_t o = 0; o < count; ++o) each(k, o);
    else
      for (int64_t o = 0; o < count; ++o)
        for (int64_t k = 0; k < s.contracted; ++k) each(k, o);
  };
  entries([&](int64_t k, int64_t o) { to[k * step + o * own] = T(0); });
  const auto one = [&](int64_t at, T* entry) {
    if (static_cast<uint64_t>(int64_t{winner[at]}) < static_cast<uint64_t>(s.contracted)) entry[winner[at] * step] += cell[at];
  };
  if (s.to_rows)
    for (int64_t o = 0; o < count; ++o)
      for (int64_t j = 0; j < s.columns; ++j) one(o * s.columns + j, to + o * own);
  else
    for (int64_t i = 0; i < s.rows; ++i)
      for (int64_t o = 0; o < count; ++o) one(i * s.columns + o, to + o * own);
  if (!inside) entries([&](int64_t k, int64_t o) { result[k * s.contracted_stride + o * s.own_stride] = to[k * step + o * own]; });
}

}  // namespace

void add_at_winner(Pool& pool, const Sum& s) {
  const int64_t own = s.to_rows ? s.rows : s.columns, pieces = (own + kOwn - 1) / kOwn;
  parallel(pool, s.batch * pieces, [&](int64_t i) {
    const int64_t first = i % pieces * kOwn, count = std::min(kOwn, own - first);
    s.type == Type::kF32 ? add<float>(s, i / pieces, first, count) : add<double>(s, i / pieces, first, count);
  });
}

}  // namespace tropical
