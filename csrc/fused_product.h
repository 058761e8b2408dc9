// A fused product as data: the kernel of the product, and the tapes run on rows of its operand and on its results.
#pragma once

#include <cstdint>

#include "tape.h"
#include "view.h"

namespace tritium {

constexpr int kProductOperands = 4;

// A tape and which inputs of the fused call it reads, in order.
struct Taped {
  const Tape* tape = nullptr;  // nullptr: nothing to do
  int count = 0;
  int input[kMaxInputs];
};

struct FusedProduct {
  Kernel core = nullptr;
  Attrs attrs;                    // of the core
  DType dtype = DType::f32;       // of the product's own result
  bool sums = false;              // the core keeps its sums in `out` until it hands them over …
  bool apart = false;             // … and must not: `after` reads them when it has written there already
  int operands = 0;
  int operand[kProductOperands];  // which input of the call each is; -1: not given, or made by `before`
  DType x_dtype = DType::f32;     // of the left operand, where `before` makes it
  int x_ndim = 0;
  std::int64_t x_width = 0;       // its last size; the others are those of the result
  Taped before, after;            // the first input of `after` is the product's result
};

}  // namespace tritium
