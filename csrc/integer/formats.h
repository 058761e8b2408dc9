// The weight formats, written plainly: the value of a byte's fields, and rows of values as bytes.
// This is what the layouts mean; the fast kernels only know sums over them.
#pragma once

#include <cstdint>
#include <cstring>

#include "../simd/math.h"
#include "../view.h"

namespace tritium::TRITIUM_ISA {

// A matrix of integer weights: N rows of K.
struct Weights {
  char* data;
  DType format;
  std::int64_t n, k;
  std::int64_t row;  // bytes between rows, or between blocks of rows of a tiled format
  std::int64_t step;  // bytes between the elements of a row of int8

  explicit Weights(const View& w)
      : data(w.data), format(w.dtype), n(w.shape[0]), k(w.shape[1]), row(w.strides[0]), step(w.strides[1]) {
    if (tile(format).rows > 1) row = matrix_bytes(format, 1, k);
  }
};

// Tiled formats: `lanes` rows lie side by side, 4 k of each, then the next 4 k; a byte holds one k of several rows,
// `lanes` apart, the fields. So row r of a block is field r / lanes of the bytes at lane r % lanes.
constexpr int lanes(DType format) { return format == DType::tern2_r16 ? 4 : 16; }

constexpr int kPow3[6] = {1, 3, 9, 27, 81, 243};

// The value of one field of a byte; of a format packed along a row field j is the j-th element.
template <DType F>
TRITIUM_INLINE int field_value(std::uint8_t byte, int field) {
  switch (F) {
    case DType::i8: return static_cast<std::int8_t>(byte);
    case DType::i4: return ((byte >> 4 * field & 15) ^ 8) - 8;
    case DType::tern2:
    case DType::tern2_r64: return (byte >> 2 * field & 3) - 1;
    case DType::tern5: return byte / kPow3[field] % 3 - 1;
    case DType::tern5_r80: return (static_cast<std::uint8_t>(byte * kPow3[field]) * 3 >> 8) - 1;
    case DType::tern2_r16: return field < 3 ? (byte >> 2 * field & 3) - 1 : static_cast<std::int8_t>(byte) >> 6;
    case DType::i8_r16: return byte - 128;
    default: return (byte >> 4 * field & 15) - 8;  // i4_r32
  }
}

// The byte of these field values, the other way round.
template <DType F>
TRITIUM_INLINE std::uint8_t field_byte(const int* v) {
  switch (F) {
    case DType::i8: return static_cast<std::uint8_t>(v[0]);
    case DType::i4: return static_cast<std::uint8_t>((v[0] & 15) | (v[1] & 15) << 4);
    case DType::tern2:
    case DType::tern2_r64:
      return static_cast<std::uint8_t>((v[0] + 1) | (v[1] + 1) << 2 | (v[2] + 1) << 4 | (v[3] + 1) << 6);
    case DType::tern5: return static_cast<std::uint8_t>(121 + v[0] + 3 * v[1] + 9 * v[2] + 27 * v[3] + 81 * v[4]);
    case DType::tern5_r80: {
      // A fraction of 243 as one of 256, rounded up: times 3 its whole part is the first digit, and so on.
      const int fraction = 121 + 81 * v[0] + 27 * v[1] + 9 * v[2] + 3 * v[3] + v[4];
      return static_cast<std::uint8_t>((256 * fraction + 242) / 243);
    }
    case DType::tern2_r16: return static_cast<std::uint8_t>(21 + v[0] + 4 * v[1] + 16 * v[2] + 64 * v[3]);
    case DType::i8_r16: return static_cast<std::uint8_t>(v[0] + 128);
    default: return static_cast<std::uint8_t>((v[0] + 8) | (v[1] + 8) << 4);  // i4_r32
  }
}

template <DType F>
inline constexpr int kFields = static_cast<int>(tile(F).rows > 1 ? tile(F).rows / lanes(F) : tile(F).block);

// Every format of weights.
constexpr std::uint32_t kWeightFormats = bit(DType::i8) | bit(DType::i4) | bit(DType::tern2) | bit(DType::tern5) |
                                         bit(DType::tern2_r64) | bit(DType::tern5_r80) | bit(DType::tern2_r16) |
                                         bit(DType::i8_r16) | bit(DType::i4_r32);

// Calls f with the format as a constant.
template <class Fn>
auto with_format(DType format, const Fn& f) {
  switch (format) {
    case DType::i8: return f.template operator()<DType::i8>();
    case DType::i4: return f.template operator()<DType::i4>();
    case DType::tern2: return f.template operator()<DType::tern2>();
    case DType::tern5: return f.template operator()<DType::tern5>();
    case DType::tern2_r64: return f.template operator()<DType::tern2_r64>();
    case DType::tern5_r80: return f.template operator()<DType::tern5_r80>();
    case DType::tern2_r16: return f.template operator()<DType::tern2_r16>();
    case DType::i8_r16: return f.template operator()<DType::i8_r16>();
    default: return f.template operator()<DType::i4_r32>();
  }
}

// A block of rows, tile(F).rows of them; value(row, k) gives 0 outside of the matrix, which is the padding of every format.
template <DType F, class Value>
void encode_block(const Weights& w, std::int64_t first, const Value& value) {
  int v[8];
  if constexpr (F == DType::i8) {
    char* to = w.data + first * w.row;
    for (std::int64_t k = 0; k < w.k; ++k) to[k * w.step] = static_cast<char>(value(first, k));
  } else if constexpr (tile(F).rows == 1) {
    char* to = w.data + first * w.row;
    for (std::int64_t k = 0; k < w.k; k += kFields<F>) {
      for (int j = 0; j < kFields<F>; ++j) v[j] = value(first, k + j);
      *to++ = static_cast<char>(field_byte<F>(v));
    }
  } else {
    constexpr int L = lanes(F);
    char* to = w.data + first / tile(F).rows * w.row;
    for (std::int64_t k = 0; k < whole(w.k, tile(F).block); k += 4) {
      for (int i = 0; i < 4 * L; ++i) {
        for (int j = 0; j < kFields<F>; ++j) v[j] = value(first + j * L + i / 4, k + i % 4);
        *to++ = static_cast<char>(field_byte<F>(v));
      }
    }
  }
}

}  // namespace tritium::TRITIUM_ISA
