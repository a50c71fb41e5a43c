// Bounds of the best score of a network of tables: messages that lower an upper bound, and assignments that they suggest.
#pragma once
#include <cstdint>
#include <string>

namespace tropical {

// Tables are doubles: scores, -inf for what is impossible, neither NaN nor inf. A score of an assignment is the sum of an entry of each table.
//
// The upper bound is that of the linear relaxation: each table gives numbers, its messages, to its variables. A table less its messages, and
// for each variable the sum of its messages and of its own tables, have the same sum for every assignment; so the sum of their largest entries
// is at least the best score, whatever the messages are.
struct BoundsAsked {
  const int64_t* graph;  // the numbers of variables and of tables; the size of each variable; for each table its rank and its variables
  int64_t length;        // of the graph
  const double* const* tables;
  int64_t sweeps;        // at most so many, forward and back
  int64_t moves;         // of the best assignment over a random forest of variables, after the sweeps
  int64_t seed;          // of the forests
  double tolerance;      // sweeps end where upper and lower bound are so near
  double* messages;      // those to begin with, and the result: for each table of two variables and more and each of them a number for each value
  int32_t* labels;       // the best assignment so far, or -1 in the first place; and the result
  double* uppers;        // inf in the first place, and the result: for each value of each variable a bound of the scores of assignments with it
  double* numbers;       // the result: upper bound, score of the labels, sweeps taken
};

constexpr int kBoundsNumbers = 3;

// Bounds hold whatever is rounded: they have an allowance for it. Throws std::bad_alloc. Why there is no answer, or "".
std::string run_bounds(const BoundsAsked& asked);

}  // namespace tropical
