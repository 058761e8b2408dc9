// x[key], x[key] = value, nonzero, take and take_along_axis, carried out at once: no call is remembered, so that the cost
// of one depends on neither the shapes nor the number of calls before it.
#pragma once

#include "array.h"

namespace tritium::python {

enum Indexing : char { kNoIndexing, kReads, kWrites, kNonzero, kTakes, kTakesAlong };  // what Row::indexes may be

// nullptr without an exception: this call is for Python.
PyObject* index_natively(char what, PyObject* const* args, Py_ssize_t nargs, PyObject* names);
// repeat(x, repeats, axis): `repeats` is one number, or a tensor of one for each slice. Likewise.
PyObject* repeat_natively(PyObject* x, PyObject* repeats, PyObject* axis);

bool is_indexable(PyObject* x);  // a tensor whose calls are carried out here now

}  // namespace tritium::python
