// Mean and spread of contiguous elements, accurate when the mean is far larger than the spread.
#pragma once

#include <cstdint>

#include "lanes.h"

namespace tritium::TRITIUM_ISA {

// n elements with the mean centre + rest, kept apart so that a small rest loses nothing to a large centre, and the sum
// of their squared distances from the mean.
struct Moments {
  double n = 0, centre = 0, rest = 0, squares = 0;
};

inline __attribute__((always_inline)) void join(Moments& a, const Moments& b) {
  if (a.n == 0) a.centre = b.centre;
  const double n = a.n + b.n, share = n > 0 ? b.n / n : 0;
  const double distance = (b.centre - a.centre) + (b.rest - a.rest);
  a.squares += b.squares + distance * distance * (a.n * share);
  a.rest += distance * share;
  a.n = n;
}

// The centre is the mean rounded to T, so that distances from it are exact where it matters.
template <class T>
Moments piece_moments(const T* x, std::int64_t n) {
  constexpr int L = kLanes<T>, U = 4;
  const double count = static_cast<double>(n);
  const T centre = static_cast<T>(sum_of(x, n) / count);
  const Vec<T> middle = splat(centre);
  double rest = 0, squares = 0;
  std::int64_t i = 0;
  if (n >= L) {
    Vec<T> first[U] = {}, second[U] = {};
    const auto add = [&](const Vec<T>& d, int u) {
      first[u] += d;
      second[u] += d * d;
    };
    for (; i + U * L <= n; i += U * L) {
#pragma GCC unroll 4
      for (int u = 0; u < U; ++u) add(load(x + i + u * L) - middle, u);
    }
    for (; i + L <= n; i += L) add(load(x + i) - middle, 0);
    add(last_lanes<T>(load(x + n - L) - middle, n - i), 1);
    i = n;
    rest = add_lanes((first[0] + first[1]) + (first[2] + first[3]));
    squares = add_lanes((second[0] + second[1]) + (second[2] + second[3]));
  }
  for (; i < n; ++i) {
    const double d = static_cast<double>(x[i] - centre);
    rest += d;
    squares += d * d;
  }
  return {count, static_cast<double>(centre), rest / count, squares - rest * rest / count};
}

// In pieces that fit L1 for the second look, and so short that a lane adds a few dozen elements.
template <class T>
Moments moments(const T* x, std::int64_t n) {
  constexpr std::int64_t kPiece = 128 * kLanes<T>;
  if (n <= kPiece) return piece_moments(x, n);
  Moments all;
  for (std::int64_t i = 0; i < n; i += kPiece) join(all, piece_moments(x + i, n - i < kPiece ? n - i : kPiece));
  return all;
}

}  // namespace tritium::TRITIUM_ISA
