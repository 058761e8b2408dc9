// Rows of integer weights as bytes, several to an operation: formats.h says what a byte means one field after the other.
// Every format ends as int8 here and becomes other numbers in a loop that all formats share.
#include "decode.h"

#include <cstring>

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

// Four bytes of a word at once.
constexpr uint32_t each(uint32_t byte) { return byte * 0x01010101u; }

// byte - zero of every byte, which is below 128: the highest bit, set meanwhile, keeps a loan within its byte.
template <class U>
TRITIUM_INLINE U subtract(U bytes, U zero) {
  constexpr U high = static_cast<U>(each(0x80));
  return static_cast<U>(((bytes | high) - zero) ^ high);
}

// Two numbers of 4 bits as two bytes.
TRITIUM_INLINE uint16_t spread_i4(uint8_t b) {
  const auto fields = static_cast<uint16_t>((b | b << 4) & 0x0f0f);
  return subtract<uint16_t>(fields ^ 0x0808, 0x0808);
}

// Four codes of 2 bits as four bytes.
TRITIUM_INLINE uint32_t spread_tern2(uint8_t b) {
  const uint32_t x = b;
  return subtract<uint32_t>((x | x << 6 | x << 12 | x << 18) & each(3), each(1));
}

// The five digits of every byte, as the bytes of a word: it is stored whole, and the next one over its end.
struct Digits {
  uint64_t of[256] = {};

  Digits() {
    for (unsigned b = 0; b < 256; ++b) {
      int8_t fields[8] = {};
      for (int j = 0; j < 5; ++j) fields[j] = static_cast<int8_t>(field_value<DType::tern5>(static_cast<uint8_t>(b), j));
      std::memcpy(&of[b], fields, 8);
    }
  }
};

const uint64_t* digits() {
  static const Digits table;
  return table.of;
}

// A format that is packed along rows, several elements a byte, which become the bytes of a word.
template <class Spread>
void unpack_bytes(const uint8_t* from, int64_t count, int8_t* to, int64_t room, const Spread& spread) {
  using Word = decltype(spread(uint8_t{}));
  constexpr int64_t fields = sizeof(Word);
  const int64_t bytes = (count + fields - 1) / fields, n = bytes * fields <= room ? bytes : count / fields;
  for_each(n, [&](int64_t i) __attribute__((always_inline)) {
    const Word word = spread(from[i]);
    std::memcpy(to + i * fields, &word, sizeof word);
  });
  if (n < bytes) {  // the last one in part
    const Word word = spread(from[n]);
    std::memcpy(to + n * fields, &word, static_cast<std::size_t>(count - n * fields));
  }
}

// Five digits a byte: a word holds eight bytes, and the next one is stored over its end.
void unpack_digits(const uint8_t* from, int64_t count, int8_t* to, int64_t room) {
  const uint64_t* const table = digits();
  const int64_t bytes = (count + 4) / 5, fit = room < 8 ? 0 : (room - 8) / 5 + 1;
  const int64_t n = bytes < fit ? bytes : fit;
#pragma GCC unroll 8
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * 5, table + from[i], 8);
  for (int64_t i = n; i < bytes; ++i)
    std::memcpy(to + i * 5, table + from[i], static_cast<std::size_t>(count - i * 5 < 5 ? count - i * 5 : 5));
}

// How a field of a byte becomes a value: ((byte >> shift & mask) ^ flip) - zero.
struct Field {
  int shift;
  uint32_t mask, flip, zero;
};

Field field_of(DType format, int field) {
  switch (format) {
    case DType::i4_r32: return {4 * field, 15, 0, 8};
    case DType::tern2_r16: return field < 3 ? Field{2 * field, 3, 0, 1} : Field{6, 3, 2, 2};
    default: return {2 * field, 3, 0, 1};  // tern2_r64
  }
}

// The same field of all bytes, in place; n is a multiple of kVector.
constexpr int64_t kVector = 16;
void take_fields(DType format, int field, uint32_t* words, int64_t n) {
  if (format == DType::i8_r16) {
    for_each(n, [&](int64_t i) __attribute__((always_inline)) { words[i] ^= each(0x80); });
  } else if (format == DType::tern5_r80) {
    auto* const bytes = reinterpret_cast<uint8_t*>(words);
    const auto power = static_cast<uint8_t>(kPow3[field]);
    for_each(4 * n, [&](int64_t i) __attribute__((always_inline)) {
      const auto fraction = static_cast<uint8_t>(bytes[i] * power);
      bytes[i] = static_cast<uint8_t>((static_cast<uint16_t>(fraction * 3) >> 8) - 1);
    });
  } else {
    const Field f = field_of(format, field);
    const uint32_t mask = each(f.mask), flip = each(f.flip), zero = each(f.zero);
    for_each(n, [&](int64_t i) __attribute__((always_inline)) {
      words[i] = subtract<uint32_t>((words[i] >> f.shift & mask) ^ flip, zero);
    });
  }
}

// A tiled format: four columns of a row are a word, words of a row are `lanes` apart.
void decode_tiled(const Weights& w, int64_t r, int64_t first, int64_t count, int8_t* to) {
  const int64_t rows = tile(w.format).rows, apart = lanes(w.format);
  const char* const from = w.data + r / rows * w.row + first * apart + r % apart * 4;
  alignas(64) uint32_t words[kDecodeStep / 4];
  for (int64_t done = 0; done < count; done += kDecodeStep) {
    const int64_t now = count - done < kDecodeStep ? count - done : kDecodeStep, n = (now + 3) / 4;
    for (int64_t i = 0; i < n; ++i) std::memcpy(words + i, from + (done + 4 * i) * apart, 4);
    for (int64_t i = n; i % kVector != 0; ++i) words[i] = 0;
    take_fields(w.format, static_cast<int>(r % rows / apart), words, whole(n, kVector));
    std::memcpy(to + done, words, static_cast<std::size_t>(now));
  }
}

}  // namespace

void decode_values(const Weights& w, int64_t r, int64_t first, int64_t count, int8_t* to, int64_t room) {
  const char* const row = w.data + r * w.row;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(row);
  switch (w.format) {
    case DType::i8:
      if (w.step == 1) {
        std::memcpy(to, row + first, static_cast<std::size_t>(count));
      } else {
        for (int64_t i = 0; i < count; ++i) to[i] = static_cast<int8_t>(row[(first + i) * w.step]);
      }
      return;
    case DType::i4: return unpack_bytes(bytes + first / 2, count, to, room, [](uint8_t b) { return spread_i4(b); });
    case DType::tern2: return unpack_bytes(bytes + first / 4, count, to, room, [](uint8_t b) { return spread_tern2(b); });
    case DType::tern5: return unpack_digits(bytes + first / 5, count, to, room);
    default: return decode_tiled(w, r, first, count, to);
  }
}

}  // namespace tritium::TRITIUM_ISA
