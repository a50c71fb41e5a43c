// The calls of chains: from a program of XLA, and from outside XLA.
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "chains.h"
#include "own_pool.h"
#include "xla_pool.h"

namespace tropical {
namespace {

namespace ffi = xla::ffi;

ffi::Error chain_call(ffi::ThreadPool pool, ffi::RemainingArgs inputs, ffi::RemainingRets results, int64_t algebra, int64_t band, int64_t asks, int64_t k,
                      int64_t has_length, int64_t has_columns, int64_t memory, std::string_view instructions) {
  Chains asked{};
  asked.asks = asks, asked.memory = memory;
  const bool draws = asks == Chains::kSamples;
  const bool is_given[Chains::kInputs] = {true, true, true, has_length != 0, has_columns != 0, draws};
  if (inputs.size() != 3u + is_given[3] + is_given[4] + draws) return invalid("chain: malformed operands");
  const size_t ranks[Chains::kInputs] = {1, 3, 2, 0, 1, 2};
  ffi::Span<const int64_t> shapes[Chains::kInputs];
  size_t batch = 0, given = 0;
  for (size_t i = 0; i < Chains::kInputs; ++i) {
    if (!is_given[i]) continue;
    auto x = inputs.get<ffi::AnyBuffer>(given++);
    if (!x || x->dimensions().size() < ranks[i]) return invalid("chain: malformed operands");
    shapes[i] = x->dimensions();
    if (i == 0) {
      asked.one.type = x->element_type() == ffi::DataType::F32 ? Type::kF32 : x->element_type() == ffi::DataType::F64 ? Type::kF64 : Type::kBool;
      batch = shapes[0].size() - 1;
    }
    const auto type = i == Chains::kLengths || i == Chains::kColumns ? ffi::DataType::S32 : asked.one.type == Type::kF32 ? ffi::DataType::F32 : ffi::DataType::F64;
    if (shapes[i].size() != ranks[i] + batch || x->element_type() != type) return invalid("chain: malformed operands");
    asked.inputs[i] = x->untyped_data();
    for (size_t axis = 0; axis < batch; ++axis) {
      if (asked.batch.size() <= axis) asked.batch.push_back(1);
      asked.batch[axis] = shapes[i][axis] == 1 ? asked.batch[axis] : shapes[i][axis];
    }
  }
  for (size_t i = 0; i < Chains::kInputs; ++i) {
    if (!is_given[i]) continue;
    int64_t stride = 1;
    asked.strides[i].assign(batch, 0);
    for (size_t axis = batch; axis-- > 0; stride *= shapes[i][axis]) {
      if (shapes[i][axis] != 1 && shapes[i][axis] != asked.batch[axis]) return invalid("chain: operands of different batches");
      if (shapes[i][axis] != 1) asked.strides[i][axis] = stride;
    }
  }
  Chain& c = asked.one;
  c.algebra = static_cast<Algebra>(algebra), c.band = band, c.k = k;
  c.states = shapes[0][batch], c.steps = shapes[2][batch], c.rows = shapes[1][batch], asked.emitted = shapes[2][batch + 1];
  if (shapes[1][batch + 1] != (band ? band : c.states) || shapes[1][batch + 2] != c.states || (has_columns && shapes[Chains::kColumns][batch] != c.states)) return invalid("chain: malformed operands");
  if (draws) {
    c.samples = shapes[Chains::kUniforms][batch];
    if (shapes[Chains::kUniforms][batch + 1] != c.steps) return invalid("chain: malformed operands");
  }
  size_t count = 1;
  for (int64_t size : asked.batch) count *= static_cast<size_t>(size);
  const bool is_log = c.algebra == Algebra::kLogSumExp;
  for (size_t given = 0, i = 0; given < results.size(); ++given, ++i) {
    auto x = results.get<ffi::AnyBuffer>(given);
    if (asks == Chains::kByEmission && given == 1) i = 3, asked.results.resize(3);
    const bool are_states = draws || (!is_log && i == 1);
    const size_t states = static_cast<size_t>(c.states), steps = static_cast<size_t>(c.steps);
    const size_t paths = k ? static_cast<size_t>(k) : 1;
    const size_t sizes[4] = {draws ? static_cast<size_t>(c.samples) * steps : paths, is_log ? states : paths * steps, static_cast<size_t>(c.rows) * static_cast<size_t>(shapes[1][batch + 1]) * states, steps * static_cast<size_t>(asked.emitted)};
    const auto type = are_states ? ffi::DataType::S32 : c.type == Type::kF32 ? ffi::DataType::F32 : ffi::DataType::F64;
    if (i > 3 || !x || (*x)->element_type() != type || (*x)->element_count() != count * sizes[i]) return invalid("chain: malformed results");
    asked.results.push_back((*x)->untyped_data());
  }
  const std::string problem = problem_of(asked);
  if (!problem.empty()) return invalid("chain: " + problem);
  try {
    XlaPool threads(pool);
    if (count) run_chains(threads, asked, kernels_named(instructions));
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "tropical chain: no memory for the messages");
  }
}

}  // namespace
}  // namespace tropical

TROPICAL_EXPORT XLA_FFI_Error* tropical_chain(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_chain, tropical::chain_call,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("algebra")
                                  .Attr<int64_t>("band")
                                  .Attr<int64_t>("asks")
                                  .Attr<int64_t>("k")
                                  .Attr<int64_t>("has_length")
                                  .Attr<int64_t>("has_columns")
                                  .Attr<int64_t>("memory")
                                  .Attr<std::string_view>("instructions"));

// The same without XLA, for one chain and arrays of which the caller knows type and sizes: initial, transition, emission, length,
// columns and uniforms, of which the last three may be nullptr. Returns 0, or 1 with a text of at most 200 bytes, or 2 where there is no memory.
TROPICAL_EXPORT int tropical_chain_now(int64_t type, int64_t algebra, int64_t band, int64_t asks, int64_t k, int64_t memory, int64_t states, int64_t steps,
                                       int64_t rows, int64_t emitted, int64_t samples, const void* const* inputs, void* const* results, char* text) {
  try {
    tropical::Chains asked{};
    asked.asks = asks, asked.memory = memory, asked.emitted = emitted;
    tropical::Chain& c = asked.one;
    c.type = static_cast<tropical::Type>(type), c.algebra = static_cast<tropical::Algebra>(algebra);
    c.band = band, c.k = k, c.states = states, c.steps = steps, c.rows = rows, c.samples = samples;
    std::copy(inputs, inputs + tropical::Chains::kInputs, asked.inputs);
    const bool is_log = c.algebra == tropical::Algebra::kLogSumExp;
    asked.results.assign(results, results + (!asked.has_detail() ? 1 : is_log && asks == tropical::Chains::kDetail ? 4 : 2));
    if (asks == tropical::Chains::kByEmission) asked.results.insert(asked.results.begin() + 1, 2, nullptr);
    const std::string problem = tropical::problem_of(asked);
    std::strncpy(text, problem.c_str(), 199);
    if (!problem.empty()) return 1;
    tropical::OwnPool threads;
    tropical::run_chains(threads, asked, tropical::kernels_named(""));
    return 0;
  } catch (const std::bad_alloc&) {
    return 2;
  }
}
