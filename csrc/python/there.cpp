// Calls that a device's own library carries out, on the values that Held storages hold.
#include "there.h"

#include <algorithm>

#include "held.h"
#include "results.h"

namespace tritium::python {
namespace {

// Whether the value of its storage is what the tensor shows.
bool shows_all(Array* a) {
  const Held* h = held_of(a);
  return is_plain(static_cast<DType>(a->code)) && a->contiguous && a->offset == 0 && h->ndim == a->ndim() && h->value != Py_None &&
         span(a->code, a->size) == h->nbytes && std::equal(h->dims, h->dims + h->ndim, a->shape());
}

// What the library takes for an argument: a new reference, or nullptr and an exception.
PyObject* as_value(const Foreign& f, PyObject* given, int index) {
  if (given == Py_None) return Py_NewRef(given);
  if (Py_TYPE(given) != globals.tensor_type)
    return PyObject_CallFunctionObjArgs(f.number, given, PyTuple_GET_ITEM(f.dtypes, index), nullptr);
  auto* a = reinterpret_cast<Array*>(given);
  return shows_all(a) ? Py_NewRef(held_of(a)->value) : PyObject_CallOneArg(f.look, given);
}

// Whether a value may take the place of what the tensor's storage holds.
bool may_replace(const Record& r, PyObject* given) {
  if (r.several || Py_TYPE(given) != globals.tensor_type) return false;
  auto* out = reinterpret_cast<Array*>(given);
  const Made& m = r.made[0];
  if (!out->held || held_of(out)->device != r.foreign->device || out->code != m.code) return false;
  if (!is_plain(static_cast<DType>(m.code))) return false;
  const Held* h = held_of(out);
  return h->writable && !h->fixed && out->contiguous && out->offset == 0 && out->ndim() == m.ndim &&
         std::equal(m.dims, m.dims + m.ndim, out->shape()) && h->nbytes == m.nbytes;
}

Array* hold_value(const Record& r, const Made& m, PyObject* value) {
  Held* h = held_new(r.foreign->type, r.foreign->device, m.nbytes, value, m.ndim, m.dims);
  return h ? as_tensor(m, reinterpret_cast<PyObject*>(h)) : nullptr;
}

// The results of a library as tensors. Takes the reference over.
PyObject* as_tensors(const Record& r, PyObject* result, PyObject* given) {
  if (given) {
    auto* out = reinterpret_cast<Array*>(given);
    held_of(out)->ndim = r.made[0].ndim;
    std::copy_n(r.made[0].dims, r.made[0].ndim, held_of(out)->dims);
    held_set(held_of(out), result);
    return Py_NewRef(given);
  }
  if (!r.several) return reinterpret_cast<PyObject*>(hold_value(r, r.made[0], result));
  Array* outs[kMaxOutputs];
  int made = 0;
  const bool fits = PyTuple_Check(result) && PyTuple_GET_SIZE(result) == r.results;
  if (!fits) PyErr_Format(PyExc_TypeError, "a kernel of %d results gave %R.", r.results, result);
  while (fits && made < r.results &&
         (outs[made] = hold_value(r, r.made[made], Py_NewRef(PyTuple_GET_ITEM(result, made)))))
    ++made;
  Py_DECREF(result);
  if (fits && made == r.results) return as_returned(r, outs);
  drop(outs, made);
  return nullptr;
}

// The values of the operands; how many there are. Fewer than wanted: exception.
int read_values(const Foreign& f, PyObject* const* operands, Py_ssize_t count, int wanted, PyObject** values) {
  int n = 0;
  while (n < wanted && (values[n] = as_value(f, n < count ? operands[n] : Py_None, n))) ++n;
  return n;
}

// One tuple in place of `count` values; false: exception, and they are still there.
bool bring_together(PyObject** values, int count) {
  PyObject* all = PyTuple_New(count);
  for (int i = 0; all && i < count; ++i) PyTuple_SET_ITEM(all, i, values[i]);
  if (all) values[0] = all;
  return all;
}

}  // namespace

PyObject* carry_out_there(const Record& r, PyObject* const* operands, Py_ssize_t count, int wanted, PyObject* given) {
  if (given == Py_None) given = nullptr;
  if (globals.recorder || (given && !may_replace(r, given))) return nullptr;
  const Foreign& f = *r.foreign;
  PyObject* values[kMaxReplayed + kMaxTold];
  int n = read_values(f, operands, count, wanted, values);
  PyObject* result = nullptr;
  if (n == wanted && (!f.together || bring_together(values, n))) {
    if (f.together) n = 1;
    const Py_ssize_t more = f.told ? PyTuple_GET_SIZE(f.told) : 0;
    for (Py_ssize_t i = 0; i < more; ++i) values[n + i] = PyTuple_GET_ITEM(f.told, i);
    const Py_ssize_t named = f.names ? PyTuple_GET_SIZE(f.names) : 0;
    result = PyObject_Vectorcall(f.fn, values, static_cast<std::size_t>(n + more - named), f.names);
  }
  while (n) Py_DECREF(values[--n]);
  return result ? as_tensors(r, result, given) : nullptr;
}

std::unique_ptr<Foreign> foreign_of(const Replayed& how, PyObject* device, PyObject* dtypes) {
  const Py_ssize_t count = PyTuple_GET_SIZE(how.after) + PyDict_GET_SIZE(how.keywords);
  if (count > kMaxTold) {
    PyErr_Format(PyExc_ValueError, "remember_there: %zd more arguments were given; %d are possible.", count, kMaxTold);
    return nullptr;
  }
  auto made = std::make_unique<Foreign>();
  if (count) {
    PyObject *names = PyDict_Keys(how.keywords), *named = names ? PyDict_Values(how.keywords) : nullptr;
    PyObject* last = named ? PyList_AsTuple(named) : nullptr;
    made->told = last ? PySequence_Concat(how.after, last) : nullptr;
    if (made->told && PyDict_GET_SIZE(how.keywords)) made->names = PyList_AsTuple(names);
    Py_XDECREF(names);
    Py_XDECREF(named);
    Py_XDECREF(last);
    if (PyErr_Occurred()) return nullptr;
  }
  made->fn = Py_NewRef(how.fn);
  made->type = reinterpret_cast<PyTypeObject*>(Py_NewRef(how.type));
  made->device = Py_NewRef(device);
  made->look = Py_NewRef(how.look);
  made->number = Py_NewRef(how.number);
  made->dtypes = Py_NewRef(dtypes);
  made->together = how.together;
  return made;
}

}  // namespace tritium::python
