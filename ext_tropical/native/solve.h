// What the handler asks for: a step solved by an instruction set, on the threads of a pool.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "problem.h"

namespace tropical {

struct Pool {
  virtual ~Pool() = default;
  virtual int64_t threads() const = 0;
  virtual void schedule(std::function<void()> task) = 0;
};

// run(0) ... run(count - 1), on the pool and on this thread, which waits for the runs that have begun and for no thread that
// has not: a pool without a free thread cannot stop it. Throws std::bad_alloc if a run does.
void parallel(Pool& pool, int64_t count, std::function<void(int64_t)> run);

// Bytes of this thread, aligned to cache lines, kept until it ends: a task that is not the first finds its pages there. Throws
// std::bad_alloc.
void* kept_scratch(int64_t bytes);

// What this machine can run, the widest instruction set last.
const std::vector<Kernels>& kernels();

// Those of a name; without one, or where the machine lacks them, the widest.
const Kernels& kernels_named(std::string_view name);

// Values, and winners where there is room for them, of at least one cell and one candidate. Throws std::bad_alloc.
void solve(Pool& pool, const Problem& problem, const Kernels& kernels);

}  // namespace tropical
