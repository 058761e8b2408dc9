// Elements of a tensor that tensors of indices name, beside another operand of the shape they make: where each of them is.
// Knows elements only by their place; every index is checked when its place is computed.
#pragma once

#include <cstdint>

#include "../view.h"
#include "axes.h"

namespace tritium::TRITIUM_ISA {

constexpr int kMaxIndices = kMaxInputs;
constexpr std::int64_t kChunk = 1024;  // places computed at once: they stay in the first-level cache

// A tensor of indices along one axis of x.
struct Index {
  const char* data;
  DType dtype;
  std::int64_t size, step;         // of that axis; the step in bytes
  std::int64_t strides[kMaxDims];  // along the axes of the block
};

// The axes that the index tensors span. Every other axis has its own step in x; such an axis may be part of the block too.
struct Block {
  int ndim = 0;
  std::int64_t shape[kMaxDims], x[kMaxDims], other[kMaxDims];
  int count = 0;
  Index index[kMaxIndices];

  void simplify();  // no axes of size 1, neighbours merged, at least one axis
  std::int64_t size() const;
};

// x[key], or what is written there: the block, and the axes of x around it.
struct Indexed {
  Block block;
  int outer_count = 0, inner_count = 0;
  Axis outer[kMaxDims], inner[kMaxDims];  // `in`: of x, `out`: of the other operand
  char *x, *other;
  std::int64_t item;  // bytes of an element
};

// What becomes of an element: x is read, written, or increased.
enum class Move : std::uint8_t { read, write, add };

// `at` has a bit for every axis of x that an index names, in their order; the block stands at axis `position` of the shape
// that the index makes.
void plan(Indexed& plan, const View& x, const View* indices, int count, std::uint32_t at, int position);
// Sets the steps of the other operand, which has that shape or, where it `repeats`, broadcasts to it.
void set_other(Indexed& plan, const View& other, bool repeats);

// Carries it out. False: an index is outside its axis; the fault is set in the name of `row`, and nothing was written to x.
bool carry_out(Indexed& plan, Move move, DType dtype, const char* row);

}  // namespace tritium::TRITIUM_ISA
