// bounded_argmax: the largest logit of a float table by way of its int8 copy, of which few rows are left to be read.
// Knows nothing of how a product is computed: the product of the copy and `linear` of the table are kernels like any other.
// docs/certified.md has the bounds, backends/reference/certified.py the steps. Compiled without contraction: the bits are the
// reference's but for the order of the sums of squares, which is one on all instruction sets.
#include <cstring>

#include "../integer/formats.h"
#include "../isa.h"
#include "../threads.h"
#include "../workspace.h"
#include "gather.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {

Table linear_table();

namespace {

using std::int32_t;
using std::int64_t;

constexpr int64_t kGrain = 8192;       // rows that make it worth waking another thread to look at their bounds
constexpr int64_t kMost = 8;           // a table is read as a whole where more than one in so many of its rows could decide
constexpr int64_t kTogether = 8;       // inputs for which the table is read as fast as for one
constexpr int64_t kFoldLanes = 16;     // of a sum of squares
constexpr double kUnit = 0x1p-24;      // of f32
constexpr double kMore = 1 + 0x1p-18;  // makes a number no less than it is, however it was rounded
constexpr double kLeastLength = 0x1p-20;
constexpr float kMostLogit = 0x1p126f;

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

View matrix(float* data, int64_t rows, int64_t columns) {
  View v;
  v.data = reinterpret_cast<char*>(data);
  v.ndim = 2;
  v.shape[0] = rows;
  v.shape[1] = columns;
  v.strides[0] = columns * 4;
  v.strides[1] = 4;
  return v;
}

// The next f32 above, as the reference rounds its factors.
double above(double x) { return static_cast<double>(__builtin_nextafterf(static_cast<float>(x), math::kInf32)); }

// Factors of the lengths of an input with k columns in its bounds.
struct Factors {
  double least_length, near, far, lost, parts, reach;

  Factors(int64_t k, float multiplier) {
    const double m = multiplier < 0 ? -static_cast<double>(multiplier) : static_cast<double>(multiplier);
    const double sum = static_cast<double>(k) * kUnit, g = sum / (1 - sum);
    least_length = above(m > 0 ? kLeastLength / (m < 1 ? m : 1.0) : math::kInf64);
    near = above(m * kMore * (1 + g + 4 * kUnit));
    far = above(m * kMore * (g + 4 * kUnit));
    lost = above(m * kMore);
    parts = above(m * kMore * 16 * kUnit);
    reach = above((1 + g) * (m > 1 ? m : 1.0) * kMore);
  }
};

// The length of n numbers x(i).
template <class F>
double length_of(int64_t n, const F& x) {
  alignas(64) double sum[kFoldLanes] = {};
  for (int64_t i = 0; i < n; i += kFoldLanes) {
    const int64_t m = least(kFoldLanes, n - i);
    for (int64_t j = 0; j < m; ++j) sum[j] += x(i + j) * x(i + j);
  }
  for (int64_t half = kFoldLanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sum[j] += sum[j + half];
  }
  return __builtin_sqrt(sum[0]);
}

// The largest |x| as bits, which order like the numbers; NaN and infinity are above all.
std::uint32_t largest_bits(const float* x, int64_t n) {
  std::uint32_t top = 0;
  for (int64_t i = 0; i < n; ++i) {
    const std::uint32_t b = math::bits(x[i]) & 0x7fffffffu;
    top = top > b ? top : b;
  }
  return top;
}

// An int8 vector that a product makes of x: q = rint(x * up), of which each is q * down.
struct Int8 {
  float up, down;

  explicit Int8(float most) {
    const float largest = most > 1e-5f ? most : 1e-5f;
    up = 127.0f / largest;
    down = largest / 127.0f;
  }
  float value(float x) const { return (x * up + math::kRound32) - math::kRound32; }
};

// What bounds the logits of one input: error * a + norm * b of a row, unless (error + norm) * reach is too large.
struct Reach {
  float a, b, reach;
};

// Makes `rest` what the int8 form of x loses.
Reach reach_of(const float* x, float* rest, int64_t k, const Factors& by) {
  const std::uint32_t top = largest_bits(x, k);
  if (top >= 0x7f800000u) {
    std::memset(rest, 0, static_cast<std::size_t>(k) * 4);
    return {0, 0, math::kInf32};
  }
  const Int8 first(math::from_bits(top));
  for (int64_t i = 0; i < k; ++i) rest[i] = x[i] - first.value(x[i]) * first.down;
  const Int8 second(math::from_bits(largest_bits(rest, k)));
  const auto one = [&](int64_t i) { return static_cast<double>(first.value(x[i])) * static_cast<double>(first.down); };
  const auto two = [&](int64_t i) { return static_cast<double>(second.value(rest[i])) * static_cast<double>(second.down); };
  const double length = length_of(k, [&](int64_t i) { return static_cast<double>(x[i]); });
  const double lost = length_of(k, [&](int64_t i) { return static_cast<double>(x[i]) - one(i) - two(i); });
  const double parts = length_of(k, one) + length_of(k, two);
  return {static_cast<float>(length * by.near), static_cast<float>(lost * by.lost + length * by.far + parts * by.parts),
          length >= by.least_length ? static_cast<float>(length * by.reach) : math::kInf32};
}

// Numbers of rows, side by side.
class Numbers {
 public:
  explicit Numbers(const View& v) : space_(v.strides[0] == 4 ? 0 : v.shape[0] * 4, Need::must) {
    if (space_.data()) gather_of<float>(v.dtype)(v.data, v.strides[0], space_.as<float>(), v.shape[0]);
    data = space_.data() ? space_.as<float>() : reinterpret_cast<const float*>(v.data);
  }
  const float* data;

 private:
  Workspace space_;
};

struct Head {
  const View &table, &copy, &scale;
  Numbers error, norm;
  float multiplier;
  int64_t rows, columns;

  explicit Head(const Call& call)
      : table(call.in[1]), copy(call.in[2]), scale(call.in[3]), error(call.in[4]), norm(call.in[5]),
        multiplier(static_cast<float>(call.attrs->real[0])), rows(table.shape[0]), columns(table.shape[1]) {}

  void multiply_copy(const View& x, View logits) const {
    const Entry* product = find("quantized_matmul", current_isa(), Tiled::yes);
    if (!(product->dtypes & bit(copy.dtype))) product = find("quantized_matmul", base(current_isa()), Tiled::no);
    const View in[4] = {x, copy, scale, View{}};
    const Attrs attrs;
    product->run({in, 4, &logits, &attrs});
  }

  // The logits of rows [first, first + rows) of the table for `count` inputs, as the whole table gives them.
  void read(float* x, int64_t count, int64_t first, int64_t n, float* logits) const {
    View part = table, y = matrix(logits, count, n);
    part.data += first * table.strides[0];
    part.shape[0] = n;
    const View in[3] = {matrix(x, count, columns), part, View{}};
    const Attrs attrs;
    linear_table().first->run({in, 3, &y, &attrs});
    for (int64_t i = 0; i < count * n; ++i) logits[i] = logits[i] * multiplier;
  }
};

// The largest of the bounds below and the rows whose bound above reaches it, of one input. Both are looked for by ranges of
// rows, which threads share.
class Search {
 public:
  // centre: the product of the first int8 vector, of which logits are made here; second: that of the other.
  Search(const Head& head, const Reach& reach, float* centre, const float* second)
      : rows_(head.rows), error_(head.error.data), norm_(head.norm.data), multiplier_(head.multiplier), reach_(reach),
        centre_(centre), second_(second) {}

  // Returns how many rows there are, and gives the first `most` that were found, in any order.
  int64_t run(int32_t* ids, int64_t most) {
    parallel_for(rows_, kGrain, [&](int64_t begin, int64_t end) { raise(begin, end); });
    parallel_for(rows_, kGrain, [&](int64_t begin, int64_t end) { collect(begin, end, ids, most); });
    return count_;
  }

 private:
  static constexpr int64_t kPiece = 512, kTops = 16;

  void raise(int64_t begin, int64_t end) {
    alignas(64) float top[kTops], lower[kPiece];
    for (float& t : top) t = -math::kInf32;
    for (int64_t first = begin; first < end; first += kPiece) {
      const int64_t n = least(kPiece, end - first);
      const float *const error = error_ + first, *const norm = norm_ + first, *const second = second_ + first;
      float* const centre = centre_ + first;
      const Reach by = reach_;
      const float multiplier = multiplier_;
      TRITIUM_LOOP
      for (int64_t i = 0; i < n; ++i) {
        const float c = (centre[i] + second[i]) * multiplier, bound = c - (error[i] * by.a + norm[i] * by.b);
        centre[i] = c;
        lower[i] = (error[i] + norm[i]) * by.reach < kMostLogit ? bound : -math::kInf32;
      }
      for (int64_t i = n; i < whole(n, kTops); ++i) lower[i] = -math::kInf32;
      for (int64_t i = 0; i < n; i += kTops) {
        for (int64_t j = 0; j < kTops; ++j) top[j] = lower[i + j] > top[j] ? lower[i + j] : top[j];
      }
    }
    float mine = top[0];
    for (const float t : top) mine = t > mine ? t : mine;
    float before = least_;
    while (mine > before && !__atomic_compare_exchange(&least_, &before, &mine, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }

  void collect(int64_t begin, int64_t end, int32_t* ids, int64_t most) {
    alignas(64) std::uint8_t reaches[kPiece];
    const Reach by = reach_;
    const float floor = least_;
    for (int64_t first = begin; first < end; first += kPiece) {
      const int64_t n = least(kPiece, end - first);
      const float *const error = error_ + first, *const norm = norm_ + first, *const centre = centre_ + first;
      std::uint8_t any = 0;
      TRITIUM_LOOP
      for (int64_t i = 0; i < n; ++i) {
        const bool known = (error[i] + norm[i]) * by.reach < kMostLogit;
        const bool below = centre[i] + (error[i] * by.a + norm[i] * by.b) < floor;
        reaches[i] = static_cast<std::uint8_t>(!(known & below));
        any = static_cast<std::uint8_t>(any | reaches[i]);
      }
      for (int64_t i = 0; any && i < n; ++i) {
        if (!reaches[i]) continue;
        const int64_t place = __atomic_fetch_add(&count_, 1, __ATOMIC_RELAXED);
        if (place < most) ids[place] = static_cast<int32_t>(first + i);
      }
    }
  }

  int64_t rows_;
  const float *error_, *norm_;
  float multiplier_;
  Reach reach_;
  float* centre_;
  const float* second_;
  float least_ = -math::kInf32;
  int64_t count_ = 0;
};

// The largest logit, the first of equals; NaN is larger than all.
struct Best {
  int64_t index = -1;
  float value = 0;

  void meet(int64_t i, float v) {
    const bool nan = v != v, had = value != value;
    const bool better = nan != had ? nan : !nan && v != value ? v > value : i < index;
    if (index >= 0 && !better) return;
    index = i;
    value = v;
  }
};

struct Results {
  const View &index, &value, &rows;

  void put(int64_t t, const Best& best) const {
    std::memcpy(index.data + t * index.strides[0], &best.index, sizeof(best.index));
    std::memcpy(value.data + t * value.strides[0], &best.value, sizeof(best.value));
  }
  void put_rows(int64_t t, int64_t count) const {
    const auto read = static_cast<int32_t>(count);
    std::memcpy(rows.data + t * rows.strides[0], &read, sizeof(read));
  }
};

// The inputs of a call, each followed by what its int8 form loses.
struct Inputs {
  int64_t count, k;
  float *both, *logits;  // [2 count, k]; [2 count, rows]: products of the copy
  Reach* reach;

  static int64_t bytes(int64_t count, int64_t k, int64_t rows) {
    return 2 * count * (k + rows) * 4 + count * static_cast<int64_t>(sizeof(Reach));
  }
  Inputs(const Head& head, const View& x, char* space)
      : count(x.shape[0]), k(head.columns), both(reinterpret_cast<float*>(space)), logits(both + 2 * count * k),
        reach(reinterpret_cast<Reach*>(logits + 2 * count * head.rows)) {
    const Factors by(k, head.multiplier);
    for (int64_t t = 0; t < count; ++t) {
      gather_of<float>(x.dtype)(x.data + t * x.strides[0], x.strides[1], own(t), k);
      reach[t] = reach_of(own(t), own(count + t), k, by);
    }
  }
  float* own(int64_t t) const { return both + t * k; }
};

// Tokens that bounds say too little of: the whole table, read once for several of them.
void read_whole(const Head& head, const Inputs& inputs, const int32_t* tokens, int64_t count, const Results& results) {
  const Workspace space(count * (head.columns + head.rows) * 4, Need::must);
  float *const x = space.as<float>(), *const logits = x + count * head.columns;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(x + i * head.columns, inputs.own(tokens[i]), static_cast<std::size_t>(head.columns) * 4);
  }
  head.read(x, count, 0, head.rows, logits);
  for (int64_t i = 0; i < count; ++i) {
    Best best;
    for (int64_t r = 0; r < head.rows; ++r) best.meet(r, logits[i * head.rows + r]);
    results.put(tokens[i], best);
  }
}

// x [n, k], table [v, k], copy [v, k], scale, error and norm [v] -> index, value and rows [n].
void bounded_argmax(const Call& call) {
  const Head head(call);
  const int64_t count = call.in[0].shape[0], most = head.rows / kMost;
  const Workspace space(Inputs::bytes(count, head.columns, head.rows), Need::must);
  const Workspace found((most * 2 + count) * 4, Need::must);
  int32_t *const ids = found.as<int32_t>(), *const left = ids + most;
  float* const read = reinterpret_cast<float*>(left + count);
  const Inputs inputs(head, call.in[0], space.data());
  const Results results{call.out[0], call.out[1], call.out[2]};
  head.multiply_copy(matrix(inputs.both, 2 * count, head.columns), matrix(inputs.logits, 2 * count, head.rows));
  int64_t whole = 0;
  for (int64_t t = 0; t < count; ++t) {
    Search search(head, inputs.reach[t], inputs.logits + t * head.rows, inputs.logits + (count + t) * head.rows);
    const int64_t rows = search.run(ids, most);
    results.put_rows(t, rows);
    if (rows > most) {
      left[whole++] = static_cast<int32_t>(t);
      continue;
    }
    parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) head.read(inputs.own(t), 1, ids[i], 1, read + i);
    });
    Best best;
    for (int64_t i = 0; i < rows; ++i) best.meet(ids[i], read[i]);
    results.put(t, best);
  }
  for (int64_t i = 0; i < whole; i += kTogether) read_whole(head, inputs, left + i, least(kTogether, whole - i), results);
}

constexpr Entry kEntries[] = {{"bounded_argmax", bounded_argmax, kWeightFormats, "multiplier", 2}};

}  // namespace

Table certified_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
