// The inner loops of the elementwise kernels as a table: one loop over contiguous memory per operation and dtype.
#pragma once

#include <cstdint>

#include "../view.h"

namespace tritium::TRITIUM_ISA {

// out[i] = f(a[i], b[i], c[i]) for i < n; what an operation does not take is nullptr. `out` may be exactly one of the
// inputs.
using Span = void (*)(const void* a, const void* b, const void* c, void* out, std::int64_t n);

enum class Result : std::uint8_t { same, boolean };

// How many elements make it worth waking another thread.
enum class Cost : std::int32_t { cheap = 32768, dear = 8192, slow = 1024 };

struct SpanRow {
  const char* name;
  int arity;
  Result result;
  Cost cost;
  Span of[kDTypes];  // by DType; f16 and bf16 without a loop of their own use the f32 one on converted tiles
  Kernel kernel = nullptr;  // instead of map_call, where the views need a look first

  std::uint32_t dtypes() const {
    std::uint32_t set = 0;
    for (int t = 0; t < kDTypes; ++t) {
      if (of[t] != nullptr) set |= 1u << t;
    }
    if (set & bit(DType::f32)) set |= bit(DType::f16) | bit(DType::bf16);
    return set;
  }
};

struct SpanTable {
  const SpanRow* first;
  std::size_t count;
};

SpanTable map_arithmetic_spans();
SpanTable map_bits_spans();
SpanTable map_compare_spans();
SpanTable map_float_spans();

// A loop as an operation on tiles sees it: what it reads, what it leaves.
struct SpanCall {
  Span run = nullptr;  // nullptr: no such operation or dtype
  int arity = 0;
  Cost cost = Cost::cheap;
  DType in = DType::f32;   // of the memory it reads: f32 for f16 and bf16, which are converted around it
  DType out = DType::f32;  // of the memory it writes, before any conversion back
};
SpanCall span_call(const SpanRow& row, DType dtype);
SpanCall find_span(const char* name, DType dtype);

// Runs a row on views: the whole kernel of most elementwise operations.
void map_call(const SpanRow& row, const Call& call);

}  // namespace tritium::TRITIUM_ISA

// Before the loop of a span: its iterations are independent even when the output is one of the inputs.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // loops over the C library stay scalar
#define TRITIUM_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TRITIUM_LOOP _Pragma("GCC ivdep")
#endif
