// Elementwise arithmetic of floats and integers: sums, products, quotients, extremes, rounding.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "iterate.h"
#include "lanes.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

template <class T>
constexpr bool kFloat = std::is_floating_point_v<T>;

// Integers wrap, so they are computed unsigned, and at least 32 bits wide lest a product be promoted to int.
template <class T>
using Wrap = std::conditional_t<kFloat<T>, T,
                                std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>>;
template <class T>
TRITIUM_INLINE Wrap<T> wrap(T x) { return static_cast<Wrap<T>>(x); }

struct Add {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return static_cast<T>(wrap(a) + wrap(b)); }
};
struct Subtract {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return static_cast<T>(wrap(a) - wrap(b)); }
};
struct Multiply {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return static_cast<T>(wrap(a) * wrap(b)); }
};
// NaN on either side comes through.
struct Maximum {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    if constexpr (kFloat<T>) return math::pick((a > b) | (a != a), a, b);
    else return a > b ? a : b;
  }
};
struct Minimum {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    if constexpr (kFloat<T>) return math::pick((a < b) | (a != a), a, b);
    else return a < b ? a : b;
  }
};
struct Clip {
  template <class T>
  TRITIUM_INLINE static T of(T x, T low, T high) {
    if constexpr (kFloat<T>) {
      const T raised = math::pick(x < low, low, x);
      const T clipped = math::pick(raised > high, high, raised);
      return math::pick(__builtin_isunordered(low, high), low + high, clipped);  // NaN
    } else {
      const T raised = x < low ? low : x;
      return raised > high ? high : raised;
    }
  }
};

struct Abs {
  template <class T>
  TRITIUM_INLINE static T of(T x) {
    if constexpr (kFloat<T>) return math::abs(x);
    else if constexpr (std::is_unsigned_v<T>) return x;
    else return static_cast<T>(x < 0 ? Wrap<T>(0) - wrap(x) : wrap(x));
  }
};
struct Negative {
  template <class T>
  TRITIUM_INLINE static T of(T x) {
    if constexpr (kFloat<T>) return -x;
    else return static_cast<T>(Wrap<T>(0) - wrap(x));
  }
};
struct Positive {
  template <class T>
  TRITIUM_INLINE static T of(T x) { return x; }
};
struct Square {
  template <class T>
  TRITIUM_INLINE static T of(T x) { return static_cast<T>(wrap(x) * wrap(x)); }
};
struct Sign {
  template <class T>
  TRITIUM_INLINE static T of(T x) {
    if constexpr (std::is_unsigned_v<T>) return static_cast<T>(x != 0);
    if constexpr (kFloat<T>) return math::pick(x > T(0), T(1), math::pick(x < T(0), T(-1), math::pick(x != x, x, T(0))));
    else return static_cast<T>(static_cast<T>(x > T(0)) - static_cast<T>(x < T(0)));
  }
};
// Rounding leaves integers as they are.
#define TRITIUM_ROUNDING(Name, function)                  \
  struct Name {                                           \
    template <class T>                                    \
    TRITIUM_INLINE static T of(T x) {                     \
      if constexpr (kFloat<T>) return math::function(x);  \
      else return x;                                      \
    }                                                     \
  };
TRITIUM_ROUNDING(Ceil, ceil)
TRITIUM_ROUNDING(Floor, floor)
TRITIUM_ROUNDING(Trunc, trunc)
TRITIUM_ROUNDING(Round, rint)

struct Relu {
  template <class T>
  TRITIUM_INLINE static T of(T x) {
    if constexpr (kFloat<T>) return math::pick(x <= T(0), T(0), x);
    else return x <= T(0) ? T(0) : x;
  }
};
struct Relu2 {
  template <class T>
  TRITIUM_INLINE static T of(T x) { return Square::of(Relu::of(x)); }
};

// std::fmod for a quotient below kNearQuotient and a finite divisor: the quotient, cut to an integer, can only be one
// too large, and the rest is exact, for floats in doubles and for doubles where there is a fused multiply.
constexpr double kNearQuotient = 268435456.0;  // 2^28
TRITIUM_INLINE double near_fmod(double a, double b) {
  const double r = math::fma(-math::trunc(a / b), b, a);
  const double fixed = (r < 0.0) != (a < 0.0) && r != 0.0 ? r + math::copysign(b, a) : r;
  return math::copysign(fixed, a);
}
#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

// Quotient and remainder of Python's kind, from what fmod left: rounded down, the remainder with the divisor's sign.
template <class T>
TRITIUM_INLINE T remainder_of(T rest, T b) {
  const T moved = (b < T(0)) != (rest < T(0)) ? rest + b : rest;
  return rest == T(0) ? math::copysign(T(0), b) : moved;
}
template <class T>
TRITIUM_INLINE T quotient_of(T a, T b, T rest) {
  const bool moves = rest != T(0) && (b < T(0)) != (rest < T(0));
  const T quotient = (a - rest) / b - (moves ? T(1) : T(0));
  const T whole = math::floor(quotient);
  const T nearest = quotient - whole > T(0.5) ? whole + T(1) : whole;
  return quotient == T(0) ? math::copysign(T(0), a / b) : nearest;
}

// Integers: by zero gives zero, and the one quotient that does not fit wraps.
struct FloorDivide {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    if constexpr (kFloat<T>) {
      // With one infinity the array API standard's answer is the quotient itself: inf // 2 is inf, -1 // inf is -0.
      if (b == T(0) || std::isinf(a) != std::isinf(b)) return a / b;
      return quotient_of(a, b, std::fmod(a, b));
    } else if constexpr (std::is_unsigned_v<T> && sizeof(T) >= 4) {
      return b == 0 ? 0 : a / b;
    } else if constexpr (sizeof(T) == 8) {
      if (b == 0) return 0;
      if (b == -1) return Negative::of(a);
      return a / b - (a % b != 0 && (a < 0) != (b < 0));
    } else {
      // A double's 53 bits cannot round a quotient of 32-bit integers over the next whole number.
      const double q = math::floor(static_cast<double>(a) / static_cast<double>(b));
      const double fits = q >= 2147483648.0 ? -2147483648.0 : q;
      return static_cast<T>(static_cast<std::int32_t>(b == 0 ? 0.0 : fits));
    }
  }
};
struct NearFloorDivide {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return quotient_of(a, b, static_cast<T>(near_fmod(a, b))); }
};
struct NearRemainder {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return remainder_of(static_cast<T>(near_fmod(a, b)), b); }
};
struct Remainder {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    if constexpr (kFloat<T>) {
      const T rest = std::fmod(a, b);
      return b == T(0) ? rest : remainder_of(rest, b);
    } else if constexpr (std::is_unsigned_v<T> && sizeof(T) >= 4) {
      return b == 0 ? 0 : a % b;
    } else if constexpr (sizeof(T) == 8) {
      if (b == 0 || b == -1) return 0;
      const T rest = a % b;
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    } else {
      const T rest = static_cast<T>(wrap(a) - wrap(FloorDivide::of(a, b)) * wrap(b));
      return b == T(0) ? T(0) : rest;
    }
  }
};

// Floats with an extreme quotient send their whole block to the C library.
template <class Near, class Far, class T>
void divide_span(const void* a, const void* b, const void*, void* out, std::int64_t n) {
  constexpr std::int64_t kBlock = 256;
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  T* to = static_cast<T*>(out);
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const std::int64_t m = n - at < kBlock ? n - at : kBlock;
    std::uint32_t far = kFused || sizeof(T) == 4 ? 0 : 1;
    for (std::int64_t i = at; i < at + m; ++i) {
      const bool near = math::abs(x[i] / y[i]) < T(kNearQuotient) && math::abs(y[i]) < T(math::kInf64);
      far |= near ? 0u : 1u;
    }
    (far ? binary<Far, T> : binary<Near, T>)(x + at, y + at, nullptr, to + at, m);
  }
}

template <class Near, class Far>
constexpr RowMaker division(const char* name) {
  return binary_numbers<Far>(name, Cost::dear)
      .put(DType::f32, divide_span<Near, Far, float>)
      .put(DType::f64, divide_span<Near, Far, double>);
}

#if defined(__aarch64__)
// Clip of floats. The instructions let NaN through, and are all of it unless a bound is zero: an element that equals it stays,
// with its sign.
template <bool Max, bool Zero, class V>
TRITIUM_INLINE V bounded(V x, V bound) {
  const V other = extreme_lanes<Max, false>(x, bound);
  if constexpr (Zero) return x == bound ? x : other;
  return other;
}
// A bound for each element (Step 1), or one for all (Step 0).
template <int Step, bool Zero, class T>
void clip_lanes(const T* x, const T* low, const T* high, T* to, std::int64_t n) {
  constexpr int L = kLanes<T>;
  if (n == 0) return;
  const T first[2] = {low[0], high[0]};
  const Vec<T> least = splat(first[0]), most = splat(first[1]);
  std::int64_t i = 0;
  for (; i + L <= n; i += L) {
    const Vec<T> raised = bounded<true, Zero>(load(x + i), Step ? load(low + i) : least);
    store(to + i, bounded<false, Zero>(raised, Step ? load(high + i) : most));
  }
  for (; i < n; ++i) to[i] = Clip::of(x[i], Step ? low[i] : first[0], Step ? high[i] : first[1]);
}
template <class T>
void clip_floats(const void* a, const void* b, const void* c, void* out, std::int64_t n) {
  clip_lanes<1, true>(static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const T*>(c), static_cast<T*>(out), n);
}

// Whether a bound that is small beside the result has a zero; one that is not small may have.
template <class T>
bool has_zero(const View& bound, std::int64_t size) {
  const std::int64_t n = bound.size();
  std::int64_t expected = sizeof(T);
  bool looks = n <= size / 16;
  for (int d = bound.ndim - 1; d >= 0; expected *= bound.shape[d--])
    looks = looks && (bound.shape[d] == 1 || bound.strides[d] == expected);
  bool zero = !looks;
  for (std::int64_t i = 0; looks && i < n; ++i) {
    T value;
    __builtin_memcpy(&value, bound.data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    zero |= value == T(0);
  }
  return zero;
}
// Bounds without zeros.
template <class T>
bool clip_plainly(const Call& call) {
  const std::int64_t size = call.out->size();
  if (has_zero<T>(call.in[1], size) || has_zero<T>(call.in[2], size)) return false;
  const auto run = [](const void*, const char* const* in, char* out, std::int64_t n) {
    const auto at = [in](int i) { return reinterpret_cast<const T*>(in[i]); };
    clip_lanes<1, false>(at(0), at(1), at(2), reinterpret_cast<T*>(out), n);
  };
  const DType t = call.out->dtype;
  iterate({run, nullptr, {t, t, t}, t, INT64_MAX, static_cast<std::int64_t>(Cost::cheap)}, call.in, 3, *call.out);
  return true;
}
#else
template <class T>
constexpr Span clip_floats = ternary<Clip, T>;
#endif

constexpr SpanRow kPositive = unary_bits<Positive>("positive").row;
constexpr SpanRow kMaximum = binary_numbers<Maximum>("maximum").row;
constexpr SpanRow kMinimum = binary_numbers<Minimum>("minimum").row;
constexpr SpanRow kFloorDivide = division<NearFloorDivide, FloorDivide>("floor_divide").row;
constexpr SpanRow kRemainder = division<NearRemainder, Remainder>("remainder").row;
constexpr SpanRow kClip = RowMaker{{"clip", 3, Result::same, Cost::cheap, {}, nullptr}}
                              .put(DType::f32, clip_floats<float>)
                              .put(DType::f64, clip_floats<double>)
                              .ints<Ternary<Clip>::Same>()
                              .row;

// Bounds that are the same for all elements.
template <class T>
bool clip_numbers(const Call& call) {
  const View &low = call.in[1], &high = call.in[2];
  if (low.size() != 1 || high.size() != 1) return false;
  T bounds[2];
  __builtin_memcpy(bounds, low.data, sizeof(T));
  __builtin_memcpy(bounds + 1, high.data, sizeof(T));
  const auto run = [](const void* context, const char* const* in, char* out, std::int64_t n) {
    const T least = static_cast<const T*>(context)[0], most = static_cast<const T*>(context)[1];
    const T* x = reinterpret_cast<const T*>(in[0]);
    T* to = reinterpret_cast<T*>(out);
#if defined(__aarch64__)
    if constexpr (kFloat<T>) {
      const bool zero = least == 0 || most == 0;
      return zero ? clip_lanes<0, true>(x, &least, &most, to, n) : clip_lanes<0, false>(x, &least, &most, to, n);
    }
#endif
    TRITIUM_LOOP
    for (std::int64_t i = 0; i < n; ++i) to[i] = Clip::of(x[i], least, most);
  };
  const DType t = call.out->dtype;
  iterate({run, bounds, {t}, t, INT64_MAX, static_cast<std::int64_t>(Cost::cheap)}, call.in, 1, *call.out);
  return true;
}

bool clip_numbers_of(const Call& call) {
  switch (call.out->dtype) {
    case DType::f32: return clip_numbers<float>(call);
    case DType::f64: return clip_numbers<double>(call);
    case DType::i8: return clip_numbers<std::int8_t>(call);
    case DType::u8: return clip_numbers<std::uint8_t>(call);
    case DType::i16: return clip_numbers<std::int16_t>(call);
    case DType::u16: return clip_numbers<std::uint16_t>(call);
    case DType::i32: return clip_numbers<std::int32_t>(call);
    case DType::u32: return clip_numbers<std::uint32_t>(call);
    case DType::i64: return clip_numbers<std::int64_t>(call);
    case DType::u64: return clip_numbers<std::uint64_t>(call);
    default: return false;
  }
}

// Either bound may be absent.
void run_clip(const Call& call) {
  const bool low = call.nin > 1 && call.in[1].data != nullptr;
  const bool high = call.nin > 2 && call.in[2].data != nullptr;
  if (low && high && clip_numbers_of(call)) return;
#if defined(__aarch64__)
  if (low && high && call.out->dtype == DType::f32 && clip_plainly<float>(call)) return;
  if (low && high && call.out->dtype == DType::f64 && clip_plainly<double>(call)) return;
#endif
  if (low && high) return map_call(kClip, call);
  if (!high) return map_call(low ? kMaximum : kPositive, call);
  const View in[2] = {call.in[0], call.in[2]};
  map_call(kMinimum, {in, 2, call.out, call.attrs});
}

// Two results.
void run_divmod(const Call& call) {
  map_call(kFloorDivide, {call.in, 2, call.out, call.attrs});
  map_call(kRemainder, {call.in, 2, call.out + 1, call.attrs});
}

constexpr SpanRow named(SpanRow row, const char* name, Kernel kernel) {
  row.name = name;
  row.kernel = kernel;
  return row;
}
constexpr SpanRow with(SpanRow row, Kernel kernel) {
  row.kernel = kernel;
  return row;
}

constexpr SpanRow kRows[] = {
    binary_bits<Add>("add").row,
    binary_bits<Subtract>("subtract").row,
    binary_bits<Multiply>("multiply").row,
    kMaximum,
    kMinimum,
    kFloorDivide,
    kRemainder,
    named(kFloorDivide, "divmod", run_divmod),
    with(kClip, run_clip),
    unary_numbers<Abs>("abs").row,
    unary_bits<Negative>("negative").row,
    kPositive,
    unary_bits<Square>("square").row,
    unary_numbers<Sign>("sign").row,
    unary_bits<Ceil>("ceil").row,
    unary_bits<Floor>("floor").row,
    unary_bits<Trunc>("trunc").row,
    unary_bits<Round>("round").row,
    unary_numbers<Relu>("relu").row,
    unary_numbers<Relu2>("relu2").row,
};

}  // namespace

TRITIUM_MAP_TABLES(map_arithmetic, kRows);

}  // namespace tritium::TRITIUM_ISA
