// Copies of strided, broadcast and transposed views, with or without a change of dtype; filling; selection by a mask.
#include <cstdint>
#include <cstring>

#include "../threads.h"
#include "cast.h"
#include "iterate.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

constexpr std::int64_t kGrainBytes = 131072;

void copy_flat(char* to, const char* from, std::int64_t nbytes) {
  constexpr std::int64_t kUnit = 4096;
  parallel_for((nbytes + kUnit - 1) / kUnit, kGrainBytes / kUnit, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t stop = end * kUnit < nbytes ? end * kUnit : nbytes;
    std::memcpy(to + begin * kUnit, from + begin * kUnit, stop - begin * kUnit);
  });
}

// One element for all, if its bytes are all the same, as those of zeros are: the C library clears whole cache lines.
bool fill_flat(char* to, const char* element, std::int64_t item, std::int64_t nbytes) {
  for (std::int64_t i = 1; i < item; ++i)
    if (element[i] != element[0]) return false;
  const int byte = static_cast<unsigned char>(element[0]);
  constexpr std::int64_t kUnit = 4096;
  parallel_for((nbytes + kUnit - 1) / kUnit, kGrainBytes / kUnit, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t stop = end * kUnit < nbytes ? end * kUnit : nbytes;
    std::memset(to + begin * kUnit, byte, static_cast<std::size_t>(stop - begin * kUnit));
  });
  return true;
}

void copy_views(const View& in, const View& out) {
  Loops loops;
  if (!loops.build(&in, 1, out)) return;
  const bool transposed = loops.raise_transposed();
  const int inner = loops.ndim - 1;
  const std::int64_t item = loops.item[0];
  const std::int64_t* source = loops.strides[0];
  const std::int64_t* target = loops.strides[1];
  if (loops.base[0] == loops.base[1] && std::memcmp(source, target, sizeof(*source) * loops.ndim) == 0) return;
  const bool writes_lines = target[inner] == item;
  if (inner == 0 && source[0] == item && writes_lines) {
    return copy_flat(loops.base[1], loops.base[0], loops.shape[0] * item);
  }
  if (inner == 0 && source[0] == 0 && writes_lines && fill_flat(loops.base[1], loops.base[0], item, loops.shape[0] * item)) {
    return;
  }
  const bool long_rows = writes_lines && !transposed && loops.shape[inner] * item >= kTileBytes;
  const Tiles tiles(loops, transposed, (long_rows ? 65536 : kTileBytes) / item);
  const std::int64_t source_row = inner > 0 ? source[inner - 1] : 0, target_row = inner > 0 ? target[inner - 1] : 0;
  const std::int64_t tile_bytes = tiles.rows * tiles.columns * item;
  const std::int64_t grain = tile_bytes < kGrainBytes ? kGrainBytes / tile_bytes : 1;
  parallel_for(tiles.count, grain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) char buffer[kTileBytes];
    Tile tile(loops, tiles, begin);
    for (std::int64_t i = begin; i < end; ++i) {
      // Transposed, a tile goes by way of the buffer: its rows in the output may all map to one set of the cache.
      if (writes_lines && !transposed) {
        gather_block(tile.at[1], target_row, tile.at[0], source_row, source[inner], tile.rows, tile.columns, item);
      } else {
        gather_block(buffer, tile.columns * item, tile.at[0], source_row, source[inner], tile.rows, tile.columns, item);
        scatter_block(tile.at[1], target_row, target[inner], buffer, tile.rows, tile.columns, item);
      }
      if (i + 1 < end) tile.next();
    }
  });
}

constexpr std::int64_t kCastTile = kTileBytes / static_cast<std::int64_t>(sizeof(float));

void run_cast(const void* context, const char* const* in, char* out, std::int64_t n) {
  const Cast& cast = *static_cast<const Cast*>(context);
  if (cast.second == nullptr) return cast.first(in[0], nullptr, nullptr, out, n);
  alignas(64) float middle[kCastTile];
  cast.first(in[0], nullptr, nullptr, middle, n);
  cast.second(middle, nullptr, nullptr, out, n);
}

// The value is an attribute: read as an integer where the result is one, as a double elsewhere.
void run_full(const Call& call) {
  const bool whole = call.out->dtype >= DType::i8 && call.out->dtype <= DType::u64;
  std::int64_t integer = call.attrs->whole[0];
  double real = call.attrs->real[0];
  View value;
  value.data = whole ? reinterpret_cast<char*>(&integer) : reinterpret_cast<char*>(&real);
  value.dtype = whole ? DType::i64 : DType::f64;
  alignas(16) char stored[16];
  View one;
  one.data = stored;
  one.dtype = call.out->dtype;
  copy({&value, 1, &one, call.attrs});
  copy({&one, 1, call.out, call.attrs});
}

template <class T>
void select(const Byte* mask, const T* a, const T* b, T* out, std::int64_t n) {
  TRITIUM_LOOP
  for (std::int64_t i = 0; i < n; ++i) {
    // All bits or none, which every vector unit can do.
    const T chosen = static_cast<T>(0 - static_cast<T>(mask[i] != 0));
    out[i] = static_cast<T>((a[i] & chosen) | (b[i] & ~chosen));
  }
}

template <class T>
void run_select(const void*, const char* const* in, char* out, std::int64_t n) {
  select(reinterpret_cast<const Byte*>(in[0]), reinterpret_cast<const T*>(in[1]), reinterpret_cast<const T*>(in[2]),
         reinterpret_cast<T*>(out), n);
}

// Elements of 16 bytes.
void run_select_pairs(const void*, const char* const* in, char* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) std::memcpy(out + 16 * i, (in[0][i] != 0 ? in[1] : in[2]) + 16 * i, 16);
}

void run_where(const Call& call) {
  const DType t = call.out->dtype;
  Body body{run_select<std::uint64_t>, nullptr, {DType::b8, t, t}, t, INT64_MAX, 0};
  body.grain = static_cast<std::int64_t>(Cost::cheap);
  switch (item_size(t)) {
    case 1: body.run = run_select<std::uint8_t>; break;
    case 2: body.run = run_select<std::uint16_t>; break;
    case 4: body.run = run_select<std::uint32_t>; break;
    case 16: body.run = run_select_pairs; break;
  }
  iterate(body, call.in, 3, *call.out);
}

struct EitherPart {
  template <class T>
  TRITIUM_INLINE static bool of(T real, T imaginary) { return real != T(0) || imaginary != T(0); }
};

// Between complex numbers, from real ones, and to bool: part by part.
void copy_parts(const View& in, const View& out) {
  static const Attrs none;
  if (!is_complex(out.dtype)) {
    const View parts[2] = {part(in, 0), part(in, 1)};
    const auto span = in.dtype == DType::c64 ? binary<EitherPart, float, Byte> : binary<EitherPart, double, Byte>;
    const SpanCall call{span, 2, Cost::cheap, parts[0].dtype, DType::b8};
    const auto run = [](const void* context, const char* const* from, char* to, std::int64_t n) {
      static_cast<const SpanCall*>(context)->run(from[0], from[1], nullptr, to, n);
    };
    return iterate({run, &call, {call.in, call.in}, DType::b8, INT64_MAX, static_cast<std::int64_t>(Cost::cheap)},
                   parts, 2, out);
  }
  static double zero = 0;
  for (const int which : {0, 1}) {
    View from = is_complex(in.dtype) ? part(in, which) : in, to = part(out, which);
    if (which == 1 && !is_complex(in.dtype)) {
      from.data = reinterpret_cast<char*>(&zero);
      from.dtype = to.dtype;
      from.ndim = 0;
    }
    copy({&from, 1, &to, &none});
  }
}

constexpr std::uint32_t kAll = kReals | kComplexes;
constexpr Entry kEntries[] = {
    {"copy", copy, kAll, ""},
    {"astype", copy, kAll, ""},
    {"full", run_full, kAll, "fill_value"},
    {"where", run_where, kAll, ""},
};

}  // namespace

void copy(const Call& call) {
  const View& in = call.in[0];
  if (in.dtype != call.out->dtype && (is_complex(in.dtype) || is_complex(call.out->dtype)))
    return copy_parts(in, *call.out);
  const Cast cast = find_cast(in.dtype, call.out->dtype);
  if (cast.first == nullptr) return copy_views(in, *call.out);
  iterate({run_cast, &cast, {in.dtype}, call.out->dtype, cast.second == nullptr ? INT64_MAX : kCastTile,
           static_cast<std::int64_t>(Cost::cheap)},
          &in, 1, *call.out);
}

Table copy_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
