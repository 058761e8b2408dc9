// The rarer functions of a float, computed in doubles and rounded once: short, accurate and still vector code. Where there is a
// fused multiply, some are those of math_narrow.h, which are faster.
#pragma once

#include <cstdint>

#include "math.h"
#include "math_narrow.h"

namespace tritium::TRITIUM_ISA::math {

// The logarithm of a double that a float may become, good to more than its digits. Such a double is never denormal.
TRITIUM_INLINE double log_wide(double x) {
  const std::uint64_t b = bits(x);
  const std::uint64_t k = (b - 0x3fe6a09e667f3bcdu + (std::uint64_t{2048} << 52)) >> 52;  // as log of a double
  const std::uint64_t whole = k & 0xfff;
  const double n = from_bits(whole | 0x4330000000000000u) - 4503599627372544.0;
  const double f = from_bits(b - ((whole - 2048) << 52)) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double r = horner(z, 0.6666666667602652, 0.3999999556289906, 0.2857211432054847, 0.22176003002159608,
                          0.19586513595559035);
  double y = fma(n, 0.6931471805599453, fma(s * z, r, s + s));
  y = x < kInf64 ? y : x;
  return x > 0.0 ? y : (x == 0.0 ? -kInf64 : kNaN64);
}
// e^x of a double as a float: reduced in doubles, the rest, which is small, in floats.
TRITIUM_INLINE float exp_narrow(double x) {
  constexpr double kRound = kRound64 + 254;
  const double bounded = x < -160.0 ? -160.0 : x > 130.0 ? 130.0 : x;  // NaN stays
  const double t = fma(bounded, 1.44269504088896340736, kRound);
  const float r = static_cast<float>(fma(t - kRound, -0.6931471805599453, bounded));
  const float p = horner(r, 0.5000000096f, 0.1666651771f, 0.04166620229f, 0.008369024851f, 0.001395072532f);
  return scale_twice(1.0f + fma(r * r, p, r), static_cast<std::uint32_t>(bits(t)));
}

// log(1 + x) and e^x - 1 good to float precision; the sums cancel below 1e-4, where three terms are enough.
TRITIUM_INLINE double log1p_wide(double x) {
  const double y = log_wide(1.0 + x);
  return abs(x) < 1e-4 ? x * (1.0 - x * (0.5 - x * (1.0 / 3.0))) : y;
}
TRITIUM_INLINE double expm1_wide(double x) {
  const double y = exp(x) - 1.0;
  return abs(x) < 1e-4 ? x * (1.0 + x * (0.5 + x * (1.0 / 6.0))) : y;
}

#if defined(__FMA__) || defined(__aarch64__)
using narrow::acosh;
using narrow::asinh;
using narrow::atanh;
using narrow::cosh;
using narrow::expm1;
using narrow::log10;
using narrow::log1p;
using narrow::log2;
using narrow::sinh;
#else
TRITIUM_INLINE float expm1(float x) { return static_cast<float>(expm1_wide(x)); }
TRITIUM_INLINE float log1p(float x) { return static_cast<float>(log1p_wide(x)); }
TRITIUM_INLINE float log2(float x) { return static_cast<float>(log_wide(x) * 1.4426950408889634); }
TRITIUM_INLINE float log10(float x) { return static_cast<float>(log_wide(x) * 0.4342944819032518); }

TRITIUM_INLINE float sinh(float x) {
  const double y = abs(static_cast<double>(x));
  const double e = exp(y);
  const double r = y < 1e-3 ? y * (1.0 + y * y * (1.0 / 6.0)) : 0.5 * (e - 1.0 / e);
  return copysign(static_cast<float>(r), x);
}
TRITIUM_INLINE float cosh(float x) {
  const double e = exp(abs(static_cast<double>(x)));
  return static_cast<float>(0.5 * (e + 1.0 / e));
}
TRITIUM_INLINE float asinh(float x) {
  const double y = abs(static_cast<double>(x));
  const double r = log_wide(y + sqrt(y * y + 1.0));
  return copysign(static_cast<float>(y < 1e-3 ? y * (1.0 - y * y * (1.0 / 6.0)) : r), x);
}
TRITIUM_INLINE float acosh(float x) {
  const double y = x;
  const float r = static_cast<float>(log_wide(y + sqrt(y * y - 1.0)));  // the square of a float is exact in a double
  return x < 1.0f ? kNaN32 : r;
}
TRITIUM_INLINE float atanh(float x) {
  const double y = abs(static_cast<double>(x));
  const double r = 0.5 * log_wide((1.0 + y) / (1.0 - y));
  return copysign(static_cast<float>(y < 1e-3 ? y * (1.0 + y * y * (1.0 / 3.0)) : r), x);
}
#endif

#if defined(__FMA__) || defined(__aarch64__)
// x = n * pi/2 + r in floats, for |x| up to kTrigNear: pi/2 in three parts, of which each product is rounded with its sum.
constexpr float kTrigNear = 30000.0f;
struct NearQuarter {
  float sin, cos;
  std::uint32_t n;
};
TRITIUM_INLINE NearQuarter near_quarter(float x) {
  const float t = fma(x, 0.636619747f, kRound32);
  const float n = t - kRound32;
  float r = fma(n, -1.57079637e+00f, x);
  r = fma(n, 4.37113900e-08f, r);
  r = fma(n, 1.71512451e-15f, r);
  const float z = r * r;
  const float s = horner(z, -1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f);
  const float c = horner(z, 4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f);
  return {fma(r * z, s, r), fma(z * z, c, fma(z, -0.5f, 1.0f)), bits(t)};
}
TRITIUM_INLINE float flip_sign(float x, std::uint32_t n) { return from_bits(bits(x) ^ ((n << 30) & 0x80000000u)); }
TRITIUM_INLINE float near_sin(float x) {
  const NearQuarter q = near_quarter(x);
  const float r = flip_sign(q.n & 1 ? q.cos : q.sin, q.n);
  return x == 0.0f ? x : r;
}
TRITIUM_INLINE float near_cos(float x) {
  const NearQuarter q = near_quarter(x);
  return flip_sign(q.n & 1 ? q.sin : q.cos, q.n + 1);
}
TRITIUM_INLINE float near_tan(float x) {
  const float whole = fma(x, 0.636619747f, kRound32);
  const float n = whole - kRound32;
  const float part = fma(n, -1.57079637e+00f, x);
  const float rest = n * 4.37113900e-08f;
  const float r = part + rest, back = r - part;
  const float rounding = (part - (r - back)) + (rest - back) + fma(n, 4.37113900e-08f, -rest);
  const float lost = fma(n, 1.71512451e-15f, rounding);  // the angle is r + lost
  const float z = r * r;
  const float p = horner(z, 3.33331568548e-1f, 1.33387994085e-1f, 5.34112807005e-2f, 2.44301354525e-2f, 3.11992232697e-3f,
                         9.38540185543e-3f);
  const float near = fma(r * z, p, r);
  const float t = near + lost * fma(near, near, 1.0f);
  return x == 0.0f ? x : bits(whole) & 1 ? -1.0f / t : t;
}
#endif

// x = n * pi/2 + r for |x| below kTrigLimit. The 33 bits of the first part times n are exact.
constexpr float kTrigLimit = 1.0e6f;
struct Quarter {
  double sin, cos;
  std::uint64_t n;
};
TRITIUM_INLINE Quarter quarter(double x) {
  const double t = x * 0.63661977236758134 + kRound64;
  const double n = t - kRound64;
  const double r = (x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;
  const double z = r * r;
  const double s = horner(z, -0.166666666415269429, 0.00833332937412856027, -0.000198393309986633183,
                          2.71827448615263201e-6);
  const double c = horner(z, 0.0416666666226534575, -0.00138888837380603679, 0.0000247995158925878491,
                          -2.72098929800139493e-7);
  return {r + r * (z * s), 1.0 - 0.5 * z + z * z * c, bits(t)};
}
TRITIUM_INLINE double flip_sign(double x, std::uint64_t n) {
  return from_bits(bits(x) ^ ((n << 62) & (std::uint64_t{1} << 63)));
}
TRITIUM_INLINE float sin(float x) {
  const Quarter q = quarter(x);
  const float r = static_cast<float>(flip_sign(q.n & 1 ? q.cos : q.sin, q.n));
  return x == 0.0f ? x : r;
}
TRITIUM_INLINE float cos(float x) {
  const Quarter q = quarter(x);
  return static_cast<float>(flip_sign(q.n & 1 ? q.sin : q.cos, q.n + 1));
}
TRITIUM_INLINE float tan(float x) {
  const Quarter q = quarter(x);
  const bool odd = q.n & 1;
  const float r = static_cast<float>((odd ? -q.cos : q.sin) / (odd ? q.sin : q.cos));
  return x == 0.0f ? x : r;
}

#if defined(__FMA__) || defined(__aarch64__)
using narrow::acos;
using narrow::asin;
using narrow::atan;
using narrow::atan2;
#else
// The angle of (x, y) from the ratio of the smaller to the larger side.
TRITIUM_INLINE double atan2_wide(double y, double x) {
  const double ax = abs(x), ay = abs(y);
  const double low = ax < ay ? ax : ay, high = ax < ay ? ay : ax;
  double t = low / high;
  t = high == 0.0 ? 0.0 : t;
  t = low == kInf64 ? 1.0 : t;
  const double z = t * t;
  const double p = horner(z, -0.333333274339743177, 0.199996926349095612, -0.142801310651731972, 0.110602467013663015,
                          -0.0881885644312532188, 0.06759590717284702, -0.0449467078839221771, 0.022760563631805011,
                          -0.00742274226421460375, 0.0011348991595173539);
  double r = t + t * (z * p);
  r = ay > ax ? 1.5707963267948966 - r : r;
  r = bits(x) >> 63 ? 3.141592653589793 - r : r;
  r = ax != ax || ay != ay ? kNaN64 : r;
  return copysign(r, y);
}
TRITIUM_INLINE float atan2(float y, float x) { return static_cast<float>(atan2_wide(y, x)); }
TRITIUM_INLINE float atan(float x) { return static_cast<float>(atan2_wide(x, 1.0)); }
TRITIUM_INLINE float asin(float x) {
  const double w = x;
  return static_cast<float>(atan2_wide(w, sqrt((1.0 - w) * (1.0 + w))));
}
TRITIUM_INLINE float acos(float x) {
  const double w = x;
  return static_cast<float>(atan2_wide(sqrt((1.0 - w) * (1.0 + w)), w));
}
#endif

TRITIUM_INLINE float hypot(float a, float b) {
  const double x = a, y = b;
  const float r = static_cast<float>(sqrt(x * x + y * y));
  return abs(a) == kInf32 || abs(b) == kInf32 ? kInf32 : r;
}
// The larger one and log(1 + e^-gap), as good as a float needs where both nearly cancel: polynomials without a quotient.
TRITIUM_INLINE float logaddexp(float a, float b) {
  const double x = a, y = b;
  const double top = x > y ? x : y;
  const double gap = abs(x - y);
  const double bounded = gap > 700.0 ? 700.0 : gap;
  const double t = fma(bounded, -1.44269504088896340736, kRound64 + 1023);
  const double r = fma(t - (kRound64 + 1023), -0.6931471805599453, -bounded);
  const double q = horner(r, 0.50000000004270706, 0.16666666784495732, 0.041666664404042673, 0.0083332817923689947,
                           0.0013889197224897024, 0.0001990894926612678, 2.4708274080489452e-05);
  const double s = scale(bits(t)), z = fma(fma(r * r, q, r), s, s);
  const double more = z * horner(z, 0.99999999998116729, -0.49999999345788049, 0.33333295436007176, -0.24999130376053472,
                                  0.19989519123512878, -0.1659036352328335, 0.13921471910366137, -0.11297325695306197,
                                  0.082553936069182765, -0.049543083293011665, 0.02191230629455106,
                                  -0.006163758481231298, 0.00081310470778878747);
  return static_cast<float>(x == y ? x + 0.6931471805599453 : (gap == gap ? top + more : x + y));
}

// x to the power y from r = |x| to the power y: the sign, and what the standard says of special numbers.
TRITIUM_INLINE float finish_pow(float x, float y, float r) {
  const float half = 0.5f * y;
  const bool whole = rint(y) == y;
  const bool odd = whole && rint(half) != half;
  r = pick(odd && bits(x) >> 31, -r, r);
  r = pick(x < 0.0f && x > -kInf32 && !whole && y == y, kNaN32, r);
  r = pick(abs(x) == 1.0f && abs(y) == kInf32, 1.0f, r);
  return pick(y == 0.0f || x == 1.0f, 1.0f, r);
}

}  // namespace tritium::TRITIUM_ISA::math
