// Elementwise functions of complex numbers, as NumPy computes them; the parts and the conjugate of any numbers.
#include <cmath>
#include <cstdint>

#include "cast.h"
#include "iterate.h"
#include "loops.h"
#include "math_wide.h"

namespace tritium::TRITIUM_ISA {
namespace {

template <class T>
struct Complex {
  T real, imaginary;
};

struct Add {
  template <class T>
  TRITIUM_INLINE static Complex<T> of(Complex<T> a, Complex<T> b) {
    return {a.real + b.real, a.imaginary + b.imaginary};
  }
};
struct Subtract {
  template <class T>
  TRITIUM_INLINE static Complex<T> of(Complex<T> a, Complex<T> b) {
    return {a.real - b.real, a.imaginary - b.imaginary};
  }
};
// As NumPy's vector loops have it: the second products are rounded, the sums with the first ones once.
struct Multiply {
  template <class T>
  TRITIUM_INLINE static Complex<T> of(Complex<T> a, Complex<T> b) {
    return {math::fma(a.real, b.real, -(a.imaginary * b.imaginary)),
            math::fma(a.real, b.imaginary, a.imaginary * b.real)};
  }
};
// Smith's way: the larger part of the divisor is divided by, so that no square overflows.
struct Divide {
  template <class T>
  TRITIUM_INLINE static Complex<T> of(Complex<T> a, Complex<T> b) {
    const T real = math::abs(b.real), imaginary = math::abs(b.imaginary);
    if (real >= imaginary) {
      if (real == 0 && imaginary == 0) return {a.real / real, a.imaginary / real};
      const T ratio = b.imaginary / b.real, scale = T(1) / (b.real + b.imaginary * ratio);
      return {(a.real + a.imaginary * ratio) * scale, (a.imaginary - a.real * ratio) * scale};
    }
    const T ratio = b.real / b.imaginary, scale = T(1) / (b.imaginary + b.real * ratio);
    return {(a.real * ratio + a.imaginary) * scale, (a.imaginary * ratio - a.real) * scale};
  }
};
struct Equal {
  template <class T>
  TRITIUM_INLINE static bool of(Complex<T> a, Complex<T> b) {
    return a.real == b.real && a.imaginary == b.imaginary;
  }
};
struct NotEqual {
  template <class T>
  TRITIUM_INLINE static bool of(Complex<T> a, Complex<T> b) { return !Equal::of(a, b); }
};
struct Square {
  template <class T>
  TRITIUM_INLINE static Complex<T> of(Complex<T> x) { return Multiply::of(x, x); }
};
struct Negative {
  template <class T>
  TRITIUM_INLINE static Complex<T> of(Complex<T> x) { return {-x.real, -x.imaginary}; }
};
struct Conjugate {
  template <class T>
  TRITIUM_INLINE static Complex<T> of(Complex<T> x) { return {x.real, -x.imaginary}; }
};
struct Abs {
  TRITIUM_INLINE static float of(Complex<float> x) { return math::hypot(x.real, x.imaginary); }
  TRITIUM_INLINE static double of(Complex<double> x) { return std::hypot(x.real, x.imaginary); }
};

template <class Op, class T, class R>
void run_unary(const void*, const char* const* in, char* out, std::int64_t n) {
  const auto* x = reinterpret_cast<const Complex<T>*>(in[0]);
  R* to = reinterpret_cast<R*>(out);
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<R>(Op::of(x[i]));
}
template <class Op, class T, class R>
void run_binary(const void*, const char* const* in, char* out, std::int64_t n) {
  const auto *x = reinterpret_cast<const Complex<T>*>(in[0]), *y = reinterpret_cast<const Complex<T>*>(in[1]);
  R* to = reinterpret_cast<R*>(out);
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<R>(Op::of(x[i], y[i]));
}

using Run = decltype(Body::run);

void walk(const Call& call, int operands, Run single, Run twice) {
  const DType t = call.in[0].dtype;
  Body body{t == DType::c64 ? single : twice, nullptr, {t, t}, call.out->dtype, INT64_MAX, 0};
  body.grain = static_cast<std::int64_t>(Cost::cheap) / 2;
  iterate(body, call.in, operands, *call.out);
}

template <class Op>
void unary_complex(const Call& call) {
  walk(call, 1, run_unary<Op, float, Complex<float>>, run_unary<Op, double, Complex<double>>);
}
template <class Op>
void binary_complex(const Call& call) {
  walk(call, 2, run_binary<Op, float, Complex<float>>, run_binary<Op, double, Complex<double>>);
}
template <class Op>
void test_complex(const Call& call) {
  walk(call, 2, run_binary<Op, float, Byte>, run_binary<Op, double, Byte>);
}
void abs_complex(const Call& call) { walk(call, 1, run_unary<Abs, float, float>, run_unary<Abs, double, double>); }

void real(const Call& call) {
  const View x = is_complex(call.in[0].dtype) ? part(call.in[0], 0) : call.in[0];
  copy({&x, 1, call.out, call.attrs});
}
void imaginary(const Call& call) {
  static double zero = 0;
  View x = call.in[0];
  if (is_complex(x.dtype)) {
    x = part(x, 1);
  } else {
    x.data = reinterpret_cast<char*>(&zero);
    x.ndim = 0;
  }
  copy({&x, 1, call.out, call.attrs});
}
void conjugate(const Call& call) { (is_complex(call.in[0].dtype) ? unary_complex<Conjugate> : copy)(call); }

constexpr Entry kEntries[] = {
    {"complex_add", binary_complex<Add>, kComplexes},
    {"complex_subtract", binary_complex<Subtract>, kComplexes},
    {"complex_multiply", binary_complex<Multiply>, kComplexes},
    {"complex_divide", binary_complex<Divide>, kComplexes},
    {"complex_equal", test_complex<Equal>, kComplexes},
    {"complex_not_equal", test_complex<NotEqual>, kComplexes},
    {"complex_abs", abs_complex, kComplexes},
    {"complex_negative", unary_complex<Negative>, kComplexes},
    {"complex_positive", copy, kComplexes},
    {"complex_square", unary_complex<Square>, kComplexes},
    {"real", real, kReals | kComplexes},
    {"imag", imaginary, kReals | kComplexes},
    {"conj", conjugate, kReals | kComplexes},
};

}  // namespace

Table complex_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
