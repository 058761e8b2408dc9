// The three weight formats of the ARM kernels, in registers: strips of 16 rows, four at a time in each of four vectors.
// Knows nothing of activations, multiplication or tokens; only what a packed byte means and how sums come back from it.
//
// A line holds 4 k of all rows of a block; a vector of it is 4 rows x 4 k. A strip is what gives four such "quads":
//   tern2_r16: one vector, four fields.    b = c0 + 4 c1 + 16 c2 + 64 t3 (signed), c = t + 1
//   i8_r16:    four vectors, one field.    b = w + 128; b ^ 128, read as signed, is w
//   i4_r32:    two vectors, two fields.    b = (lo + 8) + 16 (hi + 8); b ^ 128, read as signed, is lo + 8 + 16 hi
// views() are what sdot and smmla multiply: each is one AND or EOR away from the packed byte and needs no shift, since
// the fields of a byte share their activation and sums of views differ by sums of fields. With T the sums of views over
// the same k and s = sum(q):
//   tern2_r16: views b & 3, b & 15, b & 63, b;
//              S0 = T0 - s, S1 = (T1 - T0) / 4 - s, S2 = (T2 - T1) / 16 - s, S3 = (T3 - T2) / 64
//   i8_r16:    view b ^ 128;            S = T
//   i4_r32:    views b & 15, b ^ 128;   Slo = T0 - 8 s, Shi = (T1 - T0) / 16
// The differences are exact multiples, so the shifts are exact; |T| <= 128 * 128 * K < 2^31 for K up to 65536.
// fields() are the plain weights up to a constant: field i = w + kOffset[i]. They serve unpacking and 16-bit sums.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "../simd/math.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int32_t;
using std::int64_t;
using std::int8_t;

constexpr int kChunkRows = 64;  // most rows whose sums lie side by side: to[token * kChunkRows + row]

struct Tern2 {
  static constexpr bool kTernary = true;
  static constexpr int kRows = 16, kStrips = 1, kLine = 16;  // rows and strips of a block, bytes of a line
  static constexpr int kVectors = 1;                         // of a strip in a line
  static constexpr int kOffset[4] = {1, 1, 1, 0};
  static constexpr int kMax = 2;  // of |field|
  static constexpr int kMost = 1;  // of |weight|

  TRITIUM_INLINE static void views(const int8x16_t* b, int8x16_t v[4]) {
    v[3] = b[0];
    v[2] = vandq_s8(b[0], vdupq_n_s8(63));
    v[1] = vandq_s8(b[0], vdupq_n_s8(15));
    v[0] = vandq_s8(b[0], vdupq_n_s8(3));
  }
  TRITIUM_INLINE static void fields(const int8x16_t* b, int8x16_t v[4]) {
    const uint8x16_t u = vreinterpretq_u8_s8(b[0]), three = vdupq_n_u8(3);
    v[0] = vreinterpretq_s8_u8(vandq_u8(u, three));
    v[1] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(u, 2), three));
    v[2] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(u, 4), three));
    v[3] = vshrq_n_s8(b[0], 6);
  }
  TRITIUM_INLINE static void sums(int32x4_t t[4], int32_t sum) {
    const int32x4_t s = vdupq_n_s32(sum);
    t[3] = vshrq_n_s32(vsubq_s32(t[3], t[2]), 6);
    t[2] = vsubq_s32(vshrq_n_s32(vsubq_s32(t[2], t[1]), 4), s);
    t[1] = vsubq_s32(vshrq_n_s32(vsubq_s32(t[1], t[0]), 2), s);
    t[0] = vsubq_s32(t[0], s);
  }
  // The first of the 8 rows that quads 2*half and 2*half + 1 of a strip hold.
  static constexpr int row(int /*strip*/, int half) { return 8 * half; }
};

struct Int8 {
  static constexpr bool kTernary = false;
  static constexpr int kRows = 16, kStrips = 1, kLine = 64;
  static constexpr int kVectors = 4;
  static constexpr int kOffset[4] = {0, 0, 0, 0};
  static constexpr int kMax = 128, kMost = 128;

  TRITIUM_INLINE static void views(const int8x16_t* b, int8x16_t v[4]) {
    for (int i = 0; i < 4; ++i) v[i] = veorq_s8(b[i], vdupq_n_s8(-128));
  }
  TRITIUM_INLINE static void fields(const int8x16_t* b, int8x16_t v[4]) { views(b, v); }
  TRITIUM_INLINE static void sums(int32x4_t[4], int32_t) {}
  static constexpr int row(int /*strip*/, int half) { return 8 * half; }
};

struct Int4 {
  static constexpr bool kTernary = false;
  static constexpr int kRows = 32, kStrips = 2, kLine = 64;
  static constexpr int kVectors = 2;
  static constexpr int kOffset[4] = {8, 8, 0, 0};
  static constexpr int kMax = 15, kMost = 8;

  TRITIUM_INLINE static void views(const int8x16_t* b, int8x16_t v[4]) {
    for (int i = 0; i < 2; ++i) {
      v[i] = vandq_s8(b[i], vdupq_n_s8(15));
      v[2 + i] = veorq_s8(b[i], vdupq_n_s8(-128));
    }
  }
  TRITIUM_INLINE static void fields(const int8x16_t* b, int8x16_t v[4]) {
    views(b, v);
    for (int i = 2; i < 4; ++i) v[i] = vshrq_n_s8(v[i], 4);
  }
  TRITIUM_INLINE static void sums(int32x4_t t[4], int32_t sum) {
    const int32x4_t s = vdupq_n_s32(8 * sum);
    for (int i = 0; i < 2; ++i) {
      t[2 + i] = vshrq_n_s32(vsubq_s32(t[2 + i], t[i]), 4);
      t[i] = vsubq_s32(t[i], s);
    }
  }
  static constexpr int row(int strip, int half) { return 8 * strip + 16 * half; }
};

// What a strip has in a line.
template <class F>
TRITIUM_INLINE void load(const int8_t* line, int strip, int8x16_t* b) {
  for (int i = 0; i < F::kVectors; ++i) b[i] = vld1q_s8(line + (strip * F::kVectors + i) * 16);
}

// The weights themselves: four quads of signed int8.
template <class F>
TRITIUM_INLINE void weights(const int8x16_t* b, int8x16_t v[4]) {
  F::fields(b, v);
  for (int i = 0; i < 4; ++i) {
    if (F::kOffset[i] != 0) v[i] = vsubq_s8(v[i], vdupq_n_s8(F::kOffset[i]));
  }
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
