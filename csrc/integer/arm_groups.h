// Ternary products whose weights have a scale for each group of columns: sums of views become floats, which are added.
//
// A sum S needs no conversion. Let M be 1.5 * 2^(23 - 2i): floats near it are 4^-i apart, so the bits of M plus the integer
// 4^i S are, read as f32, M + S exactly, as long as |4^i S| < 2^22; less M, that is S. The differences of neighbouring
// views (arm_formats.h) are 4^i (S + sum(q)), and 64 S for i = 3: a number added to each makes them M's bits plus 4^i S,
// and none is shifted or converted.
#pragma once

#include "arm_formats.h"

namespace tritium::TRITIUM_ISA {
namespace {

constexpr int64_t kMostFloated = 512;  // columns of a group: 127 * 64 * 512 < 2^22
constexpr int64_t kMostOfToken = 384;  // of one token's: 127 * 85 * 384 < 2^22, see token_starts

constexpr uint32_t floated(int i) { return 0x4b400000u - (static_cast<uint32_t>(i) << 24); }  // the bits of M

// What is taken from the floats: M for each view.
alignas(64) constexpr float kLess[4][4] = {{12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f},
                                           {3145728.0f, 3145728.0f, 3145728.0f, 3145728.0f},
                                           {786432.0f, 786432.0f, 786432.0f, 786432.0f},
                                           {196608.0f, 196608.0f, 196608.0f, 196608.0f}};

constexpr int kStarts = 16;  // numbers of one group

// Where the sums of views begin so that their differences need nothing added: [view][4 rows], all rows alike.
inline void group_starts(int32_t sum, int32_t* to) {
  uint32_t start = 0;
  for (int i = 0; i < 4; ++i) {
    start += floated(i) - (i < 3 ? static_cast<uint32_t>(sum) << 2 * i : 0);
    for (int r = 0; r < 4; ++r) *to++ = static_cast<int32_t>(start);
  }
}

// The same for one token, whose sums of views T are all read as floats near the same M: differences of neighbouring ones
// are then 4^i S with no integer subtraction. With s = sum(q) the views less 1, 5, 21 and 21 are within -85 … 85, and the
// differences of (T0 - s, T1 - 5 s, T2 - 21 s, T3 - 21 s) are S0, 4 S1, 16 S2, 64 S3.
inline void token_starts(int32_t sum, int32_t* to) {
  constexpr uint32_t kMiddle[4] = {1, 5, 21, 21};
  for (const uint32_t middle : kMiddle) {
    const uint32_t start = floated(0) - middle * static_cast<uint32_t>(sum);
    for (int r = 0; r < 4; ++r) *to++ = static_cast<int32_t>(start);
  }
}

// M, and what makes S of 4^i S.
alignas(64) constexpr float kViews[4][4] = {{12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f},
                                            {0.25f, 0.25f, 0.25f, 0.25f},
                                            {0.0625f, 0.0625f, 0.0625f, 0.0625f},
                                            {0.015625f, 0.015625f, 0.015625f, 0.015625f}};

// Neighbouring groups of one token and 16 rows.
struct TokenGroups {
  const int8_t* w;
  const int8_t* y;
  int64_t tiles, count;   // 16 k each, of a group; groups
  const int32_t* starts;  // [group][view][4 rows]
  const char* scales;     // of the 16 rows, f32 or f16
  int64_t scale_step;     // bytes from one group to the next
  const float* by;        // [group][view]: scales of the activations, times 4^-view; nullptr: none are applied
};

// What the groups of 16 rows add up to. With f16 scales alone both are 4^i times as large in view i: such numbers are far
// from where f32 ends or has fewer bits, so each operation rounds to the same bits times 4^i. f32 scales may be near there.
struct GroupTotals {
  alignas(64) float block[16] = {}, total[16] = {};
  int64_t each, left;  // groups of a block; of this one that are left

  explicit GroupTotals(int64_t groups) : each(groups), left(groups) {}
  void add_block() {
    for (int i = 0; i < 16; ++i) {
      total[i] = total[i] + block[i];
      block[i] = 0;
    }
    left = each;
  }
  // After the last group; to[16 rows].
  void put(bool grown, float* to) {
    if (left != each) add_block();
    for (int i = 0; i < 16; ++i) to[i] = grown && i >= 4 ? total[i] * kViews[i / 4][0] : total[i];
  }
};

// One group of a few tokens.
struct PanelGroup {
  int64_t k;
  int tokens;             // of the panel that are none of its padding
  const int32_t* starts;  // [view][token of the panel][4 rows]
  const float* scales;    // of the first row
  const float* by;        // of the first token; the next one's is by_step further; nullptr: none are applied
  int64_t by_step;
};

// to[token * kChunkRows + row] += float(sum) * scale (* by), of the 16 rows of one block; t: sums of views that began at
// g.starts.
template <int C>
TRITIUM_INLINE void add_floated(const PanelGroup& g, const int32_t (*t)[C][4], const float* scales, float* to) {
  float32x4_t less[4], scale[4];
  for (int i = 0; i < 4; ++i) {
    less[i] = vld1q_f32(kLess[i]);
    scale[i] = vld1q_f32(scales + 4 * i);
  }
  for (int c = 0; c < g.tokens; ++c, to += kChunkRows) {
    uint32x4_t before = vdupq_n_u32(0);  // differences wrap
    const float32x4_t by = vdupq_n_f32(g.by ? g.by[c * g.by_step] : 0.0f);
    for (int i = 0; i < 4; ++i) {
      const uint32x4_t view = vreinterpretq_u32_s32(vld1q_s32(t[i][c]));
      const float32x4_t sum = vsubq_f32(vreinterpretq_f32_u32(i == 0 ? view : vsubq_u32(view, before)), less[i]);
      float32x4_t part = vmulq_f32(sum, scale[i]);
      if (g.by) part = vmulq_f32(part, by);
      vst1q_f32(to + 4 * i, vaddq_f32(vld1q_f32(to + 4 * i), part));
      before = view;
    }
  }
}

// The starts of C tokens from their sums of q, the first of which is given.
inline void panel_starts(const int32_t* sums, int width, int32_t* to) {
  for (int c = 0; c < width; ++c) {
    alignas(16) int32_t mine[4][4];
    group_starts(sums[c], mine[0]);
    for (int i = 0; i < 4; ++i) vst1q_s32(to + (i * width + c) * 4, vld1q_s32(mine[i]));
  }
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
