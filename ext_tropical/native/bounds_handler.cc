// The call of bounds, from outside XLA.
#include <cstring>
#include <new>
#include <string>

#include "bounds.h"
#include "xla_pool.h"

// From outside XLA. Returns 0, or 1 with a text of at most 200 bytes, or 2 where there is no memory. `results` are messages, labels, uppers and
// numbers, as in bounds.h.
TROPICAL_EXPORT int tropical_bounds_now(const int64_t* graph, int64_t length, const double* const* tables, int64_t sweeps, int64_t moves, int64_t seed,
                                        double tolerance, void* const* results, char* text) {
  try {
    const tropical::BoundsAsked asked{graph, length, tables, sweeps, moves, seed, tolerance, static_cast<double*>(results[0]), static_cast<int32_t*>(results[1]),
                                      static_cast<double*>(results[2]), static_cast<double*>(results[3])};
    const std::string problem = tropical::run_bounds(asked);
    std::strncpy(text, problem.c_str(), 199);
    return problem.empty() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return 2;
  }
}
