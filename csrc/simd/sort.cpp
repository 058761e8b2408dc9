// sort, argsort, topk and searchsorted: stable, by keys whose order is that of the elements. NaN is above all numbers.
#include <algorithm>

#include "../threads.h"
#include "../workspace.h"
#include "axes.h"
#include "iterate.h"
#include "loops.h"
#include "order.h"
#include "select.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

constexpr int64_t kGrain = 4096;    // elements of short lines that make it worth waking another thread
constexpr int64_t kLong = 1 << 16;  // elements of one line that each of several threads sorts
constexpr int kMaxParts = 64;

// The lines of a view along one axis, and where each begins in the input and in up to two outputs.
struct Lines {
  int64_t n, in, out[2] = {0, 0};  // elements of a line, and its strides in bytes
  int64_t count = 1;
  int ndim = 0;
  int64_t shape[kMaxDims], x[kMaxDims], y[2][kMaxDims];

  Lines(const Call& call, int outs) {
    const View& v = call.in[0];
    int axis = 0;
    while (axis < v.ndim - 1 && !(call.attrs->axes >> axis & 1)) ++axis;
    n = v.shape[axis];
    in = v.strides[axis];
    for (int o = 0; o < outs; ++o) out[o] = call.out[o].strides[axis];
    for (int d = 0; d < v.ndim; ++d) {
      if (d == axis) continue;
      int at = ndim++;  // lines that begin next to each other follow each other
      for (; at > 0 && magnitude(x[at - 1]) < magnitude(v.strides[d]); --at) {
        shape[at] = shape[at - 1];
        x[at] = x[at - 1];
        for (int o = 0; o < outs; ++o) y[o][at] = y[o][at - 1];
      }
      shape[at] = v.shape[d];
      x[at] = v.strides[d];
      for (int o = 0; o < outs; ++o) y[o][at] = call.out[o].strides[d];
      count *= v.shape[d];
    }
  }

  int64_t offset(const int64_t* strides, int64_t line) const {
    int64_t sum = 0;
    for (int d = ndim - 1; d >= 0; --d) {
      sum += line % shape[d] * strides[d];
      line /= shape[d];
    }
    return sum;
  }
};

struct Range {
  int64_t begin, end;
};
Range part_of(int64_t n, int part, int parts) { return {n * part / parts, n * (part + 1) / parts}; }

// Into how many parts a line is cut: a power of two.
int parts_for(int64_t n) {
  int parts = 1;
  while (2 * parts <= num_threads() && 2 * parts <= kMaxParts && n / (2 * parts) >= kLong) parts *= 2;
  return parts;
}

// Sorts elements in memory by several threads: each a part, then pairs of parts are merged. Returns a or b.
template <class E>
[[gnu::noinline]] E* sort_parts(E* a, E* b, int64_t n, int parts) {
  if (parts == 1) return stable_sort(a, b, n);
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const Range r = part_of(n, static_cast<int>(p), parts);
      E* const sorted = stable_sort(a + r.begin, b + r.begin, r.end - r.begin);
      if (sorted != a + r.begin) std::memcpy(a + r.begin, sorted, static_cast<std::size_t>(r.end - r.begin) * sizeof(E));
    }
  });
  const int pieces = parts;  // in all, at every level
  for (int width = 1; width < parts; width *= 2) {
    const int merges = parts / (2 * width), each = pieces / merges;
    parallel_for(pieces, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        const int pair = static_cast<int>(p) / each, piece = static_cast<int>(p) % each;
        const int64_t begin = part_of(n, 2 * width * pair, parts).begin;
        const int64_t middle = part_of(n, 2 * width * pair + width, parts).begin;
        const int64_t end = part_of(n, 2 * width * (pair + 1) - 1, parts).end;
        const Range r = part_of(end - begin, piece, each);
        const int64_t i = taken_of_first(a + begin, middle - begin, a + middle, end - middle, r.begin);
        const int64_t j = taken_of_first(a + begin, middle - begin, a + middle, end - middle, r.end);
        merge(a + begin + i, a + begin + j, a + middle + (r.begin - i), a + middle + (r.end - j), b + begin + r.begin);
      }
    });
    std::swap(a, b);
  }
  return a;
}

// What a part of a line holds besides numbers that sort by their keys.
struct Special {
  int64_t nans = 0, zeros = 0;
  bool minus = false, plus = false;  // zeros of either sign
};

template <class O>
Special count_special(const O& o, const char* from, int64_t stride, Range r) {
  Special s;
  if (!o.is_float) return s;
  using U = typename O::Bits;
  if (stride == sizeof(U)) {  // vector code, which says whether there is anything to look for
    U largest = 0, zeros = 0;
    for (int64_t i = r.begin; i < r.end; ++i) {
      const U size = static_cast<U>(O::load(from + i * static_cast<int64_t>(sizeof(U))) & static_cast<U>(~O::kSign));
      largest = size > largest ? size : largest;
      zeros = static_cast<U>(zeros | static_cast<U>(size == 0));
    }
    if (largest <= o.infinity && zeros == 0) return s;
  }
  for (int64_t i = r.begin; i < r.end; ++i) {
    const auto bits = O::load(from + i * stride);
    s.nans += o.is_nan(bits);
    s.zeros += o.is_zero(bits);
    s.minus |= bits == O::kSign;
    s.plus |= bits == 0;
  }
  return s;
}

// The numbers of a range as keys, from `keys` on; what is NaN backwards from `nans`.
template <class O, class U = typename O::Bits>
void load_keys(const O& o, const char* from, int64_t stride, Range r, U flip, U* keys, U* nans, bool plain) {
  if (plain && stride == sizeof(U)) {
    for (int64_t i = r.begin; i < r.end; ++i)
      keys[i - r.begin] = static_cast<U>(o.key(O::load(from + i * static_cast<int64_t>(sizeof(U)))) ^ flip);
    return;
  }
  for (int64_t i = r.begin; i < r.end; ++i) {
    const U bits = O::load(from + i * stride);
    if (o.is_nan(bits)) {
      *nans-- = bits;
    } else {
      *keys++ = static_cast<U>(o.key(bits) ^ flip);
    }
  }
}

template <class U>
void store(char* to, int64_t stride, const U* from, int64_t n, int64_t step) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * stride, from + i * step, sizeof(U));
}

// Sorted keys as the elements they stand for.
template <class O, class U = typename O::Bits>
void store_keys(const O& o, const U* keys, Range r, U flip, char* to, int64_t stride) {
  if (stride == sizeof(U)) {
    for (int64_t i = r.begin; i < r.end; ++i) {
      const U bits = o.bits(static_cast<U>(keys[i] ^ flip));
      std::memcpy(to + i * static_cast<int64_t>(sizeof(U)), &bits, sizeof bits);
    }
    return;
  }
  for (int64_t i = r.begin; i < r.end; ++i) {
    const U bits = o.bits(static_cast<U>(keys[i] ^ flip));
    std::memcpy(to + i * stride, &bits, sizeof bits);
  }
}

// Zeros of both signs are equal: they come in the order in which they were.
template <class O>
void order_zeros(const O& o, const char* from, int64_t in, int64_t n, char* to, int64_t out) {
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = O::load(from + i * in);
    if (!o.is_zero(bits)) continue;
    std::memcpy(to, &bits, sizeof bits);
    to += out;
  }
}

// One line, with memory for 2n keys.
template <class O, class U = typename O::Bits>
void sort_line(const O& o, const Lines& l, const char* from, char* to, bool descending, U* a, int parts) {
  U* const b = a + l.n;
  const U flip = static_cast<U>(descending ? ~U{0} : 0);
  Special special[kMaxParts], all;
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p)
      special[p] = count_special(o, from, l.in, part_of(l.n, static_cast<int>(p), parts));
  });
  int64_t nans_before[kMaxParts];
  for (int p = 0; p < parts; ++p) {
    nans_before[p] = all.nans;
    all.nans += special[p].nans;
    all.zeros += special[p].zeros;
    all.minus |= special[p].minus;
    all.plus |= special[p].plus;
  }
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const Range r = part_of(l.n, static_cast<int>(p), parts);
      load_keys(o, from, l.in, r, flip, a + r.begin - nans_before[p], b + l.n - 1 - nans_before[p], special[p].nans == 0);
    }
  });
  const int64_t n = l.n - all.nans;
  U* const sorted = sort_parts(a, b, n, n < parts * kInsertion ? 1 : parts);
  char* const numbers = to + (descending ? all.nans * l.out[0] : 0);
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const Range r = part_of(n, static_cast<int>(p), parts);
      store_keys(o, sorted, r, flip, numbers, l.out[0]);
    }
  });
  store(to + (descending ? 0 : n * l.out[0]), l.out[0], b + l.n - 1, all.nans, -1);
  if (all.minus && all.plus) {
    const U low = static_cast<U>(o.key(descending ? U{0} : O::kSign) ^ flip);
    const int64_t first = std::lower_bound(sorted, sorted + n, low) - sorted;
    order_zeros(o, from, l.in, l.n, numbers + first * l.out[0], l.out[0]);
  }
}

constexpr int64_t kShort = 1024;  // elements of lines that are sorted side by side
template <class U>
constexpr int kBeside = 64 / sizeof(U);  // lines side by side

// Sorts `kBeside` short lines from `first` on side by side; false: some hold NaN or zeros of both signs.
template <class O, class U = typename O::Bits>
bool sort_beside(const O& o, const Lines& l, const Call& call, int64_t first, U flip, U* rows) {
  constexpr int lanes = kBeside<U>;
  const char* from[lanes];
  char* to[lanes];
  for (int j = 0; j < lanes; ++j) {
    from[j] = call.in[0].data + l.offset(l.x, first + j);
    to[j] = call.out[0].data + l.offset(l.y[0], first + j);
    const Special s = count_special(o, from[j], l.in, {0, l.n});
    if (s.nans > 0 || (s.minus && s.plus)) return false;
  }
  for (int64_t i = 0; i < l.n; ++i)
    for (int j = 0; j < lanes; ++j)
      rows[i * lanes + j] = static_cast<U>(o.key(O::load(from[j] + i * l.in)) ^ flip);
  sort_columns<lanes>(rows, l.n);
  for (int64_t i = 0; i < l.n; ++i) {
    for (int j = 0; j < lanes; ++j) {
      const U bits = o.bits(static_cast<U>(rows[i * lanes + j] ^ flip));
      std::memcpy(to[j] + i * l.out[0], &bits, sizeof bits);
    }
  }
  return true;
}

// All lines, of which each is short: as many side by side as there are.
template <class O, class U = typename O::Bits>
void sort_short(const O& o, const Lines& l, const Call& call, bool descending) {
  constexpr int lanes = kBeside<U>;
  const U flip = static_cast<U>(descending ? ~U{0} : 0);
  parallel_for((l.count + lanes - 1) / lanes, kGrain / (l.n * lanes) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(std::max(2, lanes) * l.n * static_cast<int64_t>(sizeof(U)), Need::must);
    U* const memory = space.as<U>();
    for (int64_t group = begin; group < end; ++group) {
      if (ends_early_at(group, 256)) return;
      const int64_t first = group * lanes, last = std::min<int64_t>(first + lanes, l.count);
      if (last - first == lanes && sort_beside(o, l, call, first, flip, memory)) continue;
      for (int64_t line = first; line < last; ++line) {
        sort_line(o, l, call.in[0].data + l.offset(l.x, line), call.out[0].data + l.offset(l.y[0], line), descending,
                  memory, 1);
      }
    }
  });
}

// Runs f(line, memory, parts) for every line: one line a thread, or all threads on one line after another.
template <class F>
void each_line(const Lines& l, int64_t bytes, F&& f) {
  if (l.count == 0) return;
  const int parts = l.count < num_threads() ? parts_for(l.n) : 1;
  if (parts > 1) {
    const Workspace space(bytes, Need::must);
    for (int64_t line = 0; line < l.count; ++line) f(line, space.data(), parts);
    return;
  }
  parallel_for(l.count, kGrain / (l.n + 1) + 1, [&](int64_t first, int64_t last) {
    const Workspace space(bytes, Need::must);
    for (int64_t line = first; line < last; ++line) {
      if (ends_early_at(line, 1024)) return;
      f(line, space.data(), 1);
    }
  });
}

void sort(const Call& call) {
  const Lines l(call, 1);
  const bool descending = call.attrs->whole[0] != 0;
  if (l.n == 0) return;
  with_order(call.in[0].dtype, [&]<class O>(const O& o) {
    using U = typename O::Bits;
    if (l.n <= kShort && l.count >= kBeside<U>) return sort_short(o, l, call, descending);
    each_line(l, 2 * l.n * static_cast<int64_t>(sizeof(U)), [&](int64_t line, char* memory, int parts) {
      sort_line(o, l, call.in[0].data + l.offset(l.x, line), call.out[0].data + l.offset(l.y[0], line), descending,
                reinterpret_cast<U*>(memory), parts);
    });
  });
}

// Calls f with an Order and the type of its elements with their places.
template <class F>
void with_placed(DType type, int64_t n, F&& f) {
  with_order(type, [&]<class O>(const O& o) {
    if constexpr (sizeof(typename O::Bits) < 8) {
      if (n <= INT64_C(0xffffffff)) return f(o, Placed<uint32_t, uint32_t>{});
    }
    f(o, Placed<uint64_t, uint64_t>{});
  });
}

// The ranks of a line with their places, turned where the largest come first.
template <class O, class E>
void load_placed(const O& o, const Lines& l, const char* from, Range r, bool descending, E* to) {
  using U = typename O::Bits;
  using I = decltype(E::index);
  const U flip = static_cast<U>(descending ? ~U{0} : 0);
  for (int64_t i = r.begin; i < r.end; ++i)
    to[i] = {static_cast<U>(o.rank(O::load(from + i * l.in)) ^ flip), static_cast<I>(i)};
}

template <class O, class E>
E* sort_placed(const O& o, const Lines& l, const char* from, bool descending, E* a, int parts) {
  parallel_for(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p)
      load_placed(o, l, from, part_of(l.n, static_cast<int>(p), parts), descending, a);
  });
  return sort_parts(a, a + l.n, l.n, parts);
}

void argsort(const Call& call) {
  const Lines l(call, 1);
  const bool descending = call.attrs->whole[0] != 0;
  if (l.n == 0) return;
  with_placed(call.in[0].dtype, l.n, [&]<class O, class E>(const O& o, E) {
    each_line(l, 2 * l.n * static_cast<int64_t>(sizeof(E)), [&](int64_t line, char* memory, int parts) {
      const char* const from = call.in[0].data + l.offset(l.x, line);
      const E* const sorted = sort_placed(o, l, from, descending, reinterpret_cast<E*>(memory), parts);
      char* const to = call.out[0].data + l.offset(l.y[0], line);
      for (int64_t i = 0; i < l.n; ++i) {
        const int64_t index = static_cast<int64_t>(sorted[i].index);
        std::memcpy(to + i * l.out[0], &index, sizeof index);
      }
    });
  });
}

// Whether k elements are selected rather than all n sorted, which is cheap where they fit into the nearest cache.
bool is_selected(int64_t k, int64_t n) { return k <= n / (n < 8192 ? 32 : 4); }

void topk(const Call& call) {
  const Lines l(call, 2);
  const int64_t k = call.attrs->whole[0];
  const bool largest = call.attrs->whole[1] != 0, few = k <= kFew, many = !few && is_selected(k, l.n);
  if (l.n == 0 || k == 0) return;
  with_placed(call.in[0].dtype, l.n, [&]<class O, class E>(const O& o, E) {
    const int64_t room = few ? Few<E>::room(k) : many ? Many<E>::room(k) : 2 * l.n;
    each_line(l, room * static_cast<int64_t>(sizeof(E)), [&](int64_t line, char* memory, int parts) {
      const char* const from = call.in[0].data + l.offset(l.x, line);
      E* const a = reinterpret_cast<E*>(memory);
      const E* const chosen = few    ? select_first<Few>(o, from, l.in, l.n, k, largest, a)
                              : many ? select_first<Many>(o, from, l.in, l.n, k, largest, a)
                                     : sort_placed(o, l, from, largest, a, parts);
      char* const values = call.out[0].data + l.offset(l.y[0], line);
      char* const indices = call.out[1].data + l.offset(l.y[1], line);
      for (int64_t i = 0; i < k; ++i) {
        const int64_t index = static_cast<int64_t>(chosen[i].index);
        std::memcpy(values + i * l.out[0], from + index * l.in, sizeof(typename O::Bits));
        std::memcpy(indices + i * l.out[1], &index, sizeof index);
      }
    });
  });
}

// Side by side, so that the memory of one search comes while the others wait for theirs.
constexpr int kSearches = 16;

template <class O>
struct Search {
  const View& sorted;
  const O& order;
};

// For each of the elements, how many of the sorted ones come before it; Right: or are equal.
template <class O, bool Right>
void search(const void* context, const char* const* in, char* out, int64_t n) {
  using U = typename O::Bits;
  const auto& [sorted, o] = *static_cast<const Search<O>*>(context);
  const int64_t total = sorted.shape[0], stride = sorted.strides[0];
  const O order = o;
  const char* const data = sorted.data;
  const auto rank = [order, data, stride](int64_t i) { return order.rank(O::load(data + i * stride)); };
  const auto comes = [](U there, U here) { return Right ? there <= here : there < here; };
  for (int64_t first = 0; first < n; first += kSearches) {
    const int count = static_cast<int>(std::min<int64_t>(kSearches, n - first));
    U wanted[kSearches];
    int64_t base[kSearches] = {};
    for (int j = 0; j < count; ++j) wanted[j] = order.rank(O::load(in[0] + (first + j) * static_cast<int64_t>(sizeof(U))));
    int64_t left = total;
    while (left > 1) {
      const int64_t half = left / 2;
      for (int j = 0; j < count; ++j) base[j] += comes(rank(base[j] + half - 1), wanted[j]) ? half : 0;
      left -= half;
    }
    for (int j = 0; j < count; ++j) {
      const int64_t place = base[j] + (total > 0 && comes(rank(base[j]), wanted[j]));
      std::memcpy(out + (first + j) * 8, &place, 8);
    }
  }
}

template <bool Right>
void searchsorted(const Call& call) {
  with_order(call.in[0].dtype, [&]<class O>(const O& o) {
    const Search<O> context{call.in[0], o};
    const Body body{search<O, Right>, &context, {call.in[1].dtype}, DType::i64, INT64_MAX, 512};
    iterate(body, call.in + 1, 1, *call.out);
  });
}

constexpr std::uint32_t kOrdered = ((1u << kDTypes) - 1) & ~bit(DType::b8);
constexpr Entry kEntries[] = {
    {"sort", sort, kOrdered, "descending,stable"},
    {"argsort", argsort, kOrdered, "descending,stable"},
    {"topk", topk, kOrdered, "k,largest,sorted"},
    {"searchsorted", searchsorted<false>, kOrdered},
    {"searchsorted_right", searchsorted<true>, kOrdered},
};

}  // namespace

Table sort_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
