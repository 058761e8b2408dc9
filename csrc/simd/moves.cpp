// concat, stack, tril and triu: copies into parts of the result.
// Knows elements only by their size.
#include <cstdint>
#include <cstring>

#include "../threads.h"
#include "../view.h"
#include "cast.h"
#include "iterate.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 32768;  // elements that make it worth waking another thread

int axis_of(int64_t axis, int ndim) { return static_cast<int>(axis < 0 ? axis + ndim : axis); }

void concat(const Call& call) {
  View part = *call.out;
  const int axis = axis_of(call.attrs->whole[0], part.ndim);
  for (int i = 0; i < call.nin; ++i) {
    part.shape[axis] = call.in[i].shape[axis];
    copy({call.in + i, 1, &part, call.attrs});
    part.data += part.shape[axis] * part.strides[axis];
  }
}

void stack(const Call& call) {
  View part = *call.out;
  const int axis = axis_of(call.attrs->whole[0], part.ndim);
  const int64_t step = part.strides[axis];
  --part.ndim;
  for (int d = axis; d < part.ndim; ++d) {
    part.shape[d] = part.shape[d + 1];
    part.strides[d] = part.strides[d + 1];
  }
  for (int i = 0; i < call.nin; ++i, part.data += step) copy({call.in + i, 1, &part, call.attrs});
}

// Row r of every matrix keeps its columns [0, r + k] where `low`, else [r + k, …); the rest is 0.
void triangle(const Call& call, bool low) {
  const View &x = call.in[0], &y = *call.out;
  const int row = y.ndim - 2, column = y.ndim - 1;
  const int64_t n = y.shape[column], item = item_size(y.dtype), rows = n == 0 ? 0 : y.size() / n;
  parallel_for(rows, kGrain / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) static constexpr char zero[8] = {};
    for (int64_t i = begin; i < end; ++i) {
      const char* from = x.data;
      char* to = y.data;
      for (int64_t d = row, rest = i; d >= 0; rest /= y.shape[d--]) {
        from += rest % y.shape[d] * x.strides[d];
        to += rest % y.shape[d] * y.strides[d];
      }
      const int64_t edge = i % y.shape[row] + call.attrs->whole[0] + low, cut = edge < 0 ? 0 : edge > n ? n : edge;
      const int64_t first = low ? 0 : cut, kept = low ? cut : n - cut, empty = low ? cut : 0;
      for (int64_t j = first; j < first + kept; ++j) {
        std::memcpy(to + j * y.strides[column], from + j * x.strides[column], static_cast<std::size_t>(item));
      }
      for (int64_t j = empty; j < empty + n - kept; ++j) {
        std::memcpy(to + j * y.strides[column], zero, static_cast<std::size_t>(item));
      }
    }
  });
}

void tril(const Call& call) { triangle(call, true); }
void triu(const Call& call) { triangle(call, false); }

constexpr std::uint32_t kAll = (1u << kDTypes) - 1;
constexpr Entry kEntries[] = {
    {"concat", concat, kAll, "axis"},
    {"stack", stack, kAll, "axis"},
    {"tril", tril, kAll, "k"},
    {"triu", triu, kAll, "k"},
};

}  // namespace

Table moves_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
