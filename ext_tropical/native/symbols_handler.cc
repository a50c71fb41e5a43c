// The calls of alignments of symbols: from a program of XLA, and from outside XLA.
#include "answers.h"
#include "own_pool.h"
#include "symbols.h"

namespace tropical {
namespace {

using Asked = SymbolAlignments;

std::string answer(ffi::ThreadPool& pool, ffi::RemainingArgs& inputs, ffi::RemainingRets& results, int64_t algebra, int64_t rules, std::string_view instructions) {
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
  const std::string problem = fill(asked, static_cast<int64_t>(type), algebra, rules);
  if (!problem.empty()) return problem;
  XlaPool threads(pool);
  if (asked.batch.count()) align_symbols(threads, asked, kernels_named(instructions));
  return "";
}

ffi::Error align_symbols_call(ffi::ThreadPool pool, ffi::RemainingArgs inputs, ffi::RemainingRets results, int64_t algebra, int64_t rules, std::string_view instructions) {
  return answered("align_symbols", [&] { return answer(pool, inputs, results, algebra, rules, instructions); });
}

}  // namespace
}  // namespace tropical

TROPICAL_EXPORT XLA_FFI_Error* tropical_align_symbols(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_align_symbols, tropical::align_symbols_call,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("algebra")
                                  .Attr<int64_t>("rules")
                                  .Attr<std::string_view>("instructions"));

// The same without XLA, for one pair of sequences and arrays of which the caller knows type and sizes. Returns 0, or 1 with a text of at most 200
// bytes, or 2 where there is no memory.
TROPICAL_EXPORT int tropical_align_symbols_now(int64_t type, int64_t algebra, int64_t rules, int64_t rows, int64_t columns, int64_t first_kinds, int64_t second_kinds,
                                               const void* const* inputs, void* const* results, int64_t count, char* text) {
  return tropical::answered_now(text, [&]() -> std::string {
    tropical::SymbolAlignments asked{};
    asked.batch.strides.resize(tropical::SymbolAlignments::kInputs);
    asked.one.rows = rows, asked.one.columns = columns, asked.kinds[0] = first_kinds, asked.kinds[1] = second_kinds;
    for (int i = 0; i < tropical::SymbolAlignments::kInputs; ++i) asked.inputs[i] = inputs[i];
    asked.results.assign(results, results + count);
    const std::string problem = tropical::fill(asked, type, algebra, rules);
    if (!problem.empty()) return problem;
    tropical::OwnPool threads;
    tropical::align_symbols(threads, asked, tropical::kernels_named(""));
    return "";
  });
}
