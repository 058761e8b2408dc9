// The system's matrix product: OpenBLAS loaded at run time, or Accelerate on macOS.
// Knows nothing of tensors or threads: one call is one product on one thread.
#pragma once

#include <cstdint>

namespace tritium {

struct BlasInfo {
  const char* vendor;  // "openblas", "accelerate" or "none"
  const char* config;  // what the library says of itself, "" if nothing
  const char* path;    // of the loaded library, ""
};

// Loads OpenBLAS from `path`; true if it is there and has what is needed. On macOS always true: Accelerate is linked.
bool blas_load(const char* path);
BlasInfo blas_info();
bool blas_ready();

// A matrix as BLAS takes it: `leading` elements from row to row, or from column to column when transposed.
struct BlasMatrix {
  const void* data;
  bool transposed;
  std::int64_t leading;
};

// C = A B, row-major with `c_leading` elements from row to row. False: the sizes are beyond 32 bits; nothing done.
bool blas_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const BlasMatrix& a, const BlasMatrix& b, float* c,
               std::int64_t c_leading);
bool blas_gemm(std::int64_t m, std::int64_t n, std::int64_t k, const BlasMatrix& a, const BlasMatrix& b, double* c,
               std::int64_t c_leading);

}  // namespace tritium
