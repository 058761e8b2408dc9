// Tape: a tape as a Python object.
#pragma once

#include "../tape.h"
#include "array.h"

namespace tritium::python {

PyTypeObject* make_tape_type();
const Tape* tape_of_object(PyObject* o);  // nullptr: it is none

}  // namespace tritium::python
