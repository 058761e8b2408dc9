// hadamard: a signed Walsh-Hadamard transform of each block of a row, in f32.
// Knows nothing of what it is for. Additions are in one order, stage by stage, so that every instruction set gives the same
// bits; compiled without contraction.
#include <cstdint>

#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "axes.h"
#include "gather.h"
#include "loops.h"

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

// The stages of halves 1, 2 and 4 for each eight neighbours, which stay in registers.
void step_eights(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) {
    float v[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) v[j] = x[i + j];
#pragma GCC unroll 3
    for (int half = 1; half < 8; half *= 2) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        if (j & half) continue;
        const float a = v[j], b = v[j + half];
        v[j] = a + b;
        v[j + half] = a - b;
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) x[i + j] = v[j];
  }
}

void multiply(float* x, const float* by, int64_t n) {
  TRITIUM_LOOP
  for (int64_t i = 0; i < n; ++i) x[i] *= by[i];
}

void transform(float* x, int64_t block, const float* signs, bool inverse) {
  if (signs != nullptr && !inverse) multiply(x, signs, block);
  int64_t half = 1;
  if (block >= 8) {
    step_eights(x, block);
    half = 8;
  }
  for (; half < block; half *= 2) step(x, block, half);
  const float scale = static_cast<float>(1 / __builtin_sqrt(static_cast<double>(block)));
  TRITIUM_LOOP
  for (int64_t i = 0; i < block; ++i) x[i] *= scale;
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
