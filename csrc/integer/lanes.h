// Vectors of bytes that multiply unsigned weights with signed activations: fours of products are added to 32-bit sums
// (VNNI), or pairs of products to 16 bits (vpmaddubsw). One type for each width, with the same functions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../simd/math.h"

#if defined(__clang__)
#define TRITIUM_UNROLL _Pragma("clang loop unroll(full)")
#define TRITIUM_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define TRITIUM_UNROLL _Pragma("GCC unroll 32")
#define TRITIUM_ROLLED _Pragma("GCC unroll 1")
#endif

namespace tritium::TRITIUM_ISA {
namespace {

TRITIUM_INLINE std::int32_t four(const std::int8_t* q) {
  std::int32_t bytes;
  __builtin_memcpy(&bytes, q, 4);
  return bytes;
}

// f.operator()<n>() for 1 <= n <= Most.
template <int Most, class Fn>
TRITIUM_INLINE void with_count(int n, const Fn& f) {
  switch (n) {
    case 1: return f.template operator()<1>();
    case 2: if constexpr (Most >= 2) return f.template operator()<2>(); break;
    case 3: if constexpr (Most >= 3) return f.template operator()<3>(); break;
    case 4: if constexpr (Most >= 4) return f.template operator()<4>(); break;
    case 5: if constexpr (Most >= 5) return f.template operator()<5>(); break;
    default: if constexpr (Most >= 6) return f.template operator()<6>(); break;
  }
}

// f.operator()<n>(first) for parts of `count` that are Most (at most 8), 4, 2 or 1: fewer functions than one for each number.
template <int Most, class Fn>
TRITIUM_INLINE void in_counts(int count, const Fn& f) {
  static_assert(Most <= 8, "a rest of more than 7 is not divided");
  int at = 0;
  for (; count - at >= Most; at += Most) f.template operator()<Most>(at);
  if constexpr (Most > 4) {
    if (count - at >= 4) f.template operator()<4>(at), at += 4;
  }
  if constexpr (Most > 2) {
    if (count - at >= 2) f.template operator()<2>(at), at += 2;
  }
  if constexpr (Most > 1) {
    if (count > at) f.template operator()<1>(at);
  }
}

// Sums have a type of 32-bit elements: kept as plain bytes, a compiler copies each of them in every round of a loop.
struct Ymm {
  using V = __m256i;
  using Sum = std::int32_t __attribute__((vector_size(32)));
  using Pairs = std::uint16_t __attribute__((vector_size(32)));  // unsigned: may wrap on the way to a sum that fits
  using Float = float __attribute__((vector_size(32)));
  static constexpr int kFloats = 8;
  static constexpr int kHalves = 2;  // vectors in a line of 64 bytes
  static constexpr int kSums = 10;   // sums that fit in registers beside the rest
  static constexpr int kPairs = 12;  // sums of pairs, likewise
  TRITIUM_INLINE static V load(const void* p) { return _mm256_load_si256(static_cast<const V*>(p)); }
  TRITIUM_INLINE static void store(void* p, V v) { _mm256_store_si256(static_cast<V*>(p), v); }
  TRITIUM_INLINE static void store(void* p, Sum s) { *static_cast<Sum*>(p) = s; }
  TRITIUM_INLINE static V same(const std::int8_t* q) { return _mm256_set1_epi32(four(q)); }
  // Half floats as f32.
  TRITIUM_INLINE static Float widen(const void* p) {
    return reinterpret_cast<Float>(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  // v * a + b, rounded once.
  TRITIUM_INLINE static Float fused(Float v, const float* a, const float* b) {
    return reinterpret_cast<Float>(_mm256_fmadd_ps(reinterpret_cast<__m256>(v), _mm256_load_ps(a), _mm256_load_ps(b)));
  }
  TRITIUM_INLINE static V masked(V v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask))); }
  TRITIUM_INLINE static V add8(V a, V b) { return _mm256_add_epi8(a, b); }
  template <int N>
  TRITIUM_INLINE static V right16(V v) {
    return _mm256_srli_epi16(v, N);
  }
  // 1 where the unsigned byte is at least the bound.
  TRITIUM_INLINE static V reaches(V v, int bound) {
    const V limit = _mm256_set1_epi8(static_cast<char>(bound));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_max_epu8(v, limit), v), _mm256_set1_epi8(1));
  }
  TRITIUM_INLINE static Pairs multiply(V w, V q) { return reinterpret_cast<Pairs>(_mm256_maddubs_epi16(w, q)); }
  TRITIUM_INLINE static Sum add_pairs(Pairs pairs) {
    return reinterpret_cast<Sum>(_mm256_madd_epi16(reinterpret_cast<V>(pairs), _mm256_set1_epi16(1)));
  }
#if defined(__AVXVNNI__)
  TRITIUM_INLINE static Sum dot(Sum sum, V w, V q) {
    return reinterpret_cast<Sum>(_mm256_dpbusd_avx_epi32(reinterpret_cast<V>(sum), w, q));
  }
#endif
};

#if defined(__AVX512BW__)
// With a mask of all where the compiler's header would start from an undefined register, of which it then warns.
struct Zmm {
  using V = __m512i;
  using Sum = std::int32_t __attribute__((vector_size(64)));
  using Pairs = std::uint16_t __attribute__((vector_size(64)));
  using Float = float __attribute__((vector_size(64)));
  static constexpr int kFloats = 16;
  static constexpr int kHalves = 1;
  static constexpr int kSums = 24;
  static constexpr int kPairs = 25;
  TRITIUM_INLINE static V load(const void* p) { return _mm512_load_si512(p); }
  TRITIUM_INLINE static void store(void* p, V v) { _mm512_store_si512(p, v); }
  TRITIUM_INLINE static void store(void* p, Sum s) { *static_cast<Sum*>(p) = s; }
  TRITIUM_INLINE static V same(const std::int8_t* q) { return _mm512_set1_epi32(four(q)); }
  TRITIUM_INLINE static Float widen(const void* p) {
    return reinterpret_cast<Float>(_mm512_maskz_cvtph_ps(0xffffu, _mm256_loadu_si256(static_cast<const __m256i*>(p))));
  }
  TRITIUM_INLINE static Float fused(Float v, const float* a, const float* b) {
    return reinterpret_cast<Float>(_mm512_fmadd_ps(reinterpret_cast<__m512>(v), _mm512_load_ps(a), _mm512_load_ps(b)));
  }
  TRITIUM_INLINE static V masked(V v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
  TRITIUM_INLINE static V add8(V a, V b) { return _mm512_add_epi8(a, b); }
  template <int N>
  TRITIUM_INLINE static V right16(V v) {
    return _mm512_maskz_srli_epi16(0xffffffffu, v, N);
  }
  TRITIUM_INLINE static V reaches(V v, int bound) {
    return _mm512_maskz_set1_epi8(_mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(static_cast<char>(bound))), 1);
  }
  TRITIUM_INLINE static Pairs multiply(V w, V q) { return reinterpret_cast<Pairs>(_mm512_maddubs_epi16(w, q)); }
  TRITIUM_INLINE static Sum add_pairs(Pairs pairs) {
    return reinterpret_cast<Sum>(_mm512_madd_epi16(reinterpret_cast<V>(pairs), _mm512_set1_epi16(1)));
  }
#if defined(__AVX512VNNI__)
  TRITIUM_INLINE static Sum dot(Sum sum, V w, V q) {
    return reinterpret_cast<Sum>(_mm512_dpbusd_epi32(reinterpret_cast<V>(sum), w, q));
  }
#endif
};
#endif

}  // namespace
}  // namespace tritium::TRITIUM_ISA
