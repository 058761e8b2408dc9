// What Row is told to remember: the records of calls, checked.
#include <algorithm>
#include <memory>

#include "results.h"
#include "row.h"
#include "there.h"

namespace tritium::python {

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

namespace {

// A call as `remember` is told of it.
struct Said : Given {
  using Given::Given;
  ~Said() { let_go(); }
};

// Reads through Python, since a subclass may keep these in slots of its own. False: never replay it, or an exception.
bool read_traits(Row* row) {
  PyObject* self = reinterpret_cast<PyObject*>(row);
  PyObject* arity = PyObject_GetAttrString(self, "arity");
  PyObject* inplace = arity ? PyObject_GetAttrString(self, "inplace") : nullptr;
  const long n = inplace ? PyLong_AsLong(arity) : kNever;
  const bool fits = inplace && !PyErr_Occurred() && n >= kVariadic && n <= kMaxReplayed && globals.tensor_type;
  if (fits) {
    row->operands = static_cast<int>(n);
    row->in_place = PyObject_IsTrue(inplace) > 0;
  }
  Py_XDECREF(arity);
  Py_XDECREF(inplace);
  return fits && !PyErr_Occurred();
}

PyObject* told_from_others() { return PyErr_Occurred() ? nullptr : Py_NewRef(Py_False); }

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
  if (Py_TYPE(kernel) != globals.kernel_type) {
    r.kept.push_back(r.kernel = Py_NewRef(kernel));
    if (attrs != Py_None && PyDict_GET_SIZE(attrs)) r.kept.push_back(r.settings = Py_NewRef(attrs));
    return true;
  }
  r.entry = reinterpret_cast<KernelObject*>(kernel)->entry;
  PyObject *name, *value;
  for (Py_ssize_t at = 0; attrs != Py_None && PyDict_Next(attrs, &at, &name, &value);)
    if (!read_attr(*r.entry, name, value, first_ndim, r.attrs)) return false;
  return true;
}

// The dtype each scalar becomes, and that the kernel takes what it will be given.
bool check_operands(Record& r, const Given& g, PyObject* scalars) {
  int last = r.made[0].code;
  const int decides = r.entry ? r.entry->decides : -1;
  for (int i = 0; i < g.count; ++i) {
    if (i < kMaxReplayed) r.scalars[i] = -1;  // of more operands, which are joined, none is a scalar
    PyObject* x = g.operands[i];
    if (x == Py_None) continue;
    if (Py_TYPE(x) == globals.tensor_type) {
      auto* a = reinterpret_cast<Array*>(x);
      if (decides < 0 || decides == i) last = a->code;
      r.touched += span(a->code, a->size);
      continue;
    }
    long code = -1;
    if (PyTuple_Check(scalars) && i < PyTuple_GET_SIZE(scalars)) code = PyLong_AsLong(PyTuple_GET_ITEM(scalars, i));
    if (PyErr_Occurred()) return false;
    if (code < 0 || code >= kCodes || !is_plain(static_cast<DType>(code))) {
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
bool key_record(Record& r, const Row* row, const Given& g, PyObject* kwargs, bool any_shape = false) {
  Key key;
  PyObject* number = nullptr;
  PyObject** const any = r.number >= 0 ? &number : nullptr;
  const auto keep = [&](PyObject* o) {
    if (!Key::is_identity(Py_TYPE(o))) return;
    Py_INCREF(o);
    r.kept.push_back(o);
  };
  if (!add_call(key, row, g, any_shape, any)) return false;
  for (Py_ssize_t i = 0; i < g.rest; ++i) keep(g.others[i]);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; kwargs != Py_None && PyDict_Next(kwargs, &at, &name, &value);) {
    if (is_out(name)) continue;
    if (!add_named(key, row, name, value, any)) return false;
    keep(value);
  }
  if (any && !number) return false;
  r.key.assign(key.words, key.words + key.count);
  r.hash = key.hash();
  return true;
}

PyObject* insert(Row* row, std::unique_ptr<Record> record) {
  if (!row->records) row->records = new Records;
  row->records->insert(record.release());
  Py_RETURN_TRUE;
}

}  // namespace

PyObject* row_remember(PyObject* self, PyObject* given, PyObject* keywords) {
  static const char* parameters[] = {"args",  "kwargs",  "kernel", "dtype", "shape",
                                     "scalars", "attrs", "about", "any_shape", "number", nullptr};
  PyObject *args, *kwargs, *kernel, *dtype, *shape, *scalars = Py_None, *attrs = Py_None, *about = Py_None;
  int any_shape = 0, number = -1;
  if (!PyArg_ParseTupleAndKeywords(given, keywords, "O!OOOO!|OOOpi:remember", const_cast<char**>(parameters),
                                   &PyTuple_Type, &args, &kwargs, &kernel, &dtype, &PyTuple_Type, &shape, &scalars,
                                   &attrs, &about, &any_shape, &number))
    return nullptr;
  const bool is_native = Py_TYPE(kernel) == globals.kernel_type;
  if (kernel != Py_None && !PyCallable_Check(kernel))
    return PyErr_Format(PyExc_TypeError, "remember: kernel must be a native Kernel, a function or None, given %.100s.",
                        Py_TYPE(kernel)->tp_name);
  if ((kwargs != Py_None && !PyDict_Check(kwargs)) || (attrs != Py_None && !PyDict_Check(attrs)))
    return PyErr_Format(PyExc_TypeError, "remember: kwargs and attrs must be dicts or None.");
  Row* row = as_row(self);
  if (!read_traits(row)) return told_from_others();
  const Said said(row, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args));
  auto record = std::make_unique<Record>();
  if (number >= 0 && (number >= kCodes || !is_plain(static_cast<DType>(number)) || !is_native || !row->varies || !PyUnicode_Check(row->varies)))
    return PyErr_Format(PyExc_ValueError, "remember: a number may vary where `varies` names it, for a kernel and a plain dtype.");
  record->number = number;
  if (!key_record(*record, row, said, kwargs, any_shape)) return told_from_others();
  const bool array_first = said.count > 0 && is_array(said.operands[0]);
  const int first_ndim = array_first ? reinterpret_cast<Array*>(said.operands[0])->ndim() : 0;
  if (!describe(*record, kernel, dtype, shape, attrs, first_ndim)) return nullptr;
  if (!check_operands(*record, said, scalars)) return nullptr;
  if (any_shape && (record->several || kernel == Py_None || !is_plain(static_cast<DType>(record->made[0].code))))
    return PyErr_Format(PyExc_ValueError, "remember: only a kernel with one result that is not packed serves any shape.");
  record->any_shape = any_shape;
  row->any_shape |= static_cast<char>(any_shape);
  row->any_number |= static_cast<char>(number >= 0);
  if (about != Py_None) record->kept.push_back(record->about = Py_NewRef(about));
  return insert(row, std::move(record));
}

PyObject* row_remember_there(PyObject* self, PyObject* given) {
  PyObject *args, *kwargs, *dtype, *shape, *dtypes, *device;
  Replayed how;
  if (!PyArg_ParseTuple(given, "O!O!OO!O!O(OO!OOO!O!p):remember_there", &PyTuple_Type, &args, &PyDict_Type, &kwargs,
                        &dtype, &PyTuple_Type, &shape, &PyTuple_Type, &dtypes, &device, &how.fn, &PyType_Type, &how.type,
                        &how.look, &how.number, &PyTuple_Type, &how.after, &PyDict_Type, &how.keywords, &how.together))
    return nullptr;
  if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(how.type), globals.held_type))
    return PyErr_Format(PyExc_TypeError, "remember_there: the storage must derive from Held, given %R.", how.type);
  Row* row = as_row(self);
  if (!read_traits(row)) return told_from_others();
  const Said said(row, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args));
  auto record = std::make_unique<Record>();
  if (!key_record(*record, row, said, kwargs)) return told_from_others();
  if (PyTuple_GET_SIZE(dtypes) < said.wanted)
    return PyErr_Format(PyExc_ValueError, "remember_there: %d operands, but dtypes of %zd were given.", said.wanted,
                        PyTuple_GET_SIZE(dtypes));
  if (!describe(*record, Py_None, dtype, shape, Py_None, 0)) return nullptr;
  record->foreign = foreign_of(how, device, dtypes);
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
  if (!read_traits(row)) return told_from_others();
  const Said said(row, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args));
  if (!key_record(r, row, said, kwargs)) return told_from_others();
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


}  // namespace tritium::python
