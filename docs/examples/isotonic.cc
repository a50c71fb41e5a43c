// Isotonic regression of each row by pooling adjacent violators, in one pass: the handlers of
// ffi_kernel.py.
#include <cmath>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

template <ffi::DataType dtype>
ffi::Error Fit(bool increasing, ffi::Buffer<dtype> x, ffi::ResultBuffer<dtype> y) {
  using T = ffi::NativeType<dtype>;
  const int64_t n = x.dimensions().back();
  const double sign = increasing ? 1 : -1;
  std::vector<double> sum(n);  // of each block
  std::vector<int64_t> size(n);
  for (size_t row = 0; row < x.element_count(); row += n) {
    const T* in = x.typed_data() + row;
    T* out = y->typed_data() + row;
    int64_t blocks = 0;
    double total = 0;
    for (int64_t i = 0; i < n; ++i) {
      total += in[i];
      sum[blocks] = sign * in[i];
      size[blocks] = 1;
      for (++blocks; blocks > 1; --blocks) {
        const int64_t last = blocks - 1, before = blocks - 2;
        if (sum[before] * size[last] < sum[last] * size[before]) break;  // their means are in order
        sum[before] += sum[last];
        size[before] += size[last];
      }
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const double mean = std::isnan(total) ? total : sign * sum[block] / size[block];
      for (int64_t i = 0; i < size[block]; ++i) *out++ = static_cast<T>(mean);
    }
  }
  return ffi::Error::Success();
}

#define ISOTONIC(name, dtype)                     \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, Fit<dtype>, \
                                ffi::Ffi::Bind()  \
                                    .Attr<bool>("increasing") \
                                    .Arg<ffi::Buffer<dtype>>() \
                                    .Ret<ffi::Buffer<dtype>>())

ISOTONIC(IsotonicF32, ffi::F32);
ISOTONIC(IsotonicF64, ffi::F64);
