// Brings strided elements of any dtype into contiguous memory of the type a kernel computes in, and back.
// Knows nothing of what is computed.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../view.h"
#include "half.h"

namespace tritium::TRITIUM_ISA {

// The dtype of memory that a C++ type computes on directly.
template <class C>
inline constexpr DType kDTypeOf = std::is_same_v<C, double>         ? DType::f64
                                  : std::is_same_v<C, std::int64_t> ? DType::i64
                                  : std::is_same_v<C, std::int32_t> ? DType::i32
                                  : std::is_same_v<C, std::int8_t>  ? DType::i8
                                                                    : DType::f32;

// to[i] = the element at from + i * stride bytes.
using Gather = void (*)(const char* from, std::int64_t stride, void* to, std::int64_t n);

template <class T>
inline T at(const char* p) {
  T x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}

template <class T, class C>
void gather_as(const char* from, std::int64_t stride, void* into, std::int64_t n) {
  C* to = static_cast<C*>(into);
  if (stride == static_cast<std::int64_t>(sizeof(T))) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(at<T>(from + i * static_cast<std::int64_t>(sizeof(T))));
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(at<T>(from + i * stride));
  }
}

template <DType H>
void gather_half(const char* from, std::int64_t stride, void* into, std::int64_t n) {
  float* to = static_cast<float*>(into);
  if (stride == 2) return widen(H, from, to, n);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t x = at<std::uint16_t>(from + i * stride);
    to[i] = H == DType::f16 ? f16_to_f32(x) : bf16_to_f32(x);
  }
}

// How elements of `type` become C, which holds them all.
template <class C>
inline Gather gather_of(DType type) {
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

template <class T, class C>
inline void scatter_as(const C* from, char* to, std::int64_t stride, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = static_cast<T>(from[i]);
    __builtin_memcpy(to + i * stride, &x, sizeof(x));
  }
}

// Writes n elements of the type computed in to memory of `type`, `stride` bytes apart. Integers wrap.
template <class C>
inline void scatter(DType type, const C* from, char* to, std::int64_t stride, std::int64_t n) {
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

}  // namespace tritium::TRITIUM_ISA
