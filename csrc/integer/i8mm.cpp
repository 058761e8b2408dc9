// Integer products with smmla (int8 matrix products): formats tern2_r16, i8_r16, i4_r32; any groups.
// Knows nothing of threads or results; arm_product.h runs what is here.
//
// One token: with sdot, as a matrix product would waste half of itself. A few: weights as packed, 16 rows against up to
// 3 pairs of tokens, 32 vector operations for 128 ternary weights and 6 tokens (sdot: 54). More: unpacked to int8 in
// L2, 8 rows against 12 tokens, 24 smmla and 5 pairs of loads for 8 k.
#include "arm_group_dot.h"
#include "arm_smmla.h"
#include "arm_table.h"

namespace tritium::TRITIUM_ISA {
namespace {

// Two lines of a strip, zipped: rows 0 and 1 of every quad x 8 k, and rows 2 and 3.
template <class F>
TRITIUM_INLINE void load_pairs(const int8_t* line, int strip, int8x16_t b[2][F::kVectors]) {
  int8x16_t first[F::kVectors], second[F::kVectors];
  load<F>(line, strip, first);
  load<F>(line + F::kLine, strip, second);
  for (int i = 0; i < F::kVectors; ++i) {
    const int32x4_t x = vreinterpretq_s32_s8(first[i]), y = vreinterpretq_s32_s8(second[i]);
    b[0][i] = vreinterpretq_s8_s32(vzip1q_s32(x, y));
    b[1][i] = vreinterpretq_s8_s32(vzip2q_s32(x, y));
  }
}

// t[4 quads][2 row pairs][P token pairs][2 tokens][2 rows] of a strip over k, a multiple of 8.
template <class F, int P>
void mmla(const int8_t* w, int strip, const int8_t* y, int64_t k, int32_t* t) {
  int32x4_t a[4][2][P];
  for (auto& quad : a) {
    for (auto& rows : quad) {
      for (int32x4_t& sum : rows) sum = vdupq_n_s32(0);
    }
  }
  for (; k > 0; k -= 8, w += 2 * F::kLine, y += 16 * P) {
    int8x16_t tokens[P], b[2][F::kVectors];
    for (int p = 0; p < P; ++p) tokens[p] = vld1q_s8(y + 16 * p);
    load_pairs<F>(w, strip, b);
    __builtin_prefetch(w + 1024);
    for (int h = 0; h < 2; ++h) {
      int8x16_t v[4];
      F::views(b[h], v);
      for (int i = 0; i < 4; ++i) {
        for (int p = 0; p < P; ++p) a[i][h][p] = vmmlaq_s32(a[i][h][p], tokens[p], v[i]);
      }
    }
  }
  for (auto& quad : a) {
    for (auto& rows : quad) {
      for (const int32x4_t& sum : rows) {
        vst1q_s32(t, sum);
        t += 4;
      }
    }
  }
}

// The 4 rows of token `odd` of a pair, from the 2 x 2 sums of rows 0, 1 and of rows 2, 3.
TRITIUM_INLINE int32x4_t rows_of(const int32_t* low, const int32_t* high, int odd) {
  return vcombine_s32(vld1_s32(low + 2 * odd), vld1_s32(high + 2 * odd));
}

// The sums of one block of rows for 2 * P tokens: to[token * kChunkRows + row].
template <class F, int P>
void mmla_block(const int8_t* w, const int8_t* y, int64_t k, const int32_t* sums, int32_t* to) {
  alignas(64) int32_t t[4][2][P][4];
  for (int s = 0; s < F::kStrips; ++s) {
    if constexpr (F::kTernary && P == 3) {
      tern_mmla6(w, y, k / 8, t[0][0][0]);
    } else {
      mmla<F, P>(w, s, y, k, t[0][0][0]);
    }
    for (int c = 0; c < 2 * P; ++c) {
      int32x4_t quads[4];
      for (int i = 0; i < 4; ++i) quads[i] = rows_of(t[i][0][c / 2], t[i][1][c / 2], c % 2);
      finish_strip<F>(quads, s, sums[c], to + c * kChunkRows);
    }
  }
}

// c[P token pairs][4 row pairs][2][2] += the tile, 4 or 2 pairs: what tile_mmla12 does for 6.
template <int P>
void tile_mmla(const int8_t* tile, const int8_t* y, int64_t k, int32_t* c) {
  int32x4_t a[P][4];
  for (int i = 0; i < P * 4; ++i) a[i / 4][i % 4] = vld1q_s32(c + i * 4);
  for (; k > 0; k -= 8, tile += 64, y += P * 16) {
    int8x16_t w[4];
    for (int r = 0; r < 4; ++r) w[r] = vld1q_s8(tile + r * 16);
    for (int p = 0; p < P; ++p) {
      const int8x16_t tokens = vld1q_s8(y + p * 16);
      for (int r = 0; r < 4; ++r) a[p][r] = vmmlaq_s32(a[p][r], tokens, w[r]);
    }
  }
  for (int i = 0; i < P * 4; ++i) vst1q_s32(c + i * 4, a[i / 4][i % 4]);
}

struct Unit {
  static constexpr int kDepth = 8;
  static constexpr bool kUnpacks = true, kTokenGroups = true, kPanelGroups = false, kTileGroups = false;
  // The views of a ternary line cost 8 operations for 128 weights and 6 tokens; unpacking them about 24, once.
  template <class F>
  static constexpr int64_t kStreamed = F::kTernary ? 24 : 8;

  static int pick(int left) { return left >= 5 ? 6 : left >= 3 ? 4 : left; }
  template <class F>
  static Panels panels(int64_t tokens) {
    return Panels(tokens, F::kTernary ? 6 : 4, pick);
  }

  // Only ternary panels are 6 wide.
  template <class F>
  static void sums(const Blocks& w, const int8_t* y, int width, int64_t k, const int32_t* sums, int32_t* to) {
    for (int b = 0; b < w.blocks; ++b, to += F::kRows) {
      const int8_t* const block = w.data + b * w.stride;
      switch (width) {
        case 1: dot_block<F, 1>(block, y, k, sums, to); break;
        case 2: mmla_block<F, 1>(block, y, k, sums, to); break;
        case 4: mmla_block<F, 2>(block, y, k, sums, to); break;
        default: mmla_block<Tern2, 3>(block, y, k, sums, to);
      }
    }
  }

  static void token_groups(const TokenGroups& g, bool half, GroupTotals& to) {
    add_token_groups(g, half, to);
  }

  template <class F>
  static void unpack(const int8_t* block, int64_t k, int8_t* tiles) {
    for (int s = 0; s < F::kStrips; ++s) {
      int8_t *low = tiles + s * 16 * k, *high = low + 8 * k;
      const int8_t* line = block;
      for (int64_t i = 0; i < k; i += 8, line += 2 * F::kLine, low += 64, high += 64) {
        int8x16_t b[2][F::kVectors];
        load_pairs<F>(line, s, b);
        for (int h = 0; h < 2; ++h) {
          int8x16_t v[4];
          weights<F>(b[h], v);
          vst1q_s8(low + h * 16, v[0]);
          vst1q_s8(low + 32 + h * 16, v[1]);
          vst1q_s8(high + h * 16, v[2]);
          vst1q_s8(high + 32 + h * 16, v[3]);
        }
      }
    }
  }

  static void tile_sums(const int8_t* tile, const int8_t* y, int width, int64_t k, int32_t* c) {
    switch (width) {
      case 12: tile_mmla12(tile, y, k / 8, c); break;
      case 8: tile_mmla<4>(tile, y, k, c); break;
      default: tile_mmla<2>(tile, y, k, c);
    }
  }
  static void tile_rows(const int32_t* c, int token, int32_t* to) {
    const int32_t* const pair = c + token / 2 * 16;
    vst1q_s32(to, rows_of(pair, pair + 4, token % 2));
    vst1q_s32(to + 4, rows_of(pair + 8, pair + 12, token % 2));
  }
};

Plan plan(const Product& p, std::int64_t) { return plan_of<Unit>(p.format); }

}  // namespace

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
