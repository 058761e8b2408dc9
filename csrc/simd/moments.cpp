// var and std: mean and centred squares of each block, looked at twice while it is in L1, then merged in f64.
// Knows nothing of shapes; reduce.h walks.
#include "moments.h"
#include "reduce.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

template <class T>
struct Spread {
  using C = T;
  using P = Moments;

  static void block(const T* x, int64_t n, int64_t, P& to) { join(to, moments(x, n)); }
  static void merge(P& a, const P& b) { join(a, b); }
  static void panel(const T* x, int64_t stride, int64_t rows, int64_t columns, int64_t, P* to) {
    alignas(64) T centre[kColumns], rest[kColumns], squares[kColumns];
    const double count = static_cast<double>(rows);
    for (int64_t j = 0; j < columns; ++j) centre[j] = x[j];
    for (int64_t r = 1; r < rows; ++r) {
      for (int64_t j = 0; j < columns; ++j) centre[j] += x[r * stride + j];
    }
    const T inverse = static_cast<T>(1 / count);
    for (int64_t j = 0; j < columns; ++j) {
      centre[j] *= inverse;
      rest[j] = 0;
      squares[j] = 0;
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns; ++j) {
        const T d = x[r * stride + j] - centre[j];
        rest[j] += d;
        squares[j] += d * d;
      }
    }
    for (int64_t j = 0; j < columns; ++j) {
      const double left = static_cast<double>(rest[j]);
      join(to[j], {count, static_cast<double>(centre[j]), left / count,
                   static_cast<double>(squares[j]) - left * left / count});
    }
  }
};

template <class T, bool Root>
void finish(const void* partials, int64_t n, int64_t, const Call& call, char* out, int64_t stride) {
  const double correction = call.attrs->real[0];
  for (int64_t i = 0; i < n; ++i) {
    const Moments& m = static_cast<const Moments*>(partials)[i];
    const double freedom = m.n > correction ? m.n - correction : 0;
    double value = m.squares / freedom;
    if (value < 0) value = 0;  // rounding
    const T result = static_cast<T>(Root ? __builtin_sqrt(value) : value);
    scatter(call.out->dtype, &result, out + i * stride, 0, 1);
  }
}

template <bool Root>
void spread(const Call& call) {
  const DType from = call.in[0].dtype;
  if (from == DType::f64) {
    return reduce(reduction<Spread<double>>(gather_of<double>(from), true, false, finish<double, Root>), call);
  }
  reduce(reduction<Spread<float>>(gather_of<float>(from), from == DType::f32, false, finish<float, Root>), call);
}

}  // namespace

void var(const Call& call) { spread<false>(call); }
void std_deviation(const Call& call) { spread<true>(call); }

}  // namespace tritium::TRITIUM_ISA
