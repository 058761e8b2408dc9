// Activations as the ARM kernels read them: panels of a few tokens, interleaved by D = 4 or 8 k.
// A panel of W tokens is y[k/D][W][D]; of one token it is the row itself.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "product.h"

namespace tritium::TRITIUM_ISA {
namespace {

// Tokens [first, first + count), and zeros up to `width`.
struct Panel {
  std::int64_t first;
  int count, width;
};

// The panels of some tokens: as many as there are of one width, then a few narrower ones. Only the last has padding, so
// a panel starts `first` rows of k after the start of all.
struct Panels {
  std::int64_t tokens, full;
  int width, rest[4] = {0, 0, 0, 0}, rests = 0;
  std::int64_t padded;

  // pick(left) says which width serves the next of `left` < width tokens best.
  Panels(std::int64_t m, int widest, int (*pick)(int)) : tokens(m), full(m / widest), width(widest) {
    int left = static_cast<int>(m % widest);
    padded = m - left;
    while (left > 0) {
      const int next = pick(left);
      rest[rests++] = next;
      padded += next;
      left -= next;
    }
  }

  std::int64_t count() const { return full + rests; }
  Panel operator[](std::int64_t i) const {
    if (i < full) return {i * width, width, width};
    std::int64_t first = full * width;
    for (std::int64_t r = 0; r < i - full; ++r) first += rest[r];
    const int here = rest[i - full];
    return {first, static_cast<int>(least(here, tokens - first)), here};
  }
};

// Four rows of 16 k, interleaved by 4: to + i * step gets k 4i … 4i + 3 of each.
inline void interleave4(const std::int8_t* q, std::int64_t stride, std::int8_t* to, std::int64_t step) {
  int32x4_t r[4];
  for (int i = 0; i < 4; ++i) r[i] = vreinterpretq_s32_s8(vld1q_s8(q + i * stride));
  const int32x4_t a0 = vzip1q_s32(r[0], r[2]), a1 = vzip2q_s32(r[0], r[2]);
  const int32x4_t b0 = vzip1q_s32(r[1], r[3]), b1 = vzip2q_s32(r[1], r[3]);
  vst1q_s8(to, vreinterpretq_s8_s32(vzip1q_s32(a0, b0)));
  vst1q_s8(to + step, vreinterpretq_s8_s32(vzip2q_s32(a0, b0)));
  vst1q_s8(to + 2 * step, vreinterpretq_s8_s32(vzip1q_s32(a1, b1)));
  vst1q_s8(to + 3 * step, vreinterpretq_s8_s32(vzip2q_s32(a1, b1)));
}

// One panel of k activations, k a multiple of 16, from plain rows `stride` bytes apart.
template <int D>
void pack_panel(const std::int8_t* q, std::int64_t stride, std::int64_t k, const Panel& panel, std::int8_t* to) {
  const int width = panel.width;
  if (width == 1) {
    std::memcpy(to, q, static_cast<std::size_t>(k));
    return;
  }
  int c = 0;
  for (; D == 4 && c + 4 <= panel.count; c += 4) {
    for (std::int64_t i = 0; i < k; i += 16) interleave4(q + c * stride + i, stride, to + i * width + c * D, width * D);
  }
  for (; c < panel.count; ++c) {
    for (std::int64_t i = 0; i < k; i += D) std::memcpy(to + i * width + c * D, q + c * stride + i, D);
  }
  for (; c < width; ++c) {
    for (std::int64_t i = 0; i < k; i += D) std::memset(to + i * width + c * D, 0, D);
  }
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
