// What a kernel found wrong with the values it was given: told to whoever called it, on the same thread.
// Knows nothing of Python or of kernels.
#pragma once

#include <cstdint>

namespace tritium {

enum class Faulty : std::uint8_t {
  nothing,
  index,  // values: the index, the size of the axis
  place,  // values: the sequence, its slot, start and count; the slots, the capacity and the tokens there are
  number,  // values: the row and the column of what is no finite number; 1, -1 (infinities) or 0 (NaN)
  code,  // values: the row and the column of a packed weight whose code means nothing
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
