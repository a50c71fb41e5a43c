// A step cut into tiles, on the threads of a pool.
#include "solve.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>

namespace tropical {

const std::vector<Kernels>& kernels() {
  static const std::vector<Kernels> known = [] {
    std::vector<Kernels> found{baseline()};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) found.push_back(avx2());
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      found.push_back(avx512());
#endif
    return found;
  }();
  return known;
}

const Kernels& kernels_named(std::string_view name) {
  for (const Kernels& k : kernels())
    if (name == k.name) return k;
  return kernels().back();
}

namespace {

struct Scratch {  // aligned to cache lines
  explicit Scratch(int64_t bytes) : data(::operator new(static_cast<size_t>(bytes), std::align_val_t(64))) {}
  ~Scratch() { ::operator delete(data, std::align_val_t(64)); }
  Scratch(const Scratch&) = delete;
  void* data;
};

// run(0) ... run(count - 1), on the pool and on this thread, which waits for the runs that have begun and for no thread that
// has not: a pool without a free thread cannot stop it. Throws std::bad_alloc if a run does.
void parallel(Pool& pool, int64_t count, std::function<void(int64_t)> run) {
  struct Shared {
    std::function<void(int64_t)> run;
    int64_t count;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    int64_t done = 0;
    std::mutex mutex;
    std::condition_variable all;
  };
  auto shared = std::make_shared<Shared>();
  shared->run = std::move(run);
  shared->count = count;
  const auto work = [](Shared& s) {
    int64_t mine = 0;
    for (int64_t i; (i = s.next.fetch_add(1)) < s.count; ++mine) {
      try {
        s.run(i);
      } catch (const std::bad_alloc&) {
        s.failed = true;
      }
    }
    if (mine == 0) return;
    std::lock_guard<std::mutex> lock(s.mutex);
    if ((s.done += mine) == s.count) s.all.notify_all();
  };
  const int64_t helpers = std::min(pool.threads(), count) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.schedule([shared, work] { work(*shared); });
  work(*shared);
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->all.wait(lock, [&] { return shared->done == shared->count; });
  if (shared->failed) throw std::bad_alloc();
}

int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Length of the pieces of an axis: equal ones of at most `most`, but for the last, in whole steps.
int64_t piece(int64_t size, int64_t most, int64_t step) {
  const int64_t pieces = (size + most - 1) / most;
  return up((size + pieces - 1) / pieces, step);
}

// The result in tiles of at most this size, smaller ones if that keeps more threads busy.
std::vector<Tile> tiles_of(const Problem& p, int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, int64_t threads) {
  rows = piece(p.rows, rows, row_step);
  columns = piece(p.columns, columns, column_step);
  const auto count = [&] { return p.batch * ((p.rows + rows - 1) / rows) * ((p.columns + columns - 1) / columns); };
  while (count() < 4 * threads && threads > 1) {
    if (rows >= 4 * row_step)
      rows = piece(p.rows, rows / 2, row_step);
    else if (columns >= 4 * column_step)
      columns = piece(p.columns, columns / 2, column_step);
    else
      break;
  }
  std::vector<Tile> tiles;
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t c = 0; c < p.columns; c += columns)
      for (int64_t r = 0; r < p.rows; r += rows)
        tiles.push_back({b, r, std::min(rows, p.rows - r), c, std::min(columns, p.columns - c)});
  return tiles;
}

// A copy of an operand in spans.
template <class Word>
void copy_in_spans(Pool& pool, const Operand& x, int64_t batch, int64_t contracted, int64_t own, Word* to) {
  constexpr int64_t step = 64;  // squares of this side are turned in a buffer whose rows do not meet in one set of the cache
  const Word* const from = static_cast<const Word*>(x.data);
  const int64_t count = spans(contracted), line = span_width(contracted);
  parallel(pool, batch * count, [=](int64_t task) {
    Word square[step][step + 16 / sizeof(Word)];
    const int64_t b = task / count, span = task % count * kSpan, depth = std::min(kSpan, contracted - span);
    Word* const block = to + task * own * line;
    for (int64_t first = 0; first < own; first += step) {
      const int64_t width = std::min(step, own - first);
      for (int64_t k = 0; k < depth; k += step) {
        const int64_t high = std::min(step, depth - k);
        const Word* const corner = from + b * x.batch + (span + k) * x.contracted + first * x.own;
        Word* const there = block + first * line + k;
        if (x.contracted == 1) {
          for (int64_t i = 0; i < width; ++i) std::copy_n(corner + i * x.own, high, there + i * line);
          continue;
        }
        for (int64_t t = 0; t < high; ++t)
          for (int64_t i = 0; i < width; ++i) square[i][t] = corner[t * x.contracted + i * x.own];
        for (int64_t i = 0; i < width; ++i) std::copy_n(square[i], high, there + i * line);
      }
    }
  });
}

}  // namespace

void solve(Pool& pool, const Problem& problem, const Kernels& kernels) {
  const int64_t item = problem.type == Type::kF64 ? 8 : 4, threads = std::max<int64_t>(pool.threads(), 1);
  {
    const auto tiles = tiles_of(problem, 256, 480, kernels.row_step, kernels.column_bytes / item, threads);
    parallel(pool, static_cast<int64_t>(tiles.size()), [&](int64_t i) {
      Scratch scratch(kernels.scratch(problem, tiles[i].rows, tiles[i].columns));
      kernels.search(problem, tiles[i], scratch.data);
    });
  }
  if (!problem.winner) return;
  const auto in_spans = [&](const Operand& x, int64_t own) {
    auto kept = std::make_unique<Scratch>(problem.batch * spans(problem.contracted) * own * span_width(problem.contracted) * item);
    if (item == 8)
      copy_in_spans(pool, x, problem.batch, problem.contracted, own, static_cast<int64_t*>(kept->data));
    else
      copy_in_spans(pool, x, problem.batch, problem.contracted, own, static_cast<int32_t*>(kept->data));
    return kept;
  };
  const auto lhs = in_spans(problem.lhs, problem.rows), rhs = in_spans(problem.rhs, problem.columns);
  const auto tiles = tiles_of(problem, 256, 256, 1, 16, threads);
  parallel(pool, static_cast<int64_t>(tiles.size()), [&](int64_t i) { kernels.resolve(problem, tiles[i], lhs->data, rhs->data); });
}

}  // namespace tropical
