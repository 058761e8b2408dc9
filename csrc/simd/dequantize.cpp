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

// Floats of a table's entry: as many as a byte has weights, rounded up to a power of two, so that a copy is one move.
template <DType F>
constexpr int kEntry = kFields<F> <= 2 ? 2 : kFields<F> <= 4 ? 4 : 8;

// The weights of every byte of a format that is packed along rows.
template <DType F>
const float* byte_weights() {
  alignas(64) static const std::array<float, 256 * kEntry<F>> table = [] {
    std::array<float, 256 * kEntry<F>> out{};
    for (unsigned b = 0; b < 256; ++b)
      for (int j = 0; j < kFields<F>; ++j)
        out[b * kEntry<F> + static_cast<unsigned>(j)] = static_cast<float>(field_value<F>(static_cast<uint8_t>(b), j));
    return out;
  }();
  return table.data();
}

// Whole entries are copied where there is room for them; what is beyond a byte's weights is overwritten by the next.
template <DType F>
void decode_bytes(const Weights& w, int64_t r, const float* table, float* to) {
  constexpr int fields = kFields<F>, entry = kEntry<F>;
  const auto* from = reinterpret_cast<const uint8_t*>(w.data + r * w.row);
  const int64_t room = w.k < entry ? 0 : (w.k - entry) / fields + 1;
  int64_t i = 0;
  for (; i < room; ++i) std::memcpy(to + i * fields, table + from[i] * entry, entry * sizeof(float));
  for (int64_t k = i * fields; k < w.k; k += fields, ++i)
    std::memcpy(to + k, table + from[i] * entry, static_cast<std::size_t>(least(w.k - k, fields)) * sizeof(float));
}

template <DType F>
constexpr bool kByBytes = F != DType::i8 && tile(F).rows == 1;

template <DType F>
void decode_floats(const Weights& w, int64_t r, float* to) {
  if constexpr (kByBytes<F>) {
    decode_bytes<F>(w, r, byte_weights<F>(), to);
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

// Row r of bytes side by side, in one pass.
void scale_bytes(const Call& call, const Weights& w, int64_t r, int64_t group, float* to) {
  const View &scales = call.in[1], &zeros = call.in[2];
  const auto* from = reinterpret_cast<const std::int8_t*>(w.data + r * w.row);
  for (int64_t first = 0, g = 0; first < w.k; first += group, ++g) {
    const int64_t end = least(first + group, w.k);
    const auto scale = at<float>(number_at(scales, r, g));
    if (zeros.data) {
      const auto zero = static_cast<float>(at<std::int32_t>(number_at(zeros, r, g)));
      for (int64_t i = first; i < end; ++i) to[i] = (static_cast<float>(from[i]) - zero) * scale;
    } else {
      for (int64_t i = first; i < end; ++i) to[i] = static_cast<float>(from[i]) * scale;
    }
  }
}

// Rows of a matrix with one scale: its table is scaled once, as its elements would be.
template <DType F>
void decode_scaled(const Call& call, const Weights& w, const RowList& out, int64_t begin, int64_t end, float* memory) {
  alignas(64) float table[256 * kEntry<F>];
  std::memcpy(table, byte_weights<F>(), sizeof table);
  scale_row(call, 0, 256 * kEntry<F>, table, 256 * kEntry<F>);
  for (int64_t r = begin; r < end; ++r) {
    float* const x = memory ? memory : reinterpret_cast<float*>(out.row(r));
    decode_bytes<F>(w, r, table, x);
    if (memory) store_floats(out, r, x);
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
      if constexpr (kByBytes<F>) {
        if (call.in[1].ndim == 0 && (!call.in[2].data || call.in[2].ndim == 0) && (end - begin) * w.k >= 4096)
          return decode_scaled<F>(call, w, out, begin, end, direct ? nullptr : space.as<float>());
      }
      for (int64_t r = begin; r < end; ++r) {
        float* const x = direct ? reinterpret_cast<float*>(out.row(r)) : space.as<float>();
        if (F == DType::i8 && w.step == 1) {
          scale_bytes(call, w, r, group, x);
        } else {
          decode_floats<F>(w, r, x);
          scale_row(call, r, group, x, w.k);
        }
        if (!direct) store_floats(out, r, x);
      }
    });
  });
}

constexpr Entry kEntries[] = {{"dequantize", dequantize, kWeightFormats, "group", 0, true}};

}  // namespace

Table dequantize_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
