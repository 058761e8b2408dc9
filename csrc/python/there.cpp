// Calls that a device's own library carries out, on the values that Held storages hold.
// Knows nothing of that library, nor of how a call is found again.
#include "there.h"

#include <algorithm>

#include "held.h"
#include "results.h"

namespace tritium::python {
namespace {

// Whether the value of its storage is what the tensor shows.
bool shows_all(Array* a) {
  const Held* h = held_of(a);
  return a->code < kDTypes && a->contiguous && a->offset == 0 && h->ndim == a->ndim() && h->value != Py_None &&
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
  if (!out->held || held_of(out)->device != r.foreign->device || out->code != m.code || m.code >= kDTypes) return false;
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

}  // namespace

PyObject* carry_out_there(const Record& r, int operands, PyObject* const* args, Py_ssize_t nargs, PyObject* given) {
  if (given == Py_None) given = nullptr;
  if (globals.recorder || (given && !may_replace(r, given))) return nullptr;
  PyObject* values[kMaxReplayed + kMaxKeywords] = {};
  int count = 0;
  for (; count < operands; ++count)
    if (!(values[count] = as_value(*r.foreign, count < nargs ? args[count] : Py_None, count))) break;
  PyObject* result = nullptr;
  if (count == operands) {
    const Foreign& f = *r.foreign;
    for (Py_ssize_t i = 0; f.told && i < PyTuple_GET_SIZE(f.told); ++i) values[count + i] = PyTuple_GET_ITEM(f.told, i);
    result = PyObject_Vectorcall(f.fn, values, static_cast<std::size_t>(count), f.names);
  }
  while (count) Py_DECREF(values[--count]);
  return result ? as_tensors(r, result, given) : nullptr;
}

std::unique_ptr<Foreign> foreign_of(PyObject* fn, PyObject* type, PyObject* device, PyObject* look, PyObject* number,
                                    PyObject* dtypes, PyObject* keywords) {
  auto made = std::make_unique<Foreign>();
  const Py_ssize_t count = PyDict_GET_SIZE(keywords);
  if (count > kMaxKeywords) {
    PyErr_Format(PyExc_ValueError, "remember_there: %zd keywords were given; %d are possible.", count, kMaxKeywords);
    return nullptr;
  }
  if (count) {
    PyObject *names = PyDict_Keys(keywords), *told = names ? PyDict_Values(keywords) : nullptr;
    made->names = told ? PyList_AsTuple(names) : nullptr;
    made->told = made->names ? PyList_AsTuple(told) : nullptr;
    Py_XDECREF(names);
    Py_XDECREF(told);
    if (!made->told) return nullptr;
  }
  made->fn = Py_NewRef(fn);
  made->type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type));
  made->device = Py_NewRef(device);
  made->look = Py_NewRef(look);
  made->number = Py_NewRef(number);
  made->dtypes = Py_NewRef(dtypes);
  return made;
}

}  // namespace tritium::python
