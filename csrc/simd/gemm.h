// One product of two matrices in packed panels: C = A B in f32 or f64, any strides of A and B, adjacent columns of C.
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

// The panels of A that stay in L2 (kBlockBytes) meet one panel of B after the other, kDepth steps at a time, while
// their tiles of C stay in L1 and L2.
template <class T>
constexpr std::int64_t kDepth = 2048 / sizeof(T);
constexpr std::int64_t kBlockBytes = 1 << 20;
constexpr std::int64_t kSuperRows = 2048 / kTileRows * kTileRows;  // these bound the packed memory
constexpr std::int64_t kSuperColumns = 4096;
constexpr std::int64_t kSuperDepth = 2048;
constexpr std::int64_t kLooseDepth = 128;          // steps of a B that is not worth packing
constexpr std::int64_t kPackGrain = 16384;        // elements packed per range
constexpr std::int64_t kProductGrain = 1 << 18;  // multiplications per range
constexpr std::int64_t kPanelsAtOnce = 8;        // finished panels of a block that are told of together

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// c[R][V] (+)= a[k][R] b[k][V], rows of b and c as far apart as given. The rows of c are fetched ahead one by one, so
// that the fetches do not queue up in front of the loads of a and b.
template <class T, int R, int V>
void tile(std::int64_t k, const T* a, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, bool add) {
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
    b += ldb;
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
void any_tile(std::int64_t k, const T* a, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, bool add, int height,
              int rows, int columns) {
  const bool low = height == kLowRows, narrow = columns <= kLanes<T>;
  const auto run = low ? (narrow ? tile<T, kLowRows, 1> : tile<T, kLowRows, kTileVectors>)
                       : (narrow ? tile<T, kTileRows, 1> : tile<T, kTileRows, kTileVectors>);
  if (rows == height && columns == (narrow ? kLanes<T> : kTileColumns<T>)) return run(k, a, b, ldb, c, ldc, add);
  alignas(64) T whole[kTileRows * kTileColumns<T>];
  run(k, a, b, ldb, whole, kTileColumns<T>, false);
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
  std::int64_t first(std::int64_t t) const { return least(t, high) * kTileRows + (t > high ? t - high : 0) * kLowRows; }
  int height(std::int64_t t) const { return t < high ? kTileRows : kLowRows; }
  int filled(std::int64_t t) const { return static_cast<int>(least(height(t), rows - first(t))); }
};

// C = A B with rows of C `c_row` elements apart. All threads pack A and B, then share the tiles of C. The order of the
// additions to an element of C does not depend on the number of threads. finished(i, rows, j, columns) is told of every
// part of C once, by the thread that has it in its cache. False: no memory, nothing done.
template <class T, class F>
bool gemm(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b, T* c, std::int64_t c_row,
          const F& finished) {
  constexpr int width = kTileColumns<T>;
  const std::int64_t super_rows = least(m, kSuperRows), super_columns = least(n, kSuperColumns);
  const std::int64_t super_depth = ceil_div(k, ceil_div(k, kSuperDepth));
  const std::int64_t depth = ceil_div(super_depth, ceil_div(super_depth, kDepth<T>));
  const std::int64_t a_stride = super_depth * kTileRows + kLanes<T>, b_stride = super_depth * width + kLanes<T>;
  const std::int64_t a_size = ceil_div((ceil_div(super_rows, kTileRows) + kTileRows / 2) * a_stride, 64) * 64;
  const std::int64_t b_size = ceil_div(super_columns, width) * b_stride;
  const Workspace space((a_size + b_size) * static_cast<std::int64_t>(sizeof(T)), Need::may);
  if (!space.data()) return false;
  T* const a_packed = space.as<T>();
  T* const b_packed = a_packed + a_size;
  // A small B with adjacent columns is read where it lies, but for a last panel of fewer columns.
  constexpr std::int64_t item = sizeof(T);
  const bool loose = b.direct && b.column == item && b.row % item == 0 && k <= kLooseDepth;
  const std::int64_t loose_panels = loose ? n / width : 0;
  for (std::int64_t j0 = 0; j0 < n; j0 += super_columns) {
    const std::int64_t columns = least(super_columns, n - j0), b_panels = ceil_div(columns, width);
    for (std::int64_t q0 = 0; q0 < k; q0 += super_depth) {
      const std::int64_t steps = least(super_depth, k - q0);
      for (std::int64_t i0 = 0; i0 < m; i0 += super_rows) {
        const RowTiles tiles(least(super_rows, m - i0));
        // B stays packed for the further rows of A.
        const std::int64_t b_new = i0 == 0 && !(loose && n % width == 0) ? b_panels : 0;
        parallel_for(b_new + tiles.count, kPackGrain / (steps * width) + 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t u = begin; u < end; ++u) {
            if (u < b_new) {
              const std::int64_t j = j0 + u * width;
              if (j / width < loose_panels) continue;
              pack_panel<width>(steps, static_cast<int>(least(width, n - j)), width, b.at(q0, j), b.row, b.column, b,
                                b_packed + u * b_stride);
            } else {
              const std::int64_t t = u - b_new;
              pack_panel<kTileRows>(steps, tiles.filled(t), tiles.height(t), a.at(i0 + tiles.first(t), q0), a.column,
                                    a.row, a, a_packed + t * a_stride);
            }
          }
        });
        const std::int64_t fitting = kBlockBytes / (a_stride * static_cast<std::int64_t>(sizeof(T))) + 1;
        const std::int64_t blocks = ceil_div(tiles.count, fitting), tall = ceil_div(tiles.count, blocks);
        const std::int64_t work = steps * tall * kTileRows * width;
        parallel_for(blocks * b_panels, kProductGrain / work + 1, [&](std::int64_t begin, std::int64_t end) {
          std::int64_t untold = begin;
          for (std::int64_t u = begin; u < end; ++u) {
            const std::int64_t block = u / b_panels, panel = u % b_panels, j = j0 + panel * width;
            const std::int64_t last = least(tiles.count, (block + 1) * tall);
            const bool lies = j / width < loose_panels;
            const T* from = lies ? reinterpret_cast<const T*>(b.at(q0, j)) : b_packed + panel * b_stride;
            const std::int64_t ldb = lies ? b.row / item : width;
            for (std::int64_t p = 0; p < steps; p += depth) {
              for (std::int64_t t = block * tall; t < last; ++t) {
                any_tile(least(depth, steps - p), a_packed + t * a_stride + p * tiles.height(t),
                         from + p * ldb, ldb, c + (i0 + tiles.first(t)) * c_row + j, c_row, q0 + p > 0,
                         tiles.height(t), tiles.filled(t), static_cast<int>(least(width, n - j)));
              }
            }
            const bool pause = u + 1 == end || panel + 1 == b_panels || u + 1 - untold == kPanelsAtOnce;
            if (q0 + steps < k || !pause) continue;
            const std::int64_t top = tiles.first(block * tall), first = j0 + untold % b_panels * width;
            finished(i0 + top, least(tiles.first(last), tiles.rows) - top, first, least(j + width, n) - first);
            untold = u + 1;
          }
        });
      }
    }
  }
  return true;
}

}  // namespace tritium::TRITIUM_ISA
