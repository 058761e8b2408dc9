// What the instructions of a tape compute, on vectors: the same values as the loops of the eager kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "hot512_log.h"
#include "lanes.h"
#include "math.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tritium::TRITIUM_ISA::tape {

template <class T>
using IntOf = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
template <class T>
using Bits = Vec<IntOf<T>>;

TRITIUM_INLINE Bits<float> bits(Vec<float> x) { return reinterpret_cast<Bits<float>>(x); }
TRITIUM_INLINE Bits<double> bits(Vec<double> x) { return reinterpret_cast<Bits<double>>(x); }
TRITIUM_INLINE Vec<float> lanes(Bits<float> x) { return reinterpret_cast<Vec<float>>(x); }
TRITIUM_INLINE Vec<double> lanes(Bits<double> x) { return reinterpret_cast<Vec<double>>(x); }

template <class V>
using Lane = std::remove_cv_t<std::remove_reference_t<decltype(V{}[0])>>;
template <class V>
TRITIUM_INLINE V same(Lane<V> x) {
  return x - V{};
}

// ---- floats

struct Add {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a + b; }
};
struct Subtract {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a - b; }
};
struct Multiply {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a * b; }
};
struct Divide {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a / b; }
};
// x86's own maximum is a > b ? a : b: only a NaN in a needs a look.
struct Maximum {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Lane<V>) == 4) {
      return (V)_mm512_mask_max_ps((__m512)a, _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_ORD_Q), (__m512)a, (__m512)b);
    }
#endif
    const V top = a > b ? a : b;
    return a != a ? a : top;
  }
};
struct Minimum {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Lane<V>) == 4) {
      return (V)_mm512_mask_min_ps((__m512)a, _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_ORD_Q), (__m512)a, (__m512)b);
    }
#endif
    const V low = a < b ? a : b;
    return a != a ? a : low;
  }
};
struct Copysign {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) {
    using I = decltype(bits(a));
    constexpr auto rest = static_cast<Lane<I>>(~(std::uint64_t{1} << (8 * sizeof(Lane<I>) - 1)));
    return lanes((bits(a) & rest) | (bits(b) & ~rest));
  }
};
struct Clip {
  template <class V>
  TRITIUM_INLINE static V of(V x, V low, V high) {
    const V raised = x < low ? low : x;
    const V clipped = raised > high ? high : raised;
    return ((low != low) | (high != high)) ? low + high : clipped;
  }
};
struct Abs {
  template <class V>
  TRITIUM_INLINE static V of(V x) {
    using I = decltype(bits(x));
    return lanes(bits(x) & static_cast<Lane<I>>(~(std::uint64_t{1} << (8 * sizeof(Lane<I>) - 1))));
  }
};
struct Negative {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return -x; }
};
struct Positive {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return x; }
};
struct Square {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return x * x; }
};
struct Reciprocal {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return 1 / x; }
};
struct Sign {
  template <class V>
  TRITIUM_INLINE static V of(V x) {
    const V one = x > 0 ? same<V>(1) : (x < 0 ? same<V>(-1) : V{});
    return x != x ? x : one;
  }
};
struct Relu {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return x <= 0 ? V{} : x; }
};
struct Relu2 {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return Square::of(Relu::of(x)); }
};

// Roots and rounding, where the instruction set has them.
#define TRITIUM_TAPE_NATIVE(Name, single, twice)                         \
  struct Name {                                                          \
    TRITIUM_INLINE static Vec<float> of(Vec<float> x) { return single; } \
    TRITIUM_INLINE static Vec<double> of(Vec<double> x) { return twice; } \
  };
#if defined(__AVX512F__)
#define TRITIUM_TAPE_ROUND(Name, mode)                                                                        \
  TRITIUM_TAPE_NATIVE(Name, (Vec<float>)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, mode | _MM_FROUND_NO_EXC), \
                      (Vec<double>)_mm512_maskz_roundscale_pd(0xff, (__m512d)x, mode | _MM_FROUND_NO_EXC))
TRITIUM_TAPE_NATIVE(Sqrt, (Vec<float>)_mm512_maskz_sqrt_ps(0xffff, (__m512)x),
                    (Vec<double>)_mm512_maskz_sqrt_pd(0xff, (__m512d)x))
#elif defined(__AVX2__)
#define TRITIUM_TAPE_ROUND(Name, mode)                                                       \
  TRITIUM_TAPE_NATIVE(Name, (Vec<float>)_mm256_round_ps((__m256)x, mode | _MM_FROUND_NO_EXC), \
                      (Vec<double>)_mm256_round_pd((__m256d)x, mode | _MM_FROUND_NO_EXC))
TRITIUM_TAPE_NATIVE(Sqrt, (Vec<float>)_mm256_sqrt_ps((__m256)x), (Vec<double>)_mm256_sqrt_pd((__m256d)x))
#elif defined(__SSE2__)
TRITIUM_TAPE_NATIVE(Sqrt, (Vec<float>)_mm_sqrt_ps((__m128)x), (Vec<double>)_mm_sqrt_pd((__m128d)x))
#elif defined(__aarch64__)
TRITIUM_TAPE_NATIVE(Sqrt, (Vec<float>)vsqrtq_f32((float32x4_t)x), (Vec<double>)vsqrtq_f64((float64x2_t)x))
TRITIUM_TAPE_NATIVE(Floor, (Vec<float>)vrndmq_f32((float32x4_t)x), (Vec<double>)vrndmq_f64((float64x2_t)x))
TRITIUM_TAPE_NATIVE(Ceil, (Vec<float>)vrndpq_f32((float32x4_t)x), (Vec<double>)vrndpq_f64((float64x2_t)x))
TRITIUM_TAPE_NATIVE(Trunc, (Vec<float>)vrndq_f32((float32x4_t)x), (Vec<double>)vrndq_f64((float64x2_t)x))
TRITIUM_TAPE_NATIVE(Round, (Vec<float>)vrndnq_f32((float32x4_t)x), (Vec<double>)vrndnq_f64((float64x2_t)x))
#define TRITIUM_TAPE_ROUNDS 1
#endif
#if defined(TRITIUM_TAPE_ROUND)
TRITIUM_TAPE_ROUND(Floor, _MM_FROUND_TO_NEG_INF)
TRITIUM_TAPE_ROUND(Ceil, _MM_FROUND_TO_POS_INF)
TRITIUM_TAPE_ROUND(Trunc, _MM_FROUND_TO_ZERO)
TRITIUM_TAPE_ROUND(Round, _MM_FROUND_TO_NEAREST_INT)
#define TRITIUM_TAPE_ROUNDS 1
#endif
#if defined(__SSE2__) || defined(__aarch64__)
#define TRITIUM_TAPE_ROOTS 1
struct Rsqrt {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return 1 / Sqrt::of(x); }
};
#endif

#if defined(__AVX512F__)
template <class Op>
struct Hot {
  TRITIUM_INLINE static Vec<float> of(Vec<float> x) { return (Vec<float>)Op::of((__m512)x); }
};
#endif

// ---- comparisons: all bits of a lane, or none

#define TRITIUM_TAPE_COMPARE(Name, operation)                                   \
  struct Name {                                                                 \
    template <class V>                                                          \
    TRITIUM_INLINE static V of(V a, V b) { return (V)(a operation b); }         \
  };
TRITIUM_TAPE_COMPARE(Equal, ==)
TRITIUM_TAPE_COMPARE(NotEqual, !=)
TRITIUM_TAPE_COMPARE(Less, <)
TRITIUM_TAPE_COMPARE(LessEqual, <=)
TRITIUM_TAPE_COMPARE(Greater, >)
TRITIUM_TAPE_COMPARE(GreaterEqual, >=)

struct IsNaN {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return (V)(x != x); }
};
struct IsInf {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return (V)(Abs::of(x) == same<V>(static_cast<Lane<V>>(math::kInf64))); }
};
struct IsFinite {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return (V)(Abs::of(x) < same<V>(static_cast<Lane<V>>(math::kInf64))); }
};
struct SignBit {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return (V)(bits(x) < 0); }
};

// ---- the same on lanes that hold integers or truths: an operation of integers on the bits of V

template <class Op>
struct OnBits {
  template <class V>
  TRITIUM_INLINE static V of(V a) { return lanes(Op::of(bits(a))); }
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return lanes(Op::of(bits(a), bits(b))); }
  template <class V>
  TRITIUM_INLINE static V of(V a, V b, V c) { return lanes(Op::of(bits(a), bits(b), bits(c))); }
};

// Integers wrap: they are computed unsigned.
template <class V>
using Wrapping = Vec<std::make_unsigned_t<Lane<V>>>;
#define TRITIUM_TAPE_WRAP(Name, operation)                                                             \
  struct Name {                                                                                        \
    template <class V>                                                                                 \
    TRITIUM_INLINE static V of(V a, V b) { return (V)((Wrapping<V>)a operation(Wrapping<V>) b); }      \
  };
TRITIUM_TAPE_WRAP(WrapAdd, +)
TRITIUM_TAPE_WRAP(WrapSubtract, -)
TRITIUM_TAPE_WRAP(WrapMultiply, *)
struct WrapNegative {
  template <class V>
  TRITIUM_INLINE static V of(V a) { return (V)(Wrapping<V>{} - (Wrapping<V>)a); }
};
struct WrapAbs {
  template <class V>
  TRITIUM_INLINE static V of(V a) { return a < 0 ? WrapNegative::of(a) : a; }
};
struct WrapSquare {
  template <class V>
  TRITIUM_INLINE static V of(V a) { return WrapMultiply::of(a, a); }
};
struct WrapRelu2 {
  template <class V>
  TRITIUM_INLINE static V of(V a) { return WrapSquare::of(a <= 0 ? V{} : a); }
};
struct IntMaximum {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a > b ? a : b; }
};
struct IntMinimum {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a < b ? a : b; }
};
struct IntClip {
  template <class V>
  TRITIUM_INLINE static V of(V x, V low, V high) { return IntMinimum::of(IntMaximum::of(low, x), high); }
};
struct IntSign {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return (V)(x < 0) - (V)(x > 0); }
};
struct And {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a & b; }
};
struct Or {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a | b; }
};
struct Xor {
  template <class V>
  TRITIUM_INLINE static V of(V a, V b) { return a ^ b; }
};
struct Invert {
  template <class V>
  TRITIUM_INLINE static V of(V a) { return ~a; }
};
struct Where {
  template <class V>
  TRITIUM_INLINE static V of(V mask, V a, V b) { return (a & mask) | (b & ~mask); }
};

// ---- changes of type, of 32-bit lanes

// What does not fit becomes the nearest that does, NaN zero. x86 converts the rest to the smallest integer; ARM converts
// as it is wanted here.
#if defined(__AVX512F__)
TRITIUM_INLINE Bits<float> truncated(Vec<float> x) { return (Bits<float>)_mm512_maskz_cvttps_epi32(0xffff, (__m512)x); }
TRITIUM_INLINE Vec<float> held_in(Vec<float> x, float low, float high) {
  const __mmask16 number = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_ORD_Q);
  const __m512 raised = _mm512_maskz_max_ps(number, _mm512_set1_ps(low), (__m512)x);
  return (Vec<float>)_mm512_maskz_min_ps(0xffff, _mm512_set1_ps(high), raised);
}
#elif defined(__AVX2__)
TRITIUM_INLINE Bits<float> truncated(Vec<float> x) { return (Bits<float>)_mm256_cvttps_epi32((__m256)x); }
TRITIUM_INLINE Vec<float> held_in(Vec<float> x, float low, float high) {
  const __m256 number = (__m256)(bits(x) & (x == x));
  return (Vec<float>)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), number));
}
#elif defined(__SSE2__)
TRITIUM_INLINE Bits<float> truncated(Vec<float> x) { return (Bits<float>)_mm_cvttps_epi32((__m128)x); }
TRITIUM_INLINE Vec<float> held_in(Vec<float> x, float low, float high) {
  const __m128 number = (__m128)(bits(x) & (x == x));
  return (Vec<float>)_mm_min_ps(_mm_set1_ps(high), _mm_max_ps(_mm_set1_ps(low), number));
}
#else
TRITIUM_INLINE Vec<float> held_in(Vec<float> x, float low, float high) {
  const Vec<float> number = x == x ? x : Vec<float>{};
  const Vec<float> raised = number < low ? same<Vec<float>>(low) : number;
  return raised > high ? same<Vec<float>>(high) : raised;
}
#endif
struct FloatToInt {
  TRITIUM_INLINE static Vec<float> of(Vec<float> x) {
#if defined(__SSE2__)
    return lanes((truncated(x) ^ (x >= 2147483648.0f)) & (x == x));
#elif defined(__aarch64__)
    return lanes((Bits<float>)vcvtq_s32_f32((float32x4_t)x));
#else
    const Bits<float> fits = (x < 2147483648.0f) & (x >= -2147483648.0f);
    const Bits<float> inside = __builtin_convertvector(fits ? x : Vec<float>{}, Bits<float>);
    const Bits<float> low = x < 0 ? same<Bits<float>>(INT32_MIN) : Bits<float>{};
    const Bits<float> outside = x >= 2147483648.0f ? same<Bits<float>>(INT32_MAX) : low;
    return lanes(fits ? inside : outside);
#endif
  }
};
struct FloatToByte {
  TRITIUM_INLINE static Vec<float> of(Vec<float> x) {
    return lanes(__builtin_convertvector(held_in(x, -128.0f, 127.0f), Bits<float>));
  }
};
struct IntToFloat {
  TRITIUM_INLINE static Vec<float> of(Vec<float> x) { return __builtin_convertvector(bits(x), Vec<float>); }
};
struct ByteOfInt {
  TRITIUM_INLINE static Vec<float> of(Vec<float> x) { return lanes((bits(x) << 24) >> 24); }
};
struct NotZero {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return (V)(x != 0); }
};
struct IsZero {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return (V)(x == 0); }
};
struct TruthToFloat {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return lanes(bits(x) & bits(same<V>(1))); }
};
struct TruthToInt {
  template <class V>
  TRITIUM_INLINE static V of(V x) { return x & 1; }
};

struct RoundBf16 {
  TRITIUM_INLINE static Vec<float> of(Vec<float> x) {
    const auto b = (Wrapping<Bits<float>>)x;
    const auto rounded = (b + 0x7fffu + ((b >> 16) & 1u)) & 0xffff0000u;
    const auto nan = (b & 0xffff0000u) | 0x400000u;
    return (Vec<float>)(x == x ? rounded : nan);
  }
};

}  // namespace tritium::TRITIUM_ISA::tape
