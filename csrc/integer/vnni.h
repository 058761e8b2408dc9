// Kernels on VNNI vectors of either width: `Direct` reads packed lines and multiplies their views; `Unpacked` reads codes
// that were unpacked to a byte each, for many tokens.
// A kernel keeps vectors x tokens sums in registers; each line adds 4 k to all of them.
// Knows nothing of threads; schedule.h says what a kernel has to offer.
#pragma once

#include "schedule.h"
#include "views.h"

namespace tritium::TRITIUM_ISA {
namespace {

// B blocks of format F, T tokens, H halves of each line at once (from half `half` on).
template <class L, class F, int B, int T, int H>
TRITIUM_INLINE void direct_sums(const std::uint8_t* w, std::int64_t w_row, std::int64_t units, const std::int8_t* q,
                                std::int64_t q_row, int half, std::int32_t* sums, std::int64_t stride) {
  using V = typename L::V;
  constexpr int N = F::views * H;                    // vectors of a block
  constexpr int S = B * N * T <= L::kSums / 4 ? 4 : B * N * T <= L::kSums / 2 ? 2 : 1;  // sets of sums: more chains
  constexpr int kWidth = static_cast<int>(kLine) / L::kHalves;
  typename L::Sum sum[S][T][B][N];
  TRITIUM_UNROLL
  for (int s = 0; s < S; ++s) {
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      TRITIUM_UNROLL
      for (int b = 0; b < B; ++b) {
        TRITIUM_UNROLL
        for (int i = 0; i < N; ++i) sum[s][t][b][i] = typename L::Sum{};
      }
    }
  }
  w += half * kWidth;
  // A single token is bound by memory. Its sets of sums take parts of the row of their own: reading S places at once keeps
  // more requests under way. What is fetched ahead of the end of a part belongs to the next block.
  constexpr bool kApart = T == 1 && B == 1 && S > 1;
  const std::int64_t apart = kApart ? units * kLines / S : 1, rounds = units * kLines / S, within = rounds - kAhead / kLine;
  for (std::int64_t round = 0; round < rounds; ++round) {
    const std::int64_t ahead = kApart && round >= within ? kAhead - apart * kLine + w_row : kAhead;
    TRITIUM_UNROLL
    for (int s = 0; s < S; ++s) {
      const std::uint8_t* const line = w + s * apart * kLine;
      V view[B][N];
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
          for (int i = 0; i < N; ++i) sum[s][t][b][i] = L::dot(sum[s][t][b][i], view[b][i], y);
        }
      }
    }
    w += kApart ? kLine : S * kLine;
    q += kApart ? 4 : S * 4;
  }
  TRITIUM_UNROLL
  for (int t = 0; t < T; ++t) {
    TRITIUM_UNROLL
    for (int b = 0; b < B; ++b) {
      TRITIUM_UNROLL
      for (int h = 0; h < H; ++h) {
        typename L::Sum mine[F::views];
        TRITIUM_UNROLL
        for (int i = 0; i < F::views; ++i) {
          mine[i] = sum[0][t][b][h * F::views + i];
          TRITIUM_UNROLL
          for (int s = 1; s < S; ++s) mine[i] += sum[s][t][b][h * F::views + i];
        }
        F::solve(mine);
        std::int32_t* const to = sums + t * stride + b * F::coding.rows + (half + h) * (16 / L::kHalves);
        TRITIUM_UNROLL
        for (int f = 0; f < F::fields; ++f) L::store(to + 16 * f, mine[f]);
      }
    }
  }
}

// At most 64 rows of blocks at once.
template <class L, class F>
struct Direct {
  static constexpr Coding coding = F::coding;
  static constexpr Layout layout = {};
  static constexpr int blocks = 80 / coding.rows < 4 ? (80 / coding.rows) : 4;
  static constexpr int tokens = L::kSums / (blocks * F::views);
  static constexpr std::int64_t stride = blocks * coding.rows;
  static void enter(std::int64_t) {}
  static void leave() {}

  template <int B, int T>
  [[gnu::noinline]] static void run(const std::uint8_t* w, std::int64_t w_row, std::int64_t units, const std::int8_t* q,
                  std::int64_t q_row, std::int32_t* sums) {
    constexpr int H = B * T * F::views * L::kHalves <= L::kSums ? L::kHalves : 1;
    for (int half = 0; half < L::kHalves; half += H) {
      direct_sums<L, F, B, T, H>(w, w_row, units, q, q_row, half, sums, stride);
    }
  }

  template <int B>
  static void run(const std::uint8_t* w, std::int64_t w_row, std::int64_t units, const std::int8_t* q,
                  std::int64_t q_row, int count, std::int32_t* sums) {
    switch (count) {
      case 1: return run<B, 1>(w, w_row, units, q, q_row, sums);
      case 2: if constexpr (tokens >= 2) return run<B, 2>(w, w_row, units, q, q_row, sums); break;
      case 3: if constexpr (tokens >= 3) return run<B, 3>(w, w_row, units, q, q_row, sums); break;
      case 4: if constexpr (tokens >= 4) return run<B, 4>(w, w_row, units, q, q_row, sums); break;
      case 5: if constexpr (tokens >= 5) return run<B, 5>(w, w_row, units, q, q_row, sums); break;
      default: if constexpr (tokens >= 6) return run<B, 6>(w, w_row, units, q, q_row, sums); break;
    }
  }

  static void sums(const std::uint8_t* w, std::int64_t w_row, int count, std::int64_t units, const std::int8_t* q,
                   std::int64_t q_row, int tokens_now, std::int32_t* to) {
    if (count == blocks && tokens_now > 1) return run<blocks>(w, w_row, units, q, q_row, tokens_now, to);
    // One block after the other: a single token is bound by memory, which likes one stream.
    for (int b = 0; b < count; ++b) run<1>(w + b * w_row, w_row, units, q, q_row, tokens_now, to + b * coding.rows);
  }
};

// N vectors of codes and T tokens; a line of codes is N * 64 bytes.
template <class L, int N, int T>
TRITIUM_INLINE void code_sums(const std::uint8_t* codes, std::int64_t units, const std::int8_t* q, std::int64_t q_row,
                              std::int32_t* sums) {
  using V = typename L::V;
  typename L::Sum sum[T][N];
  TRITIUM_UNROLL
  for (int t = 0; t < T; ++t) {
    TRITIUM_UNROLL
    for (int i = 0; i < N; ++i) sum[t][i] = typename L::Sum{};
  }
  for (std::int64_t line = 0; line < units * kLines; ++line, codes += N * kLine, q += 4) {
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
  TRITIUM_UNROLL
  for (int t = 0; t < T; ++t) {
    TRITIUM_UNROLL
    for (int i = 0; i < N; ++i) L::store(sums + (t * N + i) * 16, sum[t][i]);
  }
}

template <class L, class F>
struct Unpacked : Direct<L, F> {
  using Base = Direct<L, F>;
  static constexpr int vectors = Base::blocks * F::fields;  // of 16 rows
  static constexpr int tokens = (L::kSums + 1) / vectors;
  static constexpr std::int64_t unpacked = vectors * kLine * kLines;
  static constexpr std::int64_t chunk = 6;  // 24 KB of codes: they are multiplied from L1

  static void unpack(const std::uint8_t* w, std::int64_t w_row, int blocks, std::int64_t units, std::uint8_t* to) {
    constexpr int kWidth = static_cast<int>(kLine) / L::kHalves;
    for (int b = 0; b < blocks; ++b) {
      for (std::int64_t line = 0; line < units * kLines; ++line) {
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
  [[gnu::noinline]] static void run(const std::uint8_t* codes, std::int64_t units, const std::int8_t* q, std::int64_t q_row,
                  std::int32_t* sums) {
    for (int half = 0; half < L::kHalves; ++half) {
      code_sums<L, vectors, T>(codes + half * (kLine / L::kHalves), units, q, q_row, sums + half * 8);
    }
  }

  // Blocks that are not there give sums that nobody reads.
  static void unpacked_sums(const std::uint8_t* codes, int, std::int64_t units, const std::int8_t* q,
                            std::int64_t q_row, int tokens_now, std::int32_t* sums) {
    switch (tokens_now) {
      case 1: return run<1>(codes, units, q, q_row, sums);
      case 2: if constexpr (tokens >= 2) return run<2>(codes, units, q, q_row, sums); break;
      case 3: if constexpr (tokens >= 3) return run<3>(codes, units, q, q_row, sums); break;
      case 4: if constexpr (tokens >= 4) return run<4>(codes, units, q, q_row, sums); break;
      case 5: if constexpr (tokens >= 5) return run<5>(codes, units, q, q_row, sums); break;
      default: if constexpr (tokens >= 6) return run<6>(codes, units, q, q_row, sums); break;
    }
  }
};

template <class L, class F>
Plan vnni_plan(std::int64_t m, bool grouped) {
  constexpr std::int64_t kMany = F::views > F::fields ? 12 : 32;  // tokens from which on unpacking pays
  return {{}, m < kMany || grouped ? stream<Direct<L, F>> : blocked<Unpacked<L, F>>};
}

template <class L>
Plan vnni_plan(DType format, std::int64_t m, bool grouped) {
  switch (format) {
    case DType::tern2_r64: return vnni_plan<L, Tern2R64>(m, grouped);
    case DType::tern5_r80: return vnni_plan<L, Tern5R80>(m, grouped);
    case DType::i4_r32: return vnni_plan<L, I4R32>(m, grouped);
    default: return vnni_plan<L, I8R16>(m, grouped);
  }
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
