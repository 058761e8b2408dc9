// Held as a C structure: the storage of a device whose own library keeps the memory.
#pragma once

#include "array.h"

namespace tritium::python {

struct Shared;  // how many handles hold one value

struct Held {
  PyObject_HEAD
  PyObject* value;  // None before the first write
  PyObject* device;
  PyObject* weakrefs;
  Shared* shared;  // nullptr: it alone holds its value
  long long nbytes;
  char writable, fixed;
  int ndim;  // of the value; -1: there is none yet
  int64_t dims[kMaxDims];
};

// A new handle of a value, whose reference it takes over, also when it fails.
Held* held_new(PyTypeObject* type, PyObject* device, int64_t nbytes, PyObject* value, int ndim, const int64_t* dims);
void held_set(Held* h, PyObject* value);  // takes the reference over; dims are the caller's to set

inline Held* held_of(Array* a) { return reinterpret_cast<Held*>(a->storage); }

}  // namespace tritium::python
