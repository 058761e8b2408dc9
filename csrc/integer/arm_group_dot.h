// The sums of one group of columns after the other with sdot: 16 ternary rows against one token, or a few.
// Knows nothing of chunks of rows or threads; arm_groups.h says how sums become floats.
#pragma once

#include <cstring>

#include "arm_dot.h"
#include "arm_groups.h"

namespace tritium::TRITIUM_ISA {
namespace {

// block[16 rows] += float(sum) * scale (* by), one group after the other; each step is one f32 operation. After the last
// group of a block of columns it is added to `total` and is 0 again.
// What is left to do for a group is done between the lines of the next one's first tile, fcvtl an issue every other cycle.
// v0-3: sums of views; v4-7: differences of those of the group before; v8-11: the block; v12: M, v13-15: 1/4, 1/16, 1/64;
// v16-18: a line's views; v20-23 a tile, v24 its activations; v19, v25-27: scales of the rows, v28 of the activations;
// v29-31 masks.
#define TRITIUM_LOAD_STARTS "ldp q2, q3, [%[starts], #32]\n ldp q0, q1, [%[starts]], #64\n"
// The terms of four rows: their scales are in v`scale`, the differences of their views in v`sum`.
#define TRITIUM_TERM(sum, scale, block, by)                      \
  "fmul v" #sum ".4s, v" #sum ".4s, v" #scale ".4s\n" by         \
  "fadd v" #block ".4s, v" #block ".4s, v" #sum ".4s\n"
#define TRITIUM_TOKEN_GROUPS(load, scales0, scales1, scales2, scales3, by0, by1, by2, by3) \
  asm volatile(                                                                          \
      TRITIUM_MASKS                                                                      \
      "ldp q8, q9, [%[block]]\n ldp q10, q11, [%[block], #32]\n"                         \
      "ldp q12, q13, [%[m]]\n ldp q14, q15, [%[m], #32]\n"                               \
      TRITIUM_TOKEN_LOAD TRITIUM_LOAD_STARTS load                                         \
      "mov %[n], %[tiles]\n"                                                             \
      "b 3f\n"                                                                           \
      "2:\n"                                                                             \
      TRITIUM_LOAD_STARTS                                                                \
      TRITIUM_TOKEN_TILE(scales0, scales1 TRITIUM_TERM(4, 19, 8, by0), scales2 TRITIUM_TERM(5, 25, 9, by1), \
                   scales3 TRITIUM_TERM(6, 26, 10, by2) TRITIUM_TERM(7, 27, 11, by3))    \
      load                                                                               \
      "subs %[left], %[left], #1\n"                                                      \
      "b.eq 6f\n"                                                                        \
      "5:\n"                                                                             \
      "subs %[n], %[tiles], #1\n"                                                        \
      "b.eq 4f\n"                                                                        \
      "3:\n"                                                                             \
      TRITIUM_TOKEN_TILE("", "", "", "")                                                       \
      "subs %[n], %[n], #1\n"                                                            \
      "b.ne 3b\n"                                                                        \
      "4:\n"                                                                             \
      "fsub v4.4s, v0.4s, v12.4s\n fsub v5.4s, v1.4s, v0.4s\n"                           \
      "fsub v6.4s, v2.4s, v1.4s\n fsub v7.4s, v3.4s, v2.4s\n"                            \
      "subs %[count], %[count], #1\n"                                                    \
      "b.ne 2b\n"                                                                        \
      scales0 scales1 scales2 scales3                                                    \
      TRITIUM_TERM(4, 19, 8, by0) TRITIUM_TERM(5, 25, 9, by1)                            \
      TRITIUM_TERM(6, 26, 10, by2) TRITIUM_TERM(7, 27, 11, by3)                          \
      "stp q8, q9, [%[block]]\n stp q10, q11, [%[block], #32]\n"                         \
      "b 7f\n"                                                                           \
      "6:\n"                                                                             \
      "ldp q16, q17, [%[total]]\n"                                                       \
      "fadd v16.4s, v16.4s, v8.4s\n fadd v17.4s, v17.4s, v9.4s\n"                        \
      "stp q16, q17, [%[total]]\n ldp q16, q17, [%[total], #32]\n"                       \
      "fadd v16.4s, v16.4s, v10.4s\n fadd v17.4s, v17.4s, v11.4s\n"                      \
      "stp q16, q17, [%[total], #32]\n"                                                  \
      TRITIUM_ZERO4(8, 9, 10, 11)                                                        \
      "mov %[left], %[each]\n"                                                           \
      "b 5b\n"                                                                           \
      "7:\n"                                                                             \
      : [w] "+&r"(g.w), [y] "+&r"(g.y), [count] "+&r"(g.count), [starts] "+&r"(g.starts), \
        [scales] "+&r"(g.scales), [by] "+&r"(g.by), [left] "+&r"(to.left), [all] "+&r"(all), \
        [n] "=&r"(n), [next] "=&r"(next)                                                 \
      : [tiles] "r"(g.tiles), [step] "r"(g.scale_step), [each] "r"(to.each),             \
        [block] "r"(to.block), [total] "r"(to.total), [m] "r"(kViews[0])                 \
      : "memory", "cc", TRITIUM_VECTORS)
#define TRITIUM_F16                                                                      \
  "ldp q25, q27, [%[scales]]\n prfm pldl1keep, [%[scales], #64]\n add %[scales], %[scales], %[step]\n"
#define TRITIUM_WIDEN                                                                    \
  "fcvtl v19.4s, v25.4h\n", "fcvtl2 v25.4s, v25.8h\n", "fcvtl v26.4s, v27.4h\n", "fcvtl2 v27.4s, v27.8h\n"
#define TRITIUM_F32                                                                      \
  "ldp q19, q25, [%[scales]]\n ldp q26, q27, [%[scales], #32]\n prfm pldl1keep, [%[scales], #128]\n" \
  "add %[scales], %[scales], %[step]\n"
#define TRITIUM_REDUCE                                                                   \
  "", "fmul v5.4s, v5.4s, v13.4s\n", "fmul v6.4s, v6.4s, v14.4s\n", "fmul v7.4s, v7.4s, v15.4s\n"
#define TRITIUM_BY_EACH                                                                  \
  "fmul v4.4s, v4.4s, v28.s[0]\n", "fmul v5.4s, v5.4s, v28.s[1]\n",                      \
  "fmul v6.4s, v6.4s, v28.s[2]\n", "fmul v7.4s, v7.4s, v28.s[3]\n"
#define TRITIUM_BY_ALL                                                                   \
  "fmul v4.4s, v4.4s, v28.s[0]\n", "fmul v5.4s, v5.4s, v28.s[0]\n",                      \
  "fmul v6.4s, v6.4s, v28.s[0]\n", "fmul v7.4s, v7.4s, v28.s[0]\n"
#define TRITIUM_LOAD_BY "ldr q28, [%[by]], #16\n"
#define TRITIUM_EXPAND(macro, ...) macro(__VA_ARGS__)
template <bool Half, bool By>
inline void token_groups(TokenGroups g, GroupTotals& to) {
  int64_t n, all = g.tiles * g.count;
  const int8_t* next;
  if constexpr (Half && By) {
    TRITIUM_EXPAND(TRITIUM_TOKEN_GROUPS, TRITIUM_F16 TRITIUM_LOAD_BY, TRITIUM_WIDEN, TRITIUM_BY_EACH);
  } else if constexpr (Half) {
    TRITIUM_EXPAND(TRITIUM_TOKEN_GROUPS, TRITIUM_F16, TRITIUM_WIDEN, "", "", "", "");
  } else if constexpr (By) {
    TRITIUM_EXPAND(TRITIUM_TOKEN_GROUPS, TRITIUM_F32 TRITIUM_LOAD_BY, TRITIUM_REDUCE, TRITIUM_BY_ALL);
  } else {
    TRITIUM_EXPAND(TRITIUM_TOKEN_GROUPS, TRITIUM_F32, TRITIUM_REDUCE, "", "", "", "");
  }
  if (--to.left == 0) to.add_block();
}
#undef TRITIUM_LOAD_STARTS
#undef TRITIUM_TERM
#undef TRITIUM_TOKEN_GROUPS
#undef TRITIUM_F16
#undef TRITIUM_WIDEN
#undef TRITIUM_F32
#undef TRITIUM_REDUCE
#undef TRITIUM_BY_EACH
#undef TRITIUM_BY_ALL
#undef TRITIUM_LOAD_BY
#undef TRITIUM_EXPAND

inline void add_token_groups(const TokenGroups& g, bool half, GroupTotals& to) {
  const auto run = half ? (g.by ? token_groups<true, true> : token_groups<true, false>)
                        : (g.by ? token_groups<false, true> : token_groups<false, false>);
  run(g, to);
}

// parts[12 tokens][8 rows] += float(sum) * scale of a group: w[k/4][8 rows][4] * y[k/4][12 tokens][4], int8, 4*steps k.
// Sums begin at M's bits and stay in v0-23: stores are what would cost most here. v31: M; at the end v24-25: scales,
// v26-29: parts.
#define TRITIUM_START4(a, b, c, d)                                                 \
  "mov v" #a ".16b, v31.16b\n mov v" #b ".16b, v31.16b\n"                          \
  "mov v" #c ".16b, v31.16b\n mov v" #d ".16b, v31.16b\n"
#define TRITIUM_PART(a, b, low, high, at)                                          \
  "ldp q" #low ", q" #high ", [%[parts], #" #at "]\n"                              \
  "fsub v" #a ".4s, v" #a ".4s, v31.4s\n fsub v" #b ".4s, v" #b ".4s, v31.4s\n"    \
  "fmul v" #a ".4s, v" #a ".4s, v24.4s\n fmul v" #b ".4s, v" #b ".4s, v25.4s\n"    \
  "fadd v" #low ".4s, v" #low ".4s, v" #a ".4s\n"                                  \
  "fadd v" #high ".4s, v" #high ".4s, v" #b ".4s\n"                                \
  "stp q" #low ", q" #high ", [%[parts], #" #at "]\n"
inline void tile_group12(const int8_t* w, const int8_t* y, int64_t steps, const float* scales, float* parts) {
  asm volatile(
      "dup v31.4s, %w[m]\n"
      TRITIUM_START4(0, 1, 2, 3) TRITIUM_START4(4, 5, 6, 7) TRITIUM_START4(8, 9, 10, 11)
      TRITIUM_START4(12, 13, 14, 15) TRITIUM_START4(16, 17, 18, 19) TRITIUM_START4(20, 21, 22, 23)
      TRITIUM_TILE12
      "ldp q24, q25, [%[scales]]\n"
      TRITIUM_PART(0, 1, 26, 27, 0) TRITIUM_PART(2, 3, 28, 29, 32) TRITIUM_PART(4, 5, 26, 27, 64)
      TRITIUM_PART(6, 7, 28, 29, 96) TRITIUM_PART(8, 9, 26, 27, 128) TRITIUM_PART(10, 11, 28, 29, 160)
      TRITIUM_PART(12, 13, 26, 27, 192) TRITIUM_PART(14, 15, 28, 29, 224) TRITIUM_PART(16, 17, 26, 27, 256)
      TRITIUM_PART(18, 19, 28, 29, 288) TRITIUM_PART(20, 21, 26, 27, 320) TRITIUM_PART(22, 23, 28, 29, 352)
      : [w] "+&r"(w), [y] "+&r"(y), [n] "+&r"(steps)
      : [m] "r"(floated(0)), [scales] "r"(scales), [parts] "r"(parts)
      : "memory", "cc", TRITIUM_VECTORS);
}
#undef TRITIUM_START4
#undef TRITIUM_PART

// One group of C tokens and the 16 rows of a block: add_floated from its weights.
template <int C>
void add_block_group(const int8_t* w, const int8_t* y, const PanelGroup& g, const float* scales, float* to) {
  alignas(64) int32_t t[4][C][4];
  std::memcpy(t, g.starts, sizeof(t));
  add_ternary<C>(w, y, g.k, t[0][0]);
  add_floated<C>(g, t, scales, to);
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
