// Programs: a compiled program whose sizes vary. For the sizes of a call it evaluates the numbers of its template and makes a
// Program of them, which calls of the same sizes use again.
#include <algorithm>
#include <climits>
#include <new>
#include <string_view>
#include <utility>

#include "program.h"

namespace tritium::python {
namespace {

constexpr std::size_t kMaxInstances = 32;  // programs that are kept, the last used ones
constexpr int64_t kLeastSize = 2;          // 0 and 1 have rules of their own; the same as in graph/size.py
constexpr int64_t kMostSize = 1 << 24;

// A sum of products of atoms: terms[first .. first + count).
struct Polynomial {
  int first, count;
};

struct Term {
  int64_t factor;
  int first, count;  // of Numbers::factors
};

enum class Kind : std::uint8_t { size, quotient, remainder, most };

struct Atom {
  Kind kind;
  int first, count;  // of Numbers::operands
};

// A comparison with zero, and the outcome that it must have.
struct Guard {
  Polynomial value;
  bool equal, outcome;  // equal: "== 0", else "< 0"
};

struct Numbers {
  int sizes = 0;  // of the atoms, the first ones
  std::vector<Atom> atoms;
  std::vector<Polynomial> operands, slots;
  std::vector<Guard> guards;
  std::vector<Term> terms;
  std::vector<int> factors;
};

// A tensor that a call is given. Sizes below zero are those that vary: -1 is the first.
struct Pattern {
  int code, ndim;
  bool contiguous;  // else it has these strides
  int64_t dims[kMaxDims], strides[kMaxDims];
};

struct Instance {
  std::vector<int64_t> sizes;
  PyObject* program;
};

struct Programs {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *made_of, *single, *about, *describe;  // the arguments of Program; of a call without spans; from sizes to spans
  Numbers* numbers;
  std::vector<Pattern>* patterns;
  std::vector<Instance>* instances;  // the last used one first
  long long made;
};

Programs* as_programs(PyObject* self) { return reinterpret_cast<Programs*>(self); }

// ---- numbers

bool evaluate(const Numbers& n, const Polynomial& p, const std::vector<int64_t>& values, int64_t& to) {
  to = 0;
  for (int t = p.first; t < p.first + p.count; ++t) {
    int64_t product = n.terms[t].factor;
    for (int i = n.terms[t].first; i < n.terms[t].first + n.terms[t].count; ++i)
      if (__builtin_mul_overflow(product, values[n.factors[i]], &product)) return false;
    if (__builtin_add_overflow(to, product, &to)) return false;
  }
  return true;
}

// Rounded down, as Python does.
bool divide(int64_t x, int64_t y, bool remainder, int64_t& to) {
  if (y == 0 || (x == INT64_MIN && y == -1)) return false;
  const int64_t rest = x % y, down = rest != 0 && (rest < 0) != (y < 0);
  to = remainder ? rest + (down ? y : 0) : x / y - down;
  return true;
}

bool evaluate_atom(const Numbers& n, const Atom& a, std::vector<int64_t>& values) {
  int64_t x, y;
  if (!evaluate(n, n.operands[a.first], values, x)) return false;
  for (int i = a.first + 1; i < a.first + a.count; ++i) {
    if (!evaluate(n, n.operands[i], values, y)) return false;
    if (a.kind == Kind::most) {
      x = std::max(x, y);
    } else if (!divide(x, y, a.kind == Kind::remainder, x)) {
      return false;
    }
  }
  values.push_back(x);
  return true;
}

// The values of all atoms, from those of the sizes; false: they do not fit, or a comparison has another outcome.
bool evaluate_all(const Numbers& n, std::vector<int64_t>& values) {
  for (std::size_t i = values.size(); i < n.atoms.size(); ++i)
    if (!evaluate_atom(n, n.atoms[i], values)) return false;
  return std::all_of(n.guards.begin(), n.guards.end(), [&](const Guard& g) {
    int64_t value;
    return evaluate(n, g.value, values, value) && (g.equal ? value == 0 : value < 0) == g.outcome;
  });
}

// ---- reading

bool wrong(const char* what) {
  PyErr_Format(PyExc_ValueError, "Programs: %s.", what);
  return false;
}

// ((atoms, factor), ...): the terms of a polynomial of atoms below `atoms`.
bool read_polynomial(PyObject* given, Numbers& n, std::size_t atoms, Polynomial& to) {
  if (!PyTuple_Check(given)) return wrong("a polynomial must be a tuple of terms");
  to = {static_cast<int>(n.terms.size()), static_cast<int>(PyTuple_GET_SIZE(given))};
  for (Py_ssize_t t = 0; t < PyTuple_GET_SIZE(given); ++t) {
    PyObject* factors;
    long long factor;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, t), "O!L;a term is (atoms, factor)", &PyTuple_Type, &factors, &factor))
      return false;
    n.terms.push_back({factor, static_cast<int>(n.factors.size()), static_cast<int>(PyTuple_GET_SIZE(factors))});
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(factors); ++i) {
      const long atom = PyLong_AsLong(PyTuple_GET_ITEM(factors, i));
      if (atom == -1 && PyErr_Occurred()) return false;
      if (atom < 0 || atom >= static_cast<long>(atoms)) return wrong("a polynomial has an atom that does not exist yet");
      n.factors.push_back(static_cast<int>(atom));
    }
  }
  return true;
}

// (kind, operands): one of the atoms after the sizes.
bool read_atom(PyObject* given, Numbers& n) {
  const char* kind;
  PyObject* operands;
  if (!PyArg_ParseTuple(given, "sO!;an atom is (kind, operands)", &kind, &PyTuple_Type, &operands)) return false;
  Atom a{Kind::most, static_cast<int>(n.operands.size()), static_cast<int>(PyTuple_GET_SIZE(operands))};
  const std::string_view name(kind);
  if (name == "//") a.kind = Kind::quotient;
  if (name == "%") a.kind = Kind::remainder;
  if (name != "//" && name != "%" && name != "max") return wrong("an atom must be //, % or max");
  if (a.count < 1 || (a.kind != Kind::most && a.count != 2)) return wrong("an atom has another number of operands");
  std::vector<Polynomial> read(static_cast<std::size_t>(a.count));
  for (int i = 0; i < a.count; ++i)
    if (!read_polynomial(PyTuple_GET_ITEM(operands, i), n, n.atoms.size(), read[i])) return false;
  n.operands.insert(n.operands.end(), read.begin(), read.end());
  n.atoms.push_back(a);
  return true;
}

// (kind, polynomial, outcome)
bool read_guard(PyObject* given, Numbers& n) {
  const char* kind;
  PyObject* polynomial;
  int outcome;
  Guard g;
  if (!PyArg_ParseTuple(given, "sOp;a guard is (kind, polynomial, outcome)", &kind, &polynomial, &outcome)) return false;
  if (!read_polynomial(polynomial, n, n.atoms.size(), g.value)) return false;
  g.equal = std::string_view(kind) == "==";
  g.outcome = outcome != 0;
  n.guards.push_back(g);
  return true;
}

bool read_slot(PyObject* given, Numbers& n) {
  Polynomial p;
  if (!read_polynomial(given, n, n.atoms.size(), p)) return false;
  n.slots.push_back(p);
  return true;
}

bool read_dims(PyObject* given, const char* what, int ndim, int64_t* to) {
  if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != ndim) return wrong(what);
  for (int d = 0; d < ndim; ++d) {
    to[d] = PyLong_AsLongLong(PyTuple_GET_ITEM(given, d));
    if (to[d] == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

// (dtype, sizes, strides or None)
bool read_pattern(PyObject* given, const Numbers& n, std::vector<bool>& bound, Pattern& to) {
  PyObject *dtype, *dims, *strides;
  if (!PyArg_ParseTuple(given, "OO!O;an argument is (dtype, sizes, strides)", &dtype, &PyTuple_Type, &dims, &strides))
    return false;
  to.code = dtype_code(dtype);
  if (to.code < 0) return PyErr_Occurred() || wrong("an argument has a dtype that native code does not know");
  if (PyTuple_GET_SIZE(dims) > kMaxDims) return wrong("an argument has too many axes");
  to.ndim = static_cast<int>(PyTuple_GET_SIZE(dims));
  to.contiguous = strides == Py_None;
  if (!read_dims(dims, "sizes are integers", to.ndim, to.dims)) return false;
  if (!to.contiguous && !read_dims(strides, "strides are as many as sizes", to.ndim, to.strides)) return false;
  for (int d = 0; d < to.ndim; ++d) {
    if (to.dims[d] < -n.sizes) return wrong("an argument has a size that does not exist");
    if (to.dims[d] < 0) bound[static_cast<std::size_t>(-1 - to.dims[d])] = true;
  }
  return true;
}

template <class Read>
bool each(PyObject* given, Read read) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
    if (!read(PyTuple_GET_ITEM(given, i))) return false;
  return true;
}

bool fill(Programs* self, PyObject* args) {
  PyObject *made_of, *single, *about, *describe, *patterns, *atoms, *slots, *guards;
  int sizes;
  if (!PyArg_ParseTuple(args, "O!OO!OO!iO!O!O!:Programs", &PyTuple_Type, &made_of, &single, &PyTuple_Type, &about, &describe,
                        &PyTuple_Type, &patterns, &sizes, &PyTuple_Type, &atoms, &PyTuple_Type, &slots, &PyTuple_Type,
                        &guards))
    return false;
  if (sizes < 1 || sizes > 64) return wrong("1 to 64 sizes can vary");
  self->made_of = Py_NewRef(made_of);
  self->single = Py_NewRef(single);
  self->about = Py_NewRef(about);
  self->describe = Py_NewRef(describe);
  Numbers& n = *(self->numbers = new Numbers());
  self->patterns = new std::vector<Pattern>();
  self->instances = new std::vector<Instance>();
  n.sizes = sizes;
  n.atoms.assign(static_cast<std::size_t>(sizes), {Kind::size, 0, 0});
  std::vector<bool> bound(static_cast<std::size_t>(sizes));
  const bool good = each(atoms, [&](PyObject* o) { return read_atom(o, n); }) &&
                    each(slots, [&](PyObject* o) { return read_slot(o, n); }) &&
                    each(guards, [&](PyObject* o) { return read_guard(o, n); }) && each(patterns, [&](PyObject* o) {
                      return read_pattern(o, n, bound, self->patterns->emplace_back());
                    });
  if (!good) return false;
  return std::find(bound.begin(), bound.end(), false) == bound.end() || wrong("no argument has one of the sizes");
}

// ---- calls

// The sizes of a call; false: it is for other tensors. With `whole`, all of them must be given.
bool match(const Programs* self, PyObject* const* args, Py_ssize_t nargs, bool whole, std::vector<int64_t>& sizes) {
  const std::vector<Pattern>& patterns = *self->patterns;
  if (nargs > static_cast<Py_ssize_t>(patterns.size()) || (whole && nargs != static_cast<Py_ssize_t>(patterns.size())))
    return false;
  sizes.reserve(self->numbers->atoms.size());
  sizes.assign(static_cast<std::size_t>(self->numbers->sizes), -1);
  for (Py_ssize_t i = 0; i < nargs; ++i) {
    const Pattern& p = patterns[static_cast<std::size_t>(i)];
    if (Py_TYPE(args[i]) != globals.tensor_type && !is_array(args[i])) return false;
    auto* a = reinterpret_cast<Array*>(args[i]);
    if (!a->native || a->code != p.code || a->ndim() != p.ndim || (p.contiguous && !a->contiguous)) return false;
    for (int d = 0; d < p.ndim; ++d) {
      const int64_t n = a->shape()[d];
      if (!p.contiguous && n > 1 && a->strides()[d] != p.strides[d]) return false;
      if (p.dims[d] >= 0) {
        if (n != p.dims[d]) return false;
        continue;
      }
      int64_t& size = sizes[static_cast<std::size_t>(-1 - p.dims[d])];
      if (n < kLeastSize || n > kMostSize || (size >= 0 && size != n)) return false;
      size = n;
    }
  }
  return std::find(sizes.begin(), sizes.end(), -1) == sizes.end();
}

PyObject* describe_sizes(const Programs* self, const std::vector<int64_t>& sizes) {
  if (!globals.recorder) return Py_NewRef(self->about);
  PyObject* numbers = int_tuple(sizes.data(), self->numbers->sizes);
  PyObject* about = numbers ? PyObject_CallOneArg(self->describe, numbers) : nullptr;
  Py_XDECREF(numbers);
  return about;
}

// A program for these values of all atoms; nullptr: exception, or the numbers do not fit.
PyObject* instantiate(Programs* self, const std::vector<int64_t>& values) {
  const Numbers& n = *self->numbers;
  std::vector<int64_t> slots(n.slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (!evaluate(n, n.slots[i], values, slots[i])) return nullptr;
  PyObject* about = describe_sizes(self, values);
  PyObject* named = about ? Py_BuildValue("{sOsN}", "single", self->single, "about", about) : nullptr;
  PyObject* program = named ? program_of(read_plan(self->made_of, named, &slots)) : nullptr;
  Py_XDECREF(named);
  self->made += program != nullptr;
  return program;
}

// Keeps a program as the last used one.
void keep(Programs* self, std::vector<int64_t> sizes, PyObject* program) {
  std::vector<Instance>& all = *self->instances;
  PyObject* dropped = nullptr;
  for (auto i = all.begin(); i != all.end() && !dropped; ++i) {
    if (i->sizes != sizes && !(all.size() == kMaxInstances && i + 1 == all.end())) continue;
    dropped = i->program;
    all.erase(i);
    break;
  }
  all.insert(all.begin(), {std::move(sizes), Py_NewRef(program)});
  Py_XDECREF(dropped);  // last: it may run Python code
}

// The program of a call, a new reference. nullptr: exception, or there is none.
PyObject* program_for(Programs* self, PyObject* const* args, Py_ssize_t nargs) {
  std::vector<int64_t> values;
  if (!self->made_of || !match(self, args, nargs, true, values)) return nullptr;
  std::vector<Instance>& all = *self->instances;
  const auto known = std::find_if(all.begin(), all.end(), [&](const Instance& i) { return i.sizes == values; });
  if (known != all.end() && (!globals.recorder || names_steps(known->program))) {
    std::rotate(all.begin(), known, known + 1);
    return Py_NewRef(all.front().program);
  }
  std::vector<int64_t> sizes = values;
  if (!evaluate_all(*self->numbers, values)) return nullptr;
  PyObject* program = instantiate(self, values);
  if (program) keep(self, std::move(sizes), program);
  return program;
}

PyObject* find_program(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  try {
    return program_for(as_programs(self), args, nargs);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* programs_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  if (names && PyTuple_GET_SIZE(names))
    return PyErr_Format(PyExc_TypeError, "Programs take their tensors by position, given %R by name.", names);
  const Py_ssize_t nargs = PyVectorcall_NARGS(flags);
  PyObject* program = find_program(self, args, nargs);
  if (!program) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
  PyObject* result = PyObject_Vectorcall(program, args, static_cast<std::size_t>(nargs), nullptr);
  Py_DECREF(program);
  return result;
}

PyObject* programs_at(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  PyObject* program = find_program(self, args, nargs);
  return program || PyErr_Occurred() ? program : Py_NewRef(Py_None);
}

// The sizes of a call as a tuple; None where it is for other tensors, or a comparison has another outcome.
PyObject* programs_sizes(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  const Programs* programs = as_programs(self);
  try {
    std::vector<int64_t> values;
    if (!match(programs, args, nargs, false, values) || !evaluate_all(*programs->numbers, values)) Py_RETURN_NONE;
    return int_tuple(values.data(), programs->numbers->sizes);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

// ---- the type

int programs_clear(PyObject* o) {
  Programs* self = as_programs(o);
  if (self->instances) {
    std::vector<Instance> all;
    all.swap(*self->instances);
    for (Instance& i : all) Py_DECREF(i.program);
  }
  Py_CLEAR(self->made_of);
  Py_CLEAR(self->single);
  Py_CLEAR(self->about);
  Py_CLEAR(self->describe);
  return 0;
}

int programs_traverse(PyObject* o, visitproc visit, void* arg) {
  Programs* self = as_programs(o);
  if (self->instances) {
    for (const Instance& i : *self->instances) Py_VISIT(i.program);
  }
  Py_VISIT(self->made_of);
  Py_VISIT(self->single);
  Py_VISIT(self->about);
  Py_VISIT(self->describe);
  Py_VISIT(Py_TYPE(o));
  return 0;
}

void programs_dealloc(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  PyObject_GC_UnTrack(o);
  programs_clear(o);
  delete as_programs(o)->numbers;
  delete as_programs(o)->patterns;
  delete as_programs(o)->instances;
  type->tp_free(o);
  Py_DECREF(type);
}

PyObject* programs_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (kwargs && PyDict_GET_SIZE(kwargs)) return PyErr_Format(PyExc_TypeError, "Programs takes no keywords.");
  auto* self = reinterpret_cast<Programs*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = programs_call;
  bool good = false;
  try {
    good = fill(self, args);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  if (good) return reinterpret_cast<PyObject*>(self);
  Py_DECREF(self);
  return nullptr;
}

PyObject* programs_repr(PyObject* o) {
  const Programs* self = as_programs(o);
  return PyUnicode_FromFormat("<Programs for %d sizes that vary, %zu kept>", self->numbers->sizes, self->instances->size());
}

PyObject* get_kept(PyObject* o, void*) { return PyLong_FromSize_t(as_programs(o)->instances->size()); }

PyMethodDef programs_methods[] = {
    {"at", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(programs_at)), METH_FASTCALL,
     "at($self, /, *tensors)\n--\n\nThe Program that a call with these tensors runs; None: there is none."},
    {"sizes", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(programs_sizes)), METH_FASTCALL,
     "sizes($self, /, *tensors)\n--\n\nThe sizes that vary of such a call, of which the last tensors may be left out; None: it is "
     "for other tensors."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef programs_getset[] = {{"kept", get_kept, nullptr, "How many programs are kept.", nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef programs_members[] = {
    {"made", T_LONGLONG, offsetof(Programs, made), READONLY, "How many programs were made."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Programs, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot programs_slots[] = {
    {Py_tp_doc, const_cast<char*>(
                    "Programs(made_of, single, about, describe, arguments, sizes, atoms, slots, guards)\n--\n\n"
                    "A program whose sizes vary: called as a Program is, it runs one made for the sizes of its tensors, or returns "
                    "None when they are not those it was made for. `made_of` are the arguments of Program, with sizes that "
                    "vary in place of integers.")},
    {Py_tp_new, reinterpret_cast<void*>(programs_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(programs_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(programs_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(programs_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(programs_repr)},
    {Py_tp_methods, programs_methods},
    {Py_tp_getset, programs_getset},
    {Py_tp_members, programs_members},
    {0, nullptr}};

PyType_Spec programs_spec = {"tritium._native.Programs", sizeof(Programs), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                             programs_slots};

}  // namespace

PyTypeObject* make_programs_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&programs_spec)); }

}  // namespace tritium::python
