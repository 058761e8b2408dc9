// What a replayed call gives, as tensors.
#pragma once

#include "record.h"

namespace tritium::python {

// A tensor on a storage, whose reference it takes over, also when it fails.
inline Array* as_tensor(const Made& m, PyObject* storage) {
  Array* a = array_of(globals.tensor_type, storage, m.dtype, m.code, m.ndim, m.dims);
  if (!a) return nullptr;
  Py_INCREF(a->shape_tuple = m.shape);
  Py_INCREF(a->strides_tuple = m.strides);
  return a;
}

// Fills in a result from its dtype and shape. False: exception.
bool describe_result(Made& m, PyObject* dtype, PyObject* shape);

inline void drop(Array** outs, int count) {
  for (int i = 0; i < count; ++i) Py_DECREF(outs[i]);
}

// What the call returns: the tensor, or a tuple of them. Takes the references over.
inline PyObject* as_returned(const Record& r, Array** outs) {
  if (!r.several) return reinterpret_cast<PyObject*>(outs[0]);
  PyObject* tuple = PyTuple_New(r.results);
  if (!tuple) {
    drop(outs, r.results);
    return nullptr;
  }
  for (int i = 0; i < r.results; ++i) PyTuple_SET_ITEM(tuple, i, reinterpret_cast<PyObject*>(outs[i]));
  return tuple;
}

}  // namespace tritium::python
