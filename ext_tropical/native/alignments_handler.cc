// The calls of alignments: from a program of XLA, and from outside XLA.
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "alignments.h"
#include "answers.h"
#include "own_pool.h"
#include "symbols.h"

namespace tropical {
namespace {

ffi::Error align_call(ffi::ThreadPool pool, ffi::RemainingArgs inputs, ffi::RemainingRets results, int64_t algebra, double temperature,
                      int64_t rules, int64_t band, std::string_view instructions) {
  Alignments asked{};
  if (inputs.size() < 3 || inputs.size() > 4) return invalid("align: malformed operands");
  auto scores = inputs.get<ffi::AnyBuffer>(0);
  if (!scores || scores->dimensions().size() < 2) return invalid("align: malformed scores");
  const auto sizes = scores->dimensions();
  asked.batch = 1;
  for (size_t i = 0; i + 2 < sizes.size(); ++i) asked.batch *= sizes[i];
  asked.one.rows = sizes[sizes.size() - 2], asked.one.columns = sizes[sizes.size() - 1];
  const auto type = scores->element_type();
  const void** const places[] = {&asked.one.scores, &asked.one.gap, &asked.one.gap_open};
  const size_t batch = static_cast<size_t>(asked.batch), entries = scores->element_count(), columns = 2 * batch * static_cast<size_t>(asked.one.rows + asked.one.columns);
  for (size_t i = 0; i < 3; ++i) {
    auto x = inputs.get<ffi::AnyBuffer>(i);
    if (!x || x->element_type() != type || (i && x->element_count() != batch)) return invalid("align: malformed operands");
    *places[i] = x->untyped_data();
  }
  if (inputs.size() == 4) {
    auto x = inputs.get<ffi::Buffer<ffi::DataType::S32>>(3);
    if (!x || x->element_count() != 2 * batch) return invalid("align: malformed lengths");
    asked.lengths = x->typed_data();
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto x = results.get<ffi::AnyBuffer>(i);
    const bool is_path = results.size() == 2 && i == 1;
    const size_t count = is_path ? columns : results.size() == 3 && i == 0 ? entries : batch;
    if (!x || (*x)->element_count() != count || (*x)->element_type() != (is_path ? ffi::DataType::S32 : type)) return invalid("align: malformed results");
    asked.results.push_back((*x)->untyped_data());
  }
  const int64_t number = type == ffi::DataType::F32 ? 0 : type == ffi::DataType::F64 ? 1 : -1;
  const std::string problem = fill(asked, number, algebra, temperature, rules, band);
  if (!problem.empty()) return invalid("align: " + problem);
  try {
    XlaPool threads(pool);
    if (asked.batch) align(threads, asked, kernels_named(instructions));
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "tropical align: no memory for the nodes");
  }
}

using Asked = SymbolAlignments;

std::string symbols_answer(ffi::ThreadPool& pool, ffi::RemainingArgs& inputs, ffi::RemainingRets& results, int64_t algebra, double temperature, int64_t rules, int64_t band,
                   std::string_view instructions) {
  constexpr const char* kOperands = "malformed operands";
  const std::vector<size_t> ranks = {1, 1, 2, 0, 0, 1};
  Asked asked{};
  std::vector<ffi::AnyBuffer> given;
  Type types[Asked::kInputs];
  if (inputs.size() != ranks.size()) return kOperands;
  for (size_t i = 0; i < ranks.size(); ++i) {
    auto x = inputs.get<ffi::AnyBuffer>(i);
    if (!x || x->dimensions().size() < ranks[i] || !type_of(*x, types[i])) return kOperands;
    asked.inputs[i] = x->untyped_data();
    given.push_back(*x);
  }
  const auto size = [&](Asked::Input i, size_t from_end) { return given[i].dimensions()[given[i].dimensions().size() - from_end]; };
  asked.one.rows = size(Asked::kFirst, 1), asked.one.columns = size(Asked::kSecond, 1);
  asked.kinds[0] = size(Asked::kScores, 2), asked.kinds[1] = size(Asked::kScores, 1);
  const Type type = types[Asked::kScores];
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool counts = i == Asked::kFirst || i == Asked::kSecond || i == Asked::kLengths;
    if (types[i] != (counts ? Type::kI32 : type)) return kOperands;
  }
  if (!read_batch(given, ranks, asked.batch) || size(Asked::kLengths, 1) != 2) return kOperands;
  for (size_t i = 0; i < results.size(); ++i) {
    auto x = results.get<ffi::AnyBuffer>(i);
    const int64_t count = i ? 2 * (asked.one.rows + asked.one.columns) : 1;
    Type own{};
    if (!x || !type_of(**x, own) || own != (i ? Type::kI32 : type) || static_cast<int64_t>((*x)->element_count()) != asked.batch.count() * count) return "malformed results";
    asked.results.push_back((*x)->untyped_data());
  }
  const std::string problem = fill(asked, static_cast<int64_t>(type), algebra, temperature, rules, band);
  if (!problem.empty()) return problem;
  XlaPool threads(pool);
  if (asked.batch.count()) align_symbols(threads, asked, kernels_named(instructions));
  return "";
}

ffi::Error align_symbols_call(ffi::ThreadPool pool, ffi::RemainingArgs inputs, ffi::RemainingRets results, int64_t algebra, double temperature,
                              int64_t rules, int64_t band, std::string_view instructions) {
  return answered("align_symbols", [&] { return symbols_answer(pool, inputs, results, algebra, temperature, rules, band, instructions); });
}

}  // namespace
}  // namespace tropical

TROPICAL_EXPORT XLA_FFI_Error* tropical_align(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_align, tropical::align_call,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("algebra")
                                  .Attr<double>("temperature")
                                  .Attr<int64_t>("rules")
                                  .Attr<int64_t>("band")
                                  .Attr<std::string_view>("instructions"));

TROPICAL_EXPORT XLA_FFI_Error* tropical_align_symbols(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_align_symbols, tropical::align_symbols_call,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("algebra")
                                  .Attr<double>("temperature")
                                  .Attr<int64_t>("rules")
                                  .Attr<int64_t>("band")
                                  .Attr<std::string_view>("instructions"));

// The same without XLA, for one pair of sequences and arrays of which the caller knows type and sizes. Lengths may be nullptr. Returns 0, or 1
// with a text of at most 200 bytes, or 2 where there is no memory.
TROPICAL_EXPORT int tropical_align_now(int64_t type, int64_t algebra, double temperature, int64_t rules, int64_t band, int64_t rows, int64_t columns,
                                       const void* const* inputs, void* const* results, int64_t count, char* text) {
  try {
    tropical::Alignments asked{};
    asked.batch = 1, asked.one.rows = rows, asked.one.columns = columns;
    asked.one.scores = inputs[0], asked.one.gap = inputs[1], asked.one.gap_open = inputs[2];
    asked.lengths = static_cast<const int32_t*>(inputs[3]);
    asked.results.assign(results, results + count);
    const std::string problem = tropical::fill(asked, type, algebra, temperature, rules, band);
    std::strncpy(text, problem.c_str(), 199);
    if (!problem.empty()) return 1;
    tropical::OwnPool threads;
    tropical::align(threads, asked, tropical::kernels_named(""));
    return 0;
  } catch (const std::bad_alloc&) {
    return 2;
  }
}

// The same of symbols.
TROPICAL_EXPORT int tropical_align_symbols_now(int64_t type, int64_t algebra, double temperature, int64_t rules, int64_t band, int64_t rows, int64_t columns, int64_t first_kinds, int64_t second_kinds,
                                               const void* const* inputs, void* const* results, int64_t count, char* text) {
  return tropical::answered_now(text, [&]() -> std::string {
    tropical::SymbolAlignments asked{};
    asked.batch.strides.resize(tropical::SymbolAlignments::kInputs);
    asked.one.rows = rows, asked.one.columns = columns, asked.kinds[0] = first_kinds, asked.kinds[1] = second_kinds;
    for (int i = 0; i < tropical::SymbolAlignments::kInputs; ++i) asked.inputs[i] = inputs[i];
    asked.results.assign(results, results + count);
    const std::string problem = tropical::fill(asked, type, algebra, temperature, rules, band);
    if (!problem.empty()) return problem;
    tropical::OwnPool threads;
    tropical::align_symbols(threads, asked, tropical::kernels_named(""));
    return "";
  });
}
