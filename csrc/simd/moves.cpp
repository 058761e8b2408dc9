// concat, stack, roll, tril and triu: copies into parts of the result.
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

// Without an axis every input is flattened: its elements follow each other in the result.
void concat_flat(const Call& call) {
  char* to = call.out->data;
  for (int i = 0; i < call.nin; ++i) {
    View part = call.in[i];
    part.data = to;
    part.dtype = call.out->dtype;
    int64_t step = call.out->strides[0];
    for (int d = part.ndim - 1; d >= 0; step *= part.shape[d--]) part.strides[d] = step;
    copy({call.in + i, 1, &part, call.attrs});
    to += call.in[i].size() * call.out->strides[0];
  }
}

void concat(const Call& call) {
  if (call.attrs->absent & 1) return concat_flat(call);
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

constexpr int kRolled = 4;  // axes at most

// Along one axis after another, each of two parts goes to the other's end.
void roll_from(const View& x, const View& y, const Attrs& attrs, int which) {
  if (which == kRolled || attrs.absent >> (kRolled + which) & 1) return copy({&x, 1, const_cast<View*>(&y), &attrs});
  const int axis = axis_of(attrs.whole[kRolled + which], x.ndim);
  const int64_t n = x.shape[axis];
  if (n == 0) return;
  const int64_t shift = attrs.whole[attrs.absent & 2 ? 0 : which];  // one shift serves all axes
  const int64_t rest = shift % n, cut = rest < 0 ? rest + n : rest;
  const auto part = [&](int64_t from, int64_t to, int64_t length) {
    if (length == 0) return;
    View source = x, target = y;
    source.data += from * x.strides[axis];
    target.data += to * y.strides[axis];
    source.shape[axis] = target.shape[axis] = length;
    roll_from(source, target, attrs, which + 1);
  };
  part(0, cut, n - cut);
  part(n - cut, 0, cut);
}

// All elements in order, over the end of each row.
void roll_flat(const View& x, const View& y, int64_t shift) {
  const int64_t size = y.size();
  if (size == 0) return;
  const int64_t rest = shift % size, cut = rest < 0 ? rest + size : rest;
  parallel_for(size, kGrain, [&](int64_t begin, int64_t end) {
    const int64_t item = item_size(y.dtype);
    const auto place = [](const View& v, int64_t i, int64_t& left) {
      char* at = v.data;
      left = v.ndim ? v.shape[v.ndim - 1] - i % v.shape[v.ndim - 1] : 1;
      for (int d = v.ndim - 1; d >= 0; i /= v.shape[d--]) at += i % v.shape[d] * v.strides[d];
      return at;
    };
    const int last = y.ndim - 1;
    for (int64_t i = begin; i < end;) {
      int64_t here, there;
      const int64_t source = i < cut ? i + size - cut : i - cut;
      char* const to = place(y, i, here);
      const char* const from = place(x, source, there);
      int64_t n = here < there ? here : there;
      if (n > end - i) n = end - i;
      for (int64_t k = 0; k < n; ++k) {
        std::memcpy(to + (last < 0 ? 0 : k * y.strides[last]), from + (last < 0 ? 0 : k * x.strides[last]),
                    static_cast<std::size_t>(item));
      }
      i += n;
    }
  });
}

bool is_dense(const View& v) {
  int64_t step = item_size(v.dtype);
  for (int d = v.ndim - 1; d >= 0; step *= v.shape[d--])
    if (v.shape[d] != 1 && v.strides[d] != step) return false;
  return true;
}

// Shifts, then their axes; without an axis the elements move in order.
void roll(const Call& call) {
  const View &x = call.in[0], &y = *call.out;
  if (!(call.attrs->absent >> kRolled & 1)) return roll_from(x, y, *call.attrs, 0);
  if (!is_dense(x) || !is_dense(y)) return roll_flat(x, y, call.attrs->whole[0]);
  View source = x, target = y;  // as one axis
  source.ndim = target.ndim = 1;
  source.shape[0] = target.shape[0] = y.size();
  source.strides[0] = target.strides[0] = item_size(y.dtype);
  Attrs flat = *call.attrs;
  flat.absent = 0xff & ~(1 | 1 << kRolled);
  flat.whole[kRolled] = 0;
  roll_from(source, target, flat, 0);
}

// Row r of every matrix keeps its columns [0, r + k] where `low`, else [r + k, …); the rest is 0.
void triangle(const Call& call, bool low) {
  const View &x = call.in[0], &y = *call.out;
  const int row = y.ndim - 2, column = y.ndim - 1;
  const int64_t n = y.shape[column], item = item_size(y.dtype), rows = n == 0 ? 0 : y.size() / n;
  parallel_for(rows, kGrain / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    alignas(64) static constexpr char zero[16] = {};
    for (int64_t i = begin; i < end; ++i) {
      const char* from = x.data;
      char* to = y.data;
      for (int64_t d = row, rest = i; d >= 0; rest /= y.shape[d--]) {
        from += rest % y.shape[d] * x.strides[d];
        to += rest % y.shape[d] * y.strides[d];
      }
      const int64_t edge = i % y.shape[row] + call.attrs->whole[0] + low, cut = edge < 0 ? 0 : edge > n ? n : edge;
      const int64_t first = low ? 0 : cut, kept = low ? cut : n - cut, empty = low ? cut : 0;
      if (x.strides[column] == item && y.strides[column] == item) {
        std::memcpy(to + first * item, from + first * item, static_cast<std::size_t>(kept * item));
        std::memset(to + empty * item, 0, static_cast<std::size_t>((n - kept) * item));
        continue;
      }
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

constexpr std::uint32_t kAll = kReals | kComplexes;
constexpr Entry kEntries[] = {
    {"concat", concat, kAll, "axis", -1, false, Join::along},
    {"stack", stack, kAll, "axis", -1, false, Join::anew},
    {"roll", roll, kAll, "shift,,,,axis,,,"},
    {"tril", tril, kAll, "k"},
    {"triu", triu, kAll, "k"},
};

}  // namespace

Table moves_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
