// Loop dimensions with an input and an output stride: sorting, merging, and the offset of an index.
#pragma once

#include <cstdint>

namespace tritium::TRITIUM_ISA {

struct Axis {
  std::int64_t n, in, out;  // strides in bytes
};

inline std::int64_t magnitude(std::int64_t x) { return x < 0 ? -x : x; }

inline std::int64_t offset(const Axis* axes, int n, std::int64_t index, std::int64_t Axis::*stride) {
  if (n == 1) return index * (axes[0].*stride);
  std::int64_t sum = 0;
  for (int d = n - 1; d >= 0; --d) {
    sum += index % axes[d].n * (axes[d].*stride);
    index /= axes[d].n;
  }
  return sum;
}

// Sorted: the widest input stride first.
inline void insert(Axis* axes, int& n, const Axis& axis, bool sorted) {
  int at = n++;
  for (; sorted && at > 0 && magnitude(axes[at - 1].in) < magnitude(axis.in); --at) axes[at] = axes[at - 1];
  axes[at] = axis;
}

inline void merge_neighbours(Axis* axes, int& n) {
  int last = 0;
  for (int d = 1; d < n; ++d) {
    Axis& outer = axes[last];
    if (outer.in == axes[d].in * axes[d].n && outer.out == axes[d].out * axes[d].n) {
      outer = {outer.n * axes[d].n, axes[d].in, axes[d].out};
    } else {
      axes[++last] = axes[d];
    }
  }
  n = n > 0 ? last + 1 : 0;
}

}  // namespace tritium::TRITIUM_ISA
