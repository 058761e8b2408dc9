// Brings strided elements of any dtype into contiguous memory of the type a kernel computes in, and back.
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
[[gnu::noinline]] void gather_as(const char* from, std::int64_t stride, void* into, std::int64_t n) {
  C* to = static_cast<C*>(into);
  if (stride == static_cast<std::int64_t>(sizeof(T))) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(at<T>(from + i * static_cast<std::int64_t>(sizeof(T))));
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<C>(at<T>(from + i * stride));
  }
}

// How elements of `type` become C, which holds them all.
template <class C>
Gather gather_of(DType type);

template <class T, class C>
inline void scatter_as(const C* from, char* to, std::int64_t stride, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const T x = static_cast<T>(from[i]);
    __builtin_memcpy(to + i * stride, &x, sizeof(x));
  }
}

// Writes n elements of the type computed in to memory of `type`, `stride` bytes apart. Integers wrap.
template <class C>
void scatter_many(DType type, const C* from, char* to, std::int64_t stride, std::int64_t n);

// The same; a single number of its own type, as reductions have it, costs no call.
template <class C>
TRITIUM_INLINE void scatter(DType type, const C* from, char* to, std::int64_t stride, std::int64_t n) {
  if (n == 1 && type == kDTypeOf<C>) {
    __builtin_memcpy(to, from, sizeof(C));
  } else {
    scatter_many(type, from, to, stride, n);
  }
}

}  // namespace tritium::TRITIUM_ISA
