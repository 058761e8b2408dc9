// exp, tanh and gelu of sixteen floats at a time, for what a loop over one float cannot say: tables in registers, the
// exponent as an instruction, masked ends.
// Knows nothing of tensors or threads.
#pragma once

#if defined(__AVX512F__)

#include <immintrin.h>

#include <cstdint>

#include "math.h"
#include "span.h"

namespace tritium::TRITIUM_ISA::hot {

TRITIUM_INLINE __m512 all(float x) { return _mm512_set1_ps(x); }
TRITIUM_INLINE __m512 fma(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
// Both keep a NaN in x.
TRITIUM_INLINE __m512 at_least(float bound, __m512 x) { return _mm512_maskz_max_ps(0xffff, all(bound), x); }
TRITIUM_INLINE __m512 at_most(float bound, __m512 x) { return _mm512_maskz_min_ps(0xffff, all(bound), x); }
TRITIUM_INLINE __m512 abs(__m512 x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
}

// x = n * ln 2 + r with n in sixteenths: e^x is 2^(n's fraction), from a table, times e^r, scaled by n's whole part.
TRITIUM_INLINE __m512 exp_bounded(__m512 x) {
  const __m512 powers = _mm512_setr_ps(1.0f, 1.044273782f, 1.090507733f, 1.138788635f, 1.189207115f, 1.241857812f,
                                       1.296839555f, 1.354255547f, 1.414213562f, 1.476826146f, 1.542210825f,
                                       1.610490332f, 1.681792831f, 1.75625216f, 1.834008086f, 1.915206561f);
  const __m512 round = all(786432.0f);  // 1.5 * 2^19
  const __m512 t = fma(x, all(1.44269504f), round);
  const __m512 n = t - round;
  __m512 r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  const __m512 q = fma(r * r, fma(r, all(0.1666706552f), all(0.5000165117f)), r);
  const __m512 power = _mm512_maskz_permutexvar_ps(0xffff, _mm512_castps_si512(t), powers);
  return _mm512_maskz_scalef_ps(0xffff, fma(power, q, power), n);
}

struct Exp {
  TRITIUM_INLINE static __m512 of(__m512 x) { return exp_bounded(at_most(90.0f, at_least(-110.0f, x))); }
};

struct Tanh {
  TRITIUM_INLINE static __m512 of(__m512 x) {
    const __m512 y = abs(x);
    const __m512 bounded = at_most(10.0f, y);
    const __m512 far = all(1.0f) - all(2.0f) / (exp_bounded(bounded + bounded) + all(1.0f));
    const __m512 z = x * x;
    __m512 p = fma(z, all(-5.70498872745e-3f), all(2.06390887954e-2f));
    p = fma(z, p, all(-5.37397155531e-2f));
    p = fma(z, p, all(1.33314422036e-1f));
    p = fma(z, p, all(-3.33332819422e-1f));
    const __m512 near = fma(y * z, p, y);
    const __mmask16 close = _mm512_cmp_ps_mask(y, all(0.625f), _CMP_LT_OQ);
    const __m512 r = _mm512_mask_mov_ps(far, close, near);
    // The sign of x on the magnitude of r.
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(0x7fffffff), _mm512_castps_si512(r),
                                                         _mm512_castps_si512(x), 0xca));
  }
};

// The polynomials of Phi(-y) around the multiples of kGeluStep, by degree.
constexpr float kGeluStep = 0.171875f;
constexpr float kGeluLimit = 5.4f;
alignas(64) constexpr float kGelu[7][32] = {
    {0.5f, 0.431767901f, 0.365517153f, 0.303058173f, 0.24588385f, 0.195066829f,
     0.151211799f, 0.114463976f, 0.0845657224f, 0.0609466953f, 0.0428299517f, 0.0293372103f,
     0.0195800788f, 0.0127292046f, 0.00805861553f, 0.0049669028f, 0.00297976324f, 0.00173965574f,
     0.000988219777f, 0.000546113935f, 0.00029355536f, 0.000153467816f, 7.80214371e-5f, 3.8568557e-5f,
     1.85367379e-5f, 8.66114049e-6f, 3.93390102e-6f, 1.7367849e-6f, 7.45269365e-7f, 3.10812084e-7f,
     1.25972236e-7f, 4.96159123e-8f},
    {-0.39894228f, -0.393093005f, -0.376054739f, -0.349282893f, -0.314973535f, -0.275766378f,
     -0.234411581f, -0.193458276f, -0.155012265f, -0.120591116f, -0.0910825251f, -0.0667921328f,
     -0.0475538913f, -0.0328713325f, -0.0220606883f, -0.0143744523f, -0.00909356249f, -0.00558531028f,
     -0.00333066577f, -0.00192834751f, -0.001083952f, -0.000591568854f, -0.000313452003f, -0.000161252813f,
     -8.05404495e-5f, -3.90563181e-5f, -1.83881929e-5f, -8.40537905e-6f, -3.73031972e-6f, -1.60733096e-6f,
     -6.72411399e-7f, -2.73108568e-7f},
    {1.13824596e-10f, 0.0337814302f, 0.0646344083f, 0.0900494958f, 0.108272153f, 0.118493365f,
     0.120868471f, 0.116377244f, 0.106570932f, 0.0932696909f, 0.078274045f, 0.063139438f,
     0.0490399504f, 0.0367234419f, 0.0265417657f, 0.0185295675f, 0.0125036485f, 0.00815978928f,
     0.00515212363f, 0.00314862992f, 0.00186304249f, 0.0010675969f, 0.000592620176f, 0.000318726248f,
     0.000166114665f, 8.39100494e-5f, 4.10861122e-5f, 1.9503102e-5f, 8.9760793e-6f, 4.00576864e-6f,
     1.7335598e-6f, 7.27577845e-7f},
    {0.0664903212f, 0.0635800535f, 0.0552697273f, 0.0427365444f, 0.0276832302f, 0.0120176793f,
     -0.00247990092f, -0.0144290367f, -0.0230095978f, -0.0279936409f, -0.0296640726f, -0.0286589779f,
     -0.0257893257f, -0.0218727707f, -0.01761194f, -0.0135281169f, -0.00994609285f, -0.00701641523f,
     -0.00475801916f, -0.00310602415f, -0.00195407678f, -0.00118585638f, -0.0006947049f, -0.000393111474f,
     -0.000214983236f, -0.00011367354f, -5.81359913e-5f, -2.87676487e-5f, -1.37772178e-5f, -6.38742104e-6f,
     -2.86742844e-6f, -1.2466598e-6f},
    {-4.02498701e-8f, -0.00836222161f, -0.0155221516f, -0.0205172403f, -0.0228033725f, -0.0223307562f,
     -0.0195053245f, -0.0150561546f, -0.00985221739f, -0.00471924905f, -0.000299384204f, 0.00302259373f,
     0.00512426552f, 0.00609738047f, 0.00617101562f, 0.00563099893f, 0.00475397251f, 0.00376529213f,
     0.00282133688f, 0.00201100613f, 0.00136878197f, 0.000892123462f, 0.00055794964f, 0.000335389387f,
     0.000194020269f, 0.000108128623f, 5.81034508e-5f, 3.0125968e-5f, 1.50806373e-5f, 7.29224597e-6f,
     3.40767492e-6f, 1.53949119e-6f},
    {-0.00995792076f, -0.00923551043f, -0.00721359747f, -0.00429091765f, -0.00101949348f, 0.00202793761f,
     0.00438451817f, 0.00577628353f, 0.00615142074f, 0.00565262186f, 0.00454947694f, 0.00315593872f,
     0.00175685708f, 0.000559535889f, -0.000324396603f, -0.000871102379f, -0.00112041338f, -0.00114640568f,
     -0.00103129363f, -0.000847391599f, -0.000648125515f, -0.000466481779f, -0.000318133545f, -0.000206548457f,
     -0.000128094649f, -7.60716579e-5f, -4.33443451e-5f, -2.37311002e-5f, -1.24999766e-5f, -6.34075303e-6f,
     -3.10008957e-6f, -1.46188745e-6f},
    {3.56032076e-6f, 0.00138068144f, 0.00248126799f, 0.0030999891f, 0.00315062832f, 0.00267902583f,
     0.0018390829f, 0.000842313096f, -0.000100883507f, -0.000830278521f, -0.00126290368f, -0.00139510574f,
     -0.00128324758f, -0.00101694632f, -0.000688560707f, -0.000373141045f, -0.000118020306f, 5.75174874e-5f,
     0.000155994041f, 0.000192872079f, 0.000188257118f, 0.0001609675f, 0.000125407015f, 9.07724459e-5f,
     6.17302617e-5f, 3.97231565e-5f, 2.43050192e-5f, 1.41893839e-5f, 7.92457963e-6f, 4.24232364e-6f,
     2.18038967e-6f, 1.07726727e-6f},
};

// max(x, 0) - |x| * Phi(-|x|), |x| below kGeluLimit.
struct Gelu {
  TRITIUM_INLINE static bool covers(__m512 x, __mmask16 lanes) {
    return _mm512_mask_cmp_ps_mask(lanes, abs(x), all(kGeluLimit), _CMP_NLT_UQ) == 0;
  }
  template <int degree>
  TRITIUM_INLINE static __m512 coefficient(__m512i index) {
    return _mm512_permutex2var_ps(_mm512_load_ps(kGelu[degree]), index, _mm512_load_ps(kGelu[degree] + 16));
  }
  TRITIUM_INLINE static __m512 of(__m512 x) {
    const __m512 y = abs(x);
    const __m512 round = all(math::kRound32);
    const __m512 t = fma(y, all(1.0f / kGeluStep), round);
    const __m512 d = fma(t - round, all(-kGeluStep), y);
    const __m512i index = _mm512_castps_si512(t);
    __m512 p = fma(coefficient<6>(index), d, coefficient<5>(index));
    p = fma(p, d, coefficient<4>(index));
    p = fma(p, d, coefficient<3>(index));
    p = fma(p, d, coefficient<2>(index));
    p = fma(p, d, coefficient<1>(index));
    p = fma(p, d, coefficient<0>(index));
    return at_least(0.0f, x) - y * p;
  }
};

template <class Op>
void span(const void* a, const void*, const void*, void* out, std::int64_t n) {
  const float* x = static_cast<const float*>(a);
  float* to = static_cast<float*>(out);
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(to + i, Op::of(_mm512_loadu_ps(x + i)));
  if (i == n) return;
  const __mmask16 rest = static_cast<__mmask16>((1u << (n - i)) - 1);
  _mm512_mask_storeu_ps(to + i, rest, Op::of(_mm512_maskz_loadu_ps(rest, x + i)));
}

// Vectors that Op does not cover go to `other`.
template <class Op, Span other>
void span_or(const void* a, const void*, const void*, void* out, std::int64_t n) {
  const float* x = static_cast<const float*>(a);
  float* to = static_cast<float*>(out);
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = n - i < 16 ? static_cast<__mmask16>((1u << (n - i)) - 1) : 0xffff;
    const __m512 v = _mm512_maskz_loadu_ps(lanes, x + i);
    if (__builtin_expect(Op::covers(v, lanes), 1)) {
      _mm512_mask_storeu_ps(to + i, lanes, Op::of(v));
    } else {
      other(x + i, nullptr, nullptr, to + i, n - i < 16 ? n - i : 16);
    }
  }
}

}  // namespace tritium::TRITIUM_ISA::hot

#endif
