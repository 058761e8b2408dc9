// The hand-scheduled smmla loops: tern2_r16 against 6 tokens, and int8 panels of 8 rows against 12 tokens.
//
// Activations come as panels y[k/8][token][8]: a vector is 2 tokens x 8 k. smmla acc.4s, y.16b, w.16b adds the 2 x 2
// products of 2 tokens with 2 rows over 8 k: acc = {t0r0, t0r1, t1r0, t1r1}. Two lines of 4 k, zipped by 32-bit lanes,
// give such vectors of 2 rows: zip1 the rows 0 and 1 of a quad, zip2 the rows 2 and 3.
#pragma once

#include "arm_sdot.h"

#define TRITIUM_MMLA(acc, y, w) "smmla v" #acc ".4s, v" #y ".16b, v" #w ".16b\n"
#define TRITIUM_MMLA3(w, a, b, c) TRITIUM_MMLA(a, 24, w) TRITIUM_MMLA(b, 25, w) TRITIUM_MMLA(c, 26, w)

namespace tritium::TRITIUM_ISA {
namespace {

// t[view][row pair of a quad][token pair][2][2] of 16 rows x 8*pairs k against 6 tokens. v0-23: sums; v24-26:
// activations (before that, the two lines); v27, v28: the two row pairs, narrowed from view to view in place.
inline void tern_mmla6(const std::int8_t* w, const std::int8_t* y, std::int64_t pairs, std::int32_t* t) {
  asm volatile(
      TRITIUM_MASKS TRITIUM_ZERO4(0, 1, 2, 3) TRITIUM_ZERO4(4, 5, 6, 7) TRITIUM_ZERO4(8, 9, 10, 11)
      TRITIUM_ZERO4(12, 13, 14, 15) TRITIUM_ZERO4(16, 17, 18, 19) TRITIUM_ZERO4(20, 21, 22, 23)
      "1:\n"
      "ldp q24, q25, [%[w]], #32\n"
      "prfm pldl1keep, [%[w], #512]\n"
      "zip1 v27.4s, v24.4s, v25.4s\n"
      "zip2 v28.4s, v24.4s, v25.4s\n"
      "ldp q24, q25, [%[y]]\n"
      "ldr q26, [%[y], #32]\n"
      "add %[y], %[y], #48\n"
      TRITIUM_MMLA3(27, 18, 19, 20) TRITIUM_AND(27, 27, 31) TRITIUM_MMLA3(28, 21, 22, 23) TRITIUM_AND(28, 28, 31)
      TRITIUM_MMLA3(27, 12, 13, 14) TRITIUM_AND(27, 27, 30) TRITIUM_MMLA3(28, 15, 16, 17) TRITIUM_AND(28, 28, 30)
      TRITIUM_MMLA3(27, 6, 7, 8) TRITIUM_AND(27, 27, 29) TRITIUM_MMLA3(28, 9, 10, 11) TRITIUM_AND(28, 28, 29)
      TRITIUM_MMLA3(27, 0, 1, 2) TRITIUM_MMLA3(28, 3, 4, 5)
      "subs %[n], %[n], #1\n"
      "b.ne 1b\n"
      TRITIUM_SUMS24(stp)
      : [w] "+&r"(w), [y] "+&r"(y), [n] "+&r"(pairs)
      : [t] "r"(t)
      : "memory", "cc", TRITIUM_VECTORS);
}

// One token pair (register y) against the 8 rows in v24-27.
#define TRITIUM_MMLA8(y, a, b, c, d) \
  TRITIUM_MMLA(a, y, 24) TRITIUM_MMLA(b, y, 25) TRITIUM_MMLA(c, y, 26) TRITIUM_MMLA(d, y, 27)

// t[6 token pairs][4 row pairs][2][2] += w[k/8][8 rows][8] * y[k/8][12 tokens][8], int8, 8*steps k. v0-23: sums;
// v28-31: four token pairs, of which the first two make room for the last two.
inline void tile_mmla12(const std::int8_t* w, const std::int8_t* y, std::int64_t steps, std::int32_t* t) {
  asm volatile(
      TRITIUM_SUMS24(ldp)
      "1:\n"
      "ldp q24, q25, [%[w]]\n"
      "ldp q28, q29, [%[y]]\n"
      "ldp q26, q27, [%[w], #32]\n"
      "ldp q30, q31, [%[y], #32]\n"
      "prfm pldl1keep, [%[w], #1024]\n"
      "add %[w], %[w], #64\n"
      TRITIUM_MMLA8(28, 0, 1, 2, 3) TRITIUM_MMLA8(29, 4, 5, 6, 7)
      "ldp q28, q29, [%[y], #64]\n"
      "add %[y], %[y], #96\n"
      TRITIUM_MMLA8(30, 8, 9, 10, 11) TRITIUM_MMLA8(31, 12, 13, 14, 15)
      TRITIUM_MMLA8(28, 16, 17, 18, 19) TRITIUM_MMLA8(29, 20, 21, 22, 23)
      "subs %[n], %[n], #1\n"
      "b.ne 1b\n"
      TRITIUM_SUMS24(stp)
      : [w] "+&r"(w), [y] "+&r"(y), [n] "+&r"(steps)
      : [t] "r"(t)
      : "memory", "cc", TRITIUM_VECTORS);
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
