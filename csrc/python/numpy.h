// NumPy arrays as NumPy's C API has them, without its headers: what it exports has kept its numbers and layout since 1.7.
// Before numpy_setup, and with an API of another kind, no object is an ndarray here.
#pragma once

#include "array.h"

namespace tritium::python {

// The fields that an ndarray begins with.
struct Ndarray {
  PyObject_HEAD
  char* data;
  int ndim;
  Py_ssize_t *shape, *strides;  // strides in bytes
  PyObject *base, *dtype;
  int flags;

  bool writable() const { return flags & 0x0400; }
};

// `api` is the capsule of NumPy's API, `dtypes` are NumPy's by the codes of ours, `kinds` our own. False: exception.
bool numpy_setup(PyObject* api, PyObject* array_type, PyObject* dtypes, PyObject* kinds);
PyObject* numpy_kinds();  // our dtypes by their codes, borrowed; nullptr: not set up

// The array and the code of its dtype; nullptr: another object, or elements that are none of ours.
Ndarray* as_ndarray(PyObject* o, int& code);

// The elements of a plain tensor as an ndarray over the same memory, which counts as handed out. nullptr without an exception:
// this one is for Python.
PyObject* numpy_over(Array* a);

}  // namespace tritium::python
