// The hand-scheduled sdot loops: tern2_r16 against 1, 4, 6 or 16 tokens, and int8 panels of 8 rows against 8 or 12.
// Compilers spill or move accumulators here; these loops do neither.
//
// Activations come as panels y[k/4][token][4], so that a 16-byte load gives four tokens; of one token, the row itself.
// sdot acc.4s, w.16b, y.4b[i] adds to each of 4 rows the dot product of 4 k with the i-th group of 4 bytes in y.
// A byte b of tern2_r16 holds 4 rows, c0 + 4 c1 + 16 c2 + 64 t3, and all four share one activation; the loops give the
// sums of the four views b & 3, b & 15, b & 63 and b (signed). Tern2::sums (arm_formats.h) makes row sums of them.
// Every loop reads exactly the weights it is given, not a byte more: they may be the end of a mapped file.
#pragma once

#include <cstdint>

#define TRITIUM_DOT(acc, w, y, lane) "sdot v" #acc ".4s, v" #w ".16b, v" #y ".4b[" #lane "]\n"
#define TRITIUM_AND(to, from, mask) "and v" #to ".16b, v" #from ".16b, v" #mask ".16b\n"
#define TRITIUM_ZERO4(a, b, c, d) \
  "movi v" #a ".4s, #0\n movi v" #b ".4s, #0\n movi v" #c ".4s, #0\n movi v" #d ".4s, #0\n"
// Loads (ldp) or stores (stp) the sums in v0-15 or v0-23, from or to t.
#define TRITIUM_SUMS16(op)                                                                   \
  #op " q0, q1, [%[t]]\n" #op " q2, q3, [%[t], #32]\n" #op " q4, q5, [%[t], #64]\n"          \
  #op " q6, q7, [%[t], #96]\n" #op " q8, q9, [%[t], #128]\n" #op " q10, q11, [%[t], #160]\n" \
  #op " q12, q13, [%[t], #192]\n" #op " q14, q15, [%[t], #224]\n"
#define TRITIUM_SUMS24(op)                                                   \
  TRITIUM_SUMS16(op)                                                         \
  #op " q16, q17, [%[t], #256]\n" #op " q18, q19, [%[t], #288]\n"            \
  #op " q20, q21, [%[t], #320]\n" #op " q22, q23, [%[t], #352]\n"
#define TRITIUM_MASKS "movi v29.16b, #3\n movi v30.16b, #15\n movi v31.16b, #63\n"
#define TRITIUM_VECTORS                                                                                            \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",     \
      "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

namespace tritium::TRITIUM_ISA {
namespace {

// A line of 16 rows against one token: its weights in w, sums of views in v0-3, the views in v16-18.
#define TRITIUM_TOKEN_LINE(w, lane)                                                                               \
  TRITIUM_DOT(3, w, 24, lane) TRITIUM_AND(16, w, 31) TRITIUM_AND(17, w, 30) TRITIUM_DOT(2, 16, 24, lane)    \
  TRITIUM_AND(18, w, 29) TRITIUM_DOT(1, 17, 24, lane) TRITIUM_DOT(0, 18, 24, lane)
// A tile of four lines, v20-23, against v24; `all` tiles are left. Each register is loaded with what the next tile needs as
// soon as it is free, which is worth 2 % on a Neoverse-N1. After the last tile it is read again. more0-3: for the gaps.
#define TRITIUM_TOKEN_LOAD "ldr q24, [%[y]]\n ldp q20, q21, [%[w]]\n ldp q22, q23, [%[w], #32]\n"
#define TRITIUM_TOKEN_TILE(more0, more1, more2, more3)                                                             \
  "subs %[all], %[all], #1\n"                                                                               \
  "add %[next], %[w], #64\n csel %[w], %[next], %[w], ne\n"                                                 \
  "add %[next], %[y], #16\n csel %[y], %[next], %[y], ne\n"                                                 \
  "prfm pldl1keep, [%[w], #960]\n"                                                                          \
  TRITIUM_TOKEN_LINE(20, 0) "ldr q20, [%[w]]\n" more0                                                             \
  TRITIUM_TOKEN_LINE(21, 1) "ldr q21, [%[w], #16]\n" more1                                                        \
  TRITIUM_TOKEN_LINE(22, 2) "ldr q22, [%[w], #32]\n" more2                                                        \
  TRITIUM_TOKEN_LINE(23, 3) "ldr q23, [%[w], #48]\n ldr q24, [%[y]]\n" more3

// T[view][4 rows] of 16 rows x 16*tiles k against one token. 7 vector operations for 64 weights; v29-31 masks.
inline void tern_dot1(const std::int8_t* w, const std::int8_t* y, std::int64_t tiles, std::int32_t* t) {
  const std::int8_t* next;
  asm volatile(
      TRITIUM_MASKS TRITIUM_ZERO4(0, 1, 2, 3) TRITIUM_TOKEN_LOAD
      "1:\n"
      TRITIUM_TOKEN_TILE("", "", "", "")
      "cbnz %[all], 1b\n"
      "stp q0, q1, [%[t]]\n"
      "stp q2, q3, [%[t], #32]\n"
      : [w] "+&r"(w), [y] "+&r"(y), [all] "+&r"(tiles), [next] "=&r"(next)
      : [t] "r"(t)
      : "memory", "cc", TRITIUM_VECTORS);
}

// One view (in register w) against 4 or 6 tokens. Six tokens of a line lie in two registers.
#define TRITIUM_ROW4(w, y, s0, s1, s2, s3) \
  TRITIUM_DOT(s0, w, y, 0) TRITIUM_DOT(s1, w, y, 1) TRITIUM_DOT(s2, w, y, 2) TRITIUM_DOT(s3, w, y, 3)
#define TRITIUM_EVEN6(w, s0, s1, s2, s3, s4, s5) \
  TRITIUM_ROW4(w, 24, s0, s1, s2, s3) TRITIUM_DOT(s4, w, 25, 0) TRITIUM_DOT(s5, w, 25, 1)
#define TRITIUM_ODD6(w, s0, s1, s2, s3, s4, s5) \
  TRITIUM_DOT(s0, w, 25, 2) TRITIUM_DOT(s1, w, 25, 3) TRITIUM_ROW4(w, 26, s2, s3, s4, s5)

// T[view][token][4 rows] += 16 rows x 8*pairs k against 6 tokens. v0-23: sums; v27, v28: a line's views, each made
// while the previous one is multiplied; v24-26: activations of two lines. After the last line the first is read again.
inline void tern_dot6(const std::int8_t* w, const std::int8_t* y, std::int64_t pairs, std::int32_t* t) {
  const std::int8_t* const first = w;
  asm volatile(
      TRITIUM_MASKS TRITIUM_SUMS24(ldp)
      "ldr q27, [%[w]], #16\n"
      "1:\n"
      "ldp q24, q25, [%[y]]\n"
      "ldr q26, [%[y], #32]\n"
      "add %[y], %[y], #48\n"
      "prfm pldl1keep, [%[w], #512]\n"
      TRITIUM_AND(28, 27, 31) TRITIUM_EVEN6(27, 18, 19, 20, 21, 22, 23)
      TRITIUM_AND(27, 27, 30) TRITIUM_EVEN6(28, 12, 13, 14, 15, 16, 17)
      TRITIUM_AND(28, 27, 29) TRITIUM_EVEN6(27, 6, 7, 8, 9, 10, 11)
      "ldr q27, [%[w]], #16\n" TRITIUM_EVEN6(28, 0, 1, 2, 3, 4, 5)
      TRITIUM_AND(28, 27, 31) TRITIUM_ODD6(27, 18, 19, 20, 21, 22, 23)
      TRITIUM_AND(27, 27, 30) TRITIUM_ODD6(28, 12, 13, 14, 15, 16, 17)
      "subs %[n], %[n], #1\n"
      "csel %[w], %[first], %[w], eq\n"
      TRITIUM_AND(28, 27, 29) TRITIUM_ODD6(27, 6, 7, 8, 9, 10, 11)
      "ldr q27, [%[w]], #16\n" TRITIUM_ODD6(28, 0, 1, 2, 3, 4, 5)
      "b.ne 1b\n"
      TRITIUM_SUMS24(stp)
      : [w] "+&r"(w), [y] "+&r"(y), [n] "+&r"(pairs)
      : [t] "r"(t), [first] "r"(first)
      : "memory", "cc", TRITIUM_VECTORS);
}

// The same against 4 tokens. v0-15: sums.
inline void tern_dot4(const std::int8_t* w, const std::int8_t* y, std::int64_t pairs, std::int32_t* t) {
  const std::int8_t* const first = w;
#define TRITIUM_LINE(y, before_next)                                         \
  TRITIUM_AND(28, 27, 31) TRITIUM_ROW4(27, y, 12, 13, 14, 15)                \
  TRITIUM_AND(27, 27, 30) TRITIUM_ROW4(28, y, 8, 9, 10, 11)                  \
  TRITIUM_AND(28, 27, 29) TRITIUM_ROW4(27, y, 4, 5, 6, 7)                    \
  before_next "ldr q27, [%[w]], #16\n" TRITIUM_ROW4(28, y, 0, 1, 2, 3)
  asm volatile(
      TRITIUM_MASKS TRITIUM_SUMS16(ldp)
      "ldr q27, [%[w]], #16\n"
      "1:\n"
      "ldp q24, q25, [%[y]], #32\n"
      "prfm pldl1keep, [%[w], #512]\n"
      TRITIUM_LINE(24, "")
      TRITIUM_LINE(25, "subs %[n], %[n], #1\n csel %[w], %[first], %[w], eq\n")
      "b.ne 1b\n"
      TRITIUM_SUMS16(stp)
      : [w] "+&r"(w), [y] "+&r"(y), [n] "+&r"(pairs)
      : [t] "r"(t), [first] "r"(first)
      : "memory", "cc", TRITIUM_VECTORS);
#undef TRITIUM_LINE
}

#define TRITIUM_ROW16(w, y0, y1, y2, y3)                                             \
  TRITIUM_ROW4(w, y0, 0, 1, 2, 3) TRITIUM_ROW4(w, y1, 4, 5, 6, 7)                    \
  TRITIUM_ROW4(w, y2, 8, 9, 10, 11) TRITIUM_ROW4(w, y3, 12, 13, 14, 15)

// t[16 tokens][4 rows] += one view (b & mask) of 8*pairs k. v0-15: sums; v24, v25: the view of two lines, made a round
// ahead of its use from v26, v27 (worth 15-19 % on a Neoverse-N1); v16-23: their activations.
inline void tern_view16(const std::int8_t* w, const std::int8_t* y, std::int64_t pairs, std::int32_t* t, int mask) {
  const std::int8_t* const first = w;
  asm volatile(
      TRITIUM_SUMS16(ldp)
      "dup v31.16b, %w[mask]\n"
      "ldp q24, q25, [%[w]], #32\n"
      TRITIUM_AND(24, 24, 31) TRITIUM_AND(25, 25, 31)
      "1:\n"
      "subs %[n], %[n], #1\n"
      "csel %[w], %[first], %[w], eq\n"
      "ldp q26, q27, [%[w]], #32\n"
      "ldp q16, q17, [%[y]]\n"
      "ldp q18, q19, [%[y], #32]\n"
      "ldp q20, q21, [%[y], #64]\n"
      "ldp q22, q23, [%[y], #96]\n"
      "add %[y], %[y], #128\n"
      TRITIUM_ROW16(24, 16, 17, 18, 19) TRITIUM_AND(24, 26, 31)
      TRITIUM_ROW16(25, 20, 21, 22, 23) TRITIUM_AND(25, 27, 31)
      "b.ne 1b\n"
      TRITIUM_SUMS16(stp)
      : [w] "+&r"(w), [y] "+&r"(y), [n] "+&r"(pairs)
      : [t] "r"(t), [first] "r"(first), [mask] "r"(mask)
      : "memory", "cc", TRITIUM_VECTORS);
}

// The same with the view b itself, which needs no mask.
inline void tern_view16(const std::int8_t* w, const std::int8_t* y, std::int64_t pairs, std::int32_t* t) {
  asm volatile(
      TRITIUM_SUMS16(ldp)
      "1:\n"
      "ldp q24, q25, [%[w]], #32\n"
      "ldp q16, q17, [%[y]]\n"
      "ldp q18, q19, [%[y], #32]\n"
      "ldp q20, q21, [%[y], #64]\n"
      "ldp q22, q23, [%[y], #96]\n"
      "add %[y], %[y], #128\n"
      TRITIUM_ROW16(24, 16, 17, 18, 19)
      TRITIUM_ROW16(25, 20, 21, 22, 23)
      "subs %[n], %[n], #1\n"
      "b.ne 1b\n"
      TRITIUM_SUMS16(stp)
      : [w] "+&r"(w), [y] "+&r"(y), [n] "+&r"(pairs)
      : [t] "r"(t)
      : "memory", "cc", TRITIUM_VECTORS);
}

// Two registers of 4 rows (v24, v25) against 4 tokens.
#define TRITIUM_TILE8(y, a, b, c, d, e, f, g, h)                                                     \
  TRITIUM_DOT(a, 24, y, 0) TRITIUM_DOT(b, 25, y, 0) TRITIUM_DOT(c, 24, y, 1) TRITIUM_DOT(d, 25, y, 1) \
  TRITIUM_DOT(e, 24, y, 2) TRITIUM_DOT(f, 25, y, 2) TRITIUM_DOT(g, 24, y, 3) TRITIUM_DOT(h, 25, y, 3)

// Adds the products of n steps of 4 columns to v0-23: 8 rows (v24-25) against 12 tokens (v26-28).
#define TRITIUM_TILE12                              \
  "1:\n"                                            \
  "ldp q24, q25, [%[w]], #32\n"                     \
  "ldp q26, q27, [%[y]]\n"                          \
  "ldr q28, [%[y], #32]\n"                          \
  "add %[y], %[y], #48\n"                           \
  "prfm pldl1keep, [%[w], #512]\n"                  \
  TRITIUM_TILE8(26, 0, 1, 2, 3, 4, 5, 6, 7)         \
  TRITIUM_TILE8(27, 8, 9, 10, 11, 12, 13, 14, 15)   \
  TRITIUM_TILE8(28, 16, 17, 18, 19, 20, 21, 22, 23) \
  "subs %[n], %[n], #1\n"                           \
  "b.ne 1b\n"

// t[12 tokens][8 rows] += w[k/4][8 rows][4] * y[k/4][12 tokens][4], int8, 4*steps k. v0-23: sums.
inline void tile_dot12(const std::int8_t* w, const std::int8_t* y, std::int64_t steps, std::int32_t* t) {
  asm volatile(
      TRITIUM_SUMS24(ldp)
      TRITIUM_TILE12
      TRITIUM_SUMS24(stp)
      : [w] "+&r"(w), [y] "+&r"(y), [n] "+&r"(steps)
      : [t] "r"(t)
      : "memory", "cc", TRITIUM_VECTORS);
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
