// Runs a product on all threads: packs the activations into panels, then takes chunks of up to 64 rows of weights.
// A format F says its kRows, kStrips and kLine (arm_formats.h). A unit U multiplies with one instruction set:
//   static constexpr int kDepth;                               k that lie together in its panels: 4 or 8
//   template <class F> static constexpr int64_t kStreamed;     most tokens for which weights are used as packed …
//   template <class F> static Panels panels(int64_t tokens);   … and which panels these make
//   template <class F> static void sums(const Blocks& w, const int8_t* y, int width, int64_t k, const int32_t* sums,
//                                       int32_t* to);
//     to[token * kChunkRows + row] = sum of weights * q over k, a multiple of 16; sums: those of the tokens' q
// and, if kUnpacks, for more tokens on weights unpacked to int8 in tiles of 8 rows, [k/kDepth][8][kDepth], two a strip:
//   template <class F> static void unpack(const int8_t* block, int64_t k, int8_t* tiles);
//   static void tile_sums(const int8_t* tile, const int8_t* y, int width, int64_t k, int32_t* c);  adds to c[width * 8]
//   static void tile_rows(const int32_t* c, int token, int32_t* to);                               8 sums of one token
// and, where it has faster ways for the groups of a ternary format (arm_groups.h),
//   static constexpr bool kTokenGroups, kPanelGroups, kTileGroups;   for one token; several; 12, weights unpacked
//   static void token_groups(const TokenGroups& g, bool half, GroupTotals& to);
//   static void panel_group(const Blocks& w, const int8_t* y, int width, const PanelGroup& g, float* to);
//   static void tile_group(const int8_t* tile, const int8_t* y, int64_t k, const float* scales, float* to);  to[12 * 8]
#pragma once

#include "../threads.h"
#include "../workspace.h"
#include "arm_formats.h"
#include "arm_groups.h"
#include "arm_panels.h"
#include "product.h"

namespace tritium::TRITIUM_ISA {
namespace {

constexpr int kMaxWidth = 16;                  // of a panel
constexpr int kTileWidth = 12;                 // of a panel for unpacked weights
constexpr int64_t kTileK = 2560;               // k of a panel that stay in L1 while the tiles pass by
constexpr int64_t kUnpackedBytes = 192 << 10;  // of weights, to stay in L2
constexpr int64_t kStreamedGroups = 23;        // kStreamed where weights are grouped and U::kTileGroups
constexpr int64_t kPackGrain = 1 << 15;        // activations that make it worth waking another thread
constexpr int64_t kProductGrain = 1 << 18;     // multiplications, likewise

// A few neighbouring blocks of rows, from some k on.
struct Blocks {
  const int8_t* data;
  int64_t stride;  // bytes between blocks
  int blocks;
};

// The scales of the groups of a chunk's rows: those of a group side by side, f32 or f16.
struct GroupScales {
  const char* data;
  bool half;
  int64_t step;  // bytes between groups

  const float* floats(int64_t g) const { return reinterpret_cast<const float*>(data + g * step); }
};

// Whether the scales of neighbouring rows are neighbours, as layers keep them.
inline bool scales_adjoin(const Product& p) { return p.scale_row == item_size(p.scale_type); }

// Fetches the scales of a chunk: those of neighbouring groups are far from each other, nothing else would in time.
inline void fetch_scales(const Product& p, int64_t row) {
  const int64_t size = item_size(p.scale_type);
  const char* from = p.scale + row * size;
  for (int64_t g = 0; g < p.groups; ++g, from += p.scale_group) {
    for (int64_t i = 0; i < kChunkRows * size; i += 64) __builtin_prefetch(from + i);
  }
}

// Copies the scales of a chunk to `space` as [group][kChunkRows] of f32, and fetches those of the next one.
inline GroupScales load_chunk_scales(const Product& p, int64_t row, int64_t rows, char* space) {
  constexpr int64_t kStep = kChunkRows * 4;
  float* to = reinterpret_cast<float*>(space);
  if (!scales_adjoin(p) || rows < kChunkRows) {
    for (int64_t g = 0; g < p.groups; g += kBlock) {
      load_group_scales(p, row, rows, g, least(kBlock, p.groups - g), to + g * kChunkRows, kChunkRows);
    }
    return {space, false, kStep};
  }
  fetch_scales(p, row + kChunkRows);
  const char* from = p.scale + row * item_size(p.scale_type);
  for (int64_t g = 0; g < p.groups; ++g, from += p.scale_group, to += kChunkRows) {
    if (p.scale_type == DType::f32) {
      std::memcpy(to, from, kStep);
      continue;
    }
    const float16_t* const f16 = reinterpret_cast<const float16_t*>(from);
    for (int64_t r = 0; r < kChunkRows; r += 4) vst1q_f32(to + r, vcvt_f32_f16(vld1_f16(f16 + r)));
  }
  return {space, false, kStep};
}

// What one thread works on: some blocks, and what their rows are scaled by.
template <class F>
struct Chunk {
  int64_t row, rows;
  Blocks w;
  RowScales scales;
  GroupScales groups;  // where grouped

  // in_place: scales stay where they are, if they can. TokenGroups fetches those of the next chunk.
  Chunk(const Product& p, int64_t block, int blocks, char* space, bool in_place)
      : row(block * F::kRows),
        rows(least(blocks * F::kRows, p.n - row)),
        w{reinterpret_cast<const int8_t*>(p.w) + block * p.w_row, p.w_row, blocks} {
    load_scales(p, row, rows, scales);
    if (!p.grouped) return;
    if (in_place && rows == blocks * F::kRows) {
      groups = {p.scale + row * p.scale_row, p.scale_type == DType::f16, p.scale_group};
    } else {
      groups = load_chunk_scales(p, row, rows, space);
    }
  }
};

// The k of a product: those of the weights, padded to whole tiles, and those of the activations; cut into groups.
struct Depth {
  Slots slots;
  int64_t weights, k, group, groups;  // group: k of the activations
  const int32_t* starts = nullptr;    // [group][kStarts] of the last token, if a panel of its own …
  const float* by = nullptr;          // … and [group][view], if its groups have scales: see TokenGroups

  Depth(const Product& p)
      : slots(p.slots()),
        weights(whole(p.k, tile(p.format).block)),
        k(slots.apart ? slots.width() : weights),
        group(p.grouped ? slots.columns : k),
        groups(p.groups) {}
  int64_t begin(int64_t g) const { return g * group; }  // in the activations
  int64_t first(int64_t g) const { return slots.first(g); }  // in the weights
  int64_t length(int64_t g) const { return slots.apart || g + 1 < groups ? group : k - g * group; }
  // How many of the groups [g, end) follow each other in the weights and have the same length: at least one.
  int64_t even(int64_t g, int64_t end) const {
    return slots.apart ? 1 : most(1, least(end, length(groups - 1) == group ? end : groups - 1) - g);
  }
};

inline void token_sums(const Product& p, const Panel& panel, int64_t g, int32_t* sums) {
  for (int c = 0; c < panel.width; ++c) sums[c] = c < panel.count ? p.sum(panel.first + c, g) : 0;
}

// block[r] = block[r] + float(sums[r]) * scale[r] (* the activations' scale of group g): the pinned step from one group to
// the next. rows: a multiple of 4.
TRITIUM_INLINE void add_group(const Product& p, int64_t t, int64_t g, const int32_t* sums, const float* scale,
                              float* block, int rows) {
  const float32x4_t by = vdupq_n_f32(p.by_group ? p.a.scales[t * p.groups + g] : 0.0f);
  for (int r = 0; r < rows; r += 4) {
    float32x4_t part = vmulq_f32(vcvtq_f32_s32(vld1q_s32(sums + r)), vld1q_f32(scale + r));
    if (p.by_group) part = vmulq_f32(part, by);
    vst1q_f32(block + r, vaddq_f32(vld1q_f32(block + r), part));
  }
}

// After the last group of a block of columns: the block is added to the total, and is 0 again.
TRITIUM_INLINE void end_group(const Product& p, int64_t g, float* block, float* total, int64_t n) {
  if ((g + 1) % p.block_groups() != 0 && g + 1 < p.groups) return;
  add_block(total, block, n, g < p.block_groups());
  std::memset(block, 0, static_cast<std::size_t>(n) * 4);
}

// put_sums, straight from registers where results are f32 side by side: 5 instructions less for each.
inline void put_chunk(const Product& p, int64_t t, int64_t row, int64_t rows, const RowScales& s, const int32_t* sums) {
  if (p.after || !p.scale || p.out->type != DType::f32 || p.out->step != 4) return put_sums(p, t, row, rows, s, sums);
  float* const y = reinterpret_cast<float*>(p.out->row(p.first + t)) + row;
  const float32x4_t token = vdupq_n_f32(p.a.scales[t]);
  for (int64_t r = 0; r < rows; r += 4) {
    float32x4_t v = vmulq_f32(vcvtq_f32_s32(vld1q_s32(sums + r)), vmulq_f32(token, vld1q_f32(s.scale + r)));
    if (s.biased) v = vaddq_f32(v, vld1q_f32(s.bias + r));
    if (r + 4 <= rows) {
      vst1q_f32(y + r, v);
    } else {
      std::memcpy(y + r, &v, static_cast<std::size_t>(rows - r) * 4);
    }
  }
}

// One token against one chunk, weights as packed: the groups that follow each other at a time.
template <class U, class F>
void streamed_token(const Product& p, const Depth& depth, const Chunk<F>& chunk, const Panel& panel, const int8_t* y) {
  alignas(64) float all[kChunkRows];
  const GroupScales& scales = chunk.groups;
  for (int b = 0; b < chunk.w.blocks; ++b) {
    GroupTotals totals(p.block_groups());
    for (int64_t g = 0, count; g < depth.groups; g += count) {
      count = depth.even(g, depth.groups);
      const TokenGroups run{chunk.w.data + b * chunk.w.stride + depth.first(g) / 4 * F::kLine,
                            y + depth.begin(g),
                            depth.length(g) / 16,
                            count,
                            depth.starts + g * kStarts,
                            scales.data + b * F::kRows * (scales.half ? 2 : 4) + g * scales.step,
                            scales.step,
                            depth.by ? depth.by + g * 4 : nullptr};
      U::token_groups(run, scales.half, totals);
    }
    totals.put(scales.half && !depth.by, all + b * F::kRows);
  }
  put_grouped(p, panel.first, chunk.row, chunk.rows, chunk.scales, all);
}

// block[token * kChunkRows + row] += one group of a panel; w and y: from it on.
template <class U, class F>
void streamed_group(const Product& p, const Depth& depth, const Chunk<F>& chunk, const Panel& panel, int64_t g,
                    const Blocks& w, const int8_t* y, float* block) {
  alignas(64) int32_t s[kMaxWidth * kChunkRows];
  int32_t sums[kMaxWidth];
  token_sums(p, panel, g, sums);
  if constexpr (U::kPanelGroups && F::kTernary) {
    if (panel.width > 1 && depth.group <= kMostFloated) {
      panel_starts(sums, panel.width, s);
      const float* const by = p.by_group ? p.a.scales + panel.first * p.groups + g : nullptr;
      const PanelGroup group{depth.length(g), panel.count, s, chunk.groups.floats(g), by, p.groups};
      return U::panel_group(w, y, panel.width, group, block);
    }
  }
  U::template sums<F>(w, y, panel.width, depth.length(g), sums, s);
  for (int c = 0; c < panel.count; ++c) {
    add_group(p, panel.first + c, g, s + c * kChunkRows, chunk.groups.floats(g), block + c * kChunkRows,
              chunk.w.blocks * F::kRows);
  }
}

// One panel against one chunk, weights as packed.
template <class U, class F>
void streamed_panel(const Product& p, const Depth& depth, const Chunk<F>& chunk, const Panel& panel, const int8_t* y) {
  if (!p.grouped) {
    alignas(64) int32_t s[kMaxWidth * kChunkRows];
    int32_t sums[kMaxWidth];
    token_sums(p, panel, 0, sums);
    U::template sums<F>(chunk.w, y, panel.width, depth.k, sums, s);
    for (int c = 0; c < panel.count; ++c) {
      put_chunk(p, panel.first + c, chunk.row, chunk.rows, chunk.scales, s + c * kChunkRows);
    }
    return;
  }
  if constexpr (U::kTokenGroups && F::kTernary) {
    if (panel.width == 1 && depth.starts) return streamed_token<U, F>(p, depth, chunk, panel, y);
  }
  alignas(64) float block[kMaxWidth * kChunkRows], total[kMaxWidth * kChunkRows];
  std::memset(block, 0, static_cast<std::size_t>(panel.width) * kChunkRows * 4);
  for (int64_t g = 0; g < depth.groups; ++g) {
    Blocks w = chunk.w;
    w.data += depth.first(g) / 4 * F::kLine;
    streamed_group<U, F>(p, depth, chunk, panel, g, w, y + depth.begin(g) * panel.width, block);
    end_group(p, g, block, total, panel.count * kChunkRows);
  }
  for (int c = 0; c < panel.count; ++c) {
    put_grouped(p, panel.first + c, chunk.row, chunk.rows, chunk.scales, total + c * kChunkRows);
  }
}

// The unpacked weights of a chunk, and for each of its tiles the sums (grouped: the totals) of one panel.
template <class F>
struct Tiles {
  static constexpr int kPerBlock = F::kStrips * 2, kMost = kChunkRows / F::kRows * kPerBlock;

  int8_t* data;  // [tile][8 * k]
  int count;
  alignas(64) int32_t sums[kMost][kTileWidth * 8];
  alignas(64) float parts[kMost][kTileWidth * 8], totals[kMost][kTileWidth * 8];  // of a block; of all

  // The first row of a tile in the chunk.
  static int row(int tile) {
    return tile / kPerBlock * F::kRows + F::row(tile % kPerBlock / 2, tile % 2);
  }
};

// parts[token * 8 + row] += one group of a panel and a tile whose first row in the chunk is given.
template <class U, class F>
void tiled_group(const Product& p, const Depth& depth, const Chunk<F>& chunk, const Panel& panel, int64_t g,
                 const int8_t* tile, const int8_t* y, int row, float* parts) {
  const int8_t* const w = tile + depth.first(g) * 8;
  const float* const scales = chunk.groups.floats(g) + row;
  y += depth.begin(g) * panel.width;
  if constexpr (U::kTileGroups) {
    const bool near = depth.group * 127 * F::kMost < 1 << 22;  // sums are floats as they are, see arm_groups.h
    if (near && panel.width == 12 && !p.by_group) return U::tile_group(w, y, depth.length(g), scales, parts);
  }
  alignas(64) int32_t sums[kTileWidth * 8] = {}, rows[8];
  U::tile_sums(w, y, panel.width, depth.length(g), sums);
  for (int c = 0; c < panel.count; ++c) {
    U::tile_rows(sums, c, rows);
    add_group(p, panel.first + c, g, rows, scales, parts + c * 8, 8);
  }
}

// Adds k [k0, k1), whole groups where grouped, to the sums of all tiles.
template <class U, class F>
void tiled_sums(const Product& p, const Depth& depth, const Chunk<F>& chunk, Tiles<F>& tiles, const Panel& panel,
                const int8_t* y, int64_t k0, int64_t k1) {
  for (int t = 0; t < tiles.count; ++t) {
    const int8_t* const tile = tiles.data + t * 8 * depth.weights;
    if (!p.grouped) {
      U::tile_sums(tile + k0 * 8, y + k0 * panel.width, panel.width, k1 - k0, tiles.sums[t]);
      continue;
    }
    for (int64_t g = k0 / depth.group; g < depth.groups && depth.begin(g) < k1; ++g) {
      tiled_group<U, F>(p, depth, chunk, panel, g, tile, y, tiles.row(t), tiles.parts[t]);
      end_group(p, g, tiles.parts[t], tiles.totals[t], kTileWidth * 8);
    }
  }
}

// One panel against one chunk, weights unpacked.
template <class U, class F>
void tiled_panel(const Product& p, const Depth& depth, const Chunk<F>& chunk, Tiles<F>& tiles, const Panel& panel,
                 const int8_t* y) {
  std::memset(tiles.sums, 0, sizeof(tiles.sums));
  if (p.grouped) std::memset(tiles.parts, 0, sizeof(tiles.parts));
  // Pieces of about the same length, and of whole groups.
  const int64_t piece = whole(ceil_div(depth.k, ceil_div(depth.k, kTileK)), p.grouped ? depth.group : 16);
  for (int64_t k = 0; k < depth.k; k += piece) {
    tiled_sums<U, F>(p, depth, chunk, tiles, panel, y, k, least(k + piece, depth.k));
  }
  for (int c = 0; c < panel.count; ++c) {
    alignas(64) int32_t sums[kChunkRows];
    alignas(64) float totals[kChunkRows];
    for (int t = 0; t < tiles.count; ++t) {
      if (p.grouped) {
        std::memcpy(totals + tiles.row(t), tiles.totals[t] + c * 8, 32);
      } else {
        U::tile_rows(tiles.sums[t], c, sums + tiles.row(t));
      }
    }
    if (p.grouped) {
      put_grouped(p, panel.first + c, chunk.row, chunk.rows, chunk.scales, totals);
    } else {
      put_chunk(p, panel.first + c, chunk.row, chunk.rows, chunk.scales, sums);
    }
  }
}

inline int tile_width(int left) { return left > 8 ? 12 : left > 4 ? 8 : 4; }

// How many blocks make a chunk: few enough for every thread to get some, and for the unpacked ones to fit.
template <class F>
int chunk_blocks(const Product& p, const Depth& depth, bool tiled) {
  int64_t blocks = least(kChunkRows / F::kRows, ceil_div(p.n, F::kRows) / (num_threads() * 4));
  if (tiled) blocks = least(blocks, kUnpackedBytes / (F::kRows * depth.weights));
  return static_cast<int>(most(blocks, 1));
}

// All panels against one chunk.
template <class U, class F>
void run_chunk(const Product& p, const Depth& depth, const Chunk<F>& chunk, const Panels& panels, const int8_t* y,
               int8_t* unpacked) {
  if constexpr (U::kUnpacks) {
    if (unpacked != nullptr) {
      Tiles<F> tiles;
      tiles.data = unpacked;
      tiles.count = chunk.w.blocks * tiles.kPerBlock;
      for (int b = 0; b < chunk.w.blocks; ++b) {
        U::template unpack<F>(chunk.w.data + b * chunk.w.stride, depth.weights, unpacked + b * F::kRows * depth.weights);
      }
      for (int64_t i = 0; i < panels.count(); ++i) {
        tiled_panel<U, F>(p, depth, chunk, tiles, panels[i], y + panels[i].first * depth.k);
      }
      return;
    }
  }
  for (int64_t i = 0; i < panels.count(); ++i) {
    streamed_panel<U, F>(p, depth, chunk, panels[i], y + panels[i].first * depth.k);
  }
}

template <class U, class F>
void run_chunks(const Product& p, const Depth& depth, const Panels& panels, const int8_t* y, bool tiled) {
  const bool in_place = p.m == 1 && depth.starts && scales_adjoin(p);
  const int step = chunk_blocks<F>(p, depth, tiled);
  const int64_t blocks = ceil_div(p.n, F::kRows), work = step * F::kRows * p.m * depth.k;
  parallel_for(ceil_div(blocks, step), kProductGrain / (work + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace scales(p.grouped ? p.groups * kChunkRows * 4 : 0, Need::must);
    const Workspace unpacked(tiled ? step * F::kRows * depth.weights : 0, Need::must);
    if (in_place) fetch_scales(p, begin * step * F::kRows);
    for (int64_t i = begin; i < end; ++i) {
      const Chunk<F> chunk(p, i * step, static_cast<int>(least(step, blocks - i * step)), scales.as<char>(), in_place);
      run_chunk<U, F>(p, depth, chunk, panels, y, unpacked.as<int8_t>());
    }
  });
}

// to[group][view] = the scale of token t's activations in a group, times 4^-view: exact, since they are at least 1e-5 / 127.
inline const float* token_scales(const Product& p, int64_t t, float* to) {
  for (int64_t g = 0; g < p.groups; ++g) {
    for (int i = 0; i < 4; ++i) to[g * 4 + i] = p.a.scales[t * p.groups + g] * (i > 0 ? kViews[i][0] : 1);
  }
  return to;
}

template <class U, class F>
void run(const Product& p) {
  Depth depth(p);
  const bool tiled = p.m > (U::kTileGroups && p.grouped ? kStreamedGroups : U::template kStreamed<F>);
  const Panels panels = tiled ? Panels(p.m, kTileWidth, tile_width) : U::template panels<F>(p.m);
  const bool lone = U::kTokenGroups && F::kTernary && p.grouped && depth.group <= kMostOfToken &&
                    panels[panels.count() - 1].width == 1;
  const Workspace starts(lone ? p.groups * (kStarts + 4) * 4 : 0, Need::must);
  if (lone) {
    for (int64_t g = 0; g < p.groups; ++g) token_starts(p.sum(p.m - 1, g), starts.as<int32_t>() + g * kStarts);
    depth.starts = starts.as<int32_t>();
    if (p.by_group) depth.by = token_scales(p, p.m - 1, starts.as<float>() + p.groups * kStarts);
  }
  if (p.m == 1) return run_chunks<U, F>(p, depth, panels, p.a.q, tiled);
  const Workspace space(panels.padded * depth.k, Need::must);
  parallel_for(panels.count(), kPackGrain / (panels.width * depth.k) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Panel panel = panels[i];
      pack_panel<U::kDepth>(p.a.at(panel.first, 0), p.a.panel_bytes, depth.k, panel,
                            space.as<int8_t>() + panel.first * depth.k);
    }
  });
  run_chunks<U, F>(p, depth, panels, space.as<int8_t>(), tiled);
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
