// Ordinary sums along a plan, and their derivatives of any order.
#pragma once
#include "plan.h"

namespace tropical {

// Answers kSum to kSumCotangent of a plan whose inputs and results have the sizes that network.h says. Throws std::bad_alloc.
void answer_sums(Pool& pool, const Ask& ask, const plans::Plan& plan, const Kernels& kernels);

// Answers kValue, kLogTangent or kLogCotangent under log-sum-exp; false if it may be wrong, or takes longer than another way.
bool answer_log_sums(Pool& pool, const Ask& ask, const plans::Plan& plan, const Kernels& kernels);

// How many sets of tangents are among the inputs of such a question; -1 if they do not come out even.
int64_t order_of(const Ask& ask, const plans::Plan& plan);

}  // namespace tropical
