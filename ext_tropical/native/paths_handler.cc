// The calls of shortest paths and of sums along their trees: from a program of XLA, and from outside XLA.
#include "answers.h"
#include "own_pool.h"

namespace tropical {
namespace {

ffi::Error paths_call(ffi::ThreadPool pool, ffi::AnyBuffer senders, ffi::AnyBuffer receivers, ffi::AnyBuffer weights, ffi::AnyBuffer sources, ffi::AnyBuffer targets,
                      ffi::Result<ffi::AnyBuffer> values, ffi::Result<ffi::AnyBuffer> last, int64_t algebra, int64_t nodes) {
  const std::vector<ffi::AnyBuffer> operands = {senders, receivers, weights, sources, targets};
  Paths asked{};
  asked.algebra = static_cast<Algebra>(algebra);
  for (size_t i = 0; i < operands.size(); ++i)
    if (operands[i].dimensions().size() == 0 || (i != Paths::kWeights && operands[i].element_type() != ffi::DataType::S32)) return invalid("shortest paths: malformed operands");
  if (!read_batch(operands, std::vector<size_t>(Paths::kInputs, 1), asked.batch) || !type_of(weights, asked.type)) return invalid("shortest paths: malformed operands");
  asked.nodes = nodes, asked.edges = senders.dimensions().back();
  asked.sources = sources.dimensions().back(), asked.targets = targets.dimensions().back();
  const size_t cells = static_cast<size_t>(asked.batch.count() * asked.sources * nodes);
  if (receivers.dimensions().back() != asked.edges || weights.dimensions().back() != asked.edges) return invalid("shortest paths: malformed operands");
  if (values->element_type() != weights.element_type() || last->element_type() != ffi::DataType::S32 || values->element_count() != cells || last->element_count() != cells) return invalid("shortest paths: malformed results");
  for (size_t i = 0; i < operands.size(); ++i) asked.inputs[i] = operands[i].untyped_data();
  asked.values = values->untyped_data(), asked.last = static_cast<int32_t*>(last->untyped_data());
  XlaPool threads(pool);
  return answered("shortest paths", [&] { return run_paths(threads, asked); });
}

ffi::Error tree_sums_call(ffi::ThreadPool pool, ffi::AnyBuffer last, ffi::AnyBuffer senders, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> result, int64_t onto) {
  const std::vector<ffi::AnyBuffer> operands = {last, senders, x};
  TreeSums asked{};
  asked.onto = onto != 0;
  const size_t rank = asked.onto ? 2 : 1;
  if (last.dimensions().size() < 2 || last.element_type() != ffi::DataType::S32 || senders.element_type() != ffi::DataType::S32 || result->element_type() != x.element_type()) return invalid("tree sums: malformed operands");
  if (!read_batch(operands, {2, 1, rank}, asked.batch) || !type_of(x, asked.type) || asked.type == Type::kI32) return invalid("tree sums: malformed operands");
  const size_t axes = asked.batch.sizes.size();
  asked.sources = last.dimensions()[axes], asked.nodes = last.dimensions()[axes + 1], asked.edges = senders.dimensions()[axes];
  const int64_t given = asked.onto ? asked.sources * asked.nodes : asked.edges, made = asked.onto ? asked.edges : asked.sources * asked.nodes;
  int64_t each = 1;
  for (size_t axis = axes; axis < axes + rank; ++axis) each *= x.dimensions()[axis];
  if (each != given || result->element_count() != static_cast<size_t>(asked.batch.count() * made)) return invalid("tree sums: malformed operands");
  for (size_t i = 0; i < operands.size(); ++i) asked.inputs[i] = operands[i].untyped_data();
  asked.result = result->untyped_data();
  XlaPool threads(pool);
  return answered("tree sums", [&] { return run_tree_sums(threads, asked); });
}

}  // namespace
}  // namespace tropical

#define OPERAND Arg<xla::ffi::AnyBuffer>()
#define RESULT Ret<xla::ffi::AnyBuffer>()
TROPICAL_EXPORT XLA_FFI_Error* tropical_shortest_paths(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_shortest_paths, tropical::paths_call,
                              xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().OPERAND.OPERAND.OPERAND.OPERAND.OPERAND.RESULT.RESULT.Attr<int64_t>("algebra").Attr<int64_t>("nodes"));

TROPICAL_EXPORT XLA_FFI_Error* tropical_tree_sums(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_tree_sums, tropical::tree_sums_call,
                              xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().OPERAND.OPERAND.OPERAND.RESULT.Attr<int64_t>("onto"));

// The same without XLA, for arrays of which the caller knows type and sizes. They return 0, or 1 with a text of at most 200 bytes, or 2 where
// there is no memory.
TROPICAL_EXPORT int tropical_shortest_paths_now(int64_t type, int64_t algebra, int64_t nodes, int64_t edges, int64_t sources, int64_t targets,
                                                const void* const* inputs, void* const* results, char* text) {
  using tropical::Paths;
  return tropical::answered_now(text, [&]() -> std::string {
    Paths asked{static_cast<tropical::Type>(type), static_cast<tropical::Algebra>(algebra), nodes, edges, sources, targets, {}, results[0], static_cast<int32_t*>(results[1]), {}};
    std::copy(inputs, inputs + Paths::kInputs, asked.inputs);
    asked.batch.strides.resize(Paths::kInputs);
    tropical::OwnPool threads;
    return tropical::run_paths(threads, asked);
  });
}

TROPICAL_EXPORT int tropical_tree_sums_now(int64_t type, int64_t onto, int64_t nodes, int64_t edges, int64_t sources, const void* const* inputs, void* const* results, char* text) {
  using tropical::TreeSums;
  return tropical::answered_now(text, [&]() -> std::string {
    TreeSums asked{static_cast<tropical::Type>(type), onto != 0, nodes, edges, sources, {}, results[0], {}};
    std::copy(inputs, inputs + TreeSums::kInputs, asked.inputs);
    asked.batch.strides.resize(TreeSums::kInputs);
    tropical::OwnPool threads;
    return tropical::run_tree_sums(threads, asked);
  });
}

TROPICAL_EXPORT int tropical_ranked_paths_now(int64_t type, int64_t nodes, int64_t edges, int64_t source, int64_t target, int64_t count, const void* const* inputs,
                                              void* const* results, char* text) {
  return tropical::answered_now(text, [&]() -> std::string {
    const tropical::RankedPaths asked{static_cast<tropical::Type>(type), nodes, edges, source, target, count, static_cast<const int32_t*>(inputs[0]), static_cast<const int32_t*>(inputs[1]), inputs[2],
                                      static_cast<double*>(results[0]), static_cast<int32_t*>(results[1]), static_cast<int32_t*>(results[2])};
    tropical::OwnPool threads;
    return tropical::run_ranked_paths(threads, asked);
  });
}
