// The matrix products of a batch, one after the other, and the plain loops that need no packing.
// Knows nothing of BLAS.
#pragma once

#include <cstdint>

#include "../view.h"

namespace tritium::TRITIUM_ISA {

// One product: a[m][k], b[k][n], c[m][n], byte strides.
struct MatmulCall {
  std::int64_t m, n, k;
  const char *a, *b;
  char* c;
  std::int64_t a_row, a_column, b_row, b_column, c_row, c_column;
  DType dtype;

  // C^T = B^T A^T.
  MatmulCall turned() const {
    return {n, m, k, b, a, c, b_column, b_row, a_column, a_row, c_column, c_row, dtype};
  }
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
