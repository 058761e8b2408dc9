// Vectors as wide as the registers of the instruction set being compiled, by the compilers' vector extension.
// Knows nothing of tensors: loads, stores and the folding of the lanes into one number.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

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

// As many floats as there are lanes of doubles, as doubles. GCC 12 converts them by halves with AVX-512, lane by lane on ARM.
inline __attribute__((always_inline)) Vec<double> doubles(const VectorOf<float, kLanes<double>>::type& v) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec<double>>(_mm512_maskz_cvtps_pd(0xff, reinterpret_cast<__m256>(v)));
#elif defined(__aarch64__)
  return vcvt_f64_f32(v);
#else
  return __builtin_convertvector(v, Vec<double>);
#endif
}
inline __attribute__((always_inline)) Vec<double> doubles(const Vec<double>& v) { return v; }

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
  return add_lanes<H>(doubles(low) + doubles(high));
}

// f folded over the lanes, by halves.
template <class T, int N, class F>
inline __attribute__((always_inline)) T fold_lanes(const typename VectorOf<T, N>::type& v, F f) {
  if constexpr (N == 2) {
    return f(v[0], v[1]);
  } else {
    using Half = typename VectorOf<T, N / 2>::type;
    Half low, high;
    __builtin_memcpy(&low, &v, sizeof(Half));
    __builtin_memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(Half), sizeof(Half));
    return fold_lanes<T, N / 2>(f(low, high), f);
  }
}

// Zero in all lanes but the last `count`.
template <class T>
inline __attribute__((always_inline)) Vec<T> last_lanes(const Vec<T>& v, std::int64_t count) {
  using Number = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
  Vec<Number> index;
#pragma GCC unroll 16
  for (int l = 0; l < kLanes<T>; ++l) index[l] = static_cast<Number>(l);
  return index >= static_cast<Number>(kLanes<T> - count) ? v : Vec<T>{};
}

// The sum over begin <= i < end of at(i), where vector(i) gives at(i), at(i + 1), …: eight vectors of partial sums.
template <class T, class V, class S>
inline __attribute__((always_inline)) double sum_piece(std::int64_t begin, std::int64_t end, V vector, S at) {
  constexpr int L = kLanes<T>, U = 8;
  if (end - begin < L) {
    double sum = 0;
    for (std::int64_t i = begin; i < end; ++i) sum += static_cast<double>(at(i));
    return sum;
  }
  Vec<T> acc[U] = {};
  std::int64_t i = begin;
  for (; i + U * L <= end; i += U * L) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) acc[u] += vector(i + u * L);
  }
  for (; i + L <= end; i += L) acc[0] += vector(i);
  acc[1] += last_lanes<T>(vector(end - L), end - i);
  return add_lanes(((acc[0] + acc[1]) + (acc[2] + acc[3])) + ((acc[4] + acc[5]) + (acc[6] + acc[7])));
}

// The same for i < n, in pieces so short that a lane adds a few dozen elements whatever the width of the vectors.
template <class T, class V, class S>
inline __attribute__((always_inline)) double sum_lanes(std::int64_t n, V vector, S at) {
  constexpr std::int64_t kPiece = 256 * kLanes<T>;
  double sum = 0;
  for (std::int64_t i = 0; i < n; i += kPiece) sum += sum_piece<T>(i, n - i < kPiece ? n : i + kPiece, vector, at);
  return sum;
}

template <class T>
inline __attribute__((always_inline)) double sum_of(const T* x, std::int64_t n) {
  return sum_lanes<T>(n, [x](std::int64_t i) { return load(x + i); }, [x](std::int64_t i) { return x[i]; });
}

#if defined(__aarch64__)
// The larger (or smaller) of each lane: NaN where one of the two is, or, with Pass, the other one.
template <bool Max, bool Pass>
inline __attribute__((always_inline)) float32x4_t extreme_lanes(float32x4_t a, float32x4_t b) {
  if constexpr (Pass) {
    return Max ? vmaxnmq_f32(a, b) : vminnmq_f32(a, b);
  } else {
    return Max ? vmaxq_f32(a, b) : vminq_f32(a, b);
  }
}
template <bool Max, bool Pass>
inline __attribute__((always_inline)) float64x2_t extreme_lanes(float64x2_t a, float64x2_t b) {
  if constexpr (Pass) {
    return Max ? vmaxnmq_f64(a, b) : vminnmq_f64(a, b);
  } else {
    return Max ? vmaxq_f64(a, b) : vminq_f64(a, b);
  }
}
// The same of all lanes.
template <bool Max, bool Pass>
inline __attribute__((always_inline)) float extreme_lane(float32x4_t v) {
  if constexpr (Pass) {
    return Max ? vmaxnmvq_f32(v) : vminnmvq_f32(v);
  } else {
    return Max ? vmaxvq_f32(v) : vminvq_f32(v);
  }
}
template <bool Max, bool Pass>
inline __attribute__((always_inline)) double extreme_lane(float64x2_t v) {
  if constexpr (Pass) {
    return Max ? vmaxnmvq_f64(v) : vminnmvq_f64(v);
  } else {
    return Max ? vmaxvq_f64(v) : vminvq_f64(v);
  }
}

// extreme_of of n >= kLanes<T>: one instruction a vector, since NaN pass through it where they are to be seen.
template <bool Max, bool Pass, class T>
inline __attribute__((always_inline)) T extreme_of_lanes(const T* x, std::int64_t n) {
  constexpr int L = kLanes<T>, U = 8;
  const auto pick = [](const auto& a, const auto& b) { return extreme_lanes<Max, Pass>(a, b); };
  Vec<T> top[U];
#pragma GCC unroll 8
  for (int u = 0; u < U; ++u) top[u] = load(x + n - L);
  std::int64_t i = 0;
  for (; i + U * L <= n; i += U * L) {
#pragma GCC unroll 8
    for (int u = 0; u < U; ++u) top[u] = pick(top[u], load(x + i + u * L));
  }
  for (; i + L <= n; i += L) top[0] = pick(top[0], load(x + i));
#pragma GCC unroll 3
  for (int half = U / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
    for (int u = 0; u < half; ++u) top[u] = pick(top[u], top[u + half]);
  }
  return extreme_lane<Max, Pass>(top[0]);
}
#endif

// The largest (or smallest) of n >= 1 elements; a NaN may be passed over. With Trace, `doubt` says that one may be
// there: elsewhere than on ARM x * 0 is NaN for it, as for infinities, and stays so in a sum.
template <bool Max, bool Trace, class T>
inline __attribute__((always_inline)) T extreme_of(const T* x, std::int64_t n, bool& doubt) {
  constexpr int L = kLanes<T>;
  const auto pick = [](const auto& a, const auto& b) {
    if constexpr (Max) {
      return a > b ? a : b;
    } else {
      return a < b ? a : b;
    }
  };
  if (n < L) {
    T best = x[0], zero = x[0] * 0;
    for (std::int64_t i = 1; i < n; ++i) {
      best = pick(x[i], best);
      zero += x[i] * 0;
    }
    doubt = zero != zero;
    return best;
  }
#if defined(__aarch64__)
  const T best = extreme_of_lanes<Max, !Trace>(x, n);
  doubt = best != best;
  return best;
#else
  const Vec<T> last = load(x + n - L);
  constexpr int U = 4;
  Vec<T> top[U], zero[U] = {last * 0};
  std::int64_t i = 0;
#pragma GCC unroll 4
  for (int u = 0; u < U; ++u) top[u] = last;
  for (; i + U * L <= n; i += U * L) {
#pragma GCC unroll 4
    for (int u = 0; u < U; ++u) {
      const Vec<T> v = load(x + i + u * L);
      top[u] = pick(v, top[u]);
      if constexpr (Trace) zero[u] += v * 0;
    }
  }
  for (; i + L <= n; i += L) {
    const Vec<T> v = load(x + i);
    top[0] = pick(v, top[0]);
    if constexpr (Trace) zero[0] += v * 0;
  }
  if constexpr (Trace) {
    const auto plus = [](const auto& a, const auto& b) { return a + b; };
    const T sum = fold_lanes<T, L>((zero[0] + zero[1]) + (zero[2] + zero[3]), plus);
    doubt = sum != sum;
  }
  return fold_lanes<T, L>(pick(pick(top[0], top[1]), pick(top[2], top[3])), pick);
#endif
}

}  // namespace tritium::TRITIUM_ISA
