// The functions of gather.h and half.h for every dtype, compiled once for all files that use them: the header of a
// compiler's own functions takes longer to read than most files take to compile.
#include "gather.h"

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

namespace {

template <DType H>
void gather_half(const char* from, std::int64_t stride, void* into, std::int64_t n) {
  float* to = static_cast<float*>(into);
  if (stride == 2) return H == DType::f16 ? widen_f16(reinterpret_cast<const std::uint16_t*>(from), to, n)
                                          : widen_bf16(reinterpret_cast<const std::uint16_t*>(from), to, n);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t x = at<std::uint16_t>(from + i * stride);
    to[i] = H == DType::f16 ? f16_to_f32(x) : bf16_to_f32(x);
  }
}

}  // namespace

template <class C>
Gather gather_of(DType type) {
  if constexpr (kDTypeOf<C> == DType::f32) {
    if (type == DType::f16) return gather_half<DType::f16>;
    if (type == DType::bf16) return gather_half<DType::bf16>;
    return gather_as<float, float>;
  } else if constexpr (kDTypeOf<C> == DType::i64) {
    switch (type) {
      case DType::b8: return gather_as<std::uint8_t, C>;
      case DType::i8: return gather_as<std::int8_t, C>;
      case DType::i32: return gather_as<std::int32_t, C>;
      default: return gather_as<std::int64_t, C>;
    }
  } else {
    return gather_as<C, C>;
  }
}

template <class C>
void scatter_many(DType type, const C* from, char* to, std::int64_t stride, std::int64_t n) {
  if constexpr (kDTypeOf<C> == DType::f32) {
    if (type != DType::f32) {
      if (stride == 2) return narrow(type, from, to, n);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::uint16_t x = type == DType::f16 ? f32_to_f16(from[i]) : f32_to_bf16(from[i]);
        __builtin_memcpy(to + i * stride, &x, 2);
      }
      return;
    }
  } else if constexpr (kDTypeOf<C> == DType::i64) {
    switch (type) {
      case DType::b8: return scatter_as<bool>(from, to, stride, n);
      case DType::i8: return scatter_as<std::int8_t>(from, to, stride, n);
      case DType::i32: return scatter_as<std::int32_t>(from, to, stride, n);
      default: break;
    }
  }
  scatter_as<C>(from, to, stride, n);
}

#define TRITIUM_COMPUTED(C)               \
  template Gather gather_of<C>(DType type); \
  template void scatter_many<C>(DType type, const C* from, char* to, std::int64_t stride, std::int64_t n);
TRITIUM_COMPUTED(float)
TRITIUM_COMPUTED(double)
TRITIUM_COMPUTED(std::int64_t)
TRITIUM_COMPUTED(std::int32_t)
TRITIUM_COMPUTED(std::int8_t)

}  // namespace tritium::TRITIUM_ISA
