// The XLA FFI handler: reads the call, checks it, and solves it on the threads of XLA's pool.
#include <new>
#include <string>
#include <string_view>

#include "solve.h"
#include "xla/ffi/api/ffi.h"

namespace tropical {
namespace {

namespace ffi = xla::ffi;

struct XlaPool : Pool {
  explicit XlaPool(ffi::ThreadPool& pool) : pool(pool) {}
  int64_t threads() const override { return pool.num_threads(); }
  void schedule(std::function<void()> task) override { pool.Schedule(std::move(task)); }
  ffi::ThreadPool& pool;
};

ffi::Error invalid(const char* what) { return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string("tropical einsum: ") + what); }

// What an operand's strides reach must lie inside its buffer.
bool reaches_inside(const Operand& x, int64_t batch, int64_t contracted, int64_t own, int64_t entries) {
  return x.batch >= 0 && x.contracted >= 0 && x.own >= 0 &&
         (batch - 1) * x.batch + (contracted - 1) * x.contracted + (own - 1) * x.own < entries;
}

ffi::Error einsum(ffi::ThreadPool pool, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::RemainingRets results, int64_t algebra,
                  ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> left, ffi::Span<const int64_t> right,
                  std::string_view instructions) {
  if (sizes.size() != 4 || left.size() != 3 || right.size() != 3 || algebra < 0 || algebra > 2) return invalid("malformed attributes");
  if (results.size() < 1 || results.size() > 2 || lhs.element_type() != rhs.element_type()) return invalid("malformed operands");
  Problem p;
  p.algebra = static_cast<Algebra>(algebra);
  switch (lhs.element_type()) {
    case ffi::DataType::F32: p.type = Type::kF32; break;
    case ffi::DataType::F64: p.type = Type::kF64; break;
    case ffi::DataType::S32: p.type = Type::kI32; break;
    default: return invalid("needs float32, float64 or int32");
  }
  p.batch = sizes[0], p.contracted = sizes[1], p.rows = sizes[2], p.columns = sizes[3];
  p.lhs = {lhs.untyped_data(), left[0], left[1], left[2]};
  p.rhs = {rhs.untyped_data(), right[0], right[1], right[2]};
  auto value = results.get<ffi::AnyBuffer>(0);
  if (!value || (*value)->element_type() != lhs.element_type() ||
      static_cast<int64_t>((*value)->element_count()) != p.batch * p.rows * p.columns)
    return invalid("malformed result");
  p.value = (*value)->untyped_data();
  p.winner = nullptr;
  if (results.size() == 2) {
    auto winner = results.get<ffi::AnyBuffer>(1);
    if (!winner || (*winner)->element_type() != ffi::DataType::S32 || (*winner)->element_count() != (*value)->element_count()) return invalid("malformed winners");
    p.winner = static_cast<int32_t*>((*winner)->untyped_data());
  }
  if (p.batch * p.rows * p.columns == 0) return ffi::Error::Success();
  if (p.contracted < 1 || p.contracted > INT32_MAX) return invalid("needs 1 to 2**31 - 1 contracted entries");
  if (!reaches_inside(p.lhs, p.batch, p.contracted, p.rows, static_cast<int64_t>(lhs.element_count())) ||
      !reaches_inside(p.rhs, p.batch, p.contracted, p.columns, static_cast<int64_t>(rhs.element_count())))
    return invalid("strides that leave an operand");
  try {
    XlaPool threads(pool);
    solve(threads, p, kernels_named(instructions));
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "tropical einsum: no memory for packed operands");
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace tropical

#define TROPICAL_EXPORT extern "C" __attribute__((visibility("default")))

TROPICAL_EXPORT XLA_FFI_Error* tropical_einsum(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_einsum, tropical::einsum,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .RemainingRets()
                                  .Attr<int64_t>("algebra")
                                  .Attr<xla::ffi::Span<const int64_t>>("sizes")
                                  .Attr<xla::ffi::Span<const int64_t>>("lhs")
                                  .Attr<xla::ffi::Span<const int64_t>>("rhs")
                                  .Attr<std::string_view>("instructions"));

// The names of the instruction sets of this machine, the widest last, with a comma between.
TROPICAL_EXPORT const char* tropical_instructions() {
  static const std::string names = [] {
    std::string all;
    for (const tropical::Kernels& k : tropical::kernels()) all += (all.empty() ? "" : ",") + std::string(k.name);
    return all;
  }();
  return names.c_str();
}
