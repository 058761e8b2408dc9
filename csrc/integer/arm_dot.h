// Sums of views with sdot, for any format: 16 or 32 rows against 1, 2 or 4 tokens (ternary: also 6).
#pragma once

#include <utility>

#include "arm_formats.h"
#include "arm_sdot.h"

namespace tritium::TRITIUM_ISA {
namespace {

// The intrinsic is a macro that takes no parameter packs.
template <int I>
TRITIUM_INLINE int32x4_t dot_group(int32x4_t sum, int8x16_t w, int8x16_t y) {
  return vdotq_laneq_s32(sum, w, y, I);
}

// Adds line L to the sums of S strips. Token c of it is the group L * C + c of 4 bytes in the activations.
template <class F, int C, int S, int L, int... c>
TRITIUM_INLINE void dot_line(const int8_t* line, const int8x16_t* y, int32x4_t a[S][4][C],
                             std::integer_sequence<int, c...>) {
  for (int s = 0; s < S; ++s) {
    int8x16_t b[F::kVectors], v[4];
    load<F>(line, s, b);
    F::views(b, v);
    for (int i = 0; i < 4; ++i) {
      ((a[s][i][c] = dot_group<(L * C + c) % 4>(a[s][i][c], v[i], y[(L * C + c) / 4])), ...);
    }
  }
}

// t[S strips][4 quads][C tokens][4 rows] += k, a multiple of 16. y: a panel of C tokens, interleaved by 4.
// Lines are taken together until their activations fill registers. Even and odd ones have sums of their own where one
// set of sums would wait for itself.
template <class F, int C, int S>
inline void dot(const int8_t* w, const int8_t* y, int64_t k, int32_t* t) {
  constexpr auto kAll = std::make_integer_sequence<int, C>();
  constexpr int kLines = C == 1 ? 4 : 2, kLoads = kLines * C / 4, kOdd = C * S == 1 ? 1 : 0;
  int32x4_t a[1 + kOdd][S][4][C];
  for (int s = 0; s < S; ++s) {
    for (int i = 0; i < 4; ++i) {
      for (int c = 0; c < C; ++c) {
        a[0][s][i][c] = vld1q_s32(t + ((s * 4 + i) * C + c) * 4);
        if (kOdd) a[kOdd][s][i][c] = vdupq_n_s32(0);
      }
    }
  }
  for (; k > 0; k -= 4 * kLines, w += kLines * F::kLine, y += 16 * kLoads) {
    int8x16_t v[kLoads];
    for (int i = 0; i < kLoads; ++i) v[i] = vld1q_s8(y + 16 * i);
    for (int i = 0; i < kLines * F::kLine; i += 64) __builtin_prefetch(w + 2048 + i);
    dot_line<F, C, S, 0>(w, v, a[0], kAll);
    dot_line<F, C, S, 1>(w + F::kLine, v, a[kOdd], kAll);
    if constexpr (kLines == 4) {
      dot_line<F, C, S, 2>(w + 2 * F::kLine, v, a[0], kAll);
      dot_line<F, C, S, 3>(w + 3 * F::kLine, v, a[kOdd], kAll);
    }
  }
  for (int s = 0; s < S; ++s) {
    for (int i = 0; i < 4; ++i) {
      for (int c = 0; c < C; ++c, t += 4) {
        vst1q_s32(t, kOdd ? vaddq_s32(a[0][s][i][c], a[kOdd][s][i][c]) : a[0][s][i][c]);
      }
    }
  }
}

// Sums of views to sums of weights: to[row of the block] of one token from its four quads.
template <class F>
TRITIUM_INLINE void finish_strip(int32x4_t t[4], int strip, int32_t sum, int32_t* to) {
  F::sums(t, sum);
  for (int i = 0; i < 4; ++i) vst1q_s32(to + F::row(strip, i / 2) + i % 2 * 4, t[i]);
}

// t[view][token][4 rows] += the views of 16 ternary rows for C tokens.
template <int C>
TRITIUM_INLINE void add_ternary(const int8_t* w, const int8_t* y, int64_t k, int32_t* t) {
  if constexpr (C == 4) {
    tern_dot4(w, y, k / 8, t);
  } else if constexpr (C == 6) {
    tern_dot6(w, y, k / 8, t);
  } else {
    dot<Tern2, C, 1>(w, y, k, t);
  }
}

// The sums of one block of rows for C tokens: to[token * kChunkRows + row]. sums: those of the tokens' q.
template <class F, int C>
void dot_block(const int8_t* w, const int8_t* y, int64_t k, const int32_t* sums, int32_t* to) {
  constexpr int kAtOnce = C == 1 ? F::kStrips : 1;  // as registers allow
  for (int s = 0; s < F::kStrips; s += kAtOnce) {
    alignas(64) int32_t t[kAtOnce][4][C][4] = {};
    const int8_t* const from = w + s * F::kVectors * 16;
    if constexpr (F::kTernary && C == 1) {
      tern_dot1(from, y, k / 16, t[0][0][0]);
    } else if constexpr (F::kTernary) {
      add_ternary<C>(from, y, k, t[0][0][0]);
    } else {
      dot<F, C, kAtOnce>(from, y, k, t[0][0][0]);
    }
    for (int i = 0; i < kAtOnce; ++i) {
      for (int c = 0; c < C; ++c) {
        int32x4_t quads[4];
        for (int q = 0; q < 4; ++q) quads[q] = vld1q_s32(t[i][q][c]);
        finish_strip<F>(quads, s + i, sums[c], to + c * kChunkRows);
      }
    }
  }
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
