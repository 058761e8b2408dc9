// A tape: a fragment as instructions of a machine with one accumulator, ready to be bound to an instruction set.
#pragma once

#include <cstdint>

#include "isa.h"
#include "view.h"

namespace tritium {

constexpr int kTapeOperands = 128;
constexpr int kTapeNames = 24;  // bytes of a name, its end included

// Where an operand lives. A block is what the machine computes at once; its temporaries and constants are one block each.
enum class Place : std::uint8_t { scratch, input, output, constant, slot, row };

// What a row of the call sees of an input or output: a row of its own, one element, or one element of a tensor that
// lacks the last axis.
enum class Reach : std::uint8_t { full, one, lead };

struct TapeOperand {
  Place place;
  Reach reach = Reach::full;
  DType dtype;              // of its memory
  std::uint64_t bits = 0;   // of a constant: a lane of the accumulator
};

// acc = name(acc, operand x, operand y); reversed: acc comes second. The dtype is that of the lanes computed on.
struct TapeInstruction {
  char name[kTapeNames];
  DType dtype;
  bool reversed;
  int x, y;
};

// A stretch of instructions for every element of a row, or for the one element a row has of each of its operands; or a
// function of whole rows: y = name(x, weight, bias), by operand, -1 where there is none.
enum class PartKind : std::uint8_t { each, once, whole };
constexpr int kPartOperands = 6;  // x, weight, bias, y and two more results
struct TapePart {
  PartKind kind;
  int first = 0, count = 0;    // instructions
  char name[kTapeNames] = "";  // of a function of whole rows
  int operand[kPartOperands] = {-1, -1, -1, -1, -1, -1};
  DType dtype = DType::f32;    // its result is rounded to this
  double eps = 0;
};

// Operand 0 is scratch memory; inputs and outputs follow, in order. Immutable but for `bound`.
struct Tape {
  DType lane = DType::f32;  // of the accumulator: f32 or f64
  bool rows = false;        // parts see rows; else there is one stretch, for elements in any order
  int inputs = 0, outputs = 0;
  int operands = 0, instructions = 0, parts = 0;
  const TapeOperand* operand = nullptr;
  const TapeInstruction* instruction = nullptr;
  const TapePart* part = nullptr;
  // By instruction set: one block from malloc, made when the tape first runs there; read and written atomically.
  mutable void* bound[kIsas] = {};
};

}  // namespace tritium
