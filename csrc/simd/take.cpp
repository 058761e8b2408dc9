// take: slices along one axis, named by a tensor of indices.
// Knows elements only by their size.
#include <cstdint>
#include <cstring>

#include "../fault.h"
#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "gather.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrainBytes = 65536;  // moved, that make it worth waking another thread

// An unsigned number beyond the signed ones is negative here, and then below every axis.
int64_t index_at(DType type, const char* from) {
  switch (type) {
    case DType::i8: return at<std::int8_t>(from);
    case DType::i16: return at<std::int16_t>(from);
    case DType::i32: return at<std::int32_t>(from);
    case DType::u8: return at<std::uint8_t>(from);
    case DType::u16: return at<std::uint16_t>(from);
    case DType::u32: return at<std::uint32_t>(from);
    default: return at<int64_t>(from);
  }
}

// Dimensions of a view from `first` on, walked in the order of their elements.
struct Walk {
  int ndim;
  const int64_t *shape, *strides;

  Walk(const View& v, int first, int last) : ndim(last - first), shape(v.shape + first), strides(v.strides + first) {}
  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; ++d) n *= shape[d];
    return n;
  }
  int64_t offset(int64_t i) const {
    int64_t sum = 0;
    for (int d = ndim - 1; d >= 0; --d) {
      sum += i % shape[d] * strides[d];
      i /= shape[d];
    }
    return sum;
  }
  bool dense(int64_t item) const {
    for (int d = ndim - 1; d >= 0; --d) {
      if (shape[d] != 1 && strides[d] != item) return false;
      item *= shape[d];
    }
    return true;
  }
};

// The places of all indices along the axis, in bytes. False: one is outside; the fault is set.
bool read_places(const View& indices, int64_t size, int64_t stride, int64_t* to) {
  const Walk all(indices, 0, indices.ndim);
  const int64_t n = all.size();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t given = index_at(indices.dtype, indices.data + all.offset(i));
    const bool below = indices.dtype == DType::u64 && given < 0;
    const int64_t found = given < 0 ? given + size : given;
    if (below || found < 0 || found >= size) {
      set_fault({Faulty::index, "take", {given, size}});
      return false;
    }
    to[i] = found * stride;
  }
  return true;
}

template <int64_t Item>
void move_items(const Walk& from, const char* x, const Walk& to, char* y, int64_t n) {
  if (from.ndim == 1) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(y + i * to.strides[0], x + i * from.strides[0], Item);
    return;
  }
  for (int64_t i = 0; i < n; ++i) std::memcpy(y + to.offset(i), x + from.offset(i), Item);
}

using Move = void (*)(const Walk&, const char*, const Walk&, char*, int64_t);
Move move_of(int64_t item) {
  switch (item) {
    case 1: return move_items<1>;
    case 2: return move_items<2>;
    case 4: return move_items<4>;
    default: return move_items<8>;
  }
}

void take(const Call& call) {
  const View &x = call.in[0], &indices = call.in[1], &y = *call.out;
  const int64_t given = call.attrs->absent & 1 ? 0 : call.attrs->whole[0], item = item_size(x.dtype);
  const int axis = static_cast<int>(given < 0 ? given + x.ndim : given);
  const int64_t count = indices.size();
  const Workspace space(count * 8, Need::must);
  int64_t* const places = space.as<int64_t>();
  if (!read_places(indices, x.shape[axis], x.strides[axis], places)) return;
  const Walk x_outer(x, 0, axis), y_outer(y, 0, axis), y_index(y, axis, axis + indices.ndim);
  const Walk x_inner(x, axis + 1, x.ndim), y_inner(y, axis + indices.ndim, y.ndim);
  const int64_t slices = x_outer.size() * count, length = x_inner.size();
  if (slices == 0 || length == 0) return;
  const bool whole = x_inner.dense(item) && y_inner.dense(item);
  const Move move = move_of(item);
  parallel_for(slices, kGrainBytes / (length * item) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      const char* const from = x.data + x_outer.offset(s / count) + places[s % count];
      char* const to = y.data + y_outer.offset(s / count) + y_index.offset(s % count);
      if (whole) {
        std::memcpy(to, from, static_cast<std::size_t>(length * item));
      } else {
        move(x_inner, from, y_inner, to, length);
      }
    }
  });
}

constexpr std::uint32_t kAll = (1u << kDTypes) - 1;
constexpr Entry kEntries[] = {{"take", take, kAll, "axis", 0, true}};

}  // namespace

Table take_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
