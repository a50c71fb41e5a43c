// The threads of XLA's pool, and errors, for the FFI handlers.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("Os")  // of the file that includes this: a handler is called once, and XLA's templates are large
#endif
#include <string>
#include <utility>

#include "solve.h"
#include "xla/ffi/api/ffi.h"

namespace tropical {

struct XlaPool : Pool {
  explicit XlaPool(xla::ffi::ThreadPool& pool) : pool(pool) {}
  int64_t threads() const override { return pool.num_threads(); }
  void schedule(std::function<void()> task) override { pool.Schedule(std::move(task)); }
  xla::ffi::ThreadPool& pool;
};

inline xla::ffi::Error invalid(const std::string& what) {
  return xla::ffi::Error(xla::ffi::ErrorCode::kInvalidArgument, "tropical " + what);
}

}  // namespace tropical

#define TROPICAL_EXPORT extern "C" __attribute__((visibility("default")))
