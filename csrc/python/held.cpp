// Held: the storage of a device whose own library keeps the memory. It holds that library's value (an MLX array, a torch
// tensor) and the shape it has; a write puts another value in its place.
#include "held.h"

#include <algorithm>

namespace tritium::python {

struct Shared {
  int handles;
};

namespace {

Held* as_held(PyObject* self) { return reinterpret_cast<Held*>(self); }

void leave(Held* h) {
  if (h->shared && --h->shared->handles == 0) delete h->shared;
  h->shared = nullptr;
}

bool read_shape(PyObject* shape, Held* h) {
  if (!PyTuple_Check(shape) || PyTuple_GET_SIZE(shape) > kMaxDims) {
    PyErr_Format(PyExc_TypeError, "Held: a shape is a tuple of at most %d sizes, given %R.", kMaxDims, shape);
    return false;
  }
  int64_t dims[kMaxDims];
  const int n = static_cast<int>(PyTuple_GET_SIZE(shape));
  for (int d = 0; d < n; ++d) {
    dims[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, d));
    if (dims[d] == -1 && PyErr_Occurred()) return false;
  }
  h->ndim = n;
  std::copy_n(dims, n, h->dims);
  return true;
}

PyObject* held_tp_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"device", "nbytes", "value", "shape", nullptr};
  PyObject *device, *value = Py_None, *shape = nullptr;
  long long nbytes;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL|OO:Held", const_cast<char**>(names), &device, &nbytes, &value,
                                   &shape))
    return nullptr;
  auto* h = as_held(type->tp_alloc(type, 0));
  if (!h) return nullptr;
  Py_INCREF(h->device = device);
  Py_INCREF(h->value = value);
  h->nbytes = nbytes;
  h->writable = true;
  h->ndim = -1;
  if (shape && !read_shape(shape, h)) {
    Py_DECREF(h);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(h);
}

int held_tp_init(PyObject*, PyObject*, PyObject*) { return 0; }

int held_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_held(self)->value);
  Py_VISIT(as_held(self)->device);
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int held_clear(PyObject* self) {
  Py_CLEAR(as_held(self)->value);
  Py_CLEAR(as_held(self)->device);
  return 0;
}

void held_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (as_held(self)->weakrefs) PyObject_ClearWeakRefs(self);
  leave(as_held(self));
  held_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* held_put(PyObject* self, PyObject* args) {
  PyObject *value, *shape;
  if (!PyArg_ParseTuple(args, "OO:put", &value, &shape)) return nullptr;
  Held* h = as_held(self);
  if (!read_shape(shape, h)) return nullptr;
  held_set(h, Py_NewRef(value));
  Py_RETURN_NONE;
}

PyObject* held_share(PyObject* self, PyObject*) {
  Held* h = as_held(self);
  Held* made = held_new(Py_TYPE(self), h->device, h->nbytes, Py_NewRef(h->value), std::max(h->ndim, 0), h->dims);
  if (!made) return nullptr;
  made->ndim = h->ndim;
  if (!h->shared) h->shared = new Shared{1};
  ++h->shared->handles;
  made->shared = h->shared;
  return reinterpret_cast<PyObject*>(made);
}

PyObject* held_leave(PyObject* self, PyObject*) {
  leave(as_held(self));
  Py_RETURN_NONE;
}

PyObject* get_shape(PyObject* self, void*) {
  Held* h = as_held(self);
  if (h->ndim < 0) Py_RETURN_NONE;
  return int_tuple(h->dims, h->ndim);
}

PyObject* get_sharers(PyObject* self, void*) {
  const Shared* shared = as_held(self)->shared;
  return PyLong_FromLong(shared ? shared->handles : 1);
}

PyMethodDef held_methods[] = {
    {"put", held_put, METH_VARARGS, "put($self, value, shape, /)\n--\n\nHold another value, of this shape."},
    {"share", held_share, METH_NOARGS, "share($self, /)\n--\n\nAnother handle of the same value, counted as a sharer."},
    {"leave", held_leave, METH_NOARGS, "leave($self, /)\n--\n\nNo longer a sharer: the value has become its own."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef held_getset[] = {
    {"shape", get_shape, nullptr, "The shape of the value; None before there is one.", nullptr},
    {"sharers", get_sharers, nullptr, "Handles of this value; 1 means exclusive.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef held_members[] = {
    {"value", T_OBJECT_EX, offsetof(Held, value), READONLY, "What the device's library keeps; None before a write."},
    {"device", T_OBJECT_EX, offsetof(Held, device), READONLY, "The device the value is on."},
    {"nbytes", T_LONGLONG, offsetof(Held, nbytes), READONLY, "Size in bytes."},
    {"writable", T_BOOL, offsetof(Held, writable), 0, "Whether it may be written."},
    {"fixed", T_BOOL, offsetof(Held, fixed), 0, "Whether others see this memory: a write must go there."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Held, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot held_slots[] = {
    {Py_tp_doc, const_cast<char*>("Held(device, nbytes, value=None, shape=None)\n--\n\nThe storage of a device whose own "
                                  "library keeps the memory.")},
    {Py_tp_new, reinterpret_cast<void*>(held_tp_new)},
    {Py_tp_init, reinterpret_cast<void*>(held_tp_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(held_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(held_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(held_clear)},
    {Py_tp_methods, held_methods},
    {Py_tp_getset, held_getset},
    {Py_tp_members, held_members},
    {0, nullptr}};

PyType_Spec held_spec = {"tritium._native.Held", sizeof(Held), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, held_slots};

}  // namespace

Held* held_new(PyTypeObject* type, PyObject* device, int64_t nbytes, PyObject* value, int ndim, const int64_t* dims) {
  auto* h = as_held(type->tp_alloc(type, 0));
  if (!h) {
    Py_DECREF(value);
    return nullptr;
  }
  Py_INCREF(h->device = device);
  h->value = value;
  h->nbytes = nbytes;
  h->writable = true;
  h->ndim = ndim;
  std::copy_n(dims, ndim, h->dims);
  return h;
}

void held_set(Held* h, PyObject* value) {
  leave(h);
  PyObject* before = h->value;
  h->value = value;
  Py_XDECREF(before);
}

PyTypeObject* make_held_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&held_spec)); }

}  // namespace tritium::python
