// Plans the loops over strided, broadcast views and runs a body on their tiles, on all threads.
#include "iterate.h"

#include "../threads.h"
#include "half.h"
#include "math.h"

namespace tritium::TRITIUM_ISA {
namespace {

TRITIUM_INLINE std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
TRITIUM_INLINE std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
TRITIUM_INLINE std::int64_t magnitude(std::int64_t a) { return a < 0 ? -a : a; }

// Rows this short are taken several at a time.
constexpr std::int64_t kShortRow = 256;

bool contiguous(const View& v) {
  std::int64_t expected = item_size(v.dtype);
  for (int d = v.ndim - 1; d >= 0; --d) {
    if (v.shape[d] == 1) continue;
    if (v.strides[d] != expected) return false;
    expected *= v.shape[d];
  }
  return true;
}

bool same_shape(const View& a, const View& b) {
  if (a.ndim != b.ndim) return false;
  for (int d = 0; d < a.ndim; ++d) {
    if (a.shape[d] != b.shape[d]) return false;
  }
  return true;
}

// Every operand contiguous and of the dtype the body wants: no tiles, just ranges. False: not so.
bool iterate_flat(const Body& body, const View* in, int nin, const View& out) {
  if (out.dtype != body.out || !contiguous(out)) return false;
  for (int i = 0; i < nin; ++i) {
    if (in[i].dtype != body.in[i] || !same_shape(in[i], out) || !contiguous(in[i])) return false;
  }
  std::int64_t n = 1;
  for (int d = 0; d < out.ndim; ++d) n *= out.shape[d];
  const auto range = [&](std::int64_t begin, std::int64_t end) {
    const char* from[kMaxInputs];
    while (begin < end) {
      const std::int64_t m = least(end - begin, body.limit);
      for (int i = 0; i < nin; ++i) from[i] = in[i].data + begin * item_size(body.in[i]);
      body.run(body.context, from, out.data + begin * item_size(body.out), m);
      begin += m;
    }
  };
  if (n <= body.grain) {
    if (n > 0) range(0, n);
    return true;
  }
  constexpr std::int64_t kUnit = 1024;  // so that threads meet on cache line boundaries
  parallel_for((n + kUnit - 1) / kUnit, most(1, body.grain / kUnit),
               [&](std::int64_t begin, std::int64_t end) { range(begin * kUnit, least(end * kUnit, n)); });
  return true;
}

// The tile buffers of one thread, and what the inputs' buffers hold already: a repeated operand is filled once.
struct Buffers {
  alignas(64) char tile[kMaxOperands][kTileBytes];
  alignas(64) char raw[kTileBytes];
  const char* held[kMaxOperands] = {};
  std::int64_t held_rows[kMaxOperands], held_columns[kMaxOperands];
};

struct Operand {
  std::int64_t row, column;  // strides within a tile
  std::int64_t item;
  DType own, wanted;

  bool direct(const Tile& t) const {
    return own == wanted && adjacent(t);
  }
  bool adjacent(const Tile& t) const {
    return (column == item || t.columns == 1) && (t.rows == 1 || row == t.columns * item);
  }
};

const char* load(const Operand& x, int slot, const Tile& t, Buffers& buffers) {
  const char* from = t.at[slot];
  if (x.direct(t)) return from;
  char* to = buffers.tile[slot];
  if (buffers.held[slot] == from && buffers.held_rows[slot] == t.rows && buffers.held_columns[slot] == t.columns) {
    return to;
  }
  buffers.held[slot] = from;
  buffers.held_rows[slot] = t.rows;
  buffers.held_columns[slot] = t.columns;
  if (x.own == x.wanted) {
    gather_block(to, t.columns * x.item, from, x.row, x.column, t.rows, t.columns, x.item);
    return to;
  }
  if (!x.adjacent(t)) {
    gather_block(buffers.raw, t.columns * x.item, from, x.row, x.column, t.rows, t.columns, x.item);
    from = buffers.raw;
  }
  widen(x.own, from, reinterpret_cast<float*>(to), t.rows * t.columns);
  return to;
}

void store(const Operand& x, const Tile& t, char* to, const char* from, Buffers& buffers) {
  if (x.own != x.wanted) {
    const bool adjacent = x.adjacent(t);
    char* narrowed = adjacent ? to : buffers.raw;
    narrow(x.own, reinterpret_cast<const float*>(from), narrowed, t.rows * t.columns);
    if (adjacent) return;
    from = narrowed;
  }
  scatter_block(to, x.row, x.column, from, t.rows, t.columns, x.item);
}

}  // namespace

bool Loops::build(const View* in, int nin, const View& out) {
  operands = nin + 1;
  ndim = 0;
  for (int i = 0; i < nin; ++i) {
    base[i] = in[i].data;
    item[i] = item_size(in[i].dtype);
  }
  base[nin] = out.data;
  item[nin] = item_size(out.dtype);
  for (int d = 0; d < out.ndim; ++d) {
    const std::int64_t size = out.shape[d];
    if (size == 0) return false;
    if (size == 1) continue;
    const bool flip = out.strides[d] < 0;
    // Insertion sort by the output's strides: it is written in the order of its memory.
    int at = ndim++;
    while (at > 0 && strides[nin][at - 1] < magnitude(out.strides[d])) {
      shape[at] = shape[at - 1];
      for (int i = 0; i < operands; ++i) strides[i][at] = strides[i][at - 1];
      --at;
    }
    shape[at] = size;
    for (int i = 0; i < operands; ++i) {
      std::int64_t stride = 0;
      if (i == nin) {
        stride = out.strides[d];
      } else if (const int own = d - (out.ndim - in[i].ndim); own >= 0 && in[i].shape[own] != 1) {
        stride = in[i].strides[own];
      }
      if (flip) base[i] += (size - 1) * stride;
      strides[i][at] = flip ? -stride : stride;
    }
  }
  int kept = 0;
  for (int d = 1; d < ndim; ++d) {
    bool merges = true;
    for (int i = 0; i < operands; ++i) merges = merges && strides[i][kept] == strides[i][d] * shape[d];
    if (merges) {
      shape[kept] *= shape[d];
    } else {
      shape[++kept] = shape[d];
    }
    for (int i = 0; i < operands; ++i) strides[i][kept] = strides[i][d];
  }
  if (ndim == 0) {
    shape[0] = 1;
    for (int i = 0; i < operands; ++i) strides[i][0] = item[i];
  }
  ndim = kept + 1;
  return true;
}

bool Loops::raise_transposed() {
  const int inner = ndim - 1;
  for (int i = 0; i < operands - 1; ++i) {
    if (magnitude(strides[i][inner]) <= item[i]) continue;
    int best = inner;
    for (int d = 0; d < inner; ++d) {
      if (strides[i][d] != 0 && magnitude(strides[i][d]) < magnitude(strides[i][best])) best = d;
    }
    if (best == inner) continue;
    for (int d = best; d + 1 < inner; ++d) {
      std::int64_t kept = shape[d];
      shape[d] = shape[d + 1];
      shape[d + 1] = kept;
      for (int j = 0; j < operands; ++j) {
        kept = strides[j][d];
        strides[j][d] = strides[j][d + 1];
        strides[j][d + 1] = kept;
      }
    }
    return true;
  }
  return false;
}

Tiles::Tiles(const Loops& loops, bool transposed, std::int64_t elements) {
  const std::int64_t length = loops.shape[loops.ndim - 1];
  const std::int64_t height = loops.ndim > 1 ? loops.shape[loops.ndim - 2] : 1;
  if (transposed) {
    std::int64_t item = 1;
    for (int i = 0; i < loops.operands; ++i) item = most(item, loops.item[i]);
    rows = least(height, most(16, 128 / item));  // whole cache lines of what is read across
    columns = least(length, elements / rows);
    if (columns == length) rows = least(height, elements / columns);
  } else if (length >= kShortRow || height == 1) {
    rows = 1;
    columns = least(length, elements);
  } else {
    columns = length;
    rows = least(height, most(1, elements / columns));
  }
  row_tiles = (height + rows - 1) / rows;
  column_tiles = (length + columns - 1) / columns;
  count = row_tiles * column_tiles;
  for (int d = 0; d + 2 < loops.ndim; ++d) count *= loops.shape[d];
}

Tile::Tile(const Loops& loops, const Tiles& tiles, std::int64_t index) : loops_(loops), tiles_(tiles) {
  column_ = index % tiles.column_tiles;
  index /= tiles.column_tiles;
  row_ = index % tiles.row_tiles;
  index /= tiles.row_tiles;
  for (int d = loops.ndim - 3; d >= 0; --d) {
    outer_[d] = index % loops.shape[d];
    index /= loops.shape[d];
  }
  place();
}

void Tile::next() {
  if (++column_ == tiles_.column_tiles) {
    column_ = 0;
    if (++row_ == tiles_.row_tiles) {
      row_ = 0;
      for (int d = loops_.ndim - 3; d >= 0; --d) {
        if (++outer_[d] < loops_.shape[d]) break;
        outer_[d] = 0;
      }
    }
  }
  place();
}

void Tile::place() {
  const int inner = loops_.ndim - 1;
  const std::int64_t height = inner > 0 ? loops_.shape[inner - 1] : 1;
  const std::int64_t top = row_ * tiles_.rows, left = column_ * tiles_.columns;
  rows = least(tiles_.rows, height - top);
  columns = least(tiles_.columns, loops_.shape[inner] - left);
  for (int i = 0; i < loops_.operands; ++i) {
    const std::int64_t* stride = loops_.strides[i];
    char* p = loops_.base[i] + left * stride[inner];
    if (inner > 0) p += top * stride[inner - 1];
    for (int d = 0; d + 1 < inner; ++d) p += outer_[d] * stride[d];
    at[i] = p;
  }
}

void iterate(const Body& body, const View* in, int nin, const View& out) {
  if (iterate_flat(body, in, nin, out)) return;
  Loops loops;
  if (!loops.build(in, nin, out)) return;
  const bool transposed = loops.raise_transposed();
  const int inner = loops.ndim - 1;

  Operand operand[kMaxOperands];
  bool all_direct = !transposed;
  std::int64_t widest = 1;
  for (int i = 0; i <= nin; ++i) {
    Operand& x = operand[i];
    x = {inner > 0 ? loops.strides[i][inner - 1] : 0, loops.strides[i][inner], loops.item[i],
         i < nin ? in[i].dtype : out.dtype, i < nin ? body.in[i] : body.out};
    all_direct = all_direct && x.own == x.wanted && x.column == x.item;
    widest = most(widest, most(x.item, item_size(x.wanted)));
  }
  // Without a buffer between, a row may be as long as it likes; a short one is still taken by tiles.
  const bool long_rows = all_direct && loops.shape[inner] >= kShortRow;
  const std::int64_t elements = least(body.limit, long_rows ? 16384 : kTileBytes / widest);
  const Tiles tiles(loops, transposed, elements);

  parallel_for(tiles.count, most(1, body.grain / (tiles.rows * tiles.columns)),
               [&](std::int64_t begin, std::int64_t end) {
                 Buffers buffers;
                 const char* from[kMaxInputs];
                 Tile tile(loops, tiles, begin);
                 for (std::int64_t i = begin; i < end; ++i) {
                   for (int k = 0; k < nin; ++k) from[k] = load(operand[k], k, tile, buffers);
                   const bool direct = operand[nin].direct(tile);
                   char* to = direct ? tile.at[nin] : buffers.tile[nin];
                   body.run(body.context, from, to, tile.rows * tile.columns);
                   if (!direct) store(operand[nin], tile, tile.at[nin], to, buffers);
                   if (i + 1 < end) tile.next();
                 }
               });
}

}  // namespace tritium::TRITIUM_ISA
