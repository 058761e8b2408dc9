// The tiled formats of x86 as views of their bytes: a line of 64 bytes (16 rows of each field, 4 k), masked, is again a
// line of unsigned bytes. The sums of a field follow from differences of the sums over views, all exact:
//   tern2_r64  b = c0 + 4 c1 + 16 c2 + 64 c3   views b & 3, b & 15, b & 63, b    sum_f = (T_f - T_{f-1}) / 4^f
//   tern5_r80  b = ceil(256 v / 243)           views b, 3 b, 9 b, … mod 256      sum_f = (3 T_f - T_{f+1}) / 256,
//              since 3 b = 256 d + (3 b mod 256) where d is the first digit of v in base 3
//   i4_r32     b = c0 + 16 c1                  views b & 15, b                   sum_f = (T_f - T_{f-1}) / 16^f
//   i8_r16     b                               view  b                           sum_0 = T_0
#pragma once

#include "lanes.h"
#include "product.h"

namespace tritium::TRITIUM_ISA {
namespace {

struct Tern2R64 {
  static constexpr Coding coding = {64, 64, 1};
  static constexpr int fields = 4, views = 4, raw = 3;  // view `raw` is the byte as it is

  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void split(V b, V* view) {
    view[0] = L::masked(b, 3);
    view[1] = L::masked(b, 15);
    view[2] = L::masked(b, 63);
    view[3] = b;
  }
  // In place: sums over views become sums over fields.
  template <class Sum>
  TRITIUM_INLINE static void solve(Sum* t) {
    t[3] = (t[3] - t[2]) >> 6;
    t[2] = (t[2] - t[1]) >> 4;
    t[1] = (t[1] - t[0]) >> 2;
  }
  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void codes(V b, V* field) {
    field[0] = L::masked(b, 3);
    field[1] = L::masked(L::template right16<2>(b), 3);
    field[2] = L::masked(L::template right16<4>(b), 3);
    field[3] = L::masked(L::template right16<6>(b), 3);
  }
};

struct Tern5R80 {
  static constexpr Coding coding = {80, 80, 1};
  static constexpr int fields = 5, views = 6, raw = 0;

  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void split(V b, V* view) {
    view[0] = b;
    TRITIUM_UNROLL
    for (int i = 1; i < 6; ++i) view[i] = L::add8(view[i - 1], L::add8(view[i - 1], view[i - 1]));
  }
  template <class Sum>
  TRITIUM_INLINE static void solve(Sum* t) {
    TRITIUM_UNROLL
    for (int f = 0; f < 5; ++f) t[f] = (3 * t[f] - t[f + 1]) >> 8;
  }
  // The first digit of b is 1 from 256/3 on, 2 from 512/3 on.
  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void codes(V b, V* field) {
    TRITIUM_UNROLL
    for (int f = 0; f < 5; ++f) {
      field[f] = L::add8(L::reaches(b, 86), L::reaches(b, 171));
      b = L::add8(b, L::add8(b, b));
    }
  }
};

struct I4R32 {
  static constexpr Coding coding = {32, 32, 8};
  static constexpr int fields = 2, views = 2, raw = 1;

  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void split(V b, V* view) {
    view[0] = L::masked(b, 15);
    view[1] = b;
  }
  template <class Sum>
  TRITIUM_INLINE static void solve(Sum* t) {
    t[1] = (t[1] - t[0]) >> 4;
  }
  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void codes(V b, V* field) {
    field[0] = L::masked(b, 15);
    field[1] = L::masked(L::template right16<4>(b), 15);
  }
};

struct I8R16 {
  static constexpr Coding coding = {16, 16, 128};
  static constexpr int fields = 1, views = 1, raw = 0;

  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void split(V b, V* view) {
    view[0] = b;
  }
  template <class Sum>
  TRITIUM_INLINE static void solve(Sum*) {}
  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void codes(V b, V* field) {
    field[0] = b;
  }
};

constexpr std::uint32_t kFormats =
    bit(DType::tern2_r64) | bit(DType::tern5_r80) | bit(DType::i8_r16) | bit(DType::i4_r32);
constexpr int kLines = 16;             // of a unit
constexpr std::int64_t kLine = 64;     // bytes
constexpr std::int64_t kAhead = 4096;  // bytes ahead that weights are fetched into L2

}  // namespace
}  // namespace tritium::TRITIUM_ISA
