// Shortest paths along the edges of graphs, and sums along their trees.
#pragma once
#include <string>
#include <vector>

#include "solve.h"

namespace tropical {

// An axis of a batch of any rank is 1 for an operand that is the same for all.
struct Batch {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides;  // of each operand, in elements of the batch
  int64_t count() const;
  int64_t place(size_t operand, int64_t number) const;  // of the element in the operand
};

// For each source the values of best paths to all nodes, and the last edge of each. Edges that do not lead from node to node are left out;
// those that are sorted by sender need not be sorted here. Values are sums of weights, or the greatest weight; the greatest number of a type is
// no edge, and no path. Of equally good paths the one of fewest edges is taken, then the least sender of the last edge, then the first edge.
// Where there are targets, no weight is NaN, and no sum of weights has a negative one, nodes that are farther than all targets have no path.
struct Paths {
  enum Input { kSenders, kReceivers, kWeights, kSources, kTargets, kInputs };
  Type type;          // kF32, kF64, kI32
  Algebra algebra;    // kMinPlus, kMinMax
  int64_t nodes, edges, sources, targets;
  const void* inputs[kInputs];
  void* values;       // (sources, nodes)
  int32_t* last;      // the same shape; -1 where there is none
  Batch batch;
};

// Throws std::bad_alloc. Why there is no answer, or "".
std::string run_paths(Pool& pool, const Paths& asked);

// Along the trees that `last` has: for each node the sum of x over the edges of its path; or, `onto` the edges, the sum of x over the
// nodes whose path takes the edge. Each tree is that of one source.
struct TreeSums {
  enum Input { kLast, kSenders, kX, kInputs };
  Type type;  // kF32, kF64
  bool onto;
  int64_t nodes, edges, sources;
  const void* inputs[kInputs];
  void* result;
  Batch batch;
};

std::string run_tree_sums(Pool& pool, const TreeSums& asked);

// The k shortest of the paths from source to target that pass no node twice, by rising length; of one length those of fewer edges first, then
// those of smaller edge numbers. Edges are as in Paths. Where all paths have a length of inf, -inf or NaN, as a search from the source finds it,
// this is each of the lengths, and there are no paths.
struct RankedPaths {
  Type type;  // kF32, kF64
  int64_t nodes, edges, source, target, count;  // count is k
  const int32_t *senders, *receivers;
  const void* weights;
  double* lengths;    // (k,); inf where there are fewer paths
  int32_t* numbers;   // (k, nodes - 1), of the edges of each path; what comes after its last edge is not written
  int32_t* passed;    // (k,), the number of nodes of each path, 0 where there is none
};

std::string run_ranked_paths(Pool& pool, const RankedPaths& asked);

}  // namespace tropical
