// Row as a C structure, and a call of one as it was written.
#pragma once

#include "key.h"
#include "record.h"

namespace tritium::python {

constexpr int kNever = -2, kVariadic = -1;  // what Row::operands may be besides a number

struct Row {
  PyObject_HEAD
  vectorcallfunc call;
  Records* records;
  long long hits;
  int arity, operands;    // as Python set it; as it was when the first record was made
  char inplace, in_place;  // likewise
  char keeps;              // of real numbers the result is the operand itself
  char strided;            // its records are views: strides belong to the key
  char indexes;            // what of index.h a call is: it needs no record
  char any_shape;          // some of its records serve tensors of any shapes
  char any_number;         // some of its records serve any value of `varies`
  PyObject* varies;        // the name of an attribute whose value decides neither spec nor kernel; nullptr: none
  int varies_place;        // where it stands among the attributes given by place
};

inline Row* as_row(PyObject* self) { return reinterpret_cast<Row*>(self); }

// The positional arguments of a call. The operands of a variadic row come one after another, or as one list or tuple.
struct Given {
  PyObject* const* operands;
  PyObject* const* others;  // attributes
  Py_ssize_t count, rest;   // of operands, of others
  int wanted;               // operands that a kernel is given: those left out as None
  PyObject* held = nullptr;  // a list as a tuple: someone may change the list meanwhile

  Given(const Row* row, PyObject* const* args, Py_ssize_t nargs) : operands(args) {
    PyObject* first = row->operands == kVariadic && nargs ? args[0] : nullptr;
    if (first && PyList_CheckExact(first)) first = held = PyList_AsTuple(first);
    if (first && PyTuple_CheckExact(first)) {
      operands = &PyTuple_GET_ITEM(first, 0);
      count = PyTuple_GET_SIZE(first);
      others = args + 1;
      rest = nargs - 1;
    } else {
      count = row->operands == kVariadic || nargs < row->operands ? nargs : row->operands;
      others = args + count;
      rest = nargs - count;
    }
    wanted = row->operands == kVariadic ? static_cast<int>(count) : row->operands;
  }
  Given(const Given&) = delete;

  // By hand: a daemon thread that ends while it waits for the GIL is unwound and must not touch it any more.
  void let_go() { Py_CLEAR(held); }
};

bool is_out(PyObject* name);  // the keyword `out`, which no key holds

// Adds a call that joins tensors: how many there are does not matter, but all must be of one dtype.
inline bool add_joined(Key& key, const Given& g) {
  if (!g.count || Py_TYPE(g.operands[0]) != globals.tensor_type) return false;
  const int code = reinterpret_cast<Array*>(g.operands[0])->code;
  for (Py_ssize_t i = 0; i < g.count; ++i) {
    if (Py_TYPE(g.operands[i]) != globals.tensor_type) return false;
    auto* a = reinterpret_cast<Array*>(g.operands[i]);
    if (!a->plain() || a->code != code) return false;
  }
  if (!key.add(kJoined | uint64_t(code) << 8 | static_cast<uint64_t>(g.rest) << 32)) return false;
  for (Py_ssize_t i = 0; i < g.rest; ++i)
    if (!key.add_attr(g.others[i])) return false;
  return true;
}

// Adds a call to a key; false: such a call cannot be told from others. Keywords are the caller's to add. With `number` the
// attribute that varies counts by its type, and is left there.
inline bool add_call(Key& key, const Row* row, const Given& g, bool any_shape, PyObject** number = nullptr) {
  if (any_shape && row->operands == kVariadic) return add_joined(key, g);
  if (g.wanted > kMaxReplayed) return false;
  const Sight sight = any_shape ? Sight::kDType : row->strided ? Sight::kStrides : Sight::kShape;
  key.add(static_cast<uint64_t>(g.count) << 32 | static_cast<uint64_t>(g.rest));
  for (Py_ssize_t i = 0; i < g.count; ++i)
    if (!key.add_operand(g.operands[i], sight)) return false;
  for (Py_ssize_t i = 0; i < g.rest; ++i) {
    const bool any = number && i == row->varies_place;
    if (any) *number = g.others[i];
    if (!(any ? key.add_any_number(g.others[i]) : key.add_attr(g.others[i]))) return false;
  }
  return true;
}

// Adds an attribute given by name; where `number` is asked for, the one that varies counts by its type.
inline bool add_named(Key& key, const Row* row, PyObject* name, PyObject* value, PyObject** number) {
  const bool any = number && (name == row->varies || PyUnicode_Compare(name, row->varies) == 0);
  if (any) *number = value;
  return key.add_text(name) && (any ? key.add_any_number(value) : key.add_attr(value));
}

// Methods of Row.
PyObject* row_remember(PyObject* self, PyObject* given, PyObject* keywords);
PyObject* row_remember_there(PyObject* self, PyObject* given);
PyObject* row_remember_view(PyObject* self, PyObject* given);

}  // namespace tritium::python
