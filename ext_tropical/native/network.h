// A whole contraction plan in one call: its steps, the walk back from the winners, and the derivatives.
#pragma once
#include <string>
#include <vector>

#include "solve.h"

namespace tropical {

// What is asked of a plan, with its inputs -> its results. `tables` are the operands of the plan, `active` some of them.
enum class Question : int64_t {
  kValue = 0,          // tables -> value
  kLabels = 1,         // tables -> value, labels: int32, a row for each contracted label, each of the value's shape
  kTotal = 2,          // labels, active -> the sum of their entries there
  kEntries = 3,        // labels, active -> their entries there, one row for each
  kAddTotal = 4,       // labels, cotangent of kTotal -> active
  kAddEntries = 5,     // labels, cotangent of kEntries -> active
  kLogTangent = 6,     // tables, tangents of active -> tangent of the value
  kLogCotangent = 7,   // tables, cotangent of the value -> cotangents of active
  kSamples = 8,        // tables, numbers in [0, 1), a row for each step that contracts -> labels: as kLabels, a column for each sample
  kBest = 9,           // tables -> the k best values in order, labels: as kLabels, a column for each
  kLogBend = 10,       // tables, tangents of active, others -> tangent along the others of the tangent of the value
  kLogCurvature = 11,  // tables, cotangent of the value, tangents of active -> tangents of the cotangents of active
};

struct Buffer {
  void* data;
  int64_t count;  // entries
};

// A plan as integers: counts of labels, operands, steps, contracted labels, active operands, and the rank of the value; the sizes of the
// labels; the value's labels; the contracted ones; the active operands; for each operand rank and labels; for each step both operands
// (-1: there is no second one), rank and labels of the result. Values are numbered, first the operands, then the results of the steps.
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
