// The calls of bounds and of the best assignment, from outside XLA.
#include <cstring>
#include <new>
#include <string>

#include "bounds.h"
#include "optimum.h"
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

// As above. `results` are labels, undecided and numbers, as in optimum.h.
TROPICAL_EXPORT int tropical_optimum_now(const int64_t* graph, int64_t length, const double* const* tables, int64_t is_integral, double least,
                                         const double* limits, void* const* results, char* text) {
  try {
    const tropical::OptimumAsked asked{graph,
                                       length,
                                       tables,
                                       is_integral != 0,
                                       least,
                                       limits,
                                       static_cast<int32_t*>(results[0]),
                                       static_cast<uint8_t*>(results[1]),
                                       static_cast<double*>(results[2])};
    const std::string problem = tropical::run_optimum(asked);
    std::strncpy(text, problem.c_str(), 199);
    return problem.empty() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return 2;
  }
}

// As above, of `run_cost` in optimum.h.
TROPICAL_EXPORT int tropical_cost_now(const int64_t* graph, int64_t length, double most, double most_at_once, double* result, char* text) {
  try {
    const std::string problem = tropical::run_cost(graph, length, most, most_at_once, result);
    std::strncpy(text, problem.c_str(), 199);
    return problem.empty() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return 2;
  }
}
