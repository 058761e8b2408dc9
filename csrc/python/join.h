// Calls that join any number of tensors: concat and stack.
#pragma once

#include "row.h"

namespace tritium::python {

// The result of a call whose operands may have any shapes: a shape of its own, and the bytes it touches.
struct Fit {
  int ndim = 0;
  int64_t dims[kMaxDims], nbytes = 0, touched = 0;
};

// The shape of tensors joined. False: they do not fit each other, or the result is too large; Python says so.
bool join_shape(const Entry& entry, const Attrs& attrs, const Given& g, int code, Fit& fit);

// Joins tensors of any number, whose shapes fit, in runs that a kernel takes. False: exception.
bool run_join(const Entry& entry, const Attrs& attrs, PyObject* const* operands, Py_ssize_t count, Array* out);

}  // namespace tritium::python
