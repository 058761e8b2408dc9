// How elements of one dtype become elements of another: one loop, or two by way of f32.
#pragma once

#include "span.h"

namespace tritium::TRITIUM_ISA {

struct Cast {
  Span first = nullptr;   // nullptr: the bytes stay as they are
  Span second = nullptr;  // nullptr: first is all; else first leaves f32
};

// Integers wrap; floats to integers saturate, NaN becoming 0; anything but zero is a true bool; floats round once.
Cast find_cast(DType from, DType to);

// The real parts of complex numbers (0), or the imaginary ones (1), in place.
inline View part(const View& v, int which) {
  View to = v;
  to.dtype = v.dtype == DType::c64 ? DType::f32 : DType::f64;
  to.data += which * item_size(to.dtype);
  return to;
}

// out = in, broadcast, with a change of dtype where they differ.
void copy(const Call& call);

}  // namespace tritium::TRITIUM_ISA
