// linear: x @ w.T + bias for weights of f32 or half floats, which are read as they lie.
// Every sum has the same order for any number of rows of x, so that a row gives the same bits
// by itself and in a batch. Compiled without contraction: what is rounded once says so.
#include <cstdint>
#include <type_traits>

#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "gather.h"
#include "loops.h"
#include "wide.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

// Sums that stay in registers at once: so many rows of w times so many rows of x.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kSums = 16;
#else
constexpr int kSums = 8;
#endif
// Rows of w that are read side by side, and how many rows on memory is asked for what comes next. On ARM more streams cost
// more than they hide: 16 rows, fetched 16 ahead, were read at less than half the rate of 4.
#if defined(__aarch64__)
constexpr int kStreams = 4, kAhead = 4;
#else
constexpr int kStreams = kSums, kAhead = kSums > 8 ? kSums : 8;
#endif
constexpr int64_t kPiece = 1024;          // products of a sum that is finished by itself, while x is in the first cache
constexpr int64_t kFewRows = 8;           // rows of x for which w is widened in registers
constexpr int kTileRows = 4;              // rows of x that meet widened weights together
constexpr int64_t kPanel = 16;            // rows of w that are widened together
constexpr int64_t kChunk = 128;           // rows of x that stay in the second cache
constexpr int64_t kGrain = 65536;         // weights that make it worth waking another thread
constexpr int64_t kWideGrain = 1 << 18;   // products that do

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// So many sums, up to whole vectors.
constexpr int whole_sums(int count) { return (count + kWide - 1) / kWide * kWide; }

// sums[r * M + m] = w[r] . x[m] over k elements, for R rows of w and M of x, those x_row apart and zero up to whole
// vectors. `ahead` elements on in w is what is read next but one.
template <DType T, int R, int M>
TRITIUM_INLINE void dots(int64_t k, const StoredAs<T>* w, int64_t w_row, int64_t ahead, const float* x, int64_t x_row,
                         float* sums) {
  static_assert(R * M <= kSums);
  Wide acc[whole_sums(R * M)] = {};
  const auto step = [&](int64_t p, auto&& read) __attribute__((always_inline)) {
    Wide right[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) right[m] = load(x + m * x_row + p);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Wide left = read(w + r * w_row + p);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) acc[r * M + m] = fused(left, right[m], acc[r * M + m]);
    }
  };
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(StoredAs<T>));  // elements of a cache line
  static_assert(line % kWide == 0);
  int64_t p = 0;
  for (; p + line <= k; p += line) {
    if (ahead) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) __builtin_prefetch(w + r * w_row + p + ahead);
    }
#pragma GCC unroll 2
    for (int64_t q = p; q < p + line; q += kWide) step(q, load_wide<T>);
  }
  for (; p + kWide <= k; p += kWide) step(p, load_wide<T>);
  if (p < k) step(p, [&](const StoredAs<T>* from) { return load_part<T>(from, k - p); });
  add_lanes_of<whole_sums(R * M)>(acc, sums);
}

// A call as rows: x as adjacent f32, zero up to whole vectors; where each row of the result begins.
struct Rows {
  const View &x, &w, &y;
  const View* bias;
  int64_t count = 1, n, k, padded;

  explicit Rows(const Call& call)
      : x(call.in[0]), w(call.in[1]), y(*call.out),
        bias(call.nin > 2 && call.in[2].data ? call.in + 2 : nullptr), n(w.shape[0]), k(w.shape[1]),
        padded(whole(k, kWide)) {
    for (int d = 0; d + 1 < x.ndim; ++d) count *= x.shape[d];
  }
  // The byte offset of row i of x or y.
  int64_t offset(const View& v, int64_t i) const {
    int64_t sum = 0;
    for (int d = x.ndim - 2; d >= 0; --d) {
      sum += i % x.shape[d] * v.strides[d];
      i /= x.shape[d];
    }
    return sum;
  }
  void widen_rows(int64_t first, int64_t rows, int64_t most, float* to) const {
    const Gather gather = gather_of<float>(x.dtype);
    parallel_for(most, kGrain / (padded + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* const row = to + i * padded;
        if (i < rows) gather(x.data + offset(x, first + i), x.strides[x.ndim - 1], row, k);
        for (int64_t j = i < rows ? k : 0; j < padded; ++j) row[j] = 0;
      }
    });
  }
  // c[m * step + r] are the sums of row `row` + m of x and of row `first` + r of w.
  void put(int64_t row, int64_t rows, int64_t first, int64_t columns, float* c, int64_t step) const {
    const int64_t apart = y.strides[y.ndim - 1];
    for (int64_t m = 0; m < rows; ++m) {
      float* const from = c + m * step;
      for (int64_t r = 0; bias && r < columns; ++r) from[r] += at<float>(bias->data + (first + r) * bias->strides[0]);
      scatter(y.dtype, from, y.data + offset(y, row + m) + first * apart, apart, columns);
    }
  }
};

// All rows of x, M by M, with up to G groups of R rows of w, straight from where they lie. A piece of x stays in the first
// cache while all groups meet it.
template <DType T, int R, int M, int G>
void few_groups(const Rows& a, const float* x, int64_t first, int64_t groups) {
  const int64_t w_row = a.w.strides[0] / static_cast<int64_t>(sizeof(StoredAs<T>));
  float sums[kSums], c[G * kFewRows * R] = {};
  for (int64_t p = 0; p < a.k; p += kPiece) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t row = first + g * R;
      const auto* const w = reinterpret_cast<const StoredAs<T>*>(a.w.data) + row * w_row + p;
      const int64_t ahead = row + kAhead + R <= a.n ? kAhead * w_row : 0;
      for (int64_t i = 0; i < a.count; i += M) {
        dots<T, R, M>(least(kPiece, a.k - p), w, w_row, i ? 0 : ahead, x + i * a.padded + p, a.padded, sums);
        for (int r = 0; r < R; ++r) {
          for (int m = 0; m < M; ++m) c[(i + m) * G * R + g * R + r] += sums[r * M + m];
        }
      }
    }
  }
  a.put(0, a.count, first, groups * R, c, G * R);
}

template <DType T, int M>
void few_rows(const Rows& a, const float* x) {
  constexpr int R = kSums / M < kStreams ? kSums / M : kStreams, G = M < 4 ? 1 : 8;
  const int64_t full = a.n / R;
  parallel_for((a.n + G * R - 1) / (G * R), kGrain / (G * R * a.k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t groups = least(G, full - u * G);
      if (groups > 0) few_groups<T, R, M, G>(a, x, u * G * R, groups);
      if (groups == G) continue;
      for (int64_t i = full * R; i < a.n; ++i) few_groups<T, 1, M, 1>(a, x, i, 1);
    }
  });
}

template <DType T>
void few(const Rows& a) {
  const int64_t most = a.count > 4 ? 8 : a.count > 2 ? 4 : a.count;
  const Workspace space(most * a.padded * static_cast<int64_t>(sizeof(float)), Need::must);
  float* const x = space.as<float>();
  a.widen_rows(0, a.count, most, x);
  switch (most) {
    case 1: return few_rows<T, 1>(a, x);
    case 2: return few_rows<T, 2>(a, x);
    case 4: return few_rows<T, 4>(a, x);
    default: return few_rows<T, 8>(a, x);
  }
}

// Many rows of x with one panel of w, widened piece by piece: c[m * kPanel + r].
void panel(const Rows& a, const float* x, int64_t rows, int64_t first, float* wide, float* c) {
  constexpr int R = kSums / kTileRows;
  const int64_t columns = least(kPanel, a.n - first);
  const Gather gather = gather_of<float>(a.w.dtype);
  for (int64_t i = 0; i < rows * kPanel; ++i) c[i] = 0;
  for (int64_t p = 0; p < a.k; p += kPiece) {
    const int64_t k = least(kPiece, a.k - p), filled = whole(k, kWide);
    for (int64_t r = 0; r < kPanel; ++r) {
      float* const to = wide + r * kPiece;
      if (r < columns) gather(a.w.data + (first + r) * a.w.strides[0] + p * a.w.strides[1], a.w.strides[1], to, k);
      for (int64_t j = r < columns ? k : 0; j < filled; ++j) to[j] = 0;
    }
    for (int64_t m = 0; m < rows; m += kTileRows) {
      for (int64_t r = 0; r < columns; r += R) {
        float sums[kSums];
        dots<DType::f32, R, kTileRows>(filled, wide + r * kPiece, kPiece, 0, x + m * a.padded + p, a.padded, sums);
        for (int i = 0; i < kTileRows; ++i) {
          for (int j = 0; j < R; ++j) c[(m + i) * kPanel + r + j] += sums[j * kTileRows + i];
        }
      }
    }
  }
}

void many(const Rows& a) {
  const int64_t most = whole(least(a.count, kChunk), kTileRows), panels = (a.n + kPanel - 1) / kPanel;
  const Workspace space(most * a.padded * static_cast<int64_t>(sizeof(float)), Need::must);
  float* const x = space.as<float>();
  for (int64_t row = 0; row < a.count; row += most) {
    const int64_t rows = least(most, a.count - row), tall = whole(rows, kTileRows);
    a.widen_rows(row, rows, tall, x);
    parallel_for(panels, kWideGrain / (tall * kPanel * (a.k + 1)) + 1, [&](int64_t begin, int64_t end) {
      const Workspace own((kPiece + tall) * kPanel * static_cast<int64_t>(sizeof(float)), Need::must);
      float *const wide = own.as<float>(), *const c = wide + kPiece * kPanel;
      for (int64_t u = begin; u < end; ++u) {
        panel(a, x, tall, u * kPanel, wide, c);
        a.put(row, rows, u * kPanel, least(kPanel, a.n - u * kPanel), c, kPanel);
      }
    });
  }
}

void linear(const Call& call) {
  const Rows a(call);
  if (a.count == 0 || a.n == 0) return;
  const int64_t item = item_size(a.w.dtype);
  const bool lies = (a.w.strides[1] == item || a.k <= 1) && a.w.strides[0] % item == 0;
  if (a.count > kFewRows || !lies) return many(a);
  switch (a.w.dtype) {
    case DType::f16: return few<DType::f16>(a);
    case DType::bf16: return few<DType::bf16>(a);
    default: return few<DType::f32>(a);
  }
}

constexpr std::uint32_t kHalfOrSingle = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32);
constexpr Entry kEntries[] = {{"linear", linear, kHalfOrSingle, "", 1}};

}  // namespace

Table linear_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
