// The functions of gather.h for every dtype, compiled once for all files that use them.
// Knows nothing of what is computed.
#include "gather.h"

namespace tritium::TRITIUM_ISA {
namespace {

template <DType H>
void gather_half(const char* from, std::int64_t stride, void* into, std::int64_t n) {
  float* to = static_cast<float*>(into);
  if (stride == 2) return widen(H, from, to, n);
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
