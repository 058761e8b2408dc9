// Elementwise logic of bools and bit operations of integers.
#include <cstdint>
#include <type_traits>

#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

struct And {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return static_cast<T>(a & b); }
};
struct Or {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return static_cast<T>(a | b); }
};
struct Xor {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) { return static_cast<T>(a ^ b); }
};
struct Invert {
  template <class T>
  TRITIUM_INLINE static T of(T x) { return static_cast<T>(~x); }
};
struct Not {
  TRITIUM_INLINE static Byte of(Byte x) { return x ^ 1; }
};

// Shifting by the width or more, or by a negative count, leaves nothing but the sign.
template <class T>
constexpr std::make_unsigned_t<T> kLast = 8 * sizeof(T) - 1;
template <class T>
TRITIUM_INLINE bool in_range(T count) { return static_cast<std::make_unsigned_t<T>>(count) <= kLast<T>; }

struct LeftShift {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    using Bits = std::make_unsigned_t<T>;
    const T count = in_range(b) ? b : T(0);
    const T shifted = static_cast<T>(static_cast<Bits>(static_cast<Bits>(a) << count));
    return in_range(b) ? shifted : T(0);
  }
};
struct RightShift {
  template <class T>
  TRITIUM_INLINE static T of(T a, T b) {
    const T shifted = static_cast<T>(a >> (in_range(b) ? static_cast<std::make_unsigned_t<T>>(b) : kLast<T>));
    return std::is_signed_v<T> || in_range(b) ? shifted : T(0);
  }
};

template <class Op>
constexpr RowMaker logic(const char* name) {
  return RowMaker{{name, 2, Result::same, Cost::cheap, {}, nullptr}}.bools<Binary<Op>::template Same>();
}
template <class Op>
constexpr RowMaker shift(const char* name) {
  return RowMaker{{name, 2, Result::same, Cost::cheap, {}, nullptr}}.ints<Binary<Op>::template Same>();
}

constexpr SpanRow kRows[] = {
    logic<And>("logical_and").row,
    logic<Or>("logical_or").row,
    logic<Xor>("logical_xor").row,
    logic<And>("bitwise_and").bits<Binary<And>::Same>().row,
    logic<Or>("bitwise_or").bits<Binary<Or>::Same>().row,
    logic<Xor>("bitwise_xor").bits<Binary<Xor>::Same>().row,
    shift<LeftShift>("bitwise_left_shift").row,
    shift<RightShift>("bitwise_right_shift").row,
    RowMaker{{"bitwise_invert", 1, Result::same, Cost::cheap, {}, nullptr}}
        .put(DType::b8, unary<Not, Byte>)
        .bits<Unary<Invert>::Same>()
        .row,
};

}  // namespace

TRITIUM_MAP_TABLES(map_bits, kRows);

}  // namespace tritium::TRITIUM_ISA
