// Row: the base of Op. A call seen before is replayed here, without a Python frame; any other goes to `self.call`.
// Knows nothing of rules or of how a kernel is chosen: Python tells it what to remember.
#include <algorithm>
#include <memory>

#include "events.h"
#include "key.h"
#include "results.h"
#include "there.h"

namespace tritium::python {
namespace {

struct Row {
  PyObject_HEAD
  vectorcallfunc call;
  Records* records;
  long long hits;
  int arity, operands;    // as Python set it; as it was when the first record was made
  char inplace, in_place;  // likewise
  char strided;            // its records are views: strides belong to the key
};

Row* as_row(PyObject* self) { return reinterpret_cast<Row*>(self); }

PyObject *name_out, *name_call;

bool is_out(PyObject* name) {
  return name == name_out || (PyUnicode_GET_LENGTH(name) == 3 && PyUnicode_CompareWithASCIIString(name, "out") == 0);
}

// The key of a call given as vectorcall does. `out` is left out of the key and returned apart.
bool make_key(Key& key, const Row* row, PyObject* const* args, Py_ssize_t nargs, PyObject* names, PyObject*& out) {
  key.add(static_cast<uint64_t>(nargs));
  Py_ssize_t i = 0;
  for (; i < nargs && i < row->operands; ++i)
    if (!key.add_operand(args[i], row->strided)) return false;
  for (; i < nargs; ++i)
    if (!key.add_attr(args[i])) return false;
  if (!names) return true;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(names); ++k) {
    PyObject* name = PyTuple_GET_ITEM(names, k);
    if (is_out(name)) {
      out = args[nargs + k];
    } else if (!key.add_text(name) || !key.add_attr(args[nargs + k])) {
      return false;
    }
  }
  return true;
}

Array* new_result(const Made& m) {
  Storage* storage = storage_new(m.nbytes);
  if (!storage) return nullptr;
  return as_tensor(m, reinterpret_cast<PyObject*>(storage));
}

// All results as new memory; false: none, and an exception.
bool new_results(const Record& r, Array** outs) {
  for (int i = 0; i < r.results; ++i) {
    if ((outs[i] = new_result(r.made[i]))) continue;
    drop(outs, i);
    return false;
  }
  return true;
}

// Whether the result may be written to `given` at once. It is made its own storage's owner on the way.
Array* usable_out(const Record& r, PyObject* given) {
  if (r.several || Py_TYPE(given) != globals.tensor_type) return nullptr;
  const Made& m = r.made[0];
  auto* out = reinterpret_cast<Array*>(given);
  if (!out->native || out->code != m.code || out->ndim() != m.ndim || !out->memory()->writable) return nullptr;
  if (!std::equal(m.dims, m.dims + m.ndim, out->shape())) return nullptr;
  for (int d = 0; d < m.ndim; ++d)
    if (out->strides()[d] == 0 && m.dims[d] > 1) return nullptr;  // elements that share their place
  if (storage_own(out->memory())) return out;
  PyErr_Clear();
  return nullptr;
}

PyObject* new_view(const Record& r, PyObject* of) {
  const Made& m = r.made[0];
  Array* a = array_view(globals.tensor_type, reinterpret_cast<Array*>(of), m.ndim, m.dims, r.steps, r.shift);
  if (!a) return nullptr;
  Py_INCREF(a->shape_tuple = m.shape);
  Py_INCREF(a->strides_tuple = m.strides);
  return reinterpret_cast<PyObject*>(a);
}

// nullptr without an exception: this call is for Python.
PyObject* carry_out(Row* row, const Record& r, PyObject* const* args, Py_ssize_t nargs, PyObject* given) {
  Array* outs[kMaxOutputs] = {};
  if (r.foreign) {
    PyObject* result = carry_out_there(r, row->operands, args, nargs, given);
    row->hits += result != nullptr;
    return result;
  }
  if (r.view) {
    if (given) return nullptr;
    ++row->hits;
    return new_view(r, args[0]);
  }
  if (given && given != Py_None && !(outs[0] = usable_out(r, given))) return nullptr;
  if (!r.entry) {
    if (outs[0]) return nullptr;
    ++row->hits;
    return new_results(r, outs) ? as_returned(r, outs) : nullptr;
  }

  // The results come first: making them may run a watcher's Python code, which may move the memory of an input.
  if (outs[0]) {
    Py_INCREF(outs[0]);
  } else if (!new_results(r, outs)) {
    return nullptr;
  }
  View in[kMaxReplayed], result[kMaxOutputs];
  alignas(8) char values[kMaxReplayed][8];
  Array* holders[kMaxReplayed + kMaxOutputs];
  int count = 0;
  bool fits = true;
  for (int i = 0; i < r.results; ++i) fill_view(outs[i], result[i]);
  for (int i = 0; fits && i < row->operands && i < nargs; ++i) {
    if (Py_TYPE(args[i]) == globals.tensor_type) {
      auto* a = reinterpret_cast<Array*>(args[i]);
      fill_view(a, in[i]);
      holders[count++] = a;
      if (!given) continue;
      const int meet = overlap(in[i], result[0]);
      fits = meet == 0 || (meet == 1 && row->in_place);
    } else if (args[i] != Py_None) {
      fits = store_scalar(args[i], r.scalars[i], values[i]);
      in[i].data = values[i];
      in[i].dtype = static_cast<DType>(r.scalars[i]);
    }
  }
  if (!fits) {
    drop(outs, r.results);
    return nullptr;
  }
  for (int i = 0; i < r.results; ++i) holders[count++] = outs[i];
  ++row->hits;
  const int64_t began = globals.recorder ? now_ns() : 0;
  if (run_kernel(*r.entry, Call{in, row->operands, result, &r.attrs}, holders, count, r.touched, r.results)) {
    if (began && r.about) add_span(r.about, began, now_ns() - began);
    return as_returned(r, outs);
  }
  drop(outs, r.results);
  return nullptr;
}

// Likewise. The record is held meanwhile, since other Python code may run and make the row forget. It is let go by
// hand: a daemon thread that ends while it waits for the GIL is unwound through here and must not touch it any more.
PyObject* replay(Row* row, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  Key key;
  PyObject* given = nullptr;
  if (!make_key(key, row, args, nargs, names, given) || interpreting()) return nullptr;
  Record* found = *row->records->place(key.words, key.count, key.hash());
  if (!found) return nullptr;
  ++found->uses;
  PyObject* result = carry_out(row, *found, args, nargs, given);
  release(found);
  return result;
}

PyObject* row_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Acting now(self);
  Row* row = as_row(self);
  const Py_ssize_t nargs = PyVectorcall_NARGS(flags);
  if (globals.fast && row->records && row->records->count) {
    PyObject* result = replay(row, args, nargs, names);
    if (result || PyErr_Occurred()) return result;
  }
  return call_python(self, args, nargs, names);
}

// A row stored in a class is a method of it.
PyObject* row_get(PyObject* self, PyObject* object, PyObject*) {
  if (object && object != Py_None) return PyMethod_New(self, object);
  Py_INCREF(self);
  return self;
}

PyObject* row_tp_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* row = reinterpret_cast<Row*>(type->tp_alloc(type, 0));
  if (!row) return nullptr;
  row->call = row_call;
  keep_vectorcall(type);
  row->arity = row->operands = -1;
  return reinterpret_cast<PyObject*>(row);
}

int row_tp_init(PyObject*, PyObject*, PyObject*) { return 0; }

void row_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (Records* records = as_row(self)->records) {
    records->clear();
    delete records;
  }
  type->tp_free(self);
  Py_DECREF(type);
}

// Reads through Python, since a subclass may keep these in slots of its own.
bool read_traits(Row* row) {
  PyObject* self = reinterpret_cast<PyObject*>(row);
  PyObject* arity = PyObject_GetAttrString(self, "arity");
  PyObject* inplace = arity ? PyObject_GetAttrString(self, "inplace") : nullptr;
  if (inplace) {
    const long n = PyLong_AsLong(arity);
    row->operands = n < 0 || n > kMaxReplayed ? -1 : static_cast<int>(n);
    row->in_place = PyObject_IsTrue(inplace) > 0;
  }
  Py_XDECREF(arity);
  Py_XDECREF(inplace);
  return !PyErr_Occurred();
}

// Fills in a result. False: exception.
bool describe_result(Made& m, PyObject* dtype, PyObject* shape) {
  m.code = dtype_code(dtype);
  if (m.code == -2) return false;
  if (!PyTuple_Check(shape)) {
    PyErr_Format(PyExc_TypeError, "remember: a shape must be a tuple, given %.100s.", Py_TYPE(shape)->tp_name);
    return false;
  }
  const Py_ssize_t ndim = PyTuple_GET_SIZE(shape);
  if (m.code < 0 || ndim > kMaxDims) {
    PyErr_Format(PyExc_ValueError, "remember: %R with %zd dimensions cannot be replayed.", dtype, ndim);
    return false;
  }
  m.ndim = static_cast<int>(ndim);
  int64_t size = 1, steps[kMaxDims];
  for (int d = m.ndim - 1; d >= 0; --d) {
    m.dims[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, d));
    if (PyErr_Occurred()) return false;
    if (m.dims[d] < 0 || __builtin_mul_overflow(size, m.dims[d], &size) || size > INT64_MAX / 16) {
      PyErr_Format(PyExc_ValueError, "remember: %R is not a shape.", shape);
      return false;
    }
  }
  m.nbytes = span(m.code, contiguous_strides(m.ndim, m.dims, m.code, steps));
  if (size == 0) m.nbytes = 0;
  m.strides = int_tuple(steps, m.ndim);
  if (!m.strides) return false;
  Py_INCREF(m.dtype = dtype);
  Py_INCREF(m.shape = shape);
  return true;
}

// Fills in the record from remember's arguments: a dtype and a shape, or tuples of them. False: exception.
bool describe(Record& r, PyObject* kernel, PyObject* dtype, PyObject* shape, PyObject* attrs, int first_ndim) {
  r.several = PyTuple_Check(dtype);
  const Py_ssize_t n = r.several ? PyTuple_GET_SIZE(dtype) : 1;
  if (n < 1 || n > kMaxOutputs || (r.several && PyTuple_GET_SIZE(shape) != n)) {
    PyErr_Format(PyExc_ValueError, "remember: 1 to %d results can be replayed, each of a dtype and a shape.", kMaxOutputs);
    return false;
  }
  r.results = static_cast<int>(n);
  r.made = std::make_unique<Made[]>(static_cast<std::size_t>(n));
  for (int i = 0; i < r.results; ++i) {
    PyObject* kind = r.several ? PyTuple_GET_ITEM(dtype, i) : dtype;
    if (!describe_result(r.made[i], kind, r.several ? PyTuple_GET_ITEM(shape, i) : shape)) return false;
    r.touched += r.made[i].nbytes;
  }
  if (kernel == Py_None) return true;
  r.entry = reinterpret_cast<KernelObject*>(kernel)->entry;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; attrs != Py_None && PyDict_Next(attrs, &at, &name, &value);)
    if (!read_attr(*r.entry, name, value, first_ndim, r.attrs)) return false;
  return true;
}

// The dtype each scalar becomes, and that the kernel takes what it will be given.
bool check_operands(Record& r, const Row* row, PyObject* const* args, Py_ssize_t nargs, PyObject* scalars) {
  int last = r.made[0].code;
  const int decides = r.entry ? r.entry->decides : -1;
  for (int i = 0; i < row->operands && i < nargs; ++i) {
    r.scalars[i] = -1;
    if (args[i] == Py_None) continue;
    if (Py_TYPE(args[i]) == globals.tensor_type) {
      auto* a = reinterpret_cast<Array*>(args[i]);
      if (decides < 0 || decides == i) last = a->code;
      r.touched += span(a->code, a->size);
      continue;
    }
    long code = -1;
    if (PyTuple_Check(scalars) && i < PyTuple_GET_SIZE(scalars)) code = PyLong_AsLong(PyTuple_GET_ITEM(scalars, i));
    if (PyErr_Occurred()) return false;
    if (code < 0 || code >= kDTypes) {
      PyErr_Format(PyExc_ValueError, "remember: argument %d is a scalar, but `scalars` names no dtype for it.", i);
      return false;
    }
    r.scalars[i] = static_cast<std::int8_t>(code);
    if (decides < 0 || decides == i) last = static_cast<int>(code);
  }
  if (!r.entry || (r.entry->dtypes >> last & 1)) return true;
  PyErr_Format(PyExc_ValueError, "remember: the native kernel %s does not take dtype code %d.", r.entry->name, last);
  return false;
}

// A record under the key of a call. False: such a call cannot be told from others, or an exception is set.
bool key_record(Record& r, Row* row, PyObject* args, PyObject* kwargs) {
  if (!read_traits(row) || row->operands < 0 || !globals.tensor_type) return false;
  const Py_ssize_t nargs = PyTuple_GET_SIZE(args);
  PyObject* const* items = &PyTuple_GET_ITEM(args, 0);
  Key key;
  PyObject* out = nullptr;
  const auto keep = [&](PyObject* o) {
    if (!Key::is_identity(Py_TYPE(o))) return;
    Py_INCREF(o);
    r.kept.push_back(o);
  };
  if (!make_key(key, row, items, nargs, nullptr, out)) return false;
  for (Py_ssize_t i = row->operands; i < nargs; ++i) keep(items[i]);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; kwargs != Py_None && PyDict_Next(kwargs, &at, &name, &value);) {
    if (is_out(name)) continue;
    if (!key.add_text(name) || !key.add_attr(value)) return false;
    keep(value);
  }
  r.key.assign(key.words, key.words + key.count);
  r.hash = key.hash();
  return true;
}

PyObject* insert(Row* row, std::unique_ptr<Record> record) {
  if (!row->records) row->records = new Records;
  row->records->insert(record.release());
  Py_RETURN_TRUE;
}

PyObject* row_remember(PyObject* self, PyObject* given, PyObject* keywords) {
  static const char* parameters[] = {"args",  "kwargs",  "kernel", "dtype", "shape",
                                     "scalars", "attrs", "about", nullptr};
  PyObject *args, *kwargs, *kernel, *dtype, *shape, *scalars = Py_None, *attrs = Py_None, *about = Py_None;
  if (!PyArg_ParseTupleAndKeywords(given, keywords, "O!OOOO!|OOO:remember", const_cast<char**>(parameters),
                                   &PyTuple_Type, &args, &kwargs, &kernel, &dtype, &PyTuple_Type, &shape, &scalars,
                                   &attrs, &about))
    return nullptr;
  if (kernel != Py_None && Py_TYPE(kernel) != globals.kernel_type)
    return PyErr_Format(PyExc_TypeError, "remember: kernel must be a native Kernel or None, given %.100s.",
                        Py_TYPE(kernel)->tp_name);
  if ((kwargs != Py_None && !PyDict_Check(kwargs)) || (attrs != Py_None && !PyDict_Check(attrs)))
    return PyErr_Format(PyExc_TypeError, "remember: kwargs and attrs must be dicts or None.");
  Row* row = as_row(self);
  auto record = std::make_unique<Record>();
  if (!key_record(*record, row, args, kwargs)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_False);
  const Py_ssize_t nargs = PyTuple_GET_SIZE(args);
  PyObject* const* items = &PyTuple_GET_ITEM(args, 0);
  const bool array_first = row->operands > 0 && nargs > 0 && is_array(items[0]);
  const int first_ndim = array_first ? reinterpret_cast<Array*>(items[0])->ndim() : 0;
  if (!describe(*record, kernel, dtype, shape, attrs, first_ndim)) return nullptr;
  if (!check_operands(*record, row, items, nargs, scalars)) return nullptr;
  if (about != Py_None) record->kept.push_back(record->about = Py_NewRef(about));
  return insert(row, std::move(record));
}

PyObject* row_remember_there(PyObject* self, PyObject* given) {
  PyObject *args, *kwargs, *fn, *dtype, *shape, *dtypes, *type, *device, *look, *number, *keywords;
  if (!PyArg_ParseTuple(given, "O!O!OOO!O!O!OOOO!:remember_there", &PyTuple_Type, &args, &PyDict_Type, &kwargs, &fn,
                        &dtype, &PyTuple_Type, &shape, &PyTuple_Type, &dtypes, &PyType_Type, &type, &device, &look,
                        &number, &PyDict_Type, &keywords))
    return nullptr;
  if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), globals.held_type))
    return PyErr_Format(PyExc_TypeError, "remember_there: type must derive from Held, given %R.", type);
  Row* row = as_row(self);
  auto record = std::make_unique<Record>();
  if (!key_record(*record, row, args, kwargs)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_False);
  if (PyTuple_GET_SIZE(dtypes) < row->operands)
    return PyErr_Format(PyExc_ValueError, "remember_there: %d operands, but dtypes of %zd were given.", row->operands,
                        PyTuple_GET_SIZE(dtypes));
  if (!describe(*record, Py_None, dtype, shape, Py_None, 0)) return nullptr;
  record->foreign = foreign_of(fn, type, device, look, number, dtypes, keywords);
  if (!record->foreign) return nullptr;
  return insert(row, std::move(record));
}

// A view is remembered by its result: the same storage seen from another layout.
PyObject* row_remember_view(PyObject* self, PyObject* given) {
  PyObject *args, *kwargs, *result;
  if (!PyArg_ParseTuple(given, "O!OO:remember_view", &PyTuple_Type, &args, &kwargs, &result)) return nullptr;
  if (!PyTuple_GET_SIZE(args) || !is_array(PyTuple_GET_ITEM(args, 0)) || !is_array(result)) Py_RETURN_FALSE;
  auto *from = reinterpret_cast<Array*>(PyTuple_GET_ITEM(args, 0)), *to = reinterpret_cast<Array*>(result);
  if (from->storage != to->storage || !from->known()) Py_RETURN_FALSE;
  Row* row = as_row(self);
  row->strided = true;
  auto record = std::make_unique<Record>();
  Record& r = *record;
  if (!key_record(r, row, args, kwargs)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_False);
  r.view = true;
  r.results = 1;
  r.made = std::make_unique<Made[]>(1);
  Made& m = r.made[0];
  m.ndim = to->ndim();
  r.shift = to->offset - from->offset;
  std::copy_n(to->shape(), m.ndim, m.dims);
  std::copy_n(to->strides(), m.ndim, r.steps);
  m.shape = int_tuple(m.dims, m.ndim);
  m.strides = int_tuple(r.steps, m.ndim);
  if (!m.shape || !m.strides) return nullptr;
  return insert(row, std::move(record));
}

PyObject* row_forget(PyObject* self, PyObject*) {
  if (Records* records = as_row(self)->records) records->clear();
  Py_RETURN_NONE;
}

PyObject* get_replays(PyObject* self, void*) {
  const Records* records = as_row(self)->records;
  return PyLong_FromLong(records ? records->count : 0);
}

PyMethodDef row_methods[] = {
    {"remember", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(row_remember)),
     METH_VARARGS | METH_KEYWORDS,
     "remember($self, args, kwargs, kernel, dtype, shape, scalars=None, attrs=None, about=None)\n--\n\n"
     "Replay calls like this one from now on. False when such a call cannot be told from others. For several results\n"
     "dtype and shape are tuples. `about` is what spans of such calls say ran."},
    {"remember_there", row_remember_there, METH_VARARGS,
     "remember_there($self, args, kwargs, fn, dtype, shape, dtypes, type, device, look, number, keywords, /)\n--\n\n"
     "Replay calls like this one by fn(*values, **keywords) of a device's own library. False when such a call cannot be\n"
     "told from others. The results are held by storages of `type`; `dtypes` are those that scalars become."},
    {"remember_view", row_remember_view, METH_VARARGS,
     "remember_view($self, args, kwargs, result, /)\n--\n\n"
     "Replay calls like this one, which gave a view of its first argument, from now on."},
    {"forget", row_forget, METH_NOARGS, "forget($self, /)\n--\n\nDrop everything remembered."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef row_getset[] = {{"replays", get_replays, nullptr, "How many calls are remembered.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef row_members[] = {
    {"arity", T_INT, offsetof(Row, arity), 0, "Leading positional arguments that are tensors; -1: never replay."},
    {"inplace", T_BOOL, offsetof(Row, inplace), 0, "Whether the result may be written over an input."},
    {"hits", T_LONGLONG, offsetof(Row, hits), READONLY, "How many calls were replayed."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Row, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot row_slots[] = {
    {Py_tp_doc, const_cast<char*>("The base of Op: replays calls it was told to remember, sends others to self.call.")},
    {Py_tp_new, reinterpret_cast<void*>(row_tp_new)},
    {Py_tp_init, reinterpret_cast<void*>(row_tp_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(row_dealloc)},
    {Py_tp_descr_get, reinterpret_cast<void*>(row_get)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_methods, row_methods},
    {Py_tp_getset, row_getset},
    {Py_tp_members, row_members},
    {0, nullptr}};

PyType_Spec row_spec = {"tritium._native.Row", sizeof(Row), 0,
                        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL, row_slots};

}  // namespace

PyObject* call_python(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  const Py_ssize_t total = nargs + (names ? PyTuple_GET_SIZE(names) : 0);
  PyObject* small[16];
  std::unique_ptr<PyObject*[]> large;
  PyObject** all = small;
  if (total + 1 > 16) {
    large.reset(new PyObject*[static_cast<std::size_t>(total + 1)]);
    all = large.get();
  }
  all[0] = self;
  std::copy_n(args, total, all + 1);
  return PyObject_VectorcallMethod(name_call, all, static_cast<std::size_t>(nargs + 1), names);
}

bool interpreting() {
  if (!globals.interpreter) return false;
  PyObject* value;
  if (PyContextVar_Get(globals.interpreter, nullptr, &value) < 0 || !value) {
    PyErr_Clear();
    return true;
  }
  Py_DECREF(value);
  return value != Py_None;
}

void keep_vectorcall([[maybe_unused]] PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030C0000
  if (!(type->tp_flags & Py_TPFLAGS_HAVE_VECTORCALL)) {  // before 3.12 a Python class does not inherit it
    type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    PyType_Modified(type);
  }
#endif
}

PyTypeObject* make_row_type() {
  name_out = PyUnicode_InternFromString("out");
  name_call = PyUnicode_InternFromString("call");
  if (!name_out || !name_call) return nullptr;
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&row_spec));
}

}  // namespace tritium::python
