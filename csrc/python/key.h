// The key of a call: what its arguments are, as words to hash and compare.
#pragma once

#include <cstring>

#include "held.h"

namespace tritium::python {

constexpr int kMaxWords = 96;

enum Tag : uint64_t { kTensor = 1, kForeign, kFloat, kInt, kBool, kNone, kText, kTuple, kSlice, kEllipsis, kObject, kAnyShape, kAnyNumber, kJoined, kComplex };

enum class Sight { kShape, kStrides, kDType };  // what of a tensor belongs to the key

struct Key {
  uint64_t words[kMaxWords];
  int count = 0;

  bool add(uint64_t word) {
    if (count == kMaxWords) return false;
    words[count++] = word;
    return true;
  }

  // A tensor by what a kernel (or, with its strides, a view) sees of it, and by its device where that is not the CPU; a
  // Python scalar by its type, its value being an operand. By dtype alone only tensors of the CPU are known.
  bool add_operand(PyObject* o, Sight sight) {
    PyTypeObject* type = Py_TYPE(o);
    if (type == globals.tensor_type) {
      auto* a = reinterpret_cast<Array*>(o);
      if (sight == Sight::kDType) return a->plain() && add(kAnyShape | uint64_t(a->code) << 8);
      const int ndim = a->ndim();
      if (!a->known() || count + 2 * ndim + 1 >= kMaxWords) return false;
      const uint64_t tag = a->native ? kTensor : kForeign;
      words[count++] = tag | uint64_t(a->code) << 8 | uint64_t(ndim) << 16 | uint64_t(a->contiguous) << 24;
      if (a->held) words[count++] = reinterpret_cast<std::uintptr_t>(held_of(a)->device);
      for (int d = 0; d < ndim; ++d) words[count++] = static_cast<uint64_t>(a->shape()[d]);
      for (int d = 0; sight == Sight::kStrides && d < ndim; ++d) words[count++] = static_cast<uint64_t>(a->strides()[d]);
      return true;
    }
    if (type == &PyFloat_Type) return add(kFloat);
    if (type == &PyLong_Type) return add(kInt);
    if (type == &PyBool_Type) return add(kBool);
    if (type == &PyComplex_Type) return add(kComplex);
    return o == Py_None && add(kNone);
  }

  bool add_int(PyObject* o) {
    int overflow;
    const long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
    return !overflow && add(static_cast<uint64_t>(value));
  }

  bool add_text(PyObject* o) {
    Py_ssize_t length;
    const char* text = PyUnicode_AsUTF8AndSize(o, &length);
    if (!text) PyErr_Clear();  // lone surrogates: no key
    if (!text || length > 64 || count + 10 > kMaxWords) return false;
    words[count++] = kText | static_cast<uint64_t>(length) << 8;
    for (Py_ssize_t at = 0; at < length; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text + at, static_cast<std::size_t>(length - at < 8 ? length - at : 8));
      words[count++] = word;
    }
    return true;
  }

  bool add_tuple(PyObject* o) {
    const Py_ssize_t n = PyTuple_GET_SIZE(o);
    if (!add(kTuple | static_cast<uint64_t>(n) << 8)) return false;
    for (Py_ssize_t i = 0; i < n; ++i)
      if (!add_attr(PyTuple_GET_ITEM(o, i))) return false;
    return true;
  }

  // An attribute by its exact type and value: 1, 1.0 and True stay apart, as do 0.0 and -0.0.
  bool add_attr(PyObject* o) {
    PyTypeObject* type = Py_TYPE(o);
    if (o == Py_None) return add(kNone);
    if (type == &PyLong_Type) return add(kInt) && add_int(o);
    if (type == &PyBool_Type) return add(kBool) && add(o == Py_True);
    if (type == &PyTuple_Type) return add_tuple(o);
    if (type == &PyUnicode_Type) return add_text(o);
    if (o == Py_Ellipsis) return add(kEllipsis);
    if (type == &PySlice_Type) {
      auto* s = reinterpret_cast<PySliceObject*>(o);
      return add(kSlice) && add_attr(s->start) && add_attr(s->stop) && add_attr(s->step);
    }
    if (type == &PyFloat_Type) {
      const double value = PyFloat_AS_DOUBLE(o);
      uint64_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      return add(kFloat) && add(bits);
    }
    return is_identity(type) && add(kObject) && add(reinterpret_cast<std::uintptr_t>(o));
  }

  // A number by its type alone: its value belongs to the call, not to the record.
  bool add_any_number(PyObject* o) {
    PyTypeObject* type = Py_TYPE(o);
    const uint64_t tag = type == &PyFloat_Type ? kFloat : type == &PyLong_Type ? kInt : kBool;
    return (tag != kBool || type == &PyBool_Type) && add(kAnyNumber | tag << 8);
  }

  static bool is_identity(PyTypeObject* type) {
    PyObject* types = globals.identity_types;
    for (Py_ssize_t i = 0; types && i < PyTuple_GET_SIZE(types); ++i)
      if (PyTuple_GET_ITEM(types, i) == reinterpret_cast<PyObject*>(type)) return true;
    return false;
  }

  uint64_t hash() const {
    uint64_t h = static_cast<uint64_t>(count);
    for (int i = 0; i < count; ++i) {
      h = (h ^ words[i]) * 0x9E3779B97F4A7C15u;
      h ^= h >> 29;
    }
    return h;
  }
};

}  // namespace tritium::python
