// The XLA FFI handlers: they read a call, check it, and solve it on the threads of XLA's pool.
#include <new>
#include <string>
#include <string_view>

#include "at_winner.h"
#include "xla_pool.h"

namespace tropical {
namespace {

namespace ffi = xla::ffi;

// What an operand's strides reach must lie inside its buffer.
bool reaches_inside(const Operand& x, int64_t batch, int64_t contracted, int64_t own, int64_t entries) {
  return x.batch >= 0 && x.contracted >= 0 && x.own >= 0 &&
         (batch - 1) * x.batch + (contracted - 1) * x.contracted + (own - 1) * x.own < entries;
}

ffi::Error einsum(ffi::ThreadPool pool, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::RemainingRets results, int64_t algebra,
                  ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> left, ffi::Span<const int64_t> right,
                  std::string_view instructions) {
  if (sizes.size() != 4 || left.size() != 3 || right.size() != 3 || algebra < 0 || algebra > 4) return invalid("einsum: malformed attributes");
  if (results.size() < 1 || results.size() > 2 || lhs.element_type() != rhs.element_type()) return invalid("einsum: malformed operands");
  Problem p;
  p.algebra = static_cast<Algebra>(algebra);
  switch (lhs.element_type()) {
    case ffi::DataType::F32: p.type = Type::kF32; break;
    case ffi::DataType::F64: p.type = Type::kF64; break;
    case ffi::DataType::S32: p.type = Type::kI32; break;
    case ffi::DataType::PRED: p.type = Type::kBool; break;
    default: return invalid("einsum: needs float32, float64, int32 or bool");
  }
  if ((p.type == Type::kBool) != (p.algebra == Algebra::kOrAnd)) return invalid("einsum: malformed attributes");
  p.batch = sizes[0], p.contracted = sizes[1], p.rows = sizes[2], p.columns = sizes[3];
  p.lhs = {lhs.untyped_data(), left[0], left[1], left[2]};
  p.rhs = {rhs.untyped_data(), right[0], right[1], right[2]};
  auto value = results.get<ffi::AnyBuffer>(0);
  if (!value || (*value)->element_type() != lhs.element_type() ||
      static_cast<int64_t>((*value)->element_count()) != p.batch * p.rows * p.columns)
    return invalid("einsum: malformed result");
  p.value = (*value)->untyped_data();
  p.winner = nullptr;
  if (results.size() == 2) {
    auto winner = results.get<ffi::AnyBuffer>(1);
    if (!winner || (*winner)->element_type() != ffi::DataType::S32 || (*winner)->element_count() != (*value)->element_count()) return invalid("einsum: malformed winners");
    p.winner = static_cast<int32_t*>((*winner)->untyped_data());
  }
  if (p.batch * p.rows * p.columns == 0) return ffi::Error::Success();
  if (p.contracted < 1 || p.contracted > INT32_MAX) return invalid("einsum: needs 1 to 2**31 - 1 contracted entries");
  if (!reaches_inside(p.lhs, p.batch, p.contracted, p.rows, static_cast<int64_t>(lhs.element_count())) ||
      !reaches_inside(p.rhs, p.batch, p.contracted, p.columns, static_cast<int64_t>(rhs.element_count())))
    return invalid("einsum: strides that leave an operand");
  try {
    XlaPool threads(pool);
    solve(threads, p, kernels_named(instructions));
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "tropical einsum: no memory for packed operands");
  }
  return ffi::Error::Success();
}

ffi::Error at_winner(ffi::ThreadPool pool, ffi::AnyBuffer cell, ffi::Buffer<ffi::DataType::S32> winner, ffi::Result<ffi::AnyBuffer> result,
                     bool to_rows, ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> strides) {
  if (sizes.size() != 4 || strides.size() != 3) return invalid("at_winner: malformed attributes");
  const auto type = cell.element_type();
  if ((type != ffi::DataType::F32 && type != ffi::DataType::F64) || result->element_type() != type)
    return invalid("at_winner: needs float32 or float64");
  const Sum s{type == ffi::DataType::F32 ? Type::kF32 : Type::kF64, to_rows, sizes[0], sizes[1], sizes[2], sizes[3], cell.untyped_data(),
              winner.typed_data(), result->untyped_data(), strides[0], strides[1], strides[2]};
  const int64_t cells = s.batch * s.rows * s.columns, own = to_rows ? s.rows : s.columns;
  const int64_t entries = s.batch * s.contracted * own, held = static_cast<int64_t>(result->element_count());
  if (s.batch < 1 || s.contracted < 1 || s.rows < 1 || s.columns < 1 || static_cast<int64_t>(cell.element_count()) != cells ||
      static_cast<int64_t>(winner.element_count()) != cells || entries != held ||
      !reaches_inside({nullptr, strides[0], strides[1], strides[2]}, s.batch, s.contracted, own, held))
    return invalid("at_winner: malformed operands");
  try {
    XlaPool threads(pool);
    add_at_winner(threads, s);
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "tropical at_winner: no memory");
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace tropical

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

TROPICAL_EXPORT XLA_FFI_Error* tropical_at_winner(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_at_winner, tropical::at_winner,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::DataType::S32>>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<bool>("to_rows")
                                  .Attr<xla::ffi::Span<const int64_t>>("sizes")
                                  .Attr<xla::ffi::Span<const int64_t>>("strides"));

// The names of the instruction sets of this machine, the widest last, with a comma between.
TROPICAL_EXPORT const char* tropical_instructions() {
  static const std::string names = [] {
    std::string all;
    for (const tropical::Kernels& k : tropical::kernels()) all += (all.empty() ? "" : ",") + std::string(k.name);
    return all;
  }();
  return names.c_str();
}
