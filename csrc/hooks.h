// Work that a product does on its results, or on a row of its operand, while they are in the cache.
#pragma once

#include <cstdint>

namespace tritium {

// Finished results of rows [row, row + rows) and columns [column, column + columns); the leading axes of a result are
// one list of rows. values[i * stride + j] is that of row + i and column + j, in f32, not rounded to a narrower dtype yet.
struct Results {
  std::int64_t row, rows, column, columns;
  const float* values;
  std::int64_t stride;  // elements
};

// Takes results instead of the product's `out`, which a product may use as memory for its f32 sums and may not touch
// again once they are handed over. Runs on any thread; every result is handed over once.
struct Epilogue {
  void (*run)(const void* context, const Results& results);
  const void* context;
};

// Gives a row of the left operand as f32, instead of its memory. Runs on any thread.
struct Prologue {
  void (*run)(const void* context, std::int64_t row, float* to);
  const void* context;
};

}  // namespace tritium
