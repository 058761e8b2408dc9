// A tape bound to the instruction set being compiled: names have become functions, constants blocks.
#pragma once

#include <cstdint>

#include "../tape.h"
#include "tape_steps.h"

namespace tritium::TRITIUM_ISA::tape {

// An operand of user memory, or of a row kept between parts, that a stretch reads or writes.
struct Stream {
  std::int16_t operand;
  bool read, written;
  bool padded;  // memory of our own: whole blocks of it may be touched
  std::int32_t item;
};

struct BoundPart {
  const Instr *code, *around;  // the same, but for results that are stored around the cache
  const Stream* streams;
  int count;          // of streams
  const void* whole;  // of a function of whole rows: what whole_of found
};

struct Bound {
  const BoundPart* part;
  const char* constants;  // blocks, in the order of the operands
  double cost;            // nanoseconds per element
};

const Bound& bound(const Tape& tape);

// Around the cache: every output begins on a line of it and is none of the inputs; settle_stores() has to follow.
enum class Stores : std::uint8_t { plain, around };

// n elements by a part: `at` are the addresses of its operands, of which those with a bit in `still` stay where they
// are. Pads: a block for every stream.
struct Mask {
  std::uint64_t word[kTapeOperands / 64] = {};

  bool has(int i) const { return word[i >> 6] >> (i & 63) & 1; }
  void add(int i) { word[i >> 6] |= std::uint64_t{1} << (i & 63); }
};
void run_part(const Tape& tape, const BoundPart& part, char** at, const Mask& still, std::int64_t n, char* pads,
              Stores stores = Stores::plain);
void run_block(const Tape& tape, const BoundPart& part, char* const* at);

inline int block_of(const Tape& tape) { return tape.lane == DType::f64 ? kBlock<double> : kBlock<float>; }

// A block of one element, `item` bytes wide.
void fill_block(char* to, const char* from, std::int64_t item, int block);

// Sets the addresses of scratch memory, constants and slots; returns the bytes of `space` taken.
std::int64_t place_own(const Tape& tape, const Bound& bound, char* space, char** at);

// The function of whole rows of that name, for lanes of that dtype; nullptr: there is none.
const void* whole_of(const char* name, DType lane);

}  // namespace tritium::TRITIUM_ISA::tape
