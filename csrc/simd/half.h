// Conversion between f32 and the two 16-bit floats, rounding to nearest, ties to even.
#pragma once

#include <cstdint>

#include "../view.h"
#include "math.h"
#include "span.h"

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

// n elements of f16 or bf16 as f32, and back.
void widen(DType type, const void* from, float* to, std::int64_t n);
void narrow(DType type, const float* from, void* to, std::int64_t n);

}  // namespace tritium::TRITIUM_ISA
