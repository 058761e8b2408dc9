// first_illegal: bytes are looked up in a table; elements are only told apart once a bad byte was seen.
#include "check.h"

#include <array>

#define TRITIUM_ISA portable
#include "formats.h"

namespace tritium {
namespace {

using std::int64_t;
using std::uint8_t;
using namespace portable;

// Which fields of a byte are no code: bit j for field j.
template <DType F>
unsigned bad_fields(unsigned byte) {
  unsigned bad = 0;
  if constexpr (F == DType::tern5) {
    bad = byte > 242 ? 31 : 0;
  } else if constexpr (F == DType::tern5_r80) {
    int v[5];
    for (int j = 0; j < 5; ++j) v[j] = field_value<F>(static_cast<uint8_t>(byte), j);
    bad = field_byte<F>(v) != byte ? 31 : 0;
  } else if constexpr (F == DType::tern2 || F == DType::tern2_r64 || F == DType::tern2_r16) {
    for (int j = 0; j < 4; ++j) {
      const int value = field_value<F>(static_cast<uint8_t>(byte), j);
      if (value < -1 || value > 1) bad |= 1u << j;
    }
  }
  return bad;
}

// Whether a field of two bits is 3 somewhere: one bit of a pair and the other.
bool has_three(const uint8_t* bytes, int64_t n) {
  constexpr std::uint64_t kLow = 0x5555555555555555;
  std::uint64_t both = 0, w = 0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    std::memcpy(&w, bytes + i, 8);
    both |= w & w >> 1 & kLow;
  }
  w = 0;
  std::memcpy(&w, bytes + i, static_cast<std::size_t>(n - i));
  return (both | (w & w >> 1 & kLow)) != 0;
}

// Whether a byte is above 242 somewhere: its high bit is set, and the others carry into it with 13 added.
bool has_above_242(const uint8_t* bytes, int64_t n) {
  constexpr std::uint64_t kHigh = 0x8080808080808080, kAdded = 0x0d0d0d0d0d0d0d0d;
  std::uint64_t above = 0, w = 0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    std::memcpy(&w, bytes + i, 8);
    above |= ((w & ~kHigh) + kAdded) & w & kHigh;
  }
  w = 0;
  std::memcpy(&w, bytes + i, static_cast<std::size_t>(n - i));
  return (above | (((w & ~kHigh) + kAdded) & w & kHigh)) != 0;
}

template <DType F>
int64_t search(const Weights& w) {
  if constexpr (F == DType::i8 || F == DType::i4 || F == DType::i8_r16 || F == DType::i4_r32) return -1;
  static const std::array<uint8_t, 256> bad = [] {
    std::array<uint8_t, 256> out{};
    for (unsigned b = 0; b < 256; ++b) out[b] = static_cast<uint8_t>(bad_fields<F>(b));
    return out;
  }();
  const auto* bytes = reinterpret_cast<const uint8_t*>(w.data);
  if constexpr (tile(F).rows == 1) {
    for (int64_t r = 0; r < w.n; ++r) {
      const uint8_t* const row = bytes + r * w.row;
      if (F == DType::tern2 && !has_three(row, (w.k + 3) / 4)) continue;
      if (F == DType::tern5 && !has_above_242(row, (w.k + 4) / 5)) continue;
      for (int64_t i = 0; i * kFields<F> < w.k; ++i) {
        for (int j = 0; bad[row[i]] && j < kFields<F>; ++j) {
          if (bad[row[i]] >> j & 1 && i * kFields<F> + j < w.k) return r * w.k + i * kFields<F> + j;
        }
      }
    }
    return -1;
  }
  constexpr int L = lanes(F);
  for (int64_t block = 0; block * tile(F).rows < w.n; ++block) {
    const uint8_t* const first = bytes + block * w.row;
    unsigned seen = 0;
    for (int64_t i = 0; i < w.row; ++i) seen |= bad[first[i]];
    const int64_t end = (block + 1) * tile(F).rows < w.n ? (block + 1) * tile(F).rows : w.n;
    for (int64_t r = block * tile(F).rows; seen && r < end; ++r) {
      for (int64_t k = 0; k < w.k; ++k) {
        const uint8_t byte = first[k / 4 * 4 * L + r % L * 4 + k % 4];
        if (bad[byte] >> (r % tile(F).rows / L) & 1) return r * w.k + k;
      }
    }
  }
  return -1;
}

}  // namespace

int64_t first_illegal(const View& view) {
  const Weights w(view);
  return with_format(view.dtype, [&]<DType F>() { return search<F>(w); });
}

}  // namespace tritium
