// Elementary functions of one float or double, branch-free, so that a plain loop over them becomes vector code.
// Knows nothing of tensors, spans or threads.
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

// e^(x + tail) = (1 + q) * 2^k, |x| small enough for k to fit; k comes as an integer and as a float.
struct Exp32 {
  float q;
  std::int32_t k;
};
TRITIUM_INLINE Exp32 exp_reduce(float x, float tail) {
  const float t = fma(x, 1.44269504f, kRound32);
  const float n = t - kRound32;
  float r = fma(n, -0.693359375f, x);  // 9 bits: the product is exact without a fused multiply too
  r = fma(n, 2.12194440e-4f, r) + tail;
  const float p = horner(r, 0.5000000096f, 0.1666651771f, 0.04166620229f, 0.008369024851f, 0.001395072532f);
  return {fma(r * r, p, r), static_cast<std::int32_t>(bits(t) - bits(kRound32))};
}
TRITIUM_INLINE float exp2_int(std::int32_t k) { return from_bits(static_cast<std::uint32_t>(k + 127) << 23); }

// Two factors, so that neither overflow nor the denormals come early.
TRITIUM_INLINE float exp_scale(Exp32 e) {
  const std::int32_t half = e.k >> 1;
  return (1.0f + e.q) * exp2_int(half) * exp2_int(static_cast<std::int32_t>(static_cast<std::uint32_t>(e.k) -
                                                                          static_cast<std::uint32_t>(half)));
}

TRITIUM_INLINE float exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  return exp_scale(exp_reduce(x, 0.0f));
}

struct Exp64 {
  double q, n;
  std::uint64_t k;
};
TRITIUM_INLINE Exp64 exp_reduce(double x, double tail) {
  const double t = fma(x, 1.44269504088896340736, kRound64);
  const double n = t - kRound64;
  double r = fma(n, -6.93147180369123816490e-01, x);  // 33 bits
  r = fma(n, -1.90821492927058770002e-10, r) + tail;
  const double p = horner(r, 0.5, 0.166666666666666842, 0.0416666666666667254, 0.00833333333331648385,
                          0.00138888888888580829, 0.000198412698976998972, 0.0000248015873743693504,
                          2.7557233587170171e-6, 2.75572328657349835e-7, 2.5112469252097944e-8,
                          2.09270869190981092e-9);
  return {fma(r * r, p, r), n, bits(t) - bits(kRound64)};
}
TRITIUM_INLINE double exp2_int(std::uint64_t k) { return from_bits((k + 1023) << 52); }
TRITIUM_INLINE double exp_scale(Exp64 e) {
  const std::uint64_t half = bits(e.n * 0.5 + kRound64) - bits(kRound64);
  return (1.0 + e.q) * exp2_int(half) * exp2_int(e.k - half);
}

TRITIUM_INLINE double exp(double x) {
  x = x < -746.0 ? -746.0 : x;
  x = x > 710.0 ? 710.0 : x;
  return exp_scale(exp_reduce(x, 0.0));
}

TRITIUM_INLINE float log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const std::uint32_t b = bits(tiny ? x * 8388608.0f : x);
  const std::int32_t k = static_cast<std::int32_t>(b - 0x3f3504f3u) >> 23;  // 2^k * [sqrt(1/2), sqrt(2))
  const float n = static_cast<float>(k) - (tiny ? 23.0f : 0.0f);
  const float f = from_bits(b - (static_cast<std::uint32_t>(k) << 23)) - 1.0f;
  const float s = f * f;
  const float p = horner(f, 0.333333126f, -0.250000096f, 0.2000211865f, -0.1666799589f, 0.1421955254f, -0.1240558831f,
                         0.1188816038f, -0.116756551f, 0.06746648896f);
  float r = fma(n, -2.12194440e-4f, f * s * p);
  r = fma(s, -0.5f, r);
  r = fma(n, 0.693359375f, f + r);
  r = x < kInf32 ? r : x;
  return x > 0.0f ? r : (x == 0.0f ? -kInf32 : kNaN32);
}

TRITIUM_INLINE double log(double x) {
  const bool tiny = x < 2.2250738585072014e-308;
  const std::uint64_t b = bits(tiny ? x * 18014398509481984.0 : x);
  // The exponent, biased by 2048 so that it stays positive, becomes a double by way of its bits: vectors of 64-bit
  // integers have neither a conversion nor an arithmetic shift on every instruction set.
  const std::uint64_t k = (b - 0x3fe6a09e667f3bcdu + (std::uint64_t{2048} << 52)) >> 52;
  const std::uint64_t whole = k & 0xfff;
  const double n = from_bits(whole | 0x4330000000000000u) - 4503599627372544.0 /* 2^52 + 2048 */ - (tiny ? 54.0 : 0.0);
  const double f = from_bits(b - ((whole - 2048) << 52)) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double r = z * horner(z, 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01,
                              2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01,
                              1.479819860511658591e-01);
  const double half = 0.5 * f * f;
  double y = fma(n, 6.93147180369123816490e-01, f - (half - fma(s, half + r, n * 1.90821492927058770002e-10)));
  y = x < kInf64 ? y : x;
  return x > 0.0 ? y : (x == 0.0 ? -kInf64 : kNaN64);
}

// tanh |x| = m / (m + 2) with m = e^(2|x|) - 1, which stays exact near 0.
TRITIUM_INLINE float tanh(float x) {
  float y = 2.0f * abs(x);
  y = y > 20.0f ? 20.0f : y;
  const Exp32 e = exp_reduce(y, 0.0f);
  const float s = exp2_int(e.k);
  const float m = fma(e.q, s, s - 1.0f);
  return copysign(m / (m + 2.0f), x);
}
TRITIUM_INLINE double tanh(double x) {
  double y = 2.0 * abs(x);
  y = y > 44.0 ? 44.0 : y;
  const Exp64 e = exp_reduce(y, 0.0);
  const double s = exp2_int(e.k);
  const double m = fma(e.q, s, s - 1.0);
  return copysign(m / (m + 2.0), x);
}

// With z = e^-|x| nothing overflows and the small tail keeps its denormals.
template <class T>
TRITIUM_INLINE T sigmoid(T x) {
  const T z = exp(-abs(x));
  return (x < 0 ? z : T(1)) / (T(1) + z);
}
template <class T>
TRITIUM_INLINE T silu(T x) {
  const T z = exp(-abs(x));
  return (x < 0 ? x * z : x) / (T(1) + z);
}

TRITIUM_INLINE float erf(float x) {
  const float t = abs(x);
  const float s = x * x;
  float far = fma(fma(-1.72853470e-5f, t, 3.83197126e-4f), s, fma(-3.88396438e-3f, t, 2.42546219e-2f));
  far = fma(far, t, -1.06777877e-1f);
  far = fma(far, t, -6.34846687e-1f);
  far = fma(far, t, -1.28717512e-1f);
  far = fma(far, t, -t);
  far = far < -80.0f ? -80.0f : far;
  const Exp32 e = exp_reduce(far, 0.0f);
  far = copysign(1.0f - (1.0f + e.q) * exp2_int(e.k), x);
  const float near = fma(horner(s, 1.28379166e-1f, -3.76125336e-1f, 1.12819925e-1f, -2.67681349e-2f, 4.99119423e-3f,
                                -5.96761703e-4f), x, x);
  return t > 0.927734375f ? (t < 4.0f ? far : copysign(1.0f, x)) : near;
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

// x * Phi(x) = max(x, 0) - |x| * Phi(-|x|), and Phi(-y) = e^(-y*y/2) * G(y) with a smooth G: no cancellation in the
// negative tail, where 1 + erf has none of its bits left.
TRITIUM_INLINE float gelu(float x) {
  float y = abs(x);
  y = y > 14.5f ? 14.5f : y;
  const float square = y * y;
  const float inverse = 1.0f / (y + 4.0f);
  const float t = (y - 4.0f) * inverse;
  const float g = horner(t, 0.7552851312f, -0.6078966497f, 0.3871373159f, -0.1865215579f, 0.06039818986f,
                         -0.007542850041f, -0.00349148841f, 0.001636768949f, 0.0001711398943f, -0.000221488181f,
                         -4.606291297e-5f);
  const Exp32 e = exp_reduce(-0.5f * square, -0.5f * square_tail(y, square));
  const std::int32_t half = e.k >> 1;
  const float tail = y * inverse * g * (1.0f + e.q) * exp2_int(half) * exp2_int(e.k - half);
  const float r = copysign((x > 0.0f ? x : 0.0f) - tail, x);
  return x == -kInf32 ? kNaN32 : r;  // -inf * 0, as by the definition
}

// 0.5 * x * (1 + tanh(u)) = x * sigmoid(2u). The exponent needs more than a float: it is multiplied out in doubles.
TRITIUM_INLINE float gelu_tanh(float x) {
  const double wide = x;
  double u = abs(wide * (1.5957691216057308 + 0.07135481282566868 * (wide * wide)));
  u = u > 110.0 ? 110.0 : u;
  const float hi = static_cast<float>(u);
  const float z = exp_scale(exp_reduce(-hi, static_cast<float>(hi - u)));
  return (x < 0.0f ? x * z : x) / (1.0f + z);
}
TRITIUM_INLINE double gelu_tanh(double x) {
  const double u = x * (1.5957691216057308 + 0.07135481282566868 * (x * x));
  const double z = exp(-abs(u));
  return (x < 0.0 ? x * z : x) / (1.0 + z);
}

}  // namespace tritium::TRITIUM_ISA::math
