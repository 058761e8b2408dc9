// exact: attributes as a key in which 0.0 and -0.0, 1 and 1.0 and True stay apart. The same as in tritium/op.py, faster.
#include "array.h"

namespace tritium::python {
namespace {

constexpr int kMaxPlainDepth = 16;  // of tuples and lists: deeper ones are read part by part

enum class Parts { kOther, kPlain, kLists };

// Whether a tuple or list has nothing but integers, texts and None, at any depth: of those no two different ones are
// equal. Lists among them are to become tuples.
Parts parts_of(PyObject* value, int depth) {
  Parts parts = PyList_Check(value) ? Parts::kLists : Parts::kPlain;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(value);
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* part = PySequence_Fast_GET_ITEM(value, i);
    if (PyLong_CheckExact(part) || PyUnicode_CheckExact(part) || part == Py_None) continue;
    if ((!PyTuple_Check(part) && !PyList_Check(part)) || depth == kMaxPlainDepth) return Parts::kOther;
    const Parts inner = parts_of(part, depth + 1);
    if (inner == Parts::kOther) return inner;
    if (inner == Parts::kLists) parts = inner;
  }
  return parts;
}

// Plain parts with tuples in place of lists.
PyObject* as_tuples(PyObject* value) {
  PyObject* tuple = PySequence_Tuple(value);
  const Py_ssize_t n = tuple ? PyTuple_GET_SIZE(tuple) : 0;
  PyObject* result = tuple ? PyTuple_New(n) : nullptr;
  for (Py_ssize_t i = 0; result && i < n; ++i) {
    PyObject* part = PyTuple_GET_ITEM(tuple, i);
    PyObject* item = PyTuple_Check(part) || PyList_Check(part) ? as_tuples(part) : Py_NewRef(part);
    if (item)
      PyTuple_SET_ITEM(result, i, item);
    else
      Py_CLEAR(result);
  }
  Py_XDECREF(tuple);
  return result;
}

PyObject* exact_items(PyObject* of) {
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(of);
  PyObject* key = PyTuple_New(n);
  for (Py_ssize_t i = 0; key && i < n; ++i) {
    PyObject* part = i < PySequence_Fast_GET_SIZE(of) ? exact(PySequence_Fast_GET_ITEM(of, i)) : Py_NewRef(Py_None);
    if (!part) {
      Py_DECREF(key);
      return nullptr;
    }
    PyTuple_SET_ITEM(key, i, part);
  }
  return key;
}

}  // namespace

PyObject* exact(PyObject* value) {
  if (PyFloat_Check(value)) {
    PyObject* digits = PyObject_CallMethod(value, "hex", nullptr);
    return digits ? Py_BuildValue("(ON)", &PyFloat_Type, digits) : nullptr;
  }
  if (PyComplex_Check(value)) {  // its text tells the signs of zeros
    PyObject* text = PyObject_Repr(value);
    return text ? Py_BuildValue("(ON)", &PyComplex_Type, text) : nullptr;
  }
  if (PyTuple_Check(value) || PyList_Check(value)) {
    const Parts parts = parts_of(value, 0);
    if (parts == Parts::kPlain) return PyTuple_Pack(2, &PyTuple_Type, value);
    PyObject* tuples = parts == Parts::kLists ? as_tuples(value) : nullptr;
    if (parts == Parts::kLists) return tuples ? Py_BuildValue("(ON)", &PyTuple_Type, tuples) : nullptr;
  }
  if (!PyTuple_Check(value) && !PyList_Check(value)) return PyTuple_Pack(2, Py_TYPE(value), value);
  if (Py_EnterRecursiveCall(" in a nested attribute")) return nullptr;
  PyObject* key = exact_items(value);
  Py_LeaveRecursiveCall();
  return key;
}

}  // namespace tritium::python
