// Products of one or two rows with as many columns: sums of two vectors, read where they lie.
#pragma once

#include <cstdint>

#include "../threads.h"
#include "../workspace.h"
#include "gather.h"
#include "lanes.h"

namespace tritium::TRITIUM_ISA {

constexpr std::int64_t kFewDots = 2;       // rows, and columns
constexpr std::int64_t kDotPiece = 4096;   // elements summed by themselves, so that threads do not change the sum
constexpr std::int64_t kDotGrain = 16;     // pieces that make it worth waking another thread

// A vector of C as adjacent elements: itself, or a copy of `n` of them.
template <class C>
TRITIUM_INLINE const C* dense_part(const char* from, std::int64_t step, bool direct, Gather gather, C* buffer, std::int64_t n) {
  if (direct && step == static_cast<std::int64_t>(sizeof(C))) return reinterpret_cast<const C*>(from);
  gather(from, step, buffer, n);
  return buffer;
}

// sum over i < k of a[i] * b[i], byte strides; elements of another dtype than C are converted by `gather`.
template <class C>
double dot(const char* a, std::int64_t a_step, const char* b, std::int64_t b_step, std::int64_t k, bool direct,
           Gather gather) {
  const std::int64_t pieces = (k + kDotPiece - 1) / kDotPiece;
  const Workspace space(pieces * static_cast<std::int64_t>(sizeof(double)), Need::must);
  double* const sums = space.as<double>();
  parallel_for(pieces, kDotGrain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) C left[kDotPiece], right[kDotPiece];
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t first = p * kDotPiece, n = k - first < kDotPiece ? k - first : kDotPiece;
      const C* const x = dense_part(a + first * a_step, a_step, direct, gather, left, n);
      const C* const y = dense_part(b + first * b_step, b_step, direct, gather, right, n);
      sums[p] = sum_lanes<C>(
          n, [x, y](std::int64_t i) { return load(x + i) * load(y + i); }, [x, y](std::int64_t i) { return x[i] * y[i]; });
    }
  });
  double sum = 0;
  for (std::int64_t p = 0; p < pieces; ++p) sum += sums[p];
  return sum;
}

}  // namespace tritium::TRITIUM_ISA
