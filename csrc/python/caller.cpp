// Caller: the base of Compiled. A call that its program was made for runs at once, without a Python frame; any other goes to
// `self.call`.
// Knows nothing of programs beyond that they answer None to what they were not made for.
#include "array.h"

namespace tritium::python {
namespace {

struct Caller {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* ready;  // the program to try first; nullptr: none
  long long hits;
};

Caller* as_caller(PyObject* self) { return reinterpret_cast<Caller*>(self); }

PyObject* caller_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Py_ssize_t nargs = PyVectorcall_NARGS(flags);
  PyObject* const program = as_caller(self)->ready;
  if (program && !names && globals.fast && !interpreting()) {
    Py_INCREF(program);  // other Python code may run meanwhile
    PyObject* result = PyObject_Vectorcall(program, args, static_cast<std::size_t>(nargs), nullptr);
    Py_DECREF(program);
    if (result != Py_None) {
      as_caller(self)->hits += result != nullptr;
      return result;
    }
    Py_DECREF(result);
  }
  return call_python(self, args, nargs, names);
}

PyObject* caller_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* caller = reinterpret_cast<Caller*>(type->tp_alloc(type, 0));
  if (!caller) return nullptr;
  caller->call = caller_call;
  keep_vectorcall(type);
  return reinterpret_cast<PyObject*>(caller);
}

int caller_init(PyObject*, PyObject*, PyObject*) { return 0; }

void caller_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_CLEAR(as_caller(self)->ready);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* get_ready(PyObject* self, void*) {
  PyObject* ready = as_caller(self)->ready;
  return Py_NewRef(ready ? ready : Py_None);
}

int set_ready(PyObject* self, PyObject* value, void*) {
  if (value && value != Py_None && !PyCallable_Check(value)) {
    PyErr_Format(PyExc_TypeError, "ready must be a program or None, given %.100s.", Py_TYPE(value)->tp_name);
    return -1;
  }
  PyObject* before = as_caller(self)->ready;
  as_caller(self)->ready = value && value != Py_None ? Py_NewRef(value) : nullptr;
  Py_XDECREF(before);
  return 0;
}

PyGetSetDef caller_getset[] = {
    {"ready", get_ready, set_ready, "The program that a call is tried on first, or None.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef caller_members[] = {
    {"hits", T_LONGLONG, offsetof(Caller, hits), 0, "Calls that ran at once."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Caller, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot caller_slots[] = {
    {Py_tp_doc, const_cast<char*>("A callable that tries its program `ready` first, then its method `call`.")},
    {Py_tp_new, reinterpret_cast<void*>(caller_new)},
    {Py_tp_init, reinterpret_cast<void*>(caller_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(caller_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_getset, caller_getset},
    {Py_tp_members, caller_members},
    {0, nullptr}};

PyType_Spec caller_spec = {"tritium._native.Caller", sizeof(Caller), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL, caller_slots};

}  // namespace

PyTypeObject* make_caller_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&caller_spec)); }

}  // namespace tritium::python
