// Products with few rows of A: B is read once, straight from where it lies, by all threads.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../early.h"
#include "../threads.h"
#include "../workspace.h"
#include "pack.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kSkinnyRows = 16;       // more rows of A are worth packing B
constexpr std::int64_t kSkinnyTile = 4096;     // elements of C that one thread sums up in L1
constexpr std::int64_t kSkinnySteps = 4;       // rows of B added at once
constexpr std::int64_t kSkinnyGrain = 65536;   // elements of B per thread
constexpr std::int64_t kSkinnyLong = 1 << 16;  // steps between two looks whether to end early
constexpr int kDotRows = 8;                    // rows of A that one pass over a column of B takes
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr std::int64_t kSkinnyGroup = 4;  // rows of C added to at once: as many as the registers hold factors for
#else
constexpr std::int64_t kSkinnyGroup = 2;
#endif

// c[i][0 .. n) += sum over p < P of a[i][p] * b[p][0 .. n) for R rows of a and c; the R * P factors stay in registers.
// Rows of B lie on pages of their own, which the processor does not fetch ahead: `ahead` bytes on is what is next.
template <class T, int R, int P>
inline void add_steps(std::int64_t n, const T* a, std::int64_t a_row, const T* const* b, std::int64_t ahead, T* c,
                      std::int64_t c_row) {
  Vec<T> factor[R][P];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) factor[r][p] = splat(a[r * a_row + p]);
  }
  std::int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) {
    Vec<T> x[P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      x[p] = load(b[p] + j);
      __builtin_prefetch(reinterpret_cast<const char*>(b[p] + j) + ahead);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      Vec<T> y = load(c + r * c_row + j);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) y += factor[r][p] * x[p];
      store(c + r * c_row + j, y);
    }
  }
  for (; j < n; ++j) {
    for (int r = 0; r < R; ++r) {
      T y = c[r * c_row + j];
      for (int p = 0; p < P; ++p) y += a[r * a_row + p] * b[p][j];
      c[r * c_row + j] = y;
    }
  }
}

template <class T, int P>
inline void add_steps(std::int64_t m, std::int64_t n, const T* a, std::int64_t a_row, const T* const* b,
                      std::int64_t ahead, T* c) {
  std::int64_t i = 0;
  for (; i + kSkinnyGroup <= m; i += kSkinnyGroup) {
    add_steps<T, kSkinnyGroup, P>(n, a + i * a_row, a_row, b, i == 0 ? ahead : 0, c + i * n, n);
  }
  for (; i < m; ++i) add_steps<T, 1, P>(n, a + i * a_row, a_row, b, i == 0 ? ahead : 0, c + i * n, n);
}

// c[i][q] += sum over p < k of a[i][p] * b[q][p], for R rows of a and Q columns of C; f64 where lanes meet.
template <class T, int R, int Q>
inline void add_dots(std::int64_t k, const T* a, std::int64_t a_row, const T* const* b, double* c, std::int64_t c_row) {
  constexpr std::int64_t kAhead = 2048 / sizeof(T);
  Vec<T> acc[R][Q] = {};
  std::int64_t p = 0;
  for (; p + kLanes<T> <= k; p += kLanes<T>) {
    Vec<T> x[Q];
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
      x[q] = load(b[q] + p);
      __builtin_prefetch(b[q] + p + kAhead);  // into the next page, where the processor stops
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec<T> y = load(a + r * a_row + p);
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) acc[r][q] += y * x[q];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
      double sum = add_lanes(acc[r][q]);
      for (std::int64_t t = p; t < k; ++t) sum += static_cast<double>(a[r * a_row + t] * b[q][t]);
      c[r * c_row + q] += sum;
    }
  }
}

// Columns [first, first + n) of C into c[m][n], B with rows denser than columns or as dense.
template <class T>
void skinny_columns(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const Matrix& b, std::int64_t first,
                    T* c) {
  constexpr std::int64_t item = sizeof(T);
  alignas(64) T lines[kSkinnySteps * kSkinnyTile];
  const bool straight = b.direct && b.column == item;
  for (std::int64_t i = 0; i < m * n; ++i) c[i] = T{};
  for (std::int64_t p = 0; p < k;) {
    if (ends_early_at(p, kSkinnyLong)) return;
    const T* rows[kSkinnySteps];
    const std::int64_t steps = k - p < kSkinnySteps ? 1 : kSkinnySteps;
    for (std::int64_t s = 0; s < steps; ++s) {
      rows[s] = straight ? reinterpret_cast<const T*>(b.at(p + s, first)) : lines + s * n;
      if (!straight) b.gather(b.at(p + s, first), b.column, lines + s * n, n);
    }
    const std::int64_t ahead = straight && m > 1 ? kSkinnySteps * b.row : 0;  // one row alone keeps no reads waiting
    steps == 1 ? add_steps<T, 1>(m, n, a + p, k, rows, ahead, c)
               : add_steps<T, kSkinnySteps>(m, n, a + p, k, rows, ahead, c);
    p += steps;
  }
}

// The same with columns of B denser than rows: dot products in chunks of k. More than four rows of a come in
// multiples of kDotRows, zeros at the end.
template <class T>
void skinny_dots(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const Matrix& b, std::int64_t first,
                 T* c) {
  constexpr std::int64_t item = sizeof(T), kChunk = 1024;
  alignas(64) T lines[4 * kChunk];
  const bool straight = b.direct && b.row == item;
  const std::int64_t most = m > 4 ? 2 : 4;  // columns at once: rows times columns of sums stay in registers
  for (std::int64_t j = 0; j < n;) {
    const std::int64_t group = n - j < most ? 1 : most;
    double sums[kSkinnyRows * 4] = {};
    for (std::int64_t p = 0; p < k; p += kChunk) {
      if (ends_early_at(p, kSkinnyLong)) return;
      const std::int64_t steps = k - p < kChunk ? k - p : kChunk;
      const T* columns[4];
      for (std::int64_t q = 0; q < group; ++q) {
        columns[q] = straight ? reinterpret_cast<const T*>(b.at(p, first + j + q)) : lines + q * kChunk;
        if (!straight) b.gather(b.at(p, first + j + q), b.row, lines + q * kChunk, steps);
      }
      const auto dots = [&](auto rows, std::int64_t i) {
        constexpr int R = decltype(rows)::value, Q = R > 4 ? 2 : 4;
        group == Q ? add_dots<T, R, Q>(steps, a + i * k + p, k, columns, sums + i * 4, 4)
                   : add_dots<T, R, 1>(steps, a + i * k + p, k, columns, sums + i * 4, 4);
      };
      if (m > 4) {
        for (std::int64_t i = 0; i < m; i += kDotRows) dots(std::integral_constant<int, kDotRows>(), i);
        continue;
      }
      std::int64_t i = 0;
      for (; i + 2 <= m; i += 2) dots(std::integral_constant<int, 2>(), i);
      if (i < m) dots(std::integral_constant<int, 1>(), i);
    }
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t q = 0; q < group; ++q) c[i * n + j + q] = static_cast<T>(sums[i * 4 + q]);
    }
    j += group;
  }
}

// C = A B for m <= kSkinnyRows; put(first, columns, c) takes finished columns of C as c[m][columns]. False: no memory.
template <class T, class Put>
bool skinny(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a, const Matrix& b, const Put& put) {
  const std::int64_t height = m > 4 ? (m + kDotRows - 1) / kDotRows * kDotRows : m;
  const Workspace space(height * k * static_cast<std::int64_t>(sizeof(T)), Need::may);
  T* const rows = space.as<T>();
  if (!rows) return false;
  for (std::int64_t i = 0; i < m; ++i) {
    if (k > kSkinnyLong && ends_early()) return true;
    a.gather(a.at(i, 0), a.column, rows + i * k, k);
  }
  for (std::int64_t i = m * k; i < height * k; ++i) rows[i] = T{};
  const bool dots = magnitude(b.row) < magnitude(b.column);
  // Wide strips read B in long runs, narrow ones keep all threads busy.
  const std::int64_t widest = kSkinnyTile / m / 64 * 64, share = (n / (2 * num_threads()) + 63) / 64 * 64;
  const std::int64_t width = dots ? 64 : share < 256 ? 256 : share < widest ? share : widest;
  const std::int64_t strips = (n + width - 1) / width;
  parallel_for(strips, kSkinnyGrain / (width * k) + 1, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) T c[kSkinnyTile];
    for (std::int64_t s = begin; s < end; ++s) {
      const std::int64_t first = s * width, columns = n - first < width ? n - first : width;
      dots ? skinny_dots(m, columns, k, rows, b, first, c) : skinny_columns(m, columns, k, rows, b, first, c);
      put(first, columns, c);
    }
  });
  return true;
}

}  // namespace tritium::TRITIUM_ISA
