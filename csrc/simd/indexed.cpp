// gather, put, take, take_along_axis and scatter: elements named by tensors of indices, moved.
// Knows elements only by their size, but where they are added.
#include "indexed.h"

#include <atomic>
#include <cstring>

#include "../fault.h"
#include "../threads.h"
#include "cast.h"
#include "gather.h"
#include "half.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {

using std::int64_t;
using std::uint64_t;

namespace {

constexpr int64_t kGrainBytes = 65536;  // moved, that make it worth waking another thread

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// What becomes of the places of indices: nothing but a check, stored, stored where the axis's step is a power of 2, or added.
enum class Fill : std::uint8_t { check, store, shift, add };

// n indices, of which negatives count from the end; `step` is the bytes of one, or its logarithm. Returns the first that is
// outside, or -1.
template <class T, int64_t Stride, Fill How>
int64_t fill_places(const char* from, int64_t any_stride, int64_t size, int64_t step, int64_t* to, int64_t n) {
  const int64_t stride = Stride ? Stride : any_stride;
  const auto place = [&](int64_t i) {
    const auto index = static_cast<int64_t>(at<T>(from + i * stride));
    return static_cast<T>(-1) < T(0) ? index + (index >> 63 & size) : index;  // unsigned: beyond the signed ones is outside
  };
  uint64_t outside = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t index = place(i);
    outside |= static_cast<uint64_t>(static_cast<uint64_t>(index) >= static_cast<uint64_t>(size));
    if constexpr (How == Fill::store) to[i] = index * step;
    if constexpr (How == Fill::shift) to[i] = static_cast<int64_t>(static_cast<uint64_t>(index) << step);
    if constexpr (How == Fill::add) to[i] += index * step;
  }
  if (!outside) return -1;
  for (int64_t i = 0;; ++i)
    if (static_cast<uint64_t>(place(i)) >= static_cast<uint64_t>(size)) return i;
}

using FillPlaces = int64_t (*)(const char*, int64_t, int64_t, int64_t, int64_t*, int64_t);

template <Fill How, class T>
FillPlaces filler(int64_t stride) {
  return stride == static_cast<int64_t>(sizeof(T)) ? fill_places<T, sizeof(T), How> : fill_places<T, 0, How>;
}

template <Fill How>
FillPlaces filler_of(DType type, int64_t stride) {
  switch (type) {
    case DType::i8: return filler<How, std::int8_t>(stride);
    case DType::i16: return filler<How, std::int16_t>(stride);
    case DType::i32: return filler<How, std::int32_t>(stride);
    case DType::u8: return filler<How, std::uint8_t>(stride);
    case DType::u16: return filler<How, std::uint16_t>(stride);
    case DType::u32: return filler<How, std::uint32_t>(stride);
    case DType::u64: return filler<How, uint64_t>(stride);
    default: return filler<How, int64_t>(stride);
  }
}

int64_t index_value(DType type, const char* from) {
  int64_t value = 0;
  switch (type) {
    case DType::i8: return at<std::int8_t>(from);
    case DType::i16: return at<std::int16_t>(from);
    case DType::i32: return at<std::int32_t>(from);
    default: std::memcpy(&value, from, static_cast<std::size_t>(item_size(type)));
  }
  return value;
}

// The place of every element of a stretch of the block, in bytes from x and, where asked, from the other operand; or, without
// room for places, a look at the indices only.
struct Places {
  const Block& block;
  FillPlaces fills[kMaxIndices];
  int64_t steps[kMaxIndices];
  bool starts = false;  // x has steps of its own along the block

  explicit Places(const Block& b) : block(b) {
    for (int d = 0; d < b.ndim; ++d) starts = starts || b.x[d] != 0;
    for (int k = 0; k < b.count; ++k) {
      const Index& index = b.index[k];
      const int64_t stride = index.strides[b.ndim - 1];
      const bool adds = starts || k > 0, shifts = !adds && index.step > 0 && (index.step & (index.step - 1)) == 0;
      fills[k] = (adds ? filler_of<Fill::add> : shifts ? filler_of<Fill::shift> : filler_of<Fill::store>)(index.dtype, stride);
      steps[k] = shifts ? __builtin_ctzll(static_cast<uint64_t>(index.step)) : index.step;
    }
  }

  // False: an index is outside; with a row, the fault is set.
  bool fill(int64_t first, int64_t n, int64_t* x, int64_t* other, const char* row) const {
    const int last = block.ndim - 1;
    int64_t position[kMaxDims];
    for (int d = last; d >= 0; first /= block.shape[d--]) position[d] = first % block.shape[d];
    for (int64_t done = 0; done < n;) {
      const int64_t m = least(n - done, block.shape[last] - position[last]);
      int64_t* const to = x ? x + done : nullptr;
      if (starts && to) start(block.x, position, to, m);
      if (other) start(block.other, position, other + done, m);
      for (int k = 0; k < block.count; ++k) {
        const Index& index = block.index[k];
        const char* from = index.data;
        for (int d = 0; d <= last; ++d) from += position[d] * index.strides[d];
        const FillPlaces how = to ? fills[k] : filler_of<Fill::check>(index.dtype, index.strides[last]);
        const int64_t bad = how(from, index.strides[last], index.size, steps[k], to, m);
        if (bad >= 0) return row && refuse(index, from + bad * index.strides[last], row);
      }
      done += m;
      position[last] += m;
      for (int d = last; d > 0 && position[d] == block.shape[d]; --d) {
        position[d] = 0;
        ++position[d - 1];
      }
    }
    return true;
  }

 private:
  void start(const int64_t* strides, const int64_t* position, int64_t* to, int64_t n) const {
    int64_t from = 0;
    for (int d = 0; d < block.ndim; ++d) from += position[d] * strides[d];
    const int64_t step = strides[block.ndim - 1];
    for (int64_t i = 0; i < n; ++i) to[i] = from + i * step;
  }

  static bool refuse(const Index& index, const char* from, const char* row) {
    set_fault({Faulty::index, row, {index_value(index.dtype, from), index.size, index.dtype == DType::u64}});
    return false;
  }
};

// A stretch of elements: x + x_places[i], and other + i * step or, where there are any, other + other_places[i].
struct Stretch {
  char* x;
  const int64_t* x_places;
  char* other;
  const int64_t* other_places;
  int64_t step, n;

  char* theirs(int64_t i) const { return other + (other_places ? other_places[i] : i * step); }
};

template <int64_t Item>
void read_items(const Stretch s) {
  if (s.other_places) {
    for (int64_t i = 0; i < s.n; ++i) std::memcpy(s.other + s.other_places[i], s.x + s.x_places[i], Item);
  } else if (s.step == Item) {
    for (int64_t i = 0; i < s.n; ++i) std::memcpy(s.other + i * Item, s.x + s.x_places[i], Item);
  } else {
    for (int64_t i = 0; i < s.n; ++i) std::memcpy(s.other + i * s.step, s.x + s.x_places[i], Item);
  }
}

template <int64_t Item>
void write_items(const Stretch s) {
  if (s.other_places) {
    for (int64_t i = 0; i < s.n; ++i) std::memcpy(s.x + s.x_places[i], s.other + s.other_places[i], Item);
  } else {
    for (int64_t i = 0; i < s.n; ++i) std::memcpy(s.x + s.x_places[i], s.other + i * s.step, Item);
  }
}

template <class T>
T sum(T a, T b) {
  return static_cast<T>(a + b);
}
template <>
bool sum(bool a, bool b) {
  return a || b;
}

template <class T>
void add_item(char* to, const char* from) {
  const T result = sum(at<T>(to), at<T>(from));
  std::memcpy(to, &result, sizeof result);
}

template <DType H>
void add_half(char* to, const char* from) {
  const auto wide = [](const char* p) {
    const std::uint16_t x = at<std::uint16_t>(p);
    return H == DType::f16 ? f16_to_f32(x) : bf16_to_f32(x);
  };
  const float total = wide(to) + wide(from);
  const std::uint16_t result = H == DType::f16 ? f32_to_f16(total) : f32_to_bf16(total);
  std::memcpy(to, &result, sizeof result);
}

template <void (*Add)(char*, const char*)>
void add_items(const Stretch s) {
  for (int64_t i = 0; i < s.n; ++i) Add(s.x + s.x_places[i], s.theirs(i));
}

using MoveItems = void (*)(Stretch);

MoveItems adding(DType dtype) {
  switch (dtype) {
    case DType::b8: return add_items<add_item<bool>>;
    case DType::i8:
    case DType::u8: return add_items<add_item<std::uint8_t>>;
    case DType::i16:
    case DType::u16: return add_items<add_item<std::uint16_t>>;
    case DType::i32:
    case DType::u32: return add_items<add_item<std::uint32_t>>;
    case DType::i64:
    case DType::u64: return add_items<add_item<uint64_t>>;
    case DType::f16: return add_items<add_half<DType::f16>>;
    case DType::bf16: return add_items<add_half<DType::bf16>>;
    case DType::f32: return add_items<add_item<float>>;
    default: return add_items<add_item<double>>;
  }
}

// The mover of elements of so many bytes; nullptr: they are moved as bytes.
MoveItems mover(Move move, int64_t item) {
  const bool read = move == Move::read;
  switch (item) {
    case 1: return read ? read_items<1> : write_items<1>;
    case 2: return read ? read_items<2> : write_items<2>;
    case 4: return read ? read_items<4> : write_items<4>;
    case 8: return read ? read_items<8> : write_items<8>;
    case 12: return read ? read_items<12> : write_items<12>;
    case 16: return read ? read_items<16> : write_items<16>;
    case 32: return read ? read_items<32> : write_items<32>;
    default: return nullptr;
  }
}

// One call of carry_out: how the elements of a stretch are moved, with the axes inside it.
struct Mover {
  const Indexed& plan;
  Move move;
  MoveItems items = nullptr;
  int64_t row = 0;  // bytes that are adjacent on both sides; 0: the axes inside are walked

  Mover(const Indexed& p, Move m, DType dtype) : plan(p), move(m) {
    const bool flat = p.inner_count == 0, adjacent = p.inner_count == 1 && p.inner[0].in == p.item && p.inner[0].out == p.item;
    if (m == Move::add) {
      items = adding(dtype);
    } else if (flat || adjacent) {
      row = p.item * (flat ? 1 : p.inner[0].n);
      items = mover(m, row);
    } else {
      items = mover(m, p.item);
    }
  }

  bool inside() const { return plan.inner_count > 0 && !(row && items); }

  void run(const Stretch& s) const {
    if (!inside()) return items(s);
    for (int64_t i = 0; i < s.n; ++i) {
      char *const x = s.x + s.x_places[i], *const other = s.theirs(i);
      if (row) {
        const bool reads = move == Move::read;
        std::memcpy(reads ? other : x, reads ? x : other, static_cast<std::size_t>(row));
      } else {
        walk(0, x, other);
      }
    }
  }

 private:
  // The innermost axis as stretches of its own, whose places are multiples of its step.
  void walk(int d, char* x, char* other) const {
    const Axis& axis = plan.inner[d];
    if (d + 1 < plan.inner_count) {
      for (int64_t i = 0; i < axis.n; ++i) walk(d + 1, x + i * axis.in, other + i * axis.out);
      return;
    }
    int64_t places[64];
    for (int64_t i = 0; i < 64; ++i) places[i] = i * axis.in;
    for (int64_t i = 0; i < axis.n; i += 64)
      items({x + i * axis.in, places, other + i * axis.out, nullptr, axis.out, least(64, axis.n - i)});
  }
};

int64_t product(const Axis* axes, int n) {
  int64_t size = 1;
  for (int d = 0; d < n; ++d) size *= axes[d].n;
  return size;
}

void note_first(std::atomic<int64_t>& first, int64_t i) {
  for (int64_t seen = first; i < seen && !first.compare_exchange_weak(seen, i);) {}
}

// Every index is looked at before anything is written. False: one is outside.
bool all_inside(const Places& places, int64_t count, const char* row) {
  if (count <= kChunk) return places.fill(0, count, nullptr, nullptr, row);
  std::atomic<int64_t> bad{INT64_MAX};
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  parallel_for(chunks, 64, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      if (!places.fill(c * kChunk, least(kChunk, count - c * kChunk), nullptr, nullptr, nullptr)) return note_first(bad, c);
  });
  return bad == INT64_MAX || places.fill(bad * kChunk, least(kChunk, count - bad * kChunk), nullptr, nullptr, row);
}

}  // namespace

void Block::simplify() {
  int last = -1;
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] == 1) continue;
    bool joins = last >= 0 && x[last] == x[d] * shape[d] && other[last] == other[d] * shape[d];
    for (int k = 0; joins && k < count; ++k) joins = index[k].strides[last] == index[k].strides[d] * shape[d];
    const int to = joins ? last : ++last;
    shape[to] = joins ? shape[to] * shape[d] : shape[d];
    x[to] = x[d];
    other[to] = other[d];
    for (int k = 0; k < count; ++k) index[k].strides[to] = index[k].strides[d];
  }
  ndim = last + 1;
  if (ndim > 0) return;
  ndim = 1;
  shape[0] = 1;
  x[0] = other[0] = 0;
  for (int k = 0; k < count; ++k) index[k].strides[0] = 0;
}

int64_t Block::size() const {
  int64_t n = 1;
  for (int d = 0; d < ndim; ++d) n *= shape[d];
  return n;
}

void plan(Indexed& p, const View& x, const View* indices, int count, std::uint32_t at, int position) {
  Block& b = p.block;
  for (int k = 0; k < count; ++k)
    if (indices[k].ndim > b.ndim) b.ndim = indices[k].ndim;
  for (int d = 0; d < b.ndim; ++d) {
    b.shape[d] = 1;
    b.x[d] = 0;
  }
  for (int d = 0, k = 0, others = 0; d < x.ndim; ++d) {
    if (!(at >> d & 1)) {
      if (others++ < position) {
        p.outer[p.outer_count++] = {x.shape[d], x.strides[d], 0};
      } else {
        p.inner[p.inner_count++] = {x.shape[d], x.strides[d], 0};
      }
      continue;
    }
    const View& v = indices[k++];
    Index& index = b.index[b.count++];
    index.data = v.data;
    index.dtype = v.dtype;
    index.size = x.shape[d];
    index.step = x.strides[d];
    const int lead = b.ndim - v.ndim;
    for (int j = 0; j < b.ndim; ++j) {
      const bool own = j >= lead && v.shape[j - lead] != 1;
      index.strides[j] = own ? v.strides[j - lead] : 0;
      if (own) b.shape[j] = v.shape[j - lead];
    }
  }
  p.x = x.data;
  p.item = item_size(x.dtype);
}

void set_other(Indexed& p, const View& other, bool repeats) {
  p.other = other.data;
  const int total = p.outer_count + p.block.ndim + p.inner_count, lead = total - other.ndim;
  for (int d = 0; d < total; ++d) {
    const bool own = d >= lead && !(repeats && other.shape[d - lead] == 1);
    const int64_t step = own ? other.strides[d - lead] : 0;
    if (d < p.outer_count) {
      p.outer[d].out = step;
    } else if (d < p.outer_count + p.block.ndim) {
      p.block.other[d - p.outer_count] = step;
    } else {
      p.inner[d - p.outer_count - p.block.ndim].out = step;
    }
  }
}

namespace {

void drop_ones(Axis* axes, int& n) {
  int kept = 0;
  for (int d = 0; d < n; ++d)
    if (axes[d].n != 1) axes[kept++] = axes[d];
  n = kept;
  merge_neighbours(axes, n);
}

}  // namespace

bool carry_out(Indexed& p, Move move, DType dtype, const char* row) {
  Block& b = p.block;
  b.simplify();
  drop_ones(p.outer, p.outer_count);
  drop_ones(p.inner, p.inner_count);
  const int64_t count = b.size(), outer = product(p.outer, p.outer_count), inner = product(p.inner, p.inner_count);
  const Places places(b);
  if (count == 0) return true;
  const bool moves = outer > 0 && inner > 0, reads = move == Move::read;
  // Of one chunk all places are computed before the first is written.
  if (((!reads && count > kChunk) || !moves) && !all_inside(places, count, row)) return false;
  if (!moves) return true;
  const Mover mover(p, move, dtype);
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  const bool strided = b.ndim == 1;
  std::atomic<int64_t> bad{INT64_MAX};
  const auto run = [&](int64_t begin, int64_t end) {
    int64_t x_places[kChunk], other_places[kChunk];
    int64_t ready = -1;
    for (int64_t u = begin; u < end; ++u) {
      // Reads may be in any order: the parts outside one after another within a chunk. Of writes to one place the last wins.
      const int64_t c = reads ? u / outer : u % chunks, o = reads ? u % outer : u / chunks;
      const int64_t first = c * kChunk, n = least(kChunk, count - first);
      if (c != ready && !places.fill(first, n, x_places, strided ? nullptr : other_places, nullptr)) {
        return note_first(bad, c);
      }
      ready = c;
      char* const other = p.other + offset(p.outer, p.outer_count, o, &Axis::out) + (strided ? first * b.other[0] : 0);
      mover.run({p.x + offset(p.outer, p.outer_count, o, &Axis::in), x_places, other, strided ? nullptr : other_places,
                 b.other[b.ndim - 1], n});
    }
  };
  const int64_t unit = least(count, kChunk) * inner * p.item;
  if (chunks * outer == 1) {
    run(0, 1);
  } else if (reads) {
    parallel_for(chunks * outer, kGrainBytes / (unit + 1) + 1, run);
  } else {
    parallel_for(outer, kGrainBytes / (unit * chunks + 1) + 1,
                 [&](int64_t begin, int64_t end) { run(begin * chunks, end * chunks); });
  }
  return bad == INT64_MAX || places.fill(bad * kChunk, least(kChunk, count - bad * kChunk), nullptr, nullptr, row);
}

namespace {

int axis_of(const Attrs& attrs, int ndim) {
  const int64_t axis = attrs.absent & 1 ? 0 : attrs.whole[0];
  return static_cast<int>(axis < 0 ? axis + ndim : axis);
}

void read(const Call& call, std::uint32_t at, int position, const char* row) {
  Indexed p;
  plan(p, call.in[0], call.in + 1, call.nin - 1, at, position);
  set_other(p, *call.out, false);
  carry_out(p, Move::read, call.out->dtype, row);
}

bool same_memory(const View& a, const View& b) {
  if (a.data != b.data) return false;
  for (int d = 0; d < a.ndim; ++d)
    if (a.shape[d] != 1 && a.strides[d] != b.strides[d]) return false;
  return true;
}

void write(const Call& call, const View& value, const View* indices, int count, std::uint32_t at, int position, Move move,
           const char* row) {
  const View& x = call.in[0];
  Indexed p;
  plan(p, x, indices, count, at, position);
  set_other(p, value, true);
  if (!same_memory(x, *call.out)) {
    Block& b = p.block;
    Indexed checked = p;  // what is wrong is said before anything is written
    checked.block.simplify();
    if (b.size() && !all_inside(Places(checked.block), checked.block.size(), row)) return;
    copy({&x, 1, call.out, call.attrs});
    for (int k = 0, d = 0; d < x.ndim; ++d)
      if (at >> d & 1) b.index[k++].step = call.out->strides[d];
    for (int d = 0, o = 0, i = 0, others = 0; d < x.ndim; ++d) {
      if (at >> d & 1) continue;
      (others++ < position ? p.outer[o++] : p.inner[i++]).in = call.out->strides[d];
    }
    p.x = call.out->data;
  }
  carry_out(p, move, x.dtype, row);
}

// The key arrives as the axes that indices name, and where their block stands.
void gather(const Call& call) {
  read(call, static_cast<std::uint32_t>(call.attrs->whole[0]), static_cast<int>(call.attrs->whole[1]), "index");
}

void put(const Call& call) {
  write(call, call.in[1], call.in + 2, call.nin - 2, static_cast<std::uint32_t>(call.attrs->whole[0]),
        static_cast<int>(call.attrs->whole[1]), Move::write, "index");
}

void take(const Call& call) {
  const int axis = axis_of(*call.attrs, call.in[0].ndim);
  read(call, 1u << axis, axis, "take");
}

void take_along_axis(const Call& call) {
  const View &x = call.in[0], &indices = call.in[1], &y = *call.out;
  const int axis = axis_of(*call.attrs, x.ndim);
  Indexed p;
  Block& b = p.block;
  b.ndim = y.ndim;
  b.count = 1;
  Index& index = b.index[0];
  index.data = indices.data;
  index.dtype = indices.dtype;
  index.size = x.shape[axis];
  index.step = x.strides[axis];
  for (int d = 0; d < y.ndim; ++d) {
    b.shape[d] = y.shape[d];
    b.other[d] = y.strides[d];
    b.x[d] = d == axis || x.shape[d] == 1 ? 0 : x.strides[d];
    index.strides[d] = indices.shape[d] == 1 ? 0 : indices.strides[d];
  }
  p.x = x.data;
  p.other = y.data;
  p.item = item_size(x.dtype);
  carry_out(p, Move::read, x.dtype, "take_along_axis");
}

void scatter_by(const Call& call, Move move) {
  const int axis = axis_of(*call.attrs, call.in[0].ndim);
  write(call, call.in[2], call.in + 1, 1, 1u << axis, axis, move, "scatter");
}

void scatter_set(const Call& call) { scatter_by(call, Move::write); }
void scatter_add(const Call& call) { scatter_by(call, Move::add); }

// Calls piece(indices, their step, rows, their step, count) for every piece of at most kChunk indices along their last axis.
template <class F>
void each_piece(const View& x, const View& y, F&& piece) {
  const int last = x.ndim - 1;
  const int64_t n = last < 0 ? 1 : x.shape[last], lines = n == 0 ? 0 : x.size() / n, pieces = (n + kChunk - 1) / kChunk;
  const int64_t x_step = last < 0 ? 0 : x.strides[last], y_step = last < 0 ? 0 : y.strides[last];
  const int64_t bytes = least(n, kChunk) * y.shape[y.ndim - 1] * item_size(y.dtype);
  parallel_for(lines * pieces, kGrainBytes / (bytes + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * kChunk;
      const char* from = x.data + first * x_step;
      char* to = y.data + first * y_step;
      for (int64_t d = last - 1, rest = i / pieces; d >= 0; rest /= x.shape[d--]) {
        from += rest % x.shape[d] * x.strides[d];
        to += rest % x.shape[d] * y.strides[d];
      }
      piece(from, x_step, to, y_step, least(n - first, kChunk));
    }
  });
}

// The same element into each of n rows, so many bytes from its begin.
template <std::size_t Item>
void put_unit(const char* unit, char* row, int64_t row_step, const int64_t* places, int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(row + i * row_step + places[i], unit, Item);
}
using PutUnit = void (*)(const char*, char*, int64_t, const int64_t*, int64_t);
PutUnit put_unit_of(int64_t item) {
  switch (item) {
    case 1: return put_unit<1>;
    case 2: return put_unit<2>;
    case 4: return put_unit<4>;
    case 8: return put_unit<8>;
    default: return put_unit<16>;
  }
}

// Rows of zeros with a 1 at the place that each index names.
void one_hot(const Call& call) {
  const View &x = call.in[0], &y = *call.out;
  const int64_t classes = y.shape[y.ndim - 1], step = y.strides[y.ndim - 1], item = item_size(y.dtype);
  std::atomic<const char*> bad{nullptr};
  each_piece(x, y, [&](const char* from, int64_t x_step, char*, int64_t, int64_t n) {
    const int64_t outside = filler_of<Fill::check>(x.dtype, x_step)(from, x_step, classes, 0, nullptr, n);
    if (outside >= 0) bad = from + outside * x_step;
  });
  if (bad) return set_fault({Faulty::index, "one_hot", {index_value(x.dtype, bad), classes, x.dtype == DType::u64}});
  double one = 1;
  alignas(16) char stored[16];
  View value, unit;
  value.data = reinterpret_cast<char*>(&one);
  value.dtype = DType::f64;
  unit.data = stored;
  unit.dtype = y.dtype;
  copy({&value, 1, &unit, call.attrs});
  const PutUnit put_units = put_unit_of(item);
  const auto clear = [](char* to, int64_t bytes) { std::memset(to, 0, static_cast<std::size_t>(bytes)); };
  each_piece(x, y, [&](const char* from, int64_t x_step, char* to, int64_t y_step, int64_t n) {
    alignas(64) int64_t places[kChunk];
    filler_of<Fill::store>(x.dtype, x_step)(from, x_step, classes, step, places, n);
    const bool dense = step == item, whole = dense && (y_step == classes * item || n == 1);
    if (whole) clear(to, n * classes * item);
    for (int64_t i = 0; !whole && i < n; ++i) {
      if (dense) clear(to + i * y_step, classes * item);
      for (int64_t c = 0; !dense && c < classes; ++c) clear(to + i * y_step + c * step, item);
    }
    put_units(stored, to, y_step, places, n);
  });
}

constexpr std::uint32_t kAll = kReals | kComplexes;
constexpr std::uint32_t kIndices = (bit(DType::f16) - 1) & ~bit(DType::b8);
constexpr Entry kEntries[] = {
    {"gather", gather, kAll, "", 0, true},
    {"put", put, kAll, "", 0, true},
    {"one_hot", one_hot, kIndices, "num_classes", 0, true},
    {"take", take, kAll, "axis", 0, true},
    {"take_along_axis", take_along_axis, kAll, "axis", 0, true},
    {"scatter", scatter_set, kAll, "axis", 0, true},
    {"scatter_add", scatter_add, kReals, "axis", 0, true},
};

}  // namespace

Table indexed_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
