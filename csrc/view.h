// A tensor as a kernel sees it: an address, a dtype, a shape and byte strides.
// Knows nothing of Python, of ownership or of devices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tritium {

constexpr int kMaxDims = 32;
constexpr int kMaxInputs = 8;
constexpr int kAlignment = 64;

// The order is the order of the codes in dtype.py.
enum class DType : std::uint8_t { b8, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64 };
constexpr int kDTypes = 13;

constexpr std::int64_t kItemSize[kDTypes] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};
constexpr std::int64_t item_size(DType t) { return kItemSize[static_cast<int>(t)]; }
constexpr std::uint32_t bit(DType t) { return 1u << static_cast<int>(t); }

struct View {
  char* data = nullptr;  // nullptr: an optional operand that was not given
  DType dtype = DType::f32;
  int ndim = 0;
  std::int64_t shape[kMaxDims];
  std::int64_t strides[kMaxDims];  // in bytes; 0 repeats, negative walks back

  // Inlined everywhere: a copy of it compiled for a wide instruction set must not serve the others.
  [[gnu::always_inline]] std::int64_t size() const {
    std::int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }
};

// The attributes of a call, read once from Python. A kernel names the numeric ones it takes in Entry::params; they
// arrive in that order, an int in whole[i] and real[i], a float in real[i].
struct Attrs {
  std::uint32_t axes = ~0u;  // bit d set: axis d of input 0 is reduced (all bits: axis=None)
  bool keepdims = false;
  double real[4] = {0, 0, 0, 0};
  std::int64_t whole[4] = {0, 0, 0, 0};
};

struct Call {
  const View* in;
  int nin;
  View* out;
  const Attrs* attrs;
};

using Kernel = void (*)(const Call&);

// One native kernel: the row it serves, the dtypes of its last input it takes, and its numeric attributes by name.
struct Entry {
  const char* name;
  Kernel run;
  std::uint32_t dtypes;
  const char* params = "";  // e.g. "eps" or "seed,low,high"
};

struct Table {
  const Entry* first;
  std::size_t count;
};

}  // namespace tritium
