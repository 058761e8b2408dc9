// Conversion between f32 and the two 16-bit floats, rounding to nearest, ties to even.
// Knows nothing of tensors.
#pragma once

#include <cstdint>

#include "math.h"
#include "span.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tritium::TRITIUM_ISA {

TRITIUM_INLINE float f16_to_f32(std::uint16_t h) {
#if defined(__aarch64__)
  return static_cast<float>(__builtin_bit_cast(__fp16, h));
#else
  // The exponent is put right by a multiplication, which also takes care of denormals.
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t rest = static_cast<std::uint32_t>(h & 0x7fffu) << 13;
  const float scaled = math::from_bits(rest) * 5.192296858534828e33f;  // 2^112
  const std::uint32_t finite = math::bits(scaled);
  const std::uint32_t special = (rest | 0x7f800000u) | (rest & 0x7fffffu ? 0x400000u : 0u);
  return math::from_bits(sign | (rest >= 0x0f800000u ? special : finite));
#endif
}

TRITIUM_INLINE std::uint16_t f32_to_f16(float x) {
#if defined(__aarch64__)
  return __builtin_bit_cast(std::uint16_t, static_cast<__fp16>(x));
#else
  const std::uint32_t b = math::bits(x);
  const std::uint32_t magnitude = b & 0x7fffffffu;
  const std::uint32_t normal = magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u);  // rebias, round
  const std::uint32_t tiny = math::bits(math::from_bits(magnitude) + 0.5f) - 0x3f000000u;  // rounds at 2^-24
  std::uint32_t h = magnitude < 0x38800000u ? tiny : normal >> 13;
  h = magnitude >= 0x477ff000u ? 0x7c00u : h;
  h = magnitude > 0x7f800000u ? 0x7e00u : h;
  return static_cast<std::uint16_t>(h | ((b >> 16) & 0x8000u));
#endif
}

TRITIUM_INLINE float bf16_to_f32(std::uint16_t h) { return math::from_bits(static_cast<std::uint32_t>(h) << 16); }

TRITIUM_INLINE std::uint16_t f32_to_bf16(float x) {
  const std::uint32_t b = math::bits(x);
  const std::uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (b >> 16) | 0x40u;
  return static_cast<std::uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

inline void f16_to_f32(const std::uint16_t* from, float* to, std::int64_t n) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#elif defined(__aarch64__)  // compilers convert __fp16 one by one
  for (const std::int64_t fours = n / 4 * 4; i < fours; i += 4)
    vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
#endif
  TRITIUM_LOOP
  for (; i < n; ++i) to[i] = f16_to_f32(from[i]);
}

inline void f32_to_f16(const float* from, std::uint16_t* to, std::int64_t n) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__aarch64__)
  for (const std::int64_t fours = n / 4 * 4; i < fours; i += 4)
    vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
#endif
  TRITIUM_LOOP
  for (; i < n; ++i) to[i] = f32_to_f16(from[i]);
}

inline void bf16_to_f32(const std::uint16_t* from, float* to, std::int64_t n) {
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = bf16_to_f32(from[i]);
}

inline void f32_to_bf16(const float* from, std::uint16_t* to, std::int64_t n) {
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = f32_to_bf16(from[i]);
}

inline void widen(DType type, const void* from, float* to, std::int64_t n) {
  const auto* bits = static_cast<const std::uint16_t*>(from);
  type == DType::f16 ? f16_to_f32(bits, to, n) : bf16_to_f32(bits, to, n);
}

inline void narrow(DType type, const float* from, void* to, std::int64_t n) {
  auto* bits = static_cast<std::uint16_t*>(to);
  type == DType::f16 ? f32_to_f16(from, bits, n) : f32_to_bf16(from, bits, n);
}

}  // namespace tritium::TRITIUM_ISA
