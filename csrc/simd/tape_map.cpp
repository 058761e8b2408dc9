// The kernel of `fused`: walks an elementwise tape over views, flat where it can, else by tiles.
#include <cstring>

#include "../threads.h"
#include "../workspace.h"
#include "iterate.h"
#include "math.h"
#include "tape.h"
#include "tape_bind.h"
#include "tape_rows.h"

namespace tritium::TRITIUM_ISA {
namespace tape {
namespace {

using std::int64_t;

constexpr double kWorthWaking = 1500;  // nanoseconds of work for another thread
constexpr int64_t kUnit = 256;         // whole blocks, so that threads meet on cache lines
constexpr int64_t kLongTile = 16384;   // elements of a tile that nothing is copied for
constexpr int64_t kCopyBytes = 4096;   // of an operand that is copied for a tile
constexpr int64_t kAroundBytes = int64_t{2} << 20;  // of results: more than a second-level cache keeps beside what is read
constexpr int64_t kNear = 32 * kBlockBytes;  // what small tapes need, on the stack
constexpr int kViews = kMaxInputs + kMaxOutputs;

TRITIUM_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TRITIUM_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t grain_of(const Bound& bound, int64_t unit) {
  return most(1, static_cast<int64_t>(kWorthWaking / (bound.cost * static_cast<double>(unit))));
}

// How many elements a contiguous view has; -1: it is not contiguous.
int64_t flat_size(const View& v) {
  const int64_t item = item_size(v.dtype);
  int64_t n = 1;
  for (int d = v.ndim - 1; d >= 0; --d) {
    if (v.shape[d] == 1) continue;
    if (v.strides[d] != n * item) return -1;
    n *= v.shape[d];
  }
  return n;
}

const View& view_of(const Tape& tape, const Call& call, int i) {
  return i < tape.inputs ? call.in[i] : call.out[i - tape.inputs];
}

// Whether results are too large to be read from the cache soon. One that is written over an input is there already; the
// attribute read_next says that the next call reads them.
bool goes_around(const Tape& tape, const Call& call, int64_t n) {
  if (call.attrs->whole[0]) return false;
  int64_t bytes = 0;
  for (int k = 0; k < tape.outputs; ++k) bytes += n * item_size(call.out[k].dtype);
  if (bytes < kAroundBytes) return false;
  for (int k = 0; k < tape.outputs; ++k) {
    for (int i = 0; i < tape.inputs; ++i) {
      if (call.in[i].data == call.out[k].data) return false;
    }
  }
  return true;
}

bool on_a_line(const char* p) { return reinterpret_cast<std::uintptr_t>(p) % kAlignment == 0; }

// What one thread needs besides the operands: scratch memory, slots, pads, and a block for every repeated input.
struct Own {
  alignas(kAlignment) char near[kNear];
  const Workspace far;
  char* at[kTapeOperands];
  char *pads, *blocks, *tiles;

  Own(const Tape& tape, const Bound& bound, int64_t tile_bytes)
      : far(bytes_of(tape, tile_bytes) > kNear ? bytes_of(tape, tile_bytes) : 0, Need::must) {
    char* const space = far.data() ? far.data() : near;
    pads = space + place_own(tape, bound, space, at);
    blocks = pads + (tape.inputs + tape.outputs) * kBlockBytes;
    tiles = blocks + (tape.inputs + tape.outputs) * kBlockBytes;
  }

  static int64_t bytes_of(const Tape& tape, int64_t tile_bytes) {
    return (kScratchBlocks + tape.operands + 2 * (tape.inputs + tape.outputs)) * int64_t{kBlockBytes} + tile_bytes;
  }

  // Operand i + 1 is the element at `from`, again and again.
  void repeat(const Tape& tape, int i, const char* from, Mask& still) {
    at[i + 1] = blocks + i * kBlockBytes;
    fill_block(at[i + 1], from, item_size(tape.operand[i + 1].dtype), block_of(tape));
    still.add(i + 1);
  }
};

// Elements of a flat call from `begin` on.
void run_stretch(const Tape& tape, const Bound& bound, const Call& call, const bool* repeats, int64_t begin, int64_t n,
                 Stores stores) {
  Own own(tape, bound, 0);
  Mask still;
  for (int i = 0; i < tape.inputs + tape.outputs; ++i) {
    const View& v = view_of(tape, call, i);
    if (repeats[i]) {
      own.repeat(tape, i, v.data, still);
    } else {
      own.at[i + 1] = v.data + begin * item_size(v.dtype);
    }
  }
  run_part(tape, bound.part[0], own.at, still, n, own.pads, stores);
  if (stores == Stores::around) settle_stores();
}

// Every view is contiguous and of the size of the result, or one element: no tiles, just ranges. False: not so.
bool run_flat(const Tape& tape, const Bound& bound, const Call& call, int64_t n) {
  bool repeats[kViews];
  for (int i = 0; i < tape.inputs + tape.outputs; ++i) {
    const int64_t size = flat_size(view_of(tape, call, i));
    repeats[i] = size == 1 && n != 1;
    if (!repeats[i] && size != n) return false;
  }
  if (n <= kUnit) {
    run_stretch(tape, bound, call, repeats, 0, n, Stores::plain);
    return true;
  }
  bool around = goes_around(tape, call, n);
  for (int k = 0; k < tape.outputs; ++k) around = around && on_a_line(call.out[k].data);
  parallel_for((n + kUnit - 1) / kUnit, grain_of(bound, kUnit), [&](int64_t begin, int64_t end) {
    run_stretch(tape, bound, call, repeats, begin * kUnit, least(end * kUnit, n) - begin * kUnit,
                around ? Stores::around : Stores::plain);
  });
  return true;
}

// How a tile sees an operand.
struct Reading {
  int64_t row, column, item;

  bool adjacent(const Tile& t) const {
    return (column == item || t.columns == 1) && (t.rows == 1 || row == t.columns * item);
  }
  bool single(const Tile& t) const { return (column == 0 || t.columns == 1) && (row == 0 || t.rows == 1); }
};

// The operands of a tile for one thread; a copy that is the one asked for again is not made again.
struct Copies {
  const char* held[kViews] = {};
  int64_t rows[kViews], columns[kViews];

  bool again(int i, const char* from, const Tile& t) {
    if (held[i] == from && rows[i] == t.rows && columns[i] == t.columns) return true;
    held[i] = from;
    rows[i] = t.rows;
    columns[i] = t.columns;
    return false;
  }
};

void run_tile(const Tape& tape, const Bound& bound, const Reading* reading, const int* slot, int count, const Tile& t,
              int64_t tile_bytes, Own& own, Copies& copies, bool around) {
  Mask still;
  for (int i = 0; i < count; ++i) {
    const Reading& r = reading[i];
    char *from = t.at[slot[i]], *&to = own.at[i + 1];
    const bool input = i < tape.inputs;
    if (r.adjacent(t)) {
      to = from;
      around = around && (input || on_a_line(to));
      continue;
    }
    if (input && r.single(t)) {
      still.add(i + 1);
      to = own.blocks + i * kBlockBytes;
      if (!copies.again(i, from, t)) fill_block(to, from, r.item, block_of(tape));
      continue;
    }
    to = own.tiles + i * tile_bytes;
    if (input && !copies.again(i, from, t)) {
      gather_block(to, t.columns * r.item, from, r.row, r.column, t.rows, t.columns, r.item);
    }
  }
  run_part(tape, bound.part[0], own.at, still, t.rows * t.columns, own.pads, around ? Stores::around : Stores::plain);
  for (int i = tape.inputs; i < count; ++i) {
    const Reading& r = reading[i];
    if (r.adjacent(t)) continue;
    scatter_block(t.at[slot[i]], r.row, r.column, own.tiles + i * tile_bytes, t.rows, t.columns, r.item);
  }
}

void copy_view(const View& from, View& to) {
  to.data = from.data;
  to.dtype = from.dtype;
  to.ndim = from.ndim;
  std::memcpy(to.shape, from.shape, sizeof(int64_t) * static_cast<std::size_t>(from.ndim));
  std::memcpy(to.strides, from.strides, sizeof(int64_t) * static_cast<std::size_t>(from.ndim));
}

// The first result leads: the others and the inputs follow its order in memory.
void run_tiles(const Tape& tape, const Bound& bound, const Call& call, int64_t n) {
  const int count = tape.inputs + tape.outputs;
  View others[kViews];
  int slot[kViews];
  for (int i = 0, k = 0; i < count; ++i) {
    slot[i] = i == tape.inputs ? count - 1 : k;
    if (i != tape.inputs) copy_view(view_of(tape, call, i), others[k++]);
  }
  Loops loops;
  if (!loops.build(others, count - 1, call.out[0])) return;
  const bool transposed = loops.raise_transposed();
  const int inner = loops.ndim - 1;
  Reading reading[kViews];
  bool copied = transposed;
  int64_t widest = 1;
  for (int i = 0; i < count; ++i) {
    const int64_t* strides = loops.strides[slot[i]];
    reading[i] = {inner > 0 ? strides[inner - 1] : 0, strides[inner], loops.item[slot[i]]};
    copied = copied || !(reading[i].column == reading[i].item || (i < tape.inputs && reading[i].column == 0));
    widest = most(widest, reading[i].item);
  }
  const bool lines = !copied && loops.shape[inner] >= 256;
  const int64_t elements = lines ? kLongTile : kCopyBytes / widest, tile_bytes = lines ? 0 : kCopyBytes;
  const Tiles tiles(loops, transposed, elements);
  const bool around = lines && goes_around(tape, call, n);
  parallel_for(tiles.count, grain_of(bound, tiles.rows * tiles.columns), [&](int64_t begin, int64_t end) {
    Own own(tape, bound, count * tile_bytes);
    Copies copies;
    Tile tile(loops, tiles, begin);
    for (int64_t i = begin; i < end; ++i) {
      run_tile(tape, bound, reading, slot, count, tile, tile_bytes, own, copies, around);
      if (i + 1 < end) tile.next();
    }
    if (around) settle_stores();
  });
}

void run_map(const Tape& tape, const Call& call) {
  const int64_t flat = flat_size(call.out[0]), n = flat < 0 ? call.out[0].size() : flat;
  if (n == 0) return;
  const Bound& b = bound(tape);
  if (flat < 0 || !run_flat(tape, b, call, n)) run_tiles(tape, b, call, n);
}

void fused(const Call& call) {
  const Tape& tape = *call.attrs->tape;
  tape.rows ? run_rows(tape, call) : run_map(tape, call);
}

constexpr Entry kEntries[] = {{"fused", fused, (1u << kDTypes) - 1, "read_next"}};

}  // namespace
}  // namespace tape

void run_tape(const Tape& tape, const char* const* in, char* const* out, std::int64_t n, std::uint32_t repeated) {
  const tape::Bound& bound = tape::bound(tape);
  tape::Own own(tape, bound, 0);
  tape::Mask still;
  for (int i = 0; i < tape.inputs; ++i) {
    own.at[i + 1] = const_cast<char*>(in[i]);
    if (repeated >> i & 1) own.repeat(tape, i, in[i], still);
  }
  for (int i = 0; i < tape.outputs; ++i) own.at[tape.inputs + i + 1] = out[i];
  tape::run_part(tape, bound.part[0], own.at, still, n, own.pads);
}

Table tape_table() { return {tape::kEntries, 1}; }

}  // namespace tritium::TRITIUM_ISA
