// Chains of states, many at once.
#pragma once
#include <string>

#include "solve.h"

namespace tropical {

// Operands of a batch of any rank: an axis of size 1 is the same for all. Inputs: initial, transition, emission, lengths or nullptr,
// uniforms or nullptr. Results as `asks` says.
struct Chains {
  enum Asks : int64_t { kScore = 0, kDetail = 1, kSamples = 2 };
  Chain one;  // sizes
  int64_t asks;
  bool keeps_marks;
  const void* inputs[5];
  std::vector<int64_t> batch;        // sizes of its axes
  std::vector<int64_t> strides[5];   // in elements of the batch, for each input
  std::vector<void*> results;
};

// Throws std::bad_alloc.
void run_chains(Pool& pool, const Chains& asked, const Kernels& kernels);

// Why there is no answer to a call, or "".
std::string problem_of(const Chains& asked);

}  // namespace tropical
