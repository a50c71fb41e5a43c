// Tiles for AVX-512.
#include "problem.h"
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define TROPICAL_BYTES 64
#define TROPICAL_ROWS 8
#define TROPICAL_VECTORS 3

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
Kernels avx512() { return {"AVX-512", kRows, kVectors * TROPICAL_BYTES, scratch, search, resolve}; }
}  // namespace tropical
#else
namespace tropical {
Kernels avx512() { return baseline(); }
}  // namespace tropical
#endif
