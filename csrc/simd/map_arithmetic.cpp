// Elementwise arithmetic of floats and integers: sums, products, quotients, extremes, rounding.
// Knows nothing of shapes, strides or threads.
#include <cmath>
#include <cstdint>
#include <type_traits>

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
    if constexpr (kFloat<T>) return a != a ? a : (a > b ? a : b);
    else return a > b ? a : b;
  }
};
struct Minimum {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    if constexpr (kFloat<T>) return a != a ? a : (a < b ? a : b);
    else return a < b ? a : b;
  }
};
struct Clip {
  template <class T>
  TRITIUM_INLINE static T of(T x, T low, T high) { return Minimum::of(Maximum::of(x, low), high); }
};

struct Abs {
  template <class T>
  TRITIUM_INLINE static T of(T x) {
    if constexpr (kFloat<T>) return math::abs(x);
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
    const T one = static_cast<T>(x > T(0) ? T(1) : (x < T(0) ? T(-1) : T(0)));
    if constexpr (kFloat<T>) return x != x ? x : one;
    else return one;
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
  TRITIUM_INLINE static T of(T x) { return x <= T(0) ? T(0) : x; }
};
struct Relu2 {
  template <class T>
  TRITIUM_INLINE static T of(T x) { return Square::of(Relu::of(x)); }
};

// Quotient and remainder of Python's kind: rounded down, the remainder with the divisor's sign.
template <class T>
struct Division {
  T quotient, remainder;
};
template <class T>
TRITIUM_INLINE Division<T> divide_floats(T a, T b) {
  T rest = std::fmod(a, b);
  if (b == T(0)) return {a / b, rest};
  T quotient = (a - rest) / b;
  if (rest == T(0)) {
    rest = math::copysign(T(0), b);
  } else if ((b < T(0)) != (rest < T(0))) {
    rest += b;
    quotient -= T(1);
  }
  if (quotient == T(0)) return {math::copysign(T(0), a / b), rest};
  T whole = math::floor(quotient);
  if (quotient - whole > T(0.5)) whole += T(1);
  return {whole, rest};
}

// Integers: by zero gives zero, and the one quotient that does not fit wraps.
struct FloorDivide {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    if constexpr (kFloat<T>) {
      // With one infinity the array API standard's answer is the quotient itself: inf // 2 is inf, -1 // inf is -0.
      if (std::isinf(a) != std::isinf(b)) return a / b;
      return divide_floats(a, b).quotient;
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
struct Remainder {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    if constexpr (kFloat<T>) {
      return divide_floats(a, b).remainder;
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

constexpr SpanRow kPositive = unary_numbers<Positive>("positive").row;
constexpr SpanRow kMaximum = binary_numbers<Maximum>("maximum").row;
constexpr SpanRow kMinimum = binary_numbers<Minimum>("minimum").row;
constexpr SpanRow kClip = RowMaker{{"clip", 3, Result::same, Cost::cheap, {}, nullptr}}
                              .floats<Ternary<Clip>::Same>()
                              .ints<Ternary<Clip>::Same>()
                              .row;

// Either bound may be absent.
void run_clip(const Call& call) {
  const bool low = call.nin > 1 && call.in[1].data != nullptr;
  const bool high = call.nin > 2 && call.in[2].data != nullptr;
  if (low && high) return map_call(kClip, call);
  if (!high) return map_call(low ? kMaximum : kPositive, call);
  const View in[2] = {call.in[0], call.in[2]};
  map_call(kMinimum, {in, 2, call.out, call.attrs});
}

constexpr SpanRow with(SpanRow row, Kernel kernel) {
  row.kernel = kernel;
  return row;
}

constexpr SpanRow kRows[] = {
    binary_numbers<Add>("add").row,
    binary_numbers<Subtract>("subtract").row,
    binary_numbers<Multiply>("multiply").row,
    kMaximum,
    kMinimum,
    binary_numbers<FloorDivide>("floor_divide", Cost::dear).row,
    binary_numbers<Remainder>("remainder", Cost::dear).row,
    with(kClip, run_clip),
    unary_numbers<Abs>("abs").row,
    unary_numbers<Negative>("negative").row,
    kPositive,
    unary_numbers<Square>("square").row,
    unary_numbers<Sign>("sign").row,
    unary_numbers<Ceil>("ceil").row,
    unary_numbers<Floor>("floor").row,
    unary_numbers<Trunc>("trunc").row,
    unary_numbers<Round>("round").row,
    unary_numbers<Relu>("relu").row,
    unary_numbers<Relu2>("relu2").row,
};

}  // namespace

TRITIUM_MAP_TABLES(map_arithmetic, kRows);

}  // namespace tritium::TRITIUM_ISA
