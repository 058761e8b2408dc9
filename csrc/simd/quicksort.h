// Unsigned numbers of 32 or 64 bits sorted in vectors of AVX-512: quicksort, whose small parts are sorted by bitonic networks.
// Not stable, which equal numbers do not show. Knows nothing of views, axes or threads.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)

#include <immintrin.h>

namespace tritium::TRITIUM_ISA::quick {

using std::int64_t;

template <class U>
constexpr int kWide = 64 / static_cast<int>(sizeof(U));  // numbers of a vector
template <class U>
constexpr int64_t kSmall = 16 * kWide<U>;  // so many are sorted in registers

// Masked forms throughout: of the plain ones GCC 12 warns that they read what was never set.
template <class U>
struct Vector;
template <>
struct Vector<std::uint32_t> {
  using Mask = __mmask16;
  static constexpr Mask kAll = 0xffff;
  static __m512i min(__m512i a, __m512i b) { return _mm512_maskz_min_epu32(kAll, a, b); }
  static __m512i max(__m512i a, __m512i b) { return _mm512_maskz_max_epu32(kAll, a, b); }
  static __m512i all(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static __m512i permute(__m512i order, __m512i v) { return _mm512_maskz_permutexvar_epi32(kAll, order, v); }
  static __m512i min_where(Mask m, __m512i rest, __m512i a, __m512i b) { return _mm512_mask_min_epu32(rest, m, a, b); }
  static __m512i pack(Mask m, __m512i v) { return _mm512_maskz_compress_epi32(m, v); }
  static Mask less(__m512i a, __m512i b) { return _mm512_cmplt_epu32_mask(a, b); }
  static __m512i load(const std::uint32_t* from, Mask m, __m512i rest) { return _mm512_mask_loadu_epi32(rest, m, from); }
  static void store(std::uint32_t* to, Mask m, __m512i v) { _mm512_mask_storeu_epi32(to, m, v); }
  // One of every `step` numbers.
  static __m512i pick(const std::uint32_t* from, int64_t step) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const int most = INT32_MAX / kWide<std::uint32_t>;
    const __m512i places = _mm512_maskz_mullo_epi32(kAll, lanes, _mm512_set1_epi32(step < most ? static_cast<int>(step) : most));
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), kAll, places, from, 4);
  }
};
template <>
struct Vector<std::uint64_t> {
  using Mask = __mmask8;
  static constexpr Mask kAll = 0xff;
  static __m512i min(__m512i a, __m512i b) { return _mm512_maskz_min_epu64(kAll, a, b); }
  static __m512i max(__m512i a, __m512i b) { return _mm512_maskz_max_epu64(kAll, a, b); }
  static __m512i all(std::uint64_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
  static __m512i permute(__m512i order, __m512i v) { return _mm512_maskz_permutexvar_epi64(kAll, order, v); }
  static __m512i min_where(Mask m, __m512i rest, __m512i a, __m512i b) { return _mm512_mask_min_epu64(rest, m, a, b); }
  static __m512i pack(Mask m, __m512i v) { return _mm512_maskz_compress_epi64(m, v); }
  static Mask less(__m512i a, __m512i b) { return _mm512_cmplt_epu64_mask(a, b); }
  static __m512i load(const std::uint64_t* from, Mask m, __m512i rest) { return _mm512_mask_loadu_epi64(rest, m, from); }
  static void store(std::uint64_t* to, Mask m, __m512i v) { _mm512_mask_storeu_epi64(to, m, v); }
  static __m512i pick(const std::uint64_t* from, int64_t step) {
    const __m512i places = _mm512_setr_epi64(0, step, 2 * step, 3 * step, 4 * step, 5 * step, 6 * step, 7 * step);
    return _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), kAll, places, from, 8);
  }
};

// Lane i beside lane i ^ flip: the smaller one to those lanes whose bit in `low` is set.
template <class U, int flip, unsigned low>
inline __attribute__((always_inline)) __m512i exchange(__m512i v) {
  using V = Vector<U>;
  alignas(64) U order[kWide<U>];
  for (int i = 0; i < kWide<U>; ++i) order[i] = static_cast<U>(i ^ flip);
  const __m512i other = V::permute(_mm512_load_si512(order), v);
  return V::min_where(static_cast<typename V::Mask>(low), V::max(v, other), v, other);
}

// The lanes i of a step `flip` of a bitonic network that take the smaller number, in ascending blocks of `block`.
constexpr unsigned low_lanes(int flip, int block) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i)
    if (((i & flip) == 0) == ((i & block) == 0)) mask |= 1u << i;
  return mask;
}

// Sorts the lanes of a vector that rise and then fall; `block` beyond the lanes: all ascending.
template <class U, int flip, int block>
inline __attribute__((always_inline)) __m512i merge_lanes(__m512i v) {
  v = exchange<U, flip, low_lanes(flip, block)>(v);
  if constexpr (flip > 1) v = merge_lanes<U, flip / 2, block>(v);
  return v;
}
template <class U, int block = 2>
inline __attribute__((always_inline)) __m512i sort_lanes(__m512i v) {
  v = merge_lanes<U, block / 2, block>(v);
  if constexpr (block < kWide<U>) v = sort_lanes<U, 2 * block>(v);
  return v;
}
template <class U>
inline __attribute__((always_inline)) __m512i reversed(__m512i v) {
  alignas(64) U order[kWide<U>];
  for (int i = 0; i < kWide<U>; ++i) order[i] = static_cast<U>(kWide<U> - 1 - i);
  return Vector<U>::permute(_mm512_load_si512(order), v);
}

// Vectors that together rise and then fall.
template <class U, int count>
inline __attribute__((always_inline)) void merge_bitonic(__m512i* v) {
  if constexpr (count == 1) {
    v[0] = merge_lanes<U, kWide<U> / 2, 2 * kWide<U>>(v[0]);
  } else {
    for (int i = 0; i < count / 2; ++i) {
      const __m512i a = v[i], b = v[i + count / 2];
      v[i] = Vector<U>::min(a, b);
      v[i + count / 2] = Vector<U>::max(a, b);
    }
    merge_bitonic<U, count / 2>(v);
    merge_bitonic<U, count / 2>(v + count / 2);
  }
}
template <class U>
void sort_eight(__m512i* v);

template <class U, int count>
inline __attribute__((always_inline)) void sort_vectors(__m512i* v) {
  if constexpr (count == 1) {
    v[0] = sort_lanes<U>(v[0]);
  } else {
    for (int half = 0; half < 2; ++half) {
      if constexpr (count == 16) sort_eight<U>(v + 8 * half);
      else sort_vectors<U, count / 2>(v + count / 2 * half);
    }
    for (int i = 0; i < count / 4; ++i) std::swap(v[count / 2 + i], v[count - 1 - i]);
    for (int i = count / 2; i < count; ++i) v[i] = reversed<U>(v[i]);
    merge_bitonic<U, count>(v);
  }
}

// Compiled once: such a network takes long to compile.
template <class U>
[[gnu::noinline]] void sort_eight(__m512i* v) {
  __m512i w[8];
  std::memcpy(w, v, sizeof w);
  sort_vectors<U, 8>(w);
  std::memcpy(v, w, sizeof w);
}

// Up to count * kWide numbers, in registers.
template <class U, int count>
[[gnu::noinline]] void sort_few(const U* from, U* to, int64_t n) {
  using V = Vector<U>;
  constexpr int L = kWide<U>;
  __m512i v[count];
  typename V::Mask masks[count];
  for (int i = 0; i < count; ++i) {
    const int64_t left = n - i * L;
    masks[i] = static_cast<typename V::Mask>(left >= L ? (1u << L) - 1 : left > 0 ? (1u << left) - 1 : 0);
    v[i] = V::load(from + i * L, masks[i], V::all(~U{0}));
  }
  sort_vectors<U, count>(v);
  for (int i = 0; i < count; ++i) V::store(to + i * L, masks[i], v[i]);
}
template <class U>
void sort_small(const U* from, U* to, int64_t n) {
  constexpr int L = kWide<U>;
  if (n <= L) return sort_few<U, 1>(from, to, n);
  if (n <= 2 * L) return sort_few<U, 2>(from, to, n);
  if (n <= 4 * L) return sort_few<U, 4>(from, to, n);
  n <= 8 * L ? sort_few<U, 8>(from, to, n) : sort_few<U, 16>(from, to, n);
}

// Moves what is below the pivot (or equal to it) to the front and returns how many that are; the others go to the same
// places of `there`.
template <bool equal, class U>
int64_t partition(U* here, U* there, int64_t n, U pivot) {
  using V = Vector<U>;
  using Mask = typename V::Mask;
  constexpr int L = kWide<U>, kAtOnce = 4;
  const __m512i bound = V::all(pivot);
  U *low = here, *high = there + n;
  const auto before = [bound](__m512i v) {
    return equal ? static_cast<Mask>(~V::less(bound, v)) : V::less(v, bound);
  };
  const auto divide = [&](__m512i v) {
    const Mask m = before(v);
    const int count = __builtin_popcount(m);
    _mm512_storeu_si512(low, V::pack(m, v));  // as far as was read at most
    low += count;
    high -= L - count;
    // No further than there are numbers: what follows is there already.
    V::store(high, static_cast<Mask>(V::kAll >> count), V::pack(static_cast<Mask>(~m), v));
  };
  int64_t i = 0;
  for (; i + kAtOnce * L <= n; i += kAtOnce * L) {
    __m512i v[kAtOnce];
    for (int u = 0; u < kAtOnce; ++u) v[u] = _mm512_loadu_si512(here + i + u * L);
    for (int u = 0; u < kAtOnce; ++u) divide(v[u]);
  }
  for (; i + L <= n; i += L) divide(_mm512_loadu_si512(here + i));
  if (i < n) {
    const Mask rest = static_cast<Mask>((1u << (n - i)) - 1);
    const __m512i v = V::load(here + i, rest, bound);
    const Mask m = static_cast<Mask>(before(v) & rest), others = static_cast<Mask>(rest & ~m);
    const int count = __builtin_popcount(m), left = static_cast<int>(n - i) - count;
    V::store(low, static_cast<Mask>((1u << count) - 1), V::pack(m, v));
    V::store(high - left, static_cast<Mask>((1u << left) - 1), V::pack(others, v));
    low += count;
  }
  return low - here;
}

// The median of some of the numbers.
template <class U>
U pivot_of(const U* a, int64_t n) {
  const int64_t step = n / kWide<U>;
  alignas(64) U some[kWide<U>];
  _mm512_store_si512(some, sort_lanes<U>(Vector<U>::pick(a + step / 2, step)));
  return some[kWide<U> / 2];
}

// Sorts the n numbers of `here`, with room for as many in `there`; they end here if `stays`, else there. Where pivots were bad
// too often, `other(a, b, n)` sorts what is left and returns which of both has it.
template <class U, class F>
void sort(U* here, U* there, int64_t n, bool stays, int depth, F other) {
  while (n > kSmall<U>) {
    if (depth-- == 0) {
      U *const sorted = other(here, there, n), *const home = stays ? here : there;
      if (sorted != home) std::memcpy(home, sorted, static_cast<std::size_t>(n) * sizeof(U));
      return;
    }
    const U pivot = pivot_of(here, n);
    int64_t low = partition<false>(here, there, n, pivot);
    if (low == 0) {  // none is smaller: those that are equal, all of them there by now, come first
      low = partition<true>(there, here, n, pivot);
      if (stays) std::memcpy(here, there, static_cast<std::size_t>(low) * sizeof(U));
    } else {
      sort(here, there, low, stays, depth, other);
      std::swap(here, there);
      stays = !stays;
    }
    here += low;
    there += low;
    n -= low;
  }
  sort_small(here, stays ? here : there, n);
}

}  // namespace tritium::TRITIUM_ISA::quick

#endif
