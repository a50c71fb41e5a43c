// Bounds of a network: sweeps until they are closed, or gain nothing.
#include "bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "sweeps.h"

namespace tropical {
using namespace relaxation;

std::string run_bounds(const BoundsAsked& asked) {
  Graph graph;
  const std::string problem = read(asked, graph);
  if (!problem.empty()) return problem;
  Sweeps sweeps(graph, asked.messages, asked.labels, asked.uppers);
  double& upper = asked.numbers[0];
  double &lower = asked.numbers[1], &taken = asked.numbers[2];
  taken = 0;
  if (graph.count() == 0) {
    upper = lower = graph.is_impossible ? -kInf : graph.constant.value();
    return "";
  }
  if (graph.is_impossible || !sweeps.propagate()) {
    std::fill_n(asked.labels, graph.count(), 0);
    std::fill_n(asked.uppers, graph.own.size(), -kInf);
    upper = lower = -kInf;
    sweeps.unmark();
    return "";
  }
  sweeps.mark();
  upper = sweeps.upper();
  int flat = 0;
  for (int64_t i = 0; i < asked.sweeps; ++i) {
    sweeps.sweep(true, true, upper);
    sweeps.sweep(false, false, upper);
    taken = static_cast<double>(i + 1);
    const double found = sweeps.upper();
    flat = upper - found > kImprovement * std::max(1.0, std::fabs(upper)) ? 0 : flat + 1;
    upper = std::min(upper, found);
    if (upper - sweeps.lower() <= asked.tolerance || flat >= kFlat) break;
  }
  std::mt19937_64 random(static_cast<uint64_t>(asked.seed));
  for (int64_t i = 0; i < asked.moves && asked.labels[0] >= 0; ++i) {
    if (upper - sweeps.lower() <= asked.tolerance) break;
    sweeps.move(random);
  }
  upper = sweeps.upper();
  lower = sweeps.lower();
  sweeps.unmark();
  return "";
}

}  // namespace tropical
