// Copies a strip of a matrix into the order in which the tiles of a product read it.
// Knows nothing of the product: one panel is k steps of `width` neighbouring elements.
#pragma once

#include <cstdint>
#include <utility>

#include "axes.h"
#include "gather.h"
#include "lanes.h"

namespace tritium::TRITIUM_ISA {

// Transposes lanes x lanes: log2(lanes) rounds of interleaving the first half of the vectors with the second.
template <class T, int... I>
inline __attribute__((always_inline)) void interleave(const Vec<T>& a, const Vec<T>& b, Vec<T>& low, Vec<T>& high,
                                                      std::integer_sequence<int, I...>) {
  constexpr int L = sizeof...(I);
  low = __builtin_shufflevector(a, b, (I / 2 + I % 2 * L)...);
  high = __builtin_shufflevector(a, b, (L / 2 + I / 2 + I % 2 * L)...);
}

template <class T>
inline __attribute__((always_inline)) void transpose(Vec<T> (&v)[kLanes<T>]) {
  constexpr int L = kLanes<T>;
#pragma GCC unroll 4
  for (int round = 1; round < L; round *= 2) {
    Vec<T> w[L];
#pragma GCC unroll 8
    for (int i = 0; i < L / 2; ++i)
      interleave<T>(v[i], v[i + L / 2], w[2 * i], w[2 * i + 1], std::make_integer_sequence<int, L>());
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) v[i] = w[i];
  }
}

// to[p][i] = from[i * across + p], p < lanes, i < count; zeros up to a whole number of vectors. Whole vectors are
// written, from the last group to the first, so what one row spills into the next is overwritten by that row.
template <class T>
inline void turn(const T* from, std::int64_t across, int count, T* to, int stride) {
  constexpr int L = kLanes<T>;
  for (int g = (stride - 1) / L * L; g >= 0; g -= L) {
    Vec<T> v[L];
    if (g + L <= count) {
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = load(from + (g + i) * across);
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < L; ++i) v[i] = g + i < count ? load(from + (g + i) * across) : Vec<T>{};
    }
    transpose<T>(v);
#pragma GCC unroll 16
    for (int p = 0; p < L; ++p) store(to + p * stride + g, v[p]);
  }
}

// A matrix in memory: byte strides, and how its elements become those of the product.
struct Matrix {
  const char* data;
  std::int64_t row, column;  // bytes from one row to the next, from one column to the next
  Gather gather;
  bool direct;  // the elements are those of the product already

  const char* at(std::int64_t i, std::int64_t j) const { return data + i * row + j * column; }
};

// to[p][i] = the element at from + p * along + i * across for p < k, i < count; zeros for count <= i < stride. `to`
// has room for one vector more than k * stride. W is the usual stride, for which the copy has a fixed length.
template <int W, class T>
void pack_panel(std::int64_t k, int count, int stride, const char* from, std::int64_t along, std::int64_t across,
                const Matrix& source, T* to) {
  constexpr std::int64_t item = sizeof(T), kChunk = 64;
  if (source.direct && across == item && count == W) {
    for (std::int64_t p = 0; p < k; ++p) __builtin_memcpy(to + p * W, from + p * along, W * sizeof(T));
    return;
  }
  std::int64_t p = 0;
  if (magnitude(along) < magnitude(across)) {
    alignas(64) T lines[W * kChunk];
    while (p + kLanes<T> <= k) {
      const T* lined = reinterpret_cast<const T*>(from + p * along);
      std::int64_t apart = across / item, n = (k - p) / kLanes<T> * kLanes<T>;
      if (!(source.direct && along == item && across % item == 0)) {
        if (n > kChunk) n = kChunk;
        for (int i = 0; i < count; ++i) source.gather(from + p * along + i * across, along, lines + i * kChunk, n);
        lined = lines;
        apart = kChunk;
      }
      for (std::int64_t q = 0; q < n; q += kLanes<T>) turn(lined + q, apart, count, to + (p + q) * stride, stride);
      p += n;
    }
  }
  for (; p < k; ++p) {
    source.gather(from + p * along, across, to + p * stride, count);
    for (int i = count; i < stride; ++i) to[p * stride + i] = T{};
  }
}

}  // namespace tritium::TRITIUM_ISA
