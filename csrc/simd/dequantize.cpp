// dequantize: (w - zero) * scale as floats. Every step is one f32 operation, as in backends/reference/quantized.py.
#include "../fault.h"
#include "../integer/check.h"
#include "../integer/quantize.h"
#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "decode.h"
#include "gather.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 1 << 15;  // elements that make it worth waking another thread

// A number for the whole matrix, for each row, or for each group of a row's columns.
const char* number_at(const View& v, int64_t r, int64_t g) {
  return v.data + (v.ndim > 0 ? r * v.strides[0] : 0) + (v.ndim > 1 ? g * v.strides[1] : 0);
}

// Columns [first, first + count) of row r: (value - zero) * scale.
void scale_values(const Call& call, int64_t r, int64_t group, int64_t first, int64_t count, const std::int8_t* values,
                  float* x) {
  const View &scales = call.in[1], &zeros = call.in[2];
  each_group(first, count, group, values, [&](int64_t k, int64_t n, int64_t g, const std::int8_t* from) {
    float* const to = x + k;
    const auto scale = at<float>(number_at(scales, r, g));
    if (zeros.data) {
      const auto zero = static_cast<float>(at<std::int32_t>(number_at(zeros, r, g)));
      for_each(n, [&](int64_t i) __attribute__((always_inline)) { to[i] = (static_cast<float>(from[i]) - zero) * scale; });
    } else {
      for_each(n, [&](int64_t i) __attribute__((always_inline)) { to[i] = static_cast<float>(from[i]) * scale; });
    }
  });
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
    for (int64_t r = begin; r < end; ++r) {
      float* const x = direct ? reinterpret_cast<float*>(out.row(r)) : space.as<float>();
      if (w.format == DType::i8 && w.step == 1) {
        scale_values(call, r, group, 0, w.k, reinterpret_cast<const std::int8_t*>(w.data + r * w.row), x);
      } else {
        decode_steps(w, r, [&](int64_t first, int64_t count, const std::int8_t* values) {
          scale_values(call, r, group, first, count, values, x);
        });
      }
      if (!direct) store_floats(out, r, x);
    }
  });
}

constexpr Entry kEntries[] = {{"dequantize", dequantize, kWeightFormats, "group", 0, true}};

}  // namespace

Table dequantize_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
