// A whole contraction plan in one call: its steps, the walk back from the winners, and the derivatives.
#pragma once
#include <string>
#include <vector>

#include "solve.h"

namespace tropical {

// What is asked of a plan: its inputs -> its results. `tables` are the operands of the plan, `active` some of them, or tangents or cotangents of these.
// Labels are int32: a row for each contracted label, each of the value's shape; of samples and of the best ones a column for each.
// The table `Asked` in networks/question.py has the same names, numbers and texts up to the semicolon.
enum class Question : int64_t {
  kValue = 0,          // tables -> value
  kLabels = 1,         // tables -> value, labels
  kTotal = 2,          // labels, active -> value; the sum of their entries there
  kEntries = 3,        // labels, active -> entries; one row for each table
  kAddTotal = 4,       // labels, value -> active; the transpose of kTotal
  kAddEntries = 5,     // labels, entries -> active; the transpose of kEntries
  kLogTangent = 6,     // tables, active -> value
  kLogCotangent = 7,   // tables, value -> active
  kSamples = 8,        // tables, numbers -> samples; numbers in [0, 1), a row for each step that contracts
  kBest = 9,           // tables -> values, assignments; the k best values in order
  kLogBend = 10,       // tables, active, active -> value; the tangent along the others of that of kLogTangent
  kLogCurvature = 11,  // tables, value, active -> active; the tangents of the results of kLogCotangent
  // Ordinary sums, which are linear in each table. Exponents are int32, of the value's shape: what is written is multiplied by 2 to their
  // negatives. `actives` are any number of tangents of all active tables; along all of these the value is differentiated.
  kSum = 12,            // tables -> value
  kScaledSum = 13,      // tables -> value, exponents; of entries in [1/2, 1)
  kSumTangent = 14,     // tables, exponents, actives -> value
  kSumCotangent = 15,   // tables, exponents, value, actives -> active; the derivative by the active tables of what kSumTangent sums
};

struct Buffer {
  void* data;
  int64_t count;  // entries
};

// A plan as integers: counts of labels, operands, steps, contracted labels, active operands, the rank of the value, and how many of its first
// labels are lanes (-1: the first one, if most results have it); the sizes of the labels; the value's labels; the contracted ones; the active
// operands; for each operand rank and labels; for each step both operands (-1: there is no second one), rank and labels of the result. Values
// are numbered, first the operands, then the results of the steps.
struct Ask {
  const int64_t* plan;
  int64_t length;
  Type type;
  Algebra algebra;
  Question question;
  double temperature;
  std::vector<Buffer> inputs, results;
};

// Answers, or says why there is no answer: "" means that the results are written. Throws std::bad_alloc.
std::string answer(Pool& pool, const Ask& ask, const Kernels& kernels);

}  // namespace tropical
