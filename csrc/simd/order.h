// The order of elements as the order of unsigned numbers of their size, and stable sorts of those.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../early.h"
#include "../view.h"
#include "quicksort.h"

namespace tritium::TRITIUM_ISA {

// How the bits of one dtype become a key: unsigned integers are their own, signed ones have the sign turned, floats have
// all bits turned below zero and the sign set above. What differs between dtypes of one size are numbers, so that each size
// is compiled once.
template <class U>
struct Order {
  using Bits = U;
  static constexpr U kSign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));

  U below, above;  // what turns the bits with and without the top bit
  U infinity;      // of floats; of integers a number that no magnitude exceeds
  bool is_float;

  bool is_nan(U bits) const { return static_cast<U>(bits & static_cast<U>(~kSign)) > infinity; }
  bool is_zero(U bits) const { return is_float && static_cast<U>(bits & static_cast<U>(~kSign)) == 0; }
  // One to one for all but NaN; -0 comes before 0.
  U key(U bits) const { return static_cast<U>(bits ^ (bits & kSign ? below : above)); }
  U bits(U key) const { return static_cast<U>(key ^ ((key ^ above) & kSign ? below : above)); }
  // Equal for equal elements: -0 and 0 are; all NaN are, and come last.
  U rank(U bits) const {
    const U plain = static_cast<U>(is_float && bits == kSign ? 0 : bits);
    return is_nan(bits) ? static_cast<U>(~U{0}) : key(plain);
  }
  static U load(const char* from) {
    U bits;
    std::memcpy(&bits, from, sizeof bits);
    return bits;
  }

  static Order of_unsigned() { return {0, 0, static_cast<U>(~U{0}), false}; }
  static Order of_signed() { return {kSign, kSign, static_cast<U>(~U{0}), false}; }
  static Order of_float(U infinity) { return {static_cast<U>(~U{0}), kSign, infinity, true}; }
};

// Calls f with the Order of a plain dtype.
template <class F>
void with_order(DType type, F&& f) {
  using O8 = Order<std::uint8_t>;
  using O16 = Order<std::uint16_t>;
  using O32 = Order<std::uint32_t>;
  using O64 = Order<std::uint64_t>;
  switch (type) {
    case DType::i16: return f(O16::of_signed());
    case DType::u16: return f(O16::of_unsigned());
    case DType::f16: return f(O16::of_float(0x7c00));
    case DType::bf16: return f(O16::of_float(0x7f80));
    case DType::i32: return f(O32::of_signed());
    case DType::u32: return f(O32::of_unsigned());
    case DType::f32: return f(O32::of_float(0x7f800000u));
    case DType::i64: return f(O64::of_signed());
    case DType::u64: return f(O64::of_unsigned());
    case DType::f64: return f(O64::of_float(0x7ff0000000000000u));
    default: return f(type == DType::i8 ? O8::of_signed() : O8::of_unsigned());
  }
}

// A key and where its element was.
template <class K, class I>
struct Placed {
  K key;
  I index;
};

template <class U>
U key_of(U key) {
  return key;
}
template <class K, class I>
K key_of(const Placed<K, I>& e) {
  return e.key;
}

constexpr std::int64_t kInsertion = 40;  // so few are sorted by insertion

template <class E>
void insertion_sort(E* a, std::int64_t n) {
  for (std::int64_t i = 1; i < n; ++i) {
    const E e = a[i];
    std::int64_t j = i;
    for (; j > 0 && key_of(e) < key_of(a[j - 1]); --j) a[j] = a[j - 1];
    a[j] = e;
  }
}

// The least significant digit first, `Bits` of them at a time; digits that all keys share are left out. Returns where the
// sorted elements are: a or b. Undefined contents once the caller is to end early. `kSmall`: 32 bits count them.
template <int Bits, bool kSmall, class E>
E* radix_sort(E* a, E* b, std::int64_t n) {
  using K = decltype(key_of(*a));
  constexpr int kDigits = (8 * static_cast<int>(sizeof(K)) + Bits - 1) / Bits;
  constexpr std::uint32_t kMask = (1u << Bits) - 1;
  using Count = std::conditional_t<kSmall, std::uint32_t, std::int64_t>;
  Count counts[kDigits][kMask + 1] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const K key = key_of(a[i]);
    for (int d = 0; d < kDigits; ++d) ++counts[d][static_cast<std::uint32_t>(key >> d * Bits) & kMask];
  }
  for (int d = 0; d < kDigits; ++d) {
    Count* const count = counts[d];
    if (static_cast<std::int64_t>(count[static_cast<std::uint32_t>(key_of(a[0]) >> d * Bits) & kMask]) == n) continue;
    if (n >= (1 << 20) && ends_early()) return a;
    Count before = 0;
    for (std::uint32_t v = 0; v <= kMask; ++v) {
      const Count here = count[v];
      count[v] = before;
      before += here;
    }
    for (std::int64_t i = 0; i < n; ++i) b[count[static_cast<std::uint32_t>(key_of(a[i]) >> d * Bits) & kMask]++] = a[i];
    E* const other = a;
    a = b;
    b = other;
  }
  return a;
}

// A few bits of long keys at a time, or more where many share the cost of counting.
template <class E>
E* sort_digits(E* a, E* b, std::int64_t n) {
  constexpr bool kWide = sizeof(decltype(key_of(*a))) >= 4;
  if (n > INT64_C(0xffffffff)) return radix_sort<8, false>(a, b, n);
  if constexpr (kWide) {
    if (n >= (1 << 14)) return radix_sort<11, true>(a, b, n);
  }
  return radix_sort<8, true>(a, b, n);
}

// Keys of which there are few kinds: counted, then written in order. `counts` has one for each kind, all 0.
template <class U>
void count_sort(U* a, std::int64_t n, std::uint32_t* counts) {
  for (std::int64_t i = 0; i < n; ++i) ++counts[a[i]];
  for (std::uint32_t kind = 0; kind <= static_cast<U>(~U{0}); ++kind) {
    for (std::uint32_t left = counts[kind]; left > 0; --left) *a++ = static_cast<U>(kind);
  }
}
// False: too many or too few for it. `b` is room for n keys, in which those of 16 bits are counted.
template <class U>
bool sort_by_count(U* a, U* b, std::int64_t n) {
  if (n < kInsertion || n > INT64_C(0xffffffff)) return false;
  if constexpr (sizeof(U) == 1) {
    std::uint32_t counts[256] = {};
    count_sort(a, n, counts);
    return true;
  } else {
    constexpr std::size_t kBytes = sizeof(std::uint32_t) << 16;
    const std::size_t gap = -reinterpret_cast<std::uintptr_t>(b) % alignof(std::uint32_t);
    if (static_cast<std::size_t>(n) * sizeof(U) < kBytes + gap) return false;
    auto* const counts = reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(b) + gap);
    std::memset(counts, 0, kBytes);
    count_sort(a, n, counts);
    return true;
  }
}

template <class E>
E* stable_sort(E* a, E* b, std::int64_t n) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<E, std::uint32_t> || std::is_same_v<E, std::uint64_t>) {
    int depth = 8;
    for (std::int64_t left = n; left > 0; left /= 2) depth += 2;
    quick::sort(a, b, n, true, depth, [](E* x, E* y, std::int64_t count) { return sort_digits(x, y, count); });
    return a;
  }
#endif
  if constexpr (std::is_same_v<E, std::uint8_t> || std::is_same_v<E, std::uint16_t>) {
    if (sort_by_count(a, b, n)) return a;
  }
  if (n <= kInsertion) {
    insertion_sort(a, n);
    return a;
  }
  return sort_digits(a, b, n);
}

// Sorts the columns of n rows of `Lanes` keys each, all at once: a merge exchange network (Knuth, volume 3, algorithm
// 5.2.2M), which compares the same places whatever the keys are. Equal keys may change places.
template <int Lanes, class U>
void sort_columns(U* rows, std::int64_t n) {
  std::int64_t top = 1;
  while (2 * top < n) top *= 2;
  for (std::int64_t p = top; p > 0; p /= 2) {
    std::int64_t q = top, r = 0, d = p;
    for (;;) {
      for (std::int64_t block = r; block < n - d; block += 2 * p) {  // the places i with i & p == r
        const std::int64_t end = block + p < n - d ? block + p : n - d;
        for (std::int64_t i = block; i < end; ++i) {
          U *const a = rows + i * Lanes, *const b = rows + (i + d) * Lanes;
          for (int j = 0; j < Lanes; ++j) {
            const U x = a[j], y = b[j];
            a[j] = y < x ? y : x;
            b[j] = y < x ? x : y;
          }
        }
      }
      if (q == p) break;
      d = q - p;
      q /= 2;
      r = p;
    }
  }
}

// How many of the first k of two merged runs come from the first one; of equals its own come first.
template <class E>
std::int64_t taken_of_first(const E* a, std::int64_t n, const E* b, std::int64_t m, std::int64_t k) {
  std::int64_t low = k > m ? k - m : 0, high = k < n ? k : n;
  while (low < high) {
    const std::int64_t i = low + (high - low) / 2;
    if (key_of(b[k - i - 1]) < key_of(a[i])) {
      high = i;
    } else {
      low = i + 1;
    }
  }
  return low;
}

template <class E>
void merge(const E* a, const E* a_end, const E* b, const E* b_end, E* to) {
  while (a < a_end && b < b_end) {
    const bool second = key_of(*b) < key_of(*a);
    *to++ = second ? *b : *a;
    b += second;
    a += !second;
  }
  if (a < a_end) std::memcpy(to, a, static_cast<std::size_t>(a_end - a) * sizeof(E));
  if (b < b_end) std::memcpy(to, b, static_cast<std::size_t>(b_end - b) * sizeof(E));
}

}  // namespace tritium::TRITIUM_ISA
