// The first k of a line in sorted order: vectors of it are compared with the last of the k known so far, and what cannot be
// among them is passed over.
#pragma once

#include <algorithm>

#include "lanes.h"
#include "order.h"

namespace tritium::TRITIUM_ISA {

// The bits of elements as signed numbers of the same order, by what every instruction set does with vectors. -0 is one below 0;
// NaN of both signs are above infinity, each by itself.
template <class U>
struct Signed {
  using S = std::make_signed_t<U>;
  static constexpr U kSign = Order<U>::kSign;

  U turned, shift;  // what turns the bits below zero, and what is added then
  U infinity;

  explicit Signed(const Order<U>& o)
      : turned(static_cast<U>(o.is_float ? ~kSign : 0)),
        shift(static_cast<U>(o.is_float ? o.infinity - static_cast<U>(~kSign) : o.above ^ kSign)),
        infinity(o.infinity) {}

  template <bool Float, class V>
  TRITIUM_INLINE V of(V bits, V sign) const {  // sign: all ones below zero
    return Float ? (bits ^ (sign & turned)) + shift : bits + shift;
  }
  S of(U bits) const {
    const U sign = static_cast<U>(bits & kSign ? turned : 0);
    return static_cast<S>(static_cast<U>((bits ^ sign) + shift));
  }
};

// Whether vectors hold elements that come before a bound, which is the rank of an element turned by `flip`.
template <class U, bool Float, bool Largest>
class Before {
  using S = std::make_signed_t<U>;
  static constexpr int L = kLanes<U>;

 public:
  static constexpr int kAtOnce = 4 * L;

  Before(const Order<U>& o, U rank) : signed_(o) {
    if (Float && rank == static_cast<U>(~U{0})) {  // NaN: every number comes before it, or none
      bound_ = static_cast<S>(signed_.of(signed_.infinity) + 1);
    } else {
      bound_ = signed_.of(o.bits(rank));
      if (Float && !Largest && o.is_zero(o.bits(rank))) --bound_;  // the other zero is equal
    }
  }
  // Of kAtOnce elements.
  TRITIUM_INLINE bool any(const U* from) const {
    Vec<S> some{};
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) some |= before(from + u * L);
    using Whole = Vec<std::uint64_t>;
    const auto either = [](const auto& a, const auto& b) { return a | b; };
    return fold_lanes<std::uint64_t, kLanes<std::uint64_t>>(reinterpret_cast<Whole>(some), either) != 0;
  }

 private:
  TRITIUM_INLINE Vec<S> before(const U* from) const {
    const Vec<U> bits = load(from);
    const Vec<U> sign = reinterpret_cast<Vec<U>>(reinterpret_cast<Vec<S>>(bits) < Vec<S>{});
    const Vec<S> v = reinterpret_cast<Vec<S>>(signed_.template of<Float>(bits, sign));
    return reinterpret_cast<Vec<S>>(Largest ? v > bound_ : v < bound_);
  }

  const Signed<U> signed_;
  S bound_;
};

// A few elements, always sorted.
constexpr std::int64_t kFew = 8;  // of more, putting each in its place costs more than it saves where the numbers rise
template <class E>
class Few {
 public:
  Few(E* memory, std::int64_t k) : a_(memory), k_(k) {}

  static std::int64_t room(std::int64_t k) { return k; }
  bool is_full() const { return count_ == k_; }
  auto bound() const { return a_[k_ - 1].key; }
  // Of an element that comes after those of its key.
  void add(E e) {
    std::int64_t i = count_ < k_ ? count_++ : k_ - 1;
    for (; i > 0 && e.key < a_[i - 1].key; --i) a_[i] = a_[i - 1];
    a_[i] = e;
  }
  const E* finish() { return a_; }

 private:
  E* const a_;
  const std::int64_t k_;
  std::int64_t count_ = 0;
};

// Many of them in the order in which they came, until there is no room left and half of them go.
template <class E>
class Many {
  using Key = decltype(E::key);

 public:
  Many(E* memory, std::int64_t k) : a_(memory), b_(memory + 2 * k), k_(k) {}

  static std::int64_t room(std::int64_t k) { return 4 * k; }
  bool is_full() const { return bounded_; }
  Key bound() const { return bound_; }
  void add(E e) {
    a_[count_++] = e;
    if (count_ == 2 * k_) drop();
  }
  const E* finish() {
    if (count_ > k_) drop();
    return stable_sort(a_, b_, k_);
  }

 private:
  [[gnu::noinline]] void drop() {
    Key* const keys = reinterpret_cast<Key*>(b_);
    for (std::int64_t i = 0; i < count_; ++i) keys[i] = a_[i].key;
    std::nth_element(keys, keys + k_ - 1, keys + count_);
    bound_ = keys[k_ - 1];
    bounded_ = true;
    std::int64_t equal = k_, kept = 0;  // of those equal to the bound the first ones stay
    for (std::int64_t i = 0; i < k_; ++i) equal -= keys[i] < bound_;
    for (std::int64_t i = 0; i < count_; ++i) {
      const E e = a_[i];
      const bool same = e.key == bound_, stays = e.key < bound_ || (same && equal > 0);
      equal -= same;
      a_[kept] = e;
      kept += stays;
    }
    count_ = k_;
  }

  E *const a_, *const b_;
  const std::int64_t k_;
  std::int64_t count_ = 0;
  Key bound_ = 0;
  bool bounded_ = false;
};

// Where a block goes on after its element `first`: with the next elements of which some may come before `bound`, a rank that is turned
// where the largest come first. `n`: with none.
template <class U>
using Next = std::int64_t (*)(const Order<U>& o, U bound, const U* block, std::int64_t first, std::int64_t n);

template <class U, bool Float, bool Largest>
std::int64_t next_before(const Order<U>& o, U bound, const U* block, std::int64_t first, std::int64_t n) {
  constexpr int kAtOnce = Before<U, Float, Largest>::kAtOnce;
  const Before<U, Float, Largest> before(o, static_cast<U>(Largest ? ~bound : bound));
  std::int64_t i = first;
  while (i + kAtOnce <= n && !before.any(block + i)) i += kAtOnce;
  return i;
}

// Offers the elements of a line to `chosen`.
template <bool Float, class E, class U, class Chosen>
[[gnu::noinline]] void offer_line(const Order<U>& order, Next<U> next, const char* from, std::int64_t stride, std::int64_t n,
                                  U flip, Chosen& chosen) {
  constexpr std::int64_t kBlock = 2048 / sizeof(U), kAtOnce = 4 * kLanes<U>;
  // The same, as far as the compiler may know it.
  const Order<U> o = Float ? Order<U>::of_float(order.infinity) : Order<U>{order.below, order.above, order.infinity, false};
  const auto element = [o, flip](U bits, std::int64_t index) -> E {
    return {static_cast<U>(o.rank(bits) ^ flip), static_cast<decltype(E::index)>(index)};
  };
  std::int64_t i = 0;
  for (; i < n && !chosen.is_full(); ++i) chosen.add(element(Order<U>::load(from + i * stride), i));
  alignas(64) U block[kBlock];
  for (; i < n && chosen.bound() > 0; i += kBlock) {  // nothing comes before 0
    const std::int64_t count = n - i < kBlock ? n - i : kBlock;
    if (stride == sizeof(U)) {
      std::memcpy(block, from + i * stride, static_cast<std::size_t>(count) * sizeof(U));
    } else {
      for (std::int64_t j = 0; j < count; ++j) block[j] = Order<U>::load(from + (i + j) * stride);
    }
    std::int64_t step = kAtOnce;
    for (std::int64_t j = 0; (j = next(o, static_cast<U>(chosen.bound()), block, j, count)) < count;) {
      const std::int64_t end = count - j < step ? count : j + step;
      std::int64_t added = 0;
      for (; j < end; ++j) {
        const E e = element(block[j], i + j);
        if (e.key < chosen.bound()) chosen.add(e), ++added;
      }
      step = 2 * added > step ? 4 * kAtOnce : kAtOnce;  // of numbers that rise every one is added
    }
  }
}

// The first k of n elements in sorted order, with memory for Chosen::room(k) of them.
template <template <class> class Chosen, class E, class U>
const E* select_first(const Order<U>& o, const char* from, std::int64_t stride, std::int64_t n, std::int64_t k, bool largest,
                      E* memory) {
  constexpr bool kFloat = sizeof(U) > 1;  // there are floats of this size
  const U flip = static_cast<U>(largest ? ~U{0} : 0);
  Chosen<E> chosen(memory, k);
  if (kFloat && o.is_float) {
    offer_line<kFloat, E>(o, largest ? next_before<U, kFloat, true> : next_before<U, kFloat, false>, from, stride, n, flip, chosen);
  } else {
    offer_line<false, E>(o, largest ? next_before<U, false, true> : next_before<U, false, false>, from, stride, n, flip, chosen);
  }
  return chosen.finish();
}

}  // namespace tritium::TRITIUM_ISA
