// The matrix products of a batch, one after the other, and the plain loops that need no packing.
#pragma once

#include <cstdint>

#include "../hooks.h"
#include "../view.h"

namespace tritium::TRITIUM_ISA {

// One product: a[m][k], b[k][n], c[m][n], byte strides.
struct MatmulCall {
  std::int64_t m, n, k;
  const char *a, *b;
  char* c;
  std::int64_t a_row, a_column, b_row, b_column, c_row, c_column;
  DType dtype;
  std::int64_t first = 0;           // where row 0 stands among the rows of all products of the call
  const Epilogue* after = nullptr;  // takes the results, f32 in rows of adjacent elements; nullptr: they stay in c

  // C^T = B^T A^T. Results lie in columns: whoever turns hands them over itself.
  MatmulCall turned() const {
    return {n, m, k, b, a, c, b_column, b_row, a_column, a_row, c_column, c_row, dtype};
  }

  // Hands over rows [i, i + rows) and columns [j, j + columns), which lie in c.
  void hand_over(std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t columns) const {
    if (!after) return;
    const char* const from = c + i * c_row + j * c_column;
    after->run(after->context, {first + i, rows, j, columns, reinterpret_cast<const float*>(from), c_row / 4});
  }
  void hand_over_all() const { hand_over(0, m, 0, n); }
};

// The batch dimensions of a call, broadcast against each other. Rows of several products of one b become one product
// where the strides allow it.
struct Batch {
  MatmulCall first;
  std::int64_t count = 1;
  int ndim = 0;
  std::int64_t shape[kMaxDims], a[kMaxDims], b[kMaxDims], c[kMaxDims];  // byte strides

  explicit Batch(const Call& call);
  MatmulCall at(std::int64_t index) const;
};

// Runs every product of the batch, several at a time where that keeps the threads busy.
using MatmulBody = void (*)(const MatmulCall&);
void each_product(const Batch& batch, MatmulBody body, bool threads);

// The teaching kernels; parallel_product also serves the integers.
void matmul_naive(const Call&), matmul_blocked(const Call&), matmul_parallel(const Call&);
void parallel_product(const MatmulCall&);

}  // namespace tritium::TRITIUM_ISA
