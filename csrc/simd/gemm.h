// One product of two matrices in packed panels: C = A B in f32 or f64, A and B with any strides, the columns of C adjacent.
// Knows nothing of views or batches.
#pragma once

#include <cstdint>

#include "../threads.h"
#include "../workspace.h"
#include "pack.h"

namespace tritium::TRITIUM_ISA {

// The tile of C that stays in registers while one step of k is added: kTileRows x (kTileVectors * lanes). 32 registers
// (AVX-512, NEON) and 16 registers (the rest) give different shapes. A few low tiles make up any number of rows almost
// without waste.
#if defined(__AVX512F__)
constexpr int kTileRows = 14, kLowRows = 8, kTileVectors = 2;
#elif defined(__aarch64__)
constexpr int kTileRows = 8, kLowRows = 4, kTileVectors = 3;
#elif defined(__AVX2__)
constexpr int kTileRows = 6, kLowRows = 3, kTileVectors = 2;
#else
constexpr int kTileRows = 4, kLowRows = 2, kTileVectors = 2;
#endif

template <class T>
constexpr int kTileColumns = kTileVectors * kLanes<T>;

// Steps of k per panel: deep enough that C is seldom read again. kBlockTiles panels of A stay in L2 while the panels of
// B pass by.
template <class T>
constexpr std::int64_t kDepth = 2048 / sizeof(T);
constexpr std::int64_t kBlockTiles = 24;
constexpr std::int64_t kSuperRows = 4096 / kTileRows * kTileRows;  // bound the packed memory
constexpr std::int64_t kSuperColumns = 4096;
constexpr std::int64_t kPackGrain = 16384;        // elements packed per range
constexpr std::int64_t kProductGrain = 1 << 18;  // multiplications per range

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// c[R][V] (+)= a[k][R] b[k][kTileColumns]. The rows of c are fetched ahead one by one, so that the fetches do not queue up
// in front of the loads of a and b.
template <class T, int R, int V>
void tile(std::int64_t k, const T* a, const T* b, T* c, std::int64_t ldc, bool add) {
  Vec<T> acc[R][V] = {};
  const auto step = [&]() __attribute__((always_inline)) {
    Vec<T> x[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) x[v] = load(b + v * kLanes<T>);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec<T> y = splat(a[r]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[r][v] += y * x[v];
    }
    a += R;
    b += kTileColumns<T>;
  };
  std::int64_t p = 0;
  for (; p < R && p < k; ++p) {
    const T* row = c + p * ldc;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) __builtin_prefetch(row + v * kLanes<T>, 1);
    __builtin_prefetch(row + V * kLanes<T> - 1, 1);
    step();
  }
  for (; p < k; ++p) step();
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      T* at = c + r * ldc + v * kLanes<T>;
      store(at, add ? acc[r][v] + load(at) : acc[r][v]);
    }
  }
}

// A tile of `height` rows of which only rows x columns lie inside C.
template <class T>
void any_tile(std::int64_t k, const T* a, const T* b, T* c, std::int64_t ldc, bool add, int height, int rows, int columns) {
  const bool low = height == kLowRows, narrow = columns <= kLanes<T>;
  const auto run = low ? (narrow ? tile<T, kLowRows, 1> : tile<T, kLowRows, kTileVectors>)
                       : (narrow ? tile<T, kTileRows, 1> : tile<T, kTileRows, kTileVectors>);
  if (rows == height && columns == (narrow ? kLanes<T> : kTileColumns<T>)) return run(k, a, b, c, ldc, add);
  alignas(64) T whole[kTileRows * kTileColumns<T>];
  run(k, a, b, whole, kTileColumns<T>, false);
  for (int r = 0; r < rows; ++r) {
    const T* from = whole + r * kTileColumns<T>;
    T* to = c + r * ldc;
    if (add) {
      for (int j = 0; j < columns; ++j) to[j] += from[j];
    } else {
      for (int j = 0; j < columns; ++j) to[j] = from[j];
    }
  }
}

// Rows cut into high tiles, then low ones.
struct RowTiles {
  std::int64_t rows, high, count;

  explicit RowTiles(std::int64_t m) : rows(m), high(ceil_div(m, kTileRows)), count(high) {
    std::int64_t best = high * kTileRows;
    for (std::int64_t low = 1; low <= kTileRows / 2 && low * kLowRows < m + kLowRows; ++low) {
      const std::int64_t rest = m > low * kLowRows ? ceil_div(m - low * kLowRows, kTileRows) : 0;
      if (rest * kTileRows + low * kLowRows >= best) continue;
      best = rest * kTileRows + low * kLowRows;
      high = rest;
      count = rest + low;
    }
  }
  std::int64_t first(std::int64_t t) const { return t < high ? t * kTileRows : high * kTileRows + (t - high) * kLowRows; }
  int height(std::int64_t t) const { return t < high ? kTileRows : kLowRows; }
  int filled(std::int64_t t) const { return static_cast<int>(least(height(t), rows - first(t))); }
};

// C = A B with rows of C `c_row` elements apart. Packs A and B block by block, both by all threads, then lets the
// threads share the tiles of C. The order of the additions to an element of C does not depend on the number of
// threads. False: no memory, nothing done.
template <class T>
bool gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b, T* c, std::int64_t c_row) {
  constexpr int width = kTileColumns<T>;
  const std::int64_t depth = ceil_div(k, ceil_div(k, kDepth<T>));
  const std::int64_t super_rows = least(m, kSuperRows), super_columns = least(n, kSuperColumns);
  const std::int64_t a_stride = depth * kTileRows + kLanes<T>, b_stride = depth * width + kLanes<T>;
  const std::int64_t a_size = ceil_div((ceil_div(super_rows, kTileRows) + kTileRows / 2) * a_stride, 64) * 64;
  const std::int64_t b_size = ceil_div(super_columns, width) * b_stride;
  const Workspace space((a_size + b_size) * static_cast<std::int64_t>(sizeof(T)), Need::may);
  if (!space.data()) return false;
  T* const a_packed = space.as<T>();
  T* const b_packed = a_packed + a_size;
  for (std::int64_t j0 = 0; j0 < n; j0 += super_columns) {
    const std::int64_t columns = least(super_columns, n - j0), b_panels = ceil_div(columns, width);
    for (std::int64_t p0 = 0; p0 < k; p0 += depth) {
      const std::int64_t steps = least(depth, k - p0);
      for (std::int64_t i0 = 0; i0 < m; i0 += super_rows) {
        const RowTiles tiles(least(super_rows, m - i0));
        const std::int64_t a_panels = tiles.count;
        const std::int64_t b_new = i0 == 0 ? b_panels : 0;  // B stays packed for the further rows of A
        parallel_for(b_new + a_panels, kPackGrain / (steps * width) + 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t u = begin; u < end; ++u) {
            if (u < b_new) {
              const std::int64_t j = j0 + u * width;
              pack_panel<width>(steps, static_cast<int>(least(width, n - j)), width, b.at(p0, j), b.row, b.column, b,
                                b_packed + u * b_stride);
            } else {
              const std::int64_t t = u - b_new;
              pack_panel<kTileRows>(steps, tiles.filled(t), tiles.height(t), a.at(i0 + tiles.first(t), p0), a.column,
                                    a.row, a, a_packed + t * a_stride);
            }
          }
        });
        const std::int64_t blocks = ceil_div(a_panels, kBlockTiles), tall = ceil_div(a_panels, blocks);
        const std::int64_t work = steps * tall * kTileRows * width;
        parallel_for(blocks * b_panels, kProductGrain / work + 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t block = u / b_panels, panel = u % b_panels, j = j0 + panel * width;
            for (std::int64_t t = block * tall; t < least(a_panels, (block + 1) * tall); ++t) {
              any_tile(steps, a_packed + t * a_stride, b_packed + panel * b_stride,
                       c + (i0 + tiles.first(t)) * c_row + j, c_row, p0 > 0, tiles.height(t), tiles.filled(t),
                       static_cast<int>(least(width, n - j)));
            }
          }
        });
      }
    }
  }
  return true;
}

}  // namespace tritium::TRITIUM_ISA
