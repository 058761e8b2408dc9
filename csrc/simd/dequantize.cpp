// dequantize: (w - zero) * scale as floats. Every step is one f32 operation, as in backends/reference/quantized.py.
// Knows nothing of Python.
#include <array>

#include "../fault.h"
#include "../integer/check.h"
#include "../integer/formats.h"
#include "../integer/quantize.h"
#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "gather.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;
using std::uint8_t;

constexpr int64_t kGrain = 1 << 15;  // elements that make it worth waking another thread

using Four = std::array<float, 4>;

// The four weights of every byte of tern2.
constexpr std::array<Four, 256> four_weights() {
  std::array<Four, 256> out{};
  for (unsigned b = 0; b < 256; ++b)
    for (unsigned j = 0; j < 4; ++j) out[b][j] = static_cast<float>(static_cast<int>(b >> 2 * j & 3) - 1);
  return out;
}
alignas(64) constexpr std::array<Four, 256> kFour = four_weights();

void decode_fours(const Weights& w, int64_t r, float* to) {
  const auto* from = reinterpret_cast<const uint8_t*>(w.data + r * w.row);
  const int64_t bytes = w.k / 4;
  for (int64_t i = 0; i < bytes; ++i) std::memcpy(to + 4 * i, kFour[from[i]].data(), sizeof(Four));
  if (w.k % 4) std::memcpy(to + 4 * bytes, kFour[from[bytes]].data(), static_cast<std::size_t>(w.k % 4) * 4);
}

template <DType F>
void decode_floats(const Weights& w, int64_t r, float* to) {
  if constexpr (F == DType::tern2) {
    decode_fours(w, r, to);
  } else {
    decode_row<F>(w, r, to);
  }
}

// A number for the whole matrix, for each row, or for each group of a row's columns.
const char* number_at(const View& v, int64_t r, int64_t g) {
  return v.data + (v.ndim > 0 ? r * v.strides[0] : 0) + (v.ndim > 1 ? g * v.strides[1] : 0);
}

// Of row r: x = (x - zero) * scale, group by group.
void scale_row(const Call& call, int64_t r, int64_t group, float* x, int64_t k) {
  const View &scales = call.in[1], &zeros = call.in[2];
  for (int64_t first = 0, g = 0; first < k; first += group, ++g) {
    const int64_t end = least(first + group, k);
    if (zeros.data) {
      const auto zero = static_cast<float>(at<std::int32_t>(number_at(zeros, r, g)));
      for (int64_t i = first; i < end; ++i) x[i] -= zero;
    }
    const auto scale = at<float>(number_at(scales, r, g));
    for (int64_t i = first; i < end; ++i) x[i] *= scale;
  }
}

// w[N, K] of any weight format, scale f32 of (), (N,) or (N, G), zero i32 likewise or absent -> floats [N, K].
void dequantize(const Call& call) {
  const Weights w(call.in[0]);
  if (w.n == 0 || w.k == 0) return;
  if (const int64_t bad = first_illegal(call.in[0]); bad >= 0)
    return set_fault({Faulty::code, "dequantize", {bad / w.k, bad % w.k}});
  const RowList out(call.out[0]);
  const int64_t asked = call.attrs->whole[0], group = call.in[1].ndim > 1 ? least(asked, w.k) : w.k;
  const bool direct = out.type == DType::f32 && (out.step == 4 || w.k == 1);
  parallel_for(w.n, kGrain / w.k + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(direct ? 0 : w.k * 4, Need::must);
    with_format(w.format, [&]<DType F>() {
      for (int64_t r = begin; r < end; ++r) {
        float* const x = direct ? reinterpret_cast<float*>(out.row(r)) : space.as<float>();
        decode_floats<F>(w, r, x);
        scale_row(call, r, group, x, w.k);
        if (!direct) store_floats(out, r, x);
      }
    });
  });
}

constexpr Entry kEntries[] = {{"dequantize", dequantize, kWeightFormats, "group", 0, true}};

}  // namespace

Table dequantize_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
