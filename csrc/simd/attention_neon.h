// The inner loops of attention's two products on ARM, where a compiler moves sums from register to register.
#pragma once

#if defined(__aarch64__)

#include <cstdint>

#include "span.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kMixKeys = 64;  // weights of a query

#define TRITIUM_SCORE(k, q0, q1, q2, q3, a, b, c, d)                                                          \
  "fmla v" #a ".2d, v" #k ".2d, v" #q0 ".2d\n fmla v" #b ".2d, v" #k ".2d, v" #q1 ".2d\n"                     \
  "fmla v" #c ".2d, v" #k ".2d, v" #q2 ".2d\n fmla v" #d ".2d, v" #k ".2d, v" #q3 ".2d\n"
#define TRITIUM_PUT_SCORES(a, b, c, d, at)                                                                    \
  "faddp v" #a ".2d, v" #a ".2d, v" #b ".2d\n faddp v" #c ".2d, v" #c ".2d, v" #d ".2d\n"                     \
  "stp q" #a ", q" #c ", [%[scores], #" #at "]\n"

// scores[query * kMixKeys + key] = q[query] . k[key] for 4 queries, `size` apart, and 4 keys; `size`: a multiple of 4.
// Even and odd elements have sums of their own. v0-15: sums; v16-23: queries, v24-31: keys, two vectors each.
inline void score_four(const double* q, const double* const* keys, std::int64_t size, double* scores) {
  const double *q0 = q, *q1 = q + size, *q2 = q + 2 * size, *q3 = q + 3 * size;
  const double *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
  std::int64_t n = size / 4;
  asm volatile(
      "movi v0.2d, #0\n movi v1.2d, #0\n movi v2.2d, #0\n movi v3.2d, #0\n movi v4.2d, #0\n movi v5.2d, #0\n"
      "movi v6.2d, #0\n movi v7.2d, #0\n movi v8.2d, #0\n movi v9.2d, #0\n movi v10.2d, #0\n movi v11.2d, #0\n"
      "movi v12.2d, #0\n movi v13.2d, #0\n movi v14.2d, #0\n movi v15.2d, #0\n"
      "1:\n"
      "ldp q24, q25, [%[k0]], #32\n"
      "ldp q16, q20, [%[q0]], #32\n ldp q17, q21, [%[q1]], #32\n"
      "ldp q18, q22, [%[q2]], #32\n ldp q19, q23, [%[q3]], #32\n"
      "ldp q26, q27, [%[k1]], #32\n"
      TRITIUM_SCORE(24, 16, 17, 18, 19, 0, 4, 8, 12)
      "ldp q28, q29, [%[k2]], #32\n"
      TRITIUM_SCORE(26, 16, 17, 18, 19, 1, 5, 9, 13)
      "ldp q30, q31, [%[k3]], #32\n"
      "subs %[n], %[n], #1\n"
      TRITIUM_SCORE(28, 16, 17, 18, 19, 2, 6, 10, 14) TRITIUM_SCORE(30, 16, 17, 18, 19, 3, 7, 11, 15)
      TRITIUM_SCORE(25, 20, 21, 22, 23, 0, 4, 8, 12) TRITIUM_SCORE(27, 20, 21, 22, 23, 1, 5, 9, 13)
      TRITIUM_SCORE(29, 20, 21, 22, 23, 2, 6, 10, 14) TRITIUM_SCORE(31, 20, 21, 22, 23, 3, 7, 11, 15)
      "b.ne 1b\n"
      TRITIUM_PUT_SCORES(0, 1, 2, 3, 0)
      "add %[scores], %[scores], #512\n"
      TRITIUM_PUT_SCORES(4, 5, 6, 7, 0) TRITIUM_PUT_SCORES(8, 9, 10, 11, 512)
      "add %[scores], %[scores], #1024\n"
      TRITIUM_PUT_SCORES(12, 13, 14, 15, 0)
      : [q0] "+&r"(q0), [q1] "+&r"(q1), [q2] "+&r"(q2), [q3] "+&r"(q3), [k0] "+&r"(k0), [k1] "+&r"(k1),
        [k2] "+&r"(k2), [k3] "+&r"(k3), [n] "+&r"(n), [scores] "+&r"(scores)
      :
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30",
        "v31");
}
#undef TRITIUM_SCORE
#undef TRITIUM_PUT_SCORES

#define TRITIUM_FADE(row, fade, a, b, c, d)                                             \
  "ldp q" #a ", q" #b ", [%[" #row "]]\n ldp q" #c ", q" #d ", [%[" #row "], #32]\n"     \
  "ldr d" #fade ", [%[fade]], #8\n"                                                     \
  "fmul v" #a ".2d, v" #a ".2d, v" #fade ".d[0]\n fmul v" #b ".2d, v" #b ".2d, v" #fade ".d[0]\n" \
  "fmul v" #c ".2d, v" #c ".2d, v" #fade ".d[0]\n fmul v" #d ".2d, v" #d ".2d, v" #fade ".d[0]\n"
#define TRITIUM_PUT(row, a, b, c, d) \
  "stp q" #a ", q" #b ", [%[" #row "]]\n stp q" #c ", q" #d ", [%[" #row "], #32]\n"
#define TRITIUM_MIX(v, lane, a, b, c, d)                                                                      \
  "fmla v" #a ".2d, v" #v ".2d, v16.d[" #lane "]\n fmla v" #b ".2d, v" #v ".2d, v17.d[" #lane "]\n"           \
  "fmla v" #c ".2d, v" #v ".2d, v18.d[" #lane "]\n fmla v" #d ".2d, v" #v ".2d, v19.d[" #lane "]\n"

// o[4 queries, `size` apart][8] = o * fade[query] + weights p[query * kMixKeys + key] * values v[key][8], of `pairs` > 0
// pairs of keys in order. v0-15: sums; v16-19: weights of two keys; v20-27: their values.
// A weight is a lane of two that are loaded together: to load one for both lanes takes a unit that multiplies.
inline void mix_pairs(const double* p, const double* fade, const double* v, std::int64_t pairs, double* o,
                      std::int64_t size) {
  asm volatile(
      TRITIUM_FADE(o0, 16, 0, 1, 2, 3) TRITIUM_FADE(o1, 17, 4, 5, 6, 7)
      TRITIUM_FADE(o2, 18, 8, 9, 10, 11) TRITIUM_FADE(o3, 19, 12, 13, 14, 15)
      "1:\n"
      "ldp q20, q21, [%[v]]\n"
      "ldr q16, [%[p]]\n ldr q17, [%[p], #512]\n ldr q18, [%[p], #1024]\n ldr q19, [%[p], #1536]\n"
      "ldp q22, q23, [%[v], #32]\n"
      "add %[p], %[p], #16\n"
      TRITIUM_MIX(20, 0, 0, 4, 8, 12) TRITIUM_MIX(21, 0, 1, 5, 9, 13)
      "ldp q24, q25, [%[v], #64]\n ldp q26, q27, [%[v], #96]\n"
      "add %[v], %[v], #128\n"
      "subs %[pairs], %[pairs], #1\n"
      TRITIUM_MIX(22, 0, 2, 6, 10, 14) TRITIUM_MIX(23, 0, 3, 7, 11, 15)
      TRITIUM_MIX(24, 1, 0, 4, 8, 12) TRITIUM_MIX(25, 1, 1, 5, 9, 13)
      TRITIUM_MIX(26, 1, 2, 6, 10, 14) TRITIUM_MIX(27, 1, 3, 7, 11, 15)
      "b.ne 1b\n"
      TRITIUM_PUT(o0, 0, 1, 2, 3) TRITIUM_PUT(o1, 4, 5, 6, 7) TRITIUM_PUT(o2, 8, 9, 10, 11) TRITIUM_PUT(o3, 12, 13, 14, 15)
      : [p] "+&r"(p), [fade] "+&r"(fade), [v] "+&r"(v), [pairs] "+&r"(pairs)
      : [o0] "r"(o), [o1] "r"(o + size), [o2] "r"(o + 2 * size), [o3] "r"(o + 3 * size)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
        "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27");
}
#undef TRITIUM_FADE
#undef TRITIUM_PUT
#undef TRITIUM_MIX

}  // namespace tritium::TRITIUM_ISA

#endif
