// Runs rows of the span tables on views, and finds spans by name.
#include <cstring>
#include <initializer_list>

#include "iterate.h"
#include "span.h"

namespace tritium::TRITIUM_ISA {
namespace {

void run_span(const void* context, const char* const* in, char* out, std::int64_t n) {
  const SpanCall& call = *static_cast<const SpanCall*>(context);
  call.run(in[0], call.arity > 1 ? in[1] : nullptr, call.arity > 2 ? in[2] : nullptr, out, n);
}

}  // namespace

SpanCall span_call(const SpanRow& row, DType dtype) {
  SpanCall call{row.of[static_cast<int>(dtype)], row.arity, row.cost, dtype, dtype};
  if (call.run == nullptr && (dtype == DType::f16 || dtype == DType::bf16)) {
    call.run = row.of[static_cast<int>(DType::f32)];
    call.in = call.out = DType::f32;
  }
  if (row.result == Result::boolean) call.out = DType::b8;
  return call;
}

SpanCall find_span(const char* name, DType dtype) {
  for (const SpanTable& table :
       {map_arithmetic_spans(), map_bits_spans(), map_compare_spans(), map_float_spans()}) {
    for (std::size_t i = 0; i < table.count; ++i) {
      if (std::strcmp(table.first[i].name, name) == 0) return span_call(table.first[i], dtype);
    }
  }
  return {};
}

void map_call(const SpanRow& row, const Call& call) {
  const SpanCall span = span_call(row, call.in[0].dtype);
  Body body{run_span, &span, {}, span.out, INT64_MAX, static_cast<std::int64_t>(span.cost)};
  for (int i = 0; i < span.arity; ++i) body.in[i] = span.in;
  iterate(body, call.in, span.arity, *call.out);
}

}  // namespace tritium::TRITIUM_ISA
