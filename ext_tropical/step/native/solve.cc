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

// The result in tiles of about this size, smaller ones if that keeps more threads busy.
std::vector<Tile> tiles_of(const Problem& p, int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, int64_t threads) {
  rows = std::min(rows, up(p.rows, row_step));
  columns = std::min(columns, up(p.columns, column_step));
  const auto count = [&] { return p.batch * (up(p.rows, rows) / rows) * (up(p.columns, columns) / columns); };
  while (count() < 4 * threads && threads > 1) {
    if (rows >= 4 * row_step)
      rows = up(rows / 2, row_step);
    else if (columns >= 4 * column_step)
      columns = up(columns / 2, column_step);
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

// The same operand with its contracted entries side by side, copied into `to`.
template <class Word>
Operand turned(Pool& pool, const Operand& x, int64_t batch, int64_t contracted, int64_t own, Word* to) {
  constexpr int64_t step = 64;  // squares of this side are turned in a buffer whose rows do not meet in one cache set
  const Word* const from = static_cast<const Word*>(x.data);
  const int64_t blocks = up(own, step) / step;
  parallel(pool, batch * blocks, [=](int64_t task) {
    Word square[step][step + 16 / sizeof(Word)];
    const int64_t b = task / blocks, first = task % blocks * step, width = std::min(step, own - first);
    for (int64_t k = 0; k < contracted; k += step) {
      const int64_t depth = std::min(step, contracted - k);
      const Word* const corner = from + b * x.batch + k * x.contracted + first * x.own;
      for (int64_t t = 0; t < depth; ++t)
        for (int64_t i = 0; i < width; ++i) square[i][t] = corner[t * x.contracted + i * x.own];
      for (int64_t i = 0; i < width; ++i) std::copy_n(square[i], depth, to + (b * own + first + i) * contracted + k);
    }
  });
  return {to, own * contracted, 1, contracted};
}

}  // namespace

void solve(Pool& pool, Problem problem, const Kernels& kernels) {
  const int64_t item = problem.type == Type::kF64 ? 8 : 4, threads = std::max<int64_t>(pool.threads(), 1);
  {
    const auto tiles = tiles_of(problem, 256, 480, kernels.row_step, kernels.column_bytes / item, threads);
    parallel(pool, static_cast<int64_t>(tiles.size()), [&](int64_t i) {
      Scratch scratch(kernels.scratch(problem, tiles[i].rows, tiles[i].columns));
      kernels.search(problem, tiles[i], scratch.data);
    });
  }
  if (!problem.winner) return;
  std::unique_ptr<Scratch> left, right;
  const auto side_by_side = [&](Operand& x, std::unique_ptr<Scratch>& kept, int64_t own) {
    if (x.contracted == 1) return;
    kept = std::make_unique<Scratch>(std::max<int64_t>(problem.batch * problem.contracted * own * item, 64));
    x = item == 8 ? turned(pool, x, problem.batch, problem.contracted, own, static_cast<int64_t*>(kept->data))
                  : turned(pool, x, problem.batch, problem.contracted, own, static_cast<int32_t*>(kept->data));
  };
  side_by_side(problem.lhs, left, problem.rows);
  side_by_side(problem.rhs, right, problem.columns);
  const auto tiles = tiles_of(problem, 256, 256, 1, 16, threads);
  parallel(pool, static_cast<int64_t>(tiles.size()), [&](int64_t i) { kernels.resolve(problem, tiles[i]); });
}

}  // namespace tropical
