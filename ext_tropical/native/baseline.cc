// Tiles for any machine: 16-byte vectors, SSE2 or NEON.
#include "problem.h"
#define TROPICAL_BYTES 16
#define TROPICAL_ROWS 6
#define TROPICAL_VECTORS 2

namespace tropical {
namespace {
#include "tiles.inc"
#include "lines.inc"
#include "alignments.inc"
#include "symbols.inc"
#include "chains.inc"
#include "durations.inc"
}
Kernels baseline() { return {"baseline", kRows, kVectors * TROPICAL_BYTES, scratch, search, lines, folds, lane_sums, lane_dots, magnitudes, strip, strip_back, chain, durations, TROPICAL_BYTES, symbol_rows}; }
}  // namespace tropical
