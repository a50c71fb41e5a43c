// An upper bound of the best score of a network of tables, after a number of sweeps, and its derivative: the call of `Network.upper_bound`.
#pragma once
#include <string>
#include <vector>

#include "paths.h"

namespace tropical {

// A table and its axes.
struct Factor {
  std::vector<int64_t> variables, sizes, strides;
  std::vector<int64_t> messages;  // where those to each of two variables and more begin
  int64_t start = 0, count = 1;   // of its entries among those of all tables
  int64_t first = 0, last = 0;    // of its variables
};

struct Structure {
  struct Place {
    int64_t table, slot;
  };
  std::vector<int64_t> sizes, starts;      // of the values of each variable
  std::vector<Factor> tables;
  std::vector<std::vector<Place>> places;  // of each variable in tables of two variables and more
  std::vector<double> weights;             // of each variable, what a table that gives gets of its total
  int64_t entries = 0, values = 0, messages = 0;
};

// Reads the integers of bounds.h: the numbers of variables and of tables; the size of each variable; for each table its rank and its
// variables. Why they are none, or "".
std::string read_structure(const int64_t* graph, int64_t length, Structure& structure);

// The sweeps are those of bounds.h, as many as are asked for. What has no possible assignment is seen only as sweeps pass it.
struct NetworkBound {
  Type type;  // kF32, kF64
  const Structure* structure;
  int64_t sweeps;
  std::vector<const void*> tables;
  void* bound;   // NaN where a score is NaN or inf
  void* shares;  // the derivative of the bound by the entries of all tables, 0 where it is not finite; or null
  Batch batch;   // of the tables
};

// Throws std::bad_alloc. Why there is no answer, or "".
std::string run_network_bound(Pool& pool, const NetworkBound& asked);

// The sum of the products of all entries of tables with those of a flat array. Or the transpose: a number times the flat array, as tables.
struct TablesDot {
  Type type;  // kF32, kF64
  bool is_transposed;
  std::vector<int64_t> counts;       // of the entries of each table
  const void* flat;
  std::vector<const void*> inputs;   // the tables, or the number
  std::vector<void*> results;        // the number, or the tables
  Batch batch;                       // of the flat array and the inputs
};

std::string run_tables_dot(Pool& pool, const TablesDot& asked);

}  // namespace tropical
