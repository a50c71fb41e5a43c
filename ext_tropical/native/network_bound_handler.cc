// The calls of an upper bound and of its derivative: from a program of XLA, and from outside XLA.
#include <algorithm>
#include <iterator>

#include "answers.h"
#include "network_bound.h"
#include "own_pool.h"

namespace tropical {
namespace {

// The arrays of a call: its operands with the ranks that they have in one batch, and its results. False where they do not fit.
struct Arrays {
  std::vector<ffi::AnyBuffer> operands;
  std::vector<size_t> ranks;
  std::vector<const void*> given;
  std::vector<void*> made;
  Batch batch;
  Type type;

  // `sizes` are those of one batch; of results their numbers of entries.
  bool read(const ffi::RemainingArgs& inputs, const ffi::RemainingRets& results, const std::vector<std::vector<int64_t>>& sizes, const std::vector<int64_t>& counts) {
    if (inputs.size() != sizes.size() || results.size() > counts.size() || results.size() == 0 || inputs.size() == 0) return false;
    for (size_t i = 0; i < sizes.size(); ++i) {
      auto x = inputs.get<ffi::AnyBuffer>(i);
      if (!x || x->dimensions().size() < sizes[i].size() || !std::equal(sizes[i].rbegin(), sizes[i].rend(), std::make_reverse_iterator(x->dimensions().end()))) return false;
      operands.push_back(*x);
      ranks.push_back(sizes[i].size());
      given.push_back(x->untyped_data());
      if (x->element_type() != operands[0].element_type()) return false;
    }
    if (!read_batch(operands, ranks, batch) || !type_of(operands[0], type) || type == Type::kI32) return false;
    for (size_t i = 0; i < results.size(); ++i) {
      auto x = results.get<ffi::AnyBuffer>(i);
      if (!x || (*x)->element_type() != operands[0].element_type() || static_cast<int64_t>((*x)->element_count()) != batch.count() * counts[i]) return false;
      made.push_back((*x)->untyped_data());
    }
    return true;
  }
};

ffi::Error network_bound(ffi::ThreadPool pool, ffi::RemainingArgs inputs, ffi::RemainingRets results, ffi::Span<const int64_t> graph, int64_t sweeps) {
  Structure s;
  const std::string problem = read_structure(graph.begin(), static_cast<int64_t>(graph.size()), s);
  if (!problem.empty()) return invalid("network bound: " + problem);
  std::vector<std::vector<int64_t>> sizes;
  for (const Factor& t : s.tables) sizes.push_back(t.sizes);
  Arrays arrays;
  if (!arrays.read(inputs, results, sizes, {1, s.entries})) return invalid("network bound: malformed operands or results");
  const NetworkBound asked{arrays.type, &s, sweeps, arrays.given, arrays.made[0], arrays.made.size() > 1 ? arrays.made[1] : nullptr, arrays.batch};
  XlaPool threads(pool);
  return answered("network bound", [&] { return run_network_bound(threads, asked); });
}

ffi::Error tables_dot(ffi::ThreadPool pool, ffi::RemainingArgs inputs, ffi::RemainingRets results, ffi::Span<const int64_t> graph, int64_t is_transposed) {
  Structure s;
  const std::string problem = read_structure(graph.begin(), static_cast<int64_t>(graph.size()), s);
  if (!problem.empty()) return invalid("tables dot: " + problem);
  std::vector<std::vector<int64_t>> sizes{{s.entries}};
  TablesDot asked{};
  for (const Factor& t : s.tables) {
    if (!is_transposed) sizes.push_back(t.sizes);
    asked.counts.push_back(t.count);
  }
  if (is_transposed) sizes.push_back({});
  Arrays arrays;
  if (!arrays.read(inputs, results, sizes, is_transposed ? asked.counts : std::vector<int64_t>{1})) return invalid("tables dot: malformed operands or results");
  asked.type = arrays.type, asked.is_transposed = is_transposed != 0, asked.batch = arrays.batch;
  asked.flat = arrays.given[0], asked.inputs.assign(arrays.given.begin() + 1, arrays.given.end()), asked.results = arrays.made;
  XlaPool threads(pool);
  return answered("tables dot", [&] { return run_tables_dot(threads, asked); });
}

}  // namespace
}  // namespace tropical

#define HANDLER xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().RemainingArgs().RemainingRets().Attr<xla::ffi::Span<const int64_t>>("graph").Attr<int64_t>("number")
TROPICAL_EXPORT XLA_FFI_Error* tropical_network_bound(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_network_bound, tropical::network_bound, HANDLER);

TROPICAL_EXPORT XLA_FFI_Error* tropical_tables_dot(XLA_FFI_CallFrame* frame);
XLA_FFI_DEFINE_HANDLER_SYMBOL(tropical_tables_dot, tropical::tables_dot, HANDLER);

// The same without XLA, for arrays of which the caller knows type and sizes; there are `count` results. They return 0, or 1 with a text of at
// most 200 bytes, or 2 where there is no memory.
TROPICAL_EXPORT int tropical_network_bound_now(int64_t type, const int64_t* graph, int64_t length, int64_t sweeps, const void* const* inputs, void* const* results,
                                               int64_t count, char* text) {
  using namespace tropical;
  return answered_now(text, [&]() -> std::string {
    Structure s;
    const std::string problem = read_structure(graph, length, s);
    if (!problem.empty()) return problem;
    NetworkBound asked{static_cast<Type>(type), &s, sweeps, {}, results[0], count > 1 ? results[1] : nullptr, {}};
    asked.tables.assign(inputs, inputs + s.tables.size());
    asked.batch.strides.resize(s.tables.size());
    OwnPool threads;
    return run_network_bound(threads, asked);
  });
}

TROPICAL_EXPORT int tropical_tables_dot_now(int64_t type, const int64_t* graph, int64_t length, int64_t is_transposed, const void* const* inputs, void* const* results,
                                            int64_t count, char* text) {
  using namespace tropical;
  return answered_now(text, [&]() -> std::string {
    Structure s;
    const std::string problem = read_structure(graph, length, s);
    if (!problem.empty()) return problem;
    TablesDot asked{static_cast<Type>(type), is_transposed != 0, {}, inputs[0], {}, {}, {}};
    for (const Factor& t : s.tables) asked.counts.push_back(t.count);
    const size_t given = is_transposed ? 1 : s.tables.size();
    asked.inputs.assign(inputs + 1, inputs + 1 + given);
    asked.results.assign(results, results + count);
    asked.batch.strides.resize(1 + given);
    OwnPool threads;
    return run_tables_dot(threads, asked);
  });
}
