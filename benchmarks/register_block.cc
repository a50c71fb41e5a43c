// Operations a second, in billions, of the native kernel's register block alone on data that stays in the first cache, on one
// thread: what no kernel of this form can exceed. An operation is one product and one comparison.
#include <chrono>
#include <cstdio>

#include "../ext_tropical/native/problem.h"
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
#define TROPICAL_BYTES 64
#define TROPICAL_ROWS 8
#define TROPICAL_VECTORS 3
#elif defined(__AVX2__) && defined(__FMA__)
#define TROPICAL_BYTES 32
#define TROPICAL_ROWS 4
#define TROPICAL_VECTORS 2
#else
#define TROPICAL_BYTES 16
#define TROPICAL_ROWS 6
#define TROPICAL_VECTORS 2
#endif

namespace tropical {
namespace {
#include "../ext_tropical/native/tiles.inc"

template <class T, bool with_winner>
double rate() {
  constexpr int64_t cells = kRows * Lanes<T>::columns, calls = 2000;
  alignas(64) static T a[kRows * kDepth], b[Lanes<T>::columns * kDepth], value[cells];
  alignas(64) static int32_t winner[cells];
  double best = 0;
  for (int repeat = 0; repeat < 30; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) block<T, Plus<Maximum>, with_winner, kVectors>(a, b, kDepth, value, winner, 0);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double now = cells * kDepth * calls / seconds.count() / 1e9;
    if (now > best) best = now;
  }
  return best;
}

}  // namespace
}  // namespace tropical

int main() {
  std::printf("float32 %.3f\nfloat64 %.3f\nint32 %.3f\n", tropical::rate<float, false>(), tropical::rate<double, false>(), tropical::rate<int32_t, false>());
}
