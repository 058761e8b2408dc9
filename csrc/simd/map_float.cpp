// Elementwise functions of floats: roots, exponentials, logarithms, trigonometry, activations, powers.
// Knows nothing of shapes, strides or threads.
#include <cmath>
#include <cstdint>

#include "hot512.h"
#include "loops.h"
#include "math_wide.h"

namespace tritium::TRITIUM_ISA {
namespace {

// A function with a vector form for both types, and one whose doubles go to the C library one at a time.
#define TRITIUM_BOTH(Name, function)                                       \
  struct Name {                                                            \
    template <class T>                                                     \
    TRITIUM_INLINE static T of(T x) { return math::function(x); }          \
  };
#define TRITIUM_SINGLE(Name, function)                                     \
  struct Name {                                                            \
    TRITIUM_INLINE static float of(float x) { return math::function(x); }  \
    TRITIUM_INLINE static double of(double x) { return std::function(x); } \
  };

TRITIUM_BOTH(Sqrt, sqrt)
TRITIUM_BOTH(Exp, exp)
TRITIUM_BOTH(Log, log)
TRITIUM_BOTH(Tanh, tanh)
TRITIUM_BOTH(Sigmoid, sigmoid)
TRITIUM_BOTH(GeluTanh, gelu_tanh)
TRITIUM_SINGLE(Expm1, expm1)
TRITIUM_SINGLE(Log1p, log1p)
TRITIUM_SINGLE(Log2, log2)
TRITIUM_SINGLE(Log10, log10)
TRITIUM_SINGLE(Sin, sin)
TRITIUM_SINGLE(Cos, cos)
TRITIUM_SINGLE(Tan, tan)
TRITIUM_SINGLE(Asin, asin)
TRITIUM_SINGLE(Acos, acos)
TRITIUM_SINGLE(Atan, atan)
TRITIUM_SINGLE(Sinh, sinh)
TRITIUM_SINGLE(Cosh, cosh)
TRITIUM_SINGLE(Asinh, asinh)
TRITIUM_SINGLE(Acosh, acosh)
TRITIUM_SINGLE(Atanh, atanh)
TRITIUM_SINGLE(Erf, erf)

// Floats by way of f64, rounded once: it stands between the quantisers of a network, where every device gives the same bits.
struct Silu {
  TRITIUM_INLINE static float of(float x) {
    constexpr double kFar = 200;  // here the negative side is 0 and the other x itself
    const double far = math::abs(static_cast<double>(x)), y = far > kFar ? kFar : far;
    const math::Exp64 e = math::exp_reduce<1023>(-y);
    const double s = math::scale(e.k), z = math::fma(e.q, s, s);
    const double r = (x < 0 ? -y * z : static_cast<double>(x)) / (1 + z);
    return x == -math::kInf32 ? math::kNaN32 : static_cast<float>(r);
  }
  TRITIUM_INLINE static double of(double x) { return math::silu(x); }
};
struct Reciprocal {
  template <class T>
  TRITIUM_INLINE static T of(T x) { return T(1) / x; }
};
struct Rsqrt {
  template <class T>
  TRITIUM_INLINE static T of(T x) { return T(1) / math::sqrt(x); }
};

struct Gelu {
  TRITIUM_INLINE static float of(float x) { return math::gelu(x); }
  // x/2 * erfc(-x/sqrt(2)), with what the rounding of the argument costs put back by the slope of erfc.
  static double of(double x) {
    constexpr double kRoot = 0.70710678118654757, kRootTail = -4.8336466567264567e-17;
    constexpr double kTwoOverRootPi = 1.1283791670955126;
    const double z = -x * kRoot;
    const double lost = std::fma(-x, kRoot, -z) - x * kRootTail;
    const double slope = std::fabs(z) < 27.0 ? kTwoOverRootPi * std::exp(-z * z) * lost : 0.0;
    return 0.5 * x * (std::erfc(z) - slope);
  }
};

struct Divide {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return a / b; }
};
struct Copysign {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return math::copysign(a, b); }
};
struct Atan2 {
  TRITIUM_INLINE static float of(float a, float b) { return math::atan2(a, b); }
  TRITIUM_INLINE static double of(double a, double b) { return std::atan2(a, b); }
};
struct Hypot {
  TRITIUM_INLINE static float of(float a, float b) { return math::hypot(a, b); }
  TRITIUM_INLINE static double of(double a, double b) { return std::hypot(a, b); }
};
struct Logaddexp {
  TRITIUM_INLINE static float of(float a, float b) { return math::logaddexp(a, b); }
  static double of(double a, double b) {
    if (a == b) return a + 0.6931471805599453;  // infinities of one sign too
    const double gap = a - b;
    if (gap > 0) return a + std::log1p(std::exp(-gap));
    if (gap <= 0) return b + std::log1p(std::exp(gap));
    return gap;  // NaN
  }
};
struct Pow {
  TRITIUM_INLINE static float of(float a, float b) { return math::pow(a, b); }
  TRITIUM_INLINE static double of(double a, double b) { return std::pow(a, b); }
};

// The neighbour of a towards b. Floats of one sign are ordered as their bits are, for any format.
template <class Bits>
TRITIUM_INLINE Bits neighbour(Bits a, Bits b, Bits infinity) {
  constexpr Bits sign = static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1));
  const Bits ma = a & static_cast<Bits>(sign - 1), mb = b & static_cast<Bits>(sign - 1);
  const bool nan = ma > infinity || mb > infinity;
  const bool same = a == b || (ma | mb) == 0;
  const bool shrink = (a & sign) != (b & sign) || ma > mb;  // towards zero
  const Bits step = static_cast<Bits>(shrink ? a - 1 : a + 1);
  const Bits first = static_cast<Bits>((b & sign) | 1);  // next to zero
  const Bits moved = ma == 0 ? first : step;
  return nan ? static_cast<Bits>(infinity | (infinity >> 1)) : (same ? b : moved);
}
template <class Bits, int exponent_bits>
struct Nextafter {
  static constexpr int kMantissa = 8 * static_cast<int>(sizeof(Bits)) - 1 - exponent_bits;
  static constexpr Bits kInfinity = static_cast<Bits>(((Bits(1) << exponent_bits) - 1) << kMantissa);
  TRITIUM_INLINE static Bits of(Bits a, Bits b) { return neighbour<Bits>(a, b, kInfinity); }
};

// Floats beyond the reach of the short argument reduction go to the C library, one by one.
template <class Op>
void periodic(const void* a, const void*, const void*, void* out, std::int64_t n) {
  constexpr std::int64_t kBlock = 256;
  const float* x = static_cast<const float*>(a);
  float* to = static_cast<float*>(out);
  const auto is_far = [](float v) { return !(math::abs(v) <= math::kTrigLimit); };
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const std::int64_t m = n - at < kBlock ? n - at : kBlock;
    std::uint32_t far = 0;
    for (std::int64_t i = at; i < at + m; ++i) far |= is_far(x[i]) ? 1u : 0u;
    if (!far) {
      unary<Op, float>(x + at, nullptr, nullptr, to + at, m);
      continue;
    }
    alignas(64) float near[kBlock];
    unary<Op, float>(x + at, nullptr, nullptr, near, m);
    for (std::int64_t i = at; i < at + m; ++i) {
      to[i] = is_far(x[i]) ? static_cast<float>(Op::of(static_cast<double>(x[i]))) : near[i - at];
    }
  }
}

template <class Op>
constexpr RowMaker periodic_row(const char* name) {
  return unary_floats<Op>(name, Cost::dear).put(DType::f32, periodic<Op>);
}

#if defined(__AVX512F__)
constexpr Span kExp = hot::span<hot::Exp>;
constexpr Span kTanh = hot::span<hot::Tanh>;
constexpr Span kGelu = hot::span_or<hot::Gelu, unary<Gelu, float>>;
#else
constexpr Span kExp = unary<Exp, float>;
constexpr Span kTanh = unary<Tanh, float>;
constexpr Span kGelu = unary<Gelu, float>;
#endif

constexpr SpanRow kRows[] = {
    unary_floats<Sqrt>("sqrt").row,
    unary_floats<Reciprocal>("reciprocal").row,
    unary_floats<Rsqrt>("rsqrt").row,
    unary_floats<Exp>("exp", Cost::dear).put(DType::f32, kExp).row,
    unary_floats<Expm1>("expm1", Cost::dear).row,
    unary_floats<Log>("log", Cost::dear).row,
    unary_floats<Log1p>("log1p", Cost::dear).row,
    unary_floats<Log2>("log2", Cost::dear).row,
    unary_floats<Log10>("log10", Cost::dear).row,
    periodic_row<Sin>("sin").row,
    periodic_row<Cos>("cos").row,
    periodic_row<Tan>("tan").row,
    unary_floats<Asin>("asin", Cost::dear).row,
    unary_floats<Acos>("acos", Cost::dear).row,
    unary_floats<Atan>("atan", Cost::dear).row,
    unary_floats<Sinh>("sinh", Cost::dear).row,
    unary_floats<Cosh>("cosh", Cost::dear).row,
    unary_floats<Tanh>("tanh", Cost::dear).put(DType::f32, kTanh).row,
    unary_floats<Asinh>("asinh", Cost::dear).row,
    unary_floats<Acosh>("acosh", Cost::dear).row,
    unary_floats<Atanh>("atanh", Cost::dear).row,
    unary_floats<Erf>("erf", Cost::dear).row,
    unary_floats<Sigmoid>("sigmoid", Cost::dear).row,
    unary_floats<Silu>("silu", Cost::dear).row,
    unary_floats<Gelu>("gelu", Cost::dear).put(DType::f32, kGelu).row,
    unary_floats<GeluTanh>("gelu_tanh", Cost::dear).row,
    binary_floats<Divide>("divide").row,
    binary_floats<Copysign>("copysign").row,
    binary_floats<Atan2>("atan2", Cost::dear).row,
    binary_floats<Hypot>("hypot", Cost::dear).row,
    binary_floats<Logaddexp>("logaddexp", Cost::dear).row,
    binary_floats<Pow>("pow", Cost::dear).row,
    RowMaker{{"nextafter", 2, Result::same, Cost::cheap, {}, nullptr}}
        .put(DType::f16, binary<Nextafter<std::uint16_t, 5>, std::uint16_t>)
        .put(DType::bf16, binary<Nextafter<std::uint16_t, 8>, std::uint16_t>)
        .put(DType::f32, binary<Nextafter<std::uint32_t, 8>, std::uint32_t>)
        .put(DType::f64, binary<Nextafter<std::uint64_t, 11>, std::uint64_t>)
        .row,
};

}  // namespace

TRITIUM_MAP_TABLES(map_float, kRows);

}  // namespace tritium::TRITIUM_ISA
