// Runs a kernel over all of a product, on all threads. Two ways: `stream` reads the packed weights once and splits them
// evenly, within rows too; `blocked` unpacks a few rows at a time for many tokens.
// A kernel is a type K with
//   static constexpr Coding coding;    rows of a block and what is stored for w
//   static constexpr int blocks;       most blocks of rows that one call takes; blocks * coding.rows <= kMaxRows
//   static constexpr Layout layout;    of the activations it reads
//   static constexpr int tokens;       most tokens that one call takes; a multiple of the layout's panel
//   static void enter(int64_t m), leave();   around the work of a thread on products of m tokens
//   static void sums(const uint8_t* w, int64_t w_row, int blocks, int64_t units,
//                    const int8_t* q, int64_t panel_bytes, int tokens, int32_t* sums);
//     sums[t * K::blocks * coding.rows + r] = sum over 64 * units k of (w + offset) * q; units <= kLongest
//   and for `blocked`
//   static constexpr int64_t unpacked;    bytes of one unit of one call's blocks when unpacked
//   static constexpr int64_t chunk;       units that are unpacked at a time, <= kLongest
//   static void unpack(const uint8_t* w, int64_t w_row, int blocks, int64_t lines, uint8_t* to);   lines of 4 k
//   static void unpacked_sums(const uint8_t* from, int64_t rows, int64_t lines, const int8_t* q, int64_t panel_bytes,
//                             int tokens, int32_t* sums, bool add);   add: to what is there; other rows may hold anything
#pragma once

#include <cstdint>

#include "../threads.h"
#include "../workspace.h"
#include "product.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kLongest = 256;          // units of one call: sums of bytes times bytes fit in 32 bits three times
constexpr std::int64_t kTogether = 64;          // tokens whose sums are kept at once
constexpr std::int64_t kPieceWork = 1 << 18;    // multiplications of one token, or a quarter of those of several, that make
                                                // it worth waking another thread
constexpr std::int64_t kPieceBytes = 16 << 10;  // of weights, likewise
constexpr int kMostPieces = 512;

// Unsigned: the places of absent rows hold anything.
TRITIUM_INLINE void add_sums(std::int32_t* to, const std::int32_t* more, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(to[i]) + static_cast<std::uint32_t>(more[i]));
  }
}

template <class K>
inline constexpr std::int64_t kStripRows = K::blocks * K::coding.rows;

// The rows of w that one call of a kernel takes, cut from the rest.
struct StripRows {
  std::int64_t row, rows;  // rows of results
  int blocks;
  const std::uint8_t* w;
  Coding coding;
  std::int64_t stride;  // between the sums of two tokens

  StripRows(const Product& p, std::int64_t index, int most_blocks, const Coding& stored)
      : row(index * most_blocks * stored.rows),
        rows(least(most_blocks * stored.rows, p.n - row)),
        blocks(static_cast<int>(ceil_div(rows, stored.rows))),
        w(p.w + index * most_blocks * p.w_row),
        coding(stored),
        stride(most_blocks * stored.rows) {}
};

template <class K>
struct Strip : StripRows {
  Strip(const Product& p, std::int64_t index) : StripRows(p, index, K::blocks, K::coding) {}
};

// sums[t][r] of tokens [t0, t0 + tokens) over units [first, first + units); calls(t, tokens, unit, units, to) does a part.
template <class K, class F>
TRITIUM_INLINE void in_parts(std::int64_t t0, std::int64_t tokens, std::int64_t first, std::int64_t units,
                             std::int64_t longest, std::int32_t* sums, const F& call) {
  alignas(64) std::int32_t more[K::tokens * kStripRows<K>];
  const std::int64_t turns = ceil_div(tokens, K::tokens);
  const std::int64_t step = whole(ceil_div(tokens, turns), K::layout.panel);
  for (std::int64_t t = 0; t < tokens; t += step) {
    const int now = static_cast<int>(least(step, tokens - t));
    std::int32_t* const to = sums + t * kStripRows<K>;
    for (std::int64_t u = 0; u < units; u += longest) {
      call(t0 + t, now, first + u, least(longest, units - u), u == 0 ? to : more);
      if (u == 0) continue;
      add_sums(to, more, now * kStripRows<K>);
    }
  }
}

template <class K>
void strip_sums(const Product& p, const Strip<K>& strip, std::int64_t t0, std::int64_t tokens, std::int64_t first,
                std::int64_t units, std::int32_t* sums) {
  in_parts<K>(t0, tokens, first, units, kLongest, sums,
              [&](std::int64_t t, int now, std::int64_t unit, std::int64_t n, std::int32_t* to) {
                const std::uint8_t* w = strip.w + unit * (tile(p.format).nbytes * kUnit / tile(p.format).block);
                K::sums(w, p.w_row, strip.blocks, n, p.a.at(t, unit), p.a.panel_bytes, now, to);
              });
}

// What follows happens once for the sums of a strip and is the same code for all kernels, not compiled for each.

// The results of a strip, rows `stride` apart from token to token.
[[gnu::noinline]] inline void strip_results(const Product& p, const StripRows& strip, std::int64_t t0, std::int64_t tokens,
                                            std::int32_t* sums, float* to, std::int64_t stride) {
  RowScales scales;
  load_scales(p, strip.row, strip.rows, scales);
  for (std::int64_t t = 0; t < tokens; ++t, sums += strip.stride, to += stride) {
    const float token = p.a.scales[t0 + t];
    take_offset(strip.coding, p.sum(t0 + t, 0), sums, strip.blocks * strip.coding.rows);
    fill_floats(to, strip.rows, scales, [&](std::int64_t r) { return scaled(sums[r], token, scales.scale[r]); });
  }
}

// Results of several tokens are handed over together: what takes them has less to begin and end with.
[[gnu::noinline]] inline void hand_over_strip(const Product& p, const StripRows& strip, std::int64_t t0,
                                              std::int64_t tokens, std::int32_t* sums) {
  constexpr std::int64_t kAtOnce = 16;
  alignas(64) float results[kAtOnce * kMaxRows];
  for (std::int64_t t = 0; t < tokens; t += kAtOnce) {
    const std::int64_t now = least(kAtOnce, tokens - t);
    strip_results(p, strip, t0 + t, now, sums + t * strip.stride, results, strip.stride);
    hand_over(p, t0 + t, now, strip.row, strip.rows, results, strip.stride);
  }
}

// Results of neighbouring strips of a few tokens, handed over together for the same reason.
template <class K>
class Collected {
 public:
  explicit Collected(const Product& p) : p_(p), width_(kMost / p.m / kStripRows<K> * kStripRows<K>) {}
  ~Collected() { hand_over_all(); }
  Collected(const Collected&) = delete;

  bool takes() const { return width_ > kStripRows<K>; }
  void add(const Strip<K>& strip, std::int32_t* sums) {
    if (strip.row != first_ + count_ || count_ + strip.rows > width_) hand_over_all();
    if (count_ == 0) first_ = strip.row;
    strip_results(p_, strip, 0, p_.m, sums, results_ + count_, width_);
    count_ += strip.rows;
  }

 private:
  static constexpr std::int64_t kMost = 4096;

  void hand_over_all() {
    if (count_ > 0) hand_over(p_, 0, p_.m, first_, count_, results_, width_);
    count_ = 0;
  }

  const Product& p_;
  std::int64_t width_, first_ = 0, count_ = 0;
  alignas(64) float results_[kMost];
};

[[gnu::noinline]] inline void finish_strip(const Product& p, const StripRows& strip, std::int64_t t0, std::int64_t tokens,
                                           std::int32_t* sums) {
  if (p.after) return hand_over_strip(p, strip, t0, tokens, sums);
  RowScales scales;
  load_scales(p, strip.row, strip.rows, scales);
  for (std::int64_t t = 0; t < tokens; ++t, sums += strip.stride) {
    take_offset(strip.coding, p.sum(t0 + t, 0), sums, strip.blocks * strip.coding.rows);
    put_sums(p, t0 + t, strip.row, strip.rows, scales, sums);
  }
}

// Weights split into pieces of the same number of units, wherever that ends in a strip. A strip in several pieces is
// finished by the piece that is done last; nobody waits.
template <class K>
class Stream {
 public:
  // Without slots pieces are whole strips.
  Stream(const Product& p, std::int64_t pieces, std::int32_t* slots)
      : p_(p), pieces_(pieces), strips_(ceil_div(p.n, kStripRows<K>)), slots_(slots) {
    for (std::int64_t i = 0; i < pieces; ++i) done_[i] = 0;
  }

  // Two slots a piece: for the strip it ends in the middle of, and for one that began before it.
  static std::int64_t slot(const Product& p) { return p.m * kStripRows<K>; }

  void run(std::int64_t piece) {
    alignas(64) std::int32_t sums[kTogether * kStripRows<K>];
    Collected<K> collected(p_);
    const std::int64_t end = edge(piece + 1);
    for (std::int64_t at = edge(piece), n; at < end; at += n) {
      const Strip<K> strip(p_, at / p_.units);
      const std::int64_t unit = at % p_.units;
      n = least(p_.units - unit, end - at);
      if (n == p_.units) {
        for (std::int64_t t = 0; t < p_.m; t += kTogether) {
          const std::int64_t tokens = least(kTogether, p_.m - t);
          strip_sums<K>(p_, strip, t, tokens, 0, n, sums);
          p_.after && collected.takes() ? collected.add(strip, sums) : finish_strip(p_, strip, t, tokens, sums);
        }
      } else {
        strip_sums<K>(p_, strip, 0, p_.m, unit, n, part(piece, unit == 0));
        join(at / p_.units, n);
      }
    }
  }

 private:
  std::int64_t edge(std::int64_t piece) const {
    return slots_ ? strips_ * p_.units * piece / pieces_ : strips_ * piece / pieces_ * p_.units;
  }
  std::int32_t* part(std::int64_t piece, bool begins) const { return slots_ + (piece * 2 + begins) * slot(p_); }

  void join(std::int64_t index, std::int64_t units) {
    const std::int64_t begin = index * p_.units, end = begin + p_.units;
    std::int64_t first = begin * pieces_ / (strips_ * p_.units);  // the piece the strip begins in
    while (edge(first + 1) <= begin) ++first;
    while (edge(first) > begin) --first;
    if (__atomic_add_fetch(&done_[first], units, __ATOMIC_ACQ_REL) != p_.units) return;
    std::int32_t* const sums = part(first, true);
    for (std::int64_t piece = first + 1; piece < pieces_ && edge(piece) < end; ++piece) {
      if (edge(piece) == edge(piece + 1)) continue;
      const std::int32_t* const more = part(piece, false);
      add_sums(sums, more, slot(p_));
    }
    finish_strip(p_, Strip<K>(p_, index), 0, p_.m, sums);
  }

  const Product& p_;
  std::int64_t pieces_, strips_;
  std::int32_t* slots_;
  std::int64_t done_[kMostPieces];  // by the piece a strip begins in: units of it that are summed
};

// How many pieces are worth their threads: several for each, so that those that start late do fewer; but each costs its
// sums of all tokens, of so many bytes: few of those of its weights.
struct Pieces {
  static constexpr std::int64_t kMostEach = 4, kWorthSums = 16;
  std::int64_t count;

  Pieces(const Product& p, std::int64_t bytes, std::int64_t possible, std::int64_t sum_bytes) {
    const std::int64_t work = p.m * p.n * p.k / (kPieceWork * least(p.m, 4));
    const std::int64_t worth = least(least(bytes / kPieceBytes, work), possible);
    const std::int64_t threads = least(num_threads(), worth), cheap = bytes / most(1, threads * kWorthSums * sum_bytes);
    const std::int64_t most_each = most(kMostEach / (1 + p.m / 4), least(kMostEach, cheap));
    count = most(1, threads) * (threads > 1 ? most(1, least(most_each, worth / threads)) : 1);
  }
};

template <class K>
void stream(const Product& p) {
  const std::int64_t strips = ceil_div(p.n, kStripRows<K>), bytes = strips * K::blocks * p.w_row;
  const bool split = p.m <= kTogether;  // else there is enough to do without
  const std::int64_t possible = least(split ? strips * p.units : strips, kMostPieces);
  const std::int64_t pieces = Pieces(p, bytes, possible, Stream<K>::slot(p) * 4).count;
  const Workspace space(split && pieces > 1 ? pieces * 2 * Stream<K>::slot(p) * 4 : 0, Need::must);
  Stream<K> work(p, pieces, space.as<std::int32_t>());
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    K::enter(p.m);
    for (std::int64_t i = begin; i < end; ++i) work.run(i);
    K::leave();
  });
}

// One strip for tokens [t0, t0 + tokens), a chunk of its columns after the other. `views` holds a chunk unpacked,
// `kept` the sums of all tokens where there are several chunks.
template <class K>
void blocked_strip(const Product& p, const Strip<K>& strip, std::int64_t t0, std::int64_t tokens, std::uint8_t* views,
                   std::int32_t* kept) {
  alignas(64) std::int32_t sums[K::tokens * kStripRows<K>];
  const std::int64_t unit_bytes = tile(p.format).nbytes * kUnit / tile(p.format).block;
  const std::int64_t chunks = ceil_div(p.units, K::chunk);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const std::int64_t first = p.units * c / chunks, units = p.units * (c + 1) / chunks - first;
    const std::int64_t lines = ceil_div(least(units * kUnit, p.k - first * kUnit), 4);  // those behind k are zeros
    K::unpack(strip.w + first * unit_bytes, p.w_row, strip.blocks, lines, views);
    for (std::int64_t t = 0; t < tokens; t += K::tokens) {
      const int now = static_cast<int>(least(K::tokens, tokens - t));
      std::int32_t* const mine = chunks == 1 ? sums : kept + t * kStripRows<K>;
      K::unpacked_sums(views, strip.rows, lines, p.a.at(t0 + t, first), p.a.panel_bytes, now, mine, c > 0);
      if (c + 1 == chunks) finish_strip(p, strip, t0 + t, now, mine);
    }
  }
}

// The tokens of a strip in parts, each of which unpacks its weights anew.
struct Cut {
  std::int64_t strips, tokens, parts;

  Cut(const Product& p, std::int64_t all_strips, std::int64_t step) : strips(all_strips) {
    constexpr std::int64_t kFewest = 64, kMost = 96;  // tokens: worth unpacking for, and whose sums stay near
    const std::int64_t cuts = most(ceil_div(p.m, kMost), least(ceil_div(4 * num_threads(), strips), p.m / kFewest));
    tokens = whole(ceil_div(p.m, cuts), step);
    parts = ceil_div(p.m, tokens);
  }
};

template <class K>
void blocked(const Product& p) {
  const Cut cut(p, ceil_div(p.n, kStripRows<K>), K::tokens);
  const std::int64_t chunks = ceil_div(p.units, K::chunk), tokens = cut.tokens, parts = cut.parts;
  const std::int64_t views = whole(ceil_div(p.units, chunks) * K::unpacked, kUnit);
  const std::int64_t kept = chunks == 1 ? 0 : tokens * kStripRows<K> * 4;
  parallel_for(cut.strips * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    const Workspace space(views + kept, Need::must);
    K::enter(p.m);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t t = i % parts * tokens;
      blocked_strip<K>(p, Strip<K>(p, i / parts), t, least(tokens, p.m - t), space.as<std::uint8_t>(),
                       reinterpret_cast<std::int32_t*>(space.data() + views));
    }
    K::leave();
  });
}

}  // namespace tritium::TRITIUM_ISA
