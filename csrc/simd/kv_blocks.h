// Rows of a KV cache as blocks of 32 integers of 8 or 4 bits with a scale: the blocks of GGML's Q8_0 and Q4_0.
// Every step is in f64 and in one order, so that every instruction set gives the same bits; to be
// compiled without contraction.
#pragma once

#include <cstdint>
#include <cstring>

#include "half.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kKvBlock = 32;      // elements that share a scale
constexpr std::int64_t kKvBytes8 = 34;     // a scale in f16, then an i8 for each element
constexpr std::int64_t kKvBytes4 = 18;     // a scale in f16, then bytes of element i (low) and i + 16 (high), each plus 8
constexpr double kKvLargest = 65504.0;     // of f16
constexpr double kKvShares[] = {1.0, 0.95, 0.9, 0.85, 0.8, 0.75};  // of the largest element that the largest code may stand for

// The scale of a block as it is stored, and as the number that it is.
struct KvScale {
  std::uint16_t stored;
  double value;

  explicit KvScale(double wanted) : stored(f32_to_f16(static_cast<float>(wanted))), value(static_cast<double>(f16_to_f32(stored))) {}
};

// codes[i] = x[i] / scale, rounded to nearest, within the limits; the sum of squared errors, in eight lanes that are then added.
TRITIUM_INLINE double kv_codes(const double* x, double scale, double low, double high, double* codes) {
  const double inverse = scale == 0 ? 0.0 : 1.0 / scale;
  double squares[kKvBlock];
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < kKvBlock; ++i) {
    const double near = __builtin_rint(x[i] * inverse);
    const double code = near < low ? low : near > high ? high : near;
    const double off = x[i] - code * scale;
    codes[i] = code;
    squares[i] = off * off;
  }
  double total = 0;
  for (int j = 0; j < 8; ++j) total += ((squares[j] + squares[8 + j]) + squares[16 + j]) + squares[24 + j];
  return total;
}

// One block of floats as 8 or 4 bits. Of a number that is none, and of one too large for a scale, the scale is NaN.
inline void kv_quantize(const float* from, bool four, char* to) {
  double x[kKvBlock], codes[kKvBlock], best[kKvBlock] = {};
  double largest = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < kKvBlock; ++i) {
    x[i] = static_cast<double>(from[i]);
    const double size = __builtin_fabs(x[i]);
    finite = finite && size <= kKvLargest * (four ? 7 : 127);
    if (size > largest) largest = size;
  }
  KvScale scale(finite ? largest / (four ? 7 : 127) : __builtin_nan(""));
  if (finite && !four) kv_codes(x, scale.value, -127, 127, best);
  if (finite && four) {
    double least = math::kInf64;
    for (const double share : kKvShares) {
      const KvScale tried(largest / 7 * share);
      const double error = kv_codes(x, tried.value, -8, 7, codes);
      if (!(error < least)) continue;
      least = error;
      scale = tried;
      std::memcpy(best, codes, sizeof best);
    }
  }
  std::memcpy(to, &scale.stored, 2);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(to + 2);
  if (four) {
    for (std::int64_t i = 0; i < 16; ++i) {
      const auto low = static_cast<unsigned>(static_cast<int>(best[i]) + 8), high = static_cast<unsigned>(static_cast<int>(best[i + 16]) + 8);
      bytes[i] = static_cast<std::uint8_t>(low | high << 4);
    }
  } else {
    for (std::int64_t i = 0; i < kKvBlock; ++i) bytes[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(best[i]));
  }
}

// A row of blocks, whose bytes are `step` apart, as f64; zeros from `size`, a number of whole blocks, up to `end`.
inline void kv_widen(const char* from, std::int64_t step, bool four, double* to, std::int64_t size, std::int64_t end) {
  const std::int64_t count = four ? kKvBytes4 : kKvBytes8;
  char aside[kKvBytes8];
  for (std::int64_t d = 0; d < size; d += kKvBlock, from += count * step) {
    const char* block = from;
    if (step != 1) {
      for (std::int64_t i = 0; i < count; ++i) aside[i] = from[i * step];
      block = aside;
    }
    std::uint16_t stored;
    std::memcpy(&stored, block, 2);
    const double scale = static_cast<double>(f16_to_f32(stored));
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(block + 2);
    if (four) {
      TRITIUM_LOOP
      for (std::int64_t i = 0; i < 16; ++i) {
        to[d + i] = static_cast<double>(static_cast<int>(bytes[i] & 15) - 8) * scale;
        to[d + i + 16] = static_cast<double>(static_cast<int>(bytes[i] >> 4) - 8) * scale;
      }
    } else {
      TRITIUM_LOOP
      for (std::int64_t i = 0; i < kKvBlock; ++i) to[d + i] = static_cast<double>(static_cast<std::int8_t>(bytes[i])) * scale;
    }
  }
  for (std::int64_t d = size; d < end; ++d) to[d] = 0;
}

}  // namespace tritium::TRITIUM_ISA
