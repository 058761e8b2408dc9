// Vectors of bytes that multiply unsigned weights with signed activations and add fours of products to 32-bit sums:
// one type for each width of VNNI, with the same functions.
// Knows nothing of formats.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../simd/math.h"

#if defined(__clang__)
#define TRITIUM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TRITIUM_UNROLL _Pragma("GCC unroll 32")
#endif

namespace tritium::TRITIUM_ISA {
namespace {

TRITIUM_INLINE std::int32_t four(const std::int8_t* q) {
  std::int32_t bytes;
  __builtin_memcpy(&bytes, q, 4);
  return bytes;
}

struct Ymm {
  using V = __m256i;
  static constexpr int kHalves = 2;  // vectors in a line of 64 bytes
  static constexpr int kSums = 12;   // sums that fit in registers beside the rest
  TRITIUM_INLINE static V zero() { return _mm256_setzero_si256(); }
  TRITIUM_INLINE static V load(const void* p) { return _mm256_load_si256(static_cast<const V*>(p)); }
  TRITIUM_INLINE static void store(void* p, V v) { _mm256_store_si256(static_cast<V*>(p), v); }
  TRITIUM_INLINE static V same(const std::int8_t* q) { return _mm256_set1_epi32(four(q)); }
  TRITIUM_INLINE static V masked(V v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask))); }
  TRITIUM_INLINE static V add8(V a, V b) { return _mm256_add_epi8(a, b); }
  TRITIUM_INLINE static V add(V a, V b) { return _mm256_add_epi32(a, b); }
  TRITIUM_INLINE static V sub(V a, V b) { return _mm256_sub_epi32(a, b); }
  template <int N>
  TRITIUM_INLINE static V right(V v) {  // of 32 bits, with sign
    return _mm256_srai_epi32(v, N);
  }
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
  TRITIUM_INLINE static V dot(V sum, V w, V q) { return _mm256_dpbusd_avx_epi32(sum, w, q); }
#endif
};

#if defined(__AVX512VNNI__)
// With a mask of all where the compiler's header would start from an undefined register, of which it then warns.
struct Zmm {
  using V = __m512i;
  static constexpr int kHalves = 1;
  static constexpr int kSums = 24;
  TRITIUM_INLINE static V zero() { return _mm512_setzero_si512(); }
  TRITIUM_INLINE static V load(const void* p) { return _mm512_load_si512(p); }
  TRITIUM_INLINE static void store(void* p, V v) { _mm512_store_si512(p, v); }
  TRITIUM_INLINE static V same(const std::int8_t* q) { return _mm512_set1_epi32(four(q)); }
  TRITIUM_INLINE static V masked(V v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
  TRITIUM_INLINE static V add8(V a, V b) { return _mm512_add_epi8(a, b); }
  TRITIUM_INLINE static V add(V a, V b) { return _mm512_add_epi32(a, b); }
  TRITIUM_INLINE static V sub(V a, V b) { return _mm512_sub_epi32(a, b); }
  template <int N>
  TRITIUM_INLINE static V right(V v) {
    return _mm512_maskz_srai_epi32(0xffff, v, N);
  }
  template <int N>
  TRITIUM_INLINE static V right16(V v) {
    return _mm512_maskz_srli_epi16(0xffffffffu, v, N);
  }
  TRITIUM_INLINE static V reaches(V v, int bound) {
    return _mm512_maskz_set1_epi8(_mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(static_cast<char>(bound))), 1);
  }
  TRITIUM_INLINE static V dot(V sum, V w, V q) { return _mm512_dpbusd_epi32(sum, w, q); }
};
#endif

}  // namespace
}  // namespace tritium::TRITIUM_ISA
