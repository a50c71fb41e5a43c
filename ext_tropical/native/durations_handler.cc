// The calls of chains with durations: from a program of XLA, and from outside XLA.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "durations.h"
#include "own_pool.h"
#include "xla_pool.h"

namespace tropical {
namespace {

namespace ffi = xla::ffi;
using Many = ManyDurations;

ffi::Error durations_call(ffi::ThreadPool pool, ffi::RemainingArgs inputs, ffi::RemainingRets results, int64_t algebra, int64_t asks, int64_t is_cut,
                          int64_t has_length, std::string_view instructions) {
  Many asked{};
  asked.asks = asks, asked.batch = 1;
  const bool draws = asks == Many::kSamples, is_given[Many::kInputs] = {true, true, true, true, has_length != 0, draws};
  if (inputs.size() != 4u + is_given[Many::kLengths] + draws) return invalid("chain_durations: malformed operands");
  const size_t ranks[Many::kInputs] = {1, 3, 2, 2, 0, 3};
  ffi::Span<const int64_t> shapes[Many::kInputs];
  ffi::DataType type{};
  size_t batch = 0, given = 0;
  for (size_t i = 0; i < Many::kInputs; ++i) {
    if (!is_given[i]) continue;
    auto x = inputs.get<ffi::AnyBuffer>(given++);
    if (!x || x->dimensions().size() < ranks[i]) return invalid("chain_durations: malformed operands");
    shapes[i] = x->dimensions();
    if (i == 0) type = x->element_type(), batch = shapes[0].size() - 1;
    if (shapes[i].size() != ranks[i] + batch || x->element_type() != (i == Many::kLengths ? ffi::DataType::S32 : type)) return invalid("chain_durations: malformed operands");
    if (!std::equal(shapes[0].begin(), shapes[0].begin() + batch, shapes[i].begin())) return invalid("chain_durations: operands of different batches");
    asked.inputs[i] = x->untyped_data();
  }
  for (size_t axis = 0; axis < batch; ++axis) asked.batch *= shapes[0][axis];
  Durations& c = asked.one;
  const int64_t *const moves = shapes[Many::kTransition].begin() + batch, *const lasting = shapes[Many::kDurations].begin() + batch, *const seen = shapes[Many::kEmission].begin() + batch;
  c.states = shapes[0][batch], c.rows = moves[0], c.longest = lasting[1], c.steps = seen[0];
  if (moves[1] != c.states || moves[2] != c.states || lasting[0] != c.states || seen[1] != c.states) return invalid("chain_durations: malformed operands");
  if (draws) {
    const int64_t* const uniforms = shapes[Many::kUniforms].begin() + batch;
    c.samples = uniforms[0];
    if (uniforms[1] != c.steps || uniforms[2] != 2) return invalid("chain_durations: malformed operands");
  }
  const bool is_log = static_cast<Algebra>(algebra) == Algebra::kLogSumExp;
  for (size_t i = 0; i < results.size(); ++i) {
    auto x = results.get<ffi::AnyBuffer>(i);
    const bool are_states = draws || (!is_log && i == 1);
    const int64_t sizes[] = {draws ? c.samples * c.steps : 1, is_log ? c.states : c.steps, c.rows * c.states * c.states, c.states * c.longest, c.steps * c.states};
    if (i > 4 || !x || (*x)->element_type() != (are_states ? ffi::DataType::S32 : type) || static_cast<int64_t>((*x)->element_count()) != asked.batch * sizes[i]) return invalid("chain_durations: malformed results");
    asked.results.push_back((*x)->untyped_data());
  }
  const std::string problem = fill(asked, type == ffi::DataType::F32 ? 0 : type == ffi::DataType::F64 ? 1 : -1, algebra, is_cut);
  if (!problem.empty()) return invalid("chain_durations: " + problem);
  try {
    XlaPool threads(pool);
    if (asked.batch) run_durations(threads, asked, kernels_named(instructions));
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "tropical chain_durations: no memory for the starts and ends");
  }
}

}  // namespace
}  // namespace tropical

TROPICAL_EXPORT XLA_FFI_Error* tropical_chain_durations(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_chain_durations, tropical::durations_call,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("algebra")
                                  .Attr<int64_t>("asks")
                                  .Attr<int64_t>("is_cut")
                                  .Attr<int64_t>("has_length")
                                  .Attr<std::string_view>("instructions"));

// The same without XLA, for one chain and arrays of which the caller knows type and sizes: initial, transition, durations, emission, length and
// uniforms, of which the last two may be nullptr. Returns 0, or 1 with a text of at most 200 bytes, or 2 where there is no memory.
TROPICAL_EXPORT int tropical_chain_durations_now(int64_t type, int64_t algebra, int64_t asks, int64_t is_cut, int64_t states, int64_t steps, int64_t rows,
                                                 int64_t longest, int64_t samples, const void* const* inputs, void* const* results, int64_t count, char* text) {
  try {
    tropical::ManyDurations asked{};
    asked.asks = asks, asked.batch = 1;
    tropical::Durations& c = asked.one;
    c.states = states, c.steps = steps, c.rows = rows, c.longest = longest, c.samples = samples;
    std::copy(inputs, inputs + tropical::ManyDurations::kInputs, asked.inputs);
    asked.results.assign(results, results + count);
    const std::string problem = tropical::fill(asked, type, algebra, is_cut);
    std::strncpy(text, problem.c_str(), 199);
    if (!problem.empty()) return 1;
    tropical::OwnPool threads;
    tropical::run_durations(threads, asked, tropical::kernels_named(""));
    return 0;
  } catch (const std::bad_alloc&) {
    return 2;
  }
}
