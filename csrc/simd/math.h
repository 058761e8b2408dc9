// Elementary functions of one float or double, branch-free, so that a plain loop over them becomes vector code.
#pragma once

#include <cstdint>

#define TRITIUM_INLINE inline __attribute__((always_inline))

namespace tritium::TRITIUM_ISA::math {

constexpr float kInf32 = __builtin_huge_valf();
constexpr double kInf64 = __builtin_huge_val();
constexpr float kNaN32 = __builtin_nanf("");
constexpr double kNaN64 = __builtin_nan("");

TRITIUM_INLINE std::uint32_t bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
TRITIUM_INLINE std::uint64_t bits(double x) { return __builtin_bit_cast(std::uint64_t, x); }
TRITIUM_INLINE float from_bits(std::uint32_t x) { return __builtin_bit_cast(float, x); }
TRITIUM_INLINE double from_bits(std::uint64_t x) { return __builtin_bit_cast(double, x); }
TRITIUM_INLINE float abs(float x) { return __builtin_fabsf(x); }
TRITIUM_INLINE double abs(double x) { return __builtin_fabs(x); }
TRITIUM_INLINE float copysign(float x, float s) { return __builtin_copysignf(x, s); }
TRITIUM_INLINE double copysign(double x, double s) { return __builtin_copysign(x, s); }
TRITIUM_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
TRITIUM_INLINE double sqrt(double x) { return __builtin_sqrt(x); }

// a * b + c, rounded once where the instruction set can: never rely on either.
TRITIUM_INLINE float fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
TRITIUM_INLINE double fma(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

// a where the condition holds, else b. By masks on ARM, where GCC turns a comparison around to choose by it, and then protects
// the operands from NaN: eight instructions for two.
template <class T>
TRITIUM_INLINE T pick(bool condition, T a, T b) {
#if defined(__aarch64__) && !defined(__clang__)
  using Bits = decltype(bits(a));
  const Bits mask = Bits{0} - static_cast<Bits>(condition);
  return from_bits((bits(a) & mask) | (bits(b) & ~mask));
#else
  return condition ? a : b;
#endif
}

template <class T>
TRITIUM_INLINE T horner(T, T c) {
  return c;
}
// c + x * (rest...): the coefficients come lowest first.
template <class T, class... Rest>
TRITIUM_INLINE T horner(T x, T c, Rest... rest) {
  return fma(x, horner(x, static_cast<T>(rest)...), c);
}

// Adding one of these rounds to the nearest integer and leaves it in the low mantissa bits.
constexpr float kRound32 = 12582912.0f;        // 1.5 * 2^23
constexpr double kRound64 = 6755399441055744.0;  // 1.5 * 2^52

TRITIUM_INLINE float rint(float x) {
#if defined(__SSE4_1__) || defined(__aarch64__)
  return __builtin_rintf(x);
#else
  const float r = copysign((abs(x) + 8388608.0f) - 8388608.0f, x);
  return abs(x) < 8388608.0f ? r : x;
#endif
}
TRITIUM_INLINE double rint(double x) {
#if defined(__SSE4_1__) || defined(__aarch64__)
  return __builtin_rint(x);
#else
  const double r = copysign((abs(x) + 4503599627370496.0) - 4503599627370496.0, x);
  return abs(x) < 4503599627370496.0 ? r : x;
#endif
}
template <class T>
TRITIUM_INLINE T floor(T x) {
#if defined(__SSE4_1__) || defined(__aarch64__)
  if constexpr (sizeof(T) == 4) return __builtin_floorf(x);
  else return __builtin_floor(x);
#else
  const T r = rint(x);
  return copysign(r > x ? r - 1 : r, x);
#endif
}
template <class T>
TRITIUM_INLINE T ceil(T x) {
#if defined(__SSE4_1__) || defined(__aarch64__)
  if constexpr (sizeof(T) == 4) return __builtin_ceilf(x);
  else return __builtin_ceil(x);
#else
  const T r = rint(x);
  return copysign(r < x ? r + 1 : r, x);
#endif
}
template <class T>
TRITIUM_INLINE T trunc(T x) {
#if defined(__SSE4_1__) || defined(__aarch64__)
  if constexpr (sizeof(T) == 4) return __builtin_truncf(x);
  else return __builtin_trunc(x);
#else
  const T r = rint(abs(x));
  return copysign(r > abs(x) ? r - 1 : r, x);
#endif
}

// e^x = (1 + q) * 2^k with k + `bias` in the low bits of `k`, which a shift by the mantissa's width turns into the
// exponent of a scale. `most` bounds k: beyond it q overflows by itself.
struct Exp32 {
  float q;
  std::uint32_t k;
};
template <int bias, int most = 255>
TRITIUM_INLINE Exp32 exp_reduce(float x) {
  constexpr float kRound = kRound32 + bias, kMost = kRound32 + bias + most;
  float t = fma(x, 1.44269504f, kRound);
  if constexpr (most < 255) t = pick(t > kMost, kMost, t);
  const float n = t - kRound;
  float r = fma(n, -0.693359375f, x);  // 9 bits: the product is exact without a fused multiply too
  r = fma(n, 2.12194440e-4f, r);
  const float p = horner(r, 0.5000000096f, 0.1666651771f, 0.04166620229f, 0.008369024851f, 0.001395072532f);
  return {fma(r * r, p, r), bits(t)};
}
TRITIUM_INLINE float scale(std::uint32_t k) { return from_bits(k << 23); }
// x * 2^(k - 254) in two steps, so that neither overflow nor the denormals come early.
TRITIUM_INLINE float scale_twice(float x, std::uint32_t k) { return x * scale(k >> 1) * scale(k - (k >> 1)); }

TRITIUM_INLINE float exp(float x) {
  const Exp32 e = exp_reduce<254, 128>(pick(x < -104.0f, -104.0f, x));
  return scale_twice(1.0f + e.q, e.k);
}
// The same for an x that is never positive.
TRITIUM_INLINE Exp32 exp_reduce_negative(float x) { return exp_reduce<254>(pick(x < -110.0f, -110.0f, x)); }
TRITIUM_INLINE float exp_negative(float x) {
  const Exp32 e = exp_reduce_negative(x);
  return scale_twice(1.0f + e.q, e.k);
}

// The same again, the fastest: 0 where the result would be denormal or nearly so.
TRITIUM_INLINE float exp_flushed(float x) {
  const Exp32 e = exp_reduce<127>(pick(x < -87.0f, -87.0f, x));
  const float s = scale(e.k);
  return pick(x < -87.0f, 0.0f, fma(e.q, s, s));
}

struct Exp64 {
  double q;
  double lost;  // by the rounding of q
  std::uint64_t k;
};
template <int bias, int most = 2047>
TRITIUM_INLINE Exp64 exp_reduce(double x) {
  constexpr double kRound = kRound64 + bias, kMost = kRound64 + bias + most;
  double t = fma(x, 1.44269504088896340736, kRound);
  if constexpr (most < 2047) t = pick(t > kMost, kMost, t);
  const double n = t - kRound;
  double r = fma(n, -6.93147180369123816490e-01, x);  // 33 bits
  r = fma(n, -1.90821492927058770002e-10, r);
  const double p = horner(r, 0.5, 0.166666666666666842, 0.0416666666666667254, 0.00833333333331648385,
                          0.00138888888888580829, 0.000198412698976998972, 0.0000248015873743693504,
                          2.7557233587170171e-6, 2.75572328657349835e-7, 2.5112469252097944e-8,
                          2.09270869190981092e-9);
  const double s = r * r;
  const double q = fma(s, p, r);
  return {q, fma(s, p, r - q), bits(t)};
}
TRITIUM_INLINE double scale(std::uint64_t k) { return from_bits(k << 52); }
TRITIUM_INLINE double scale_twice(double x, std::uint64_t k) { return x * scale(k >> 1) * scale(k - (k >> 1)); }

TRITIUM_INLINE double exp(double x) {
  const Exp64 e = exp_reduce<2046, 1024>(pick(x < -746.0, -746.0, x));
  return scale_twice(1.0 + e.q, e.k);
}
// As exp_flushed of a float.
TRITIUM_INLINE double exp_flushed(double x) {
  const Exp64 e = exp_reduce<1023>(pick(x < -708.0, -708.0, x));
  const double s = scale(e.k);
  return pick(x < -708.0, 0.0, fma(e.q, s, s));
}
TRITIUM_INLINE Exp64 exp_reduce_negative(double x) { return exp_reduce<2046>(pick(x < -760.0, -760.0, x)); }
TRITIUM_INLINE double exp_negative(double x) {
  const Exp64 e = exp_reduce_negative(x);
  return scale_twice(1.0 + e.q, e.k);
}

TRITIUM_INLINE float log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const std::uint32_t b = bits(pick(tiny, x * 8388608.0f, x));
  const std::int32_t k = static_cast<std::int32_t>(b - 0x3f3504f3u) >> 23;  // 2^k * [sqrt(1/2), sqrt(2))
  const float n = static_cast<float>(k) - pick(tiny, 23.0f, 0.0f);
  const float f = from_bits(b - (static_cast<std::uint32_t>(k) << 23)) - 1.0f;
  const float s = f * f;
  const float p = horner(f, 0.333333126f, -0.250000096f, 0.2000211865f, -0.1666799589f, 0.1421955254f, -0.1240558831f,
                         0.1188816038f, -0.116756551f, 0.06746648896f);
  float r = fma(n, -2.12194440e-4f, f * s * p);
  r = fma(s, -0.5f, r);
  r = fma(n, 0.693359375f, f + r);
  r = pick(x < kInf32, r, x);
  return pick(x > 0.0f, r, pick(x == 0.0f, -kInf32, kNaN32));
}

TRITIUM_INLINE double log(double x) {
  const bool tiny = x < 2.2250738585072014e-308;
  const std::uint64_t b = bits(pick(tiny, x * 18014398509481984.0, x));
  // The exponent, biased by 2048 so that it stays positive, becomes a double by way of its bits: vectors of 64-bit
  // integers have neither a conversion nor an arithmetic shift on every instruction set.
  const std::uint64_t k = (b - 0x3fe6a09e667f3bcdu + (std::uint64_t{2048} << 52)) >> 52;
  const std::uint64_t whole = k & 0xfff;
  const double n = from_bits(whole | 0x4330000000000000u) - 4503599627372544.0 /* 2^52 + 2048 */ - pick(tiny, 54.0, 0.0);
  const double f = from_bits(b - ((whole - 2048) << 52)) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double r = z * horner(z, 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                              2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                              1.479819860511658591e-01);
  const double half = 0.5 * f * f;
  double y = fma(n, 6.93147180369123816490e-01, f - (half - fma(s, half + r, n * 1.90821492927058770002e-10)));
  y = pick(x < kInf64, y, x);
  return pick(x > 0.0, y, pick(x == 0.0, -kInf64, kNaN64));
}

// An odd polynomial near 0, 1 - 2 / (e^(2|x|) + 1) elsewhere.
TRITIUM_INLINE float tanh(float x) {
  const float y = abs(x);
  const Exp32 e = exp_reduce<127>(2.0f * pick(y > 10.0f, 10.0f, y));
  const float s = scale(e.k);
  const float far = 1.0f - 2.0f / (fma(e.q, s, s) + 1.0f);
  const float z = x * x;
  const float near = fma(y * z, horner(z, -3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f, 2.06390887954e-2f,
                                       -5.70498872745e-3f), y);
  return copysign(pick(y < 0.625f, near, far), x);
}
// m / (m + 2) with m = e^(2|x|) - 1, and what the rounding of m and m + 2 lost put back into the quotient.
TRITIUM_INLINE double tanh(double x) {
  const double y = 2.0 * abs(x);
  const Exp64 e = exp_reduce<1023>(pick(y > 44.0, 44.0, y));
  const double s = scale(e.k);
  const double m = fma(e.q, s, s - 1.0);
  const double d = m + 2.0;
  const double lost_m = (e.q * s - (m - (s - 1.0))) + e.lost * s;
  const double lost_d = pick(m < 2.0, m - (d - 2.0), 2.0 - (d - m));
  const double r = m / d;
  return copysign(r + (lost_m - r * lost_d) / d, x);
}

// With z = e^-|x| nothing overflows and the small tail keeps its denormals. The rounding of 1 + z is put back.
template <class T>
TRITIUM_INLINE T over_one_plus(T numerator, T z) {
  const T d = T(1) + z;
  const T quotient = numerator / d;
  return fma(quotient, (d - T(1)) - z, quotient);
}
template <class T>
TRITIUM_INLINE T sigmoid(T x) {
  const T z = exp_negative(-abs(x));
  return over_one_plus(pick(x < 0, z, T(1)), z);
}
// x * sigmoid(u) for u of the sign of x and e^-|u| = (1 + q) * 2^k. Where x is negative they meet before they are
// scaled down to a denormal. The bounds are the definition's: inf * 1 and -inf * 0.
template <class T, class Bits>
TRITIUM_INLINE T times_sigmoid(T x, T q, Bits k) {
  constexpr T kBound = sizeof(T) == 4 ? T(-110) : T(-760);
  const T bounded = pick(x < kBound, kBound, x);
  const T below = scale_twice(fma(bounded, q, bounded), k);
  const T r = over_one_plus(pick(x < 0, below, x), scale_twice(T(1) + q, k));
  return pick(x > T(40), x, pick(x == -kInf32, T(kNaN32), r));
}
template <class T>
TRITIUM_INLINE T silu(T x) {
  const auto e = exp_reduce_negative(-abs(x));
  return times_sigmoid(x, e.q, e.k);
}

TRITIUM_INLINE float erf(float x) {
  const float t = abs(x);
  const float s = x * x;
  float far = fma(fma(-1.72853470e-5f, t, 3.83197126e-4f), s, fma(-3.88396438e-3f, t, 2.42546219e-2f));
  far = fma(far, t, -1.06777877e-1f);
  far = fma(far, t, -6.34846687e-1f);
  far = fma(far, t, -1.28717512e-1f);
  far = fma(far, t, -t);
  far = pick(far < -80.0f, -80.0f, far);
  const Exp32 e = exp_reduce<127>(far);
  far = copysign(1.0f - (1.0f + e.q) * scale(e.k), x);
  const float near = fma(horner(s, 1.28379166e-1f, -3.76125336e-1f, 1.12819925e-1f, -2.67681349e-2f, 4.99119423e-3f,
                                -5.96761703e-4f), x, x);
  return pick(t > 0.927734375f, pick(t < 4.0f, far, copysign(1.0f, x)), near);
}

// What fl(x * x) lost.
TRITIUM_INLINE float square_tail(float x, float square) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(x, x, -square);
#else
  const float hi = from_bits(bits(x) & 0xfffff000u);
  const float lo = x - hi;
  return ((hi * hi - square) + 2.0f * hi * lo) + lo * lo;
#endif
}

// x * Phi(x) = max(x, 0) - y * Phi(-y) with y = |x|, and Phi(-y) = e^(-y*y/2) * P(t) / (y + 4), t = (y - 4) / (y + 4):
// no cancellation in the negative tail, where 1 + erf has none of its bits left.
TRITIUM_INLINE float gelu(float x) {
  float y = abs(x);
  y = pick(y > 13.27f, 13.27f, y);  // here the scale below is 0
  const float u = y / (y + 4.0f);
  const float t = fma(2.0f, u, -1.0f);
  const float p = horner(t, 0.7552851354f, -0.6078965866f, 0.3871369038f, -0.1865234859f, 0.06040376524f,
                         -0.00752500388f, -0.003512079848f, 0.00156958933f, 0.0001783737626f, -0.0001324320101f);
  // exp_reduce with -y*y/2 for x: what the square loses is put back after the reduction, and r is doubled and negated.
  const float square = y * y;
  constexpr float kRound = kRound32 + 127;
  const float k = fma(square, -0.72134752f, kRound);
  const float n = k - kRound;
  float r = fma(n, 1.38671875f, square);
  r = fma(n, -4.24388880e-4f, r) + square_tail(y, square);
  const float e = fma(r * r, horner(r, 0.1250000024f, -0.02083314714f, 0.002604137643f, -0.0002615320266f,
                                    2.179800832e-5f), -0.5f * r);
  const float factor = u * p;
  const float tail = fma(factor, e, factor) * scale(bits(k));
  const float result = pick(0.0f > x, 0.0f, x) - tail;
  return pick(x < -3.4028235e38f, kNaN32, result);  // -inf * 0, as by the definition
}

// 0.5 * x * (1 + tanh(u)) = x * sigmoid(2u). The exponent needs more than a float: it is multiplied out in doubles.
TRITIUM_INLINE float gelu_tanh(float x) {
  const double wide = x;
  double u = abs(wide * fma(wide * wide, 0.07135481627260025, 1.5957691216057308));
  u = pick(u > 110.0, 110.0, u);
  const float near = static_cast<float>(u);
  const Exp32 e = exp_reduce_negative(-near);
  const float tail = static_cast<float>(near - u);
  return times_sigmoid(x, e.q + fma(e.q, tail, tail), e.k);
}
TRITIUM_INLINE double gelu_tanh(double x) {
  const Exp64 e = exp_reduce_negative(-abs(x * fma(x * x, 0.07135481627260025, 1.5957691216057308)));
  return times_sigmoid(x, e.q, e.k);
}

}  // namespace tritium::TRITIUM_ISA::math
