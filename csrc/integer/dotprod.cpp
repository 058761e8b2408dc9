// Integer products with sdot (ARMv8.2 dot product): formats tern2_r16, i8_r16, i4_r32; any groups.
// Knows nothing of threads or results; arm_product.h runs what is here.
//
// One token: 7 vector operations for 64 ternary weights. Up to 64 tokens (other formats: 8) weights are used as packed,
// 16 rows against up to 6 tokens, or 4 rows of one view against 16. More: unpacked to int8 in L2, 8 rows against 12.
#include "arm_group_dot.h"
#include "arm_table.h"

namespace tritium::TRITIUM_ISA {
namespace {

constexpr int64_t kViewK = 2560;  // k of 16 tokens that stay in L1 while all views of a chunk pass by

// t[view][16 tokens][4 rows] += the views of one tern2_r16 block.
void add_views(const int8_t* w, const int8_t* y, int64_t k, int32_t t[4][16][4]) {
  tern_view16(w, y, k / 8, t[3][0]);
  tern_view16(w, y, k / 8, t[2][0], 63);
  tern_view16(w, y, k / 8, t[1][0], 15);
  tern_view16(w, y, k / 8, t[0][0], 3);
}

void tern_sums16(const Blocks& w, const int8_t* y, int64_t k, const int32_t* sums, int32_t* to) {
  alignas(64) int32_t t[kChunkRows / Tern2::kRows][4][16][4] = {};
  const int64_t piece = whole(ceil_div(k, ceil_div(k, kViewK)), 16);
  for (int64_t k0 = 0; k0 < k; k0 += piece) {
    for (int b = 0; b < w.blocks; ++b) {
      add_views(w.data + b * w.stride + k0 / 4 * Tern2::kLine, y + k0 * 16, least(piece, k - k0), t[b]);
    }
  }
  for (int b = 0; b < w.blocks; ++b) {
    for (int c = 0; c < 16; ++c) {
      int32x4_t views[4];
      for (int i = 0; i < 4; ++i) views[i] = vld1q_s32(t[b][i][c]);
      finish_strip<Tern2>(views, 0, sums[c], to + c * kChunkRows + b * Tern2::kRows);
    }
  }
}

// sums[C tokens][8 rows] += the tile, 8 or 4 tokens: what tile_dot12 does for 12.
template <int C, int... c>
TRITIUM_INLINE void tile_dot(const int8_t* tile, const int8_t* y, int64_t k, int32_t* sums,
                             std::integer_sequence<int, c...>) {
  int32x4_t a[2 * C];
  for (int i = 0; i < 2 * C; ++i) a[i] = vld1q_s32(sums + i * 4);
  for (; k > 0; k -= 4, tile += 32, y += C * 4) {
    const int8x16_t low = vld1q_s8(tile), high = vld1q_s8(tile + 16);
    int8x16_t v[C / 4];
    for (int i = 0; i < C / 4; ++i) v[i] = vld1q_s8(y + 16 * i);
    ((a[2 * c] = dot_group<c % 4>(a[2 * c], low, v[c / 4])), ...);
    ((a[2 * c + 1] = dot_group<c % 4>(a[2 * c + 1], high, v[c / 4])), ...);
  }
  for (int i = 0; i < 2 * C; ++i) vst1q_s32(sums + i * 4, a[i]);
}

// to[token * kChunkRows + row] += one group of 16 tokens.
void add_group16(const Blocks& w, const int8_t* y, const PanelGroup& g, float* to) {
  for (int b = 0; b < w.blocks; ++b) {
    alignas(64) int32_t t[4][16][4];
    std::memcpy(t, g.starts, sizeof(t));
    add_views(w.data + b * w.stride, y, g.k, t);
    add_floated<16>(g, t, g.scales + b * Tern2::kRows, to + b * Tern2::kRows);
  }
}

struct Unit {
  static constexpr int kDepth = 4;
  static constexpr bool kUnpacks = true, kTokenGroups = true, kPanelGroups = true, kTileGroups = true;
  // The views of a ternary line cost 3 operations for 64 weights and 16 tokens; other formats better unpack sooner.
  template <class F>
  static constexpr int64_t kStreamed = F::kTernary ? 64 : 8;

  // Operations for 64 ternary weights: 1 token 7, 2 11, 4 19, 6 27, 16 67.
  static int pick_ternary(int left) {
    if (left == 15) return 16;
    if (left == 8 || left == 4 || left == 3) return 4;
    return left >= 5 ? 6 : left;
  }
  static int pick(int left) { return left == 3 ? 4 : left; }
  template <class F>
  static Panels panels(int64_t tokens) {
    return F::kTernary ? Panels(tokens, 16, pick_ternary) : Panels(tokens, 4, pick);
  }

  // Only ternary panels are 6 or 16 wide.
  template <class F>
  static void sums(const Blocks& w, const int8_t* y, int width, int64_t k, const int32_t* sums, int32_t* to) {
    if (width == 16) return tern_sums16(w, y, k, sums, to);
    for (int b = 0; b < w.blocks; ++b, to += F::kRows) {
      const int8_t* const block = w.data + b * w.stride;
      switch (width) {
        case 1: dot_block<F, 1>(block, y, k, sums, to); break;
        case 2: dot_block<F, 2>(block, y, k, sums, to); break;
        case 4: dot_block<F, 4>(block, y, k, sums, to); break;
        default: dot_block<Tern2, 6>(block, y, k, sums, to);
      }
    }
  }

  static void token_groups(const TokenGroups& g, bool half, GroupTotals& to) {
    add_token_groups(g, half, to);
  }

  static void panel_group(const Blocks& w, const int8_t* y, int width, const PanelGroup& g, float* to) {
    if (width == 16) return add_group16(w, y, g, to);
    for (int b = 0; b < w.blocks; ++b, to += Tern2::kRows) {
      const int8_t* const block = w.data + b * w.stride;
      const float* const scales = g.scales + b * Tern2::kRows;
      switch (width) {
        case 2: add_block_group<2>(block, y, g, scales, to); break;
        case 4: add_block_group<4>(block, y, g, scales, to); break;
        default: add_block_group<6>(block, y, g, scales, to);
      }
    }
  }

  template <class F>
  static void unpack(const int8_t* block, int64_t k, int8_t* tiles) {
    for (int s = 0; s < F::kStrips; ++s) {
      int8_t *low = tiles + s * 16 * k, *high = low + 8 * k;
      const int8_t* line = block;
      for (int64_t i = 0; i < k; i += 4, line += F::kLine, low += 32, high += 32) {
        int8x16_t b[F::kVectors], v[4];
        load<F>(line, s, b);
        weights<F>(b, v);
        vst1q_s8(low, v[0]);
        vst1q_s8(low + 16, v[1]);
        vst1q_s8(high, v[2]);
        vst1q_s8(high + 16, v[3]);
      }
    }
  }

  static void tile_sums(const int8_t* tile, const int8_t* y, int width, int64_t k, int32_t* c) {
    switch (width) {
      case 12: tile_dot12(tile, y, k / 4, c); break;
      case 8: tile_dot<8>(tile, y, k, c, std::make_integer_sequence<int, 8>()); break;
      default: tile_dot<4>(tile, y, k, c, std::make_integer_sequence<int, 4>());
    }
  }
  static void tile_rows(const int32_t* c, int token, int32_t* to) { std::memcpy(to, c + token * 8, 32); }
  static void tile_group(const int8_t* tile, const int8_t* y, int64_t k, const float* scales, float* to) {
    tile_group12(tile, y, k / 4, scales, to);
  }
};

Plan plan(const Product& p, std::int64_t) { return plan_of<Unit>(p.format); }

}  // namespace

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
