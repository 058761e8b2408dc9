// Products with tiled weights on AMX. A unit of a block (16 lines of 64 bytes: 16 rows of each field, 64 k) is a tile of
// weights as it lies; 16 tokens x 64 k is a tile of activations; their product adds to 16 x 16 sums.
//   few tokens      VNNI, see avx512vnni.cpp
//   up to 16 or 64  `Piece`: 16 tokens, all views of a unit; masked views go through a small ring, some units ahead
//   more            `Blocks`: 32 tokens x 2 vectors of 16 rows in four registers; the first 32 tokens of a cell unpack
//                   views or codes into L2, from where the others read them
//   more, groups    `GroupBlocks`: likewise, of signed weights; the sums of a group become floats while others are multiplied
// Groups are whole units of 64 k; other
// multiples of 16 k, and few tokens, are left to VNNI. Compiled in the namespace of avx512vnni.cpp: a product is one type
// for both, and the kernels of that file are compiled once.
#include "../units.h"
#include "entries.h"
#include "grouped.h"
#include "tiles.h"
#include "views.h"

#include <utility>

namespace tritium::TRITIUM_ISA {

Plan vnni_plan(const Product& p, std::int64_t m);  // of avx512vnni.cpp

namespace {

using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint8_t;

constexpr int64_t kTile = 1024;  // bytes of a tile
constexpr Layout kPanels = {16, 64};

// f(0), f(1), … as constants.
template <int N, class Fn>
TRITIUM_INLINE void each(const Fn& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

template <class F>
struct Piece {
  using L = Zmm;
  static constexpr Coding coding = F::coding;
  static constexpr Layout layout = kPanels;
  static constexpr int blocks = F::views >= 4 ? 1 : 4 / F::views, tokens = 16;
  static constexpr int rows = blocks * coding.rows;
  static constexpr int kSums = blocks * F::views;        // registers; the next one holds q, the rest weights
  static constexpr int kSpare = 8 - kSums - 1;
  static constexpr int kDerived = blocks * (F::views - 1);  // views of a unit that are not the bytes as they are
  static constexpr int kRing = 8, kUnitsAhead = 5;
  static constexpr int64_t kFetch = 8192;  // bytes ahead that weights are fetched

  // Tiles of fewer tokens take less time. A later panel that is not full has zeros.
  static void enter(int64_t m) { configure_tiles(TileConfig(kSums + 1, static_cast<int>(least(m, 16)))); }
  static void leave() { release_tiles(); }

  // Writes the derived views of a unit of all blocks.
  TRITIUM_INLINE static void derive(const uint8_t* w, int64_t w_row, int count, uint8_t* to) {
    for (int b = 0; b < count; ++b) {
      for (int line = 0; line < kLines; ++line) {
        const uint8_t* const from = w + b * w_row + line * kLine;
        _mm_prefetch(reinterpret_cast<const char*>(from + kFetch), _MM_HINT_T1);
        if constexpr (F::views > 1) {
          Zmm::V view[F::views];
          F::template split<Zmm>(Zmm::load(from), view);
          each<F::views>([&](auto v) {
            constexpr int slot = v < F::raw ? int{v} : int{v} - 1;
            if constexpr (v != F::raw) Zmm::store(to + (b * (F::views - 1) + slot) * kTile + line * kLine, view[v]);
          });
        }
      }
    }
  }

  // The tile of weights at w times q, to sums I.
  template <int I>
  TRITIUM_INLINE static void add(const uint8_t* w, bool there) {
    constexpr int weights = kSums + 1 + I % kSpare;
    if (!there) return;
    load_tile<weights>(w);
    dot_tile<I, kSums, weights>();
  }

  // Sums over `span` units at a time: done(0), done(1), … when they are in the registers.
  template <class Done>
  TRITIUM_INLINE static void pass(const uint8_t* w, int64_t w_row, int count, int64_t units, int64_t span, const int8_t* q,
                                  const Done& done) {
    alignas(64) uint8_t ring[kRing * kDerived * kTile + 1];
    for (int64_t u = 0; u < least(kUnitsAhead, units); ++u) {
      derive(w + u * kTile, w_row, count, ring + u % kRing * kDerived * kTile);
    }
    int64_t left = 0, index = 0;
    for (int64_t u = 0; u < units; ++u, q += 16 * kUnit) {
      if (left == 0) {
        each<kSums>([&](auto i) { zero_tile<i>(); });
        left = span;
      }
      const int64_t next = u + kUnitsAhead;
      const uint8_t* const derived = ring + u % kRing * kDerived * kTile;
      // The tiles that are there already first: meanwhile the views of a later unit are made.
      load_tile<kSums>(q);
      each<kSums>([&](auto i) {
        if constexpr (i % F::views == F::raw) add<i>(w + i / F::views * w_row + u * kTile, i / F::views < count);
      });
      if (next < units) derive(w + next * kTile, w_row, count, ring + next % kRing * kDerived * kTile);
      each<kSums>([&](auto i) {
        constexpr int v = i % F::views, slot = i / F::views * (F::views - 1) + (v < F::raw ? v : v - 1);
        if constexpr (v != F::raw) add<i>(derived + slot * kTile, i / F::views < count);
      });
      if (--left == 0 || u + 1 == units) done(index++);
    }
  }

  // put(row, sum) with the sums over fields of token t, from those over views.
  template <class Put>
  TRITIUM_INLINE static void solve(const Zmm::Sum (&views)[kSums][16], int count, int t, const Put& put) {
    for (int b = 0; b < count; ++b) {
      Zmm::Sum sum[F::views];
      TRITIUM_UNROLL
      for (int v = 0; v < F::views; ++v) sum[v] = views[b * F::views + v][t];
      F::solve(sum);
      TRITIUM_UNROLL
      for (int f = 0; f < F::fields; ++f) put(b * coding.rows + 16 * f, sum[f]);
    }
  }

  static void sums(const uint8_t* w, int64_t w_row, int count, int64_t units, const int8_t* q, int64_t, int now,
                   int32_t* to) {
    pass(w, w_row, count, units, units, q, [&](int64_t) {
      Zmm::Sum views[kSums][16];
      each<kSums>([&](auto i) { store_tile<i>(views[i], 64); });
      for (int t = 0; t < now; ++t) {
        solve(views, count, t, [&](int row, Zmm::Sum sum) { Zmm::store(to + t * rows + row, sum); });
      }
    });
  }

  static void groups(const GroupRun& r) {
    const int64_t units = ceil_div((r.count - 1) * r.lines + r.last_lines, kLines);
    pass(r.w, r.w_row, r.blocks, units, r.lines / kLines, r.q, [&](int64_t j) {
      Zmm::Sum views[kSums][16];
      each<kSums>([&](auto i) { store_tile<i>(views[i], 64); });
      for (int t = 0; t < r.tokens; ++t) {
        const Term term = term_of(r, coding, t, j);
        solve(views, r.blocks, t, [&](int row, Zmm::Sum sum) { add_term<Zmm, rows>(r, term, t, j, row, sum); });
      }
    });
  }
};

// Fetches the lines of the next weights, a few at each step of the product before.
struct Fetch {
  const uint8_t *at = nullptr, *end = nullptr;
  int lines = 0;
  TRITIUM_INLINE void step() {
    for (int i = 0; i < lines && at < end; ++i, at += kLine) _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }
};

// A panels of 16 tokens, `panel` bytes apart, times B vectors of 16 rows into (or added to) c[16 A][rows], `row` bytes
// apart. meanwhile(u) does other work while the tiles of unit u are multiplied. Nothing is fetched ahead: tiles come from L2 in
// 1.4 times the time that they take to multiply, and with a prefetch of each line in 1.6 times.
template <int A, int B, class Meanwhile>
TRITIUM_INLINE void multiply(const int8_t* q, int64_t panel, const uint8_t* w, const uint8_t* w2, int64_t units,
                             int32_t* c, int64_t row, bool add, const Meanwhile& meanwhile) {
  const auto place = [&](int a, int b) { return c + a * 4 * row + b * 16; };
  each<A * B>([&](auto i) { add ? load_tile<i>(place(i / B, i % B), row) : zero_tile<i>(); });
  for (int64_t u = 0; u < units; ++u, q += kTile, w += kTile, w2 += kTile) {
    load_tile<4>(q);
    if constexpr (A == 2) load_tile<5>(q + panel);
    load_tile<6>(w);
    if constexpr (B == 2) load_tile<7>(w2);
    dot_tile<0, 4, 6>();
    if constexpr (A == 2) dot_tile<B, 5, 6>();
    meanwhile(u);
    if constexpr (B == 2) dot_tile<1, 4, 7>();
    if constexpr (A == 2 && B == 2) dot_tile<3, 5, 7>();
  }
  each<A * B>([&](auto i) { store_tile<i>(place(i / B, i % B), row); });
}

// Many tokens: cells of a few strips x some tokens, each done by one thread. Vectors of 16 rows are views, of which one
// lies there already; or codes, of a format that has more views than fields.
template <class F>
struct Blocks {
  static constexpr Coding coding = F::coding;
  static constexpr int blocks = F::fields >= 4 ? 1 : 4 / F::fields;
  static constexpr int tokens = 32, vectors = blocks * F::fields;
  static constexpr int64_t rows = 16 * vectors;
  static constexpr int64_t kShort = 48, kChunk = 16;  // units: all at once, or so many that the tokens stay in L1
  static constexpr bool kViews = F::views == F::fields;
  static constexpr int kMade = kViews ? F::fields - 1 : F::fields;  // vectors of a block that are unpacked
  static constexpr int64_t kUnitsAhead = 4;  // that vectors are unpacked before they are multiplied
  static constexpr int64_t kHanded = 4;  // strips whose results are handed over together: long rows need not be copied
  static constexpr int64_t kLongestSums = 1024;  // units: no difference of views leaves 32 bits
  using S = Strip<Blocks>;

  const Product& p;
  int64_t strips, pairs;       // of tokens
  int64_t tall = 1, wide = 1;  // most strips and pairs of a cell
  int64_t steps = 1, shares = 1, most_cells = 1;  // of the work; equal shares of it; the most cells of one
  int64_t chunks, longest;     // of columns; units of the longest

  explicit Blocks(const Product& product) : p(product) {
    strips = ceil_div(p.n, rows);
    pairs = ceil_div(p.m, tokens);
    chunks = p.units <= kShort ? 1 : ceil_div(p.units, kChunk);
    longest = ceil_div(p.units, chunks);
    choose_cells();
  }

  // Work is a line of steps: all pairs of the first `tall` strips, then of the next ones. Each thread has an equal share,
  // which is cut into cells where other strips begin and after every `wide` pairs. A pair of a strip takes 1, reading and
  // unpacking a strip 1.2, beginning with a pair of tokens 0.1. Threads are not equally fast: who is done takes what others
  // have not begun, and at the end all wait for a cell that a slow one has just begun. Two strips are handed over together
  // where they make whole blocks of a tape, whose results need not be copied.
  void choose_cells() {
    constexpr int64_t kTallest = 6, kTapeBlock = 128;
    int64_t least_time = INT64_MAX;
    const int64_t threads = num_threads(), step = p.after && strips > 1 && 2 * rows % kTapeBlock == 0 ? 2 : 1;
    for (int64_t s = step; s <= least(kTallest, strips); s += step) {
      const int64_t all = ceil_div(strips, s) * pairs, share = ceil_div(all, threads);
      for (int64_t parts = 1; parts <= least(pairs, 4 * threads); ++parts) {
        const int64_t w = ceil_div(pairs, parts), pair = 10 * s + 1, strip = 12 * s;
        const bool even = all % threads == 0 && pairs % w == 0 && share % w == 0;  // no share begins within a cell
        const int64_t cells = even ? share / w : ceil_div(share - 1, w) + 1;
        const int64_t time = threads * (share * pair + cells * strip) + most(threads - 1, 1) * (w * pair + strip);
        if (time >= least_time) continue;
        least_time = time;
        tall = s;
        wide = w;
      }
    }
    steps = ceil_div(strips, tall) * pairs;
    shares = least(threads, steps);
    for (int64_t i = 0; i < shares; ++i) most_cells = most(most_cells, cells_of(i));
  }

  // The step a share begins with, the cell that a step is in, and how many cells a share has.
  int64_t edge(int64_t share) const { return steps * share / shares; }
  int64_t cell_at(int64_t step) const { return step / pairs * ceil_div(pairs, wide) + step % pairs / wide; }
  int64_t cells_of(int64_t share) const { return cell_at(edge(share + 1) - 1) - cell_at(edge(share)) + 1; }

  struct Cell {
    int64_t strip = 0, count = 0;  // strips
    int64_t pair = 0, last = 0;    // pairs of tokens, to before the last
  };

  // Cell `index` of a share: those that other shares have a part of come last, the larger one first, so that the threads
  // that are done early find small ones to take. Without strips: there is none.
  Cell cell_of(int64_t share, int64_t index) const {
    const int64_t begin = edge(share), end = edge(share + 1), count = cells_of(share);
    if (index >= count) return {};
    const auto cut = [&](int64_t i) -> Cell {
      const int64_t at = cell_at(begin) + i, across = ceil_div(pairs, wide), strip = at / across * tall;
      const int64_t first = at / across * pairs, pair = first + at % across * wide;
      return {strip, least(tall, strips - strip), most(pair, begin) - first,
              least(least(pair + wide, first + pairs), end) - first};
    };
    if (index + 2 < count) return cut(index + 1);
    const Cell front = cut(0), back = cut(count - 1);
    const bool larger = front.last - front.pair > back.last - back.pair;
    return count == 1 || larger == (index + 2 == count) ? front : back;
  }

  int64_t made_bytes() const { return blocks * kMade * longest * kTile; }  // of a strip
  int64_t view_bytes() const { return tall * made_bytes(); }
  int64_t sum_bytes() const { return (chunks == 1 ? 1 : wide * tall) * tokens * rows * 4; }
  int64_t result_bytes() const { return kHanded * tokens * rows * 4; }

  static void run(const Product& product) {
    if (product.units > kLongestSums) return stream<Piece<F>>(product);
    const Blocks work(product);
    parallel_units(work.shares * work.most_cells, [&](int64_t begin, int64_t end) {
      const Workspace space(work.view_bytes() + work.sum_bytes() + work.result_bytes(), Need::must);
      configure_tiles(TileConfig(0, 16));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t share = i / work.most_cells, index = i % work.most_cells;
        char* const sums = space.data() + work.view_bytes();
        work.run(work.cell_of(share, index), work.cell_of(share, index + 1), space.as<uint8_t>(),
                 reinterpret_cast<int32_t*>(sums), reinterpret_cast<float*>(sums + work.sum_bytes()));
      }
      release_tiles();
    });
  }

  // Computes a cell; `next`: the one that this thread probably takes after it.
  void run(const Cell& cell, const Cell& next, uint8_t* made, int32_t* sums, float* results) const {
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t first = p.units * c / chunks, units = p.units * (c + 1) / chunks - first;
      for (int64_t t = cell.pair; t < cell.last; ++t) {
        for (int64_t i = 0; i < cell.count; ++i) {
          const S here(p, cell.strip + i);
          int32_t* const mine = sums + (chunks == 1 ? 0 : ((t - cell.pair) * tall + i) * tokens * rows);
          Fetch fetch;
          if (c + 1 < chunks) {
            fetch = weights(cell.strip + i, first + units, t - cell.pair, cell.last - cell.pair);
          } else if (i < next.count && next.strip != cell.strip) {
            fetch = weights(next.strip + i, 0, t - cell.pair, cell.last - cell.pair);
          }
          const Made views{made + i * made_bytes(), t == cell.pair};
          block(here, views, t * tokens, first, units, mine, c > 0, fetch);
          if (c + 1 < chunks) continue;
          const int64_t place = i % kHanded;
          finish(here, t * tokens, mine, results + place * rows);
          if (!p.after || (place + 1 < kHanded && i + 1 < cell.count)) continue;
          const int64_t row = (cell.strip + i - place) * rows, columns = least((place + 1) * rows, p.n - row);
          hand_over(p, t * tokens, least(tokens, p.m - t * tokens), row, columns, results, kHanded * rows);
        }
      }
    }
  }

  // The vectors of a strip that are unpacked, and whether they are yet to be.
  struct Made {
    uint8_t* data;
    bool missing;
  };

  // One pair of panels times all vectors of a strip. The first pair unpacks a block's vectors some units before it needs
  // them, while earlier ones are multiplied: that takes no time of its own.
  void block(const S& strip, const Made& made, int64_t t, int64_t unit, int64_t units, int32_t* sums, bool add,
             Fetch& fetch) const {
    static_assert(kMade == 0 || blocks == 1 || F::fields % 2 == 0, "a block's first vector is the first of two");
    const int64_t panel = p.a.panel_bytes, row = rows * 4;
    const int8_t* const q = p.a.at(t, unit);
    const int count = strip.blocks * F::fields;
    const auto vector = [&](int v) -> const uint8_t* {
      const int b = v / F::fields, f = v % F::fields;
      if (kViews && f == F::raw) return strip.w + b * p.w_row + unit * kTile;
      return made.data + (b * kMade + (kViews && f > F::raw ? f - 1 : f)) * units * kTile;
    };
    const auto pass = [&](int v, const auto& meanwhile) __attribute__((always_inline)) {
      const uint8_t *const w = vector(v), *const w2 = v + 1 < count ? vector(v + 1) : w;
      if (v + 1 < count) {
        t + 16 < p.m ? multiply<2, 2>(q, panel, w, w2, units, sums, row, add, meanwhile)
                     : multiply<1, 2>(q, panel, w, w2, units, sums, row, add, meanwhile);
      } else {
        t + 16 < p.m ? multiply<2, 1>(q, panel, w, w2, units, sums, row, add, meanwhile)
                     : multiply<1, 1>(q, panel, w, w2, units, sums, row, add, meanwhile);
      }
    };
    for (int v = 0; v < count; v += 2, sums += 32) {
      if (kMade == 0 || !made.missing || v % F::fields != 0) {
        pass(v, [&](int64_t) { fetch.step(); });
        continue;
      }
      const int b = v / F::fields;
      const uint8_t* const from = strip.w + b * p.w_row + unit * kTile;
      uint8_t* const to = made.data + b * kMade * units * kTile;
      for (int64_t u = 0; u < least(kUnitsAhead, units); ++u) unpack(from + u * kTile, units, to + u * kTile);
      pass(v, [&](int64_t u) {
        const int64_t next = u + kUnitsAhead;
        if (next < units) unpack(from + next * kTile, units, to + next * kTile);
        fetch.step();
      });
    }
  }

  void finish(const S& strip, int64_t t, int32_t* sums, float* results) const {
    const int64_t count = least(tokens, p.m - t);
    if (!p.scale) {
      for (int64_t i = 0; kViews && i < count; ++i) {
        auto* const mine = reinterpret_cast<Zmm::Sum*>(sums + i * rows);
        for (int b = 0; b < strip.blocks; ++b) F::solve(mine + b * F::views);
      }
      return finish_strip(p, strip, t, count, sums);
    }
    RowScales scales;
    load_scales(p, strip.row, strip.rows, scales);
    for (int64_t r = strip.rows; r < rows; ++r) scales.scale[r] = scales.bias[r] = 0;
    const bool here = !p.after && strip.rows == rows && Target(p, t, strip.row).plain;  // where they are wanted
    for (int64_t i = 0; i < count; ++i, sums += rows, results += kHanded * rows) {
      const Target target(p, t + i, strip.row);
      float* const to = here ? reinterpret_cast<float*>(target.to) : results;
      scales.biased ? put_results<true>(strip, t + i, sums, scales, to)
                    : put_results<false>(strip, t + i, sums, scales, to);
      if (!p.after && !here) scatter(p.out->type, to, target.to, p.out->step, strip.rows);
    }
  }

  // The results of token t from its sums, 16 rows at a time: the steps of take_offset and fill_floats, in registers.
  template <bool Biased>
  TRITIUM_INLINE void put_results(const S& strip, int64_t t, const int32_t* sums, const RowScales& scales,
                                  float* to) const {
    static_assert(coding.coded == coding.rows);
    const float token = p.a.scales[t];
    const auto excess = static_cast<int32_t>(static_cast<uint32_t>(p.sum(t, 0)) * static_cast<uint32_t>(coding.offset));
    for (int b = 0; b < strip.blocks; ++b) {
      Zmm::Sum sum[F::fields];
      each<F::fields>([&](auto f) { sum[f] = *reinterpret_cast<const Zmm::Sum*>(sums + (b * F::fields + f) * 16); });
      if constexpr (kViews) F::solve(sum);
      each<F::fields>([&](auto f) {
        const int at = (b * F::fields + f) * 16;
        const Zmm::Float scale = *reinterpret_cast<const Zmm::Float*>(scales.scale + at) * token;
        Zmm::Float y = __builtin_convertvector(sum[f] - excess, Zmm::Float) * scale;
        if constexpr (Biased) y = y + *reinterpret_cast<const Zmm::Float*>(scales.bias + at);
        __builtin_memcpy(to + at, &y, sizeof(y));
      });
    }
  }

  // What will be unpacked next: a strip from `unit` on, up to the end of a chunk. Pair `turn` of `turns` fetches its share.
  Fetch weights(int64_t strip, int64_t unit, int64_t turn, int64_t turns) const {
    const S next(p, strip);
    const int64_t bytes = least(longest, p.units - unit) * kTile, share = whole(ceil_div(bytes, turns), kLine);
    const uint8_t* const from = next.w + unit * kTile;
    return {from + turn * share, from + least((turn + 1) * share, bytes), static_cast<int>(8 / turns + 1)};
  }

  // One unit of a block: its vectors of 16 rows as tiles, `units` of them apart.
  TRITIUM_INLINE static void unpack(const uint8_t* from, int64_t units, uint8_t* to) {
    for (int line = 0; kMade > 0 && line < kLines; ++line, from += kLine, to += kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T1);
      Zmm::V vector[F::fields];
      if constexpr (kViews) {
        F::template split<Zmm>(Zmm::load(from), vector);
      } else {
        F::template codes<Zmm>(Zmm::load(from), vector);
      }
      each<F::fields>([&](auto f) {
        constexpr int slot = kViews && f > F::raw ? int{f} - 1 : int{f};
        if constexpr (!kViews || f != F::raw) Zmm::store(to + slot * units * kTile, vector[f]);
      });
    }
  }
};

// Groups of whole units for many tokens: strips x some tokens. All of a strip is unpacked into L2, with its signs, so
// that sums need nothing but their scales. While tiles are multiplied, the sums of the tiles before become terms: 32 tokens
// x 2 vectors of 16 rows in a few groups.
template <class F>
struct GroupBlocks {
  using L = Zmm;
  static constexpr int blocks = F::fields >= 4 ? 1 : 4 / F::fields, vectors = blocks * F::fields;
  static constexpr Coding coding = {F::coding.rows, F::coding.coded, 0};
  static constexpr Layout layout = kPanels;
  static constexpr int64_t tokens = 32, rows = 16 * vectors;
  static constexpr int64_t kSums = 256;        // of a tile
  static constexpr int64_t kStep = 4;          // units whose sums become terms together, if they are several groups
  static constexpr int64_t kLongestRow = 320;  // units that L2 holds unpacked
  using S = Strip<GroupBlocks>;

  const Product& p;
  GroupLines lines;
  int64_t strips, parts, part;  // parts of so many tokens

  explicit GroupBlocks(const Product& product) : p(product), lines(product), strips(ceil_div(p.n, rows)) {
    constexpr int64_t kFewest = 64;  // tokens that are worth unpacking for
    parts = most(1, least(ceil_div(4 * num_threads(), strips), p.m / kFewest));
    part = whole(ceil_div(p.m, parts), tokens);
    parts = ceil_div(p.m, part);
  }

  int64_t code_bytes() const { return p.units * vectors * kTile; }
  int64_t scale_bytes() const { return p.groups * rows * 4; }

  static void run(const Product& product) {
    const GroupBlocks work(product);
    parallel_for(work.strips * work.parts, 1, [&](int64_t begin, int64_t end) {
      const Workspace space(work.code_bytes() + work.scale_bytes(), Need::must);
      configure_tiles(TileConfig(0, 16));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = i % work.parts * work.part;
        work.strip(S(product, i / work.parts), t, least(work.part, product.m - t), space.as<uint8_t>(),
                   reinterpret_cast<float*>(space.data() + work.code_bytes()));
      }
      release_tiles();
    });
  }

  void strip(const S& strip, int64_t t0, int64_t count, uint8_t* codes, float* scales) const {
    alignas(64) float total[tokens * rows], more[tokens * rows];
    load_strip_scales<GroupBlocks>(p, strip, 0, p.groups, scales);
    for (int64_t t = t0; t < t0 + count; t += tokens) {
      const int64_t now = least(tokens, t0 + count - t);
      for (int64_t b = 0; b < p.blocks(); ++b) {
        const int64_t first = lines.first(b), unit = first * p.group / kUnit;
        float* const to = b == 0 ? total : more;
        GroupRun run = lines.run<GroupBlocks>(p, strip, first, lines.count(b), t, scales + first * rows, to);
        if (t == t0) unpack(run.w, p.w_row, strip.blocks, ceil_div(run.all_lines(), kLines), codes + unit * kTile);
        run.w = codes + unit * kTile;
        run.tokens = static_cast<int>(now);
        for (int64_t i = 0; i < now * rows; ++i) to[i] = 0;
        multiply(run);
        if (b > 0) add_block(total, more, now * rows, false);
      }
      finish_groups(p, strip, t, now, total);
    }
  }

  // Some units of a strip as vectors of 16 rows, whose units lie side by side.
  void unpack(const uint8_t* w, int64_t w_row, int count, int64_t units, uint8_t* to) const {
    const Zmm::V less = _mm512_set1_epi8(static_cast<char>(-F::coding.offset));
    const int64_t vector = p.units * kTile;
    for (int b = 0; b < count; ++b, to += F::fields * vector) {
      const uint8_t* from = w + b * w_row;
      for (int64_t at = 0; at < units * kTile; at += kLine, from += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T1);
        Zmm::V code[F::fields];
        F::template codes<Zmm>(Zmm::load(from), code);
        each<F::fields>([&](auto f) { Zmm::store(to + f * vector + at, Zmm::add8(code[f], less)); });
      }
    }
  }

  // One or two vectors in a few groups of a run.
  struct Step {
    int64_t first = 0, count = 0;  // groups; none: nothing to do
    int vector = 0, vectors = 0;
  };

  // A panels of 16 tokens times B vectors: the sums of one group, in tiles. The sums that are in these go to `before` first,
  // if it is anywhere, each tile where it is next needed: no product waits for all of them.
  template <int A, int B>
  TRITIUM_INLINE static void tiles(const int8_t* q, int64_t panel, const uint8_t* w, int64_t vector, int64_t units,
                                   int32_t* before) {
    const auto unit = [&](const auto& begin) __attribute__((always_inline)) {
      load_tile<4>(q);
      load_tile<6>(w);
      begin(std::integral_constant<int, 0>{});
      dot_signed_tile<0, 4, 6>();
      if constexpr (B == 2) {
        load_tile<7>(w + vector);
        begin(std::integral_constant<int, 1>{});
        dot_signed_tile<1, 4, 7>();
      }
      if constexpr (A == 2) {
        load_tile<5>(q + panel);
        begin(std::integral_constant<int, B>{});
        dot_signed_tile<B, 5, 6>();
        if constexpr (B == 2) {
          begin(std::integral_constant<int, 3>{});
          dot_signed_tile<3, 5, 7>();
        }
      }
      q += kTile;
      w += kTile;
    };
    unit([&](auto i) __attribute__((always_inline)) {
      if (before) store_tile<i>(before + i * kSums, 64);
      zero_tile<i>();
    });
    for (int64_t u = 1; u < units; ++u) unit([](auto) {});
  }

  // Adds the terms of T tokens from `t` on and 16 rows, whose sums in each group are `apart` from those in the group before.
  template <int T, bool By>
  TRITIUM_INLINE static void add_terms(const GroupRun& r, const Step& step, int64_t t, int64_t row, const int32_t* sums,
                                       int64_t apart) {
    float* const to = r.to + t * rows + row;
    const float* scales = r.scales + step.first * rows + row;
    Zmm::Float total[T];
    each<T>([&](auto i) { total[i] = *reinterpret_cast<const Zmm::Float*>(to + i * rows); });
    for (int64_t j = 0; j < step.count; ++j, sums += apart, scales += rows) {
      const Zmm::Float scale = *reinterpret_cast<const Zmm::Float*>(scales);
      each<T>([&](auto i) {
        Zmm::Float term = __builtin_convertvector(*reinterpret_cast<const Zmm::Sum*>(sums + i * 16), Zmm::Float) * scale;
        if constexpr (By) term = term * r.by[(t + i) * r.stride + step.first + j];
        total[i] = total[i] + term;
      });
    }
    each<T>([&](auto i) { *reinterpret_cast<Zmm::Float*>(to + i * rows) = total[i]; });
  }

  // The terms of tile i of a step: of up to 16 tokens and 16 rows.
  TRITIUM_INLINE static void finish(const GroupRun& r, const Step& step, int i, const int32_t* sums, int64_t apart) {
    const int64_t t = i / step.vectors * 16, row = (step.vector + i % step.vectors) * 16;
    in_counts<8>(static_cast<int>(least(16, r.tokens - t)), [&]<int T>(int at) {
      const int32_t* const mine = sums + i * kSums + at * 16;
      r.by ? add_terms<T, true>(r, step, t + at, row, mine, apart) : add_terms<T, false>(r, step, t + at, row, mine, apart);
    });
  }

  // All groups of a run, whose weights are unpacked.
  void multiply(const GroupRun& r) const {
    r.tokens > 16 ? multiply<2>(r) : multiply<1>(r);
  }

  template <int A>
  void multiply(const GroupRun& r) const {
    alignas(64) int32_t space[2][kStep * 2 * A * kSums];
    const int64_t units = r.lines / kLines, together = most(1, kStep / units), vector = p.units * kTile;
    Step before;
    int32_t* pending = nullptr;  // where the sums that are in tiles belong
    int turn = 0;
    for (int64_t first = 0; first < r.count; first += together) {
      for (int v = 0; v < vectors; v += 2, turn ^= 1) {
        const Step step{first, least(together, r.count - first), v, v + 1 < vectors ? 2 : 1};
        const int all = A * before.vectors;
        if (step.vectors != before.vectors) put<A>(before, pending);
        for (int64_t j = 0; j < step.count; ++j) {
          const int64_t group = first + j, at = group * units * kTile, now = ceil_div(r.lines_of(group), kLines);
          const int8_t* const q = r.q + at;
          const uint8_t* const w = r.w + v * vector + at;
          step.vectors == 2 ? tiles<A, 2>(q, r.panel_bytes, w, vector, now, pending)
                            : tiles<A, 1>(q, r.panel_bytes, w, vector, now, pending);
          pending = space[turn] + j * A * step.vectors * kSums;
          const int done = static_cast<int>(all * j / step.count), end = static_cast<int>(all * (j + 1) / step.count);
          for (int i = done; i < end; ++i) finish(r, before, i, space[turn ^ 1], all * kSums);
        }
        before = step;
      }
    }
    put<A>(before, pending);
    for (int i = 0; i < A * before.vectors; ++i) finish(r, before, i, space[turn ^ 1], A * before.vectors * kSums);
  }

  // Stores the sums that are in tiles, if there are any; then there are none.
  template <int A>
  static void put(const Step& step, int32_t*& pending) {
    if (pending) {
      each<2 * A>([&](auto i) {
        if (i < A * step.vectors) store_tile<i>(pending + i * kSums, 64);
      });
    }
    pending = nullptr;
  }
};

template <class F>
Plan plan_of(const Product& p, int64_t m) {
  constexpr int64_t kFew = 8, kManyGrouped = 25, kMany = F::views > F::fields ? 17 : 65;
  if (m < kFew || (p.grouped && p.group % kUnit != 0)) return vnni_plan(p, m);
  if (p.grouped && m >= kManyGrouped && p.units <= GroupBlocks<F>::kLongestRow) return {kPanels, GroupBlocks<F>::run};
  if (p.grouped) return {kPanels, stream_groups<Piece<F>>};
  if (m < kMany) return {kPanels, stream<Piece<F>>};
  return {kPanels, Blocks<F>::run};
}

Plan plan(const Product& p, int64_t m) {
  switch (p.format) {
    case DType::tern2_r64: return plan_of<Tern2R64>(p, m);
    case DType::tern5_r80: return plan_of<Tern5R80>(p, m);
    case DType::i4_r32: return plan_of<I4R32>(p, m);
    default: return plan_of<I8R16>(p, m);
  }
}

}  // namespace

}  // namespace tritium::TRITIUM_ISA

// A set of its own, in the namespace of the kernels that it leaves few tokens to.
namespace tritium::amx {

Table tiled_table() { return TRITIUM_ISA::products<TRITIUM_ISA::kFormats>(); }

}  // namespace tritium::amx
