// Walks views element by element for a body that only knows contiguous memory: broadcasting, strides, tiles, threads.
#pragma once

#include <cstdint>

#include "../view.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kTileBytes = 8192;  // of one operand: a few of them stay in the first-level cache
constexpr int kMaxOperands = kMaxInputs + kMaxOutputs;

// A body computes out[i] from in[...][i] for i < n, all contiguous and of the dtypes named here. Operands whose own
// dtype is f16 or bf16 may be named f32: they are converted on the way. `limit` is the most elements it takes at once.
struct Body {
  void (*run)(const void* context, const char* const* in, char* out, std::int64_t n);
  const void* context;
  DType in[kMaxInputs];
  DType out;
  std::int64_t limit;
  std::int64_t grain;  // elements that make it worth waking another thread
};

// Inputs are broadcast against out. Out may be exactly one of the inputs.
void iterate(const Body& body, const View* in, int nin, const View& out);

// The shared loops of the operands: dimensions of size 1 are gone, mergeable ones merged, the output's strides
// positive and descending. The output is the last operand.
struct Loops {
  int operands;
  int ndim;  // at least 1
  std::int64_t shape[kMaxDims];
  std::int64_t strides[kMaxOperands][kMaxDims];  // in bytes
  char* base[kMaxOperands];
  std::int64_t item[kMaxOperands];  // item sizes

  bool build(const View* in, int nin, const View& out);  // false: nothing to do, the output is empty
  // Moves the dimension along which a badly strided input is best read next to the innermost; true if there is one.
  bool raise_transposed();
};

// The walk over tiles of `rows` by `columns` of the two innermost dimensions.
struct Tiles {
  std::int64_t rows, columns;        // of a full tile
  std::int64_t row_tiles, column_tiles;
  std::int64_t count;                // of all tiles

  Tiles(const Loops& loops, bool transposed, std::int64_t elements);
};

// One tile: where it starts in every operand and its size. Starts at tile `index` and steps on in order.
struct Tile {
  char* at[kMaxOperands];
  std::int64_t rows, columns;

  Tile(const Loops& loops, const Tiles& tiles, std::int64_t index);
  void next();

 private:
  void place();

  const Loops& loops_;
  const Tiles& tiles_;
  std::int64_t outer_[kMaxDims];
  std::int64_t row_, column_;
};

// Moves a rows x columns block between strided memory and rows of contiguous elements.
void gather_block(char* to, std::int64_t to_row, const char* from, std::int64_t row, std::int64_t column,
                  std::int64_t rows, std::int64_t columns, std::int64_t item);
void scatter_block(char* to, std::int64_t row, std::int64_t column, const char* from, std::int64_t rows,
                   std::int64_t columns, std::int64_t item);

}  // namespace tritium::TRITIUM_ISA
