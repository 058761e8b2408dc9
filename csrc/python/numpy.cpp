#include "numpy.h"

namespace tritium::python {
namespace {

constexpr int kGetAbi = 0, kNewFromDescr = 94, kSetBase = 282;  // places in the table of NumPy's functions
constexpr unsigned kAbi = 0x02000000;                           // of NumPy 2
constexpr int kWriteable = 0x0400;

using GetAbi = unsigned (*)();
using NewFromDescr = PyObject* (*)(PyTypeObject*, PyObject*, int, const Py_ssize_t*, const Py_ssize_t*, void*, int, PyObject*);
using SetBase = int (*)(PyObject*, PyObject*);

struct Numpy {
  PyTypeObject* array_type = nullptr;
  PyObject* dtypes[kDTypes] = {};
  PyObject* kinds = nullptr;
  NewFromDescr create = nullptr;
  SetBase set_base = nullptr;
} numpy;

}  // namespace

bool numpy_setup(PyObject* api, PyObject* array_type, PyObject* dtypes, PyObject* kinds) {
  auto** functions = static_cast<void**>(PyCapsule_GetPointer(api, nullptr));
  if (!functions) return false;
  if (!PyType_Check(array_type) || !PyTuple_Check(dtypes) || PyTuple_GET_SIZE(dtypes) != kDTypes || !PyTuple_Check(kinds) ||
      PyTuple_GET_SIZE(kinds) != kDTypes) {
    PyErr_Format(PyExc_TypeError, "numpy_setup: the class ndarray and two tuples of %d dtypes are needed.", kDTypes);
    return false;
  }
  if (reinterpret_cast<GetAbi>(functions[kGetAbi])() != kAbi) return true;
  for (int i = 0; i < kDTypes; ++i) numpy.dtypes[i] = Py_NewRef(PyTuple_GET_ITEM(dtypes, i));
  numpy.kinds = Py_NewRef(kinds);
  numpy.create = reinterpret_cast<NewFromDescr>(functions[kNewFromDescr]);
  numpy.set_base = reinterpret_cast<SetBase>(functions[kSetBase]);
  numpy.array_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(array_type));
  return true;
}

PyObject* numpy_kinds() { return numpy.kinds; }

Ndarray* as_ndarray(PyObject* o, int& code) {
  if (Py_TYPE(o) != numpy.array_type || !numpy.array_type) return nullptr;
  auto* a = reinterpret_cast<Ndarray*>(o);
  for (code = 0; code < kDTypes; ++code)
    if (a->dtype == numpy.dtypes[code]) return a;  // one in another byte order is another object
  return nullptr;
}

PyObject* numpy_over(Array* a) {
  if (!numpy.array_type || !a->plain() || a->code >= kDTypes || a->size == 0) return nullptr;
  if (!storage_export(a->memory())) return nullptr;
  const int64_t item = kItemSize[a->code];
  Py_ssize_t shape[kMaxDims], strides[kMaxDims];
  for (int d = 0; d < a->ndim(); ++d) {
    shape[d] = static_cast<Py_ssize_t>(a->shape()[d]);
    strides[d] = static_cast<Py_ssize_t>(a->strides()[d] * item);
  }
  PyObject* made = numpy.create(numpy.array_type, Py_NewRef(numpy.dtypes[a->code]), a->ndim(), shape, strides,
                                a->memory()->data + a->offset * item, a->memory()->writable ? kWriteable : 0, nullptr);
  if (made && numpy.set_base(made, Py_NewRef(reinterpret_cast<PyObject*>(a))) < 0) Py_CLEAR(made);
  return made;
}

}  // namespace tritium::python
