// Caller: the base of Compiled. A call that its program was made for runs at once, without a Python frame; any other goes to
// `self.call`. BoundCaller: the base of its methods, which have a program for each object.
#include "array.h"

namespace tritium::python {
namespace {

struct Caller {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* ready;    // the program to try first; nullptr: none
  PyObject* methods;  // a dict by id of an object: the program to try first where it is the first argument; or nullptr
  long long hits;
};

Caller* as_caller(PyObject* self) { return reinterpret_cast<Caller*>(self); }

// The result of a program, nullptr with an exception, or Py_None (borrowed): it is not for these arguments.
PyObject* try_program(Caller* caller, PyObject* program, PyObject* const* args, Py_ssize_t nargs) {
  if (!program || !globals.fast || interpreting()) return Py_None;
  Py_INCREF(program);  // other Python code may run meanwhile
  PyObject* result = PyObject_Vectorcall(program, args, static_cast<std::size_t>(nargs), nullptr);
  Py_DECREF(program);
  if (result == Py_None) {
    Py_DECREF(result);
  } else {
    caller->hits += result != nullptr;
  }
  return result;
}

// The program of an object, borrowed; nullptr: there is none.
PyObject* method_of(Caller* caller, PyObject* object) {
  if (!caller->methods || !PyDict_GET_SIZE(caller->methods)) return nullptr;
  PyObject* number = PyLong_FromVoidPtr(object);
  PyObject* program = number ? PyDict_GetItemWithError(caller->methods, number) : nullptr;
  Py_XDECREF(number);
  PyErr_Clear();
  return program;
}

PyObject* caller_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Py_ssize_t nargs = PyVectorcall_NARGS(flags);
  Caller* caller = as_caller(self);
  if (!names) {
    const bool of_object = nargs && caller->methods && !is_array(args[0]);
    PyObject* result = of_object ? try_program(caller, method_of(caller, args[0]), args + 1, nargs - 1)
                                 : try_program(caller, caller->ready, args, nargs);
    if (result != Py_None) return result;
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

int caller_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_caller(self)->ready);
  Py_VISIT(as_caller(self)->methods);
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int caller_clear(PyObject* self) {
  Py_CLEAR(as_caller(self)->ready);
  Py_CLEAR(as_caller(self)->methods);
  return 0;
}

void caller_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  caller_clear(self);
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

PyObject* get_methods(PyObject* self, void*) {
  PyObject* methods = as_caller(self)->methods;
  return Py_NewRef(methods ? methods : Py_None);
}

int set_methods(PyObject* self, PyObject* value, void*) {
  if (!value || !PyDict_Check(value)) {
    PyErr_Format(PyExc_TypeError, "methods must be a dict, given %.100s.", value ? Py_TYPE(value)->tp_name : "nothing");
    return -1;
  }
  PyObject* before = as_caller(self)->methods;
  as_caller(self)->methods = Py_NewRef(value);
  Py_XDECREF(before);
  return 0;
}

PyGetSetDef caller_getset[] = {
    {"methods", get_methods, set_methods, "By id of an object: the program that its calls are tried on first.", nullptr},
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
    {Py_tp_traverse, reinterpret_cast<void*>(caller_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(caller_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_getset, caller_getset},
    {Py_tp_members, caller_members},
    {0, nullptr}};

PyType_Spec caller_spec = {"tritium._native.Caller", sizeof(Caller), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, caller_slots};

// ---- methods

struct BoundCaller {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *func, *instance;  // a Caller, and the object
};

BoundCaller* as_bound(PyObject* self) { return reinterpret_cast<BoundCaller*>(self); }

PyObject* bound_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Py_ssize_t nargs = PyVectorcall_NARGS(flags);
  if (!names && as_bound(self)->func) {
    Caller* caller = as_caller(as_bound(self)->func);
    PyObject* result = try_program(caller, method_of(caller, as_bound(self)->instance), args, nargs);
    if (result != Py_None) return result;
  }
  return call_python(self, args, nargs, names);
}

PyObject* bound_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *func, *instance;
  if (!PyArg_ParseTuple(args, "O!O:BoundCaller", globals.caller_type, &func, &instance)) return nullptr;
  auto* bound = reinterpret_cast<BoundCaller*>(type->tp_alloc(type, 0));
  if (!bound) return nullptr;
  bound->call = bound_call;
  bound->func = Py_NewRef(func);
  bound->instance = Py_NewRef(instance);
  keep_vectorcall(type);
  return reinterpret_cast<PyObject*>(bound);
}

int bound_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_bound(self)->func);
  Py_VISIT(as_bound(self)->instance);
  Py_VISIT(Py_TYPE(self));
  return 0;
}

int bound_clear(PyObject* self) {
  Py_CLEAR(as_bound(self)->func);
  Py_CLEAR(as_bound(self)->instance);
  return 0;
}

void bound_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  bound_clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef bound_members[] = {
    {"func", T_OBJECT, offsetof(BoundCaller, func), READONLY, "The compiled function."},
    {"__self__", T_OBJECT, offsetof(BoundCaller, instance), READONLY, "The object that it is called on."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(BoundCaller, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot bound_slots[] = {
    {Py_tp_doc, const_cast<char*>("BoundCaller(func, instance, /)\n--\n\nA Caller as the method of an object: tries its "
                                  "program for that object first, then its own method `call`.")},
    {Py_tp_new, reinterpret_cast<void*>(bound_new)},
    {Py_tp_init, reinterpret_cast<void*>(caller_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(bound_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(bound_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(bound_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, bound_members},
    {0, nullptr}};

PyType_Spec bound_spec = {"tritium._native.BoundCaller", sizeof(BoundCaller), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                          bound_slots};

}  // namespace

PyTypeObject* make_bound_caller_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&bound_spec)); }

PyTypeObject* make_caller_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&caller_spec)); }

}  // namespace tritium::python
