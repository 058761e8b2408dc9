// Vectors of bytes that multiply unsigned weights with signed activations and add fours of products to 32-bit sums:
// one type for each width of VNNI, with the same functions.
// Knows nothing of formats.
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

// Sums have a type of 32-bit elements: kept as plain bytes, a compiler copies each of them in every round of a loop.
struct Ymm {
  using V = __m256i;
  using Sum = std::int32_t __attribute__((vector_size(32)));
  using Float = float __attribute__((vector_size(32)));
  static constexpr int kFloats = 8;
  static constexpr int kHalves = 2;  // vectors in a line of 64 bytes
  static constexpr int kSums = 10;   // sums that fit in registers beside the rest
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
#if defined(__AVXVNNI__)
  TRITIUM_INLINE static Sum dot(Sum sum, V w, V q) {
    return reinterpret_cast<Sum>(_mm256_dpbusd_avx_epi32(reinterpret_cast<V>(sum), w, q));
  }
#endif
};

#if defined(__AVX512VNNI__)
// With a mask of all where the compiler's header would start from an undefined register, of which it then warns.
struct Zmm {
  using V = __m512i;
  using Sum = std::int32_t __attribute__((vector_size(64)));
  using Float = float __attribute__((vector_size(64)));
  static constexpr int kFloats = 16;
  static constexpr int kHalves = 1;
  static constexpr int kSums = 24;
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
  TRITIUM_INLINE static Sum dot(Sum sum, V w, V q) {
    return reinterpret_cast<Sum>(_mm512_dpbusd_epi32(reinterpret_cast<V>(sum), w, q));
  }
};
#endif

}  // namespace
}  // namespace tritium::TRITIUM_ISA
