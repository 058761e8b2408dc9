// Row: the base of Op. A call seen before is replayed here, without a Python frame; any other goes to `self.call`.
// Knows nothing of rules or of how a kernel is chosen: Python tells it what to remember.
#include <algorithm>
#include <memory>

#include "events.h"
#include "index.h"
#include "join.h"
#include "results.h"
#include "row.h"
#include "there.h"

namespace tritium::python {
namespace {

PyObject *name_out, *name_call;

// The key of a call given as vectorcall does. `out` is left out of the key and returned apart.
bool make_key(Key& key, const Row* row, const Given& g, PyObject* const* named, PyObject* names, PyObject*& out,
              bool any_shape, PyObject** number = nullptr) {
  if (!add_call(key, row, g, any_shape, number)) return false;
  for (Py_ssize_t k = 0; k < (names ? PyTuple_GET_SIZE(names) : 0); ++k) {
    PyObject* name = PyTuple_GET_ITEM(names, k);
    if (is_out(name)) {
      out = named[k];
    } else if (!add_named(key, row, name, named[k], number)) {
      return false;
    }
  }
  return true;
}

// The attributes of a record with the number of this call. False: it does not fit, which Python says.
bool with_number(const Row* row, const Record& r, PyObject* number, Attrs& attrs) {
  alignas(16) char stored[16];  // of the widest dtype
  if (!store_scalar(number, r.number, stored)) return false;
  attrs = r.attrs;
  if (read_attr(*r.entry, row->varies, number, 0, attrs)) return true;
  PyErr_Clear();
  return false;
}

// The operands' shapes, broadcast. False: they do not fit each other, or the result is too large; Python says so.
bool broadcast(const Made& m, const Given& g, Fit& fit) {
  for (Py_ssize_t i = 0; i < g.count; ++i) {
    if (Py_TYPE(g.operands[i]) != globals.tensor_type) continue;
    auto* a = reinterpret_cast<Array*>(g.operands[i]);
    fit.touched += span(a->code, a->size);
    for (; fit.ndim < a->ndim(); ++fit.ndim) {
      std::copy_backward(fit.dims, fit.dims + fit.ndim, fit.dims + fit.ndim + 1);
      fit.dims[0] = 1;
    }
    int64_t* last = fit.dims + fit.ndim - a->ndim();
    for (int d = 0; d < a->ndim(); ++d) {
      const int64_t n = a->shape()[d];
      if (last[d] == 1) {
        last[d] = n;
      } else if (n != 1 && n != last[d]) {
        return false;
      }
    }
  }
  int64_t size = 1;
  for (int d = 0; d < fit.ndim; ++d)
    if (__builtin_mul_overflow(size, fit.dims[d], &size) || size > INT64_MAX / 16) return false;
  fit.nbytes = span(m.code, size);
  fit.touched += fit.nbytes;
  return true;
}

Array* new_result(const Made& m, const Fit* fit) {
  Storage* storage = storage_new(fit ? fit->nbytes : m.nbytes);
  if (!storage) return nullptr;
  auto* held = reinterpret_cast<PyObject*>(storage);
  return fit ? array_of(globals.tensor_type, held, m.dtype, m.code, fit->ndim, fit->dims) : as_tensor(m, held);
}

// All results as new memory; false: none, and an exception.
bool new_results(const Record& r, const Fit* fit, Array** outs) {
  for (int i = 0; i < r.results; ++i) {
    if ((outs[i] = new_result(r.made[i], fit))) continue;
    drop(outs, i);
    return false;
  }
  return true;
}

// Whether the result may be written to `given` at once. It is made its own storage's owner on the way.
Array* usable_out(const Record& r, const Fit* fit, PyObject* given) {
  if (r.several || Py_TYPE(given) != globals.tensor_type) return nullptr;
  const Made& m = r.made[0];
  auto* out = reinterpret_cast<Array*>(given);
  const int ndim = fit ? fit->ndim : m.ndim;
  const int64_t* dims = fit ? fit->dims : m.dims;
  if (!out->native || out->code != m.code || out->ndim() != ndim || !out->memory()->writable) return nullptr;
  if (!std::equal(dims, dims + ndim, out->shape())) return nullptr;
  for (int d = 0; d < ndim; ++d)
    if (out->strides()[d] == 0 && dims[d] > 1) return nullptr;  // elements that share their place
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

// Whether a record joins any number of tensors of any shapes.
bool joins(const Record& r) { return r.any_shape && r.entry && r.entry->join != Join::none; }

// Joins the operands into `out`, whose reference it takes over. nullptr without an exception: this call is for Python.
PyObject* carry_out_join(Row* row, const Record& r, const Given& g, Array* out, bool is_given) {
  bool fits = true;
  if (is_given) {
    View in, result;
    fill_view(out, result);
    for (Py_ssize_t i = 0; fits && i < g.count; ++i) {
      fill_view(reinterpret_cast<Array*>(g.operands[i]), in);
      fits = overlap(in, result) == 0;
    }
  }
  if (fits && run_join(*r.entry, r.attrs, g.operands, g.count, out)) {
    ++row->hits;
    return reinterpret_cast<PyObject*>(out);
  }
  Py_DECREF(out);
  return nullptr;
}

// An operand as a kernel in Python takes it, a new reference: a number becomes a tensor, of the dtype of one that is one.
// nullptr: an exception, or without one: this call is for Python.
PyObject* as_operand(const Record& r, const Given& g, int i) {
  PyObject* x = i < g.count ? g.operands[i] : Py_None;
  if (x == Py_None || Py_TYPE(x) == globals.tensor_type) return Py_NewRef(x);
  for (Py_ssize_t k = 0; k < g.count; ++k) {
    if (Py_TYPE(g.operands[k]) != globals.tensor_type) continue;
    auto* a = reinterpret_cast<Array*>(g.operands[k]);
    if (a->code != r.scalars[i]) continue;
    PyObject* number = number_tensor(x, a->dtype);
    if (number != Py_None) return number;
    Py_DECREF(number);
    return nullptr;
  }
  return nullptr;
}

// The attributes of a kernel in Python, and where it writes: a new dict.
PyObject* keywords_of(const Record& r, Array** outs) {
  PyObject* keywords = r.settings ? PyDict_Copy(r.settings) : PyDict_New();
  PyObject* out = reinterpret_cast<PyObject*>(outs[0]);
  Py_INCREF(out);
  if (r.several) {
    for (int i = 1; i < r.results; ++i) Py_INCREF(outs[i]);
    out = as_returned(r, outs);
  }
  if (keywords && (!out || PyDict_SetItem(keywords, name_out, out) < 0)) Py_CLEAR(keywords);
  Py_XDECREF(out);
  return keywords;
}

// Calls a kernel in Python on new results. nullptr without an exception: this call is for Python.
PyObject* carry_out_python(Row* row, const Record& r, const Given& g, const Fit* fit) {
  if (g.wanted > kMaxReplayed) return nullptr;
  PyObject* operands[kMaxReplayed];
  Array* outs[kMaxOutputs] = {};
  int count = 0;
  while (count < g.wanted && (operands[count] = as_operand(r, g, count))) ++count;
  const bool ready = count == g.wanted && new_results(r, fit, outs);
  PyObject *keywords = ready ? keywords_of(r, outs) : nullptr, *done = nullptr;
  if (keywords) {
    ++row->hits;
    const int64_t began = globals.recorder ? now_ns() : 0;
    done = PyObject_VectorcallDict(r.kernel, operands, static_cast<std::size_t>(count), keywords);
    if (done && began && r.about) add_span(r.about, began, now_ns() - began);
  }
  for (int i = 0; i < count; ++i) Py_DECREF(operands[i]);
  Py_XDECREF(keywords);
  if (done) {
    Py_DECREF(done);
    return as_returned(r, outs);
  }
  if (ready) drop(outs, r.results);
  return nullptr;
}

// nullptr without an exception: this call is for Python.
PyObject* carry_out(Row* row, const Record& r, const Given& g, PyObject* given, PyObject* number) {
  Array* outs[kMaxOutputs] = {};
  if (r.foreign) {
    PyObject* result = carry_out_there(r, g.operands, g.count, g.wanted, given);
    row->hits += result != nullptr;
    return result;
  }
  if (r.view) {
    if (given) return nullptr;
    ++row->hits;
    return new_view(r, g.operands[0]);
  }
  Fit shape;
  const Fit* fit = r.any_shape ? &shape : nullptr;
  if (joins(r)) {
    if (!join_shape(*r.entry, r.attrs, g, r.made[0].code, shape)) return nullptr;
  } else if (fit && !broadcast(r.made[0], g, shape)) {
    return nullptr;
  }
  if (r.kernel) return given && given != Py_None ? nullptr : carry_out_python(row, r, g, fit);
  Attrs own;
  if (r.number >= 0 && !with_number(row, r, number, own)) return nullptr;
  const Attrs& attrs = r.number >= 0 ? own : r.attrs;
  if (given && given != Py_None && !(outs[0] = usable_out(r, fit, given))) return nullptr;
  if (!r.entry) {
    if (outs[0]) return nullptr;
    ++row->hits;
    return new_results(r, fit, outs) ? as_returned(r, outs) : nullptr;
  }

  // The results come first: making them may run a watcher's Python code, which may move the memory of an input.
  if (outs[0]) {
    Py_INCREF(outs[0]);
  } else if (!new_results(r, fit, outs)) {
    return nullptr;
  }
  if (joins(r)) return carry_out_join(row, r, g, outs[0], given != nullptr);
  View in[kMaxReplayed], result[kMaxOutputs];
  alignas(16) char values[kMaxReplayed][16];
  Array* holders[kMaxReplayed + kMaxOutputs];
  int count = 0;
  bool fits = true;
  for (int i = 0; i < r.results; ++i) fill_view(outs[i], result[i]);
  for (int i = 0; fits && i < g.count; ++i) {
    PyObject* x = g.operands[i];
    if (Py_TYPE(x) == globals.tensor_type) {
      auto* a = reinterpret_cast<Array*>(x);
      fill_view(a, in[i]);
      holders[count++] = a;
      if (!given) continue;
      const int meet = overlap(in[i], result[0]);
      fits = meet == 0 || (meet == 1 && row->in_place);
    } else if (x != Py_None) {
      fits = store_scalar(x, r.scalars[i], values[i]);
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
  if (run_kernel(*r.entry, Call{in, g.wanted, result, &attrs}, holders, count, fit ? fit->touched : r.touched, r.results)) {
    if (began && r.about) add_span(r.about, began, now_ns() - began);
    return as_returned(r, outs);
  }
  drop(outs, r.results);
  return nullptr;
}

// Likewise. The record is held meanwhile, since other Python code may run and make the row forget; by hand, as Given says.
PyObject* replay(Row* row, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  Given g(row, args, nargs);
  Key key;
  PyObject *given = nullptr, *result = nullptr, *number = nullptr;
  // A span says of which shapes and numbers it was: only Python knows new ones.
  const bool any_number = row->any_number && !globals.recorder;
  if (!interpreting()) {
    Record* found = nullptr;
    if (make_key(key, row, g, args + nargs, names, given, false, any_number ? &number : nullptr))
      found = *row->records->place(key.words, key.count, key.hash());
    if (!found && row->any_shape && !globals.recorder) {
      Key loose;
      if (make_key(loose, row, g, args + nargs, names, given, true))
        found = *row->records->place(loose.words, loose.count, loose.hash());
    }
    if (found) {
      ++found->uses;
      found->lately = true;
      result = carry_out(row, *found, g, given, number);
      release(found);
    }
  }
  g.let_go();
  return result;
}

// Whether an op that changes complex numbers only returns this tensor as it is.
bool is_kept(PyObject* x) {
  if (!globals.fast || Py_TYPE(x) != globals.tensor_type || interpreting()) return false;
  auto* a = reinterpret_cast<Array*>(x);
  return a->plain() && a->code != static_cast<int>(DType::b8) && !is_complex(static_cast<DType>(a->code));
}

PyObject* row_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Acting now(self);
  Row* row = as_row(self);
  const Py_ssize_t nargs = PyVectorcall_NARGS(flags);
  if (globals.fast && row->indexes) {
    PyObject* result = index_natively(row->indexes, args, nargs, names);
    if (result || PyErr_Occurred()) return result;
  }
  if (row->keeps && nargs == 1 && !names && is_kept(args[0])) return clone_of(reinterpret_cast<Array*>(args[0]));
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

// As a method of a class it is called with the object in front, without an object for the two: row_get says the same.
void keep_unbound(PyTypeObject* type) {
  if (type->tp_flags & Py_TPFLAGS_METHOD_DESCRIPTOR) return;
  type->tp_flags |= Py_TPFLAGS_METHOD_DESCRIPTOR;  // a Python class does not inherit it
  PyType_Modified(type);
}

PyObject* row_tp_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* row = reinterpret_cast<Row*>(type->tp_alloc(type, 0));
  if (!row) return nullptr;
  row->call = row_call;
  keep_vectorcall(type);
  keep_unbound(type);
  row->arity = row->operands = kNever;
  row->varies_place = -1;
  return reinterpret_cast<PyObject*>(row);
}

int row_tp_init(PyObject*, PyObject*, PyObject*) { return 0; }

void row_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (Records* records = as_row(self)->records) {
    records->clear();
    delete records;
  }
  Py_XDECREF(as_row(self)->varies);
  type->tp_free(self);
  Py_DECREF(type);
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
     "remember($self, args, kwargs, kernel, dtype, shape, scalars=None, attrs=None, about=None, any_shape=False, number=-1)\n--\n\n"
     "Replay calls like this one from now on. False when such a call cannot be told from others. For several results\n"
     "dtype and shape are tuples. `about` is what spans of such calls say ran. With any_shape calls of\n"
     "the same dtypes are replayed whatever the shapes: the op works element by element. With the code of a dtype as\n"
     "`number` they are replayed whatever the value of `varies`, as long as it fits that dtype."},
    {"remember_there", row_remember_there, METH_VARARGS,
     "remember_there($self, args, kwargs, dtype, shape, dtypes, device, replay, /)\n--\n\n"
     "Replay calls like this one by a device's own library, as `replay` says (backends.Replay). False when such a call\n"
     "cannot be told from others. `dtypes` are those that scalars become."},
    {"remember_view", row_remember_view, METH_VARARGS,
     "remember_view($self, args, kwargs, result, /)\n--\n\n"
     "Replay calls like this one, which gave a view of its first argument, from now on."},
    {"forget", row_forget, METH_NOARGS, "forget($self, /)\n--\n\nDrop everything remembered."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef row_getset[] = {{"replays", get_replays, nullptr, "How many calls are remembered.", nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef row_members[] = {
    {"arity", T_INT, offsetof(Row, arity), 0, "Leading positional arguments that are tensors; -1: all of them are, or are in one list."},
    {"inplace", T_BOOL, offsetof(Row, inplace), 0, "Whether the result may be written over an input."},
    {"keeps", T_BOOL, offsetof(Row, keeps), 0, "Whether of real numbers the result is the operand itself: then a clone is returned."},
    {"indexes", T_BYTE, offsetof(Row, indexes), 0, "What native code does without a record. 1: x[key]; 2: x[key] = value; 3: nonzero; 4: take; 5: take_along_axis."},
    {"varies", T_OBJECT, offsetof(Row, varies), 0, "The name of an attribute whose value decides neither spec nor kernel, or None."},
    {"varies_place", T_INT, offsetof(Row, varies_place), 0, "Where that attribute stands when it is given by place."},
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

bool is_out(PyObject* name) {
  return name == name_out || (PyUnicode_GET_LENGTH(name) == 3 && PyUnicode_CompareWithASCIIString(name, "out") == 0);
}

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
