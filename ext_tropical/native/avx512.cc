// Tiles for AVX-512.
#define TROPICAL_NAME "AVX-512"
#define TROPICAL_KERNELS avx512
#define TROPICAL_TARGET "avx512f,fma,avx512bw,avx512dq,avx512vl"
#define TROPICAL_BYTES 64
#define TROPICAL_ROWS 8
#define TROPICAL_VECTORS 3
#include "x86.inc"
