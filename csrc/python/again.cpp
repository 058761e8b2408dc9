// Again: a program of a device's own compiler, called once more with the memory it was made for. What it gives becomes tensors
// without a Python frame but that of the replay itself.
// To any other memory it answers None.
#include <algorithm>
#include <memory>
#include <vector>

#include "held.h"
#include "results.h"

namespace tritium::python {
namespace {

// An argument as it was: its layout, and the value that its storage held, which is not kept alive.
struct Argument {
  int code = -1, ndim = 0;
  int64_t dims[kMaxDims];
  PyObject* value = nullptr;
  bool written = false;

  bool is(PyObject* given, PyObject* device) const {
    if (Py_TYPE(given) != globals.tensor_type) return false;
    auto* a = reinterpret_cast<Array*>(given);
    if (!a->held || a->code != code || !a->contiguous || a->offset != 0 || a->ndim() != ndim) return false;
    const Held* h = held_of(a);
    return h->device == device && h->value == PyWeakref_GET_OBJECT(value) && h->value != Py_None &&
           !(written && h->shared) && span(a->code, a->size) == h->nbytes && std::equal(dims, dims + ndim, a->shape());
  }
};

struct State {
  PyObject *fn = nullptr, *device = nullptr, *captured = nullptr, *values = nullptr;
  PyTypeObject* type = nullptr;
  std::vector<Argument> arguments;
  Record made;  // of the results

  State() = default;
  State(const State&) = delete;
  ~State() {
    for (PyObject* o : {fn, device, captured, values, reinterpret_cast<PyObject*>(type)}) Py_XDECREF(o);
    for (const Argument& a : arguments) Py_XDECREF(a.value);
  }

  bool holds_the_same() const {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(captured); ++i) {
      if (reinterpret_cast<Held*>(PyTuple_GET_ITEM(captured, i))->value != PyTuple_GET_ITEM(values, i)) return false;
    }
    return true;
  }
};

struct Again {
  PyObject_HEAD
  vectorcallfunc call;
  State* state;
};

// The results of a replay as tensors. Takes the reference over.
PyObject* as_results(const State& s, PyObject* found) {
  const Record& r = s.made;
  if (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) != r.results) {
    PyErr_Format(PyExc_TypeError, "a program of %d results gave %R.", r.results, found);
    Py_DECREF(found);
    return nullptr;
  }
  Array* outs[kMaxOutputs];
  int made = 0;
  for (; made < r.results; ++made) {
    const Made& m = r.made[made];
    Held* h = held_new(s.type, s.device, m.nbytes, Py_NewRef(PyTuple_GET_ITEM(found, made)), m.ndim, m.dims);
    outs[made] = h ? as_tensor(m, reinterpret_cast<PyObject*>(h)) : nullptr;
    if (!outs[made]) break;
  }
  Py_DECREF(found);
  if (made == r.results) return as_returned(r, outs);
  drop(outs, made);
  return nullptr;
}

PyObject* again_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const State& s = *reinterpret_cast<Again*>(self)->state;
  const std::size_t count = static_cast<std::size_t>(PyVectorcall_NARGS(flags));
  if (names || count != s.arguments.size() || globals.recorder || !s.holds_the_same()) Py_RETURN_NONE;
  for (std::size_t i = 0; i < count; ++i) {
    if (!s.arguments[i].is(args[i], s.device)) Py_RETURN_NONE;
  }
  PyObject* found = PyObject_CallNoArgs(s.fn);
  return !found || found == Py_None ? found : as_results(s, found);
}

bool read_arguments(State& s, PyObject* args, PyObject* written) {
  s.arguments.resize(static_cast<std::size_t>(PyTuple_GET_SIZE(args)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    PyObject* given = PyTuple_GET_ITEM(args, i);
    auto* a = reinterpret_cast<Array*>(given);
    if (Py_TYPE(given) != globals.tensor_type || !a->held || a->code < 0) {
      PyErr_Format(PyExc_TypeError, "Again: argument %zd must be a tensor of the device, given %R.", i, given);
      return false;
    }
    Argument& to = s.arguments[static_cast<std::size_t>(i)];
    to.code = a->code;
    to.ndim = a->ndim();
    std::copy_n(a->shape(), to.ndim, to.dims);
    PyObject* number = PyLong_FromSsize_t(i);
    const int found = number ? PySequence_Contains(written, number) : -1;
    Py_XDECREF(number);
    if (found < 0) return false;
    to.written = found;
    if (!(to.value = PyWeakref_NewRef(held_of(a)->value, nullptr))) return false;
  }
  return true;
}

bool read_captured(State& s, PyObject* captured) {
  s.captured = Py_NewRef(captured);
  s.values = PyTuple_New(PyTuple_GET_SIZE(captured));
  for (Py_ssize_t i = 0; s.values && i < PyTuple_GET_SIZE(captured); ++i) {
    PyObject* held = PyTuple_GET_ITEM(captured, i);
    if (!PyObject_TypeCheck(held, globals.held_type)) {
      PyErr_Format(PyExc_TypeError, "Again: what was captured must be storages of the device, given %R.", held);
      return false;
    }
    PyTuple_SET_ITEM(s.values, i, Py_NewRef(reinterpret_cast<Held*>(held)->value));
  }
  return s.values != nullptr;
}

bool read_results(State& s, PyObject* dtypes, PyObject* shapes, bool several) {
  const Py_ssize_t n = PyTuple_GET_SIZE(dtypes);
  if (n < 1 || n > kMaxOutputs || PyTuple_GET_SIZE(shapes) != n || (n > 1 && !several)) {
    PyErr_Format(PyExc_ValueError, "Again: 1 to %d results, each of a dtype and a shape, are needed.", kMaxOutputs);
    return false;
  }
  s.made.results = static_cast<int>(n);
  s.made.several = several;
  s.made.made = std::make_unique<Made[]>(static_cast<std::size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!describe_result(s.made.made[static_cast<std::size_t>(i)], PyTuple_GET_ITEM(dtypes, i), PyTuple_GET_ITEM(shapes, i)))
      return false;
  }
  return true;
}

PyObject* again_new(PyTypeObject* type, PyObject* given, PyObject*) {
  PyObject *fn, *storage, *device, *args, *written, *captured, *dtypes, *shapes;
  int several;
  if (!PyArg_ParseTuple(given, "OO!OO!O!O!O!O!p:Again", &fn, &PyType_Type, &storage, &device, &PyTuple_Type, &args,
                        &PyTuple_Type, &written, &PyTuple_Type, &captured, &PyTuple_Type, &dtypes, &PyTuple_Type, &shapes,
                        &several))
    return nullptr;
  auto state = std::make_unique<State>();
  state->fn = Py_NewRef(fn);
  state->type = reinterpret_cast<PyTypeObject*>(Py_NewRef(storage));
  state->device = Py_NewRef(device);
  if (!read_arguments(*state, args, written) || !read_captured(*state, captured) ||
      !read_results(*state, dtypes, shapes, several))
    return nullptr;
  auto* made = reinterpret_cast<Again*>(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  made->call = again_call;
  made->state = state.release();
  return reinterpret_cast<PyObject*>(made);
}

void again_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Again*>(self)->state;
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef again_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Again, call), READONLY, nullptr},
                               {nullptr, 0, 0, 0, nullptr}};

PyType_Slot again_slots[] = {
    {Py_tp_doc, const_cast<char*>("Again(fn, storage, device, args, written, captured, dtypes, shapes, several): fn() called "
                                  "anew for the same memory; its tuple of values as tensors. None for other memory.")},
    {Py_tp_new, reinterpret_cast<void*>(again_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(again_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, again_members},
    {0, nullptr}};

PyType_Spec again_spec = {"tritium._native.Again", sizeof(Again), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
                          again_slots};

}  // namespace

PyTypeObject* make_again_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&again_spec)); }

}  // namespace tritium::python
