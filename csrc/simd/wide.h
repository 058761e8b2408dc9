// Vectors of f32 and f64 read from floats that are no wider, and the sums of the lanes of several vectors at once.
// For files that are compiled without contraction.
#pragma once

#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "../view.h"
#include "half.h"
#include "lanes.h"

namespace tritium::TRITIUM_ISA {

using Wide = Vec<float>;
constexpr int kWide = kLanes<float>;

using Deep = Vec<double>;
constexpr int kDeep = kLanes<double>;

template <DType T>
using StoredAs = std::conditional_t<T == DType::f64, double, std::conditional_t<T == DType::f32, float, std::uint16_t>>;

// kWide elements of dtype T. What is not f32 becomes it exactly.
template <DType T>
TRITIUM_INLINE Wide load_wide(const StoredAs<T>* from) {
  if constexpr (T == DType::f32) {
    return load(from);
  } else {
    typename VectorOf<std::uint16_t, kWide>::type narrow;
    __builtin_memcpy(&narrow, from, sizeof(narrow));
    if constexpr (T == DType::f16) {
#if defined(__AVX512F__)
      return reinterpret_cast<Wide>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(narrow)));
#elif defined(__F16C__)
      return reinterpret_cast<Wide>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(narrow)));
#elif defined(__aarch64__)
      return vcvt_f32_f16(reinterpret_cast<float16x4_t>(narrow));  // GCC's convertvector goes element by element
#else
      // As f16_to_f32 does with one.
      using Bits = Vec<std::uint32_t>;
      const Bits h = __builtin_convertvector(narrow, Bits);
      const Bits rest = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
      const Bits finite = reinterpret_cast<Bits>(reinterpret_cast<Wide>(rest) * 5.192296858534828e33f);
      const Bits quiet = reinterpret_cast<Bits>((rest & 0x7fffffu) != 0) & 0x400000u;
      const Bits large = reinterpret_cast<Bits>(rest >= 0x0f800000u);
      return reinterpret_cast<Wide>(sign | (large & (rest | 0x7f800000u | quiet)) | (~large & finite));
#endif
    } else {
#if defined(__aarch64__)
      return vreinterpretq_f32_u32(vshll_n_u16(reinterpret_cast<uint16x4_t>(narrow), 16));
#else
      using Bits = Vec<std::uint32_t>;
      return reinterpret_cast<Wide>(__builtin_convertvector(narrow, Bits) << 16);
#endif
    }
  }
}

// kDeep elements of dtype T, exactly.
template <DType T>
TRITIUM_INLINE Deep load_deep(const StoredAs<T>* from) {
  using Single = typename VectorOf<float, kDeep>::type;
  if constexpr (T == DType::f64) {
    return load(from);
  } else if constexpr (T == DType::f32) {
    Single narrow;
    __builtin_memcpy(&narrow, from, sizeof(narrow));
    return doubles(narrow);
  } else if constexpr (T == DType::f16) {
#if defined(__AVX512F__)
    return reinterpret_cast<Deep>(
        _mm512_maskz_cvtps_pd(0xff, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))));
#elif defined(__F16C__)
    return reinterpret_cast<Deep>(
        _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))));
#elif defined(__aarch64__)
    std::uint32_t both;
    __builtin_memcpy(&both, from, sizeof(both));
    return vcvt_f64_f32(vget_low_f32(vcvt_f32_f16(vreinterpret_f16_u32(vdup_n_u32(both)))));
#else
    return Deep{f16_to_f32(from[0]), f16_to_f32(from[1])};
#endif
  } else {
#if defined(__aarch64__)
    std::uint32_t both;
    __builtin_memcpy(&both, from, sizeof(both));
    return vcvt_f64_f32(vget_low_f32(vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u32(vdup_n_u32(both)), 16))));
#else
    using Bits = typename VectorOf<std::uint32_t, kDeep>::type;
    typename VectorOf<std::uint16_t, kDeep>::type narrow;
    __builtin_memcpy(&narrow, from, sizeof(narrow));
    return __builtin_convertvector(reinterpret_cast<Single>(__builtin_convertvector(narrow, Bits) << 16), Deep);
#endif
  }
}

// Whether two vectors of them cost less together.
#if defined(__aarch64__)
template <DType T>
constexpr bool kPairs = T == DType::f16 || T == DType::bf16;
#else
template <DType T>
constexpr bool kPairs = false;
#endif

// The next kDeep too.
template <DType T>
TRITIUM_INLINE void load_deep_pair(const StoredAs<T>* from, Deep* to) {
#if defined(__aarch64__)
  if constexpr (kPairs<T>) {
    const float32x4_t four = load_wide<T>(from);
    to[0] = vcvt_f64_f32(vget_low_f32(four));
    to[1] = vcvt_high_f64_f32(four);
    return;
  }
#endif
  to[0] = load_deep<T>(from);
  to[1] = load_deep<T>(from + kDeep);
}

// a * b + c, rounded once where the instruction set can. Said outright, since a compiler that contracts products and sums
// by itself may do so in one copy of a loop and not in another.
TRITIUM_INLINE Wide fused(const Wide& a, const Wide& b, const Wide& c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Wide>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<Wide>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

TRITIUM_INLINE Deep fused(const Deep& a, const Deep& b, const Deep& c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Deep>(
      _mm512_fmadd_pd(reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<Deep>(
      _mm256_fmadd_pd(reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#elif defined(__aarch64__)
  return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}

// The first n < kWide of them; zeros after.
template <DType T>
TRITIUM_INLINE Wide load_part(const StoredAs<T>* from, std::int64_t n) {
  StoredAs<T> whole[kWide] = {};
  for (std::int64_t i = 0; i < n; ++i) whole[i] = from[i];
  return load_wide<T>(whole);
}

// The sums of neighbouring lanes: those of a, then those of b.
TRITIUM_INLINE Wide add_neighbours(const Wide& a, const Wide& b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) + __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#elif defined(__aarch64__)
  return vpaddq_f32(a, b);
#else
  return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
}

TRITIUM_INLINE Deep add_neighbours(const Deep& a, const Deep& b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14) + __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
#elif defined(__aarch64__)
  return vpaddq_f64(a, b);
#else
  return __builtin_shufflevector(a, b, 0, 2) + __builtin_shufflevector(a, b, 1, 3);
#endif
}

// to[i] = the sum of the lanes of v[i], for N vectors, a multiple of their lanes. Every sum has the same order.
template <int N, class T>
TRITIUM_INLINE void add_lanes_of(const Vec<T>* v, T* to) {
  constexpr int L = kLanes<T>;
  static_assert(N % L == 0);
#pragma GCC unroll 16
  for (int first = 0; first < N; first += L) {
    Vec<T> some[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) some[i] = v[first + i];
#pragma GCC unroll 4
    for (int n = L / 2; n > 0; n /= 2) {
#pragma GCC unroll 16
      for (int i = 0; i < n; ++i) some[i] = add_neighbours(some[2 * i], some[2 * i + 1]);
    }
    store(to + first, some[0]);
  }
}

}  // namespace tritium::TRITIUM_ISA
