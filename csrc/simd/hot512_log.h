// Logarithms, powers and silu of sixteen floats at a time: as hot512.h, with the parts of a float as instructions too.
#pragma once

#if defined(__AVX512F__)

#include "hot512.h"

namespace tritium::TRITIUM_ISA::hot {

// x = 2^k * m with m from 0.75 to 1.5, and m * inverse = 1 + r with a small r: `index` says which of 32 inverses. Those beside
// m = 1 are 1, so that the logarithm of what is near 1 has all its digits. Zeros, denormals and infinities need no care of
// their own: k is infinite, or right; of negative numbers m is NaN.
struct Parted {
  __m512 k, m;
  __m512i index;
};
TRITIUM_INLINE Parted parted(__m512 x) {
  const __m512 m = _mm512_maskz_getmant_ps(0xffff, x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  const __m512 k = _mm512_maskz_getexp_ps(0xffff, x) - _mm512_maskz_getexp_ps(0xffff, m);
  return {k, m, _mm512_maskz_srli_epi32(0xffff, _mm512_castps_si512(m), 18)};
}
struct Table32 {
  alignas(64) float of[32];

  TRITIUM_INLINE __m512 at(__m512i index) const {
    return _mm512_permutex2var_ps(_mm512_load_ps(of), index, _mm512_load_ps(of + 16));
  }
};
constexpr Table32 kInverse = {{
    1.0f, 0.955078125f, 0.927734375f, 0.90234375f, 0.876953125f, 0.853515625f, 0.83203125f, 0.810546875f,
    0.791015625f, 0.771484375f, 0.75390625f, 0.736328125f, 0.71875f, 0.703125f, 0.6875f, 0.673828125f, 1.3203125f,
    1.29296875f, 1.26757812f, 1.2421875f, 1.21875f, 1.1953125f, 1.17382812f, 1.15234375f, 1.1328125f, 1.11328125f,
    1.09375f, 1.07617188f, 1.05859375f, 1.04101562f, 1.0234375f, 1.0f
}};

// The logarithm to a base: that of each inverse, 1 / log(base) and log(2) to that base as a float and what it lacks, and what
// is left of the series.
struct Base {
  Table32 logs;
  float scale, scale_low, step, step_low;
  float c[3];
};
template <const Base& base>
struct Log {
  TRITIUM_INLINE static __m512 of(__m512 x) {
    const Parted p = parted(x);
    const __m512 r = fma(p.m, kInverse.at(p.index), all(-1.0f));
    const __m512 q = fma(fma(r, all(base.c[2]), all(base.c[1])), r, all(base.c[0]));
    __m512 low = r * fma(r, q, all(base.scale_low));
    if constexpr (base.step_low != 0.0f) low = fma(p.k, all(base.step_low), low);
    return fma(p.k, all(base.step), base.logs.at(p.index)) + fma(r, all(base.scale), low);
  }
};
constexpr Base kNatural = {{{
    0.0f, 0.0459621362f, 0.0750098228f, 0.102759734f, 0.131301731f, 0.158391431f, 0.183885276f, 0.210046098f,
    0.234437555f, 0.259438872f, 0.282487243f, 0.306079447f, 0.33024168f, 0.352220595f, 0.374693453f, 0.394780219f,
    -0.27786845f, -0.256940931f, -0.237108096f, -0.216873944f, -0.197825745f, -0.178407654f, -0.160270303f,
    -0.141797915f, -0.124703482f, -0.107311733f, -0.0896121562f, -0.0734101832f, -0.0569413751f, -0.0401967987f,
    -0.0231670588f, 0.0f
}}, 1.0f, 0.0f, 0.693145752f, 1.42860677e-6f, {-0.500001192f, 0.333366543f, -0.244018018f}};
constexpr Base kBinary = {{{
    0.0f, 0.0663093477f, 0.108216293f, 0.148250952f, 0.189428359f, 0.228510529f, 0.26529038f, 0.303032488f,
    0.338221908f, 0.374291152f, 0.407542974f, 0.441579282f, 0.476438046f, 0.508146882f, 0.540568352f, 0.569547474f,
    -0.400879443f, -0.370687395f, -0.342074662f, -0.31288296f, -0.285402209f, -0.257387847f, -0.231221184f,
    -0.204571143f, -0.179909095f, -0.154818103f, -0.129283011f, -0.105908506f, -0.0821490437f, -0.0579917245f,
    -0.0334230028f, 0.0f
}}, 1.44269502f, 1.92596303e-8f, 1.0f, 0.0f, {-0.721349299f, 0.480944932f, -0.351934522f}};
constexpr Base kDecimal = {{{
    0.0f, 0.0199611019f, 0.0325763524f, 0.0446279868f, 0.0570236184f, 0.068788521f, 0.0798603594f, 0.0912218615f,
    0.101814941f, 0.112672865f, 0.122682653f, 0.13292861f, 0.143422142f, 0.152967453f, 0.162727296f, 0.171450868f,
    -0.120676734f, -0.111588031f, -0.102974735f, -0.0941871554f, -0.0859146267f, -0.0774814636f, -0.0696045086f,
    -0.0615820512f, -0.0541580319f, -0.0466048941f, -0.0389180668f, -0.0318816379f, -0.0247293264f, -0.0174572486f,
    -0.0100613264f, 0.0f
}}, 0.434294492f, -1.010305e-8f, 0.301025391f, 4.60503900e-6f, {-0.217147768f, 0.144779176f, -0.105961978f}};

// x to the power y for positive finite x and finite y, as 2^(y * log2(x)), whose logarithm is a pair of floats: the exponent
// needs 8 bits more than one.
struct Pow {
  // The logarithms of the inverses: few enough bits that the sum with k is exact, and the rest.
  static constexpr Table32 kHigh = {{
      0.0f, 0.0662841797f, 0.108215332f, 0.148254395f, 0.189453125f, 0.228515625f, 0.265319824f, 0.303039551f,
      0.338195801f, 0.374267578f, 0.407531738f, 0.441589355f, 0.47644043f, 0.508117676f, 0.540588379f, 0.569519043f,
      -0.400878906f, -0.370666504f, -0.342102051f, -0.312866211f, -0.285400391f, -0.257385254f, -0.231201172f,
      -0.204589844f, -0.179931641f, -0.154846191f, -0.129272461f, -0.105895996f, -0.0821533203f, -0.0579833984f,
      -0.0334472656f, 0.0f
}};
  static constexpr Table32 kLow = {{
      0.0f, 2.51653601e-05f, 9.64750484e-07f, -3.43594729e-06f, -2.47597418e-05f, -5.09450047e-06f, -2.94444453e-05f,
      -7.07701565e-06f, 2.61014466e-05f, 2.35788102e-05f, 1.12244506e-05f, -1.00687375e-05f, -2.38574444e-06f,
      2.92278892e-05f, -1.99975439e-05f, 2.84053658e-05f, -5.30032196e-07f, -2.09029004e-05f, 2.73827827e-05f,
      -1.67443468e-05f, -1.82823726e-06f, -2.5887864e-06f, -2.00088361e-05f, 1.86995003e-05f, 2.25506101e-05f,
      2.80823533e-05f, -1.05560075e-05f, -1.2512477e-05f, 4.27895884e-06f, -8.32432124e-06f, 2.42640872e-05f, 0.0f
}};

  // What is not to be computed here.
  TRITIUM_INLINE static __mmask16 beyond(__m512 x, __m512 y, __mmask16 lanes) {
    constexpr int kNotFinite = 0x81 | 0x18, kNotPositive = 0x02 | 0x04 | 0x40;  // NaN, infinities; zeros, below zero
    return static_cast<__mmask16>(_mm512_mask_fpclass_ps_mask(lanes, x, kNotFinite | kNotPositive) |
                                  _mm512_mask_fpclass_ps_mask(lanes, y, kNotFinite));
  }
  TRITIUM_INLINE static __m512 of(__m512 x, __m512 y) {
    const Parted p = parted(x);
    const __m512 inverse = kInverse.at(p.index);
    // By instructions: a compiler that makes one operation of a product and a sum would lose what the next line puts back.
    const __m512 product = _mm512_maskz_mul_ps(0xffff, p.m, inverse), r = product - all(1.0f);
    const __m512 r_low = _mm512_maskz_fmsub_ps(0xffff, p.m, inverse, product);
    // log2(1 + r) = scale * (w + w_low) + r^3 * q with w + w_low = r - r^2 / 2.
    const __m512 q = fma(fma(r, all(0.280100316f), all(-0.360699207f)), r, all(0.480900377f));
    const __m512 half = r * all(0.5f), scale = all(1.44269502f);
    const __m512 w = _mm512_maskz_fnmadd_ps(0xffff, half, r, r), w_low = _mm512_maskz_fnmadd_ps(0xffff, half, r, r - w);
    const __m512 next = _mm512_maskz_mul_ps(0xffff, w, scale);
    const __m512 lost = fma(w, all(1.92596303e-8f), _mm512_maskz_fmsub_ps(0xffff, w, scale, next));
    const __m512 tail = fma(r * r, r * q, fma(w_low, scale, lost));
    const __m512 first = p.k + kHigh.at(p.index);
    const __m512 sum = first + next;
    const __m512 more = fma(r_low, scale - next, tail + kLow.at(p.index)) + (next - (sum - first));
    const __m512 log = sum + more, rest = more - (log - sum);
    const __m512 e = y * log;
    const __mmask16 near = _mm512_cmp_ps_mask(abs(e), all(200.0f), _CMP_LT_OQ);
    const __m512 e_low = _mm512_maskz_fmadd_ps(near, y, rest, _mm512_maskz_fmsub_ps(near, y, log, e));
    return exp2(at_most(200.0f, at_least(-200.0f, e)), e_low);
  }

 private:
  // 2^(x + low), by sixteenths as exp_bounded.
  TRITIUM_INLINE static __m512 exp2(__m512 x, __m512 low) {
    const __m512 round = all(786432.0f);  // 1.5 * 2^19
    const __m512 t = x + round;
    const __m512 n = t - round;
    const __m512 r = (x - n) + low;
    const __m512 q = r * fma(fma(r, all(0.0555024259f), all(0.240234599f)), r, all(0.693147182f));
    const __m512 power = _mm512_maskz_permutexvar_ps(0xffff, _mm512_castps_si512(t), _mm512_load_ps(kSixteenths));
    return _mm512_maskz_scalef_ps(0xffff, fma(power, q, power), n);
  }
};

// x / (1 + e^-x) by way of f64, rounded once, as Silu of map_float.cpp.
class Silu {
  typedef float Eight __attribute__((vector_size(32)));

 public:
  TRITIUM_INLINE static __m512 of(__m512 x) {
    const Eight low = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
    const Eight high = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 r = __builtin_shufflevector(narrow(low), narrow(high), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 size = abs(x);  // inf * 1, and -inf * 0
    return _mm512_mask_add_ps(r, _mm512_cmp_ps_mask(size, all(math::kInf32), _CMP_EQ_OQ), x, size);
  }

 private:
  alignas(64) static constexpr double kPowers[16] = {
      1.0, 1.04427378242741384, 1.09050773266525766, 1.13878863475669165, 1.18920711500272107, 1.24185781207348405,
      1.29683955465100967, 1.35425554693689273, 1.41421356237309505, 1.47682614593949931, 1.54221082540794082,
      1.61049033194925431, 1.68179283050742909, 1.75625216037329948, 1.83400808640934246, 1.91520656139714729};

  TRITIUM_INLINE static Eight narrow(Eight x) {
    return (Eight)_mm512_maskz_cvtpd_ps(0xff, wide(_mm512_maskz_cvtps_pd(0xff, (__m256)x)));
  }
  TRITIUM_INLINE static __m512d both(double x) { return _mm512_set1_pd(x); }
  TRITIUM_INLINE static __m512d fused(__m512d a, __m512d b, __m512d c) { return _mm512_fmadd_pd(a, b, c); }
  // e^x for x from -200 to 0, by sixteenths as exp_bounded.
  TRITIUM_INLINE static __m512d exp_wide(__m512d x) {
    const __m512d round = both(422212465065984.0);  // 1.5 * 2^48
    const __m512d t = fused(x, both(1.44269504088896340736), round);
    const __m512d n = t - round;
    const __m512d r = fused(n, both(-1.90821492927058770002e-10), fused(n, both(-6.93147180369123816490e-01), x));
    const __m512d p = fused(fused(fused(fused(r, both(0.00138890372723544299), both(0.00833345204026419983)), r,
                                         both(0.0416666666648911703)), r, both(0.166666666652462671)), r, both(0.5));
    const __m512d power =
        _mm512_permutex2var_pd(_mm512_load_pd(kPowers), _mm512_castpd_si512(t), _mm512_load_pd(kPowers + 8));
    return _mm512_maskz_scalef_pd(0xff, fused(power, fused(r * r, p, r), power), n);
  }
  TRITIUM_INLINE static __m512d wide(__m512d x) {
    const __m512d below = _mm512_maskz_or_pd(0xff, both(-0.0), x);  // -|x|; NaN stays
    const __m512d bounded = _mm512_maskz_max_pd(0xff, both(-200.0), below), z = exp_wide(bounded);
    return _mm512_mask_mul_pd(x, _mm512_cmp_pd_mask(x, both(0.0), _CMP_LT_OQ), bounded, z) / (both(1.0) + z);
  }
};

// As span, of functions of two numbers; elements that Op does not cover are those of `other`, whatever stands beside them.
template <class Op, Span other>
void span_of_two(const void* a, const void* b, const void*, void* out, std::int64_t n) {
  const float *const x = static_cast<const float*>(a), *const y = static_cast<const float*>(b);
  float* const to = static_cast<float*>(out);
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = n - i < 16 ? static_cast<__mmask16>((1u << (n - i)) - 1) : 0xffff;
    const __m512 v = _mm512_maskz_loadu_ps(lanes, x + i), w = _mm512_maskz_loadu_ps(lanes, y + i);
    const __mmask16 beyond = Op::beyond(v, w, lanes);
    if (__builtin_expect(beyond != 0, 0)) other(x + i, y + i, nullptr, to + i, n - i < 16 ? n - i : 16);
    _mm512_mask_storeu_ps(to + i, static_cast<__mmask16>(lanes & ~beyond), Op::of(v, w));
  }
}

}  // namespace tritium::TRITIUM_ISA::hot

#endif
