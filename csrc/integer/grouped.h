// Products whose weights have a scale for each group of columns, on all threads. The integer sums of a group become floats
// while they are in registers and are added to those of their block, up to 1024 columns; blocks are added in order, so a
// product may be split between blocks and gives the same bits. Two ways, as in schedule.h: `stream_groups` reads packed
// weights, `blocked_groups` unpacks a few rows at a time for many tokens.
// A kernel is a type K as schedule.h says, and has
//   using L;                                        its vectors, see lanes.h
//   static void groups(const GroupRun& run);        adds the terms of some groups to run.to
// and for `blocked_groups`
//   static void unpack(const uint8_t* w, int64_t w_row, int blocks, int64_t lines, uint8_t* to);
//   static void unpacked_groups(const GroupRun& run);   likewise, run.w being unpacked; sums may begin at run.starts
//   static constexpr int64_t kShortest;             columns of a group up to which no sum leaves -2^22 … 2^22
//
// Those sums times f16 scales are one instruction. A sum that began at 1.5 * 2^23 as bits is, read as f32, M + sum with
// M = 1.5 * 2^23, exactly. M * scale is exact too: 2 and 11 bits. So the fused (M + sum) * scale - M * scale rounds once,
// to what float(sum) * scale is.
#pragma once

#include <cstdint>

#include "lanes.h"
#include "schedule.h"

namespace tritium::TRITIUM_ISA {
namespace {

constexpr std::int64_t kLineColumns = 4;        // a line holds so many k of each row …
constexpr std::int64_t kLineBytes = 64;         // … of a block
constexpr std::int64_t kLongestUnpacked = 512;  // columns of a group that are worth unpacking

// Neighbouring groups of one block, for a few tokens and the rows of a strip.
struct GroupRun {
  const Slots* slots;
  std::int64_t first;     // group
  const std::uint8_t* w;  // of the first group
  std::int64_t w_row;
  int blocks;                             // of rows
  std::int64_t count, lines, last_lines;  // groups; lines of each; of the last one here
  const std::int8_t* q;
  std::int64_t panel_bytes;
  int tokens;
  const std::int32_t* sums;  // of the first token's q in the first group; tokens are `stride` apart
  const float* by;           // its scales, likewise; nullptr: a token has one scale, which is not applied here
  std::int64_t stride;
  const std::int32_t* starts;  // likewise, of unpacked weights: where sums of codes begin to end as sums of weights
  bool fused;                  // scales are [group][2][rows of a strip], the second being -M * the first
  const float* scales;         // [group][rows of a strip]
  float* to;                   // [token][rows of a strip]

  std::int64_t lines_of(std::int64_t j) const { return j + 1 == count ? last_lines : lines; }
  // Lines of weights from the first group to group j here, and of all.
  std::int64_t line(std::int64_t j) const {
    return slots->apart ? (slots->first(first + j) - slots->first(first)) / kLineColumns : j * lines;
  }
  std::int64_t all_lines() const { return line(count - 1) + last_lines; }
  // Whether fewer than `lines` lines follow the first one of group j in a row.
  bool ends(std::int64_t j, std::int64_t lines) const {
    return slots->all - slots->first(first + j) < lines * kLineColumns;
  }
  // How many of the groups follow each other in the weights and have the same length.
  std::int64_t even() const { return slots->apart ? 0 : last_lines == lines ? count : count - 1; }

  // The same from token t on; rows: of a strip.
  GroupRun from(int t, std::int64_t rows) const {
    GroupRun r = *this;
    r.q += t * panel_bytes;
    r.sums += t * stride;
    if (by) r.by += t * stride;
    if (starts) r.starts += t * stride;
    r.to += t * rows;
    return r;
  }
};

// What all rows of one token and group share.
struct Term {
  std::int32_t excess;  // that the sums are above those of weights
  float by;
};

TRITIUM_INLINE Term term_of(const GroupRun& r, const Coding& coding, int t, std::int64_t j) {
  const std::int64_t at = t * r.stride + j;
  return {coding.offset * r.sums[at], r.by ? r.by[at] : 0.0f};
}

// The term of the rows from `row` on in group j: one f32 operation after the other, as product.h says.
template <class L, std::int64_t Rows>
TRITIUM_INLINE typename L::Float scaled_term(const GroupRun& r, const Term& term, std::int64_t j, std::int64_t row,
                                             typename L::Sum sum) {
  using Float = typename L::Float;
  const Float part = __builtin_convertvector(sum - term.excess, Float) *
                     *reinterpret_cast<const Float*>(r.scales + j * Rows + row);
  return r.by ? part * term.by : part;
}

// The same of a sum that began at kMagicBits; see above.
template <class L, std::int64_t Rows>
TRITIUM_INLINE typename L::Float fused_term(const GroupRun& r, const Term& term, std::int64_t j, std::int64_t row,
                                            typename L::Sum sum) {
  const float* const scale = r.scales + j * 2 * Rows + row;
  const typename L::Float part = L::fused(reinterpret_cast<typename L::Float>(sum), scale, scale + Rows);
  return r.by ? part * term.by : part;
}

template <class L, std::int64_t Rows>
TRITIUM_INLINE typename L::Float& target(const GroupRun& r, int t, std::int64_t row) {
  return *reinterpret_cast<typename L::Float*>(r.to + t * Rows + row);
}

template <class L, std::int64_t Rows>
TRITIUM_INLINE void add_term(const GroupRun& r, const Term& term, int t, std::int64_t j, std::int64_t row,
                             typename L::Sum sum) {
  target<L, Rows>(r, t, row) = target<L, Rows>(r, t, row) + scaled_term<L, Rows>(r, term, j, row, sum);
}

// The scales of groups [first, first + count) for the rows of a strip, as f32 side by side. What a block later needs is
// fetched: the scales of neighbouring groups lie far from each other.
template <class K>
void load_strip_scales(const Product& p, const Strip<K>& strip, std::int64_t first, std::int64_t count, float* to) {
  using L = typename K::L;
  constexpr std::int64_t R = kStripRows<K>;
  const std::int64_t size = item_size(p.scale_type);
  if (p.scale_row != size || strip.rows < R) return load_group_scales(p, strip.row, strip.rows, first, count, to, R);
  const char* from = p.scale + strip.row * size + first * p.scale_group;
  const bool last = first + 2 * count > p.groups;  // then the next strip begins
  const std::int64_t next = last ? R * size - first * p.scale_group : count * p.scale_group;
  for (std::int64_t j = 0; j < count; ++j, from += p.scale_group, to += R) {
    for (std::int64_t line = 0; line < R * size; line += 64) __builtin_prefetch(from + next + line);
    if (p.scale_type == DType::f32) {
      __builtin_memcpy(to, from, R * 4);
      continue;
    }
    TRITIUM_UNROLL
    for (std::int64_t r = 0; r < R; r += L::kFloats) {
      *reinterpret_cast<typename L::Float*>(to + r) = L::widen(from + r * 2);
    }
  }
}

constexpr float kMagic = 12582912.0f;            // M
constexpr std::int32_t kMagicBits = 0x4b400000;  // its bits

// The same for GroupRun::fused.
template <class K>
void load_fused_scales(const Product& p, const Strip<K>& strip, std::int64_t first, std::int64_t count, float* to) {
  constexpr std::int64_t R = kStripRows<K>;
  alignas(64) float scales[R];
  for (std::int64_t j = 0; j < count; ++j, to += 2 * R) {
    load_strip_scales<K>(p, strip, first + j, 1, scales);
    for (std::int64_t r = 0; r < R; ++r) {
      to[r] = scales[r];
      to[R + r] = scales[r] * -kMagic;
    }
  }
}

// Where the sums of each token and group begin: `zero`, less what those of codes are above those of weights.
inline void fill_starts(const Product& p, const Coding& coding, std::int32_t zero, std::int32_t* to) {
  for (std::int64_t i = 0; i < p.m * p.groups; ++i) to[i] = zero - coding.offset * p.a.sums[i];
}

// The groups of a product as lines of weights, in blocks.
struct GroupLines {
  Slots slots;
  std::int64_t group, groups, each;  // lines of a group; groups; groups of a block
  const std::int32_t* starts;        // [token][group], or none

  explicit GroupLines(const Product& p, const std::int32_t* all_starts = nullptr)
      : slots(p.slots()),
        group(slots.columns / kLineColumns),
        groups(p.groups),
        each(p.block_groups()),
        starts(all_starts) {}
  std::int64_t first(std::int64_t block) const { return block * each; }
  std::int64_t count(std::int64_t block) const { return least(each, groups - first(block)); }

  // Groups [first, first + count) of a strip for tokens from t on, all but `w` of it if it is unpacked.
  template <class K>
  GroupRun run(const Product& p, const Strip<K>& strip, std::int64_t first, std::int64_t count, std::int64_t t,
               const float* scales, float* to) const {
    constexpr int kPanel = K::layout.panel;
    const std::int64_t last = slots.length(first + count - 1) / kLineColumns, at = first * slots.columns;
    const std::int8_t* const panel = p.a.q + t / kPanel * p.a.panel_bytes + at / kUnit * kUnit * kPanel;
    const std::int8_t* const q = panel + at % kUnit;
    const std::uint8_t* const w = strip.w + slots.first(first) / kLineColumns * kLineBytes;
    const float* const by = p.by_group ? p.a.scales + t * groups + first : nullptr;
    return {&slots, first, w, p.w_row, strip.blocks, count, group, last, q, p.a.panel_bytes, 0,
            p.a.sums + t * groups + first, by, groups, starts ? starts + t * groups + first : nullptr, false, scales, to};
  }
};

// The sums of one block of columns of a strip for tokens [t0, t0 + tokens): to[token][row].
template <class K>
void block_sums(const Product& p, const GroupLines& lines, const Strip<K>& strip, std::int64_t block, std::int64_t t0,
                std::int64_t tokens, float* scales, float* to) {
  const std::int64_t first = lines.first(block), count = lines.count(block);
  load_strip_scales<K>(p, strip, first, count, scales);
  for (std::int64_t i = 0; i < tokens * kStripRows<K>; ++i) to[i] = 0;
  const std::int64_t turns = ceil_div(tokens, K::tokens), even = turns > 1 ? ceil_div(tokens, turns) : tokens;
  const std::int64_t step = whole(even, K::layout.panel);
  for (std::int64_t t = 0; t < tokens; t += step) {
    GroupRun run = lines.run<K>(p, strip, first, count, t0 + t, scales, to + t * kStripRows<K>);
    run.tokens = static_cast<int>(least(step, tokens - t));
    K::groups(run);
  }
}

// Results of tokens [t0, t0 + tokens) of a strip from the sums of their blocks.
[[gnu::noinline]] inline void finish_groups(const Product& p, const StripRows& strip, std::int64_t t0, std::int64_t tokens,
                                            float* total) {
  RowScales scales;
  load_scales(p, strip.row, strip.rows, scales);
  for (std::int64_t t = 0; t < tokens; ++t) {
    float* const mine = total + t * strip.stride;
    if (!p.after) {
      put_grouped(p, t0 + t, strip.row, strip.rows, scales, mine);
    } else if (p.by_group) {
      fill_floats(mine, strip.rows, scales, [&](std::int64_t r) { return mine[r]; });
    } else {
      fill_floats(mine, strip.rows, scales, [&](std::int64_t r) { return mine[r] * p.a.scales[t0 + t]; });
    }
  }
  if (p.after) hand_over(p, t0, tokens, strip.row, strip.rows, total, strip.stride);
}

// Weights split into pieces of the same number of blocks, wherever that ends in a strip. A strip in several pieces is
// finished by the piece that is done last, which adds the blocks in order; nobody waits.
template <class K>
class GroupStream {
 public:
  static constexpr std::int64_t kSplit = 8;  // most tokens for which strips are split

  // Without slots pieces are whole strips.
  GroupStream(const Product& p, std::int64_t pieces, float* slots)
      : p_(p), lines_(p), pieces_(pieces), strips_(ceil_div(p.n, kStripRows<K>)), blocks_(p.blocks()), slots_(slots) {
    for (std::int64_t i = 0; i < pieces; ++i) done_[i] = 0;
  }

  // One slot a piece: for the blocks of the strip that begins in it and ends elsewhere.
  static std::int64_t slot(const Product& p) { return p.blocks() * p.m * kStripRows<K>; }

  void run(std::int64_t piece, float* scales) {
    const std::int64_t end = edge(piece + 1);
    for (std::int64_t at = edge(piece), n; at < end; at += n) {
      const std::int64_t index = at / blocks_, block = at % blocks_;
      n = least(blocks_ - block, end - at);
      if (n == blocks_) {
        whole_strip(Strip<K>(p_, index), scales);
      } else {
        float* const to = slots_ + begins_in(index) * slot(p_);
        for (std::int64_t b = block; b < block + n; ++b) {
          block_sums<K>(p_, lines_, Strip<K>(p_, index), b, 0, p_.m, scales, to + b * p_.m * kStripRows<K>);
        }
        join(index, n);
      }
    }
  }

 private:
  std::int64_t edge(std::int64_t piece) const {
    return slots_ ? strips_ * blocks_ * piece / pieces_ : strips_ * piece / pieces_ * blocks_;
  }

  std::int64_t begins_in(std::int64_t index) const {
    const std::int64_t begin = index * blocks_;
    std::int64_t piece = begin * pieces_ / (strips_ * blocks_);
    while (edge(piece + 1) <= begin) ++piece;
    while (edge(piece) > begin) --piece;
    return piece;
  }

  void whole_strip(const Strip<K>& strip, float* scales) const {
    constexpr std::int64_t kTokens = K::tokens == 1 ? 1 : kTogether;
    alignas(64) float part[kTokens * kStripRows<K>], total[kTokens * kStripRows<K>];
    for (std::int64_t t = 0; t < p_.m; t += kTokens) {
      const std::int64_t tokens = least(kTokens, p_.m - t);
      for (std::int64_t b = 0; b < blocks_; ++b) {
        block_sums<K>(p_, lines_, strip, b, t, tokens, scales, b == 0 ? total : part);
        if (b > 0) add_block(total, part, tokens * kStripRows<K>, false);
      }
      finish_groups(p_, strip, t, tokens, total);
    }
  }

  void join(std::int64_t index, std::int64_t blocks) {
    const std::int64_t piece = begins_in(index), size = p_.m * kStripRows<K>;
    if (__atomic_add_fetch(&done_[piece], blocks, __ATOMIC_ACQ_REL) != blocks_) return;
    float* const total = slots_ + piece * slot(p_);
    for (std::int64_t b = 1; b < blocks_; ++b) add_block(total, total + b * size, size, false);
    finish_groups(p_, Strip<K>(p_, index), 0, p_.m, total);
  }

  const Product& p_;
  GroupLines lines_;
  std::int64_t pieces_, strips_, blocks_;
  float* slots_;
  std::int64_t done_[kMostPieces];  // by the piece a strip begins in: blocks of it that are summed
};

template <class K>
void stream_groups(const Product& p) {
  const std::int64_t strips = ceil_div(p.n, kStripRows<K>), bytes = strips * K::blocks * p.w_row;
  const bool split = p.m <= GroupStream<K>::kSplit;
  const std::int64_t possible = least(split ? strips * p.blocks() : strips, kMostPieces);
  const Pieces pieces(p, bytes, possible, GroupStream<K>::slot(p) * 4);
  const Workspace slots(split && pieces.count > 1 ? pieces.count * GroupStream<K>::slot(p) * 4 : 0, Need::must);
  GroupStream<K> work(p, pieces.count, slots.as<float>());
  parallel_for(pieces.count, 1, [&](std::int64_t begin, std::int64_t end) {
    const Workspace scales(p.block_groups() * kStripRows<K> * 4, Need::must);
    K::enter(p.m);
    for (std::int64_t i = begin; i < end; ++i) work.run(i, scales.as<float>());
    K::leave();
  });
}

// One strip for tokens [t0, t0 + tokens): a few groups are unpacked at a time, and stay in L1 while all tokens pass by.
template <class K>
struct BlockedGroups {
  static constexpr std::int64_t R = kStripRows<K>;
  const Product& p;
  GroupLines lines;
  std::int64_t at_once;  // groups
  std::int64_t tokens;   // most of a strip
  bool fused;

  BlockedGroups(const Product& product, std::int64_t most_tokens, const std::int32_t* starts)
      : p(product),
        lines(product, starts),
        at_once(most(1, K::chunk * (kUnit / kLineColumns) / lines.group)),
        tokens(most_tokens),
        fused(fuses(product)) {}

  static bool fuses(const Product& p) { return p.scale_type == DType::f16 && p.group <= K::kShortest; }
  std::int64_t scale_rows() const { return fused ? 2 * R : R; }

  std::int64_t code_bytes() const { return at_once * lines.group * (K::unpacked * kLineColumns / kUnit); }
  std::int64_t scale_bytes() const { return lines.each * scale_rows() * 4; }
  std::int64_t sum_bytes() const { return tokens * R * 4; }
  std::int64_t bytes() const { return code_bytes() + scale_bytes() + 2 * sum_bytes(); }

  void strip(const Strip<K>& strip, std::int64_t t0, std::int64_t count, char* space) const {
    auto* const codes = reinterpret_cast<std::uint8_t*>(space);
    auto* const scales = reinterpret_cast<float*>(space + code_bytes());
    auto* const total = reinterpret_cast<float*>(space + code_bytes() + scale_bytes());
    float* const part = total + tokens * R;
    for (std::int64_t b = 0; b < p.blocks(); ++b) {
      float* const to = b == 0 ? total : part;
      const std::int64_t end = lines.first(b) + lines.count(b);
      fused ? load_fused_scales<K>(p, strip, lines.first(b), lines.count(b), scales)
            : load_strip_scales<K>(p, strip, lines.first(b), lines.count(b), scales);
      for (std::int64_t i = 0; i < count * R; ++i) to[i] = 0;
      for (std::int64_t g = lines.first(b); g < end; g += at_once) {
        const std::int64_t groups = least(at_once, end - g);
        some(strip, g, groups, t0, count, codes, scales + (g - lines.first(b)) * scale_rows(), to);
      }
      if (b > 0) add_block(total, part, count * R, false);
    }
    finish_groups(p, strip, t0, count, total);
  }

  void some(const Strip<K>& strip, std::int64_t first, std::int64_t groups, std::int64_t t0, std::int64_t count,
            std::uint8_t* codes, const float* scales, float* to) const {
    for (std::int64_t t = 0; t < count; t += K::tokens) {
      GroupRun run = lines.run<K>(p, strip, first, groups, t0 + t, scales, to + t * R);
      run.tokens = static_cast<int>(least(K::tokens, count - t));
      if (t == 0) K::unpack(run.w, p.w_row, strip.blocks, run.all_lines(), codes);
      run.w = codes;
      run.fused = fused;
      K::unpacked_groups(run);
    }
  }
};

template <class K>
void blocked_groups(const Product& p) {
  const Cut cut(p, ceil_div(p.n, kStripRows<K>), K::tokens);
  const Workspace starts(p.m * p.groups * 4, Need::must);
  fill_starts(p, K::coding, BlockedGroups<K>::fuses(p) ? kMagicBits : 0, starts.as<std::int32_t>());
  const BlockedGroups<K> work(p, cut.tokens, starts.as<std::int32_t>());
  parallel_for(cut.strips * cut.parts, 1, [&](std::int64_t begin, std::int64_t end) {
    const Workspace space(work.bytes(), Need::must);
    K::enter(p.m);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t t = i % cut.parts * cut.tokens;
      work.strip(Strip<K>(p, i / cut.parts), t, least(cut.tokens, p.m - t), space.data());
    }
    K::leave();
  });
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
