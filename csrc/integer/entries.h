// The rows integer_matmul and quantized_matmul for one kernel file: from the views of a call to a Product.
// Knows nothing of formats or instructions: the file includes this, defines plan(), and gives back products<formats>().
#pragma once

#include "../workspace.h"
#include "product.h"
#include "quantize.h"

namespace tritium::TRITIUM_ISA {

// How a product will be computed.
struct Plan {
  Layout layout;
  void (*run)(const Product&);
};

namespace {

constexpr std::int64_t kSlabBytes = 32 << 20;  // of activations that are quantised before they are multiplied

// Defined by the kernel file. m: tokens of the whole call.
Plan plan(const Product& p, std::int64_t m);

// Without columns every sum is 0.
void run_empty(const Product& p) {
  alignas(64) const std::int32_t zeros[kMaxRows] = {};
  alignas(64) const float nothing[kMaxRows] = {};
  for (std::int64_t t = 0; t < p.m; ++t) {
    for (std::int64_t row = 0; row < p.n; row += kMaxRows) {
      RowScales scales;
      const std::int64_t rows = least(kMaxRows, p.n - row);
      load_scales(p, row, rows, scales);
      p.grouped ? put_grouped(p, t, row, rows, scales, nothing) : put_sums(p, t, row, rows, scales, zeros);
    }
  }
}

// p knows all but its activations; tokens are done in slabs.
void run_product(Product& p, const RowList& x, const RowList& y) {
  if (x.count == 0 || p.n == 0) return;
  p.out = &y;
  p.units = ceil_div(p.k, kUnit);
  const Plan how = p.k == 0 ? Plan{{}, run_empty} : plan(p, x.count);
  std::int64_t slab = whole(kSlabBytes / ((p.units + 1) * kUnit) + 1, kUnit);
  for (p.first = 0; p.first < x.count; p.first += p.m) {
    p.m = least(slab, x.count - p.first);
    const ActivationPlan needs{how.layout, p.m, p.units, p.groups, p.scale_count()};
    const Workspace space(needs.bytes(), slab > kUnit ? Need::may : Need::must);
    if (needs.bytes() > 0 && !space.data()) {  // fewer tokens at a time need less
      slab = whole(slab / 2, kUnit);
      p.m = 0;
      continue;
    }
    p.a = needs.place(space.data());
    load_activations(p, x);
    how.run(p);
  }
}

// `w` outlives the product.
Product product_of(const View& x, const View& w) {
  Product p{};
  p.k = x.shape[x.ndim - 1];
  p.n = w.shape[0];
  p.group = most(p.k, 1);
  p.groups = 1;
  p.format = w.dtype;
  p.weights = &w;
  p.w = reinterpret_cast<const std::uint8_t*>(w.data);
  p.w_row = tile(w.dtype).rows == 1 ? w.strides[0] : matrix_bytes(w.dtype, 1, p.k);
  return p;
}

// q i8[..., K], w[N, K] -> i32[..., N].
void integer_matmul(const Call& call) {
  Product p = product_of(call.in[0], call.in[1]);
  run_product(p, RowList(call.in[0]), RowList(*call.out));
}

// x[..., K], w[N, K], scale () or (N,) or (N, G), bias (N,) or none -> [..., N] of x's dtype.
Product scaled_product(const Call& call) {
  Product p = product_of(call.in[0], call.in[1]);
  const View& scale = call.in[2];
  const bool biased = call.nin > 3 && call.in[3].data != nullptr;
  const std::int64_t group = call.attrs->whole[0];
  p.grouped = group > 0;
  if (p.grouped) {
    p.group = least(group, most(p.k, 1));
    p.groups = ceil_div(p.k, p.group);
  }
  p.scale = scale.data;
  p.scale_type = scale.dtype;
  p.scale_row = scale.ndim > 0 && scale.shape[0] != 1 ? scale.strides[0] : 0;
  p.scale_group = scale.ndim > 1 && scale.shape[1] != 1 ? scale.strides[1] : 0;
  p.bias = biased ? call.in[3].data : nullptr;
  p.bias_step = biased ? call.in[3].strides[0] : 0;
  p.after = call.attrs->after;
  p.before = call.attrs->before;
  return p;
}

void quantized_matmul(const Call& call) {
  Product p = scaled_product(call);
  run_product(p, RowList(call.in[0]), RowList(*call.out));
}

// With a scale for each group of a token's activations too.
void quantized_matmul_group(const Call& call) {
  Product p = scaled_product(call);
  p.by_group = true;
  run_product(p, RowList(call.in[0]), RowList(*call.out));
}

template <std::uint32_t Formats>
Table products() {
  static constexpr Entry entries[] = {
      {"integer_matmul", integer_matmul, Formats, "", 1},
      {"quantized_matmul", quantized_matmul, Formats, "group", 1},
      {"quantized_matmul_group", quantized_matmul_group, Formats, "group", 1},
  };
  return {entries, sizeof(entries) / sizeof(entries[0])};
}

}  // namespace
}  // namespace tritium::TRITIUM_ISA
