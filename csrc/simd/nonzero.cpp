// nonzero, in two kernels: how many elements of each stretch are not 0, then where they are.
// Knows elements only by their bits: a number is 0 if all of its bits are, but the sign of a float.
#include <cstdint>
#include <cstring>

#include "../threads.h"
#include "../view.h"
#include "gather.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kPiece = 1024;  // elements looked at together
constexpr int64_t kStretches = 2;  // that make it worth waking another thread

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// The places, counted from `first`, of those of n elements that are not 0; how many there are.
template <class T, T Bits>
int64_t find_in(const char* from, int64_t stride, int64_t n, int64_t first, int64_t* to) {
  int64_t count = 0;
  const auto look = [&](int64_t step) {
    for (int64_t i = 0; i < n; ++i) {
      to[count] = first + i;
      count += (at<T>(from + i * step) & Bits) != 0;
    }
  };
  stride == static_cast<int64_t>(sizeof(T)) ? look(sizeof(T)) : look(stride);
  return count;
}

template <class T, T Bits>
int64_t count_in(const char* from, int64_t stride, int64_t n, int64_t, int64_t*) {
  std::uint32_t count = 0;  // of a piece
  if (stride == static_cast<int64_t>(sizeof(T))) {
    TRITIUM_LOOP
    for (int64_t i = 0; i < n; ++i) count += (at<T>(from + i * static_cast<int64_t>(sizeof(T))) & Bits) != 0;
  } else {
    for (int64_t i = 0; i < n; ++i) count += (at<T>(from + i * stride) & Bits) != 0;
  }
  return count;
}

using Look = int64_t (*)(const char*, int64_t, int64_t, int64_t, int64_t*);

template <template <class> class Of>
Look look_of(DType type) {
  switch (type) {
    case DType::f16:
    case DType::bf16: return Of<std::uint16_t>::real;
    case DType::f32: return Of<std::uint32_t>::real;
    case DType::f64: return Of<std::uint64_t>::real;
    default: break;
  }
  switch (item_size(type)) {
    case 1: return Of<std::uint8_t>::whole;
    case 2: return Of<std::uint16_t>::whole;
    case 4: return Of<std::uint32_t>::whole;
    default: return Of<std::uint64_t>::whole;
  }
}

template <class T>
struct Find {
  static constexpr Look whole = find_in<T, static_cast<T>(~T(0))>;
  static constexpr Look real = find_in<T, static_cast<T>(static_cast<T>(~T(0)) >> 1)>;
};
template <class T>
struct Count {
  static constexpr Look whole = count_in<T, static_cast<T>(~T(0))>;
  static constexpr Look real = count_in<T, static_cast<T>(static_cast<T>(~T(0)) >> 1)>;
};

// Elements first … last of a view in order, by pieces of its last axis: piece(data, position of its first element, n).
template <class F>
void each_piece(const View& x, int64_t first, int64_t last, F&& piece) {
  const int inner = x.ndim - 1;
  const int64_t length = inner < 0 ? 1 : x.shape[inner];
  while (first < last) {
    int64_t position[kMaxDims];
    const char* from = x.data;
    for (int64_t d = inner, rest = first; d >= 0; rest /= x.shape[d--]) {
      position[d] = rest % x.shape[d];
      from += position[d] * x.strides[d];
    }
    const int64_t left = least(last - first, inner < 0 ? 1 : length - position[inner]);
    for (int64_t done = 0; done < left; done += kPiece) {
      const int64_t step = inner < 0 ? 0 : x.strides[inner];
      piece(from + done * step, position, done, least(kPiece, left - done));
    }
    first += left;
  }
}

// out[i]: how many of the i-th stretch; stretches have the same number of elements, the last as many as are left.
void count(const Call& call) {
  const View &x = call.in[0], &y = *call.out;
  const int64_t size = x.size(), stretch = call.attrs->whole[0];
  const Look look = look_of<Count>(x.dtype);
  parallel_for(y.shape[0], kStretches, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      int64_t total = 0;
      each_piece(x, s * stretch, least((s + 1) * stretch, size), [&](const char* from, const int64_t*, int64_t, int64_t n) {
        total += look(from, x.ndim ? x.strides[x.ndim - 1] : 0, n, 0, nullptr);
      });
      std::memcpy(y.data + s * y.strides[0], &total, sizeof total);
    }
  });
}

// Rows of places, one for each axis; the second input says where each stretch begins, and a last number where all end.
// Should elements change meanwhile, nothing is written outside, and places that are missing are -1.
void find(const Call& call) {
  const View &x = call.in[0], &starts = call.in[1], &y = *call.out;
  const int64_t size = x.size(), stretch = call.attrs->whole[0];
  const Look look = look_of<Find>(x.dtype);
  const int axes = static_cast<int>(y.shape[0]);
  parallel_for(starts.shape[0] - 1, kStretches, [&](int64_t begin, int64_t end) {
    int64_t places[kPiece];
    for (int64_t s = begin; s < end; ++s) {
      int64_t to = at<int64_t>(starts.data + s * 8);
      const int64_t stop = at<int64_t>(starts.data + (s + 1) * 8);
      const auto row = [&](int d) { return reinterpret_cast<int64_t*>(y.data + d * y.strides[0]); };
      each_piece(x, s * stretch, least((s + 1) * stretch, size),
                 [&](const char* from, const int64_t* position, int64_t done, int64_t n) {
        const int last = x.ndim - 1;
        const int64_t first = (last < 0 ? 0 : position[last]) + done;
        const int64_t found = least(look(from, last < 0 ? 0 : x.strides[last], n, first, places), stop - to);
        for (int d = 0; d < axes - 1; ++d)
          for (int64_t i = 0; i < found; ++i) row(d)[to + i] = position[d];
        std::memcpy(row(axes - 1) + to, places, static_cast<std::size_t>(found) * sizeof(int64_t));
        to += found;
      });
      for (int d = 0; d < axes; ++d)
        for (int64_t i = to; i < stop; ++i) row(d)[i] = -1;
    }
  });
}

constexpr std::uint32_t kAll = (1u << kDTypes) - 1;
constexpr Entry kEntries[] = {
    {"nonzero_count", count, kAll, "stretch", 0},
    {"nonzero_find", find, kAll, "stretch", 0},
};

}  // namespace

Table nonzero_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
