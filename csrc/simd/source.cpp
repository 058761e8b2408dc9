// arange, linspace and eye: tensors made of a few numbers, computed as NumPy does, in f64 or in wrapping integers.
#include <cstdint>
#include <cstring>

#include "../threads.h"
#include "../view.h"
#include "cast.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;
using std::uint64_t;

constexpr int64_t kTile = 1024;
constexpr int64_t kGrain = 1 << 16;  // elements that make it worth waking another thread

// Fills a line with fill(first, n, values), which leaves n values of `made` in memory, tile by tile.
template <class T, class F>
void fill_line(const View& out, DType made, F&& fill) {
  const int64_t n = out.shape[0], stride = out.strides[0], item = item_size(out.dtype);
  const Cast cast = find_cast(made, out.dtype);
  const bool direct = cast.first == nullptr && stride == item;
  parallel_for((n + kTile - 1) / kTile, kGrain / kTile, [&](int64_t begin, int64_t end) {
    alignas(64) T values[kTile];
    alignas(64) float between[kTile];
    alignas(64) char last[kTile * 8];
    for (int64_t first = begin * kTile; first < end * kTile && first < n; first += kTile) {
      const int64_t count = n - first < kTile ? n - first : kTile;
      char* const to = out.data + first * stride;
      fill(first, count, direct ? reinterpret_cast<T*>(to) : values);
      if (direct) continue;
      const char* from = reinterpret_cast<const char*>(values);
      if (cast.first != nullptr) {
        char* const here = stride == item ? to : last;
        cast.first(values, nullptr, nullptr, cast.second != nullptr ? reinterpret_cast<char*>(between) : here, count);
        if (cast.second != nullptr) cast.second(between, nullptr, nullptr, here, count);
        if (here == to) continue;
        from = last;
      }
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(to + i * stride, from + i * item, static_cast<std::size_t>(item));
    }
  });
}

constexpr bool is_float(DType t) { return static_cast<int>(t) >= static_cast<int>(DType::f16); }

void arange(const Call& call) {
  const Attrs& a = *call.attrs;
  const bool from_zero = a.absent >> 1 & 1;  // arange(stop)
  if (is_float(call.out->dtype)) {
    const double start = from_zero ? 0 : a.real[0], step = a.real[2];
    fill_line<double>(*call.out, DType::f64, [=](int64_t first, int64_t n, double* to) {
      for (int64_t i = 0; i < n; ++i) to[i] = start + static_cast<double>(first + i) * step;
    });
    return;
  }
  const auto start = static_cast<uint64_t>(from_zero ? 0 : a.whole[0]), step = static_cast<uint64_t>(a.whole[2]);
  fill_line<uint64_t>(*call.out, DType::i64, [=](int64_t first, int64_t n, uint64_t* to) {
    uint64_t value = start + static_cast<uint64_t>(first) * step;  // few vector units multiply 64 bits
    for (int64_t i = 0; i < n; ++i, value += step) to[i] = value;
  });
}

// start, stop, num, endpoint. A step too small for a number is spread over the products instead, as NumPy does.
void linspace(const Call& call) {
  const Attrs& a = *call.attrs;
  const double start = a.real[0], stop = a.real[1], delta = stop - start;
  const int64_t num = call.out->shape[0];
  const bool endpoint = a.whole[3] != 0;
  const auto parts = static_cast<double>(endpoint ? num - 1 : num);
  const double step = delta / parts;
  const bool divides = parts > 0 && step == 0, multiplies = parts > 0 && !divides;
  fill_line<double>(*call.out, DType::f64, [=](int64_t first, int64_t n, double* to) {
    const double factor = multiplies ? step : delta, divisor = divides ? parts : 1.0;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(first + i) / divisor * factor + start;
    if (endpoint && num > 1 && first + n == num) to[n - 1] = stop;
  });
}

// n_rows, n_cols, k.
void eye(const Call& call) {
  const View& y = *call.out;
  const int64_t k = call.attrs->whole[2], columns = y.shape[1], item = item_size(y.dtype);
  const double one = 1;
  char unit[8], between[8];
  const Cast cast = find_cast(DType::f64, y.dtype);
  if (cast.first == nullptr) {
    std::memcpy(unit, &one, 8);
  } else {
    cast.first(&one, nullptr, nullptr, cast.second != nullptr ? between : unit, 1);
    if (cast.second != nullptr) cast.second(between, nullptr, nullptr, unit, 1);
  }
  const bool dense = y.strides[1] == item, whole = dense && y.strides[0] == columns * item;
  const auto clear = [](char* to, int64_t bytes) { std::memset(to, 0, static_cast<std::size_t>(bytes)); };
  parallel_for(y.shape[0], kGrain / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
    if (whole) clear(y.data + begin * y.strides[0], (end - begin) * columns * item);  // long fills are the faster ones
    for (int64_t r = begin; r < end; ++r) {
      char* const row = y.data + r * y.strides[0];
      if (dense && !whole) clear(row, columns * item);
      for (int64_t c = 0; !dense && c < columns; ++c) clear(row + c * y.strides[1], item);
      int64_t c;
      if (!__builtin_add_overflow(r, k, &c) && c >= 0 && c < columns)
        std::memcpy(row + c * y.strides[1], unit, static_cast<std::size_t>(item));
    }
  });
}

constexpr std::uint32_t kAll = (1u << kDTypes) - 1;
constexpr std::uint32_t kFloats = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32) | bit(DType::f64);
constexpr Entry kEntries[] = {
    {"arange", arange, kAll & ~bit(DType::b8), "start,stop,step"},
    {"linspace", linspace, kFloats, "start,stop,num,endpoint"},
    {"eye", eye, kAll, "n_rows,n_cols,k"},
};

}  // namespace

Table source_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
