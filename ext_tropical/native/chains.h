// Chains of states, many at once.
#pragma once
#include <string>

#include "solve.h"

namespace tropical {

// Operands of a batch of any rank: an axis of size 1 is the same for all. Inputs: initial, transition, emission, lengths, columns and
// uniforms, of which the last three may be nullptr. The emission has a column for each state, or as many as `emitted` says, of which
// `columns` has one for each state. Results as `asks` says. Where messages need more than `memory` bytes, those of few times are kept.
struct Chains {
  enum Asks : int64_t { kScore = 0, kDetail = 1, kSamples = 2, kByEmission = 3 };  // the last one: of derivatives that by the emission alone
  enum Input { kInitial, kTransition, kEmission, kLengths, kColumns, kUniforms, kInputs };
  Chain one;  // sizes
  int64_t asks, memory, emitted;
  const void* inputs[kInputs];
  std::vector<int64_t> batch;               // sizes of its axes
  std::vector<int64_t> strides[kInputs];    // in elements of the batch, for each input
  std::vector<void*> results;               // those of kByEmission lie where those of kDetail do, with nullptr for the others
  bool has_detail() const { return asks == kDetail || asks == kByEmission; }
};

// Throws std::bad_alloc.
void run_chains(Pool& pool, const Chains& asked, const Kernels& kernels);

// Why there is no answer to a call, or "".
std::string problem_of(const Chains& asked);

}  // namespace tropical
