// One contraction step, as the tiles of every instruction set take it: value[b, i, j] = best over k of times(lhs[b, k, i], rhs[b, k, j]).
#pragma once
#include <cstdint>
#include <utility>

namespace tropical {

// The tiles know all of them, log-sum-exp as the sums of products that it needs.
enum class Algebra : int64_t { kMaxPlus = 0, kMinPlus = 1, kMaxMul = 2, kOrAnd = 3, kMinMax = 4, kLogSumExp = 5, kSumProduct = 6 };
enum class Type : int64_t { kF32 = 0, kF64 = 1, kI32 = 2, kBool = 3 };  // booleans have (or, and), the others have the rest

// An operand where it lies. Strides in entries.
struct Operand {
  const void* data;
  int64_t batch, contracted, own;
};

struct Problem {
  Algebra algebra;
  Type type;
  int64_t batch, contracted, rows, columns;  // sizes
  Operand lhs, rhs;
  void* value;      // (batch, rows, columns)
  int32_t* winner;  // the same shape, or nullptr
};

constexpr int64_t kMostRows = 512, kMostColumns = 528;  // of a tile; columns of 8 bytes are half as many

// Rows and columns of one task.
struct Tile {
  int64_t batch, row, rows, column, columns;
};

// Lines of one task: rows [first, last) of all batch entries, one after another, and some columns of each.
struct Line {
  int64_t first, last, column, cells;
};

// Loops over runs of entries, of one type and semiring; rhs is nullptr where a step has one operand.
struct Folds {
  void (*times)(const void* lhs, const void* rhs, int64_t count, void* to);
  // Candidate k of `count` cells, or `count` candidates from number k of one cell; winners where they are wanted.
  void (*cells)(const void* lhs, const void* rhs, int64_t count, void* value, int32_t* winner, int32_t k);
  void (*candidates)(const void* lhs, const void* rhs, int64_t count, void* value, int32_t* winner, int32_t k);
  // The weights of candidates under log-sum-exp, given their cells' values, which lie `step` apart.
  void (*weights)(const void* lhs, const void* rhs, int64_t count, const void* values, int64_t step, double temperature, void* to);
  void (*logs)(const void* from, int64_t count, void* to);  // of normal numbers
};

// Some cells of a step of ordinary sums, whose last axis is `lanes` entries side by side: value[cell] = sum over choices of
// lhs[cells_left[cell] + choices_left[choice]] * rhs[...], or added to what is there. An operand without lanes has one entry for all of them.
struct LaneSums {
  Type type;  // kF32 or kF64
  int64_t lanes, cells, choices;
  const void *lhs, *rhs;  // rhs is nullptr where a step has one operand
  bool left_has_lanes, right_has_lanes, adds;
  const int64_t *cells_left, *cells_right, *choices_left, *choices_right;
  void* value;
  void* largest;  // for each lane the largest magnitude so far, which the values written here may raise; NaN is passed over
  double low, high;  // what magnitudes are not far from 1
  const void* weights = nullptr;  // of lanes that are summed too: all cells are without lanes then, and `largest` has one entry
};

// One alignment. A node (i, j) has i elements of the first sequence and j of the second behind it.
struct Alignment {
  Type type;  // kF32 or kF64
  double temperature;
  bool is_log, is_minimum, warps, affine, local, is_banded;
  bool first_begin, first_end, second_begin, second_end;  // whether elements of a sequence may be left out there
  int64_t band, rows, columns;  // the greatest |i - j|; the elements that count
  int64_t stride;               // entries between rows of the scores, and of their counts
  const void *scores, *gap, *gap_open;
  const int32_t *first, *second;  // nullptr; or symbols of the elements, by which the scores are those of a table

  bool has_free_end() const { return first_end || second_end; }
  // Whether an alignment may begin or end at a node.
  bool begins(int64_t i, int64_t j) const { return (i == 0 && (j == 0 || second_begin)) || (j == 0 && first_begin); }
  bool ends(int64_t i, int64_t j) const { return (i == rows && (j == columns || second_end)) || (j == columns && first_end); }
  // Whether the last element of an alignment that ends at a node would be left out: it is in a gap at a free end. Where all of a sequence is
  // left out, that is done at its begin or at its end, not at both.
  bool leaves_first(int64_t j) const { return first_end && j == columns && (!warps || j == 0); }
  bool leaves_second(int64_t i) const { return second_end && i == rows && (!warps || i == 0); }
};

constexpr int64_t kMostLanes = 64, kTurn = 32, kBeside = 16;
constexpr int64_t row_size(int64_t lanes) { return lanes + 2 * kBeside; }

// Rows of nodes, from `row` on, over some steps; lanes in multiples of 16.
struct Strip {
  int64_t row, lanes, first, last;
};

struct StripRoom {
  void* kept[3];      // for each kind of value `count` rows of row_size(lanes)
  int64_t count;      // 3, or all steps and the two before them
  void* above[2];     // values of the row above, from column -1 on; then those of the strip's last row
  void* scores;       // kTurn rows of lanes
  bool* has_nan;      // set if a value of a quick strip is NaN, which it may lose; nullptr where strips are not to be quick
  uint8_t* codes;     // the kinds of the columns before, a row of lanes for each step; at free ends above them that of the last column; or nullptr
  void* score;        // of the end, or of the best one so far
  int64_t* end;       // of the best one so far: i + j and i
};

// Rows of an alignment of symbols, in lanes of whole numbers: column l * span + r is lane l of vector r. Values are of nodes, less a base that all share.
struct SymbolRows {
  int64_t bits;                  // 8, if local; 16 or 32
  bool is_local;
  int64_t row, rows, span;       // rows before these; these; vectors of a row
  int32_t gap, open;             // open is at most gap, and gap at most 0
  int32_t low;                   // no more than what goes on by the second sequence to any node
  int32_t floor, most;           // if local: the value of no column; and the score after which values may leave the lanes
  const int32_t* symbols;        // of the rows
  const void* profile;           // the scores of a row for each symbol
  void *values, *ahead;          // of the row before, and of what goes on from it by the first sequence; then those of the last row
  const int32_t* left;           // of the column before, from the row before on
  const int32_t* left_second;    // of what goes on from it by the second sequence
  int32_t* edges;                // for each row each lane's last value, and what goes on into each lane but the first; or nullptr
  int32_t* kept;                 // for each row the values, and those by the first and by the second sequence; or nullptr, as in less than 32 bits
  int32_t* in_last;              // the values of column `last`; or nullptr
  int64_t last;
  int32_t* best;                 // if local: the best pair so far
  int64_t* end;                  // its i + j and i
};

struct StripBack {
  void* flows[3];  // 3 rows of row_size(lanes)
  void* below[2];  // what comes from the row below; then from the strip's first row
  void* turn;      // kTurn rows of lanes
  void *counts, *gap, *gap_open;
  double* ended;  // the sum of the shares of the ends, where there are several
};

// One chain of `states` states, of whose times `length` count, at least one; every-th messages are kept, all if it is 0. Transitions are
// `rows` matrices, of all steps where that is 1; of a band, its number of rows is `band`, which is 0 for whole matrices. What is not
// wanted is nullptr. Samples lie one after another at `path`, and their random numbers at `uniforms`.
struct Chain {
  Algebra algebra;
  Type type;  // kF32 or kF64
  int64_t states, steps, length, rows, band, every, samples, k;  // k is 0 for one best path
  const void *initial, *transition, *emission, *uniforms;
  void* score;
  int32_t* path;
  void *d_initial, *d_transition, *d_emission;  // under log-sum-exp; of bands the last one may be there alone
  // Runs task(data, 0) and task(data, 1) on two threads; nullptr where there is one.
  void (*both)(void* pool, void (*task)(void* data, int64_t half), void* data);
  void* pool;
  // Of half a chain under log-sum-exp; nullptr for a whole one. A first call writes the logarithms of its last messages. A second one with the
  // same memory reads the logarithms of what they are multiplied by in the other half, and writes the derivatives.
  double* last;
  const double* following;
  bool* is_done;     // whether numbers of one scale were exact
  bool is_reversed;  // the last emission comes first
};

// A chain whose segments have scores of how long they last. Of `longest` durations, row-major: initial (states), transition (rows, states,
// states), durations (states, longest), emission (steps, states), uniforms (samples, steps, 2). Results that are not asked for are nullptr.
struct Durations {
  Type type;  // kF32 or kF64
  bool is_log, is_minimum, is_cut;  // is_cut: the last segment may go on after the last time
  int64_t states, steps, length, rows, longest, samples;
  const void *initial, *transition, *durations, *emission, *uniforms;
  void* score;
  int32_t* path;  // of the best one, or of samples
  void *d_initial, *d_transition, *d_durations, *d_emission;
};

// The functions of one instruction set.
struct Kernels {
  const char* name;
  int64_t row_step, column_bytes;  // tiles are whole multiples of these, where they can be
  // Bytes of scratch that `search` needs for tiles of this size, aligned to 64 bytes.
  int64_t (*scratch)(const Problem&, int64_t rows, int64_t columns);
  // Values of a tile, and winners where they are wanted.
  void (*search)(const Problem&, const Tile&, void* scratch);
  // The same of some lines, for steps that fill no tile.
  void (*lines)(const Problem&, const Line&);
  Folds (*folds)(Type, Algebra);
  // Whether a largest magnitude is below `low`, or not below `high`.
  bool (*lane_sums)(const LaneSums&);
  // The same where lanes are summed as well, times their weights; lhs has lanes.
  bool (*lane_dots)(const LaneSums&);
  // The same largest magnitudes, of entries of kF32 or kF64 that lie as (count, lanes).
  void (*magnitudes)(Type, const void* entries, int64_t count, int64_t lanes, void* largest);
  // A strip of an alignment, after the one above it; and the counts of its entries, after those of the one below it.
  void (*strip)(const Alignment&, const Strip&, const StripRoom&);
  void (*strip_back)(const Alignment&, const Strip&, const StripRoom&, const StripBack&);
  // What a chain asks for. Returns the bytes of memory that it needs; without memory nothing else happens.
  int64_t (*chain)(const Chain&, void* memory);
  // The same of a chain with durations.
  int64_t (*durations)(const Durations&, void* memory);
  int64_t lane_bytes;  // of a vector of symbol_rows
  // Returns how many rows were computed: those up to the first one whose best pair is above `most`.
  int64_t (*symbol_rows)(const SymbolRows&);
};

Kernels baseline();
Kernels avx2();
Kernels avx512();

}  // namespace tropical
