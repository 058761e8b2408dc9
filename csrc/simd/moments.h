// Mean and spread of contiguous elements, accurate when the mean is far larger than the spread.
// Knows nothing of tensors.
#pragma once

#include <cstdint>

#include "lanes.h"

namespace tritium::TRITIUM_ISA {

// n elements with this mean, and the sum of their squared distances from it.
struct Moments {
  double n = 0, mean = 0, squares = 0;
};

inline __attribute__((always_inline)) void join(Moments& a, const Moments& b) {
  const double n = a.n + b.n, distance = b.mean - a.mean;
  const double share = n > 0 ? b.n / n : 0;
  a.squares += b.squares + distance * distance * (a.n * share);
  a.mean += distance * share;
  a.n = n;
}

// Looks at the elements twice or more: call it on blocks that fit L1 and join the results.
// The centre is the mean rounded to T; what the rounding left over is the mean of the distances, put right at the end.
template <class T>
Moments moments(const T* x, std::int64_t n) {
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
  return {count, static_cast<double>(centre) + rest / count, squares - rest * rest / count};
}

}  // namespace tritium::TRITIUM_ISA
