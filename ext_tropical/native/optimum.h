// The best assignment of a network of tables, with a proof where the search ends.
#pragma once
#include <cstdint>
#include <string>

namespace tropical {

// A graph and tables as in bounds.h.
//
// Bounds tell which values no better assignment has: they are left out. Persistent variables, whose known labels are best whatever the others
// are, keep these. Variables of few neighbours are eliminated, and what is left falls into parts. A part for which that gains nothing is
// eliminated, if that is cheap; else a variable that decides much takes one of its values after the other.
struct OptimumAsked {
  const int64_t* graph;
  int64_t length;
  const double* const* tables;
  bool is_integral;      // all entries are integers or -inf
  double least;          // a difference of scores that counts as none
  const double* limits;  // in the order of OptimumLimit
  int32_t* labels;       // result
  uint8_t* undecided;    // result: of which variables several values may be best
  double* numbers;       // result, in the order of OptimumNumber
};

enum OptimumLimit {
  kFirst,       // candidates of a variable that is eliminated before the first sweeps of a part
  kLast,        // and before a choice on a variable
  kCheap,       // elimination of a part that is done at once, in double sweeps
  kFair,        // and one that is done before a choice
  kCandidates,  // of the elimination of a part, at most
  kWork,        // entries that are passed, at most: some nanoseconds each
  kOfWhole,     // an elimination of the whole is preferred if its candidates are at most so many,
  kAtOnce,      // and those of one variable of it so many
};

enum OptimumNumber {
  kUpper,
  kLower,    // the score of the labels
  kPassed,   // entries
};

// Throws std::bad_alloc. Why there is no answer, or "".
std::string run_optimum(const OptimumAsked& asked);

// The candidates of an elimination of all variables, the cheapest first; inf where they are more than `most`, or those of one variable more than
// `most_at_once`. `result` is one number.
std::string run_cost(const int64_t* graph, int64_t length, double most, double most_at_once, double* result);

}  // namespace tropical
