// Calls that a device's own library carries out.
#pragma once

#include "record.h"

namespace tritium::python {

// What Python says of such a call (`backends.Replay`); borrowed.
struct Replayed {
  PyObject *fn, *type, *look, *number, *after, *keywords;
  int together;
};

// nullptr without an exception: this call is for Python, which times it where someone records.
PyObject* carry_out_there(const Record& r, PyObject* const* operands, Py_ssize_t count, int wanted, PyObject* given);

// nullptr: exception.
std::unique_ptr<Foreign> foreign_of(const Replayed& how, PyObject* device, PyObject* dtypes);

}  // namespace tritium::python
