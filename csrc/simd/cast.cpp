// The loops that convert between the dtypes of real numbers.
#include "cast.h"

#include <cstdint>
#include <limits>
#include <type_traits>

#include "half.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

template <class T>
constexpr bool kFloat = std::is_floating_point_v<T>;

struct ToBool {
  template <class T>
  TRITIUM_INLINE static bool of(T x) { return x != T(0); }
};
struct HalfToBool {
  TRITIUM_INLINE static bool of(std::uint16_t x) { return (x & 0x7fffu) != 0; }
};

template <class T>
struct To {
  template <class F>
  TRITIUM_INLINE static T of(F x) {
    if constexpr (!kFloat<F> || kFloat<T>) {
      return static_cast<T>(x);
    } else {
      // The conversion itself only ever sees what fits: its result outside differs between processors.
      using Limits = std::numeric_limits<T>;
      constexpr F kAbove = static_cast<F>(Limits::max() / 2 + 1) * F(2);  // max + 1, a power of two
      constexpr F kLow = static_cast<F>(Limits::min());
      using Step = std::conditional_t<sizeof(T) < 4, std::int32_t, T>;  // what vectors convert to
      const bool fits = x < kAbove && x >= kLow;
      const T inside = static_cast<T>(static_cast<Step>(fits ? x : F(0)));
      const T outside = x >= kAbove ? Limits::max() : (x < kLow ? Limits::min() : T(0));
      return fits ? inside : outside;
    }
  }
};

// To f32 by rounding to odd: inexact results get an odd last bit, so that rounding them once more, to 16 bits, gives
// what rounding the original would have given.
struct ToOdd {
  TRITIUM_INLINE static float of(double x) {
    const float near = static_cast<float>(x);
    const double back = near;
    const std::uint32_t down = math::abs(back) > math::abs(x) ? 1u : 0u;
    const std::uint32_t inexact = back != x && x == x ? 1u : 0u;
    return math::from_bits((math::bits(near) - down) | inexact);
  }
  template <class T>
  TRITIUM_INLINE static float of(T x) {
    if constexpr (sizeof(T) < 8) {
      return of(static_cast<double>(x));
    } else {
      // Large values give up their lowest bits for one that says whether there were any: the rest fits a double.
      const bool negative = x < T(0);
      const std::uint64_t m = negative ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x);
      const std::uint64_t sticky = (m & ~std::uint64_t{0xffff}) | (m & 0xffff ? 0x8000u : 0u);
      const double wide = static_cast<double>(m >> 32 ? sticky : m);
      return of(negative ? -wide : wide);
    }
  }
};

template <DType type>
void widen_span(const void* a, const void*, const void*, void* out, std::int64_t n) {
  widen(type, a, static_cast<float*>(out), n);
}
template <DType type>
void narrow_span(const void* a, const void*, const void*, void* out, std::int64_t n) {
  narrow(type, static_cast<const float*>(a), out, n);
}

struct Casts {
  Span to[kDTypes];
  Span odd;  // to f32, rounded to odd where it is inexact
  constexpr void put(DType t, Span span) { to[static_cast<int>(t)] = span; }
};

// Between integers only the size of the target matters, so signed and unsigned share a loop.
template <class F, class T>
constexpr Span number() {
  if constexpr (kFloat<F> || kFloat<T>) {
    return unary<To<T>, F, T>;
  } else if constexpr (sizeof(F) == sizeof(T)) {
    return nullptr;
  } else {
    return unary<To<std::make_unsigned_t<T>>, F, std::make_unsigned_t<T>>;
  }
}

template <class F>
constexpr Casts casts() {
  Casts c{};
  c.put(DType::b8, unary<ToBool, F, Byte>);
  c.put(DType::i8, number<F, std::int8_t>());
  c.put(DType::i16, number<F, std::int16_t>());
  c.put(DType::i32, number<F, std::int32_t>());
  c.put(DType::i64, number<F, std::int64_t>());
  c.put(DType::u8, number<F, std::uint8_t>());
  c.put(DType::u16, number<F, std::uint16_t>());
  c.put(DType::u32, number<F, std::uint32_t>());
  c.put(DType::u64, number<F, std::uint64_t>());
  c.put(DType::f32, number<F, float>());
  c.put(DType::f64, number<F, double>());
  if constexpr (std::is_same_v<F, float>) {
    c.put(DType::f16, narrow_span<DType::f16>);
    c.put(DType::bf16, narrow_span<DType::bf16>);
  } else if constexpr (sizeof(F) >= 4) {
    c.odd = unary<ToOdd, F, float>;
  } else {
    c.odd = number<F, float>();
  }
  return c;
}

template <DType type>
constexpr Casts half_casts() {
  Casts c{};
  c.put(DType::b8, unary<HalfToBool, std::uint16_t, Byte>);
  c.put(DType::f32, widen_span<type>);
  c.odd = widen_span<type>;
  return c;
}

constexpr Casts kCasts[kDTypes] = {
    casts<Byte>(),          casts<std::int8_t>(),   casts<std::int16_t>(),
    casts<std::int32_t>(),  casts<std::int64_t>(),  casts<std::uint8_t>(),
    casts<std::uint16_t>(), casts<std::uint32_t>(), casts<std::uint64_t>(),
    half_casts<DType::f16>(), half_casts<DType::bf16>(), casts<float>(),
    casts<double>(),
};

bool is_integer(DType t) { return t != DType::b8 && t < DType::f16; }

}  // namespace

Cast find_cast(DType from, DType to) {
  if (from == to) return {};
  const bool keeps = is_integer(to) && (is_integer(from) || from == DType::b8) && item_size(from) == item_size(to);
  if (keeps) return {};
  const Casts& casts = kCasts[static_cast<int>(from)];
  if (const Span direct = casts.to[static_cast<int>(to)]) return {direct};
  return {casts.odd, kCasts[static_cast<int>(DType::f32)].to[static_cast<int>(to)]};
}

}  // namespace tritium::TRITIUM_ISA
