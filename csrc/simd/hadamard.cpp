// hadamard: a signed Walsh-Hadamard transform of each block of a row, in f32.
// Additions are in one order, stage by stage, so that every instruction set gives the same
// bits; compiled without contraction.
#include <cstdint>
#include <utility>

#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "axes.h"
#include "gather.h"
#include "loops.h"
#include "wide.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 8192;  // elements that make it worth waking another thread

// Sums and differences of elements `half` apart.
void step(float* x, int64_t n, int64_t half) {
  for (int64_t i = 0; i < n; i += 2 * half) {
    float *const one = x + i, *const two = one + half;
    TRITIUM_LOOP
    for (int64_t j = 0; j < half; ++j) {
      const float a = one[j], b = two[j];
      one[j] = a + b;
      two[j] = a - b;
    }
  }
}

// As `step` for lanes of a vector `half` apart: each lane meets its partner, and takes their sum or their difference.
template <int half, int... lane>
TRITIUM_INLINE Wide step_lanes(const Wide& x, std::integer_sequence<int, lane...>) {
  const Wide partner = __builtin_shufflevector(x, x, (lane ^ half)...);
  const Wide sum = x + partner, difference = partner - x;
  return __builtin_shufflevector(sum, difference, (lane & half ? lane + kWide : lane)...);
}

template <int half>
TRITIUM_INLINE Wide step_within(Wide x) {
  if constexpr (half < kWide) {
    return step_within<2 * half>(step_lanes<half>(x, std::make_integer_sequence<int, kWide>()));
  } else {
    return x;
  }
}

// The stages whose elements meet inside a vector, all of them in registers.
void step_vectors(float* x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; i += kWide) store(x + i, step_within<1>(load(x + i)) * scale);
}

// `count` stages at once for elements `half` and more apart, whole vectors: memory is read and written once for all of them.
template <int count>
void steps(float* x, int64_t n, int64_t half, float scale) {
  constexpr int kParts = 1 << count;
  for (int64_t i = 0; i < n; i += kParts * half) {
    for (int64_t j = i; j < i + half; j += kWide) {
      Wide v[kParts];
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p) v[p] = load(x + j + p * half);
#pragma GCC unroll 3
      for (int d = 1; d < kParts; d *= 2) {
#pragma GCC unroll 8
        for (int p = 0; p < kParts; ++p) {
          if (p & d) continue;
          const Wide a = v[p], b = v[p + d];
          v[p] = a + b;
          v[p + d] = a - b;
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p) store(x + j + p * half, v[p] * scale);
    }
  }
}

// All stages of a block of whole vectors. A scale of 1 leaves the numbers of a pass that is not the last as they are.
void transform_vectors(float* x, int64_t block, float scale) {
  step_vectors(x, block, block == kWide ? scale : 1.0f);
  for (int64_t half = kWide; half < block;) {
    int stages = 1;
    while (stages < 3 && half << stages < block) ++stages;
    const float by = half << stages < block ? 1.0f : scale;
    (stages == 1 ? steps<1> : stages == 2 ? steps<2> : steps<3>)(x, block, half, by);
    half <<= stages;
  }
}

void multiply(float* x, const float* by, int64_t n) {
  TRITIUM_LOOP
  for (int64_t i = 0; i < n; ++i) x[i] *= by[i];
}

void transform(float* x, int64_t block, const float* signs, bool inverse) {
  if (signs != nullptr && !inverse) multiply(x, signs, block);
  const float scale = static_cast<float>(1 / __builtin_sqrt(static_cast<double>(block)));
  if (block >= kWide) {
    transform_vectors(x, block, scale);
  } else {
    for (int64_t half = 1; half < block; half *= 2) step(x, block, half);
    TRITIUM_LOOP
    for (int64_t i = 0; i < block; ++i) x[i] *= scale;
  }
  if (signs != nullptr && inverse) multiply(x, signs, block);
}

void hadamard(const Call& call) {
  const View &x = call.in[0], &y = *call.out;
  const int last = x.ndim - 1;
  const int64_t n = x.shape[last];
  if (x.size() == 0) return;
  const View* const given = call.nin > 1 && call.in[1].data != nullptr ? &call.in[1] : nullptr;
  const Workspace kept(given ? n * static_cast<int64_t>(sizeof(float)) : 0, Need::must);
  if (given) gather_as<float, float>(given->data, given->strides[0], kept.data(), n);
  const float* const signs = given ? kept.as<float>() : nullptr;
  const int64_t block = call.attrs->absent & 1 ? n & -n : call.attrs->whole[0], blocks = n / block;
  const bool inverse = call.attrs->whole[1] != 0;
  Axis keep[kMaxDims];
  int64_t rows = 1;
  for (int d = 0; d < last; ++d) {
    keep[d] = {x.shape[d], x.strides[d], y.strides[d]};
    rows *= x.shape[d];
  }
  const bool write = y.dtype == DType::f32 && y.strides[last] == 4;
  const Gather gather = gather_of<float>(x.dtype);
  parallel_for(rows * blocks, kGrain / block + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(write ? 0 : block * static_cast<int64_t>(sizeof(float)), Need::must);
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = u % blocks * block;
      const char* const from = x.data + offset(keep, last, u / blocks, &Axis::in) + first * x.strides[last];
      char* const to = y.data + offset(keep, last, u / blocks, &Axis::out) + first * y.strides[last];
      float* const line = write ? reinterpret_cast<float*>(to) : space.as<float>();
      if (from != reinterpret_cast<const char*>(line) || x.strides[last] != 4 || x.dtype != DType::f32)
        gather(from, x.strides[last], line, block);
      transform(line, block, signs ? signs + first : nullptr, inverse);
      if (!write) scatter(y.dtype, line, to, y.strides[last], block);
    }
  });
}

constexpr std::uint32_t kHalfOrSingle = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32);
constexpr Entry kEntries[] = {{"hadamard", hadamard, kHalfOrSingle, "block,inverse", 0}};

}  // namespace

Table hadamard_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
