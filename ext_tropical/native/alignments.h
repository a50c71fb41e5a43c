// Alignments of many pairs of sequences.
#pragma once
#include <string>
#include <vector>

#include "solve.h"

namespace tropical {

// Arrays lie one entry of the batch after another: scores (rows, columns), gap, gap_open, and lengths (2) or nullptr. What is asked follows
// from the results: the score; the score and the path, int32 (rows + columns, 2); or under log-sum-exp how much each score, gap and gap_open
// counts.
struct Alignments {
  Alignment one;  // rows and columns of the arrays
  int64_t batch;
  const int32_t* lengths;
  std::vector<void*> results;
};

// Throws std::bad_alloc.
void align(Pool& pool, const Alignments& asked, const Kernels& kernels);

// One pair of sequences, on this thread.
void align_alone(const Alignments& asked, const Kernels& kernels);

// Why there is no answer to a call, or "". Bits of `rules`: warps, affine, local, first_begin, first_end, second_begin, second_end. A band
// below 0 is none.
std::string fill(Alignments& asked, int64_t type, int64_t algebra, double temperature, int64_t rules, int64_t band);

}  // namespace tropical
