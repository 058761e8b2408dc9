// Calls that a device's own library carries out.
// Knows nothing of how a call is found again.
#pragma once

#include "record.h"

namespace tritium::python {

// nullptr without an exception: this call is for Python, which times it where someone records.
PyObject* carry_out_there(const Record& r, int operands, PyObject* const* args, Py_ssize_t nargs, PyObject* given);

// nullptr: exception.
std::unique_ptr<Foreign> foreign_of(PyObject* fn, PyObject* type, PyObject* device, PyObject* look, PyObject* number,
                                    PyObject* dtypes, PyObject* keywords);

}  // namespace tritium::python
