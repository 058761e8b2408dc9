// A tensor as a kernel sees it: an address, a dtype, a shape and byte strides.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tritium {

constexpr int kMaxDims = 32;
constexpr int kMaxInputs = 16;
constexpr int kMaxOutputs = 4;
constexpr int kAlignment = 64;

// The order is the order of the codes in dtype.py. The plain dtypes come first; then those in which several elements
// share bytes: two or more along the last axis, or a whole tile of rows and columns.
enum class DType : std::uint8_t {
  b8, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64,  // plain
  i4, tern2, tern5,                                               // packed along a row
  tern2_r64, tern5_r80, tern2_r16, i8_r16, i4_r32,                // tiled for a kernel
  c64, c128,                                                      // plain: pairs of floats, the real part first
};
constexpr int kDTypes = 13;  // the plain ones of real numbers
constexpr int kPacked = 8;
constexpr int kCodes = 23;  // all

constexpr std::int64_t kItemSize[kCodes] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 8, 16};
constexpr std::int64_t item_size(DType t) { return kItemSize[static_cast<int>(t)]; }
constexpr std::uint32_t bit(DType t) { return 1u << static_cast<int>(t); }
constexpr bool is_complex(DType t) { return t == DType::c64 || t == DType::c128; }
constexpr bool is_plain(DType t) { return static_cast<int>(t) < kDTypes || is_complex(t); }
// What the address of an element is a multiple of.
constexpr std::int64_t alignment(DType t) { return is_complex(t) ? item_size(t) / 2 : item_size(t); }
// The dtypes of real numbers as bits, and those of complex ones.
constexpr std::uint32_t kReals = (1u << kDTypes) - 1;
constexpr std::uint32_t kComplexes = bit(DType::c64) | bit(DType::c128);

// A packed dtype keeps `rows` x `block` elements in `nbytes` bytes; both axes are padded to whole tiles.
struct Tile {
  std::int64_t rows, block, nbytes;
};
constexpr Tile kTiles[kPacked] = {{1, 2, 1},       {1, 4, 1},    {1, 5, 1},      {64, 64, 1024},
                                           {80, 64, 1024},  {16, 16, 64}, {16, 64, 1024}, {32, 64, 1024}};
constexpr Tile tile(DType t) {
  return is_plain(t) ? Tile{1, 1, item_size(t)} : kTiles[static_cast<int>(t) - kDTypes];
}
constexpr std::int64_t whole(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }
// Bytes of n x k elements in whole tiles.
constexpr std::int64_t matrix_bytes(DType t, std::int64_t n, std::int64_t k) {
  return (n + tile(t).rows - 1) / tile(t).rows * ((k + tile(t).block - 1) / tile(t).block) * tile(t).nbytes;
}

struct View {
  char* data = nullptr;  // nullptr: an optional operand that was not given
  DType dtype = DType::f32;
  int ndim = 0;
  std::int64_t shape[kMaxDims];
  // In bytes; 0 repeats, negative walks back. Of a packed dtype the axes inside a tile (the last one; the last two where
  // tiles have several rows) have stride 0: a kernel knows the layout.
  std::int64_t strides[kMaxDims];

  // Inlined everywhere: a copy of it compiled for a wide instruction set must not serve the others.
  [[gnu::always_inline]] std::int64_t size() const {
    std::int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }
};

struct Tape;      // tape.h
struct Epilogue;  // hooks.h
struct Prologue;
struct FusedProduct;  // fused_product.h

// The attributes of a call, read once from Python. A kernel names the numeric ones it takes in Entry::params; they
// arrive in that order, an int in whole[i] and real[i], a float in real[i].
struct Attrs {
  std::uint32_t axes = ~0u;  // bit d set: axis d of input 0 is reduced (all bits: axis=None)
  bool keepdims = false;
  std::uint8_t absent = 0;  // bit i set: number i was None
  double real[8] = {};
  std::int64_t whole[8] = {};
  const Tape* tape = nullptr;        // what a fused row computes
  const FusedProduct* product = nullptr;  // what a fused product computes
  const Epilogue* after = nullptr;   // what a product does with its results
  const Prologue* before = nullptr;  // where a product has the rows of its left operand from
};

struct Call {
  const View* in;
  int nin;
  View* out;  // several for rows of several outputs
  const Attrs* attrs;
};

using Kernel = void (*)(const Call&);

// How the inputs of a kernel share its result, if it takes any number of them: one after another along an axis, or each at
// one place of a new axis. Then any run of its inputs is a call of its own, on a part of the result.
enum class Join : std::uint8_t { none, along, anew };

// One native kernel: the row it serves, the dtypes it takes of the input that decides, and its numeric attributes by name.
struct Entry {
  const char* name;
  Kernel run;
  std::uint32_t dtypes;
  const char* params = "";  // e.g. "eps" or "seed,low,high"
  int decides = -1;         // the input whose dtype is looked at; -1: the last one given
  bool may_fault = false;   // it may refuse the values it is given (fault.h): callers look after it
  Join join = Join::none;
};

struct Table {
  const Entry* first;
  std::size_t count;
};

}  // namespace tritium
