// The tile registers of AMX: 8 of 16 lines of 64 bytes, as functions of the registers' numbers.
// Written as assembly because a compiler's own functions take literal numbers only, and do
// not tell it that memory is read and written.
#pragma once

#include <cstdint>

#include "../simd/math.h"

namespace tritium::TRITIUM_ISA {
namespace {

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};
  std::uint8_t lines[16] = {};

  // Registers [0, few) get `lines_of_few` lines, the others all.
  TileConfig(int few, int lines_of_few) {
    for (int i = 0; i < 8; ++i) {
      bytes[i] = 64;
      lines[i] = static_cast<std::uint8_t>(i < few ? lines_of_few : 16);
    }
  }
};

// A thread sets the tiles up whenever it starts to use them: others may have used them meanwhile.
TRITIUM_INLINE void configure_tiles(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
TRITIUM_INLINE void release_tiles() { asm volatile("tilerelease"); }

template <int T>
TRITIUM_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
TRITIUM_INLINE void load_tile(const void* from, std::int64_t step = 64) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(step), "i"(T) : "memory");
}
template <int T>
TRITIUM_INLINE void store_tile(void* to, std::int64_t step) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(step), "i"(T) : "memory");
}
// Sums += signed q x unsigned w: for each line i of q and each four bytes j of a line of w, over 64 k.
template <int Sums, int Q, int W>
TRITIUM_INLINE void dot_tile() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Q), "i"(W));
}

// The same with signed w.
template <int Sums, int Q, int W>
TRITIUM_INLINE void dot_signed_tile() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Q), "i"(W));
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
