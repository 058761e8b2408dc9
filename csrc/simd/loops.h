// Makes spans out of functions of one element, rows out of spans and kernels out of rows.
#pragma once

#include <cstdint>
#include <utility>

#include "math.h"
#include "span.h"

namespace tritium::TRITIUM_ISA {

using Byte = std::uint8_t;  // a bool in memory

// An operation is a struct with a static function `of`.
template <class Op, class T, class R = T>
void unary(const void* a, const void*, const void*, void* out, std::int64_t n) {
  const T* x = static_cast<const T*>(a);
  R* to = static_cast<R*>(out);
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<R>(Op::of(x[i]));
}

template <class Op, class T, class R = T>
void binary(const void* a, const void* b, const void*, void* out, std::int64_t n) {
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  R* to = static_cast<R*>(out);
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<R>(Op::of(x[i], y[i]));
}

template <class Op, class T>
void ternary(const void* a, const void* b, const void* c, void* out, std::int64_t n) {
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  const T* z = static_cast<const T*>(c);
  T* to = static_cast<T*>(out);
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) to[i] = Op::of(x[i], y[i], z[i]);
}

// A row begins empty; floats(), ints(), bits() and bools() fill in the loops of their dtypes.
struct RowMaker {
  SpanRow row;

  constexpr RowMaker& put(DType t, Span span) {
    row.of[static_cast<int>(t)] = span;
    return *this;
  }
  template <template <class> class Loop>
  constexpr RowMaker& floats() {
    return put(DType::f32, Loop<float>::run).put(DType::f64, Loop<double>::run);
  }
  template <template <class> class Loop>
  constexpr RowMaker& ints() {
    return put(DType::i8, Loop<std::int8_t>::run).put(DType::u8, Loop<std::uint8_t>::run)
        .put(DType::i16, Loop<std::int16_t>::run).put(DType::u16, Loop<std::uint16_t>::run)
        .put(DType::i32, Loop<std::int32_t>::run).put(DType::u32, Loop<std::uint32_t>::run)
        .put(DType::i64, Loop<std::int64_t>::run).put(DType::u64, Loop<std::uint64_t>::run);
  }
  // Integers whose result has the same bits with and without a sign: one loop for each width.
  template <template <class> class Loop>
  constexpr RowMaker& bits() {
    return both(DType::i8, DType::u8, Loop<std::uint8_t>::run).both(DType::i16, DType::u16, Loop<std::uint16_t>::run)
        .both(DType::i32, DType::u32, Loop<std::uint32_t>::run).both(DType::i64, DType::u64, Loop<std::uint64_t>::run);
  }
  constexpr RowMaker& both(DType a, DType b, Span span) { return put(a, span).put(b, span); }
  template <template <class> class Loop>
  constexpr RowMaker& bools() {
    return put(DType::b8, Loop<Byte>::run);
  }
};

template <class Op>
struct Unary {
  template <class T>
  struct Same { static constexpr Span run = unary<Op, T>; };
  template <class T>
  struct Test { static constexpr Span run = unary<Op, T, Byte>; };
};
template <class Op>
struct Binary {
  template <class T>
  struct Same { static constexpr Span run = binary<Op, T>; };
  template <class T>
  struct Test { static constexpr Span run = binary<Op, T, Byte>; };
};
template <class Op>
struct Ternary {
  template <class T>
  struct Same { static constexpr Span run = ternary<Op, T>; };
};

template <class Op>
constexpr RowMaker unary_floats(const char* name, Cost cost = Cost::cheap) {
  return RowMaker{{name, 1, Result::same, cost, {}, nullptr}}.floats<Unary<Op>::template Same>();
}
template <class Op>
constexpr RowMaker unary_numbers(const char* name) {
  return unary_floats<Op>(name).template ints<Unary<Op>::template Same>();
}
template <class Op>
constexpr RowMaker unary_bits(const char* name) {
  return unary_floats<Op>(name).template bits<Unary<Op>::template Same>();
}
template <class Op>
constexpr RowMaker binary_floats(const char* name, Cost cost = Cost::cheap) {
  return RowMaker{{name, 2, Result::same, cost, {}, nullptr}}.floats<Binary<Op>::template Same>();
}
template <class Op>
constexpr RowMaker binary_numbers(const char* name, Cost cost = Cost::cheap) {
  return binary_floats<Op>(name, cost).template ints<Binary<Op>::template Same>();
}
template <class Op>
constexpr RowMaker binary_bits(const char* name) {
  return binary_floats<Op>(name).template bits<Binary<Op>::template Same>();
}

template <const SpanRow* rows, std::size_t i>
void run_row(const Call& call) {
  map_call(rows[i], call);
}

constexpr Kernel either(Kernel first, Kernel second) { return first != nullptr ? first : second; }

template <const SpanRow* rows, std::size_t... i>
Table table_of(std::index_sequence<i...>) {
  static const Entry entries[] = {
      {rows[i].name, either(rows[i].kernel, run_row<rows, i>), rows[i].dtypes(), ""}...};
  return {entries, sizeof...(i)};
}

template <class T, std::size_t n>
constexpr std::size_t length(const T (&)[n]) {
  return n;
}

}  // namespace tritium::TRITIUM_ISA

// The table of rows of a file as its spans and as its kernels.
#define TRITIUM_MAP_TABLES(file, rows)                                   \
  SpanTable file##_spans() { return {rows, length(rows)}; }              \
  Table file##_table() { return table_of<rows>(std::make_index_sequence<length(rows)>()); } \
  static_assert(length(rows) > 0)
