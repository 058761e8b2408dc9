// Tensors of NumPy arrays and of nested lists, and the number of one element. None: it is for Python.
#pragma once

#include "array.h"

namespace tritium::python {

PyObject* tensor_over(PyObject* data, PyObject* kinds);  // over the memory of an object with the buffer protocol
PyObject* tensor_of_lists(PyObject* data, PyObject* dtype, PyObject* kinds);  // `kinds`: the dtypes by their codes
PyObject* number_at(int code, const char* from);  // an element of a plain dtype as a Python number
PyObject* array_number(PyObject* self, PyObject*);  // a method of Array

}  // namespace tritium::python
