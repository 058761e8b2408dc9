// Products of int8 activations with integer weights of every format, activation quantisation and repacking, written
// plainly: a weight row becomes numbers, then a loop multiplies and adds. The kernels of integer/ give the same bits.
#include "../integer/entries.h"
#include "../integer/formats.h"
#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "decode.h"
#include "rows.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint32_t;
using std::uint8_t;

constexpr int64_t kGrain = 1 << 16;        // multiplications or elements that make it worth waking another thread
constexpr int64_t kDecoded = 128 << 10;    // bytes of decoded weights at a time: they stay in L2
constexpr int64_t kRowsAtOnce = 80;        // the most rows

// 16-bit operands: every instruction set here multiplies and adds them in pairs.
int32_t dot(const int16_t* a, const int16_t* b, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += int32_t{a[i]} * int32_t{b[i]};
  return sum;
}

// The results of one token for a few decoded rows.
void multiply_token(const Product& p, const int16_t* rows, int64_t first, int64_t count, int64_t t, const int16_t* q,
                    const RowScales& scales) {
  alignas(64) int32_t sums[kRowsAtOnce];
  alignas(64) float total[kRowsAtOnce];
  for (int64_t r = 0; r < count; ++r) {
    const int16_t* const row = rows + r * p.k;
    if (!p.grouped) {
      sums[r] = dot(row, q, p.k);
      continue;
    }
    const char* const scale = p.scale + (first + r) * p.scale_row;
    float block = total[r] = 0;
    for (int64_t g = 0; g < p.groups; ++g) {
      const int64_t k = g * p.group, place = g % p.block_groups();
      float by;
      gather_floats(p.scale_type, scale + g * p.scale_group, 0, &by, 1);
      float part = static_cast<float>(dot(row + k, q + k, least(p.group, p.k - k))) * by;
      if (p.by_group) part = part * p.a.scales[t * p.groups + g];
      block = place == 0 ? 0.0f + part : block + part;
      if (place + 1 < p.block_groups() && g + 1 < p.groups) continue;
      add_block(total + r, &block, 1, g < p.block_groups());
    }
  }
  p.grouped ? put_grouped(p, t, first, count, scales, total) : put_sums(p, t, first, count, scales, sums);
}

void run_plain(const Product& p) {
  const int64_t at_once = most(1, least(kRowsAtOnce, kDecoded / (2 * p.k)));
  const Workspace wide(p.m * p.k * 2, Need::must);
  int16_t* const q = wide.as<int16_t>();
  for (int64_t t = 0; t < p.m; ++t) {
    const int8_t* const from = p.a.at(t, 0);
    for (int64_t k = 0; k < p.k; ++k) q[t * p.k + k] = from[k];
  }
  const Weights w(*p.weights);
  const int64_t work = at_once * (p.m + 4) * p.k;
  parallel_for(ceil_div(p.n, at_once), kGrain / work + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(at_once * p.k * 2, Need::must);
    int16_t* const rows = space.as<int16_t>();
    for (int64_t first = begin * at_once; first < least(end * at_once, p.n); first += at_once) {
      const int64_t count = least(at_once, p.n - first);
      for (int64_t r = 0; r < count; ++r) decode_row(w, first + r, rows + r * p.k);
      RowScales scales;
      load_scales(p, first, count, scales);
      for (int64_t t = 0; t < p.m; ++t) multiply_token(p, rows, first, count, t, q + t * p.k, scales);
    }
  });
}

Plan plan(const Product&, int64_t) { return {{}, run_plain}; }

constexpr int64_t kLanes = 64;  // sums of a product of floats: the same on every instruction set

// The sum of a[i] * b[i]: kLanes sums, added by halves.
float dot(const float* a, const float* b, int64_t n) {
  alignas(64) float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] = sums[j] + a[i + j] * b[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) sums[j] = sums[j] + a[i + j] * b[i + j];
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sums[j] = sums[j] + sums[j + half];
  }
  return sums[0];
}

// A row of weights as floats.
void scaled_row(const Product& p, const Weights& w, int64_t r, float* to) {
  decode_row(w, r, to);
  for (int64_t g = 0; g < p.groups; ++g) {
    float by;
    gather_floats(p.scale_type, p.scale + r * p.scale_row + g * p.scale_group, 0, &by, 1);
    for (int64_t k = g * p.group; k < least((g + 1) * p.group, p.k); ++k) to[k] = to[k] * by;
  }
}

// x is not quantised: y = sum of x * (w * scale), + bias, in f32.
void quantized_matmul_float(const Call& call) {
  const Product p = scaled_product(call);
  const RowList x(call.in[0]), y(*call.out);
  const Weights w(call.in[1]);
  const Workspace tokens(x.count * p.k * 4, Need::must);
  for (int64_t t = 0; t < x.count; ++t) {
    gather_of<float>(x.type)(x.row(t), x.step, tokens.as<float>() + t * p.k, p.k);
  }
  parallel_for(p.n, kGrain / ((x.count + 1) * (p.k + 1)) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(p.k * 4, Need::must);
    for (int64_t r = begin; r < end; ++r) {
      scaled_row(p, w, r, space.as<float>());
      for (int64_t t = 0; t < x.count; ++t) {
        float result = dot(tokens.as<float>() + t * p.k, space.as<float>(), p.k);
        if (p.bias) result = result + at<float>(p.bias + r * p.bias_step);
        scatter(y.type, &result, y.row(t) + r * y.step, 0, 1);
      }
    }
  });
}

// A view of single numbers as rows of one element.
RowList numbers(View v) {
  v.shape[v.ndim] = 1;
  v.strides[v.ndim++] = 0;
  return RowList(v);
}

// x[..., K] -> q i8[..., K], scale f32[...], sum i32[...].
void quantize_activations(const Call& call) {
  const RowList x(call.in[0]), q(call.out[0]), scale = numbers(call.out[1]), sum = numbers(call.out[2]);
  const int64_t k = x.length;
  parallel_for(x.count, kQuantizeGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(whole(k * 4, kUnit) + k, Need::must);
    int8_t* const row = reinterpret_cast<int8_t*>(space.data() + whole(k * 4, kUnit));
    for (int64_t t = begin; t < end; ++t) {
      int32_t total;
      const float s = quantize_token(floats_of(x, t, space.as<float>()), k, most(k, 1), 1, row, &total);
      scatter_as<int8_t>(row, q.row(t), q.step, k);
      scatter_as<float>(&s, scale.row(t), 0, 1);
      scatter_as<int32_t>(&total, sum.row(t), 0, 1);
    }
  });
}

// A block of 64 whole rows of tern2 as tiles: four bytes of rows l, l + 16, l + 32, l + 48 hold 4 x 4 fields, whose
// transposition is the four bytes of those columns in a tile. Codes are the same.
void tile_rows(const uint8_t* from, int64_t stride, int64_t columns, uint8_t* to) {
  constexpr int L = 16;
  for (int l = 0; l < L; ++l) {
    const uint8_t* const row = from + l * stride;
    for (int64_t j0 = 0; j0 < columns / 4; j0 += L) {  // a tile is 64 columns, 16 bytes of a row
      alignas(64) uint32_t words[L];
      for (int64_t j = 0; j < L; ++j) {
        const uint8_t* const at = row + j0 + j;
        uint32_t w = at[0] | static_cast<uint32_t>(at[L * stride]) << 8 | static_cast<uint32_t>(at[2 * L * stride]) << 16 |
                     static_cast<uint32_t>(at[3 * L * stride]) << 24;
        uint32_t swap = (w ^ (w >> 6)) & 0x00cc00cc;
        w ^= swap ^ (swap << 6);
        swap = (w ^ (w >> 12)) & 0x0000f0f0;
        words[j] = w ^ swap ^ (swap << 12);
      }
      for (int64_t j = 0; j < L; ++j) std::memcpy(to + ((j0 + j) * L + l) * 4, words + j, 4);
    }
  }
}

// w of one format -> the same values in another.
void repack(const Call& call) {
  const Weights from(call.in[0]), to(*call.out);
  if (from.n == 0 || from.k == 0) return;
  const int64_t rows = tile(to.format).rows, width = whole(from.k, 320);  // whole blocks of any format
  const bool whole_tiles = from.format == DType::tern2 && to.format == DType::tern2_r64 && from.k % 64 == 0;
  parallel_for(ceil_div(from.n, rows), kGrain / (rows * from.k + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(rows * width, Need::must);
    int8_t* const values = space.as<int8_t>();
    for (int64_t first = begin * rows; first < end * rows; first += rows) {
      if (whole_tiles && first + rows <= from.n) {
        tile_rows(reinterpret_cast<const uint8_t*>(from.data) + first * from.row, from.row, from.k,
                  reinterpret_cast<uint8_t*>(to.data) + first / rows * to.row);
        continue;
      }
      std::memset(values, 0, static_cast<std::size_t>(rows * width));
      for (int64_t r = 0; r < least(rows, from.n - first); ++r) decode_values(from, first + r, 0, from.k, values + r * width, from.k);
      with_format(to.format, [&]<DType F>() {
        encode_block<F>(to, first, [&](int64_t r, int64_t k) { return int{values[(r - first) * width + k]}; });
      });
    }
  });
}

constexpr std::uint32_t kFloats = bit(DType::f32) | bit(DType::f16) | bit(DType::bf16);

constexpr Entry kEntries[] = {
    {"quantize_activations", quantize_activations, kFloats, "", 0},
    {"integer_matmul", integer_matmul, kWeightFormats, "", 1},
    {"quantized_matmul", quantized_matmul, kWeightFormats, "group", 1},
    {"quantized_matmul_group", quantized_matmul_group, kWeightFormats, "group", 1},
    {"quantized_matmul_float", quantized_matmul_float, kWeightFormats, "group", 1},
    {"repack", repack, kWeightFormats, "", 0},
};

}  // namespace

float quantize_row(const float* x, int64_t n, int8_t* q, int32_t* sum) {
  return quantize_token(x, n, most(n, 1), 1, q, sum);
}

Table integer_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
