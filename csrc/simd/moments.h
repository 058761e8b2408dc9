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
  const double count = static_cast<double>(n);
  const double total = sum_lanes<T>(n, [x](std::int64_t i) { return load(x + i); }, [x](std::int64_t i) { return x[i]; });
  const T centre = static_cast<T>(total / count);
  const Vec<T> middle = splat(centre);
  const double rest = sum_lanes<T>(n, [=](std::int64_t i) { return load(x + i) - middle; }, [=](std::int64_t i) { return x[i] - centre; });
  const double squares = sum_lanes<T>(
      n, [=](std::int64_t i) { const Vec<T> d = load(x + i) - middle; return d * d; },
      [=](std::int64_t i) { const T d = x[i] - centre; return d * d; });
  return {count, static_cast<double>(centre) + rest / count, squares - rest * rest / count};
}

}  // namespace tritium::TRITIUM_ISA
