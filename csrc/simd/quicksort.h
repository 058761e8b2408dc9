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
constexpr int64_t kSmall = 8 * kWide<U>;  // so many are sorted in registers

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
template <class U, int count>
inline __attribute__((always_inline)) void sort_vectors(__m512i* v) {
  if constexpr (count == 1) {
    v[0] = sort_lanes<U>(v[0]);
  } else {
    sort_vectors<U, count / 2>(v);
    sort_vectors<U, count / 2>(v + count / 2);
    for (int i = 0; i < count / 4; ++i) std::swap(v[count / 2 + i], v[count - 1 - i]);
    for (int i = count / 2; i < count; ++i) v[i] = reversed<U>(v[i]);
    merge_bitonic<U, count>(v);
  }
}

// Up to count * kWide numbers, in registers.
template <class U, int count>
[[gnu::noinline]] void sort_few(U* a, int64_t n) {
  using V = Vector<U>;
  constexpr int L = kWide<U>;
  __m512i v[count];
  typename V::Mask masks[count];
  for (int i = 0; i < count; ++i) {
    const int64_t left = n - i * L;
    masks[i] = static_cast<typename V::Mask>(left >= L ? (1u << L) - 1 : left > 0 ? (1u << left) - 1 : 0);
    v[i] = V::load(a + i * L, masks[i], V::all(~U{0}));
  }
  sort_vectors<U, count>(v);
  for (int i = 0; i < count; ++i) V::store(a + i * L, masks[i], v[i]);
}
template <class U>
void sort_small(U* a, int64_t n) {
  constexpr int L = kWide<U>;
  if (n <= L) return sort_few<U, 1>(a, n);
  if (n <= 2 * L) return sort_few<U, 2>(a, n);
  n <= 4 * L ? sort_few<U, 4>(a, n) : sort_few<U, 8>(a, n);
}

// Moves what is below the pivot (or equal to it) to the front and returns how many that are; b takes the others
// meanwhile.
template <bool equal, class U>
int64_t partition(U* a, U* b, int64_t n, U pivot) {
  using V = Vector<U>;
  constexpr int L = kWide<U>;
  const __m512i bound = V::all(pivot);
  const auto before = [&](__m512i v) {
    return equal ? static_cast<typename V::Mask>(~V::less(bound, v)) : V::less(v, bound);
  };
  int64_t low = 0, high = 0, i = 0;
  for (; i + L <= n; i += L) {
    const __m512i v = _mm512_loadu_si512(a + i);
    const typename V::Mask m = before(v);
    _mm512_storeu_si512(a + low, V::pack(m, v));  // as far as was read at most
    const int count = __builtin_popcount(m);
    // No further than there are numbers: what follows in b may be another's.
    V::store(b + high, static_cast<typename V::Mask>(V::kAll >> count), V::pack(static_cast<typename V::Mask>(~m), v));
    low += count;
    high += L - count;
  }
  for (; i < n; ++i) {
    const U x = a[i];
    const bool first = equal ? x <= pivot : x < pivot;
    a[low] = first ? x : a[low];
    b[high] = x;
    low += first;
    high += !first;
  }
  std::memcpy(a + low, b, static_cast<std::size_t>(high) * sizeof(U));
  return low;
}

// The median of some of the numbers.
template <class U>
U pivot_of(const U* a, int64_t n) {
  U some[kWide<U>];
  for (int i = 0; i < kWide<U>; ++i) some[i] = a[(2 * i + 1) * n / (2 * kWide<U>)];
  sort_small(some, kWide<U>);
  return some[kWide<U> / 2];
}

// Sorts a, with room for n numbers in b. False: the pivots were bad so often that another way is better; a then
// holds the same numbers in another order.
template <class U>
bool sort(U* a, U* b, int64_t n, int depth) {
  while (n > kSmall<U>) {
    if (depth-- == 0) return false;
    const U pivot = pivot_of(a, n);
    int64_t low = partition<false>(a, b, n, pivot);
    if (low == 0) {  // none is smaller: those that are equal are in their place
      low = partition<true>(a, b, n, pivot);
      a += low;
      n -= low;
      continue;
    }
    if (!sort(a, b, low, depth)) return false;
    a += low;
    n -= low;
  }
  sort_small(a, n);
  return true;
}

}  // namespace tritium::TRITIUM_ISA::quick

#endif
