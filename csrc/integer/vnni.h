// Kernels on VNNI vectors of either width: `Direct` reads packed lines and multiplies their views; `Unpacked` reads codes
// that were unpacked to a byte each, for many tokens.
// A kernel keeps vectors x tokens sums in registers; each line adds 4 k to all of them.
// Knows nothing of threads; schedule.h says what a kernel has to offer.
#pragma once

#include "grouped.h"
#include "views.h"

namespace tritium::TRITIUM_ISA {
namespace {

// The sums over views of B blocks of format F, T tokens and H halves of each line, S times.
template <class L, class F, int B, int T, int H, int S>
struct ViewSums {
  using Sum = typename L::Sum;
  static constexpr int kVectors = F::views * H;  // of a block
  static constexpr int kWidth = static_cast<int>(kLine) / L::kHalves;
  Sum sum[S][T][B][kVectors];

  TRITIUM_INLINE ViewSums() {
    TRITIUM_UNROLL
    for (int s = 0; s < S; ++s) {
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) {
        TRITIUM_UNROLL
        for (int b = 0; b < B; ++b) {
          TRITIUM_UNROLL
          for (int i = 0; i < kVectors; ++i) sum[s][t][b][i] = Sum{};
        }
      }
    }
  }

  // Adds a line to each set of sums, `apart` lines from the one before; fetches what is `ahead` bytes behind it.
  TRITIUM_INLINE void add_lines(const std::uint8_t* w, std::int64_t w_row, const std::int8_t* q, std::int64_t q_row,
                                std::int64_t apart, std::int64_t ahead) {
    using V = typename L::V;
    TRITIUM_UNROLL
    for (int s = 0; s < S; ++s) {
      const std::uint8_t* const line = w + s * apart * kLine;
      V view[B][kVectors];
      TRITIUM_UNROLL
      for (int b = 0; b < B; ++b) {
        _mm_prefetch(reinterpret_cast<const char*>(line + b * w_row + ahead), _MM_HINT_T1);
        TRITIUM_UNROLL
        for (int h = 0; h < H; ++h) {
          V part[F::views];
          F::template split<L>(L::load(line + b * w_row + h * kWidth), part);
          TRITIUM_UNROLL
          for (int i = 0; i < F::views; ++i) view[b][h * F::views + i] = part[i];
        }
      }
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) {
        const V y = L::same(q + s * apart * 4 + t * q_row);
        TRITIUM_UNROLL
        for (int b = 0; b < B; ++b) {
          TRITIUM_UNROLL
          for (int i = 0; i < kVectors; ++i) sum[s][t][b][i] = L::dot(sum[s][t][b][i], view[b][i], y);
        }
      }
    }
  }

  // Adds all sets to the first.
  TRITIUM_INLINE void join() {
    TRITIUM_UNROLL
    for (int s = 1; s < S; ++s) {
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) {
        TRITIUM_UNROLL
        for (int b = 0; b < B; ++b) {
          TRITIUM_UNROLL
          for (int i = 0; i < kVectors; ++i) sum[0][t][b][i] += sum[s][t][b][i];
        }
      }
    }
  }

  // The sums over fields of set s, token t, block b and half h.
  TRITIUM_INLINE void fields(int s, int t, int b, int h, Sum* mine) const {
    TRITIUM_UNROLL
    for (int i = 0; i < F::views; ++i) mine[i] = sum[s][t][b][h * F::views + i];
    F::solve(mine);
  }

  // put(row of the blocks, sum) with the sums over fields of set s and token t; half: the first of the H halves.
  template <class Put>
  TRITIUM_INLINE void solve(int s, int t, int half, const Put& put) {
    TRITIUM_UNROLL
    for (int b = 0; b < B; ++b) {
      TRITIUM_UNROLL
      for (int h = 0; h < H; ++h) {
        Sum mine[F::views];
        fields(s, t, b, h, mine);
        TRITIUM_UNROLL
        for (int f = 0; f < F::fields; ++f) put(b * F::coding.rows + (half + h) * (16 / L::kHalves) + 16 * f, mine[f]);
      }
    }
  }
};

// Sets of sums for a kernel of so many: more chains of additions than one.
template <class L>
constexpr int sets(int sums) {
  return sums <= L::kSums / 4 ? 4 : sums <= L::kSums / 2 ? 2 : 1;
}

// Blocks of at most 64 rows.
template <class F>
inline constexpr int kFewBlocks = 80 / F::coding.rows < 4 ? (80 / F::coding.rows) : 4;
// Blocks whose 16 sums for one token use the line of activations at once; they are read side by side.
template <class F>
inline constexpr int kManyBlocks = 16 / F::views;

template <class Lanes, class F, int Blocks = kFewBlocks<F>>
struct Direct {
  using L = Lanes;
  static constexpr Coding coding = F::coding;
  static constexpr Layout layout = {};
  static constexpr int blocks = Blocks;
  static constexpr int tokens = L::kSums / (blocks * F::views);
  static constexpr std::int64_t stride = blocks * coding.rows;
  static void enter(std::int64_t) {}
  static void leave() {}

  template <int B, int T>
  static constexpr int kHalf = B * T * F::views * L::kHalves <= L::kSums ? L::kHalves : 1;

  template <int B, int T>
  [[gnu::noinline]] static void run(const std::uint8_t* w, std::int64_t w_row, std::int64_t units, const std::int8_t* q,
                  std::int64_t q_row, std::int32_t* to) {
    constexpr int H = kHalf<B, T>, S = sets<L>(B * T * F::views * H);
    // A single token is bound by memory. Its sets of sums take parts of the row of their own: reading S places at once keeps
    // more requests under way. What is fetched ahead of the end of a part belongs to the next block.
    constexpr bool kApart = T == 1 && B == 1 && S > 1;
    const std::int64_t rounds = units * kLines / S, apart = kApart ? rounds : 1, within = rounds - kAhead / kLine;
    for (int half = 0; half < L::kHalves; half += H) {
      ViewSums<L, F, B, T, H, S> sums;
      const std::uint8_t* line = w + half * (kLine / L::kHalves);
      const std::int8_t* y = q;
      for (std::int64_t round = 0; round < rounds; ++round) {
        const std::int64_t ahead = kApart && round >= within ? kAhead - apart * kLine + w_row : kAhead;
        sums.add_lines(line, w_row, y, q_row, apart, ahead);
        line += kApart ? kLine : S * kLine;
        y += kApart ? 4 : S * 4;
      }
      sums.join();
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) {
        sums.solve(0, t, half, [&](int row, typename L::Sum sum) { L::store(to + t * stride + row, sum); });
      }
    }
  }

  static void sums(const std::uint8_t* w, std::int64_t w_row, int count, std::int64_t units, const std::int8_t* q,
                   std::int64_t q_row, int tokens_now, std::int32_t* to) {
    with_count<tokens>(tokens_now, [&]<int T>() {
      if (T > 1 && count == blocks) return run<blocks, T>(w, w_row, units, q, q_row, to);
      // One block after the other: a single token is bound by memory, which likes one stream.
      for (int b = 0; b < count; ++b) run<1, T>(w + b * w_row, w_row, units, q, q_row, to + b * coding.rows);
    });
  }

  // S groups from j on at once, each with sums of its own.
  template <int S, int H>
  TRITIUM_INLINE static void side_by_side(const GroupRun& r, int block, std::int64_t j, int half) {
    ViewSums<L, F, 1, 1, H, S> sums;
    const std::uint8_t* line = r.w + block * r.w_row + j * r.lines * kLine + half * (kLine / L::kHalves);
    const std::int8_t* y = r.q + j * r.lines * 4;
    std::int64_t left = r.lines, ahead = S * r.lines * kLine;  // whole turns: the others are read by then
    while (ahead < kAhead) ahead *= 2;
    do {
      sums.add_lines(line, 0, y, 0, r.lines, ahead);
      line += kLine;
      y += 4;
    } while (--left > 0);
    TRITIUM_UNROLL
    for (int h = 0; h < H; ++h) {
      typename L::Float total[F::fields];
      const std::int64_t row = block * coding.rows + (half + h) * (16 / L::kHalves);
      TRITIUM_UNROLL
      for (int f = 0; f < F::fields; ++f) total[f] = target<L, stride>(r, 0, row + 16 * f);
      TRITIUM_UNROLL
      for (int s = 0; s < S; ++s) {
        const Term term = term_of(r, coding, 0, j + s);
        typename L::Sum mine[F::views];
        sums.fields(s, 0, 0, h, mine);
        TRITIUM_UNROLL
        for (int f = 0; f < F::fields; ++f) total[f] += scaled_term<L, stride>(r, term, j + s, row + 16 * f, mine[f]);
      }
      TRITIUM_UNROLL
      for (int f = 0; f < F::fields; ++f) target<L, stride>(r, 0, row + 16 * f) = total[f];
    }
  }

  // Group j, of `lines` lines, of B blocks from `block` on.
  template <int B, int T, int H>
  TRITIUM_INLINE static void one_group(const GroupRun& r, int block, std::int64_t j, int half) {
    constexpr int S = sets<L>(B * T * F::views * H);
    ViewSums<L, F, B, T, H, S> sums;
    const std::uint8_t* line = r.w + block * r.w_row + r.line(j) * kLine + half * (kLine / L::kHalves);
    const std::int8_t* y = r.q + j * r.lines * 4;
    std::int64_t left = r.lines_of(j);
    // What is fetched ahead of the end of a row belongs to the next blocks; those in between are being read.
    const std::int64_t ahead = B > 1 && r.ends(j, kAhead / kLine) ? kAhead + (B - 1) * r.w_row : kAhead;
    do {
      sums.add_lines(line, r.w_row, y, r.panel_bytes, 1, ahead);
      line += S * kLine;
      y += S * 4;
    } while ((left -= S) > 0);
    sums.join();
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      const Term term = term_of(r, coding, t, j);
      sums.solve(0, t, half, [&](int row, typename L::Sum sum) {
        add_term<L, stride>(r, term, t, j, block * coding.rows + row, sum);
      });
    }
  }

  template <int B, int T>
  [[gnu::noinline]] static void run_groups(const GroupRun& r, int block) {
    constexpr int H = kHalf<B, T>, S = B * T == 1 ? sets<L>(F::views * H) : 1;
    for (int half = 0; half < L::kHalves; half += H) {
      const std::int64_t even = r.even();
      std::int64_t j = 0;
      if constexpr (S == 4) {
        for (; j + 4 <= even; j += 4) side_by_side<4, H>(r, block, j, half);
      }
      if constexpr (S >= 2) {
        for (; j + 2 <= even; j += 2) side_by_side<2, H>(r, block, j, half);
      }
      for (; j < r.count; ++j) one_group<B, T, H>(r, block, j, half);
    }
  }

  static void groups(const GroupRun& r) {
    with_count<tokens>(r.tokens, [&]<int T>() {
      if ((T > 1 || Blocks > kFewBlocks<F>) && r.blocks == blocks) return run_groups<blocks, T>(r, 0);
      for (int b = 0; b < r.blocks; ++b) run_groups<1, T>(r, b);
    });
  }
};

// The sums of N vectors of codes and T tokens over some lines; a line of codes is N * 64 bytes.
template <class L, int N, int T>
TRITIUM_INLINE void code_sums(const std::uint8_t* codes, std::int64_t lines, const std::int8_t* q, std::int64_t q_row,
                              const std::int32_t (&start)[T], typename L::Sum (&sum)[T][N]) {
  using V = typename L::V;
  TRITIUM_UNROLL
  for (int t = 0; t < T; ++t) {
    TRITIUM_UNROLL
    for (int i = 0; i < N; ++i) sum[t][i] = typename L::Sum{} + start[t];
  }
  for (; lines > 0; --lines, codes += N * kLine, q += 4) {
    V w[N];
    TRITIUM_UNROLL
    for (int i = 0; i < N; ++i) w[i] = L::load(codes + i * kLine);
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      const V y = L::same(q + t * q_row);
      TRITIUM_UNROLL
      for (int i = 0; i < N; ++i) sum[t][i] = L::dot(sum[t][i], w[i], y);
    }
  }
}

template <class Lanes, class F>
struct Unpacked : Direct<Lanes, F> {
  using L = Lanes;
  using Base = Direct<L, F>;
  static constexpr int vectors = Base::blocks * F::fields;  // of 16 rows
  static constexpr int tokens = (L::kSums + 1) / vectors;
  static constexpr std::int64_t unpacked = vectors * kLine * kLines;
  static constexpr std::int64_t chunk = 6;  // 24 KB of codes: they are multiplied from L1

  static void unpack(const std::uint8_t* w, std::int64_t w_row, int blocks, std::int64_t lines, std::uint8_t* to) {
    constexpr int kWidth = static_cast<int>(kLine) / L::kHalves;
    for (int b = 0; b < blocks; ++b) {
      for (std::int64_t line = 0; line < lines; ++line) {
        const std::uint8_t* const from = w + b * w_row + line * kLine;
        std::uint8_t* const mine = to + (line * vectors + b * F::fields) * kLine;
        _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T1);
        for (int h = 0; h < L::kHalves; ++h) {
          typename L::V code[F::fields];
          F::template codes<L>(L::load(from + h * kWidth), code);
          for (int f = 0; f < F::fields; ++f) L::store(mine + f * kLine + h * kWidth, code[f]);
        }
      }
    }
  }

  template <int T>
  [[gnu::noinline]] static void run(const std::uint8_t* codes, std::int64_t lines, const std::int8_t* q, std::int64_t q_row,
                  std::int32_t* to, bool add) {
    using Sum = typename L::Sum;
    for (int half = 0; half < L::kHalves; ++half) {
      Sum sum[T][vectors];
      constexpr std::int32_t start[T] = {};
      code_sums<L, vectors, T>(codes + half * (kLine / L::kHalves), lines, q, q_row, start, sum);
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) {
        TRITIUM_UNROLL
        for (int i = 0; i < vectors; ++i) {
          std::int32_t* const mine = to + (t * vectors + i) * 16 + half * 8;
          L::store(mine, add ? sum[t][i] + *reinterpret_cast<const Sum*>(mine) : sum[t][i]);
        }
      }
    }
  }

  // Rows that are not there give sums that nobody reads.
  static void unpacked_sums(const std::uint8_t* codes, std::int64_t, std::int64_t lines, const std::int8_t* q,
                            std::int64_t q_row, int tokens_now, std::int32_t* to, bool add) {
    with_count<tokens>(tokens_now, [&]<int T>() { run<T>(codes, lines, q, q_row, to, add); });
  }

  // |weight| is at most that of codes 0 … 2 * offset, |q| 128.
  static constexpr std::int64_t kShortest = (std::int64_t{1} << 22) / (128 * F::coding.offset);

  template <int T, bool Fused>
  [[gnu::noinline]] static void run_groups(const GroupRun& r) {
    constexpr std::int64_t R = 16 * vectors;
    for (int half = 0; half < L::kHalves; ++half) {
      for (std::int64_t j = 0; j < r.count; ++j) {
        const std::uint8_t* const codes = r.w + r.line(j) * vectors * kLine + half * (kLine / L::kHalves);
        typename L::Sum sum[T][vectors];
        std::int32_t start[T];
        TRITIUM_UNROLL
        for (int t = 0; t < T; ++t) start[t] = r.starts[t * r.stride + j];
        code_sums<L, vectors, T>(codes, r.lines_of(j), r.q + j * r.lines * 4, r.panel_bytes, start, sum);
        TRITIUM_UNROLL
        for (int t = 0; t < T; ++t) {
          const Term term = Term{0, r.by ? r.by[t * r.stride + j] : 0.0f};
          TRITIUM_UNROLL
          for (int i = 0; i < vectors; ++i) {
            const std::int64_t row = i * 16 + half * 8;
            target<L, R>(r, t, row) += Fused ? fused_term<L, R>(r, term, j, row, sum[t][i])
                                             : scaled_term<L, R>(r, term, j, row, sum[t][i]);
          }
        }
      }
    }
  }

  static void unpacked_groups(const GroupRun& r) {
    with_count<tokens>(r.tokens, [&]<int T>() { r.fused ? run_groups<T, true>(r) : run_groups<T, false>(r); });
  }
};

template <class L, class F>
Plan vnni_plan(const Product& p, std::int64_t m) {
  constexpr std::int64_t kMany = F::views > F::fields ? 12 : 32;  // tokens from which on unpacking pays
  if (!p.grouped) return {{}, m < kMany ? stream<Direct<L, F>> : blocked<Unpacked<L, F>>};
  if (m >= kMany && p.group <= kLongestUnpacked) return {kInSlots, blocked_groups<Unpacked<L, F>>};
  if constexpr (L::kHalves == 1) {
    // One token is bound by memory, which likes several streams; but every thread should have some of them.
    const std::int64_t wide = p.n / (kManyBlocks<F> * F::coding.rows);
    if (m == 1 && wide * p.blocks() >= 4 * num_threads()) return {kInSlots, stream_groups<Direct<L, F, kManyBlocks<F>>>};
  }
  return {kInSlots, stream_groups<Direct<L, F>>};
}

template <class L>
Plan vnni_plan(const Product& p, std::int64_t m) {
  switch (p.format) {
    case DType::tern2_r64: return vnni_plan<L, Tern2R64>(p, m);
    case DType::tern5_r80: return vnni_plan<L, Tern5R80>(p, m);
    case DType::i4_r32: return vnni_plan<L, I4R32>(p, m);
    default: return vnni_plan<L, I8R16>(p, m);
  }
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
