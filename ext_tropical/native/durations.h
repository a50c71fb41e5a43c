// Chains whose segments have scores of how long they last, many at once.
#pragma once
#include <string>
#include <vector>

#include "solve.h"

namespace tropical {

// Arrays lie one entry of the batch after another. Results as `asks` says: the score; under log-sum-exp with detail the score and the
// derivatives by initial, transition, durations and emission, else the score and the path, int32 (steps); samples, int32 (samples, steps).
struct ManyDurations {
  enum Asks : int64_t { kScore = 0, kDetail = 1, kSamples = 2 };
  enum Input { kInitial, kTransition, kDurations, kEmission, kLengths, kUniforms, kInputs };
  Durations one;  // sizes
  int64_t asks, batch;
  const void* inputs[kInputs];  // the last two may be nullptr
  std::vector<void*> results;
};

// Throws std::bad_alloc.
void run_durations(Pool& pool, const ManyDurations& asked, const Kernels& kernels);

// Why there is no answer to a call, or "".
std::string fill(ManyDurations& asked, int64_t type, int64_t algebra, int64_t is_cut);

}  // namespace tropical
