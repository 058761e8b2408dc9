// Elementwise comparisons and tests, all with a bool as result.
#include <cstdint>

#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

#define TRITIUM_COMPARISON(Name, operation)                                \
  struct Name {                                                            \
    template <class T>                                                     \
    TRITIUM_INLINE static bool of(T a, T b) { return a operation b; }      \
  };
TRITIUM_COMPARISON(Equal, ==)
TRITIUM_COMPARISON(NotEqual, !=)
TRITIUM_COMPARISON(Less, <)
TRITIUM_COMPARISON(LessEqual, <=)
TRITIUM_COMPARISON(Greater, >)
TRITIUM_COMPARISON(GreaterEqual, >=)

struct IsNaN {
  template <class T>
  TRITIUM_INLINE static bool of(T x) { return x != x; }
};
struct IsInf {
  TRITIUM_INLINE static bool of(float x) { return math::abs(x) == math::kInf32; }
  TRITIUM_INLINE static bool of(double x) { return math::abs(x) == math::kInf64; }
};
struct IsFinite {
  TRITIUM_INLINE static bool of(float x) { return math::abs(x) < math::kInf32; }
  TRITIUM_INLINE static bool of(double x) { return math::abs(x) < math::kInf64; }
};
struct SignBit {
  TRITIUM_INLINE static bool of(float x) { return math::bits(x) >> 31; }
  TRITIUM_INLINE static bool of(double x) { return math::bits(x) >> 63; }
};
struct LogicalNot {
  template <class T>
  TRITIUM_INLINE static bool of(T x) { return x == T(0); }
};

template <class Op>
constexpr RowMaker comparison(const char* name) {
  return RowMaker{{name, 2, Result::boolean, Cost::cheap, {}, nullptr}}
      .floats<Binary<Op>::template Test>()
      .template ints<Binary<Op>::template Test>()
      .template bools<Binary<Op>::template Test>();
}
template <class Op>
constexpr RowMaker equality(const char* name) {
  return RowMaker{{name, 2, Result::boolean, Cost::cheap, {}, nullptr}}
      .floats<Binary<Op>::template Test>()
      .template bits<Binary<Op>::template Test>()
      .template bools<Binary<Op>::template Test>();
}
template <class Op>
constexpr RowMaker test(const char* name) {
  return RowMaker{{name, 1, Result::boolean, Cost::cheap, {}, nullptr}}.floats<Unary<Op>::template Test>();
}

constexpr SpanRow kRows[] = {
    equality<Equal>("equal").row,
    equality<NotEqual>("not_equal").row,
    comparison<Less>("less").row,
    comparison<LessEqual>("less_equal").row,
    comparison<Greater>("greater").row,
    comparison<GreaterEqual>("greater_equal").row,
    test<IsNaN>("isnan").row,
    test<IsInf>("isinf").row,
    test<IsFinite>("isfinite").row,
    test<SignBit>("signbit").row,
    test<LogicalNot>("logical_not").bits<Unary<LogicalNot>::Test>().bools<Unary<LogicalNot>::Test>().row,
};

}  // namespace

TRITIUM_MAP_TABLES(map_compare, kRows);

}  // namespace tritium::TRITIUM_ISA
