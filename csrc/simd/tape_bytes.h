// Bytes as lanes of the accumulator and back, and stores around the cache.
// The compilers' own conversions of vectors this short go lane by lane.
#pragma once

#include <cstdint>

#include "tape_lanes.h"

namespace tritium::TRITIUM_ISA::tape {

template <class E, class T>
using Elements = typename VectorOf<E, kLanes<T>>::type;

// ---- signed bytes from p on as integers, and the low bytes of integers

template <class T>
TRITIUM_INLINE Bits<T> bytes_at(const char* p, T) {
  Elements<std::int8_t, T> v;
  __builtin_memcpy(&v, p, sizeof(v));
  return __builtin_convertvector(v, Bits<T>);
}
template <class V>
TRITIUM_INLINE typename VectorOf<std::int8_t, sizeof(V) / sizeof(Lane<V>)>::type low_bytes(V v) {
  return __builtin_convertvector(v, typename VectorOf<std::int8_t, sizeof(V) / sizeof(Lane<V>)>::type);
}

#if defined(__SSE2__) || defined(__aarch64__)
TRITIUM_INLINE std::int32_t four_at(const char* p) {
  std::int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return four;
}
#endif

#if defined(__AVX512F__)
TRITIUM_INLINE Bits<float> bytes_at(const char* p, float) {
  return (Bits<float>)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
TRITIUM_INLINE Bits<double> bytes_at(const char* p, double) {
  return (Bits<double>)_mm512_maskz_cvtepi8_epi64(0xff, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
TRITIUM_INLINE __m128i low_bytes(Bits<float> v) { return _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v); }
TRITIUM_INLINE std::int64_t low_bytes(Bits<double> v) {
  return _mm_cvtsi128_si64(_mm512_maskz_cvtepi64_epi8(0xff, (__m512i)v));
}
#elif defined(__AVX2__)
TRITIUM_INLINE Bits<float> bytes_at(const char* p, float) {
  return (Bits<float>)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
TRITIUM_INLINE Bits<double> bytes_at(const char* p, double) {
  return (Bits<double>)_mm256_cvtepi8_epi64(_mm_cvtsi32_si128(four_at(p)));
}
// Each half of the register gathers its own bytes in front.
TRITIUM_INLINE __m256i gathered(__m256i v, __m128i order) {
  return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
}
TRITIUM_INLINE std::int64_t low_bytes(Bits<float> v) {
  const __m256i g = gathered((__m256i)v, _mm_set_epi32(-1, -1, -1, 0x0c080400));
  return _mm_cvtsi128_si64(_mm_unpacklo_epi32(_mm256_castsi256_si128(g), _mm256_extracti128_si256(g, 1)));
}
TRITIUM_INLINE std::int32_t low_bytes(Bits<double> v) {
  const __m256i g = gathered((__m256i)v, _mm_set_epi32(-1, -1, -1, static_cast<int>(0xffff0800)));
  return _mm_cvtsi128_si32(_mm_unpacklo_epi16(_mm256_castsi256_si128(g), _mm256_extracti128_si256(g, 1)));
}
#elif defined(__SSE2__)
TRITIUM_INLINE Bits<float> bytes_at(const char* p, float) {
  const __m128i four = _mm_cvtsi32_si128(four_at(p)), twice = _mm_unpacklo_epi8(four, four);
  return (Bits<float>)_mm_srai_epi32(_mm_unpacklo_epi16(twice, twice), 24);
}
TRITIUM_INLINE std::int32_t low_bytes(Bits<float> v) {
  const __m128i words = _mm_packs_epi32((__m128i)(v & 255), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
}
#elif defined(__aarch64__)
TRITIUM_INLINE Bits<float> bytes_at(const char* p, float) {
  const int8x8_t eight = vreinterpret_s8_s32(vdup_n_s32(four_at(p)));
  return (Bits<float>)vmovl_s16(vget_low_s16(vmovl_s8(eight)));
}
TRITIUM_INLINE std::int32_t low_bytes(Bits<float> v) {
  const int16x4_t words = vmovn_s32((int32x4_t)v);
  return vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(words, words))), 0);
}
#endif

// ---- stores

// Around the cache, where there is an instruction for it: p is then aligned to the size of v.
template <bool Around, class V>
TRITIUM_INLINE void put_at(char* p, int i, V v) {
  char* const to = p + i * static_cast<int>(sizeof(v));
#if defined(__AVX512F__)
  if constexpr (Around && sizeof(V) == 64) return _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)v);
#endif
#if defined(__AVX2__)
  if constexpr (Around && sizeof(V) == 32) return _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)v);
#endif
#if defined(__SSE2__)
  if constexpr (Around && sizeof(V) == 16) return _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)v);
#endif
  __builtin_memcpy(to, &v, sizeof(v));
}

// Other threads see stores around the cache only after this.
TRITIUM_INLINE void settle_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tritium::TRITIUM_ISA::tape
