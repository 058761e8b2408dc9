// f32 from and to the two 16-bit floats, many at a time. Here alone: the header of a compiler's own functions takes longer
// to read than most files take to compile.
// Knows nothing of tensors.
#include "half.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tritium::TRITIUM_ISA {
namespace {

void widen_f16(const std::uint16_t* from, float* to, std::int64_t n) {
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

void narrow_f16(const float* from, std::uint16_t* to, std::int64_t n) {
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

void widen_bf16(const std::uint16_t* from, float* to, std::int64_t n) {
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = bf16_to_f32(from[i]);
}

void narrow_bf16(const float* from, std::uint16_t* to, std::int64_t n) {
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = f32_to_bf16(from[i]);
}

}  // namespace

void widen(DType type, const void* from, float* to, std::int64_t n) {
  const auto* bits = static_cast<const std::uint16_t*>(from);
  type == DType::f16 ? widen_f16(bits, to, n) : widen_bf16(bits, to, n);
}

void narrow(DType type, const float* from, void* to, std::int64_t n) {
  auto* bits = static_cast<std::uint16_t*>(to);
  type == DType::f16 ? narrow_f16(from, bits, n) : narrow_bf16(from, bits, n);
}

}  // namespace tritium::TRITIUM_ISA
