// Elementwise functions of floats: roots, exponentials, logarithms, trigonometry, activations, powers.
#include <cmath>
#include <cstdint>

#include "hot512_log.h"
#include "hot_neon.h"
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
    const double far = math::abs(static_cast<double>(x)), y = math::pick(far > kFar, kFar, far);
    const math::Exp64 e = math::exp_reduce<1023>(-y);
    const double s = math::scale(e.k), z = math::fma(e.q, s, s);
    const double r = math::pick(static_cast<double>(x) < 0, -y * z, static_cast<double>(x)) / (1 + z);
    return math::pick(x == -math::kInf32, math::kNaN32, static_cast<float>(r));
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
  TRITIUM_INLINE static double of(double a, double b) { return std::pow(a, b); }
};

// The whole powers that are products: in doubles 64 factors are exact to a float; doubles themselves take a few.
template <class T>
constexpr T kLeastPower = sizeof(T) == 4 ? T(-64) : T(-2);
template <class T>
constexpr T kMostPower = sizeof(T) == 4 ? T(64) : T(4);

template <class T>
TRITIUM_INLINE bool is_product(T power) {
  // Without a branch, so that a loop over it is vector code.
  return static_cast<bool>((power >= kLeastPower<T>) & (power <= kMostPower<T>) & (math::rint(power) == power));
}

// x to a whole power, by squares; 1 / x first in doubles, where the product may be too small to be divided by.
template <class T>
TRITIUM_INLINE T product_of(T x, int power) {
  double square = static_cast<double>(x), result = 1.0;
  const bool below = power < 0;
  if (below && sizeof(T) == 8) square = 1.0 / square;
  for (int left = below ? -power : power; left != 0; left >>= 1) {
    result = left & 1 ? result * square : result;
    square *= square;
  }
  return static_cast<T>(below && sizeof(T) == 4 ? 1.0 / result : result);
}

// The square root as a power: without the sign of -0, and of -infinity infinity.
template <class T>
TRITIUM_INLINE T root_of(T x) {
  return x < T(0) && math::abs(x) == T(math::kInf64) ? T(math::kInf64) : math::sqrt(x) + T(0);
}

constexpr std::int64_t kPowers = 256;  // elements at once

// One power for all: the squares of all, then those that are its factors. The bits of product_of.
template <class T>
void products(const T* x, int power, T* to, std::int64_t n) {
  if (power == 2) {
    TRITIUM_LOOP
    for (std::int64_t i = 0; i < n; ++i) to[i] = x[i] * x[i];
    return;
  }
  if (power == -1) {
    TRITIUM_LOOP
    for (std::int64_t i = 0; i < n; ++i) to[i] = T(1) / x[i];
    return;
  }
  alignas(64) double square[kPowers], result[kPowers];
  const bool below = power < 0;
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    square[i] = below && sizeof(T) == 8 ? 1.0 / static_cast<double>(x[i]) : static_cast<double>(x[i]);
    result[i] = 1.0;
  }
  for (int left = below ? -power : power; left != 0; left >>= 1) {
    if (left & 1) {
      TRITIUM_LOOP
      for (std::int64_t i = 0; i < n; ++i) result[i] *= square[i];
    }
    TRITIUM_LOOP
    for (std::int64_t i = 0; left > 1 && i < n; ++i) square[i] *= square[i];
  }
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(below && sizeof(T) == 4 ? 1.0 / result[i] : result[i]);
}

// Any powers. Of floats without a fused multiply in three loops, each of which is vector code.
inline void powers(const double* x, const double* y, double* to, std::int64_t n) {
  binary<Pow, double>(x, y, nullptr, to, n);
}
#if defined(__FMA__) || defined(__aarch64__)
struct NarrowPow {
  TRITIUM_INLINE static float of(float x, float y) {
    return math::finish_pow(x, y, math::narrow::pow(math::abs(x), y));
  }
};
// By itself: inside of its caller GCC does not see that the loop can be vector code.
[[gnu::noinline]] void powers(const float* x, const float* y, float* to, std::int64_t n) {
#if defined(__AVX512F__)
  hot::span_of_two<hot::Pow, binary<NarrowPow, float>>(x, y, nullptr, to, n);
#else
  binary<NarrowPow, float>(x, y, nullptr, to, n);
#endif
}
#else
inline void powers(const float* x, const float* y, float* to, std::int64_t n) {
  alignas(64) double exponent[kPowers];
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i)
    exponent[i] = static_cast<double>(y[i]) * math::log_wide(static_cast<double>(math::abs(x[i])));
  alignas(64) float size[kPowers];
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) size[i] = math::exp_narrow(exponent[i]);
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = math::finish_pow(x[i], y[i], size[i]);
}
#endif

// Powers of which some are products or roots. The result may take the place of an operand, which is needed twice.
template <class T>
void mixed_powers(const T* bases, const T* exponents, T* to, std::int64_t n) {
  alignas(64) T x[kPowers], y[kPowers];
  __builtin_memcpy(x, bases, static_cast<std::size_t>(n) * sizeof(T));
  __builtin_memcpy(y, exponents, static_cast<std::size_t>(n) * sizeof(T));
  powers(x, y, to, n);
  for (std::int64_t i = 0; i < n; ++i) {
    if (is_product(y[i])) to[i] = product_of(x[i], static_cast<int>(y[i]));
    if (y[i] == T(0.5)) to[i] = root_of(x[i]);
  }
}

// Which way an element is computed depends on its own power only, so that its bits do not depend on its neighbours.
template <class T>
void power(const void* a, const void* b, const void*, void* out, std::int64_t n) {
  for (std::int64_t first = 0; first < n; first += kPowers) {
    const std::int64_t count = n - first < kPowers ? n - first : kPowers;
    const T *const x = static_cast<const T*>(a) + first, *const y = static_cast<const T*>(b) + first;
    T* const to = static_cast<T*>(out) + first;
    const T power = y[0];
    std::uint32_t other = 0, special = 0;
    TRITIUM_LOOP
    for (std::int64_t i = 0; i < count; ++i) {
      other |= static_cast<std::uint32_t>(y[i] != power);
      special |= static_cast<std::uint32_t>(is_product(y[i])) | static_cast<std::uint32_t>(y[i] == T(0.5));
    }
    if (!other && is_product(power)) {
      products(x, static_cast<int>(power), to, count);
    } else if (!other && power == T(0.5)) {
      TRITIUM_LOOP
      for (std::int64_t i = 0; i < count; ++i) to[i] = root_of(x[i]);
    } else if (special) {
      mixed_powers(x, y, to, count);
    } else {
      powers(x, y, to, count);
    }
  }
}

// The neighbour of a towards b. Floats of one sign are ordered as their bits are, for any format. Without a branch, so that a
// loop over it is vector code.
template <class Bits>
TRITIUM_INLINE Bits neighbour(Bits a, Bits b, Bits infinity) {
  constexpr Bits sign = static_cast<Bits>(Bits(1) << (8 * sizeof(Bits) - 1)), size = static_cast<Bits>(sign - 1);
  const Bits ma = a & size, mb = b & size;
  const Bits apart = (a ^ b) & sign;
  const Bits up = static_cast<Bits>(a + 1), down = static_cast<Bits>(a - 1);
  const Bits towards = ma > mb ? down : up;
  const Bits step = apart ? down : towards;
  const Bits first = static_cast<Bits>((b & sign) | 1);  // next to zero
  const Bits moved = ma == 0 ? first : step;
  const Bits both = (ma | mb) == 0 ? b : moved;
  const Bits next = a == b ? b : both;
  const Bits largest = ma > mb ? ma : mb;
  return largest > infinity ? static_cast<Bits>(infinity | (infinity >> 1)) : next;
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

#if defined(__FMA__) || defined(__aarch64__)
struct NearSin {
  TRITIUM_INLINE static float of(float x) { return math::near_sin(x); }
};
struct NearCos {
  TRITIUM_INLINE static float of(float x) { return math::near_cos(x); }
};
struct NearTan {
  TRITIUM_INLINE static float of(float x) { return math::near_tan(x); }
};
// In floats as far as their reduction reaches. Which way an element is computed depends on itself only.
template <class Near, class Op>
void periodic_near(const void* a, const void*, const void*, void* out, std::int64_t n) {
  constexpr std::int64_t kBlock = 256;
  const float* x = static_cast<const float*>(a);
  float* to = static_cast<float*>(out);
  const auto is_far = [](float v) { return !(math::abs(v) <= math::kTrigNear); };
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t m = n - first < kBlock ? n - first : kBlock;
    std::uint32_t far = 0;
    for (std::int64_t i = first; i < first + m; ++i) far |= is_far(x[i]) ? 1u : 0u;
    if (!far) {
      unary<Near, float>(x + first, nullptr, nullptr, to + first, m);
      continue;
    }
    alignas(64) float near[kBlock], wide[kBlock];
    unary<Near, float>(x + first, nullptr, nullptr, near, m);
    periodic<Op>(x + first, nullptr, nullptr, wide, m);
    for (std::int64_t i = 0; i < m; ++i) to[first + i] = is_far(x[first + i]) ? wide[i] : near[i];
  }
}
constexpr Span kSin = periodic_near<NearSin, Sin>;
constexpr Span kCos = periodic_near<NearCos, Cos>;
constexpr Span kTan = periodic_near<NearTan, Tan>;
#else
constexpr Span kSin = periodic<Sin>;
constexpr Span kCos = periodic<Cos>;
constexpr Span kTan = periodic<Tan>;
#endif

template <class Op>
constexpr RowMaker periodic_row(const char* name) {
  return unary_floats<Op>(name, Cost::dear).put(DType::f32, periodic<Op>);
}

#if defined(__AVX512F__)
constexpr Span kExp = hot::span<hot::Exp>;
constexpr Span kTanh = hot::span<hot::Tanh>;
constexpr Span kGelu = hot::span_or<hot::Gelu, unary<Gelu, float>>;
constexpr Span kLog = hot::span<hot::Log<hot::kNatural>>;
constexpr Span kLog2 = hot::span<hot::Log<hot::kBinary>>;
constexpr Span kLog10 = hot::span<hot::Log<hot::kDecimal>>;
constexpr Span kSilu = hot::span<hot::Silu>;
#else
constexpr Span kExp = unary<Exp, float>;
constexpr Span kTanh = unary<Tanh, float>;
constexpr Span kGelu = unary<Gelu, float>;
constexpr Span kLog = unary<Log, float>;
constexpr Span kLog2 = unary<Log2, float>;
constexpr Span kLog10 = unary<Log10, float>;
#if defined(__aarch64__)
constexpr Span kSilu = hot::span<hot::Silu>;
#else
constexpr Span kSilu = unary<Silu, float>;
#endif
#endif

constexpr SpanRow kRows[] = {
    unary_floats<Sqrt>("sqrt").row,
    unary_floats<Reciprocal>("reciprocal").row,
    unary_floats<Rsqrt>("rsqrt").row,
    unary_floats<Exp>("exp", Cost::dear).put(DType::f32, kExp).row,
    unary_floats<Expm1>("expm1", Cost::dear).row,
    unary_floats<Log>("log", Cost::dear).put(DType::f32, kLog).row,
    unary_floats<Log1p>("log1p", Cost::dear).row,
    unary_floats<Log2>("log2", Cost::dear).put(DType::f32, kLog2).row,
    unary_floats<Log10>("log10", Cost::dear).put(DType::f32, kLog10).row,
    periodic_row<Sin>("sin").put(DType::f32, kSin).row,
    periodic_row<Cos>("cos").put(DType::f32, kCos).row,
    periodic_row<Tan>("tan").put(DType::f32, kTan).row,
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
    unary_floats<Silu>("silu", Cost::dear).put(DType::f32, kSilu).row,
    unary_floats<Gelu>("gelu", Cost::dear).put(DType::f32, kGelu).row,
    unary_floats<GeluTanh>("gelu_tanh", Cost::dear).row,
    binary_floats<Divide>("divide").row,
    binary_floats<Copysign>("copysign").row,
    binary_floats<Atan2>("atan2", Cost::dear).row,
    binary_floats<Hypot>("hypot", Cost::dear).row,
    binary_floats<Logaddexp>("logaddexp", Cost::dear).row,
    RowMaker{{"pow", 2, Result::same, Cost::dear, {}, nullptr}}
        .put(DType::f32, power<float>)
        .put(DType::f64, power<double>)
        .row,
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
