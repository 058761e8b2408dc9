// quantize_int8 and quantize_int4: weights as small integers with a scale, and a zero point where they are asymmetric;
// quantize: any tensor with scales and zero points that are given. And each of them followed by dequantize, without the
// integers in between.
// Every step is one f32 operation, as in backends/reference/quantized.py; spans and zero points are f64.
#include "../integer/quantize.h"

#include <cmath>
#include <limits>

#include "../fault.h"
#include "../threads.h"
#include "../view.h"
#include "../workspace.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint32_t;
using std::uint8_t;

constexpr int64_t kGrain = 1 << 15;  // elements that make it worth waking another thread
constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;

// ---- scales

// The largest number and the smallest, as bits: 0 where there is none above (below) zero. Bits of numbers of one sign
// order like their sizes, NaN and infinity above all.
struct Extremes {
  uint32_t high = 0, low = 0;

  bool finite() const { return high < kInfinity && low < (kSign | kInfinity); }
  double top() const { return math::from_bits(high); }
  double bottom() const { return low < kSign ? 0.0 : double{math::from_bits(low)}; }
  void join(const Extremes& other) {
    high = high > other.high ? high : other.high;
    low = low > other.low ? low : other.low;
  }
};

Extremes extremes_of(const float* x, int64_t n) {
  int32_t high = 0;  // negative numbers are negative integers
  uint32_t low = 0;  // and the largest unsigned ones
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t b = math::bits(x[i]);
    const auto s = static_cast<int32_t>(b);
    high = high > s ? high : s;
    low = low > b ? low : b;
  }
  return {static_cast<uint32_t>(high), low};
}

// The width of a level and the code of zero: w ≈ (code - zero) * scale.
struct Step {
  float scale, zero;
};

// The width of a level; 1 where there is nothing to divide, and never too small to divide by.
float width_of(double span, int levels) {
  const auto width = static_cast<float>(span / levels);
  constexpr float tiny = std::numeric_limits<float>::min();
  return span > 0 ? (width > tiny ? width : tiny) : 1.0f;
}

// What the codes of a call range over.
struct Codes {
  int bits;
  bool symmetric;
  int low, high;

  Codes(int b, bool s) : bits(b), symmetric(s), low(b == 4 ? -8 : s ? -127 : -128), high(b == 4 ? 7 : 127) {}

  Step step(const Extremes& e) const {
    const double top = e.top(), bottom = e.bottom();
    if (!symmetric) {
      const float scale = width_of(top - bottom, high - low);
      const double zero = std::nearbyint(low - bottom / double{scale});
      return {scale, static_cast<float>(zero < low ? low : zero > high ? high : zero)};
    }
    if (top == 0 && bottom == 0) return {1.0f, 0.0f};
    const float above = width_of(top, high), below = width_of(-bottom, -low);
    if (top == 0 || bottom == 0) return {top == 0 ? below : above, 0.0f};
    return {above > below ? above : below, 0.0f};
  }
};

// ---- codes

// How quotients become codes: held to a range as integers, which takes fewer instructions than floats.
struct Rounding {
  int32_t low, high, zero;

  Rounding(const Step& s, const Codes& codes)
      : low(codes.low), high(codes.high),
        zero(static_cast<int32_t>(s.zero) - static_cast<int32_t>(math::bits(math::kRound32))) {}

  // clamp(rint(quotient) + zero), half to even. Below 2^22, adding 1.5 * 2^23 leaves the integer in the low bits.
  TRITIUM_INLINE int32_t code(float quotient) const {
    const int32_t code = static_cast<int32_t>(math::bits(quotient + math::kRound32)) + zero;
    const int32_t held = code > low ? code : low;
    return held < high ? held : high;
  }
};

// |x / scale| is at most 256: the scale was made of these numbers.
void encode(const float* x, const Step& s, const Codes& codes, int8_t* q, int64_t n) {
  const Rounding rounding(s, codes);
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<int8_t>(rounding.code(x[i] / s.scale));
}

// What dequantize makes of the codes.
void restore(const float* x, const Step& s, const Codes& codes, float* y, int64_t n) {
  const Rounding rounding(s, codes);
  for (int64_t i = 0; i < n; ++i) y[i] = (static_cast<float>(rounding.code(x[i] / s.scale)) - s.zero) * s.scale;
}

// Two codes to a byte; the last byte of an odd row holds one and 0.
void join(const int8_t* codes, int64_t n, uint8_t* to) {
  for (int64_t i = 0; i < n / 2; ++i) to[i] = static_cast<uint8_t>((codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4);
  if (n % 2) to[n / 2] = static_cast<uint8_t>(codes[n - 1] & 15);
}

// ---- the rows

// A matrix and what shares a scale: all of it, each row, or `group` columns of a row (the last of which may be fewer).
struct Division {
  RowList w;
  int64_t n, k, group, groups;
  bool whole;  // one scale

  Division(const View& x, int64_t columns, bool rows)
      : w(x), n(x.shape[0]), k(x.shape[1]), group(most(k, 1)), groups(1), whole(!columns && !rows) {
    if (!columns) return;
    group = least(columns, group);
    groups = ceil_div(k, group);
  }
  int64_t width(int64_t g) const { return least(group, k - g * group); }
  const float* row(int64_t r, const Workspace& gathered) const { return floats_of(w, r, gathered.as<float>()); }
  int64_t gathered_bytes() const { return w.step == 4 ? 0 : k * 4; }
};

// Names the first element of a row that is no finite number.
void refuse(const Division& d, int64_t r, const char* name) {
  for (int64_t k = 0; k < d.k; ++k) {
    const float x = at<float>(d.w.row(r) + k * d.w.step);
    if (x - x == 0) continue;
    return set_fault({Faulty::number, name, {r, k, x > 0 ? 1 : x < 0 ? -1 : 0}});
  }
}

// The extremes of every group. False, and a fault, where a number is not finite.
bool find_extremes(const Division& d, const char* name, Extremes* out) {
  parallel_for(d.n, kGrain / (d.k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace gathered(d.gathered_bytes(), Need::must);
    for (int64_t r = begin; r < end; ++r) {
      const float* const x = d.row(r, gathered);
      for (int64_t g = 0; g < d.groups; ++g) out[r * d.groups + g] = extremes_of(x + g * d.group, d.width(g));
    }
  });
  for (int64_t i = 0; i < d.n * d.groups; ++i) {
    if (out[i].finite()) continue;
    refuse(d, i / d.groups, name);
    return false;
  }
  return true;
}

Step common_step(const Division& d, const Codes& codes, const Extremes* e) {
  Extremes all;
  for (int64_t r = 0; r < d.n; ++r) all.join(e[r]);
  return codes.step(all);
}

// Calls make(row, x, step of each group…) as make(r, g, x, step) for every group of every row, then done(r).
template <class Make, class Done>
void for_groups(const Division& d, const Codes& codes, const Extremes* e, const Step& common, int64_t begin, int64_t end,
                const Make& make, const Done& done) {
  const Workspace gathered(d.gathered_bytes(), Need::must);
  for (int64_t r = begin; r < end; ++r) {
    const float* const x = d.row(r, gathered);
    for (int64_t g = 0; g < d.groups; ++g) {
      make(r, g, x + g * d.group, d.whole ? common : codes.step(e[r * d.groups + g]));
    }
    done(r);
  }
}

// One number of the scales or zero points: of all, of a row, or of a group.
char* place(const View& v, int64_t r, int64_t g) {
  return v.data + (v.ndim > 0 ? r * v.strides[0] : 0) + (v.ndim > 1 ? g * v.strides[1] : 0);
}

void put_step(const View& scales, const View* zeros, int64_t r, int64_t g, const Step& s) {
  std::memcpy(place(scales, r, g), &s.scale, sizeof(s.scale));
  if (!zeros) return;
  const auto zero = static_cast<int32_t>(s.zero);
  std::memcpy(place(*zeros, r, g), &zero, sizeof(zero));
}

// w f32[N, K] -> codes[N, K], scale f32 of (), (N,) or (N, G), and zero i32 likewise where there is one.
void quantize(const Call& call, const char* name, const Codes& codes, const View* zeros) {
  const View& scales = call.out[1];
  const Division d(call.in[0], scales.ndim > 1 ? call.attrs->whole[0] : 0, scales.ndim > 0);
  const Workspace space(most(d.n * d.groups, 1) * static_cast<int64_t>(sizeof(Extremes)), Need::must);
  auto* const e = space.as<Extremes>();
  if (!find_extremes(d, name, e)) return;
  const Step common = d.whole ? common_step(d, codes, e) : Step{1, 0};
  if (d.whole) put_step(scales, zeros, 0, 0, common);
  const RowList out(call.out[0]);
  const bool packed = call.out[0].dtype == DType::i4, direct = !packed && (out.step == 1 || d.k == 1);
  const int64_t packed_row = packed ? call.out[0].strides[0] : 0;
  parallel_for(d.n, kGrain / (d.k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace buffer(direct ? 0 : d.k, Need::must);
    const auto codes_at = [&](int64_t r) {
      return direct ? reinterpret_cast<int8_t*>(out.row(r)) : buffer.as<int8_t>();
    };
    for_groups(d, codes, e, common, begin, end,
        [&](int64_t r, int64_t g, const float* x, const Step& s) {
          if (!d.whole) put_step(scales, zeros, r, g, s);
          encode(x, s, codes, codes_at(r) + g * d.group, d.width(g));
        },
        [&](int64_t r) {
          if (packed) join(codes_at(r), d.k, reinterpret_cast<uint8_t*>(call.out[0].data + r * packed_row));
          if (!packed && !direct) scatter_as<int8_t>(codes_at(r), out.row(r), out.step, d.k);
        });
  });
}

void quantize_int8(const Call& call) {
  quantize(call, "quantize_int8", Codes(8, call.attrs->whole[1] != 0), &call.out[2]);
}

void quantize_int4(const Call& call) {
  const bool symmetric = call.attrs->whole[1] != 0;
  quantize(call, "quantize_int4", Codes(4, symmetric), symmetric ? nullptr : &call.out[2]);
}

// w f32[N, K] -> what dequantize makes of its codes, floats [N, K]. The attributes: bits of a code, columns of a group (0:
// none), whether each row has a scale, and whether the codes are symmetric.
void restore_quantized(const Call& call) {
  const int64_t* const a = call.attrs->whole;
  const Codes codes(static_cast<int>(a[0]), a[3] != 0);
  const Division d(call.in[0], a[1], a[2] != 0);
  const Workspace space(most(d.n * d.groups, 1) * static_cast<int64_t>(sizeof(Extremes)), Need::must);
  auto* const e = space.as<Extremes>();
  if (!find_extremes(d, codes.bits == 4 ? "quantize_int4" : "quantize_int8", e)) return;
  const Step common = d.whole ? common_step(d, codes, e) : Step{1, 0};
  const RowList out(call.out[0]);
  const bool direct = out.type == DType::f32 && (out.step == 4 || d.k == 1);
  parallel_for(d.n, kGrain / (d.k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace buffer(direct ? 0 : d.k * 4, Need::must);
    const auto floats_at = [&](int64_t r) { return direct ? reinterpret_cast<float*>(out.row(r)) : buffer.as<float>(); };
    for_groups(d, codes, e, common, begin, end,
        [&](int64_t r, int64_t g, const float* x, const Step& s) {
          restore(x, s, codes, floats_at(r) + g * d.group, d.width(g));
        },
        [&](int64_t r) {
          if (!direct) store_floats(out, r, floats_at(r));
        });
  });
}

// ---- with scales that are given

constexpr int kAxes = 5;       // at most, so that a fault has room for a place
constexpr float kFar = 4096;  // beyond every code, and near enough to be rounded by adding

// Scales or zero points: one number, one for each row along the last axis, or one for each group of its columns.
struct PerGroup {
  RowList list;
  bool single, grouped;

  // of x.ndim axes: each group; of one axis less: each row; of none: all
  PerGroup(View v, int axes) : list(of_rows(v, axes)), single(v.ndim == 0), grouped(v.ndim == axes) {}
  static RowList of_rows(View v, int axes) {
    if (v.ndim == 0 || v.ndim == axes) return RowList(v);
    v.shape[v.ndim] = 1;
    v.strides[v.ndim++] = 0;
    return RowList(v);
  }
  template <class T>
  T at_group(int64_t r, int64_t g) const {
    return at<T>(single ? list.data : list.row(r) + (grouped ? g * list.step : 0));
  }
};

// The elements of a tensor, row by row, and how its rows are divided.
struct Rows {
  RowList x;
  int axes;
  int64_t shape[kAxes];
  int64_t group, groups;

  Rows(const View& v, int64_t columns) : x(v), axes(v.ndim), group(most(x.length, 1)), groups(1) {
    for (int d = 0; d < axes; ++d) shape[d] = v.shape[d];
    if (!columns) return;
    group = least(columns, group);
    groups = ceil_div(x.length, group);
  }
  int64_t width(int64_t g) const { return least(group, x.length - g * group); }
  int64_t gathered_bytes() const { return x.step == 4 ? 0 : x.length * 4; }
};

// Names the first element that is no finite number; false where there is one.
bool check_elements(const Rows& rows) {
  int64_t bad = -1;
  const Workspace space(rows.gathered_bytes(), Need::must);
  for (int64_t r = 0; r < rows.x.count && bad < 0; ++r) {
    const float* const x = floats_of(rows.x, r, space.as<float>());
    if (largest_bits(x, rows.x.length) >= kInfinity) bad = r;
  }
  if (bad < 0) return true;
  const float* const x = floats_of(rows.x, bad, space.as<float>());
  int64_t k = 0;
  while (x[k] - x[k] == 0) ++k;
  Fault fault{Faulty::element, "quantize", {rows.axes, 0, 0, 0, 0, 0, x[k] > 0 ? 1 : x[k] < 0 ? -1 : 0}};
  fault.values[rows.axes] = k;
  for (int d = rows.axes - 2; d >= 0; --d) {
    fault.values[d + 1] = bad % rows.shape[d];
    bad /= rows.shape[d];
  }
  set_fault(fault);
  return false;
}

// Scales are finite and above 0, zero points are codes: a fault and false where one is not.
bool check_steps(const Rows& rows, const PerGroup& scales, const PerGroup* zeros, const Codes& codes) {
  const int64_t count = scales.single && (!zeros || zeros->single) ? least(rows.x.count, 1) : rows.x.count;
  const int64_t groups = scales.grouped ? rows.groups : 1;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const auto scale = scales.at_group<float>(r, g);
      if (!(scale > 0 && scale - scale == 0)) {
        set_fault({Faulty::scale, "quantize", {r, g, math::bits(scale)}});
        return false;
      }
      const int32_t zero = zeros ? zeros->at_group<int32_t>(r, g) : 0;
      if (zero < codes.low || zero > codes.high) {
        set_fault({Faulty::zero, "quantize", {r, g, zero, codes.low, codes.high}});
        return false;
      }
    }
  }
  return true;
}

// A quotient of any size, as near as codes can tell.
TRITIUM_INLINE float near_quotient(float x, float scale) {
  const float quotient = x / scale, above = quotient > -kFar ? quotient : -kFar;
  return above < kFar ? above : kFar;
}

Step given_step(const PerGroup& scales, const PerGroup* zeros, int64_t r, int64_t g) {
  return {scales.at_group<float>(r, g), zeros ? static_cast<float>(zeros->at_group<int32_t>(r, g)) : 0.0f};
}

// x f32[..., K], scale f32 and zero i32 of (), (...) or (..., G) -> codes of x's shape.
void quantize_given(const Call& call) {
  const View &x = call.in[0], &to = call.out[0];
  const bool packed = to.dtype == DType::i4, has_zeros = call.nin > 2 && call.in[2].data;
  const Codes codes(packed ? 4 : 8, false);
  const Rows rows(x, call.attrs->whole[0]);
  const PerGroup scales(call.in[1], x.ndim), zero_points(has_zeros ? call.in[2] : call.in[1], x.ndim);
  const PerGroup* const zeros = has_zeros ? &zero_points : nullptr;
  if (!rows.x.count || !rows.x.length) return;
  if (!check_steps(rows, scales, zeros, codes) || !check_elements(rows)) return;
  const RowList out(to);
  const int64_t k = rows.x.length;
  const bool direct = !packed && (out.step == 1 || k == 1);
  parallel_for(rows.x.count, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace gathered(rows.gathered_bytes(), Need::must), buffer(direct ? 0 : k, Need::must);
    for (int64_t r = begin; r < end; ++r) {
      const float* const from = floats_of(rows.x, r, gathered.as<float>());
      int8_t* const q = direct ? reinterpret_cast<int8_t*>(out.row(r)) : buffer.as<int8_t>();
      for (int64_t g = 0; g < rows.groups; ++g) {
        const Step s = given_step(scales, zeros, r, g);
        const int64_t first = g * rows.group, width = rows.width(g);
        const Rounding rounding(s, codes);
        for (int64_t i = first; i < first + width; ++i) {
          q[i] = static_cast<int8_t>(rounding.code(near_quotient(from[i], s.scale)));
        }
      }
      if (packed) join(q, k, reinterpret_cast<uint8_t*>(to.data + r * to.strides[0]));
      if (!packed && !direct) scatter_as<int8_t>(q, out.row(r), out.step, k);
    }
  });
}

// x f32[..., K] and the operands of quantize and of dequantize -> what dequantize makes of the codes. The attributes: bits
// of a code, columns of a group, and where among the inputs the scale and the zero point of the one and of the other are, 4
// bits each (0: not given).
void restore_given(const Call& call) {
  const View& x = call.in[0];
  const int64_t where = call.attrs->whole[2];
  const auto operand = [&](int i) { return PerGroup(call.in[where >> 4 * i & 15], x.ndim); };
  const PerGroup lists[4] = {operand(0), operand(1), operand(2), operand(3)};
  const auto given = [&](int i) { return where >> 4 * i & 15 ? &lists[i] : nullptr; };
  const Codes codes(static_cast<int>(call.attrs->whole[0]), false);
  const Rows rows(x, call.attrs->whole[1]);
  if (!rows.x.count || !rows.x.length) return;
  if (!check_steps(rows, lists[0], given(1), codes) || !check_elements(rows)) return;
  const RowList out(call.out[0]);
  const int64_t k = rows.x.length;
  const bool direct = out.type == DType::f32 && (out.step == 4 || k == 1);
  parallel_for(rows.x.count, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace gathered(rows.gathered_bytes(), Need::must), buffer(direct ? 0 : k * 4, Need::must);
    for (int64_t r = begin; r < end; ++r) {
      const float* const from = floats_of(rows.x, r, gathered.as<float>());
      float* const y = direct ? reinterpret_cast<float*>(out.row(r)) : buffer.as<float>();
      for (int64_t g = 0; g < rows.groups; ++g) {
        const Step s = given_step(lists[0], given(1), r, g), back = given_step(lists[2], given(3), r, g);
        const int64_t first = g * rows.group, width = rows.width(g);
        const Rounding rounding(s, codes);
        for (int64_t i = first; i < first + width; ++i) {
          y[i] = (static_cast<float>(rounding.code(near_quotient(from[i], s.scale))) - back.zero) * back.scale;
        }
      }
      if (!direct) store_floats(out, r, y);
    }
  });
}

constexpr Entry kEntries[] = {
    {"quantize", quantize_given, bit(DType::f32), "group", 0, true},
    {"restore_given", restore_given, bit(DType::f32), "bits,group,operands", 0, true},
    {"quantize_int8", quantize_int8, bit(DType::f32), "group,symmetric", 0, true},
    {"quantize_int4", quantize_int4, bit(DType::f32), "group,symmetric", 0, true},
    {"restore_quantized", restore_quantized, bit(DType::f32), "bits,group,rows,symmetric", 0, true},
};

}  // namespace

Table quantize_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
