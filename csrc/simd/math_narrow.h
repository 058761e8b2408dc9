// The rarer functions of a float computed in floats, twice as many at a time as in doubles: for instruction sets with a fused
// multiply, whose exact products keep what rounding loses. Each is good to 3 units in the last place.
#pragma once

#include <cstdint>

#include "math.h"

#if defined(__FMA__) || defined(__aarch64__)

namespace tritium::TRITIUM_ISA::math::narrow {

constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// x = 2^k * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), and log(1 + f) = f + r. For x > 0 that is not denormal.
struct Parts {
  std::int32_t k;
  float f, r;
};
TRITIUM_INLINE Parts log_parts(float x) {
  const std::uint32_t b = bits(x);
  const std::int32_t k = static_cast<std::int32_t>(b - 0x3f3504f3u) >> 23;
  const float f = from_bits(b - (static_cast<std::uint32_t>(k) << 23)) - 1.0f;
  const float s = f * f;
  const float p = horner(f, 0.333333126f, -0.250000096f, 0.2000211865f, -0.1666799589f, 0.1421955254f, -0.1240558831f,
                         0.1188816038f, -0.116756551f, 0.06746648896f);
  return {k, f, fma(s, -0.5f, f * s * p)};
}

// What a logarithm is where it is no number, or infinite.
TRITIUM_INLINE float log_limits(float x, float y) {
  y = pick(x < kInf32, y, x);
  return pick(x > 0.0f, y, pick(x == 0.0f, -kInf32, kNaN32));
}

// The logarithm to another base: `scale` is 1 / log(base), `step` log(2) to that base, each as the float and what it lacks.
TRITIUM_INLINE float log_to_base(float x, float scale, float scale_low, float step, float step_low) {
  const bool tiny = x < 1.17549435e-38f;
  const Parts p = log_parts(pick(tiny, x * 8388608.0f, x));
  const float k = static_cast<float>(p.k) - pick(tiny, 23.0f, 0.0f);
  const float high = p.f * scale;
  const float low = fma(p.f, scale, -high) + fma(p.r, scale, p.f * scale_low);
  return log_limits(x, fma(k, step, high + fma(k, step_low, low)));
}
TRITIUM_INLINE float log2(float x) { return log_to_base(x, 1.44269502f, 1.92596303e-8f, 1.0f, 0.0f); }
TRITIUM_INLINE float log10(float x) {
  return log_to_base(x, 0.434294492f, -1.01030500e-8f, 0.301025391f, 4.60503900e-6f);
}

// log(1 + x): what the sum rounds away comes back divided by it.
TRITIUM_INLINE float log1p(float x) {
  const float u = 1.0f + x, back = u - 1.0f;
  const float lost = (1.0f - (u - back)) + (x - back);
  const Parts p = log_parts(u);
  // 1 / (1 + f) by its first terms, since what was lost is small; beyond 2^100 it is nothing.
  const float inverse = fma(p.f, p.f, 1.0f - p.f), k = static_cast<float>(p.k);
  const float low = lost * scale(static_cast<std::uint32_t>(127 - (p.k > 100 ? 100 : p.k))) * inverse;
  const float y = fma(k, kLn2High, p.f + (p.r + fma(k, kLn2Low, low)));
  return pick(x == 0.0f, x, log_limits(u, pick(u < kInf32, y, x)));
}

// x to the power y for x >= 0, as 2^(y * log2(x)), whose logarithm is a pair of floats: the exponent needs 8 bits more than one.
TRITIUM_INLINE float pow(float x, float y) {
  const bool tiny = x < 1.17549435e-38f;
  const std::uint32_t b = bits(pick(tiny, x * 8388608.0f, x));
  const std::int32_t whole = static_cast<std::int32_t>(b - 0x3f3504f3u) >> 23;
  const float k = static_cast<float>(whole) - pick(tiny, 23.0f, 0.0f);
  const float f = from_bits(b - (static_cast<std::uint32_t>(whole) << 23)) - 1.0f;
  // log2(1 + f) = s * (2 log2(e) + s^2 * ...) with s = f / (2 + f), which is s + s_low.
  const float d = 2.0f + f, inverse = 1.0f / d, s = f * inverse;
  const float s_low = fma(-s, f - (d - 2.0f), fma(-s, d, f)) * inverse;
  const float z = s * s, z_low = fma(s, s, -z) + 2.0f * s * s_low;
  const float third = z * 0.961796700f;
  const float p = z * z * horner(z, 0.577078016f, 0.412198583f, 0.320598898f, 0.2686f);
  const float third_low = fma(z, 0.961796700f, -third) + fma(z_low, 0.961796700f, p);
  const float high = s * 2.88539004f, next = s * third;
  const float lost_high = fma(s, 2.88539004f, -high) + fma(s, third, -next);
  const float low = next + (lost_high + fma(s, third_low + 3.85192606e-8f, s_low * (2.88539004f + third)));
  const float first = k + high, more = (high - (first - k)) + low;
  const float sum = first + more, rest = more - (sum - first);
  const float log = pick(x < kInf32, pick(x > 0.0f, sum, pick(x == 0.0f, -kInf32, kNaN32)), x);
  const float e = y * log;
  const float bounded = pick(e < -200.0f, -200.0f, pick(e > 200.0f, 200.0f, e));  // NaN stays
  const float e_low = pick(abs(e) < 200.0f, fma(y, rest, fma(y, log, -e)), 0.0f);
  const float t = bounded + (kRound32 + 254.0f);
  const float r = (bounded - (t - (kRound32 + 254.0f))) + e_low;
  const float q = horner(r, 0.693147182f, 0.240226507f, 0.0555041087f, 0.00961812911f, 0.00133335581f, 0.000154035304f,
                         1.54e-5f);
  return scale_twice(fma(r, q, 1.0f), bits(t));
}

// (e^x - 1) / 4: nothing overflows below e^x = 4 * 2^128.
TRITIUM_INLINE float quarter_expm1(float x) {
  const Exp32 e = exp_reduce<125, 129>(x);
  const float s = scale(e.k);
  return fma(e.q, s, s - 0.25f);
}
TRITIUM_INLINE float expm1(float x) {
  const float bounded = pick(x < -40.0f, -40.0f, pick(x > 89.5f, 89.5f, x));
  const float y = 4.0f * quarter_expm1(bounded);
  return pick(x == 0.0f, x, pick(abs(x) < 1e-4f, fma(x, 0.5f * x, x), y));
}
TRITIUM_INLINE float sinh(float x) {
  const float y = abs(x), bounded = pick(y > 89.5f, 89.5f, y);
  const float m = quarter_expm1(bounded);
  const float far = 2.0f * (m + m / fma(4.0f, m, 1.0f));
  return copysign(pick(y < 1e-3f, fma(y, y * y * 0.166666667f, y), far), x);
}
TRITIUM_INLINE float cosh(float x) {
  const float y = abs(x), bounded = pick(y > 89.5f, 89.5f, y);
  const float e = quarter_expm1(bounded) + 0.25f;
  return 2.0f * (e + 0.0625f / e);
}

TRITIUM_INLINE float asinh(float x) {
  const float y = abs(x), s = y * y;
  const bool far = y > 1e8f;  // here it is log(2y), and the square may overflow
  const float z = pick(far, y, y + s / (1.0f + sqrt(1.0f + s)));
  return copysign(log1p(z) + pick(far, 0.693147182f, 0.0f), x);
}
TRITIUM_INLINE float acosh(float x) {
  const float t = x - 1.0f;
  const bool far = x > 1e8f;
  const float z = pick(far, x, t + sqrt(fma(t, t, t + t)));
  const float y = log1p(z) + pick(far, 0.693147182f, 0.0f);
  return pick(x < 1.0f, kNaN32, y);
}
TRITIUM_INLINE float atanh(float x) {
  const float y = abs(x);
  return copysign(0.5f * log1p((y + y) / (1.0f - y)), x);
}

// The angle of a slope n / d of at most tan(pi/8).
TRITIUM_INLINE float small_angle(float t) {
  const float z = t * t;
  const float p = horner(z, -3.33329491539e-1f, 1.99777106478e-1f, -1.38776856032e-1f, 8.05374449538e-2f);
  return fma(t * z, p, t);
}
constexpr float kEighth = 0.414213562f;  // tan(pi/8)
TRITIUM_INLINE float atan(float x) {
  const float y = abs(x);
  const bool steep = y > 2.41421356f, middle = y > kEighth;
  const float n = pick(steep, -1.0f, pick(middle, y - 1.0f, y)), d = pick(steep, y, pick(middle, y + 1.0f, 1.0f));
  const float base = pick(steep, 1.57079637f, pick(middle, 0.785398185f, 0.0f));
  const float low = pick(steep, -4.37113883e-8f, pick(middle, -2.18556941e-8f, 0.0f));
  return copysign(base + (small_angle(n / d) + low), x);
}
// Of the smaller side over the larger one by one polynomial, so that nothing has to be chosen but the angle it is taken from.
TRITIUM_INLINE float atan2(float y, float x) {
  const float ax = abs(x), ay = abs(y);
  const bool turns = ay > ax, left = bits(x) >> 31;
  const float low = pick(turns, ax, ay), high = pick(turns, ay, ax);
  const float t = pick(low == high, pick(high == 0.0f, 0.0f, 1.0f), low / high);  // both may be infinite
  const float z = t * t;
  const float p = horner(z, -0.333331525f, 0.199937671f, -0.142110035f, 0.106657863f, -0.0755172893f, 0.0432059728f,
                         -0.0163642373f, 0.00291975634f);
  const float angle = fma(t * z, p, t);
  const float base = pick(turns, 1.57079637f, pick(left, 3.14159274f, 0.0f));
  const float tail = base * -2.78275e-8f;  // what such a float lacks, a share of it
  const float r = base + (pick(turns != left, -angle, angle) + tail);
  return copysign(pick(__builtin_isunordered(x, y), x + y, r), y);
}

struct Arc {
  float s, tail;  // the arc of sine s is s + tail
};
// Of |x| up to 1/2 itself; above, half of the arc that is left to pi/2.
TRITIUM_INLINE Arc arc(float y) {
  const bool far = y > 0.5f;
  const float z = pick(far, 0.5f * (1.0f - y), y * y);
  const float s = pick(far, sqrt(z), y);
  const float p = horner(z, 1.6666752422e-1f, 7.4953002686e-2f, 4.5470025998e-2f, 2.4181311049e-2f, 4.2163199048e-2f);
  return {s, s * z * p};
}
TRITIUM_INLINE float asin(float x) {
  const float y = abs(x);
  const Arc a = arc(y);
  const float far = 1.57079637f - 2.0f * a.s;
  const float lost = (1.57079637f - far) - 2.0f * a.s;
  const float r = pick(y > 0.5f, far + (lost - fma(2.0f, a.tail, 4.37113883e-8f)), a.s + a.tail);
  return copysign(r, x);
}
TRITIUM_INLINE float acos(float x) {
  const float y = abs(x);
  const Arc a = arc(y);
  const float near = 1.57079637f - (copysign(a.s, x) + (copysign(a.tail, x) + 4.37113883e-8f));
  const float left = 3.14159274f - 2.0f * (a.s + (a.tail + 4.37113883e-8f));
  return pick(y > 0.5f, pick(x > 0.0f, 2.0f * (a.s + a.tail), left), near);
}

}  // namespace tritium::TRITIUM_ISA::math::narrow

#endif
