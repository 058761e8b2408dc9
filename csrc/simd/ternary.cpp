// quantize_ternary: weights as -1, 0, 1 and the mean of their sizes, packed as they are made; and the same followed by
// dequantize, without the codes in between.
// Sums keep the order that backends/reference/quantized.py defines, so that every kernel gives its bits.
#include "../fault.h"
#include "../integer/formats.h"
#include "../integer/quantize.h"
#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "lanes.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint8_t;

constexpr int64_t kGrain = 1 << 15;  // elements that make it worth waking another thread
constexpr int64_t kBlock = 256;      // elements that are folded by halves; the sums of blocks are added in order
constexpr uint8_t kZero = 1;         // the code of 0: codes are t + 1

// ---- the sum of sizes

// kLanes<double> sizes from x + at on, of a block of Block that was folded to Width.
template <int Block, int Width>
TRITIUM_INLINE Vec<double> folded(const float* x, int at) {
  if constexpr (Width == Block) {
    typename VectorOf<float, kLanes<double>>::type narrow;
    __builtin_memcpy(&narrow, x + at, sizeof(narrow));
    const Vec<double> wide = doubles(narrow);
    return reinterpret_cast<Vec<double>>(reinterpret_cast<Vec<int64_t>>(wide) & INT64_MAX);
  } else {
    return folded<Block, 2 * Width>(x, at) + folded<Block, 2 * Width>(x, at + Width);
  }
}

template <int Block>
double fold_whole(const float* x) {
  return add_lanes(folded<Block, kLanes<double>>(x, 0));
}

// At most kBlock elements, filled up with zeros to a power of two.
template <class T>
double fold_any(const T* x, int64_t n) {
  alignas(64) double part[kBlock];
  int64_t width = 1;
  while (width < n) width *= 2;
  for (int64_t i = 0; i < n; ++i) part[i] = math::abs(static_cast<double>(x[i]));
  for (int64_t i = n; i < width; ++i) part[i] = 0;
  for (int64_t half = width / 2; half > 0; half /= 2) {
    TRITIUM_LOOP
    for (int64_t i = 0; i < half; ++i) part[i] += part[i + half];
  }
  return part[0];
}

double fold(const float* x, int64_t n) {
  switch (n) {
    case 32: return fold_whole<32>(x);
    case 64: return fold_whole<64>(x);
    case 128: return fold_whole<128>(x);
    case 256: return fold_whole<256>(x);
    default: return fold_any(x, n);
  }
}
double fold(const double* x, int64_t n) { return fold_any(x, n); }

template <class T>
double sum_sizes(const T* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i += kBlock) sum += fold(x + i, least(kBlock, n - i));
  return sum;
}

float scale_of(double total, int64_t count) {
  const double mean = total / static_cast<double>(most(count, 1)), least_scale = double{1e-5f};
  return static_cast<float>(mean > least_scale ? mean : least_scale);
}

// ---- codes

// rint(x / scale) within ±1, as codes. A quotient rounds to 0 where it is at most 1/2, as f32 numbers tell: half of a
// scale is a number of its own, and one above it is so much larger that the quotient, rounded to f32, is above 1/2.
void encode(const float* x, float scale, uint8_t* codes, int64_t n) {
  const float half = scale * 0.5f;
  for (int64_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(kZero + (x[i] > half) - (x[i] < -half));
}

// What dequantize makes of the codes.
void restore(const float* x, float scale, float* y, int64_t n) {
  const float half = scale * 0.5f;
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>((x[i] > half) - (x[i] < -half)) * scale;
}

// Four codes to a byte.
void join(const uint8_t* codes, uint8_t* to, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) {
    uint32_t w;
    std::memcpy(&w, codes + 4 * i, sizeof(w));
    to[i] = static_cast<uint8_t>(w | w >> 6 | w >> 12 | w >> 18);
  }
}

// ---- the row

// A matrix and how it is divided: each row into `groups` of `group` columns, the last of which may be shorter.
struct Division {
  RowList w;
  View scale;
  int64_t n, k, group, groups;

  Division(const Call& call, const View& scales)
      : w(call.in[0]), scale(scales), n(call.in[0].shape[0]), k(call.in[0].shape[1]), group(most(k, 1)), groups(1) {
    if (scale.ndim < 2) return;
    group = least(call.attrs->whole[0], group);
    groups = ceil_div(k, group);
  }
  int64_t width(int64_t g) const { return least(group, k - g * group); }
};

// The sum of sizes of every group. In f64 no sum of f32 numbers overflows: it is finite where they all are.
void sum_groups(const Division& d, double* totals) {
  parallel_for(d.n, kGrain / (d.k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(d.w.step == 4 ? 0 : d.k * 4, Need::must);
    for (int64_t r = begin; r < end; ++r) {
      const float* const x = floats_of(d.w, r, space.as<float>());
      for (int64_t g = 0; g < d.groups; ++g) totals[r * d.groups + g] = sum_sizes(x + g * d.group, d.width(g));
    }
  });
}

// Names the first element of a row that is no finite number.
void refuse(const Division& d, int64_t r) {
  const char* const row = d.w.row(r);
  for (int64_t k = 0; k < d.k; ++k) {
    const float x = at<float>(row + k * d.w.step);
    if (x - x == 0) continue;
    return set_fault({Faulty::number, "quantize_ternary", {r, k, x > 0 ? 1 : x < 0 ? -1 : 0}});
  }
}

bool all_finite(const Division& d, const double* totals) {
  for (int64_t i = 0; i < d.n * d.groups; ++i) {
    if (totals[i] - totals[i] == 0) continue;
    refuse(d, i / d.groups);
    return false;
  }
  return true;
}

// Codes of row r, and its scales where they are its own; `common` is that of the whole matrix.
void encode_row(const Division& d, int64_t r, const float* x, const double* totals, float common, uint8_t* codes) {
  for (int64_t g = 0; g < d.groups; ++g) {
    float scale = common;
    if (d.scale.ndim > 0) {
      scale = scale_of(totals[r * d.groups + g], d.width(g));
      char* const to = d.scale.data + r * d.scale.strides[0] + (d.scale.ndim > 1 ? g * d.scale.strides[1] : 0);
      std::memcpy(to, &scale, sizeof(scale));
    }
    encode(x + g * d.group, scale, codes + g * d.group, d.width(g));
  }
}

template <DType F>
void encode_all(const Division& d, const Weights& to, const double* totals, float common) {
  constexpr int64_t rows = tile(F).rows;
  const int64_t width = whole(d.k, 320);  // whole blocks of any format
  parallel_for(ceil_div(d.n, rows), kGrain / (rows * d.k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(rows * width, Need::must), gathered(d.w.step == 4 ? 0 : d.k * 4, Need::must);
    uint8_t* const codes = space.as<uint8_t>();
    for (int64_t first = begin * rows; first < end * rows; first += rows) {
      for (int64_t r = 0; r < rows; ++r) {
        const bool inside = first + r < d.n;
        uint8_t* const row = codes + r * width;
        if (inside) encode_row(d, first + r, floats_of(d.w, first + r, gathered.as<float>()), totals, common, row);
        const int64_t filled = inside ? d.k : 0;
        if (filled < width) std::memset(row + filled, kZero, static_cast<std::size_t>(width - filled));
      }
      if constexpr (F == DType::tern2) {
        join(codes, reinterpret_cast<uint8_t*>(to.data + first * to.row), ceil_div(d.k, 4));
      } else {
        encode_block<F>(to, first, [&](int64_t r, int64_t k) { return codes[(r - first) * width + k] - kZero; });
      }
    }
  });
}

// w f32[N, K] -> t * scale as floats [N, K]. The attributes: columns of a group (0: none), and whether each row has a scale.
void restore_ternary(const Call& call) {
  View scales;  // how many axes the scales would have; they are not stored
  scales.ndim = call.attrs->whole[0] ? 2 : call.attrs->whole[1] ? 1 : 0;
  const Division d(call, scales);
  const Workspace space(d.n * d.groups * 8, Need::must);
  double* const totals = space.as<double>();
  sum_groups(d, totals);
  if (!all_finite(d, totals)) return;
  const float common = scales.ndim ? 0 : scale_of(sum_sizes(totals, d.n), d.n * d.k);
  const RowList out(call.out[0]);
  const bool direct = out.type == DType::f32 && (out.step == 4 || d.k == 1);
  parallel_for(d.n, kGrain / (d.k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace buffer(direct ? 0 : d.k * 4, Need::must), gathered(d.w.step == 4 ? 0 : d.k * 4, Need::must);
    for (int64_t r = begin; r < end; ++r) {
      const float* const x = floats_of(d.w, r, gathered.as<float>());
      float* const y = direct ? reinterpret_cast<float*>(out.row(r)) : buffer.as<float>();
      for (int64_t g = 0; g < d.groups; ++g) {
        const float scale = scales.ndim ? scale_of(totals[r * d.groups + g], d.width(g)) : common;
        restore(x + g * d.group, scale, y + g * d.group, d.width(g));
      }
      if (!direct) store_floats(out, r, y);
    }
  });
}

// w f32[N, K] -> t[N, K] of a ternary format, scale f32 of (), (N,) or (N, G).
void quantize_ternary(const Call& call) {
  const Division d(call, call.out[1]);
  const Workspace space(d.n * d.groups * 8, Need::must);
  double* const totals = space.as<double>();
  sum_groups(d, totals);
  if (!all_finite(d, totals)) return;
  float common = 0;
  if (d.scale.ndim == 0) {
    common = scale_of(sum_sizes(totals, d.n), d.n * d.k);
    std::memcpy(d.scale.data, &common, sizeof(common));
  }
  const Weights to(call.out[0]);
  switch (to.format) {
    case DType::tern2: return encode_all<DType::tern2>(d, to, totals, common);
    case DType::tern5: return encode_all<DType::tern5>(d, to, totals, common);
    case DType::tern2_r64: return encode_all<DType::tern2_r64>(d, to, totals, common);
    case DType::tern5_r80: return encode_all<DType::tern5_r80>(d, to, totals, common);
    default: return encode_all<DType::tern2_r16>(d, to, totals, common);
  }
}

constexpr Entry kEntries[] = {
    {"quantize_ternary", quantize_ternary, bit(DType::f32), "group", 0, true},
    {"restore_ternary", restore_ternary, bit(DType::f32), "group,rows", 0, true},
};

}  // namespace

Table ternary_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
