// The derivative's sum: every cell is added to the entry of one operand that won it.
#pragma once
#include "solve.h"

namespace tropical {

struct Sum {
  Type type;  // kF32 or kF64
  bool to_rows;  // the operand's own axis is that of the rows, else of the columns
  int64_t batch, contracted, rows, columns;  // sizes
  const void* cell;       // (batch, rows, columns)
  const int32_t* winner;  // the same shape; a cell whose winner is no contracted index is left out
  void* result;
  int64_t batch_stride, contracted_stride, own_stride;  // of the result, in entries; it has no others
};

// Each entry is a sum in the order of rows or columns, whatever the threads. Throws std::bad_alloc.
void add_at_winner(Pool& pool, const Sum& sum);

}  // namespace tropical
