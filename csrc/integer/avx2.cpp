// Products with tiled weights on AVX2: bytes are multiplied and added in pairs to 16 bits (vpmaddubsw), a few lines are
// added there, then all is widened to 32 bits. No 16-bit sum can wrap or saturate: unsigned bytes up to c times int8
// give pairs of at least -256 c and at most 254 c, and lines are added while 256 c * lines <= 32768.
//   tern2_r64  direct: b & 3, b & 12, and both of b >> 4: c = 8, 16 lines; unpacked to codes: c = 2, 64 lines
//   tern5_r80  codes: c = 2, 64 lines          i4_r32  codes: c = 15, 8 lines
//   i8_r16     the two nibbles of w + 128, low + 16 high: c = 15, 8 lines
// Knows nothing of threads. Groups must be multiples of 16 k.
#include "entries.h"
#include "grouped.h"
#include "views.h"

namespace tritium::TRITIUM_ISA {
namespace {

using V = Ymm::V;
using Sum = Ymm::Sum;
using Pairs = std::int16_t __attribute__((vector_size(32)));

// A format as `parts` vectors of small bytes for each half line; `finish` makes the sums over parts sums over fields.
struct Tern2Masked : Tern2R64 {
  static constexpr int parts = 4, lines = 16;
  TRITIUM_INLINE static void take(V b, V* part) {
    const V high = Ymm::right16<4>(b);
    part[0] = Ymm::masked(b, 3);
    part[1] = Ymm::masked(b, 12);
    part[2] = Ymm::masked(high, 3);
    part[3] = Ymm::masked(high, 12);
  }
  TRITIUM_INLINE static void finish(Sum* t) {
    t[1] >>= 2;
    t[3] >>= 2;
  }
};

template <class F, int Largest>
struct Codes : F {
  static constexpr int parts = F::fields, lines = 128 / Largest / 8 * 8;
  TRITIUM_INLINE static void take(V b, V* part) { F::template codes<Ymm>(b, part); }
  TRITIUM_INLINE static void finish(Sum*) {}
};

struct I8Nibbles : I8R16 {
  static constexpr int parts = 2, lines = 8;
  TRITIUM_INLINE static void take(V b, V* part) {
    part[0] = Ymm::masked(b, 15);
    part[1] = Ymm::masked(Ymm::right16<4>(b), 15);
  }
  TRITIUM_INLINE static void finish(Sum* t) { t[0] += 16 * t[1]; }
};

static_assert(Codes<Tern2R64, 2>::lines == 64 && Codes<I4R32, 15>::lines == 8);

TRITIUM_INLINE Pairs multiply(V w, V q) { return reinterpret_cast<Pairs>(_mm256_maddubs_epi16(w, q)); }
TRITIUM_INLINE Sum widen(Pairs pairs) {
  return reinterpret_cast<Sum>(_mm256_madd_epi16(reinterpret_cast<V>(pairs), _mm256_set1_epi16(1)));
}

// N vectors x T tokens over some lines. load(w, vectors) gives the vectors of the line at w.
template <int N, int T, int Lines, class Load>
TRITIUM_INLINE void pair_sums(const std::uint8_t* w, std::int64_t step, std::int64_t left, const std::int8_t* q,
                              std::int64_t q_row, Sum (&sum)[T][N], const Load& load) {
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < N; ++i) sum[t][i] = Sum{};
  }
  for (; left > 0; left -= Lines) {
    Pairs pairs[T][N];
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      TRITIUM_UNROLL
      for (int i = 0; i < N; ++i) pairs[t][i] = Pairs{};
    }
    TRITIUM_ROLLED  // eight lines at once would need more registers than there are
    for (std::int64_t line = left < Lines ? left : Lines; line > 0; --line, w += step, q += 4) {
      V part[N], y[T];
      TRITIUM_UNROLL
      for (int t = 0; t < T; ++t) y[t] = Ymm::same(q + t * q_row);
      load(w, part);
      TRITIUM_UNROLL
      for (int i = 0; i < N; ++i) {
        TRITIUM_UNROLL
        for (int t = 0; t < T; ++t) pairs[t][i] += multiply(part[i], y[t]);
      }
    }
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      TRITIUM_UNROLL
      for (int i = 0; i < N; ++i) sum[t][i] += widen(pairs[t][i]);
    }
  }
}

template <class P>
struct Direct {
  using L = Ymm;
  static constexpr std::int64_t kShortest = 0;
  static constexpr Coding coding = P::coding;
  static constexpr Layout layout = {};
  static constexpr int blocks = 1, tokens = P::parts < 4 ? 4 : 2;
  static void enter(std::int64_t) {}
  static void leave() {}

  // Both halves of a line at once for one token where registers suffice, else one after the other.
  template <int T>
  static constexpr int kHalf = T == 1 && P::parts <= 4 ? 2 : 1;

  // put(token, row, sum) with the sums of T tokens over some lines, from half `half` on.
  template <int T, class Put>
  TRITIUM_INLINE static void half_sums(const std::uint8_t* w, std::int64_t lines, const std::int8_t* q, std::int64_t q_row,
                                       int half, const Put& put) {
    constexpr int H = kHalf<T>, N = H * P::parts;
    Sum sum[T][N];
    pair_sums<N, T, P::lines>(w + half * 32, kLine, lines, q, q_row, sum, [](const std::uint8_t* line, V* part) {
      _mm_prefetch(reinterpret_cast<const char*>(line + kAhead), _MM_HINT_T1);
      TRITIUM_UNROLL
      for (int h = 0; h < H; ++h) P::take(Ymm::load(line + 32 * h), part + h * P::parts);
    });
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      TRITIUM_UNROLL
      for (int h = 0; h < H; ++h) {
        P::finish(sum[t] + h * P::parts);
        TRITIUM_UNROLL
        for (int f = 0; f < P::fields; ++f) put(t, (half + h) * 8 + 16 * f, sum[t][h * P::parts + f]);
      }
    }
  }

  template <int T>
  [[gnu::noinline]] static void run(const std::uint8_t* w, std::int64_t units, const std::int8_t* q, std::int64_t q_row,
                  std::int32_t* to) {
    for (int half = 0; half < 2; half += kHalf<T>) {
      half_sums<T>(w, units * kLines, q, q_row, half,
                   [&](int t, int row, Sum sum) { Ymm::store(to + t * coding.rows + row, sum); });
    }
  }

  template <int T>
  [[gnu::noinline]] static void run_groups(const GroupRun& r) {
    for (int half = 0; half < 2; half += kHalf<T>) {
      for (std::int64_t j = 0; j < r.count; ++j) {
        const std::int64_t line = j * r.lines;
        half_sums<T>(r.w + line * kLine, r.lines_of(j), r.q + line * 4, r.panel_bytes, half, [&](int t, int row, Sum sum) {
          add_term<Ymm, coding.rows>(r, term_of(r, coding, t, j), t, j, row, sum);
        });
      }
    }
  }

  static void groups(const GroupRun& r) {
    switch (r.tokens) {
      case 1: return run_groups<1>(r);
      case 2: return run_groups<2>(r);
      case 3: if constexpr (tokens >= 3) return run_groups<3>(r); break;
      default: if constexpr (tokens >= 4) return run_groups<4>(r); break;
    }
  }

  static void sums(const std::uint8_t* w, std::int64_t, int, std::int64_t units, const std::int8_t* q,
                   std::int64_t q_row, int tokens_now, std::int32_t* to) {
    switch (tokens_now) {
      case 1: return run<1>(w, units, q, q_row, to);
      case 2: return run<2>(w, units, q, q_row, to);
      case 3: if constexpr (tokens >= 3) return run<3>(w, units, q, q_row, to); break;
      default: if constexpr (tokens >= 4) return run<4>(w, units, q, q_row, to); break;
    }
  }
};

// The parts of a strip, unpacked; a line of it is `vectors` x 64 bytes.
template <class P>
struct Unpacked : Direct<P> {
  static constexpr int blocks = 4 / P::parts > 0 ? 4 / P::parts : 1, tokens = 2;
  static constexpr int vectors = blocks * P::parts;
  static constexpr std::int64_t unpacked = vectors * kLine * kLines;
  static constexpr std::int64_t chunk = 8;  // 32 KB: what is multiplied comes from L1

  static void unpack(const std::uint8_t* w, std::int64_t w_row, int count, std::int64_t lines, std::uint8_t* to) {
    // Blocks that are not there are zeros: no sum may wrap, even if nobody reads it.
    if (count < blocks) std::memset(to, 0, static_cast<std::size_t>(lines * vectors * kLine));
    for (int b = 0; b < count; ++b) {
      for (std::int64_t line = 0; line < lines; ++line) {
        const std::uint8_t* const from = w + b * w_row + line * kLine;
        std::uint8_t* const mine = to + (line * vectors + b * P::parts) * kLine;
        _mm_prefetch(reinterpret_cast<const char*>(from + kAhead), _MM_HINT_T1);
        for (int h = 0; h < 2; ++h) {
          V part[P::parts];
          P::take(Ymm::load(from + 32 * h), part);
          for (int i = 0; i < P::parts; ++i) Ymm::store(mine + i * kLine + 32 * h, part[i]);
        }
      }
    }
  }

  static constexpr int rows = blocks * P::coding.rows;

  // put(token, row, sum) with the sums of T tokens over some lines of half `half`.
  template <int T, class Put>
  TRITIUM_INLINE static void half_sums(const std::uint8_t* parts, std::int64_t lines, const std::int8_t* q,
                                       std::int64_t q_row, int half, const Put& put) {
    Sum sum[T][vectors];
    pair_sums<vectors, T, P::lines>(parts + half * 32, vectors * kLine, lines, q, q_row, sum,
                                    [](const std::uint8_t* line, V* part) {
                                      TRITIUM_UNROLL
                                      for (int i = 0; i < vectors; ++i) part[i] = Ymm::load(line + i * kLine);
                                    });
    TRITIUM_UNROLL
    for (int t = 0; t < T; ++t) {
      TRITIUM_UNROLL
      for (int b = 0; b < blocks; ++b) {
        P::finish(sum[t] + b * P::parts);
        TRITIUM_UNROLL
        for (int f = 0; f < P::fields; ++f) put(t, b * P::coding.rows + half * 8 + 16 * f, sum[t][b * P::parts + f]);
      }
    }
  }

  template <int T>
  [[gnu::noinline]] static void run(const std::uint8_t* parts, std::int64_t units, const std::int8_t* q, std::int64_t q_row,
                  std::int32_t* to) {
    for (int half = 0; half < 2; ++half) {
      half_sums<T>(parts, units * kLines, q, q_row, half,
                   [&](int t, int row, Sum sum) { Ymm::store(to + t * rows + row, sum); });
    }
  }

  template <int T>
  [[gnu::noinline]] static void run_groups(const GroupRun& r) {
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* parts = r.w;
      for (std::int64_t j = 0; j < r.count; ++j, parts += r.lines * vectors * kLine) {
        half_sums<T>(parts, r.lines_of(j), r.q + j * r.lines * 4, r.panel_bytes, half, [&](int t, int row, Sum sum) {
          add_term<Ymm, rows>(r, term_of(r, P::coding, t, j), t, j, row, sum);
        });
      }
    }
  }

  static void unpacked_groups(const GroupRun& r) { r.tokens == 1 ? run_groups<1>(r) : run_groups<2>(r); }

  static void unpacked_sums(const std::uint8_t* parts, int, std::int64_t units, const std::int8_t* q,
                            std::int64_t q_row, int tokens_now, std::int32_t* sums) {
    tokens_now == 1 ? run<1>(parts, units, q, q_row, sums) : run<2>(parts, units, q, q_row, sums);
  }
};

template <class Few, class Many>
Plan plan_of(const Product& p, std::int64_t m) {
  constexpr std::int64_t kMany = 16;  // tokens from which on unpacking pays
  if (!p.grouped) return {{}, m < kMany ? stream<Direct<Few>> : blocked<Unpacked<Many>>};
  const bool unpacks = m >= kMany && p.group <= kLongestUnpacked;
  return {{}, unpacks ? blocked_groups<Unpacked<Many>> : stream_groups<Direct<Few>>};
}

Plan plan(const Product& p, std::int64_t m) {
  switch (p.format) {
    case DType::tern2_r64: return plan_of<Tern2Masked, Codes<Tern2R64, 2>>(p, m);
    case DType::tern5_r80: return plan_of<Codes<Tern5R80, 2>, Codes<Tern5R80, 2>>(p, m);
    case DType::i4_r32: return plan_of<Codes<I4R32, 15>, Codes<I4R32, 15>>(p, m);
    default: return plan_of<I8Nibbles, I8Nibbles>(p, m);
  }
}

}  // namespace

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
