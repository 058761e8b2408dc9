// Tensors of other objects' numbers: NumPy arrays seen in place, nested lists copied; and the number of one element.
// What is not plain is left to Python, which has the words for it.
#include "convert.h"

#include <algorithm>
#include <cstring>

namespace tritium::python {
namespace {

constexpr int64_t kExact = int64_t{1} << 53, kExactHalf = int64_t{1} << 24;  // integers that floats hold, before rounding

int code_of(const char* format, Py_ssize_t item) {
  if (!format) return -1;
  if (*format == '@' || *format == '=' || (*format == '<' && PY_LITTLE_ENDIAN)) ++format;
  if (!format[0] || format[1]) return -1;
  const int rank = item == 1 ? 0 : item == 2 ? 1 : item == 4 ? 2 : item == 8 ? 3 : -1;
  if (rank < 0) return -1;
  if (std::strchr("bhilq", *format)) return static_cast<int>(DType::i8) + rank;
  if (std::strchr("BHILQ", *format)) return static_cast<int>(DType::u8) + rank;
  switch (*format) {
    case '?': return static_cast<int>(DType::b8);
    case 'e': return static_cast<int>(DType::f16);
    case 'f': return static_cast<int>(DType::f32);
    case 'd': return static_cast<int>(DType::f64);
    default: return -1;
  }
}

// A strided buffer as shape and strides in elements, and how far it reaches to either side.
struct Seen {
  int code = -1, ndim = 0;
  int64_t shape[kMaxDims], strides[kMaxDims], low = 0, high = 0;
  char* first = nullptr;
  bool writable = false;

  // False: it is empty, odd, or of no dtype of ours.
  bool read(const Py_buffer& b) {
    code = code_of(b.format, b.itemsize);
    if (code < 0 || b.ndim > kMaxDims || (b.ndim && !b.strides)) return false;
    const int64_t item = kItemSize[code];
    ndim = b.ndim;
    first = static_cast<char*>(b.buf);
    writable = !b.readonly;
    for (int d = 0; d < ndim; ++d) {
      if (b.shape[d] == 0 || b.strides[d] % item) return false;
      shape[d] = b.shape[d];
      strides[d] = b.strides[d] / item;
      const int64_t reach = (shape[d] - 1) * strides[d];
      (reach < 0 ? low : high) += reach;
    }
    return reinterpret_cast<std::uintptr_t>(first) % static_cast<std::uintptr_t>(item) == 0;
  }
};

PyObject* kind_of(PyObject* kinds, int code) {
  return PyTuple_Check(kinds) && code < PyTuple_GET_SIZE(kinds) ? PyTuple_GET_ITEM(kinds, code) : nullptr;
}

Py_ssize_t length(PyObject* list) {
  return PyList_CheckExact(list) ? PyList_GET_SIZE(list) : PyTuple_CheckExact(list) ? PyTuple_GET_SIZE(list) : -1;
}
PyObject* item(PyObject* list, Py_ssize_t i) {
  return PyList_CheckExact(list) ? PyList_GET_ITEM(list, i) : PyTuple_GET_ITEM(list, i);
}

// What nested lists of one depth hold.
struct Nest {
  int ndim = 0;
  int64_t dims[kMaxDims], size = 1;
  bool floats = false, ints = false;

  // The shape by the first elements; false: empty, or nested too deep.
  bool measure(PyObject* list) {
    for (Py_ssize_t n; (n = length(list)) >= 0; list = item(list, 0)) {
      if (n == 0 || ndim == kMaxDims || __builtin_mul_overflow(size, n, &size)) return false;
      dims[ndim++] = n;
    }
    return ndim > 0;
  }

  // Calls visit(number) for all in order; false: ragged, or one is no plain number, or visit said so.
  template <class F>
  bool walk(PyObject* list, int depth, F&& visit) const {
    if (length(list) != dims[depth]) return false;
    for (Py_ssize_t i = 0; i < dims[depth]; ++i) {
      PyObject* x = item(list, i);
      if (depth + 1 < ndim ? !walk(x, depth + 1, visit) : !visit(x)) return false;
    }
    return true;
  }
};

// Whether rounding a number twice, to double and to the dtype, is rounding it once.
bool rounds_once(PyObject* x, int code) {
  if (!PyLong_Check(x) || code < static_cast<int>(DType::f16)) return true;
  const int64_t most = code <= static_cast<int>(DType::bf16) ? kExactHalf : kExact;
  int overflow;
  const long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
  return !overflow && value <= most && value >= -most;
}

}  // namespace

PyObject* tensor_over(PyObject* data, PyObject* kinds) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(data, &buffer, PyBUF_RECORDS_RO) < 0) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  Seen seen;
  const bool plain = seen.read(buffer);
  PyBuffer_Release(&buffer);
  PyObject* kind = plain ? kind_of(kinds, seen.code) : nullptr;
  if (!kind) Py_RETURN_NONE;
  const int64_t item = kItemSize[seen.code];
  Storage* storage = storage_wrap(seen.first + seen.low * item, (seen.high - seen.low + 1) * item, data, seen.writable);
  if (!storage) return nullptr;
  auto* held = reinterpret_cast<PyObject*>(storage);
  Array* a = array_of(globals.tensor_type, held, kind, seen.code, seen.ndim, seen.shape);
  if (!a) return nullptr;
  std::copy_n(seen.strides, seen.ndim, a->strides());
  a->offset = -seen.low;
  a->contiguous = is_contiguous(seen.ndim, seen.shape, seen.strides, seen.code);
  return reinterpret_cast<PyObject*>(a);
}

PyObject* tensor_of_lists(PyObject* data, PyObject* dtype, PyObject* kinds) {
  Nest nest;
  bool floats = false, ints = false;
  const auto look = [&](PyObject* x) {
    floats |= PyFloat_CheckExact(x);
    ints |= PyLong_CheckExact(x);
    return PyFloat_CheckExact(x) || PyLong_CheckExact(x) || PyBool_Check(x);
  };
  if (!nest.measure(data) || !nest.walk(data, 0, look)) Py_RETURN_NONE;
  int code = static_cast<int>(floats ? DType::f32 : ints ? DType::i64 : DType::b8);
  if (dtype != Py_None) code = dtype_code(dtype);
  if (code == -2) return nullptr;
  PyObject* kind = code >= 0 && code < kDTypes ? kind_of(kinds, code) : nullptr;
  if (!kind || nest.size > INT64_MAX / 16) Py_RETURN_NONE;
  Storage* storage = storage_new(nest.size * kItemSize[code]);
  if (!storage) return nullptr;
  char* to = storage->data;
  const auto put = [&](PyObject* x) {  // a watcher of memory may have changed the lists meanwhile
    const bool fits = look(x) && rounds_once(x, code) && store_scalar(x, code, to);
    to += kItemSize[code];
    return fits;
  };
  if (!nest.walk(data, 0, put)) {
    Py_DECREF(storage);
    Py_RETURN_NONE;
  }
  auto* held = reinterpret_cast<PyObject*>(storage);
  return reinterpret_cast<PyObject*>(array_of(globals.tensor_type, held, kind, code, nest.ndim, nest.dims));
}

namespace {

template <class T>
T load(const char* from) {
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

}  // namespace

PyObject* array_number(PyObject* self, PyObject*) {
  auto* a = reinterpret_cast<Array*>(self);
  if (!a->plain() || a->size != 1) Py_RETURN_NONE;
  return number_at(a->code, a->memory()->data + span(a->code, a->offset));
}

PyObject* number_at(int code, const char* from) {
  switch (static_cast<DType>(code)) {
    case DType::b8: return PyBool_FromLong(*from != 0);
    case DType::i8: return PyLong_FromLong(load<std::int8_t>(from));
    case DType::i16: return PyLong_FromLong(load<std::int16_t>(from));
    case DType::i32: return PyLong_FromLong(load<std::int32_t>(from));
    case DType::i64: return PyLong_FromLongLong(load<int64_t>(from));
    case DType::u8: return PyLong_FromLong(load<std::uint8_t>(from));
    case DType::u16: return PyLong_FromLong(load<std::uint16_t>(from));
    case DType::u32: return PyLong_FromLongLong(load<std::uint32_t>(from));
    case DType::u64: return PyLong_FromUnsignedLongLong(load<uint64_t>(from));
    case DType::f16: return PyFloat_FromDouble(PyFloat_Unpack2(from, PY_LITTLE_ENDIAN));
    case DType::bf16: {
      const std::uint32_t bits = static_cast<std::uint32_t>(load<std::uint16_t>(from)) << 16;
      float x;
      std::memcpy(&x, &bits, sizeof x);
      return PyFloat_FromDouble(static_cast<double>(x));
    }
    case DType::f32: return PyFloat_FromDouble(static_cast<double>(load<float>(from)));
    case DType::f64: return PyFloat_FromDouble(load<double>(from));
    case DType::c64:
      return PyComplex_FromDoubles(static_cast<double>(load<float>(from)), static_cast<double>(load<float>(from + 4)));
    case DType::c128: return PyComplex_FromDoubles(load<double>(from), load<double>(from + 8));
    default: Py_RETURN_NONE;
  }
}

}  // namespace tritium::python
