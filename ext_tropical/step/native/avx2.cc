// Tiles for AVX2.
#include "problem.h"
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#define TROPICAL_BYTES 32
#define TROPICAL_ROWS 6
#define TROPICAL_VECTORS 2

namespace tropical {
namespace {
#include "tiles.inc"
}
// What every machine may run ends the instruction set.
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
Kernels avx2() { return {"AVX2", kRows, kVectors * TROPICAL_BYTES, scratch, search, resolve}; }
}  // namespace tropical
#else
namespace tropical {
Kernels avx2() { return baseline(); }
}  // namespace tropical
#endif
