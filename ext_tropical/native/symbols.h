// Alignments of many pairs of sequences of symbols, without an array of the scores of all pairs.
#pragma once
#include <string>
#include <vector>

#include "alignments.h"
#include "paths.h"

namespace tropical {

// The inputs are first (rows) and second (columns), int32, scores of symbols (kinds[0], kinds[1]), gap, gap_open, and lengths (2), int32. The
// results, which lie one entry of the batch after another, are the score, or the score and the path, int32 (rows + columns, 2).
struct SymbolAlignments {
  enum Input { kFirst, kSecond, kScores, kGap, kGapOpen, kLengths, kInputs };
  Alignment one;  // rows and columns are those of the arrays
  int64_t kinds[2];
  const void* inputs[kInputs];
  std::vector<void*> results;
  Batch batch;
};

// Throws std::bad_alloc.
void align_symbols(Pool& pool, const SymbolAlignments& asked, const Kernels& kernels);

// Why there is no answer to a call, or "". The numbers are those of alignments.h; there is no warping, band or log-sum-exp.
std::string fill(SymbolAlignments& asked, int64_t type, int64_t algebra, double temperature, int64_t rules, int64_t band);

}  // namespace tropical
