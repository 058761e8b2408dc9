// attention: softmax(q k^T) v over caches of keys and values, one pass, all in f64, rounded to f32 at the end: so every
// device and instruction set gives the same bits, in whatever order it adds.
// A query's keys are looked at in parts of kPart and blocks of kBlock, in
// order, whoever its neighbours are: it gives the same bits in any batch, in any chunk of a prompt, on any number of
// threads. Compiled without contraction: what is rounded once says so.
#include <cstdint>
#include <type_traits>

#include "../threads.h"
#include "../units.h"
#include "../workspace.h"
#include "attention_neon.h"
#include "gather.h"
#include "hot_neon.h"
#include "kv_blocks.h"
#include "loops.h"
#include "math.h"
#include "places.h"
#include "wide.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 16;  // vectors of sums that stay in registers
#else
constexpr int kSums = 8;
#endif
constexpr int kMostRows = 4;              // queries that meet the same keys together
constexpr int64_t kBlock = 64;            // keys between two looks at the largest score
constexpr int64_t kPart = 64;             // keys that are summed by themselves, so that threads may share a query
constexpr int64_t kPlenty = 8;            // tasks for each thread that need no such sharing
constexpr int64_t kTaskRows = 64;         // queries of a kv head that one thread takes through its keys …
constexpr int64_t kFewTaskRows = 32;      // … where there are not plenty of such tasks: later tokens have more keys
#if defined(__aarch64__)
constexpr int64_t kDirectRows = 4;        // with more of them, keys and values are widened first …
#else
constexpr int64_t kDirectRows = 8;
#endif
constexpr int64_t kNearKeys = 16;         // … and so many keys stay in L1 while all queries pass by
constexpr int64_t kGrain = 1 << 17;       // products that make it worth waking another thread …
constexpr int64_t kPartGrain = 1 << 16;   // … for a part of the keys: one token waits for all of them

constexpr int64_t kLine = 64;             // elements that change their type together

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// to[i] = the element of `type` at from + i * stride bytes, for i < n; zeros up to `end`.
void deepen(DType type, const char* from, int64_t stride, double* to, int64_t n, int64_t end) {
  const Gather gather = gather_of<float>(type);
  float line[kLine];
  for (int64_t i = 0; i < n; i += kLine) {
    const int64_t m = least(kLine, n - i);
    gather(from + i * stride, stride, line, m);
    for (int64_t j = 0; j < m; ++j) to[i + j] = static_cast<double>(line[j]);
  }
  for (int64_t i = n; i < end; ++i) to[i] = 0;
}

// The same for a row of whole vectors, side by side; to(vector) is where one belongs.
template <DType T, class To>
TRITIUM_INLINE void deepen_row(const char* from, int64_t size, const To& to) {
  const auto* const row = reinterpret_cast<const StoredAs<T>*>(from);
  int64_t d = 0;
  for (; d + 2 * kDeep <= size; d += 2 * kDeep) {
    Deep both[2];
    load_deep_pair<T>(row + d, both);
    store(to(d), both[0]);
    store(to(d + kDeep), both[1]);
  }
  if (d < size) store(to(d), load_deep<T>(row + d));
}

// Where the values of a block are, widened: in stripes of kStripe elements that are [key][kStripe], and what remains of
// `size` in stripes of one vector. A stripe stays in L1 while all queries pass by.
constexpr int kStripeVectors = kSums / kMostRows;
constexpr int64_t kStripe = kStripeVectors * kDeep;
struct Stripes {
  double* data;
  int64_t whole;  // elements in stripes of kStripe

  Stripes(double* memory, int64_t size) : data(memory), whole(size / kStripe * kStripe) {}
  // The stripe that begins with element d.
  double* stripe(int64_t d) const { return data + d * kBlock; }
  TRITIUM_INLINE double* at(int64_t j, int64_t d) const {
    return d < whole ? stripe(d / kStripe * kStripe) + j * kStripe + d % kStripe : stripe(d) + j * kDeep;
  }
};

template <DType T>
void deepen_rows(const char* from, int64_t step, int64_t size, int64_t n, double* to) {
  for (int64_t j = 0; j < n; ++j, from += step, to += size) deepen_row<T>(from, size, [to](int64_t d) { return to + d; });
}

template <DType T>
void deepen_rows(const char* from, int64_t step, int64_t size, int64_t n, const Stripes& to) {
  for (int64_t j = 0; j < n; ++j, from += step) deepen_row<T>(from, size, [&to, j](int64_t d) { return to.at(j, d); });
}

template <class To>
void deepen_rows(DType type, const char* from, int64_t step, int64_t size, int64_t n, const To& to) {
  switch (type) {
    case DType::f16: return deepen_rows<DType::f16>(from, step, size, n, to);
    case DType::bf16: return deepen_rows<DType::bf16>(from, step, size, n, to);
    default: return deepen_rows<DType::f32>(from, step, size, n, to);
  }
}

// scores[r * kBlock + j] = q[r] . k[j] for R queries and n keys, whole vectors of `size` elements.
template <DType T, int R>
void score(const double* q, const char* keys, int64_t step, int64_t size, int64_t n, double* scores) {
  constexpr int J = kSums / R;
  for (int64_t j = 0; j < n; j += J) {
    const StoredAs<T>* k[J];
#pragma GCC unroll 16
    for (int i = 0; i < J; ++i) k[i] = reinterpret_cast<const StoredAs<T>*>(keys + least(j + i, n - 1) * step);
#if defined(__aarch64__)
    if constexpr (T == DType::f64 && R == 4 && J == 4) {
      if (size % 4 == 0) {
        score_four(q, k, size, scores + j);
        continue;
      }
    }
#endif
    Deep acc[kSums] = {};
    int64_t d = 0;
    for (; kPairs<T> && d + 2 * kDeep <= size; d += 2 * kDeep) {
      Deep left[R][2];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        left[r][0] = load(q + r * size + d);
        left[r][1] = load(q + r * size + d + kDeep);
      }
#pragma GCC unroll 16
      for (int i = 0; i < J; ++i) {
        Deep right[2];
        load_deep_pair<T>(k[i] + d, right);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          acc[r * J + i] = fused(left[r][1], right[1], fused(left[r][0], right[0], acc[r * J + i]));
        }
      }
    }
    for (; d < size; d += kDeep) {
      Deep left[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) left[r] = load(q + r * size + d);
#pragma GCC unroll 16
      for (int i = 0; i < J; ++i) {
        const Deep right = load_deep<T>(k[i] + d);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) acc[r * J + i] = fused(left[r], right, acc[r * J + i]);
      }
    }
    if constexpr (J % kDeep == 0) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) add_lanes_of<J>(acc + r * J, scores + r * kBlock + j);
    } else {
      double sums[kSums];
      add_lanes_of<kSums>(acc, sums);
      for (int r = 0; r < R; ++r) __builtin_memcpy(scores + r * kBlock + j, sums + r * J, J * sizeof(double));
    }
  }
}

// o[r][0 .. W vectors) = o * fade[r] + the sum over j < n of p[r * kBlock + j] * v[j].
template <DType T, int R, int W>
TRITIUM_INLINE void mix_part(const double* p, const double* fade, const char* values, int64_t step, int64_t n, double* o,
                             int64_t size) {
  Deep acc[R][W];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) acc[r][w] = load(o + r * size + w * kDeep) * fade[r];
  }
  for (int64_t j = 0; j < n; ++j) {
    const auto* const v = reinterpret_cast<const StoredAs<T>*>(values + j * step);
    Deep right[W];
    if constexpr (kPairs<T> && W % 2 == 0) {
#pragma GCC unroll 4
      for (int w = 0; w < W; w += 2) load_deep_pair<T>(v + w * kDeep, right + w);
    } else {
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w) right[w] = load_deep<T>(v + w * kDeep);
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const Deep weight = splat(p[r * kBlock + j]);
#pragma GCC unroll 8
      for (int w = 0; w < W; ++w) acc[r][w] = fused(weight, right[w], acc[r][w]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int w = 0; w < W; ++w) store(o + r * size + w * kDeep, acc[r][w]);
  }
}

// The same for a stripe of widened values, [key][W vectors].
template <int R, int W>
void mix_wide(const double* p, const double* fade, const double* values, int64_t n, double* o, int64_t size) {
  constexpr int64_t kStep = W * kDeep * static_cast<int64_t>(sizeof(double));
#if defined(__aarch64__)
  if constexpr (R == 4 && W == 4) {
    static_assert(kBlock == kMixKeys);
    if (n >= 2) mix_pairs(p, fade, values, n / 2, o, size);
    if (n >= 2 && n % 2 == 0) return;
    const double once[R] = {1, 1, 1, 1};
    const int64_t done = n / 2 * 2;
    const char* const rest = reinterpret_cast<const char*>(values + done * W * kDeep);
    return mix_part<DType::f64, R, W>(p + done, n >= 2 ? once : fade, rest, kStep, n - done, o, size);
  }
#endif
  mix_part<DType::f64, R, W>(p, fade, reinterpret_cast<const char*>(values), kStep, n, o, size);
}

template <DType T, int R>
void mix(const double* p, const double* fade, const char* values, int64_t step, int64_t n, double* o, int64_t size) {
  constexpr int W = kSums / R > 8 ? 8 : kSums / R, H = W > 1 ? W / 2 : 1;
  constexpr int64_t item = sizeof(StoredAs<T>);
  int64_t d = 0;
  for (; d + W * kDeep <= size; d += W * kDeep) mix_part<T, R, W>(p, fade, values + d * item, step, n, o + d, size);
  if (d + H * kDeep <= size) {
    mix_part<T, R, H>(p, fade, values + d * item, step, n, o + d, size);
    d += H * kDeep;
  }
  for (; d < size; d += kDeep) mix_part<T, R, 1>(p, fade, values + d * item, step, n, o + d, size);
}

// Keys of a block that a query sees, counted from its first.
struct Seen {
  int64_t begin, end;
};

template <int N>
using Count = std::integral_constant<int, N>;

// The scores of a query in a block become weights against the largest score so far. What was summed up before fades by
// the factor that is returned. The weights of what is behind the last key that it sees would add zeros.
double weigh(double* s, const Seen& seen, double& top, double& total) {
#if defined(__aarch64__)
  constexpr int64_t n = kBlock;
#else
  const int64_t n = whole(seen.end, kDeep);
#endif
  for (int64_t j = 0; j < seen.begin; ++j) s[j] = -math::kInf64;
  for (int64_t j = seen.end; j < n; ++j) s[j] = -math::kInf64;
  const double before = top;
  bool doubt;  // a NaN passed over comes back with the exponentials
  const double here = extreme_of<true, false>(s, n, doubt), largest = here > before ? here : before;
  top = largest;
  const double base = largest == -math::kInf64 ? 0.0 : largest;
#if defined(__aarch64__)
  const Deep sum = hot::exp_flushed(s, base, n);
#else
  TRITIUM_LOOP
  for (int64_t j = 0; j < n; ++j) s[j] = math::exp_flushed(s[j] - base);
  Deep sum = load(s);
  for (int64_t j = kDeep; j < n; j += kDeep) sum += load(s + j);
#endif
  const double fade = math::exp_flushed(before - base);
  total = math::fma(total, fade, fold_lanes<double, kDeep>(sum, [](const auto& a, const auto& b) { return a + b; }));
  return fade;
}

// Keys and values of one kv head of one slot.
struct Head {
  const char *k, *v;
  int64_t k_step, v_step;
};

// What was found for some queries: sums of values and of weights, both against the largest score.
struct Found {
  double *o, *top, *total;

  void clear(int64_t count, int64_t size) const {
    for (int64_t i = 0; i < count * size; ++i) o[i] = 0;
    for (int64_t i = 0; i < count; ++i) {
      top[i] = -math::kInf64;
      total[i] = 0;
    }
  }
  // What other keys gave; the weights of a NaN are no 0.
  void add(const Found& more, int64_t count, int64_t size) const {
    for (int64_t i = 0; i < count; ++i) {
      if (more.total[i] == 0) continue;
      const double largest = more.top[i] > top[i] ? more.top[i] : top[i];
      const double mine = math::exp_flushed(top[i] - largest), theirs = math::exp_flushed(more.top[i] - largest);
      double* const to = o + i * size;
      const double* const from = more.o + i * size;
      for (int64_t d = 0; d < size; d += kDeep) store(to + d, fused(load(to + d), splat(mine), load(from + d) * theirs));
      total[i] = math::fma(total[i], mine, more.total[i] * theirs);
      top[i] = largest;
    }
  }
};

// Queries of one kv head, token by token.
struct Rows : Found {
  int64_t count, size;  // a whole number of vectors
  double *q, *s;         // s: [query][kBlock], scores and then weights of a block …
  double* fade;          // … by which what was summed up before is multiplied …
  Seen* sees;            // … and which keys of it a query sees
  int64_t *from, *seen;  // a query sees the keys from the one up to the other; neither falls from one query to the next

  Seen sight(int64_t row, int64_t first, int64_t n) const {
    const int64_t end = least(n, seen[row] - first), begin = least(end, from[row] - first);
    return {begin > 0 ? begin : 0, end};
  }
};

// Adds the values of a block to those of R queries from `row` on, whose weights are in a.s + r * kBlock. What a query does
// not see may be anything: it is not even multiplied by 0. Each query adds its keys in order: those before what all of them
// see, then those that all see, then the others. mix(rows, r, fade, from, to) does so for keys [from, to) and `rows`
// queries, the first of which is query r of them.
template <int R, class Mix>
TRITIUM_INLINE void mix_seen(const Seen* sees, const double* fades, const Mix& mix) {
  double fade[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) fade[r] = fades[r];
  const int64_t end = sees[0].end, begin = least(sees[R - 1].begin, end);
  for (int r = 0; r < R; ++r) {
    if (sees[r].begin >= begin) continue;
    mix(Count<1>(), r, &fade[r], sees[r].begin, begin);
    fade[r] = 1;
  }
  mix(Count<R>(), 0, fade, begin, end);
  for (int r = 1; r < R; ++r) {
    const double whole = 1;
    const int64_t from = sees[r].begin > end ? sees[r].begin : end;
    if (sees[r].end > from) mix(Count<1>(), r, &whole, from, sees[r].end);
  }
}

// Calls f(rows, row) for queries [row, end): as many at once as may be.
template <class F>
TRITIUM_INLINE void by_rows(int64_t row, int64_t end, const F& f) {
  for (; row + kMostRows <= end; row += kMostRows) f(Count<kMostRows>(), row);
  if (row + 2 <= end) {
    f(Count<2>(), row);
    row += 2;
  }
  if (row < end) f(Count<1>(), row);
}

// The queries that see any of n keys, the first of which is key `first`.
Seen rows_that_see(const Rows& a, int64_t first, int64_t n) {
  int64_t row = 0, end = a.count;
  while (row < end && a.seen[row] <= first) ++row;
  while (end > row && a.from[end - 1] >= first + n) --end;
  return {row, end};
}

void weigh_rows(const Rows& a, int64_t row, int64_t end, int64_t first, int64_t n) {
  for (; row < end; ++row) {
    a.sees[row] = a.sight(row, first, n);
    a.fade[row] = weigh(a.s + row * kBlock, a.sees[row], a.top[row], a.total[row]);
  }
}

// One block of n keys, the first of which is key `first`, for all queries that see any of it.
template <DType T>
void step_block(const Rows& a, const Head& h, int64_t first, int64_t n) {
  const Seen rows = rows_that_see(a, first, n);
  by_rows(rows.begin, rows.end, [&](auto count, int64_t row) {
    constexpr int R = decltype(count)::value;
    double* const s = a.s + row * kBlock;
    score<T, R>(a.q + row * a.size, h.k, h.k_step, a.size, least(n, a.seen[row + R - 1] - first), s);
    weigh_rows(a, row, row + R, first, n);
    mix_seen<R>(a.sees + row, a.fade + row, [&](auto some, int r, const double* fade, int64_t from, int64_t to) {
      mix<T, decltype(some)::value>(s + r * kBlock + from, fade, h.v + from * h.v_step, h.v_step, to - from,
                                    a.o + (row + r) * a.size, a.size);
    });
  });
}

// One stripe of values, W vectors from element d on.
template <int W>
void mix_stripe(const Rows& a, const Seen& rows, const double* stripe, int64_t d) {
  by_rows(rows.begin, rows.end, [&](auto count, int64_t row) {
    mix_seen<decltype(count)::value>(
        a.sees + row, a.fade + row, [&](auto some, int r, const double* fade, int64_t from, int64_t to) {
          mix_wide<decltype(some)::value, W>(a.s + (row + r) * kBlock + from, fade, stripe + from * W * kDeep, to - from,
                                             a.o + (row + r) * a.size + d, a.size);
        });
  });
}

// The same as step_block for widened keys [key][size] and values. The bits too: a query's sums have the same order.
void step_wide(const Rows& a, const double* keys, const Stripes& values, int64_t first, int64_t n) {
  const Seen rows = rows_that_see(a, first, n);
  const int64_t bytes = a.size * static_cast<int64_t>(sizeof(double));
  for (int64_t j = 0; j < n; j += kNearKeys) {
    by_rows(rows.begin, rows.end, [&](auto count, int64_t row) {
      constexpr int R = decltype(count)::value;
      const int64_t end = least(least(n, a.seen[row + R - 1] - first), j + kNearKeys);
      if (end <= j) return;
      const char* const near = reinterpret_cast<const char*>(keys + j * a.size);
      score<DType::f64, R>(a.q + row * a.size, near, bytes, a.size, end - j, a.s + row * kBlock + j);
    });
  }
  weigh_rows(a, rows.begin, rows.end, first, n);
  int64_t d = 0;
  for (; d < values.whole; d += kStripe) mix_stripe<kStripeVectors>(a, rows, values.stripe(d), d);
  for (; d < a.size; d += kDeep) mix_stripe<1>(a, rows, values.stripe(d), d);
}

// Some tokens of one sequence, with the heads of one kv head.
struct Task {
  int64_t b, g, begin, end, count;
};

// Memory of one task, in doubles.
struct Scratch {
  Rows rows;
  Found all;
  double* wide;  // keys, values and a row of a block

  static int64_t size(int64_t rows, int64_t padded) {
    return 3 * rows * padded + rows * kBlock + 9 * whole(rows, 16) + (2 * kBlock + 1) * padded;
  }
  Scratch(double* memory, int64_t count, int64_t padded) {
    const auto next = [&memory](int64_t n) {
      double* const here = memory;
      memory += n;
      return here;
    };
    const int64_t few = whole(count, 16), much = count * padded;
    rows.from = reinterpret_cast<int64_t*>(next(few));
    rows.seen = reinterpret_cast<int64_t*>(next(few));
    rows.q = next(much);
    rows.o = next(much);
    rows.top = next(few);
    rows.total = next(few);
    rows.fade = next(few);
    rows.sees = reinterpret_cast<Seen*>(next(2 * few));
    rows.s = next(count * kBlock);
    all = {next(much), next(few), next(few)};
    wide = next((2 * kBlock + 1) * padded);
  }
};

struct Attention {
  const View &q, &k, &v, &y;
  int64_t batch, tokens, heads, size, shared, per;  // per: heads that share a kv head
  int64_t padded, task_tokens, task_rows, blocks;
  double scale;
  int64_t window;
  const Place* places;

  Attention(const Call& call, const Place* found)
      : q(call.in[0]), k(call.in[1]), v(call.in[2]), y(*call.out), batch(q.shape[0]), tokens(q.shape[1]),
        heads(q.shape[2]), size(q.shape[3]), shared(k.shape[1]), per(heads / shared), padded(whole(size, kDeep)),
        task_tokens(tokens_of_task()), task_rows(task_tokens * per), blocks((tokens + task_tokens - 1) / task_tokens),
        scale(call.attrs->absent & 1 ? 1 / __builtin_sqrt(static_cast<double>(size)) : call.attrs->real[0]),
        window(call.attrs->absent & 2 ? k.shape[2] + 1 : call.attrs->whole[1]), places(found) {}

  int64_t tokens_of_task() const {
    const int64_t most = per < kTaskRows ? kTaskRows / per : 1, few = per < kFewTaskRows ? kFewTaskRows / per : 1;
    if (tokens <= most) return tokens;
    return batch * shared * ((tokens + most - 1) / most) < kPlenty * num_threads() ? few : most;
  }
  int64_t tasks() const { return batch * shared * blocks; }
  int64_t scratch() const { return Scratch::size(task_rows, padded) * static_cast<int64_t>(sizeof(double)); }
  Task task(int64_t i) const;
  void clear(const Task& t) const;
  void load(const Task& t, Rows& rows) const;
  void widen(const Head& h, int64_t n, double* keys, const Stripes& values, double* row) const;
  void pass(const Task& t, const Rows& rows, double* wide, int64_t first, int64_t last) const;
  void put(const Task& t, const Found& found) const;
  void run(int64_t i, double* space) const;
};

Task Attention::task(int64_t i) const {
  const int64_t b = i / (shared * blocks), begin = i % blocks * task_tokens;
  const int64_t end = least(begin + task_tokens, tokens), live = least(end, places[b].count);
  return {b, i / blocks % shared, begin, end, live > begin ? (live - begin) * per : 0};
}

// Tokens that are there to fill the batch only.
void Attention::clear(const Task& t) const {
  const float zero = 0;
  for (int64_t i = t.count; i < (t.end - t.begin) * per; ++i) {
    const int64_t token = t.begin + i / per, h = t.g * per + i % per;
    char* const to = y.data + t.b * y.strides[0] + token * y.strides[1] + h * y.strides[2];
    for (int64_t d = 0; d < size; ++d) scatter(y.dtype, &zero, to + d * y.strides[3], 0, 1);
  }
}

void Attention::load(const Task& t, Rows& rows) const {
  rows.count = t.count;
  rows.size = padded;
  for (int64_t i = 0; i < t.count; ++i) {
    const int64_t token = t.begin + i / per, h = t.g * per + i % per;
    double* const to = rows.q + i * padded;
    deepen(q.dtype, q.data + t.b * q.strides[0] + token * q.strides[1] + h * q.strides[2], q.strides[3], to, size, padded);
    for (int64_t d = 0; d < size; ++d) to[d] *= scale;
    rows.seen[i] = places[t.b].start + token + 1;
    rows.from[i] = rows.seen[i] > window ? rows.seen[i] - window : 0;
  }
}

// The keys of a block, widened, and its values.
void Attention::widen(const Head& h, int64_t n, double* keys, const Stripes& values, double* row) const {
  const int64_t item = item_size(k.dtype), four_bits = size / kKvBlock * kKvBytes4;  // bytes of a row
  if (k.dtype != DType::u8 && size == padded && k.strides[3] == item && v.strides[3] == item) {  // whole vectors
    deepen_rows(k.dtype, h.k, h.k_step, size, n, keys);
    deepen_rows(v.dtype, h.v, h.v_step, size, n, values);
    return;
  }
  const auto one = [&](const View& from, const char* at, double* to) {
    if (from.dtype == DType::u8) {
      kv_widen(at, from.strides[3], from.shape[3] == four_bits, to, size, padded);
    } else {
      deepen(from.dtype, at, from.strides[3], to, size, padded);
    }
  };
  for (int64_t j = 0; j < n; ++j) {
    one(k, h.k + j * h.k_step, keys + j * padded);
    one(v, h.v + j * h.v_step, row);
    for (int64_t d = 0; d < padded; d += kDeep) store(values.at(j, d), tritium::TRITIUM_ISA::load(row + d));
  }
}

// The keys from `first` up to `last`, block by block.
void Attention::pass(const Task& t, const Rows& rows, double* wide, int64_t first, int64_t last) const {
  const int64_t item = item_size(k.dtype);
  const bool direct = k.dtype != DType::u8 && size == padded && k.strides[3] == item && v.strides[3] == item &&
                      rows.count <= kDirectRows;
  const int64_t slot = places[t.b].slot;
  const char* const keys = k.data + slot * k.strides[0] + t.g * k.strides[1];
  const char* const values = v.data + slot * v.strides[0] + t.g * v.strides[1];
  const Stripes stripes(wide + kBlock * padded, padded);
  rows.clear(rows.count, padded);
  if (rows.from[0] > first) first += (rows.from[0] - first) / kBlock * kBlock;  // blocks that no query sees
  for (; first < last; first += kBlock) {
    const int64_t n = least(kBlock, last - first);
    const Head here{keys + first * k.strides[2], values + first * v.strides[2], k.strides[2], v.strides[2]};
    if (!direct) {
      widen(here, n, wide, stripes, wide + 2 * kBlock * padded);
      step_wide(rows, wide, stripes, first, n);
      continue;
    }
    switch (k.dtype) {
      case DType::f16: step_block<DType::f16>(rows, here, first, n); break;
      case DType::bf16: step_block<DType::bf16>(rows, here, first, n); break;
      default: step_block<DType::f32>(rows, here, first, n);
    }
  }
}

void Attention::put(const Task& t, const Found& found) const {
  for (int64_t i = 0; i < t.count; ++i) {
    const int64_t token = t.begin + i / per, h = t.g * per + i % per;
    const double* const o = found.o + i * padded;
    char* const to = y.data + t.b * y.strides[0] + token * y.strides[1] + h * y.strides[2];
    const double share = 1 / found.total[i];
    float line[kLine];
    for (int64_t d = 0; d < size; d += kLine) {
      const int64_t m = least(kLine, size - d);
      for (int64_t e = 0; e < m; ++e) line[e] = static_cast<float>(o[d + e] * share);
      scatter(y.dtype, line, to + d * y.strides[3], y.strides[3], m);
    }
  }
}

// A task from beginning to end.
void Attention::run(int64_t i, double* space) const {
  const Task t = task(i);
  clear(t);
  if (t.count == 0) return;
  Scratch own(space, task_rows, padded);
  load(t, own.rows);
  own.all.clear(t.count, padded);
  const int64_t seen = own.rows.seen[t.count - 1];
  for (int64_t first = own.rows.from[0] / kPart * kPart; first < seen; first += kPart) {
    pass(t, own.rows, own.wide, first, least(first + kPart, seen));
    own.all.add(own.rows, t.count, padded);
  }
  put(t, own.all);
}

// Few tasks with many keys: every part of the keys by itself; who does the last one of a task adds them up, in order.
class Parts {
 public:
  Parts(const Attention& a, int64_t parts)
      : a_(a), parts_(parts), tasks_(a.tasks()), few_(whole(a.task_rows, 16)), each_(a.task_rows * a.padded + 2 * few_),
        space_((tasks_ * parts * each_ + tasks_) * static_cast<int64_t>(sizeof(double)), Need::must),
        done_(reinterpret_cast<int64_t*>(space_.as<double>() + tasks_ * parts * each_)) {
    for (int64_t i = 0; i < tasks_; ++i) done_[i] = 0;
  }

  int64_t count() const { return tasks_ * parts_; }

  void run(int64_t unit, double* memory) {
    const int64_t i = unit / parts_, part = unit % parts_;
    const Task t = a_.task(i);
    Scratch own(memory, a_.task_rows, a_.padded);
    if (t.count > 0) {
      a_.load(t, own.rows);
      static_cast<Found&>(own.rows) = found(i, part);
      a_.pass(t, own.rows, own.wide, part * kPart, least((part + 1) * kPart, own.rows.seen[t.count - 1]));
    }
    if (__atomic_add_fetch(&done_[i], 1, __ATOMIC_ACQ_REL) == parts_) finish(i, t, own.all);
  }

 private:
  Found found(int64_t i, int64_t part) const {
    double* const here = space_.as<double>() + (i * parts_ + part) * each_;
    return {here + 2 * few_, here, here + few_};
  }

  void finish(int64_t i, const Task& t, const Found& all) const {
    a_.clear(t);
    if (t.count == 0) return;
    all.clear(t.count, a_.padded);
    const int64_t seen = a_.places[t.b].start + t.begin + (t.count - 1) / a_.per + 1;
    for (int64_t part = 0; part * kPart < seen; ++part) all.add(found(i, part), t.count, a_.padded);
    a_.put(t, all);
  }

  const Attention& a_;
  int64_t parts_, tasks_, few_, each_;
  Workspace space_;
  int64_t* done_;  // by task: parts that are
};

void run_parts(const Attention& a, int64_t parts) {
  Parts work(a, parts);
  const int64_t each = 2 * kPart * a.task_rows * a.padded;
  const auto run = [&](int64_t begin, int64_t end) {
    const Workspace scratch(a.scratch(), Need::must);
    for (int64_t u = begin; u < end; ++u) work.run(u, scratch.as<double>());
  };
  each < kPartGrain ? parallel_for(work.count(), kPartGrain / each, run) : parallel_units(work.count(), run);
}

// Tasks one by one. Later tokens have more keys: those come first, and each thread's share has as many of each length, so
// that at the end all wait for a short one. Shares are filled up with units that are no task.
template <class Run>
void run_long(const Attention& a, const Run& run) {
  const int64_t threads = num_threads(), tasks = a.tasks(), heads = a.batch * a.shared, share = (tasks + threads - 1) / threads;
  parallel_units(share * threads, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t rank = unit % share * threads + unit / share;
      if (rank >= tasks) continue;
      const int64_t i = rank % heads * a.blocks + a.blocks - 1 - rank / heads;
      run(i, i + 1);
    }
  });
}

void attention(const Call& call) {
  const View &q = call.in[0], &k = call.in[1];
  const int64_t batch = q.shape[0], capacity = k.shape[2], tokens = q.shape[1];
  const Workspace kept(batch * static_cast<int64_t>(sizeof(Place)), Need::must);
  Place* const places = kept.as<Place>();
  if (call.nin > 3 && call.in[3].data) {
    if (!read_places("attention", call.in[3], batch, {k.shape[0], capacity, tokens}, places)) return;
  } else {
    for (int64_t b = 0; b < batch; ++b) places[b] = {b, capacity - tokens, tokens};
  }
  if (q.size() == 0) return;
  const Attention a(call, places);
  int64_t work = 0, seen = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t end = places[b].start + places[b].count;
    work += 2 * places[b].count * least(end, a.window);
    if (end > seen) seen = end;
  }
  const int64_t tasks = a.tasks(), parts = (seen + kPart - 1) / kPart, each = work * a.heads * a.padded / tasks;
  if (a.blocks == 1 && parts > 1 && num_threads() > 1 && tasks < kPlenty * num_threads()) return run_parts(a, parts);
  const auto run = [&](int64_t begin, int64_t end) {
    const Workspace space(a.scratch(), Need::must);
    for (int64_t i = begin; i < end; ++i) a.run(i, space.as<double>());
  };
  if (each < kGrain) return parallel_for(tasks, kGrain / (each + 1) + 1, run);
  run_long(a, run);
}

constexpr std::uint32_t kHalfOrSingle = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32);
constexpr Entry kEntries[] = {{"attention", attention, kHalfOrSingle, "scale,window", 1, true},
                              {"quantized_attention", attention, bit(DType::u8), "scale,window", 1, true}};

}  // namespace

Table attention_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
