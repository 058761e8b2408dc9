// What a kernel found wrong with the values it was given: told to whoever called it, on the same thread.
#pragma once

#include <cstdint>

namespace tritium {

enum class Faulty : std::uint8_t {
  nothing,
  index,  // values: the index, the size of the axis; 1: the index is unsigned
  place,  // values: the sequence, its slot, start and count; the slots, the capacity and the tokens there are
  number,  // values: the row and the column of what is no finite number; 1, -1 (infinities) or 0 (NaN)
  code,  // values: the row and the column of a packed weight whose code means nothing
  element,  // values: how many axes (up to 5), the place along each; in the last, 1, -1 (infinities) or 0 (NaN)
  scale,  // values: which row's and group's it is, and the bits of the f32 number that is not finite and above 0
  power,  // an integer is to be raised to a negative power
  state,  // values: the sequence, its slot, start and count; the slots and the tokens there are; who else has the slot, or -1
  zero,  // values: which row's and group's it is, the zero point, and the smallest and the largest that are possible
};

struct Fault {
  Faulty kind = Faulty::nothing;
  const char* row = "";  // whose kernel it was
  std::int64_t values[7] = {};
};

// A kernel that says Entry::may_fault calls this on the thread it was called on, before it writes anything, and returns.
void set_fault(const Fault& fault);
bool has_fault();
Fault take_fault();  // and forgets it

}  // namespace tritium
