// cumulative_sum and cumulative_prod along one axis, floats in f64, integers wrapping in 64 bits.
#include "../early.h"
#include "../threads.h"
#include "axes.h"
#include "reduce.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kTile = 1024;  // elements gathered at once
constexpr int64_t kGrain = 32768;
constexpr int64_t kLong = int64_t{1} << 20;  // elements between two looks whether to end early

// f16 and bf16 come and go as float, the integers as i64; sums are kept in S.
template <class C, class S, bool Product>
void cumulate(const Call& call) {
  const View &x = call.in[0], &y = *call.out;
  Axis along{1, 0, 0}, keep[kMaxDims + 1];
  int keeps = 0;
  int64_t lines = 1;
  int axis = 0;
  while (axis < x.ndim - 1 && !(call.attrs->axes >> axis & 1)) ++axis;
  for (int d = 0; d < x.ndim; ++d) {
    const Axis here{x.shape[d], x.strides[d], y.strides[d]};
    if (d == axis) {
      along = here;
      continue;
    }
    lines *= here.n;
    if (here.n != 1) insert(keep, keeps, here, true);
  }
  merge_neighbours(keep, keeps);
  if (keeps == 0) keep[keeps++] = {1, 0, 0};
  if (lines == 0) return;
  const Axis& across = keep[keeps - 1];
  const bool initial = call.attrs->whole[0] != 0;
  const bool side_by_side = across.n >= 8 && magnitude(across.in) <= magnitude(along.in);
  const int64_t width = side_by_side ? (across.n < kTile ? across.n : kTile) : 1;
  const int64_t strips = (across.n + width - 1) / width;
  const Gather gather = gather_of<C>(x.dtype);
  parallel_for(lines / across.n * strips, kGrain / (width * (along.n + 1)) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) C values[kTile];
    alignas(64) S total[kTile];
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = u % strips * width, columns = across.n - first < width ? across.n - first : width;
      const char* from = x.data + offset(keep, keeps - 1, u / strips, &Axis::in) + first * across.in;
      char* to = y.data + offset(keep, keeps - 1, u / strips, &Axis::out) + first * across.out;
      for (int64_t j = 0; j < columns; ++j) {
        total[j] = Product;
        values[j] = Product;
      }
      if (initial) {
        scatter(y.dtype, values, to, across.out, columns);
        to += along.out;
      }
      if (!side_by_side) {
        S sum = Product;
        for (int64_t i = 0; i < along.n; i += kTile) {
          if (ends_early_at(i, kLong)) return;
          const int64_t n = along.n - i < kTile ? along.n - i : kTile;
          gather(from + i * along.in, along.in, values, n);
          for (int64_t j = 0; j < n; ++j) {
            sum = Product ? sum * static_cast<S>(values[j]) : sum + static_cast<S>(values[j]);
            values[j] = static_cast<C>(sum);
          }
          scatter(y.dtype, values, to + i * along.out, along.out, n);
        }
        continue;
      }
      for (int64_t i = 0; i < along.n; ++i) {
        if (ends_early_at(i, kLong / kTile)) return;
        gather(from + i * along.in, across.in, values, columns);
        for (int64_t j = 0; j < columns; ++j) {
          total[j] = Product ? total[j] * static_cast<S>(values[j]) : total[j] + static_cast<S>(values[j]);
          values[j] = static_cast<C>(total[j]);
        }
        scatter(y.dtype, values, to + i * along.out, across.out, columns);
      }
    }
  });
}

template <bool Product>
void cumulative(const Call& call) {
  switch (call.in[0].dtype) {
    case DType::f64: return cumulate<double, double, Product>(call);
    case DType::f32:
    case DType::f16:
    case DType::bf16: return cumulate<float, double, Product>(call);
    default: return cumulate<int64_t, std::uint64_t, Product>(call);
  }
}

}  // namespace

void cumulative_sum(const Call& call) { cumulative<false>(call); }
void cumulative_prod(const Call& call) { cumulative<true>(call); }

}  // namespace tritium::TRITIUM_ISA
