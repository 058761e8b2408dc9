// An integer product y = q . w as its kernels see it: quantised activations, packed weights, and how sums become results.
#pragma once

#include <cstdint>

#include "../hooks.h"
#include "../simd/gather.h"
#include "../view.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kUnit = 64;  // k come in units; the last one is filled up with activations of 0
constexpr int kMaxRows = 256;       // rows that a kernel gives sums of at once
constexpr std::int64_t kBlock = 1024;  // columns whose groups are added before blocks are added to each other

TRITIUM_INLINE std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
TRITIUM_INLINE std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
TRITIUM_INLINE std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Where the groups of a product are. Groups of whole steps of 16 columns follow each other in the weights and in the
// activations. Others begin and end anywhere: each has a slot of whole steps in the activations, with zeros for what
// belongs to its neighbours, and kernels multiply it with all the columns of weights that the slot covers.
struct Slots {
  static constexpr std::int64_t kStep = 16, kAligned = 8;
  std::int64_t group, groups, all;  // columns of a group; groups; columns of a row, in whole steps
  std::int64_t columns;             // of a slot
  bool apart;                       // groups have slots of their own

  // wanted: not by kernels that find groups wherever they begin.
  Slots(std::int64_t k, std::int64_t group_columns, std::int64_t count, bool wanted)
      : group(group_columns), groups(count), all(whole(k, kStep)), apart(wanted && count > 1 && group % kStep != 0) {
    const std::int64_t common = least(group & -group, kAligned);  // how far a group begins from where its slot does
    columns = apart ? least(whole(group + kAligned - common, kStep), all) : whole(group, kStep);
  }

  // The first column of weights of a slot.
  std::int64_t first(std::int64_t g) const {
    return apart ? least(g * group / kAligned * kAligned, all - columns) : g * columns;
  }
  // How many columns of weights it covers.
  std::int64_t length(std::int64_t g) const { return apart ? columns : least(columns, all - g * columns); }
  // Columns of activations of a token.
  std::int64_t width() const { return apart ? groups * columns : all; }
};

// All rows along the last axis of a view as one list.
struct RowList {
  char* data;
  DType type;
  std::int64_t count = 1;   // rows
  std::int64_t length = 1;  // elements of a row
  std::int64_t step = 0;    // bytes between them
  int ndim = 0;
  std::int64_t shape[kMaxDims], strides[kMaxDims];

  explicit RowList(const View& v) : data(v.data), type(v.dtype) {
    if (v.ndim == 0) return;
    length = v.shape[v.ndim - 1];
    step = v.strides[v.ndim - 1];
    for (int d = 0; d + 1 < v.ndim; ++d) {
      count *= v.shape[d];
      if (v.shape[d] == 1) continue;
      if (ndim > 0 && strides[ndim - 1] == v.strides[d] * v.shape[d]) {
        shape[ndim - 1] *= v.shape[d];
        strides[ndim - 1] = v.strides[d];
      } else {
        shape[ndim] = v.shape[d];
        strides[ndim++] = v.strides[d];
      }
    }
  }

  char* row(std::int64_t i) const {
    if (ndim == 1) return data + i * strides[0];
    char* p = data;
    for (int d = ndim - 1; d >= 0; --d) {
      p += i % shape[d] * strides[d];
      i /= shape[d];
    }
    return p;
  }
};

// Where the activations lie. A panel of several tokens holds `chunk` k of its first token, then of its second, …, then
// the next k of all. A panel of one token is a plain row.
struct Layout {
  int panel = 1, chunk = 64;
  bool slots = false;  // for groups, see Slots; of plain rows
};
constexpr Layout kInSlots = {1, 64, true};

struct Activations {
  std::int8_t* q;
  std::int64_t panel_bytes;  // an odd multiple of 64 for plain rows: rows 4096 bytes apart would share one set of L1
  Layout layout;
  std::int32_t* sums;  // [token][group]: the sum of the group's q
  float* scales;       // [token], or [token][group] where each group of a token has its own

  // The activations from token t on, a multiple of the panel, and from the given unit of 64 k on.
  const std::int8_t* at(std::int64_t t, std::int64_t unit) const {
    return q + t / layout.panel * panel_bytes + unit * kUnit * layout.panel;
  }
};

struct Product {
  std::int64_t m, n, k;       // tokens, rows and columns of w
  std::int64_t group, groups;  // k that share a scale, and how many times; not grouped: all k, once
  bool grouped;
  bool by_group;  // activations have a scale for each group too
  std::int64_t units;         // of 64 k
  DType format;
  const View* weights;
  const std::uint8_t* w;
  std::int64_t w_row;  // bytes between rows, of formats packed along a row; between blocks of rows, of tiled ones
  Activations a;
  // y = float(sum) * (token scale * w scale) + bias; grouped: (block_0 + block_1 + …) * token scale + bias, of blocks of
  // columns that are 0 + float(sum_j) * w scale_j + …; by group: each of these terms * activation scale_j instead.
  // Every step is one f32 operation, in this order. Without scales the sums themselves are the result.
  const char* scale;  // nullptr: none
  DType scale_type;   // f32 or f16
  std::int64_t scale_row, scale_group;
  const char* bias;  // nullptr: none
  std::int64_t bias_step;
  const RowList* out;
  std::int64_t first;  // the row of `out` that token 0 goes to
  const Epilogue* after;   // nullptr: results go to `out`
  const Prologue* before;  // nullptr: activations are made from memory

  Slots slots() const { return Slots(k, group, groups, a.layout.slots); }
  std::int64_t block_groups() const { return most(1, kBlock / group); }
  std::int64_t blocks() const { return ceil_div(groups, block_groups()); }
  std::int64_t scale_count() const { return by_group ? groups : 1; }  // of activations, for each token
  std::int32_t sum(std::int64_t t, std::int64_t g) const { return a.sums[t * groups + g]; }
};

// What kernels sum: of the rows of a block the first `coded` are stored as w + offset, the others as w.
struct Coding {
  int rows, coded, offset;
};

// sums of w * q, from sums of (w + offset) * q; whole blocks.
inline void take_offset(Coding coding, std::int32_t sum_of_q, std::int32_t* sums, std::int64_t rows) {
  const std::uint32_t excess = static_cast<std::uint32_t>(sum_of_q) * static_cast<std::uint32_t>(coding.offset);
  const std::int64_t step = coding.coded == coding.rows ? rows : coding.rows;  // all coded: one run
  const std::int64_t coded = coding.coded == coding.rows ? rows : coding.coded;
  for (std::int64_t r = 0; r < rows; r += step) {
    for (std::int64_t i = 0; i < coded; ++i) {
      sums[r + i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sums[r + i]) - excess);
    }
  }
}

// The scales and biases of a few rows, side by side.
struct RowScales {
  alignas(64) float scale[kMaxRows], bias[kMaxRows];
  bool biased = false;
};

[[gnu::noinline]] inline void gather_floats(DType type, const char* from, std::int64_t step, float* to, std::int64_t n) {
  if (type == DType::f32 && step == 4) {
    __builtin_memcpy(to, from, static_cast<std::size_t>(n) * 4);
  } else if (step == 0) {
    float same;
    gather_of<float>(type)(from, item_size(type), &same, 1);
    for (std::int64_t i = 0; i < n; ++i) to[i] = same;
  } else {
    gather_of<float>(type)(from, step, to, n);
  }
}

// to[j * stride + r] = the scale of group first + j and row + r; rows up to `stride` repeat the last one.
[[gnu::noinline]] inline void load_group_scales(const Product& p, std::int64_t row, std::int64_t rows, std::int64_t first,
                              std::int64_t count, float* to, std::int64_t stride) {
  const char* from = p.scale + row * p.scale_row + first * p.scale_group;
  if (p.scale_row == item_size(p.scale_type) || p.scale_row == 0) {  // rows side by side: as layers keep them
    for (std::int64_t j = 0; j < count; ++j, from += p.scale_group, to += stride) {
      gather_floats(p.scale_type, from, p.scale_row, to, rows);
      for (std::int64_t r = rows; r < stride; ++r) to[r] = to[rows - 1];
    }
    return;
  }
  const Gather gather = gather_of<float>(p.scale_type);
  float mine[kBlock];  // groups have at least one column
  for (std::int64_t r = 0; r < stride; ++r) {
    gather(from + least(r, rows - 1) * p.scale_row, p.scale_group, mine, count);
    for (std::int64_t j = 0; j < count; ++j) to[j * stride + r] = mine[j];
  }
}

[[gnu::noinline]] inline void load_scales(const Product& p, std::int64_t row, std::int64_t rows, RowScales& to) {
  if (p.scale && !p.grouped) gather_floats(p.scale_type, p.scale + row * p.scale_row, p.scale_row, to.scale, rows);
  to.biased = p.bias != nullptr;
  if (to.biased) gather_floats(DType::f32, p.bias + row * p.bias_step, p.bias_step, to.bias, rows);
}

// Where rows [row, …) of the results of token t go, and whether a kernel may write T there as it does elsewhere.
struct Target {
  char* to;
  bool plain;

  Target(const Product& p, std::int64_t t, std::int64_t row)
      : to(p.out->row(p.first + t) + row * p.out->step),
        plain(p.out->step == 4 && (p.out->type == DType::f32 || p.out->type == DType::i32)) {}
};

// to[r] = y(r) for r < rows, plus bias.
template <class F>
TRITIUM_INLINE void fill_floats(float* to, std::int64_t rows, const RowScales& s, const F& y) {
  if (s.biased) {
    TRITIUM_LOOP
    for (std::int64_t r = 0; r < rows; ++r) to[r] = y(r) + s.bias[r];
  } else {
    TRITIUM_LOOP
    for (std::int64_t r = 0; r < rows; ++r) to[r] = y(r);
  }
}

// Results of tokens [t, t + tokens) and a few rows, `stride` apart from token to token, to whoever waits for them.
inline void hand_over(const Product& p, std::int64_t t, std::int64_t tokens, std::int64_t row, std::int64_t rows,
                      const float* values, std::int64_t stride) {
  p.after->run(p.after->context, {p.first + t, tokens, row, rows, values, stride});
}

// Results y(r) for r < rows, plus bias.
template <class F>
TRITIUM_INLINE void put_floats(const Product& p, std::int64_t t, std::int64_t row, std::int64_t rows,
                               const RowScales& s, const F& y) {
  alignas(64) float buffer[kMaxRows];
  if (p.after) {
    fill_floats(buffer, rows, s, y);
    return hand_over(p, t, 1, row, rows, buffer, kMaxRows);
  }
  const Target target(p, t, row);
  fill_floats(target.plain ? reinterpret_cast<float*>(target.to) : buffer, rows, s, y);
  if (!target.plain) scatter(p.out->type, buffer, target.to, p.out->step, rows);
}

TRITIUM_INLINE float scaled(std::int32_t sum, float token, float row) {
  const float c = token * row;
  return static_cast<float>(sum) * c;
}

// The results of token t from the sums of w * q; not grouped.
[[gnu::noinline]] inline void put_sums(const Product& p, std::int64_t t, std::int64_t row, std::int64_t rows, const RowScales& s,
                     const std::int32_t* sums) {
  if (!p.scale) {
    const Target target(p, t, row);
    if (!target.plain) return scatter_as<std::int32_t>(sums, target.to, p.out->step, rows);
    __builtin_memcpy(target.to, sums, static_cast<std::size_t>(rows * 4));
    return;
  }
  const float token = p.a.scales[t];
  put_floats(p, t, row, rows, s, [&](std::int64_t r) { return scaled(sums[r], token, s.scale[r]); });
}

// total = the first block, or total + block: the pinned step from one block of columns to the next.
TRITIUM_INLINE void add_block(float* total, const float* block, std::int64_t n, bool first) {
  if (first) {
    __builtin_memcpy(total, block, static_cast<std::size_t>(n) * 4);
  } else {
    for (std::int64_t i = 0; i < n; ++i) total[i] = total[i] + block[i];
  }
}

// The results of token t from the sums over its groups, each already times its scale.
[[gnu::noinline]] inline void put_grouped(const Product& p, std::int64_t t, std::int64_t row, std::int64_t rows, const RowScales& s,
                        const float* total) {
  if (p.by_group) return put_floats(p, t, row, rows, s, [&](std::int64_t r) { return total[r]; });
  const float token = p.a.scales[t];
  put_floats(p, t, row, rows, s, [&](std::int64_t r) { return total[r] * token; });
}

}  // namespace tritium::TRITIUM_ISA
