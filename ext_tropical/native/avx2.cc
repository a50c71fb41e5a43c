// Tiles for AVX2.
#define TROPICAL_NAME "AVX2"
#define TROPICAL_KERNELS avx2
#define TROPICAL_TARGET "avx2,fma"
#define TROPICAL_BYTES 32
#define TROPICAL_ROWS 4
#define TROPICAL_VECTORS 2
#include "x86.inc"
