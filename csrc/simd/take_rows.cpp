// take_rows: rows of a matrix of integer weights as floats, t * scale, one f32 product for each element.
// Codes are not checked: weights are when they are made.
#include "../fault.h"
#include "../integer/quantize.h"
#include "../threads.h"
#include "../view.h"
#include "../workspace.h"
#include "decode.h"
#include "gather.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 1 << 14;  // elements that make it worth waking another thread

// The indices one by one: rows of one element.
RowList index_list(View ids) {
  ids.shape[ids.ndim] = 1;
  ids.strides[ids.ndim++] = 0;
  return RowList(ids);
}

int64_t index_at(const RowList& ids, int64_t i) {
  return ids.type == DType::i32 ? at<std::int32_t>(ids.row(i)) : at<int64_t>(ids.row(i));
}

// The scale of the whole matrix, of a row, or of a group of a row's columns: f32 or f16.
float scale_at(const View& v, int64_t r, int64_t g) {
  const char* const p = v.data + (v.ndim > 0 ? r * v.strides[0] : 0) + (v.ndim > 1 ? g * v.strides[1] : 0);
  return v.dtype == DType::f16 ? f16_to_f32(at<std::uint16_t>(p)) : at<float>(p);
}

// w[N, K] of any weight format, scale of (), (N,) or (N, G), ids of any shape -> f32 [..., K].
void take_rows(const Call& call) {
  const Weights w(call.in[0]);
  const View& scales = call.in[1];
  const RowList ids = index_list(call.in[2]), out(call.out[0]);
  for (int64_t i = 0; i < ids.count; ++i) {
    const int64_t index = index_at(ids, i);
    if (index < -w.n || index >= w.n) return set_fault({Faulty::index, "take_rows", {index, w.n, 0}});
  }
  if (ids.count == 0 || w.k == 0) return;
  const int64_t group = scales.ndim > 1 ? least(call.attrs->whole[0], w.k) : w.k;
  const bool direct = out.step == 4 || w.k == 1;
  parallel_for(ids.count, kGrain / w.k + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(direct ? 0 : w.k * 4, Need::must);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t index = index_at(ids, i), r = index < 0 ? index + w.n : index;
      float* const x = direct ? reinterpret_cast<float*>(out.row(i)) : space.as<float>();
      decode_steps(w, r, [&](int64_t first, int64_t count, const std::int8_t* values) {
        each_group(first, count, group, values, [&](int64_t k, int64_t n, int64_t g, const std::int8_t* from) {
          const float scale = scale_at(scales, r, g);
          float* const to = x + k;
          for_each(n, [&](int64_t i) __attribute__((always_inline)) { to[i] = static_cast<float>(from[i]) * scale; });
        });
      });
      if (!direct) store_floats(out, i, x);
    }
  });
}

constexpr Entry kEntries[] = {{"take_rows", take_rows, kWeightFormats, "group", 0, true}};

}  // namespace

Table take_rows_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
