// Looks for bytes that are no code of their format, as a damaged or foreign file may hold.
#pragma once

#include <cstdint>

#include "../view.h"

namespace tritium {

// Where the first element (row * K + k) lies whose code is illegal: 3 in two bits, a byte of five trits that is none;
// -1: there is none. Padding is not looked at.
std::int64_t first_illegal(const View& w);

}  // namespace tritium
