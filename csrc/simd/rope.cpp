// rope: pairs of elements of each head, turned by an angle.
// Knows nothing of positions: cosines and sines are given. Some heads, and the last elements of each, may be passed on as they
// are. Compiled without contraction: the bits are the reference's.
#include <cstdint>

#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "gather.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 8192;  // elements that make it worth waking another thread

// All leading dimensions of x but the heads; the strides of cos, sin and y beside them.
struct Tokens {
  int ndim;
  int64_t count = 1, shape[kMaxDims], strides[4][kMaxDims];

  Tokens(const View& x, const View& cos, const View& sin, const View& y) : ndim(x.ndim - 2) {
    for (int d = 0; d < ndim; ++d) {
      count *= shape[d] = x.shape[d];
      strides[0][d] = x.strides[d];
      strides[1][d] = broadcast(cos, d);
      strides[2][d] = broadcast(sin, d);
      strides[3][d] = y.strides[d];
    }
  }
  // An angle has these dimensions and one more, counted from the right.
  int64_t broadcast(const View& angle, int d) const {
    const int at = d + angle.ndim - 1 - ndim;
    return at < 0 || angle.shape[at] == 1 ? 0 : angle.strides[at];
  }
  void offsets(int64_t token, int64_t (&to)[4]) const {
    for (int64_t& o : to) o = 0;
    for (int d = ndim - 1; d >= 0; --d) {
      for (int i = 0; i < 4; ++i) to[i] += token % shape[d] * strides[i][d];
      token /= shape[d];
    }
  }
};

void turn_halves(const float* x, const float* cos, const float* sin, float* y, int64_t half) {
  TRITIUM_LOOP
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    y[i] = a * cos[i] - b * sin[i];
    y[i + half] = b * cos[i] + a * sin[i];
  }
}

void turn_neighbours(const float* x, const float* cos, const float* sin, float* y, int64_t half) {
  TRITIUM_LOOP
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * cos[i] - b * sin[i];
    y[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

// The last axis of an angle as adjacent floats.
const float* angles(const View& v, int64_t offset, int64_t half, float* buffer) {
  const int64_t n = v.shape[v.ndim - 1], step = n == 1 ? 0 : v.strides[v.ndim - 1];
  if (step == 4 || half == 1) return reinterpret_cast<const float*>(v.data + offset);
  gather_as<float, float>(v.data + offset, step, buffer, half);
  return buffer;
}

void rope(const Call& call) {
  const View &x = call.in[0], &cos = call.in[1], &sin = call.in[2], &y = *call.out;
  const int last = x.ndim - 1;
  const int64_t heads = x.shape[last - 1], size = x.shape[last];
  const int64_t turned_size = call.attrs->absent & 4 ? size : call.attrs->whole[2], half = turned_size / 2;  // the rest passes
  const Tokens tokens(x, cos, sin, y);
  if (tokens.count * heads * size == 0) return;
  const bool interleaved = call.attrs->whole[0] != 0;
  const int64_t turning = call.attrs->absent & 2 ? heads : call.attrs->whole[1];  // heads; the others pass
  const bool read = x.dtype == DType::f32 && x.strides[last] == 4, write = x.dtype == DType::f32 && y.strides[last] == 4;
  const Gather gather = gather_of<float>(x.dtype);
  parallel_for(tokens.count, kGrain / (heads * size) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(3 * size * static_cast<int64_t>(sizeof(float)), Need::must);
    float *const wide = space.as<float>(), *const turned = wide + size, *const angle = turned + size;
    for (int64_t t = begin; t < end; ++t) {
      int64_t at[4];
      tokens.offsets(t, at);
      const float* const c = angles(cos, at[1], half, angle);
      const float* const s = angles(sin, at[2], half, angle + half);
      for (int64_t h = 0; h < heads; ++h) {
        const char* const from = x.data + at[0] + h * x.strides[last - 1];
        char* const to = y.data + at[3] + h * y.strides[last - 1];
        if (!read) gather(from, x.strides[last], wide, size);
        const float* const in = read ? reinterpret_cast<const float*>(from) : wide;
        float* const out = write ? reinterpret_cast<float*>(to) : turned;
        const int64_t changed = h < turning ? 2 * half : 0;
        if (changed) interleaved ? turn_neighbours(in, c, s, out, half) : turn_halves(in, c, s, out, half);
        if (changed < size)
          __builtin_memcpy(out + changed, in + changed, static_cast<std::size_t>(size - changed) * sizeof(float));
        if (!write) scatter(y.dtype, out, to, y.strides[last], size);
      }
    }
  });
}

constexpr std::uint32_t kHalfOrSingle = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32);
constexpr Entry kEntries[] = {{"rope", rope, kHalfOrSingle, "interleaved,heads,size", 0}};

}  // namespace

Table rope_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
