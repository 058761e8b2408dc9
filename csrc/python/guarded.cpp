// Guarded: a program that reads attributes of objects. It runs while they are what they were when it was traced; otherwise
// it answers None.
// Knows nothing of what it guards: to look up an attribute or an item runs no code of the object's class, except for slots.
#include <cstring>
#include <memory>
#include <vector>

#include "array.h"

namespace tritium::python {
namespace {

enum class Lookup : std::uint8_t { root, attribute, slot, item, length };

// One value on the way from an object to what is compared; later checks begin at earlier ones.
struct Check {
  Lookup how;
  int parent = -1;
  PyObject* name = nullptr;      // of the attribute, or the index or key; of a root: a weak reference to it
  PyObject* expected = nullptr;  // nullptr: it is only on the way; a weak reference: that object
};

struct Checks {
  std::vector<Check> all;
  std::vector<PyObject*> values;  // while they are looked at

  ~Checks() {
    for (const Check& c : all) {
      Py_XDECREF(c.name);
      Py_XDECREF(c.expected);
    }
  }
};

struct Guarded {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject* program;
  Checks* checks;
};

Guarded* as_guarded(PyObject* self) { return reinterpret_cast<Guarded*>(self); }

PyObject* attribute(PyObject* of, PyObject* name) {
  PyObject* dict = PyObject_GenericGetDict(of, nullptr);
  PyObject* value = dict && PyDict_Check(dict) ? Py_XNewRef(PyDict_GetItemWithError(dict, name)) : nullptr;
  Py_XDECREF(dict);
  return value;
}

PyObject* item(PyObject* of, PyObject* key) {
  if (PyDict_Check(of)) return Py_XNewRef(PyDict_GetItemWithError(of, key));
  if (!PyList_Check(of) && !PyTuple_Check(of)) return nullptr;
  const Py_ssize_t i = PyLong_AsSsize_t(key);
  if (i < 0 || i >= PySequence_Fast_GET_SIZE(of)) return nullptr;
  return Py_NewRef(PySequence_Fast_GET_ITEM(of, i));
}

// A new reference; nullptr: there is none, perhaps with an exception.
PyObject* look_up(const Check& c, PyObject* parent) {
  switch (c.how) {
    case Lookup::root: {
      PyObject* object = PyWeakref_GET_OBJECT(c.name);
      return object == Py_None ? nullptr : Py_NewRef(object);
    }
    case Lookup::attribute: return attribute(parent, c.name);
    case Lookup::slot: return PyObject_GetAttr(parent, c.name);
    case Lookup::item: return item(parent, c.name);
    default: return PyList_Check(parent) || PyDict_Check(parent) ? PyLong_FromSsize_t(PyObject_Size(parent)) : nullptr;
  }
}

// Whether it is the same object, or an equal plain number or text. A 0.0 is not a -0.0.
bool is_met(PyObject* expected, PyObject* value) {
  if (PyWeakref_Check(expected)) return value != Py_None && value == PyWeakref_GET_OBJECT(expected);
  if (value == expected) return true;
  if (Py_TYPE(value) != Py_TYPE(expected)) return false;
  if (PyFloat_CheckExact(value)) {
    const double a = PyFloat_AS_DOUBLE(value), b = PyFloat_AS_DOUBLE(expected);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (!PyLong_CheckExact(value) && !PyUnicode_CheckExact(value) && !PyBytes_CheckExact(value)) return false;
  return PyObject_RichCompareBool(value, expected, Py_EQ) == 1;
}

bool holds(Checks& checks) {
  std::vector<PyObject*> values = std::move(checks.values);  // a look-up may call this again
  values.clear();
  bool good = true;
  for (const Check& c : checks.all) {
    PyObject* value = look_up(c, c.parent < 0 ? nullptr : values[static_cast<std::size_t>(c.parent)]);
    if (value) values.push_back(value);
    good = value && (!c.expected || is_met(c.expected, value));
    if (!good) break;
  }
  for (PyObject* value : values) Py_DECREF(value);
  PyErr_Clear();
  checks.values = std::move(values);
  return good;
}

PyObject* guarded_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  Guarded* g = as_guarded(self);
  if (names || !holds(*g->checks)) Py_RETURN_NONE;
  return PyObject_Vectorcall(g->program, args, static_cast<std::size_t>(PyVectorcall_NARGS(flags)), nullptr);
}

// (how, parent, name, expected or None)
bool read_check(PyObject* item, Checks& to) {
  static constexpr const char* kinds[] = {"root", "attribute", "slot", "item", "length"};
  const char* how;
  Check c{};
  PyObject *name, *expected;
  if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "siOO;a check is (how, parent, name, (expected,) or None)", &how,
                                                &c.parent, &name, &expected))
    return false;
  std::size_t kind = 0;
  while (kind < std::size(kinds) && std::strcmp(kinds[kind], how) != 0) ++kind;
  const bool is_root = kind == 0;
  const bool known = kind < std::size(kinds) && (is_root ? c.parent == -1 && PyWeakref_Check(name)
                                                         : c.parent >= 0 && c.parent < static_cast<int>(to.all.size()));
  if (!known || (expected != Py_None && (!PyTuple_Check(expected) || PyTuple_GET_SIZE(expected) != 1))) {
    PyErr_Format(PyExc_ValueError, "Guarded: check %zu is %R; one begins at an earlier check.", to.all.size(), item);
    return false;
  }
  c.how = static_cast<Lookup>(kind);
  c.name = Py_NewRef(name);
  c.expected = expected == Py_None ? nullptr : Py_NewRef(PyTuple_GET_ITEM(expected, 0));
  to.all.push_back(c);
  return true;
}

PyObject* guarded_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"program", "checks", nullptr};
  PyObject *program, *given;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!:Guarded", const_cast<char**>(names), &program, &PyTuple_Type,
                                   &given))
    return nullptr;
  auto checks = std::make_unique<Checks>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
    if (!read_check(PyTuple_GET_ITEM(given, i), *checks)) return nullptr;
  checks->values.reserve(checks->all.size());
  auto* g = as_guarded(type->tp_alloc(type, 0));
  if (!g) return nullptr;
  g->call = guarded_call;
  g->program = Py_NewRef(program);
  g->checks = checks.release();
  return reinterpret_cast<PyObject*>(g);
}

int guarded_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_guarded(self)->program);
  if (const Checks* checks = as_guarded(self)->checks) {
    for (const Check& c : checks->all) {
      Py_VISIT(c.name);
      Py_VISIT(c.expected);
    }
  }
  Py_VISIT(Py_TYPE(self));
  return 0;
}

void guarded_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete as_guarded(self)->checks;
  Py_CLEAR(as_guarded(self)->program);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef guarded_members[] = {
    {"program", T_OBJECT, offsetof(Guarded, program), READONLY, "What runs while the checks hold."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Guarded, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot guarded_slots[] = {
    {Py_tp_doc, const_cast<char*>("Guarded(program, checks)\n--\n\nA program that answers None unless all checks hold. A "
                                  "check is (how, the number of an earlier check, name, expected): how is root, "
                                  "attribute, slot, item or length; expected is a tuple of one value, or None.")},
    {Py_tp_new, reinterpret_cast<void*>(guarded_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(guarded_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(guarded_traverse)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, guarded_members},
    {0, nullptr}};

PyType_Spec guarded_spec = {"tritium._native.Guarded", sizeof(Guarded), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                            guarded_slots};

}  // namespace

PyTypeObject* make_guarded_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&guarded_spec)); }

}  // namespace tritium::python
