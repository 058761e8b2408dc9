// The kernel of `fused`: walks an elementwise tape over views, flat where it can, else by tiles.
// Knows nothing of what the tape computes.
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

constexpr double kWorthWaking = 4000;  // nanoseconds of work for another thread
constexpr int64_t kUnit = 1024;        // whole blocks, so that threads meet on cache lines
constexpr int64_t kLongTile = 16384;   // elements of a tile that nothing is copied for
constexpr int64_t kCopyBytes = 4096;   // of an operand that is copied for a tile
constexpr int kViews = kMaxInputs + kMaxOutputs;

TRITIUM_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TRITIUM_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

int64_t grain_of(const Bound& bound, int64_t unit) {
  return most(1, static_cast<int64_t>(kWorthWaking / (bound.cost * static_cast<double>(unit))));
}

bool contiguous(const View& v) {
  int64_t expected = item_size(v.dtype);
  for (int d = v.ndim - 1; d >= 0; --d) {
    if (v.shape[d] == 1) continue;
    if (v.strides[d] != expected) return false;
    expected *= v.shape[d];
  }
  return true;
}

// What one thread needs besides the operands: scratch memory, slots, pads, and a block for every repeated input.
struct Own {
  Workspace space;
  char* at[kTapeOperands];
  char *pads, *blocks, *tiles;

  Own(const Tape& tape, const Bound& bound, int64_t tile_bytes)
      : space((kScratchBlocks + 3 * tape.operands) * kBlockBytes + tile_bytes, Need::must) {
    pads = space.data() + place_own(tape, bound, space.data(), at);
    blocks = pads + tape.operands * kBlockBytes;
    tiles = blocks + tape.operands * kBlockBytes;
  }
};

// Every view is contiguous and of the size of the result, or one element: no tiles, just ranges. False: not so.
bool run_flat(const Tape& tape, const Bound& bound, const View* views, int count, int64_t n) {
  bool repeats[kViews];
  for (int i = 0; i < count; ++i) {
    const int64_t size = views[i].size();
    repeats[i] = size == 1 && n != 1;
    if (!repeats[i] && (size != n || !contiguous(views[i]))) return false;
  }
  parallel_for((n + kUnit - 1) / kUnit, grain_of(bound, kUnit), [&](int64_t begin, int64_t end) {
    Own own(tape, bound, 0);
    Mask still;
    for (int i = 0; i < count; ++i) {
      const int64_t item = item_size(views[i].dtype);
      if (repeats[i]) {
        own.at[i + 1] = own.blocks + i * kBlockBytes;
        fill_block(own.at[i + 1], views[i].data, item, block_of(tape));
        still.add(i + 1);
      } else {
        own.at[i + 1] = views[i].data + begin * kUnit * item;
      }
    }
    run_part(tape, bound.part[0], own.at, still, least(end * kUnit, n) - begin * kUnit, own.pads);
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
              int64_t tile_bytes, Own& own, Copies& copies) {
  Mask still;
  for (int i = 0; i < count; ++i) {
    const Reading& r = reading[i];
    char *from = t.at[slot[i]], *&to = own.at[i + 1];
    if (r.adjacent(t)) {
      to = from;
      continue;
    }
    const bool input = i < tape.inputs;
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
  run_part(tape, bound.part[0], own.at, still, t.rows * t.columns, own.pads);
  for (int i = tape.inputs; i < count; ++i) {
    const Reading& r = reading[i];
    if (r.adjacent(t)) continue;
    scatter_block(t.at[slot[i]], r.row, r.column, own.tiles + i * tile_bytes, t.rows, t.columns, r.item);
  }
}

// The first result leads: the others and the inputs follow its order in memory.
void run_tiles(const Tape& tape, const Bound& bound, const View* views, int count) {
  View others[kViews];
  int slot[kViews];
  for (int i = 0, k = 0; i < count; ++i) {
    slot[i] = i == tape.inputs ? count - 1 : k;
    if (i != tape.inputs) others[k++] = views[i];
  }
  Loops loops;
  if (!loops.build(others, count - 1, views[tape.inputs])) return;
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
  parallel_for(tiles.count, grain_of(bound, tiles.rows * tiles.columns), [&](int64_t begin, int64_t end) {
    Own own(tape, bound, count * tile_bytes);
    Copies copies;
    Tile tile(loops, tiles, begin);
    for (int64_t i = begin; i < end; ++i) {
      run_tile(tape, bound, reading, slot, count, tile, tile_bytes, own, copies);
      if (i + 1 < end) tile.next();
    }
  });
}

void run_map(const Tape& tape, const Call& call) {
  const int64_t n = call.out[0].size();
  if (n == 0) return;
  const Bound& b = bound(tape);
  const int count = tape.inputs + tape.outputs;
  View views[kViews];
  for (int i = 0; i < count; ++i) {
    const View& v = i < tape.inputs ? call.in[i] : call.out[i - tape.inputs];
    views[i].data = v.data;
    views[i].dtype = v.dtype;
    views[i].ndim = v.ndim;
    std::memcpy(views[i].shape, v.shape, sizeof(int64_t) * static_cast<std::size_t>(v.ndim));
    std::memcpy(views[i].strides, v.strides, sizeof(int64_t) * static_cast<std::size_t>(v.ndim));
  }
  if (!run_flat(tape, b, views, count, n)) run_tiles(tape, b, views, count);
}

void fused(const Call& call) {
  const Tape& tape = *call.attrs->tape;
  tape.rows ? run_rows(tape, call) : run_map(tape, call);
}

constexpr Entry kEntries[] = {{"fused", fused, (1u << kDTypes) - 1}};

}  // namespace
}  // namespace tape

void run_tape(const Tape& tape, const char* const* in, char* const* out, std::int64_t n, std::uint32_t repeated) {
  const tape::Bound& bound = tape::bound(tape);
  alignas(64) char space[(tape::kScratchBlocks + kTapeOperands) * tape::kBlockBytes];
  alignas(64) char pads[kTapeOperands * tape::kBlockBytes];
  alignas(64) char blocks[kMaxInputs * tape::kBlockBytes];
  char* at[kTapeOperands];
  tape::place_own(tape, bound, space, at);
  tape::Mask still;
  for (int i = 0; i < tape.inputs; ++i) {
    at[i + 1] = const_cast<char*>(in[i]);
    if (!(repeated >> i & 1)) continue;
    at[i + 1] = blocks + i * tape::kBlockBytes;
    tape::fill_block(at[i + 1], in[i], item_size(tape.operand[i + 1].dtype), tape::block_of(tape));
    still.add(i + 1);
  }
  for (int i = 0; i < tape.outputs; ++i) at[tape.inputs + i + 1] = out[i];
  tape::run_part(tape, bound.part[0], at, still, n, pads);
}

Table tape_table() { return {tape::kEntries, 1}; }

}  // namespace tritium::TRITIUM_ISA
