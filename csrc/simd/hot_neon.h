// silu of four floats at a time, for what a loop over one float does not become: the polynomial by pairs, since a chain of its
// whole length leaves the units of a core idle, and bounds that are one instruction. e^x of eight doubles at a time.
#pragma once

#if defined(__aarch64__)

#include <arm_neon.h>

#include <cstdint>

#include "math.h"

namespace tritium::TRITIUM_ISA::hot {

TRITIUM_INLINE float64x2_t both(double x) { return vdupq_n_f64(x); }
TRITIUM_INLINE float64x2_t fused(float64x2_t a, float64x2_t b, float64x2_t c) { return vfmaq_f64(c, a, b); }

// x / (1 + e^-x) by way of f64, rounded once, as Silu of map_float.cpp.
class Silu {
 public:
  TRITIUM_INLINE static float32x4_t of(float32x4_t x) {
    const float64x2_t low = wide(vcvt_f64_f32(vget_low_f32(x))), high = wide(vcvt_high_f64_f32(x));
    const float32x4_t r = vcvt_high_f32_f64(vcvt_f32_f64(low), high);
    return vbslq_f32(vceqq_f32(x, vdupq_n_f32(-math::kInf32)), vdupq_n_f32(math::kNaN32), r);  // -inf * 0
  }

 private:
  // e^-y for y from 0 to 200, as exp_reduce; r is negated.
  TRITIUM_INLINE static float64x2_t exp_negative(float64x2_t y) {
    const float64x2_t round = both(math::kRound64 + 1023);
    const float64x2_t t = vfmsq_f64(round, y, both(1.44269504088896340736)), n = vsubq_f64(t, round);
    const float64x2_t r =
        fused(n, both(1.90821492927058770002e-10), fused(n, both(6.93147180369123816490e-01), y));
    const float64x2_t r2 = vmulq_f64(r, r), r4 = vmulq_f64(r2, r2);
    const auto pair = [r](double a, double b) __attribute__((always_inline)) { return fused(r, both(b), both(a)); };
    const float64x2_t low = fused(r2, pair(0.0416666666666667254, -0.00833333333331648385), pair(0.5, -0.166666666666666842));
    const float64x2_t middle = fused(r2, pair(0.0000248015873743693504, -2.7557233587170171e-6),
                                     pair(0.00138888888888580829, -0.000198412698976998972));
    const float64x2_t high = fused(r2, both(2.09270869190981092e-9), pair(2.75572328657349835e-7, -2.5112469252097944e-8));
    const float64x2_t p = fused(r4, fused(r4, high, middle), low);
    const float64x2_t scale = vreinterpretq_f64_s64(vshlq_n_s64(vreinterpretq_s64_f64(t), 52));
    return vfmsq_f64(scale, scale, vfmsq_f64(r, r2, p));
  }
  TRITIUM_INLINE static float64x2_t wide(float64x2_t x) {
    const float64x2_t z = exp_negative(vminq_f64(vabsq_f64(x), both(200)));  // beyond, the result is 0 or x itself
    return vdivq_f64(vbslq_f64(vcltzq_f64(x), vmulq_f64(x, z), x), vaddq_f64(both(1), z));
  }
};

// Each twice: what a sum begins with is loaded, since a copy of a register takes a unit that multiplies.
alignas(16) constexpr double kExp[13][2] = {
    {2.09270869190981092e-9, 2.09270869190981092e-9},       {2.5112469252097944e-8, 2.5112469252097944e-8},
    {2.75572328657349835e-7, 2.75572328657349835e-7},       {2.7557233587170171e-6, 2.7557233587170171e-6},
    {0.0000248015873743693504, 0.0000248015873743693504},   {0.000198412698976998972, 0.000198412698976998972},
    {0.00138888888888580829, 0.00138888888888580829},       {0.00833333333331648385, 0.00833333333331648385},
    {0.0416666666666667254, 0.0416666666666667254},         {0.166666666666666842, 0.166666666666666842},
    {0.5, 0.5},                                             {math::kRound64 + 1023, math::kRound64 + 1023},
    {1.44269504088896340736, 1.44269504088896340736}};

// s[i] = math::exp_flushed(s[i] - base) for i < n, a multiple of 16: the same operations, eight chains of them at a time,
// which is as many as their length leaves room for. Returns the sums of the even ones and of the odd ones.
inline float64x2_t exp_flushed(double* s, double base, std::int64_t n) {
  constexpr int N = 8;
  const float64x2_t bottom = both(-708), less = both(base), first = vld1q_f64(kExp[0]), scale = vld1q_f64(kExp[12]);
  const double* c[N];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) {
    c[i] = kExp[0];
    asm volatile("" : "+r"(c[i]));  // else a number would be loaded once and copied
  }
  float64x2_t sum = both(0);
  for (std::int64_t j = 0; j < n; j += 2 * N) {
    float64x2_t r[N], t[N], p[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      const float64x2_t x = vmaxq_f64(vsubq_f64(vld1q_f64(s + j + 2 * i), less), bottom);
      t[i] = fused(x, scale, vld1q_f64(c[i] + 22));
      const float64x2_t k = vsubq_f64(t[i], vld1q_f64(c[i] + 22));
      r[i] = fused(k, both(-1.90821492927058770002e-10), fused(k, both(-6.93147180369123816490e-01), x));
      p[i] = first;
    }
#pragma GCC unroll 10
    for (int step = 1; step <= 10; ++step) {
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) p[i] = fused(p[i], r[i], vld1q_f64(c[i] + 2 * step));
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      const float64x2_t q = fused(vmulq_f64(r[i], r[i]), p[i], r[i]);
      const float64x2_t power = vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(t[i]), 52));
      const uint64x2_t tiny = vcltq_f64(vsubq_f64(vld1q_f64(s + j + 2 * i), less), bottom);
      const float64x2_t y = vreinterpretq_f64_u64(vbicq_u64(vreinterpretq_u64_f64(fused(q, power, power)), tiny));
      vst1q_f64(s + j + 2 * i, y);
      sum = vaddq_f64(sum, y);
    }
  }
  return sum;
}

template <class Op>
void span(const void* a, const void*, const void*, void* out, std::int64_t n) {
  const float* x = static_cast<const float*>(a);
  float* to = static_cast<float*>(out);
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(to + i, Op::of(vld1q_f32(x + i)));
  if (i == n) return;
  float rest[4] = {};
  const auto bytes = static_cast<std::size_t>(n - i) * sizeof(float);
  __builtin_memcpy(rest, x + i, bytes);
  vst1q_f32(rest, Op::of(vld1q_f32(rest)));
  __builtin_memcpy(to + i, rest, bytes);
}

}  // namespace tritium::TRITIUM_ISA::hot

#endif
