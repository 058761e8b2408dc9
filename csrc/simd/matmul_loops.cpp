// The matrix product three times over, to be read: as it is defined, in blocks, and in blocks on all threads.
// Integers wrap; f16 and bf16 are summed in f32.
#include "../early.h"
#include "../threads.h"
#include "gather.h"
#include "matmul.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kRows = 16, kSteps = 64, kWide = 256;  // a block of b (kSteps x kWide) stays in L2

// The type sums are kept in: unsigned for integers, whose overflow wraps.
template <class T>
struct Sums {
  using type = T;
};
template <>
struct Sums<std::int8_t> {
  using type = std::uint8_t;
};
template <>
struct Sums<std::int32_t> {
  using type = std::uint32_t;
};
template <>
struct Sums<int64_t> {
  using type = std::uint64_t;
};

// C[i][j] is row i of A times column j of B.
template <class T>
void naive(const MatmulCall& g) {
  using S = typename Sums<T>::type;
  const Gather gather = gather_of<T>(g.dtype);
  const int64_t some = (1 << 16) / (g.k + 1) + 1;  // elements of C between two looks whether to end early
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      if (ends_early_at(i * g.n + j, some)) return;
      S sum = 0;
      for (int64_t p = 0; p < g.k; ++p) {
        T a, b;
        gather(g.a + i * g.a_row + p * g.a_column, 0, &a, 1);
        gather(g.b + p * g.b_row + j * g.b_column, 0, &b, 1);
        sum = static_cast<S>(sum + static_cast<S>(a) * static_cast<S>(b));
      }
      const T c = static_cast<T>(sum);
      scatter(g.dtype, &c, g.c + i * g.c_row + j * g.c_column, 0, 1);
    }
  }
}

// A block of C at a time: blocks of A and B are copied to where they stay in the cache, then every element of the block
// of A is multiplied with a whole row of the block of B.
template <class T>
void blocked(const MatmulCall& g) {
  using S = typename Sums<T>::type;
  const Gather gather = gather_of<T>(g.dtype);
  alignas(64) T a[kRows][kSteps], b[kSteps][kWide];
  alignas(64) S c[kRows][kWide];
  for (int64_t j0 = 0; j0 < g.n; j0 += kWide) {
    const int64_t columns = g.n - j0 < kWide ? g.n - j0 : kWide;
    for (int64_t i0 = 0; i0 < g.m; i0 += kRows) {
      const int64_t rows = g.m - i0 < kRows ? g.m - i0 : kRows;
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) c[i][j] = 0;
      }
      if (ends_early()) return;
      for (int64_t p0 = 0; p0 < g.k; p0 += kSteps) {
        if (ends_early_at(p0, kSteps * kSteps)) return;
        const int64_t steps = g.k - p0 < kSteps ? g.k - p0 : kSteps;
        for (int64_t i = 0; i < rows; ++i) {
          gather(g.a + (i0 + i) * g.a_row + p0 * g.a_column, g.a_column, a[i], steps);
        }
        for (int64_t p = 0; p < steps; ++p) {
          gather(g.b + (p0 + p) * g.b_row + j0 * g.b_column, g.b_column, b[p], columns);
        }
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t p = 0; p < steps; ++p) {
            const S x = static_cast<S>(a[i][p]);
            for (int64_t j = 0; j < columns; ++j) c[i][j] = static_cast<S>(c[i][j] + x * static_cast<S>(b[p][j]));
          }
        }
      }
      for (int64_t i = 0; i < rows; ++i) {
        T* row = reinterpret_cast<T*>(c[i]);
        scatter(g.dtype, row, g.c + (i0 + i) * g.c_row + j0 * g.c_column, g.c_column, columns);
      }
    }
  }
}

// Bands of rows of C, one or more per thread.
template <class T>
void parallel(const MatmulCall& g) {
  const int64_t bands = (g.m + kRows - 1) / kRows;
  parallel_for(bands, (1 << 16) / (kRows * g.n * (g.k + 1)) + 1, [&g](int64_t begin, int64_t end) {
    MatmulCall band = g;
    band.a += begin * kRows * g.a_row;
    band.c += begin * kRows * g.c_row;
    band.m = (end * kRows < g.m ? end * kRows : g.m) - begin * kRows;
    blocked<T>(band);
  });
}

void naive_product(const MatmulCall& g) {
  switch (g.dtype) {
    case DType::f64: return naive<double>(g);
    case DType::i64: return naive<int64_t>(g);
    case DType::i32: return naive<std::int32_t>(g);
    case DType::i8: return naive<std::int8_t>(g);
    default: return naive<float>(g);
  }
}

void blocked_product(const MatmulCall& g) {
  switch (g.dtype) {
    case DType::f64: return blocked<double>(g);
    case DType::i64: return blocked<int64_t>(g);
    case DType::i32: return blocked<std::int32_t>(g);
    case DType::i8: return blocked<std::int8_t>(g);
    default: return blocked<float>(g);
  }
}

}  // namespace

void parallel_product(const MatmulCall& g) {
  switch (g.dtype) {
    case DType::f64: return parallel<double>(g);
    case DType::i64: return parallel<int64_t>(g);
    case DType::i32: return parallel<std::int32_t>(g);
    case DType::i8: return parallel<std::int8_t>(g);
    default: return parallel<float>(g);
  }
}

void matmul_naive(const Call& call) { each_product(Batch(call), naive_product, false); }
void matmul_blocked(const Call& call) { each_product(Batch(call), blocked_product, false); }
void matmul_parallel(const Call& call) { each_product(Batch(call), parallel_product, true); }

}  // namespace tritium::TRITIUM_ISA
