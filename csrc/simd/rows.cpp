// softmax, log_softmax, layer_norm and rms_norm: one row at a time, looked at again while it is in the cache.
#include "../early.h"
#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "axes.h"
#include "gather.h"
#include "math.h"
#include "moments.h"
#include "rows.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kPiece = 1024;        // elements of a row between two looks at them
constexpr int64_t kLong = int64_t{1} << 20;  // elements between two looks whether to end early
constexpr int64_t kGrain = 8192;        // elements that make it worth waking another thread
constexpr int64_t kNeighbours = 64;     // rows that are gathered together when they lie side by side

// The rows of a call: `row` runs along one, `keep` over all of them.
struct Rows {
  Axis row{1, 0, 0}, keep[kMaxDims + 1];
  int keeps = 0;
  int64_t count = 1;

  Rows(const View& x, const View& y, int axis) {
    for (int d = 0; d < x.ndim; ++d) {
      const Axis here{x.shape[d], x.strides[d], y.strides[d]};
      if (d == axis) {
        row = here;
      } else {
        count *= here.n;
        if (here.n != 1) insert(keep, keeps, here, true);
      }
    }
    merge_neighbours(keep, keeps);
    if (keeps == 0) keep[keeps++] = {1, 0, 0};
  }
};

// Runs kernel(x, y, n) on every row as contiguous elements of type C, where x may be y; rows that lie side by side
// become columns(x, n), which works in place on n steps of kNeighbours rows.
template <class C, class F, class G>
void each_row(const Call& call, int axis, const F& kernel, const G& columns) {
  const View &x = call.in[0], &y = *call.out;
  const Rows rows(x, y, axis);
  const int64_t n = rows.row.n, item = item_size(x.dtype);
  if (n == 0 || rows.count == 0) return;
  const bool read = x.dtype == kDTypeOf<C> && (rows.row.in == item || n == 1);
  const bool write = x.dtype == kDTypeOf<C> && (rows.row.out == item || n == 1);
  const Gather gather = gather_of<C>(x.dtype);
  const Axis& last = rows.keep[rows.keeps - 1];
  const bool side_by_side = !read && magnitude(last.in) < magnitude(rows.row.in) && last.n >= kNeighbours / 8;
  const int64_t together = side_by_side ? kNeighbours : 1;
  const int64_t strips = (last.n + together - 1) / together, outer = rows.count / last.n;
  parallel_for(outer * strips, kGrain / (n * together) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(read && write ? 0 : n * together * static_cast<int64_t>(sizeof(C)), Need::must);
    C* const buffer = space.as<C>();
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = u % strips * together, lines = last.n - first < together ? last.n - first : together;
      const char* from = x.data + offset(rows.keep, rows.keeps - 1, u / strips, &Axis::in) + first * last.in;
      char* to = y.data + offset(rows.keep, rows.keeps - 1, u / strips, &Axis::out) + first * last.out;
      if (!side_by_side) {
        C* result = write ? reinterpret_cast<C*>(to) : buffer;
        if (!read) gather(from, rows.row.in, result, n);
        kernel(read ? reinterpret_cast<const C*>(from) : result, result, n);
        if (!write) scatter(y.dtype, result, to, rows.row.out, n);
        continue;
      }
      for (int64_t i = 0; i < n; ++i) {
        C* step = buffer + i * kNeighbours;
        gather(from + i * rows.row.in, last.in, step, lines);
        for (int64_t l = lines; l < kNeighbours; ++l) step[l] = 0;
      }
      columns(buffer, n);
      for (int64_t i = 0; i < n; ++i) {
        scatter(y.dtype, buffer + i * kNeighbours, to + i * rows.row.out, last.out, lines);
      }
    }
  });
}

// A NaN passed over here comes back with the sum of the exponentials.
template <class C>
C largest(const C* x, int64_t n) {
  bool doubt;
  return extreme_of<true, false>(x, n, doubt);
}

// e^x for x <= 0, cheaper than for all x: the power of two fits one factor, and what would be denormal is 0.
TRITIUM_INLINE float decay(float x) {
  constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float y = x < -87.0f ? -87.0f : x;
  const float t = math::fma(y, 1.44269504f, round), n = t - round;
  const float r = math::fma(n, 2.12194440e-4f, math::fma(n, -0.693359375f, y));
  const float p = math::horner(r, 0.5000000096f, 0.1666651771f, 0.04166620229f, 0.008369024851f, 0.001395072532f);
  const float power = math::from_bits((math::bits(t) << 23) + 0x3f800000u);
  return x < -87.0f ? 0.0f : math::fma(math::fma(r * r, p, r), power, power);
}
TRITIUM_INLINE double decay(double x) { return math::exp(x); }

}  // namespace

template <class C>
void softmax_row(const C* x, C* y, int64_t n) {
  const C top = largest(x, n);
  double total = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    if (ends_early_at(i, kLong)) return;
    const int64_t m = n - i < kPiece ? n - i : kPiece;
    const C* from = x + i;
    C* to = y + i;
    TRITIUM_LOOP
    for (int64_t j = 0; j < m; ++j) to[j] = decay(from[j] - top);
    total += sum_of(to, m);
  }
  const C scale = static_cast<C>(1 / total);
  for (int64_t i = 0; i < n; ++i) y[i] *= scale;
}

template <class C>
void log_softmax_row(const C* x, C* y, int64_t n) {
  alignas(64) C piece[kPiece];
  const C top = largest(x, n);
  double total = 0;
  for (int64_t i = 0; i < n; i += kPiece) {
    if (ends_early_at(i, kLong)) return;
    const int64_t m = n - i < kPiece ? n - i : kPiece;
    for (int64_t j = 0; j < m; ++j) piece[j] = decay(x[i + j] - top);
    total += sum_of(piece, m);
  }
  const C shift = static_cast<C>(math::log(total));
  TRITIUM_LOOP
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - top) - shift;
}

namespace {

// kNeighbours softmaxes side by side; sums of a few steps in C, of all in f64.
template <class C, bool Log>
void softmax_columns(C* x, int64_t n) {
  constexpr int64_t W = kNeighbours, kSteps = 64;
  alignas(64) C top[W], some[W], scale[W];
  alignas(64) double total[W] = {};
  for (int64_t j = 0; j < W; ++j) top[j] = x[j];
  for (int64_t i = 1; i < n; ++i) {
    for (int64_t j = 0; j < W; ++j) top[j] = top[j] > x[i * W + j] ? top[j] : x[i * W + j];
  }
  for (int64_t i0 = 0; i0 < n; i0 += kSteps) {
    for (int64_t j = 0; j < W; ++j) some[j] = 0;
    for (int64_t i = i0; i < (n < i0 + kSteps ? n : i0 + kSteps); ++i) {
      for (int64_t j = 0; j < W; ++j) {
        const C d = x[i * W + j] - top[j], e = decay(d);
        x[i * W + j] = Log ? d : e;
        some[j] += e;
      }
    }
    for (int64_t j = 0; j < W; ++j) total[j] += static_cast<double>(some[j]);
  }
  for (int64_t j = 0; j < W; ++j) scale[j] = static_cast<C>(Log ? math::log(total[j]) : 1 / total[j]);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < W; ++j) x[i * W + j] = Log ? x[i * W + j] - scale[j] : x[i * W + j] * scale[j];
  }
}

// Rows side by side, one by one.
template <class C, class F>
auto one_by_one(const F& kernel) {
  return [&kernel](C* x, int64_t n) {
    const Workspace space(n * static_cast<int64_t>(sizeof(C)), Need::must);
    C* const row = space.as<C>();
    for (int64_t l = 0; l < kNeighbours; ++l) {
      for (int64_t i = 0; i < n; ++i) row[i] = x[i * kNeighbours + l];
      kernel(row, row, n);
      for (int64_t i = 0; i < n; ++i) x[i * kNeighbours + l] = row[i];
    }
  };
}

}  // namespace

// The rest of the mean is subtracted apart: x - centre is exact near the centre.
template <class C>
void layer_norm_row(const C* x, C* y, int64_t n, const C* weight, const C* bias, double eps) {
  const Moments m = moments(x, n);
  const C centre = static_cast<C>(m.centre), rest = static_cast<C>(m.rest);
  const C scale = static_cast<C>(1 / __builtin_sqrt(m.squares / m.n + eps));
  if (weight && bias) {
    TRITIUM_LOOP
    for (int64_t i = 0; i < n; ++i) y[i] = ((x[i] - centre) - rest) * scale * weight[i] + bias[i];
  } else if (weight) {
    TRITIUM_LOOP
    for (int64_t i = 0; i < n; ++i) y[i] = ((x[i] - centre) - rest) * scale * weight[i];
  } else {
    TRITIUM_LOOP
    for (int64_t i = 0; i < n; ++i) y[i] = ((x[i] - centre) - rest) * scale;
    for (int64_t i = 0; bias && i < n; ++i) y[i] += bias[i];
  }
}

// Squares of floats are exact in f64, and their sum rounds the scale to the same float in any order: every device gives
// the same bits.
template <class C>
void rms_norm_row(const C* x, C* y, int64_t n, const C* weight, double eps) {
  using Some = typename VectorOf<C, kLanes<double>>::type;
  const double squares = sum_lanes<double>(
      n,
      [x](int64_t i) {
        Some narrow;
        __builtin_memcpy(&narrow, x + i, sizeof(narrow));
        const Vec<double> wide = doubles(narrow);
        return wide * wide;
      },
      [x](int64_t i) { return static_cast<double>(x[i]) * static_cast<double>(x[i]); });
  const C scale = static_cast<C>(1 / __builtin_sqrt(squares / static_cast<double>(n) + eps));
  if (weight) {
    TRITIUM_LOOP
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
  } else {
    TRITIUM_LOOP
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale;
  }
}

template void softmax_row(const float*, float*, int64_t);
template void softmax_row(const double*, double*, int64_t);
template void log_softmax_row(const float*, float*, int64_t);
template void log_softmax_row(const double*, double*, int64_t);
template void layer_norm_row(const float*, float*, int64_t, const float*, const float*, double);
template void layer_norm_row(const double*, double*, int64_t, const double*, const double*, double);
template void rms_norm_row(const float*, float*, int64_t, const float*, double);
template void rms_norm_row(const double*, double*, int64_t, const double*, double);

namespace {

int axis_of(const Call& call) {
  const int ndim = call.in[0].ndim;
  for (int d = 0; d < ndim - 1; ++d) {
    if (call.attrs->axes >> d & 1) return d;
  }
  return ndim - 1;
}

// A weight or bias as contiguous elements of type C, copied only when it is not.
template <class C>
const C* operand(const Call& call, int index, C* buffer) {
  if (index >= call.nin || call.in[index].data == nullptr) return nullptr;
  const View& v = call.in[index];
  const int64_t n = v.ndim > 0 ? v.shape[v.ndim - 1] : 1, stride = v.ndim > 0 ? v.strides[v.ndim - 1] : 0;
  const int64_t whole = call.in[0].shape[call.in[0].ndim - 1];
  const bool dense = stride == static_cast<int64_t>(sizeof(C)) && n == whole;
  if (v.dtype == kDTypeOf<C> && dense) return reinterpret_cast<const C*>(v.data);
  gather_of<C>(v.dtype)(v.data, n == 1 ? 0 : stride, buffer, whole);
  return buffer;
}

template <class C>
void norm_as(const Call& call, bool centred) {
  const View& x = call.in[0];
  const int64_t n = x.shape[x.ndim - 1];
  if (x.size() == 0) return;
  const Workspace space(2 * n * static_cast<int64_t>(sizeof(C)), Need::must);
  const C* weight = operand(call, 1, space.as<C>());
  const C* bias = centred ? operand(call, 2, space.as<C>() + n) : nullptr;
  const double eps = call.attrs->real[0];
  const auto run = [&](const auto& kernel) { each_row<C>(call, x.ndim - 1, kernel, one_by_one<C>(kernel)); };
  if (centred) {
    run([=](const C* from, C* to, int64_t m) { layer_norm_row(from, to, m, weight, bias, eps); });
  } else {
    run([=](const C* from, C* to, int64_t m) { rms_norm_row(from, to, m, weight, eps); });
  }
}

template <class C>
void softmax_as(const Call& call, bool log) {
  const int axis = axis_of(call);
  log ? each_row<C>(call, axis, log_softmax_row<C>, softmax_columns<C, true>)
      : each_row<C>(call, axis, softmax_row<C>, softmax_columns<C, false>);
}

void softmax(const Call& call) {
  call.in[0].dtype == DType::f64 ? softmax_as<double>(call, false) : softmax_as<float>(call, false);
}

void log_softmax(const Call& call) {
  call.in[0].dtype == DType::f64 ? softmax_as<double>(call, true) : softmax_as<float>(call, true);
}

void layer_norm(const Call& call) {
  call.in[0].dtype == DType::f64 ? norm_as<double>(call, true) : norm_as<float>(call, true);
}

void rms_norm(const Call& call) {
  call.in[0].dtype == DType::f64 ? norm_as<double>(call, false) : norm_as<float>(call, false);
}

constexpr std::uint32_t kFloats = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32) | bit(DType::f64);

constexpr Entry kEntries[] = {
    {"softmax", softmax, kFloats},
    {"log_softmax", log_softmax, kFloats},
    {"layer_norm", layer_norm, kFloats, "eps"},
    {"rms_norm", rms_norm, kFloats, "eps"},
};

}  // namespace

Table rows_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
