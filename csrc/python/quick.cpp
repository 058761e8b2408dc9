// Quick: a function of Python whose plain calls native code carries out at once, without a Python frame; all others go to the
// function itself, which also has the words for mistakes.
// Nothing is remembered, so that new shapes cost what known ones do.
#include <algorithm>
#include <cstring>

#include "convert.h"
#include "numpy.h"

namespace tritium::python {
namespace {

constexpr int64_t kSmallBytes = 1 << 16;  // more is filled by the kernels, which have threads

struct Arguments {
  PyObject* const* at;
  Py_ssize_t count;
  PyObject* names;  // of those that follow, or nullptr

  PyObject* operator[](Py_ssize_t i) const { return at[i]; }
  bool is_only(Py_ssize_t n) const { return count == n && !names; }
};

// Carries a call out. nullptr without an exception: it is for Python.
using Shortcut = PyObject* (*)(const Arguments&);

// A tensor in plain memory of the CPU, outside of a trace; nullptr: any other object.
Array* plain_tensor(PyObject* o) {
  if (Py_TYPE(o) != globals.tensor_type || !globals.fast || interpreting()) return nullptr;
  auto* a = reinterpret_cast<Array*>(o);
  return a->plain() ? a : nullptr;
}

// Whether new tensors are made here: on the CPU, with nobody who is told of calls.
bool creates() { return globals.usual && globals.fast && !globals.recorder && !globals.watcher && !interpreting(); }

bool read_int(PyObject* o, int64_t& to) {
  int overflow = 1;
  to = PyLong_CheckExact(o) ? PyLong_AsLongLongAndOverflow(o, &overflow) : 0;
  return !overflow;
}

// Integers that were given one by one or as one tuple.
struct Numbers {
  int count = 0;
  int64_t at[kMaxDims];

  bool read(PyObject* const* given, Py_ssize_t n) {
    if (n == 1 && PyTuple_CheckExact(given[0])) {
      n = PyTuple_GET_SIZE(given[0]);
      given = &PyTuple_GET_ITEM(given[0], 0);
    }
    if (n > kMaxDims) return false;
    for (; count < n; ++count)
      if (!read_int(given[count], at[count])) return false;
    return true;
  }
};

PyObject* as_object(Array* a) { return reinterpret_cast<PyObject*>(a); }

// New memory of a shape; nullptr without an exception: too large for here, or empty, where Python looks at the other axes.
Array* new_tensor(int code, PyObject* kind, int ndim, const int64_t* shape) {
  int64_t size = 1;
  for (int d = 0; d < ndim; ++d)
    if (shape[d] <= 0 || __builtin_mul_overflow(size, shape[d], &size)) return nullptr;
  if (size > kSmallBytes) return nullptr;
  Storage* storage = storage_new(size * kItemSize[code]);
  return storage ? array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), kind, code, ndim, shape) : nullptr;
}

// ---- creating tensors

PyObject* none_is_python(PyObject* result) {
  if (result != Py_None) return result;
  Py_DECREF(result);
  return nullptr;
}

PyObject* view_ndarray(PyObject* data) {
  int code;
  const Ndarray* from = as_ndarray(data, code);
  if (!from || from->ndim > kMaxDims) return nullptr;
  const int64_t item = kItemSize[code];
  int64_t shape[kMaxDims], strides[kMaxDims], low = 0, high = 0;
  for (int d = 0; d < from->ndim; ++d) {
    if (from->shape[d] == 0 || from->strides[d] % item) return nullptr;
    shape[d] = from->shape[d];
    strides[d] = from->strides[d] / item;
    const int64_t reach = (shape[d] - 1) * strides[d];
    (reach < 0 ? low : high) += reach;
  }
  if (reinterpret_cast<std::uintptr_t>(from->data) % static_cast<std::uintptr_t>(item)) return nullptr;
  Storage* storage = storage_wrap(from->data + low * item, (high - low + 1) * item, data, from->writable());
  if (!storage) return nullptr;
  PyObject* kind = PyTuple_GET_ITEM(numpy_kinds(), code);
  Array* a = array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), kind, code, from->ndim, shape);
  if (!a) return nullptr;
  std::copy_n(strides, from->ndim, a->strides());
  a->offset = -low;
  a->contiguous = is_contiguous(from->ndim, shape, strides, code);
  return as_object(a);
}

PyObject* of_lists(PyObject* data) {
  if (!PyList_CheckExact(data) || !numpy_kinds()) return nullptr;
  return none_is_python(tensor_of_lists(data, Py_None, numpy_kinds()));
}

PyObject* asarray(const Arguments& given) {
  if (!given.is_only(1) || !creates()) return nullptr;
  if (Py_TYPE(given[0]) == globals.tensor_type) return Py_NewRef(given[0]);
  PyObject* viewed = view_ndarray(given[0]);
  return viewed || PyErr_Occurred() ? viewed : of_lists(given[0]);
}

PyObject* from_numpy(const Arguments& given) {
  return given.is_only(1) && creates() ? view_ndarray(given[0]) : nullptr;
}

PyObject* copy_ndarray(PyObject* data) {
  static const Entry* const entry = find("copy");
  PyObject* viewed = view_ndarray(data);
  if (!viewed) return nullptr;
  auto* from = reinterpret_cast<Array*>(viewed);
  Storage* storage = storage_new(span(from->code, from->size));
  Array* out = storage ? array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), from->dtype, from->code,
                                  from->ndim(), from->shape())
                       : nullptr;
  if (out) {
    View in, to;
    fill_view(from, in);
    fill_view(out, to);
    Array* holders[2] = {from, out};
    const Attrs attrs;
    if (!run_kernel(*entry, Call{&in, 1, &to, &attrs}, holders, 2, 2 * span(out->code, out->size))) Py_CLEAR(out);
  }
  Py_DECREF(viewed);
  return as_object(out);
}

PyObject* tensor(const Arguments& given) {
  if (!given.is_only(1) || !creates()) return nullptr;
  PyObject* copied = copy_ndarray(given[0]);
  return copied || PyErr_Occurred() ? copied : of_lists(given[0]);
}

// The value in all elements of new memory; a tensor of few.
PyObject* filled(int code, PyObject* kind, int ndim, const int64_t* shape, bool one) {
  Array* out = new_tensor(code, kind, ndim, shape);
  if (!out) return nullptr;
  char* const to = out->memory()->data;
  const int64_t item = kItemSize[code];
  alignas(16) char element[16] = {};
  if (!one) {
    std::memset(to, 0, static_cast<std::size_t>(out->size * item));
    return as_object(out);
  }
  PyObject* number = PyLong_FromLong(1);
  const bool fits = number && store_scalar(number, code, element);
  Py_XDECREF(number);
  for (int64_t i = 0; i < out->size; ++i) std::memcpy(to + i * item, element, static_cast<std::size_t>(item));
  if (!fits) Py_CLEAR(out);
  return as_object(out);
}

template <bool one>
PyObject* constant(const Arguments& given) {
  Numbers shape;
  if (!given.is_only(1) || !numpy_kinds() || !creates() || !shape.read(given.at, 1)) return nullptr;
  constexpr int kCode = static_cast<int>(DType::f32);
  return filled(kCode, PyTuple_GET_ITEM(numpy_kinds(), kCode), shape.count, shape.at, one);
}

template <bool one>
PyObject* constant_like(const Arguments& given) {
  Array* x = given.is_only(1) && creates() ? plain_tensor(given[0]) : nullptr;
  return x && x->code < kDTypes ? filled(x->code, x->dtype, x->ndim(), x->shape(), one) : nullptr;
}

PyObject* empty_like(const Arguments& given) {
  Array* x = given.is_only(1) && creates() ? plain_tensor(given[0]) : nullptr;
  return x ? as_object(new_tensor(x->code, x->dtype, x->ndim(), x->shape())) : nullptr;
}

// ---- values out

PyObject* numpy_of(const Arguments& given) {
  if (!given.is_only(1) || Py_TYPE(given[0]) != globals.tensor_type) return nullptr;
  return numpy_over(reinterpret_cast<Array*>(given[0]));
}

PyObject* list_of(Array* a, int axis, const char* from) {
  if (axis == a->ndim()) return number_at(a->code, from);
  const int64_t n = a->shape()[axis], step = a->strides()[axis] * kItemSize[a->code];
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(n));
  for (int64_t i = 0; list && i < n; ++i) {
    PyObject* item = list_of(a, axis + 1, from + i * step);
    if (item) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
    if (!item) Py_CLEAR(list);
  }
  return list;
}

PyObject* tolist(const Arguments& given) {
  if (!given.is_only(1) || Py_TYPE(given[0]) != globals.tensor_type) return nullptr;
  auto* a = reinterpret_cast<Array*>(given[0]);
  if (!a->plain()) return nullptr;
  const bool collects = PyGC_Disable();  // lest a finaliser move the memory meanwhile, by a write
  PyObject* list = list_of(a, 0, a->memory()->data + span(a->code, a->offset));
  if (collects) PyGC_Enable();
  return list;
}

PyObject* item(const Arguments& given) {
  if (!given.is_only(1) || Py_TYPE(given[0]) != globals.tensor_type) return nullptr;
  return none_is_python(array_number(given[0], nullptr));
}

PyObject* length(const Arguments& given) {
  if (!given.is_only(1) || Py_TYPE(given[0]) != globals.tensor_type) return nullptr;
  auto* a = reinterpret_cast<Array*>(given[0]);
  return a->ndim() && !a->varies ? PyLong_FromLongLong(a->shape()[0]) : nullptr;
}

PyObject* contiguity(const Arguments& given) {
  Array* a = given.is_only(1) ? plain_tensor(given[0]) : nullptr;
  return a ? PyBool_FromLong(a->contiguous) : nullptr;
}

// All slices along the first axis: views.
PyObject* rows(const Arguments& given) {
  Array* a = given.is_only(1) ? plain_tensor(given[0]) : nullptr;
  if (!a || !a->ndim()) return nullptr;
  const int64_t n = a->shape()[0], step = a->strides()[0];
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(n));
  for (int64_t i = 0; list && i < n; ++i) {
    Array* row = array_view(globals.tensor_type, a, a->ndim() - 1, a->shape() + 1, a->strides() + 1, i * step);
    if (row) PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), as_object(row));
    if (!row) Py_CLEAR(list);
  }
  return list;
}

PyObject* iterate(const Arguments& given) {
  PyObject* list = rows(given);
  PyObject* iterator = list ? PyObject_GetIter(list) : nullptr;
  Py_XDECREF(list);
  return iterator;
}

// ---- views and clones

PyObject* clone(const Arguments& given) {
  Array* a = given.is_only(1) ? plain_tensor(given[0]) : nullptr;
  return a ? clone_of(a) : nullptr;
}

PyObject* real(const Arguments& given) {
  Array* a = given.is_only(1) ? plain_tensor(given[0]) : nullptr;
  return a && !is_complex(static_cast<DType>(a->code)) ? clone_of(a) : nullptr;
}

PyObject* reshape(const Arguments& given) {
  Numbers shape;
  if (given.count < 2 || given.names || !shape.read(given.at + 1, given.count - 1)) return nullptr;
  Array* a = plain_tensor(given[0]);
  if (!a || !a->contiguous || a->size == 0) return nullptr;
  int64_t known = 1, strides[kMaxDims];
  int open = -1;
  for (int d = 0; d < shape.count; ++d) {
    if (shape.at[d] == -1 && open < 0) {
      open = d;
    } else if (shape.at[d] < 1 || __builtin_mul_overflow(known, shape.at[d], &known)) {
      return nullptr;
    }
  }
  if (open >= 0) shape.at[open] = a->size / known;
  if (known * (open >= 0 ? shape.at[open] : 1) != a->size) return nullptr;
  contiguous_strides(shape.count, shape.at, a->code, strides);
  return as_object(array_view(globals.tensor_type, a, shape.count, shape.at, strides, 0));
}

PyObject* with_axes(Array* a, const int* order) {
  int64_t shape[kMaxDims], strides[kMaxDims];
  for (int d = 0; d < a->ndim(); ++d) {
    shape[d] = a->shape()[order[d]];
    strides[d] = a->strides()[order[d]];
  }
  return as_object(array_view(globals.tensor_type, a, a->ndim(), shape, strides, 0));
}

// An axis counted from the front; false: there is none.
bool axis_of(int64_t given, int ndim, int& to) {
  if (given < -ndim || given >= ndim) return false;
  to = static_cast<int>(given < 0 ? given + ndim : given);
  return true;
}

PyObject* permute(const Arguments& given) {
  Numbers axes;
  if (given.count < 2 || given.names || !axes.read(given.at + 1, given.count - 1)) return nullptr;
  Array* a = plain_tensor(given[0]);
  if (!a || axes.count != a->ndim()) return nullptr;
  int order[kMaxDims];
  std::uint64_t seen = 0;
  for (int d = 0; d < axes.count; ++d) {
    if (!axis_of(axes.at[d], a->ndim(), order[d]) || seen >> order[d] & 1) return nullptr;
    seen |= std::uint64_t{1} << order[d];
  }
  return with_axes(a, order);
}

PyObject* exchange(PyObject* x, int64_t first, int64_t second) {
  Array* a = plain_tensor(x);
  int i, j, order[kMaxDims];
  if (!a || !axis_of(first, a->ndim(), i) || !axis_of(second, a->ndim(), j)) return nullptr;
  for (int d = 0; d < a->ndim(); ++d) order[d] = d == i ? j : d == j ? i : d;
  return with_axes(a, order);
}

PyObject* transpose(const Arguments& given) {
  int64_t axes[2] = {-2, -1};
  if (given.names || (given.count != 1 && given.count != 3)) return nullptr;
  for (Py_ssize_t i = 1; i < given.count; ++i)
    if (!read_int(given[i], axes[i - 1])) return nullptr;
  return exchange(given[0], axes[0], axes[1]);
}

PyObject* swapaxes(const Arguments& given) { return given.count == 3 ? transpose(given) : nullptr; }

PyObject* matrix_transpose(const Arguments& given) { return given.is_only(1) ? exchange(given[0], -2, -1) : nullptr; }

PyObject* T(const Arguments& given) {
  if (!given.is_only(1) || !is_array(given[0]) || reinterpret_cast<Array*>(given[0])->ndim() != 2) return nullptr;
  return matrix_transpose(given);
}

// ---- the type

struct Named {
  const char* name;
  Shortcut run;
};
constexpr Named kShortcuts[] = {
    {"T", T},
    {"asarray", asarray},
    {"clone", clone},
    {"empty_like", empty_like},
    {"from_numpy", from_numpy},
    {"is_contiguous", contiguity},
    {"item", item},
    {"iterate", iterate},
    {"length", length},
    {"matrix_transpose", matrix_transpose},
    {"numpy", numpy_of},
    {"ones", constant<true>},
    {"ones_like", constant_like<true>},
    {"permute", permute},
    {"real", real},
    {"reshape", reshape},
    {"rows", rows},
    {"swapaxes", swapaxes},
    {"tensor", tensor},
    {"tolist", tolist},
    {"transpose", transpose},
    {"zeros", constant<false>},
    {"zeros_like", constant_like<false>},
};

struct Quick {
  PyObject_HEAD
  vectorcallfunc call;
  Shortcut run;
  PyObject *function, *dict;
};

Quick* as_quick(PyObject* self) { return reinterpret_cast<Quick*>(self); }

PyObject* quick_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  Quick* q = as_quick(self);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  PyObject* result = q->run({args, count, names && PyTuple_GET_SIZE(names) ? names : nullptr});
  return result || PyErr_Occurred() ? result : PyObject_Vectorcall(q->function, args, flags, names);
}

PyObject* quick_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"name", "function", nullptr};
  const char* name;
  PyObject* function;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO:Quick", const_cast<char**>(names), &name, &function)) return nullptr;
  const auto* found = std::find_if(std::begin(kShortcuts), std::end(kShortcuts),
                                   [&](const Named& s) { return std::strcmp(s.name, name) == 0; });
  if (found == std::end(kShortcuts)) return PyErr_Format(PyExc_ValueError, "Quick: there is no shortcut '%s'.", name);
  auto* q = as_quick(type->tp_alloc(type, 0));
  if (!q) return nullptr;
  q->call = quick_call;
  q->run = found->run;
  q->function = Py_NewRef(function);
  q->dict = PyDict_New();
  if (!q->dict) Py_CLEAR(q);
  return reinterpret_cast<PyObject*>(q);
}

// As an attribute of a class it is a method.
PyObject* quick_get(PyObject* self, PyObject* object, PyObject*) {
  return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

PyObject* quick_repr(PyObject* self) { return PyUnicode_FromFormat("<quick %R>", as_quick(self)->function); }

// Pickled by its name, as functions are.
PyObject* quick_reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

int quick_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_quick(self)->function);
  Py_VISIT(as_quick(self)->dict);
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int quick_clear(PyObject* self) {
  Py_CLEAR(as_quick(self)->function);
  Py_CLEAR(as_quick(self)->dict);
  return 0;
}

void quick_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  quick_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef quick_methods[] = {{"__reduce__", quick_reduce, METH_NOARGS, "__reduce__($self, /)\n--\n\nPickle by name."},
                               {nullptr, nullptr, 0, nullptr}};

PyGetSetDef quick_getset[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef quick_members[] = {
    {"function", T_OBJECT, offsetof(Quick, function), READONLY, "What is called where native code does not serve."},
    {"__dictoffset__", T_PYSSIZET, offsetof(Quick, dict), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Quick, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot quick_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(quick_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(quick_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(quick_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(quick_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(quick_get)},
    {Py_tp_repr, reinterpret_cast<void*>(quick_repr)},
    {Py_tp_methods, quick_methods},
    {Py_tp_getset, quick_getset},
    {Py_tp_members, quick_members},
    {0, nullptr}};

PyType_Spec quick_spec = {"tritium._native.Quick", sizeof(Quick), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
                          quick_slots};

}  // namespace

PyTypeObject* make_quick_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&quick_spec)); }

}  // namespace tritium::python
