// Rows of integer weights of every format as numbers.
// Codes are not checked.
#pragma once

#include <cstdint>

#include "../integer/formats.h"
#include "span.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kDecodeStep = 1280;  // columns at a time: whole bytes of every format

// to[i] = the value of column first + i of row r, for i < count; `first` is a multiple of kDecodeStep. What follows in the `room`
// bytes of `to` may be written too, which is faster.
void decode_values(const Weights& w, std::int64_t r, std::int64_t first, std::int64_t count, std::int8_t* to,
                   std::int64_t room);

// f(i) for i < n. Short runs go sixteen at a time: the compiler's vectors of bytes are longer than they are.
template <class F>
TRITIUM_INLINE void for_each(std::int64_t n, const F& f) {
  std::int64_t i = 0;
  if (n >= 128) {
    TRITIUM_LOOP
    for (; i < n; ++i) f(i);
    return;
  }
  for (; i + 16 <= n; i += 16) {
    TRITIUM_LOOP
    for (std::int64_t j = 0; j < 16; ++j) f(i + j);
  }
  for (; i < n; ++i) f(i);
}

// Calls take(first, count, group, values) for each group of `width` columns among [first, first + count).
template <class Take>
TRITIUM_INLINE void each_group(std::int64_t first, std::int64_t count, std::int64_t width, const std::int8_t* values,
                               const Take& take) {
  std::int64_t g = first < width ? 0 : first / width;  // a division takes as long as a short group
  for (std::int64_t k = first, end = first + count, stop; k < end; k = stop, ++g) {
    stop = (g + 1) * width < end ? (g + 1) * width : end;
    take(k, stop - k, g, values + (k - first));
  }
}

// Calls take(first, count, values) for the columns of row r, a step at a time.
template <class Take>
TRITIUM_INLINE void decode_steps(const Weights& w, std::int64_t r, const Take& take) {
  alignas(64) std::int8_t values[kDecodeStep + 64];
  for (std::int64_t first = 0; first < w.k; first += kDecodeStep) {
    const std::int64_t count = w.k - first < kDecodeStep ? w.k - first : kDecodeStep;
    decode_values(w, r, first, count, values, sizeof values);
    take(first, count, values);
  }
}

// All values of one row.
template <class T>
void decode_row(const Weights& w, std::int64_t r, T* to) {
  decode_steps(w, r, [&](std::int64_t first, std::int64_t count, const std::int8_t* values) {
    T* const part = to + first;
    for_each(count, [&](std::int64_t i) __attribute__((always_inline)) { part[i] = static_cast<T>(values[i]); });
  });
}

}  // namespace tritium::TRITIUM_ISA
