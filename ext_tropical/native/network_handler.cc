// The calls of a network: from a program of XLA, and from outside XLA.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "network.h"
#include "own_pool.h"
#include "xla_pool.h"

namespace tropical {
namespace {

namespace ffi = xla::ffi;

ffi::DataType data_type(Type type) {
  switch (type) {
    case Type::kF32: return ffi::DataType::F32;
    case Type::kF64: return ffi::DataType::F64;
    case Type::kI32: return ffi::DataType::S32;
    case Type::kBool: return ffi::DataType::PRED;
  }
  return ffi::DataType::INVALID;
}

// Labels and exponents are int32, everything else is of the tables' type.
bool is_int32(const Ask& ask, bool is_result, size_t i) {
  constexpr int64_t tables = 1;  // where a plan has their number
  if (ask.question >= Question::kSum) {
    if (is_result) return ask.question == Question::kScaledSum && i == 1;
    return ask.question >= Question::kSumTangent && ask.length > tables && static_cast<int64_t>(i) == ask.plan[tables];
  }
  if (is_result && i == 1) return ask.question == Question::kLabels || ask.question == Question::kBest;
  return is_result ? ask.question == Question::kSamples : ask.question >= Question::kTotal && ask.question <= Question::kAddEntries && i == 0;
}

ffi::Error network(ffi::ThreadPool pool, ffi::RemainingArgs inputs, ffi::RemainingRets results, ffi::Span<const int64_t> plan, int64_t type,
                   int64_t algebra, int64_t question, double temperature, std::string_view instructions) {
  Ask ask{plan.begin(), static_cast<int64_t>(plan.size()), static_cast<Type>(type), static_cast<Algebra>(algebra), static_cast<Question>(question), temperature, {}, {}};
  const ffi::DataType wanted = data_type(ask.type);
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto x = inputs.get<ffi::AnyBuffer>(i);
    if (!x || x->element_type() != (is_int32(ask, false, i) ? ffi::DataType::S32 : wanted)) return invalid("network: an operand of another type");
    ask.inputs.push_back({x->untyped_data(), static_cast<int64_t>(x->element_count())});
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto x = results.get<ffi::AnyBuffer>(i);
    if (!x || (*x)->element_type() != (is_int32(ask, true, i) ? ffi::DataType::S32 : wanted)) return invalid("network: a result of another type");
    ask.results.push_back({(*x)->untyped_data(), static_cast<int64_t>((*x)->element_count())});
  }
  try {
    XlaPool threads(pool);
    const std::string problem = answer(threads, ask, kernels_named(instructions));
    return problem.empty() ? ffi::Error::Success() : invalid("network: " + problem);
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "tropical network: no memory for the results of the steps");
  }
}

}  // namespace
}  // namespace tropical

TROPICAL_EXPORT XLA_FFI_Error* tropical_network(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_network, tropical::network,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<xla::ffi::Span<const int64_t>>("plan")
                                  .Attr<int64_t>("type")
                                  .Attr<int64_t>("algebra")
                                  .Attr<int64_t>("question")
                                  .Attr<double>("temperature")
                                  .Attr<std::string_view>("instructions"));

// The same without XLA, for arrays of which the caller knows type and size: `pairs` are the address and the number of entries of each input,
// then of each result. Returns 0, or 1 with a text of at most 200 bytes, or 2 where there is no memory.
TROPICAL_EXPORT int tropical_network_now(const int64_t* plan, int64_t length, int64_t type, int64_t algebra, int64_t question,
                                         double temperature, const int64_t* pairs, int64_t inputs, int64_t results, char* text) {
  try {
    tropical::Ask ask{plan, length, static_cast<tropical::Type>(type), static_cast<tropical::Algebra>(algebra), static_cast<tropical::Question>(question), temperature, {}, {}};
    for (int64_t i = 0; i < inputs + results; ++i)
      (i < inputs ? ask.inputs : ask.results).push_back({reinterpret_cast<void*>(pairs[2 * i]), pairs[2 * i + 1]});
    tropical::OwnPool threads;
    const std::string problem = tropical::answer(threads, ask, tropical::kernels_named(""));
    std::strncpy(text, problem.c_str(), 199);
    return problem.empty() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return 2;
  }
}
