// Runs tapes on contiguous memory: an elementwise one on a stretch of elements, one of rows on a row.
// Knows nothing of shapes, strides or threads; tape_map.cpp and tape_rows.cpp walk.
#pragma once

#include <cstdint>

#include "../tape.h"

namespace tritium::TRITIUM_ISA {

// out[...][i] from in[...][i] for i < n, contiguous, each of its own dtype. Bit k of `repeated` set: in[k] is one element.
// An output may be exactly one of the inputs if backends/cpu/tape.py's `overwrites` says so. From any thread.
void run_tape(const Tape& tape, const char* const* in, char* const* out, std::int64_t n, std::uint32_t repeated = 0);

// One row of n elements by a tape of rows: in[k] and out[k] are contiguous rows, or one element where the tape says so.
void run_row(const Tape& tape, const char* const* in, char* const* out, std::int64_t n);

// Why the tape cannot run, or nullptr: every instruction and every operand is looked at.
const char* tape_refusal(const Tape& tape);

}  // namespace tritium::TRITIUM_ISA
