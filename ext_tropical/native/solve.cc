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
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(avx2());
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma"))
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

void* kept_scratch(int64_t bytes) {
  struct Free {
    void operator()(void* data) const { ::operator delete(data, std::align_val_t(64)); }
  };
  thread_local std::unique_ptr<void, Free> data;
  thread_local int64_t size = 0;
  if (bytes > size) {
    data.reset(), size = 0;
    data.reset(::operator new(static_cast<size_t>(bytes), std::align_val_t(64)));
    size = bytes;
  }
  return data.get();
}

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

namespace {

int64_t up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Length of the pieces of an axis: equal ones of at most `most`, but for the last, in whole steps.
int64_t piece(int64_t size, int64_t most, int64_t step) {
  const int64_t pieces = (size + most - 1) / most;
  return up((size + pieces - 1) / pieces, step);
}

// The result in tiles of at most this size. Smaller ones keep more threads busy, as long as a tile is worth waking a thread; but each
// packs operands anew, so small tiles are no more than threads are. Nearly square ones are packed fastest.
std::vector<Tile> tiles_of(const Problem& p, int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, int64_t threads) {
  constexpr int64_t small = 128 * 264;
  const int64_t worth_waking = int64_t{1} << (p.type == Type::kBool ? 25 : 20);
  rows = piece(p.rows, rows, row_step);
  columns = piece(p.columns, columns, column_step);
  for (;;) {
    const int64_t count = p.batch * ((p.rows + rows - 1) / rows) * ((p.columns + columns - 1) / columns);
    const int64_t high = std::min(rows, p.rows), wide = std::min(columns, p.columns);
    if (threads == 1 || count >= (high * wide > small ? 2 * threads : threads) || high * wide * p.contracted < 2 * worth_waking) break;
    if (high >= wide && rows > row_step)
      rows = piece(p.rows, rows / 2, row_step);
    else if (columns > column_step)
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

// Whether a step fills no block of registers, or has too few candidates to be worth packing, or two searches, for.
bool is_thin(const Problem& p) {
  if (p.type == Type::kBool || p.algebra >= Algebra::kLogSumExp) return false;  // bits and sums have tiles alone
  return std::min(p.rows, p.columns) <= 4 || p.rows * p.columns < 1024 || p.contracted <= (p.winner ? 32 : 8);
}

// The rows of all batch entries in equal parts, and where they are too few their columns too; each is worth waking a thread.
void solve_lines(Pool& pool, Problem p, const Kernels& kernels) {
  constexpr int64_t worth_waking = int64_t{1} << 17, step = 32;
  if (p.columns == 1) std::swap(p.lhs, p.rhs), std::swap(p.rows, p.columns);
  const int64_t rows = p.batch * p.rows, threads = std::max<int64_t>(pool.threads(), 1);
  const int64_t tasks = threads == 1 ? 1 : std::clamp<int64_t>(rows * p.columns * p.contracted / worth_waking, 1, 4 * threads);
  const int64_t high = piece(rows, (rows + tasks - 1) / tasks, 1), parts = (tasks + rows - 1) / rows;
  const int64_t wide = piece(p.columns, (p.columns + parts - 1) / parts, step);
  std::vector<Line> lines;
  for (int64_t r = 0; r < rows; r += high)
    for (int64_t c = 0; c < p.columns; c += wide) lines.push_back({r, std::min(r + high, rows), c, std::min(wide, p.columns - c)});
  parallel(pool, static_cast<int64_t>(lines.size()), [&](int64_t i) { kernels.lines(p, lines[i]); });
}

}  // namespace

void solve(Pool& pool, const Problem& problem, const Kernels& kernels) {
  if (is_thin(problem)) return solve_lines(pool, problem, kernels);
  const int64_t item = problem.type == Type::kF64 ? 8 : 4, threads = std::max<int64_t>(pool.threads(), 1);
  const auto tiles = tiles_of(problem, kMostRows, 4 * kMostColumns / item, kernels.row_step, kernels.column_bytes / item, threads);
  parallel(pool, static_cast<int64_t>(tiles.size()), [&](int64_t i) {
    kernels.search(problem, tiles[i], kept_scratch(kernels.scratch(problem, tiles[i].rows, tiles[i].columns)));
  });
}

}  // namespace tropical
