// Vectors as wide as the registers of the instruction set being compiled, by the compilers' vector extension.
// Knows nothing of tensors: loads, stores and the folding of the lanes into one number.
#pragma once

#include <cstdint>

namespace tritium::TRITIUM_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
using Vec = typename VectorOf<T, kLanes<T>>::type;

template <class T>
inline __attribute__((always_inline)) Vec<T> load(const T* p) {
  Vec<T> v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

template <class T>
inline __attribute__((always_inline)) void store(T* p, Vec<T> v) {
  __builtin_memcpy(p, &v, sizeof(v));
}

template <class T>
inline __attribute__((always_inline)) Vec<T> splat(T x) {
  return x - Vec<T>{};  // minus zero leaves every value as it is, -0 and NaN included
}

// The sum of N doubles, by halves.
template <int N>
inline __attribute__((always_inline)) double add_lanes(const typename VectorOf<double, N>::type& v) {
  if constexpr (N == 2) {
    return v[0] + v[1];
  } else {
    using Half = typename VectorOf<double, N / 2>::type;
    Half low, high;
    __builtin_memcpy(&low, &v, sizeof(Half));
    __builtin_memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(Half), sizeof(Half));
    return add_lanes<N / 2>(low + high);
  }
}

inline __attribute__((always_inline)) double add_lanes(const Vec<double>& v) {
  return add_lanes<kLanes<double>>(v);
}

inline __attribute__((always_inline)) double add_lanes(const Vec<float>& v) {
  constexpr int H = kLanes<float> / 2;
  typename VectorOf<float, H>::type low, high;
  __builtin_memcpy(&low, &v, sizeof(low));
  __builtin_memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
  using Wide = typename VectorOf<double, H>::type;
  return add_lanes<H>(__builtin_convertvector(low, Wide) + __builtin_convertvector(high, Wide));
}

// The sum over i < n of at(i), where vector(i) gives at(i), at(i + 1), …: eight vectors of partial sums.
template <class T, class V, class S>
inline __attribute__((always_inline)) double sum_lanes(std::int64_t n, V vector, S at) {
  constexpr int L = kLanes<T>, U = 8;
  Vec<T> acc[U] = {};
  std::int64_t i = 0;
  for (; i + U * L <= n; i += U * L) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) acc[u] += vector(i + u * L);
  }
  for (; i + L <= n; i += L) acc[0] += vector(i);
  double tail = 0;
  for (; i < n; ++i) tail += static_cast<double>(at(i));
  return add_lanes(((acc[0] + acc[1]) + (acc[2] + acc[3])) + ((acc[4] + acc[5]) + (acc[6] + acc[7]))) + tail;
}

}  // namespace tritium::TRITIUM_ISA
