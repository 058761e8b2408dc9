// Integer products with plain NEON (every 64-bit ARM): formats tern2_r16, i8_r16, i4_r32; any groups.
// Knows nothing of threads or results; arm_product.h runs what is here.
//
// Products of bytes are summed in 16 bits (smlal) for a run of lines, then added in pairs to 32 bits (sadalp). No
// 16-bit sum can wrap: each of its lanes gets one product per line, |product| <= 128 * kMax with kMax the largest
// |field| of the format (2, 15 or 128; |q| <= 128), and a run has kRun = 32767 / (128 * kMax) lines: 127, 17 or 1.
// 32 bits hold 128 * 128 * K for K up to 65536. What fields are above weights goes at the end: kOffset * sum(q).
#include "arm_table.h"

namespace tritium::TRITIUM_ISA {
namespace {

template <class F>
constexpr int64_t kRun = 32767 / (128 * F::kMax);

// Adds one line to the 16-bit sums s[token][quad][half]; the first one begins them. A half of a quad is 2 rows x 4 k.
template <class F, int C, bool First>
TRITIUM_INLINE void add_line(const int8_t* line, int strip, const int8_t* y, int16x8_t s[C][4][2]) {
  int8x16_t b[F::kVectors], v[4];
  load<F>(line, strip, b);
  F::fields(b, v);
#pragma GCC unroll 2
  for (int c = 0; c < C; ++c) {
    const int8x16_t q = vreinterpretq_s8_s32(vdupq_n_s32(at<int32_t>(reinterpret_cast<const char*>(y + 4 * c))));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int8x8_t low = vget_low_s8(v[i]);
      s[c][i][0] = First ? vmull_s8(low, vget_low_s8(q)) : vmlal_s8(s[c][i][0], low, vget_low_s8(q));
      s[c][i][1] = First ? vmull_high_s8(v[i], q) : vmlal_high_s8(s[c][i][1], v[i], q);
    }
  }
}

// Adds `lines` <= kRun lines to a[token][quad][half], pairs of k side by side.
template <class F, int C>
TRITIUM_INLINE void add_run(const int8_t* line, int strip, const int8_t* y, int64_t lines, int32x4_t a[C][4][2]) {
  int16x8_t s[C][4][2];
  add_line<F, C, true>(line, strip, y, s);
  for (int64_t l = 1; l < lines; ++l) add_line<F, C, false>(line + l * F::kLine, strip, y + l * 4 * C, s);
  for (int c = 0; c < C; ++c) {
    for (int i = 0; i < 4; ++i) {
      for (int h = 0; h < 2; ++h) a[c][i][h] = vpadalq_s16(a[c][i][h], s[c][i][h]);
    }
  }
}

// The sums of one strip for C tokens: to[token * kChunkRows + row of the block].
template <class F, int C>
void add_strip(const int8_t* w, int strip, const int8_t* y, int64_t k, const int32_t* sums, int32_t* to) {
  int32x4_t a[C][4][2];
  for (auto& token : a) {
    for (auto& quad : token) quad[0] = quad[1] = vdupq_n_s32(0);
  }
  for (int64_t line = 0; line < k / 4; line += kRun<F>) {
    add_run<F, C>(w + line * F::kLine, strip, y + line * 4 * C, least(kRun<F>, k / 4 - line), a);
  }
  for (int c = 0; c < C; ++c) {
    for (int i = 0; i < 4; ++i) {
      const int32x4_t rows = vpaddq_s32(a[c][i][0], a[c][i][1]);
      vst1q_s32(to + c * kChunkRows + F::row(strip, i / 2) + i % 2 * 4,
                vsubq_s32(rows, vdupq_n_s32(F::kOffset[i] * sums[c])));
    }
  }
}

struct Unit {
  static constexpr int kDepth = 4;
  static constexpr bool kUnpacks = false, kTokenGroups = false, kPanelGroups = false, kTileGroups = false;
  // Fields cost 6 operations for 64 ternary weights and two tokens, products 16.
  template <class F>
  static constexpr int64_t kStreamed = INT64_MAX;

  template <class F>
  static Panels panels(int64_t tokens) {
    return Panels(tokens, 2, [](int left) { return left; });
  }

  template <class F>
  static void sums(const Blocks& w, const int8_t* y, int width, int64_t k, const int32_t* sums, int32_t* to) {
    for (int b = 0; b < w.blocks; ++b, to += F::kRows) {
      for (int s = 0; s < F::kStrips; ++s) {
        const int8_t* const block = w.data + b * w.stride;
        width == 1 ? add_strip<F, 1>(block, s, y, k, sums, to) : add_strip<F, 2>(block, s, y, k, sums, to);
      }
    }
  }
};

Plan plan(const Product& p, std::int64_t) { return plan_of<Unit>(p.format); }

}  // namespace

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
