// Kernels without VNNI, on vectors of either width: bytes are multiplied and added in pairs to 16 bits (vpmaddubsw), a few
// lines are added there, then all is widened to 32 bits. No 16-bit sum can wrap or saturate: unsigned bytes up to c times
// int8 give pairs of at least -256 c and at most 254 c, and lines are added while 256 c * lines <= 32768.
//   tern2_r64  packed: b & 3, b & 12, and both of b >> 4: c = 8, 16 lines; unpacked to codes: c = 2, 64 lines
//   tern5_r80  codes: c = 2, 64 lines          i4_r32  codes: c = 15, 8 lines
//   i8_r16     the two nibbles of w + 128, low + 16 high: c = 15, 8 lines
// Knows nothing of threads; schedule.h says what a kernel has to offer.
#pragma once

#include "grouped.h"
#include "views.h"

namespace tritium::TRITIUM_ISA {
namespace {

// A format as `parts` vectors of small bytes for each vector of a line; `finish` makes the sums over parts, in place, sums
// over fields.
struct Tern2Masked : Tern2R64 {
  static constexpr int parts = 4, lines = 16;
  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void take(V b, V* part) {
    const V high = L::template right16<4>(b);
    part[0] = L::masked(b, 3);
    part[1] = L::masked(b, 12);
    part[2] = L::masked(high, 3);
    part[3] = L::masked(high, 12);
  }
  template <class Sum>
  TRITIUM_INLINE static void finish(Sum* t) {
    t[1] >>= 2;
    t[3] >>= 2;
  }
};

template <class F, int Largest>
struct Codes : F {
  static constexpr int parts = F::fields, lines = 128 / Largest / 8 * 8;
  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void take(V b, V* part) {
    F::template codes<L>(b, part);
  }
  template <class Sum>
  TRITIUM_INLINE static void finish(Sum*) {}
};

struct I8Nibbles : I8R16 {
  static constexpr int parts = 2, lines = 8;
  template <class L, class V = typename L::V>
  TRITIUM_INLINE static void take(V b, V* part) {
    part[0] = L::masked(b, 15);
    part[1] = L::masked(L::template right16<4>(b), 15);
  }
  template <class Sum>
  TRITIUM_INLINE static void finish(Sum* t) {
    t[0] += 16 * t[1];
  }
};

static_assert(Codes<Tern2R64, 2>::lines == 64 && Codes<I4R32, 15>::lines == 8);

constexpr int kWideBlocks = 4;  // that are read side by side

// The sums over the parts of packed lines: of T tokens, H vectors of a line, and S places with sums of their own.
template <class L, class P, int T, int H, int S>
struct PackedSums {
  using V = typename L::V;
  using Sum = typename L::Sum;
  static constexpr int N = H * P::parts;
  static constexpr int kWidth = static_cast<int>(kLine) / L::kHalves;
  static constexpr int kAtOnce = T == 1 ? 2 : 1;  // lines; a group has whole steps of four of them
  Sum sum[S][T][N];

  // Over some lines from each place on; places are `w_step` bytes of weights and `q_step` activations from each other.
  // Fetches what is `ahead` bytes behind a line, or `at_end` where fewer bytes than kAhead are left.
  TRITIUM_INLINE PackedSums(const std::uint8_t* w, std::int64_t w_step, std::int64_t left, const std::int8_t* q,
                            std::int64_t q_step, std::int64_t q_row, std::int64_t ahead, std::int64_t at_end) {
    each([&](int s, int t, int i) { sum[s][t][i] = Sum{}; });
    for (; left > 0; left -= P::lines) {
      const std::int64_t fetched = left * kLine > kAhead ? ahead : at_end;
      typename L::Pairs pairs[S][T][N];
      each([&](int s, int t, int i) { pairs[s][t][i] = typename L::Pairs{}; });
      TRITIUM_ROLLED  // more lines at once would need more registers than there are
      for (std::int64_t line = left < P::lines ? left : P::lines; line > 0; line -= kAtOnce) {
        TRITIUM_UNROLL
        for (int n = 0; n < kAtOnce; ++n, w += kLine, q += 4) {
          TRITIUM_UNROLL
          for (int s = 0; s < S; ++s) {
            const std::uint8_t* const from = w + s * w_step;
            V part[N];
            _mm_prefetch(reinterpret_cast<const char*>(from + fetched), _MM_HINT_T1);
            TRITIUM_UNROLL
            for (int h = 0; h < H; ++h) P::template take<L>(L::load(from + kWidth * h), part + h * P::parts);
            TRITIUM_UNROLL
            for (int t = 0; t < T; ++t) {
              const V y = L::same(q + s * q_step + t * q_row);
              TRITIUM_UNROLL
              for (int i = 0; i < N; ++i) pairs[s][t][i] += L::multiply(part[i], y);
            }
          }
        }
      }
      each([&](int s, int t, int i) { sum[s][t][i] += L::add_pairs(pairs[s][t][i]); });
    }
  }

  template <class Fn>
  TRITIUM_INLINE static void each(const Fn& f) {
    TRITIUM_UNROLL
    for (int s = 0; s < S; ++s) {
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) {
        TRITIUM_UNROLL
        for (int i = 0; i < N; ++i) f(s, t, i);
      }
    }
  }

  // put(row, sum) with the sums over fields of set s and token t; half: the first of the H vectors.
  template <class Put>
  TRITIUM_INLINE void solve(int s, int t, int half, const Put& put) {
    TRITIUM_UNROLL
    for (int h = 0; h < H; ++h) {
      P::finish(sum[s][t] + h * P::parts);
      TRITIUM_UNROLL
      for (int f = 0; f < P::fields; ++f) put((half + h) * (16 / L::kHalves) + 16 * f, sum[s][t][h * P::parts + f]);
    }
  }
};

// Packed lines, for a few tokens; of several blocks for one token, whose groups are read side by side.
template <class Lanes, class P, int Blocks = 1>
struct PackedPairs {
  using L = Lanes;
  using Sum = typename L::Sum;
  static constexpr Coding coding = P::coding;
  static constexpr Layout layout = {};
  static constexpr int blocks = Blocks, tokens = Blocks > 1 ? 1 : P::parts < 4 || L::kHalves == 1 ? 4 : 2;
  static constexpr std::int64_t kShortest = 0, stride = Blocks * P::coding.rows;
  static void enter(std::int64_t) {}
  static void leave() {}

  // Vectors of a line that are read at once: all of them for one token where registers suffice.
  template <int T>
  static constexpr int kHalf = T == 1 && P::parts <= 4 ? L::kHalves : 1;
  // A single token is bound by memory: reading several places at once keeps more requests under way.
  static constexpr int kPlaces = L::kHalves == 1 ? 2 : 1, kWidth = static_cast<int>(kLine) / L::kHalves;

  template <int T>
  [[gnu::noinline]] static void run(const std::uint8_t* w, std::int64_t w_row, std::int64_t units, const std::int8_t* q,
                                    std::int64_t q_row, std::int32_t* to) {
    constexpr int H = kHalf<T>, S = T == 1 ? kPlaces : 1;
    const std::int64_t lines = units * kLines / S;
    // What is fetched ahead of the end of a place belongs to the next block.
    const std::int64_t w_step = lines * kLine, at_end = S == 1 ? kAhead : kAhead - w_step + w_row;
    for (int half = 0; half < L::kHalves; half += H) {
      PackedSums<L, P, T, H, S> sums(w + half * kWidth, w_step, lines, q, lines * 4, q_row, kAhead, at_end);
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) {
        TRITIUM_UNROLL
        for (int i = 0; S == 2 && i < sums.N; ++i) sums.sum[0][t][i] += sums.sum[S - 1][t][i];
        sums.solve(0, t, half, [&](int row, Sum sum) { L::store(to + t * coding.rows + row, sum); });
      }
    }
  }

  static void sums(const std::uint8_t* w, std::int64_t w_row, int, std::int64_t units, const std::int8_t* q,
                   std::int64_t q_row, int tokens_now, std::int32_t* to) {
    in_counts<tokens>(tokens_now, [&]<int T>(int t) {
      run<T>(w, w_row, units, q + t * q_row, q_row, to + t * coding.rows);
    });
  }

  // Group j of the S blocks from `block` on.
  template <int T, int S>
  TRITIUM_INLINE static void one_group(const GroupRun& r, int block, std::int64_t j, int half) {
    const std::int64_t line = r.line(j), ahead = r.ends(j, kAhead / kLine) ? kAhead + (S - 1) * r.w_row : kAhead;
    PackedSums<L, P, T, kHalf<T>, S> sums(r.w + block * r.w_row + line * kLine + half * kWidth, r.w_row, r.lines_of(j),
                                          r.q + j * r.lines * 4, 0, r.panel_bytes, ahead, ahead);
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      const Term term = term_of(r, coding, t, j);
      TRITIUM_UNROLL
      for (int s = 0; s < S; ++s) {
        sums.solve(s, t, half, [&](int row, Sum sum) {
          add_term<L, stride>(r, term, t, j, (block + s) * coding.rows + row, sum);
        });
      }
    }
  }

  template <int T, int S>
  [[gnu::noinline]] static void run_groups(const GroupRun& r, int block) {
    for (int half = 0; half < L::kHalves; half += kHalf<T>) {
      for (std::int64_t j = 0; j < r.count; ++j) one_group<T, S>(r, block, j, half);
    }
  }

  static void groups(const GroupRun& r) {
    if constexpr (Blocks > 1) {
      if (r.blocks == Blocks) return run_groups<1, Blocks>(r, 0);
    }
    for (int b = 0; b < r.blocks; ++b) {
      in_counts<tokens>(r.tokens, [&]<int T>(int t) { run_groups<T, 1>(r.from(t, stride), b); });
    }
  }
};

// The parts of a strip unpacked, for many tokens: of each vector of a line one after the other, all lines of the first half
// before those of the second. Whole cache lines are read, and a few tokens share each weight while it is in a register.
template <class Lanes, class P>
struct UnpackedPairs : PackedPairs<Lanes, P> {
  using L = Lanes;
  using V = typename L::V;
  using Sum = typename L::Sum;
  static constexpr int blocks = 4 / P::parts > 0 ? 4 / P::parts : 1, vectors = blocks * P::parts;
  static constexpr int fields = blocks * P::fields, rows = blocks * P::coding.rows;
  static constexpr int tokens = L::kPairs / vectors;
  static constexpr int kWidth = static_cast<int>(kLine) / L::kHalves, kStep = vectors * kWidth;
  static constexpr std::int64_t unpacked = vectors * kLine * kLines;
  static constexpr std::int64_t chunk = 4;  // 16 KB: what is multiplied comes from L1, beside the activations

  static void unpack(const std::uint8_t* w, std::int64_t w_row, int count, std::int64_t lines, std::uint8_t* to) {
    // Blocks that are not there are zeros: no sum may wrap, even if nobody reads it.
    if (count < blocks) std::memset(to, 0, static_cast<std::size_t>(lines * vectors * kLine));
    for (int b = 0; b < count; ++b) {
      for (std::int64_t line = 0; line < lines; ++line) {
        const std::uint8_t* const from = w + b * w_row + line * kLine;
        _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T1);
        TRITIUM_UNROLL
        for (int h = 0; h < L::kHalves; ++h) {
          V part[P::parts];
          P::template take<L>(L::load(from + kWidth * h), part);
          std::uint8_t* const mine = to + (h * lines + line) * kStep + b * P::parts * kWidth;
          TRITIUM_UNROLL
          for (int i = 0; i < P::parts; ++i) L::store(mine + i * kWidth, part[i]);
        }
      }
    }
  }

  // Fields of N vectors: of whole blocks, or some of one block whose parts are its fields.
  static constexpr int fields_of(int n) { return n * P::fields / P::parts; }
  static_assert(vectors % 2 != 0 || vectors / 2 % P::parts == 0 || P::fields == P::parts);

  // sum[token][field] of T tokens and the first N vectors over at most P::lines lines.
  template <int T, int N>
  TRITIUM_INLINE static void short_sums(const std::uint8_t* codes, std::int64_t lines, const std::int8_t* q,
                                        std::int64_t q_row, Sum (&sum)[T][fields_of(N)]) {
    typename L::Pairs pairs[T][N];
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      TRITIUM_UNROLL
      for (int i = 0; i < N; ++i) pairs[t][i] = typename L::Pairs{};
    }
    TRITIUM_ROLLED  // several lines at once would need more registers than there are
    for (; lines > 0; --lines, codes += kStep, q += 4) {
      V y[T];
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) y[t] = L::same(q + t * q_row);
      TRITIUM_UNROLL
      for (int i = 0; i < N; ++i) {
        const V w = L::load(codes + i * kWidth);
        TRITIUM_UNROLL
        for (int t = 0; t < T; ++t) pairs[t][i] += L::multiply(w, y[t]);
      }
    }
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      Sum part[N];
      TRITIUM_UNROLL
      for (int i = 0; i < N; ++i) part[i] = L::add_pairs(pairs[t][i]);
      TRITIUM_UNROLL
      for (int i = 0; i + P::parts <= N; i += P::parts) P::finish(part + i);
      TRITIUM_UNROLL
      for (int i = 0; i < N; i += P::parts / P::fields) sum[t][fields_of(i)] = part[i];
    }
  }

  // The row of a field of the blocks, in half `half`.
  static constexpr int row(int field, int half) {
    return field / P::fields * P::coding.rows + field % P::fields * 16 + half * (16 / L::kHalves);
  }

  template <int T, int N>
  [[gnu::noinline]] static void run(const std::uint8_t* codes, std::int64_t lines, const std::int8_t* q,
                                    std::int64_t q_row, std::int32_t* to, bool add) {
    constexpr int kFields = fields_of(N);
    for (int half = 0; half < L::kHalves; ++half) {
      for (std::int64_t line = 0; line < lines; line += P::lines) {
        Sum sum[T][kFields];
        short_sums<T, N>(codes + (half * lines + line) * kStep, least(P::lines, lines - line), q + line * 4, q_row, sum);
        const bool more = add || line > 0;
        TRITIUM_UNROLL
        for (int t = 0; t < T; ++t) {
          TRITIUM_UNROLL
          for (int f = 0; f < kFields; ++f) {
            std::int32_t* const mine = to + t * rows + row(f, half);
            L::store(mine, more ? sum[t][f] + *reinterpret_cast<const Sum*>(mine) : sum[t][f]);
          }
        }
      }
    }
  }

  // Half of the vectors are enough for half of the rows; sums of rows that are not there are left as they are.
  static void unpacked_sums(const std::uint8_t* codes, std::int64_t rows_now, std::int64_t lines, const std::int8_t* q,
                            std::int64_t q_row, int tokens_now, std::int32_t* to, bool add) {
    constexpr int kFewer = vectors % 2 == 0 ? vectors / 2 : vectors;
    const bool fewer = rows_now <= rows * kFewer / vectors;
    in_counts<tokens>(tokens_now, [&]<int T>(int t) {
      (fewer ? run<T, kFewer> : run<T, vectors>)(codes, lines, q + t * q_row, q_row, to + t * rows, add);
    });
  }

  // |weight| is at most that of codes 0 … 2 * offset, |q| 128.
  static constexpr std::int64_t kShortest = (std::int64_t{1} << 22) / (128 * P::coding.offset);

  // Adds the terms of group j to the results of T tokens, from sums over codes.
  template <int T>
  TRITIUM_INLINE static void add_terms(const GroupRun& r, std::int64_t j, int half, const Sum (&sum)[T][fields]) {
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      const Term term = Term{0, r.by ? r.by[t * r.stride + j] : 0.0f};
      const std::int32_t start = r.starts[t * r.stride + j];
      TRITIUM_UNROLL
      for (int f = 0; f < fields; ++f) {
        const int at = row(f, half);
        target<L, rows>(r, t, at) += r.fused ? fused_term<L, rows>(r, term, j, at, sum[t][f] + start)
                                             : scaled_term<L, rows>(r, term, j, at, sum[t][f] + start);
      }
    }
  }

  template <int T>
  [[gnu::noinline]] static void run_groups(const GroupRun& r) {
    const std::int64_t all = r.all_lines();
    for (int half = 0; half < L::kHalves; ++half) {
      for (std::int64_t j = 0; j < r.count; ++j) {
        const std::uint8_t* const codes = r.w + (half * all + r.line(j)) * kStep;
        const std::int8_t* const q = r.q + j * r.lines * 4;
        const std::int64_t lines = r.lines_of(j);
        Sum before[T][fields];
        for (std::int64_t line = 0; line < lines; line += P::lines) {
          Sum sum[T][fields];
          short_sums<T, vectors>(codes + line * kStep, least(P::lines, lines - line), q + line * 4, r.panel_bytes, sum);
          if (line > 0) add_all<T>(sum, before);
          if (line + P::lines < lines) {
            std::memcpy(before, sum, sizeof(sum));
          } else {
            add_terms<T>(r, j, half, sum);
          }
        }
      }
    }
  }

  template <int T>
  TRITIUM_INLINE static void add_all(Sum (&to)[T][fields], const Sum (&more)[T][fields]) {
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      TRITIUM_UNROLL
      for (int f = 0; f < fields; ++f) to[t][f] += more[t][f];
    }
  }

  static void unpacked_groups(const GroupRun& r) {
    in_counts<tokens>(r.tokens, [&]<int T>(int t) { run_groups<T>(r.from(t, rows)); });
  }
};

template <class L, class Few, class Many>
Plan pairs_plan(const Product& p, std::int64_t m) {
  // Tokens from which on unpacking pays: of packed lines a narrow vector takes each half apart.
  constexpr std::int64_t kMany = L::kHalves == 1 ? 12 : 5;
  if (!p.grouped) return {{}, m < kMany ? stream<PackedPairs<L, Few>> : blocked<UnpackedPairs<L, Many>>};
  if (m >= kMany && p.group <= kLongestUnpacked) return {kInSlots, blocked_groups<UnpackedPairs<L, Many>>};
  if constexpr (L::kHalves == 1 && Few::coding.rows <= 64) {
    // One token is bound by memory, which likes several streams; but every thread should have some of them.
    const std::int64_t wide = p.n / (kWideBlocks * Few::coding.rows);
    if (m == 1 && wide * p.blocks() >= 4 * num_threads()) return {kInSlots, stream_groups<PackedPairs<L, Few, kWideBlocks>>};
  }
  return {kInSlots, stream_groups<PackedPairs<L, Few>>};
}

template <class L>
Plan pairs_plan(const Product& p, std::int64_t m) {
  switch (p.format) {
    case DType::tern2_r64: return pairs_plan<L, Tern2Masked, Codes<Tern2R64, 2>>(p, m);
    case DType::tern5_r80: return pairs_plan<L, Codes<Tern5R80, 2>, Codes<Tern5R80, 2>>(p, m);
    case DType::i4_r32: return pairs_plan<L, Codes<I4R32, 15>, Codes<I4R32, 15>>(p, m);
    default: return pairs_plan<L, I8Nibbles, I8Nibbles>(p, m);
  }
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
