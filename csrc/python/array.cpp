// Array: a storage, a dtype and a layout in elements; the record beneath Tensor, and its buffer protocol.
#include "array.h"

#include "convert.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

namespace tritium::python {
namespace {

struct Extent {
  int64_t low, high;  // the first and the last element, counted from the array's own first element
};

Extent extent(int ndim, const int64_t* shape, const int64_t* strides) {
  Extent e{0, 0};
  for (int d = 0; d < ndim; ++d) {
    const int64_t reach = (shape[d] - 1) * strides[d];
    (reach < 0 ? e.low : e.high) += reach;
  }
  return e;
}

// Reads a sequence of ints into to[0..n). Returns n, or -1 with an exception. `plain`: it may be kept as it is; `varies`: it has
// sizes that vary.
int read_ints(PyObject* sequence, const char* what, int64_t* to, bool& plain, bool& varies) {
  PyObject* fast = PySequence_Tuple(sequence);  // a tuple of our own: __index__ of an item may change a list
  if (!fast) {
    PyErr_Format(PyExc_TypeError, "Array: %s must be a tuple of ints, given %.100s.", what, Py_TYPE(sequence)->tp_name);
    return -1;
  }
  const Py_ssize_t n = PyTuple_GET_SIZE(fast);
  plain = PyTuple_CheckExact(sequence);
  int result = static_cast<int>(std::min<Py_ssize_t>(n, kMaxDims));
  if (n > kMaxDims) {
    PyErr_Format(PyExc_ValueError, "%zd dimensions were asked; at most %d are possible.", n, kMaxDims);
    result = -1;
  }
  for (int d = 0; d < result; ++d) {
    PyObject* item = PyTuple_GET_ITEM(fast, d);
    if (is_size(item)) {
      varies = true;
      if (!size_attribute(item, globals.size_traced, to[d])) result = -1;
      continue;
    }
    plain = plain && PyLong_CheckExact(item);
    to[d] = PyLong_AsLongLong(item);
    if (to[d] == -1 && PyErr_Occurred()) result = -1;
  }
  Py_DECREF(fast);
  return result;
}

// The number of elements; -1 with an exception when there are too many to count in bytes.
int64_t count_elements(int ndim, const int64_t* shape) {
  int64_t size = 1;
  bool empty = false, over = false;
  for (int d = 0; d < ndim; ++d) {
    if (shape[d] < 0) {
      PyErr_Format(PyExc_ValueError, "Axis %d was given the size %lld; sizes must not be negative.", d,
                   static_cast<long long>(shape[d]));
      return -1;
    }
    empty = empty || shape[d] == 0;
    if (shape[d] && __builtin_mul_overflow(size, shape[d], &size)) over = true;
  }
  if (empty) return 0;
  if (over || size > INT64_MAX / 16) {
    PyErr_SetString(PyExc_ValueError, "This shape has more elements than can be addressed.");
    return -1;
  }
  return size;
}

// A packed array starts with a tile, keeps the axes inside a tile whole, and lies inside the storage.
bool check_packed(Array* a) {
  const Tile t = tile(static_cast<DType>(a->code));
  const int64_t unit = t.rows * t.block;
  int64_t whole[kMaxDims];
  contiguous_strides(a->ndim(), a->shape(), a->code, whole);
  const int inner = std::min(a->ndim(), t.rows > 1 ? 2 : 1);
  bool fits = a->offset >= 0 && a->offset % unit == 0;
  __int128 end = a->offset;
  for (int d = 0; d < a->ndim(); ++d) {
    const int64_t step = a->strides()[d];
    if (d >= a->ndim() - inner) {
      fits = fits && step == whole[d];
    } else {
      fits = fits && step >= 0 && step % unit == 0;
      end += static_cast<__int128>(a->shape()[d] - 1) * step;
    }
  }
  int64_t ignored[2];
  end += contiguous_strides(inner, a->shape() + a->ndim() - inner, a->code, ignored);
  if (fits && end / unit * t.nbytes <= a->memory()->nbytes) return true;
  PyErr_Format(PyExc_ValueError, "This layout of packed elements (offset %lld) does not fit its storage of %lld bytes, or "
               "cuts through a block of them.", static_cast<long long>(a->offset),
               static_cast<long long>(a->memory()->nbytes));
  return false;
}

// Every element must lie inside the storage and be aligned as its dtype wants.
bool check_inside(Array* a) {
  if (a->size == 0) return true;
  if (!a->plain()) return check_packed(a);
  const int64_t item = kItemSize[a->code];
  Storage* s = a->memory();
  __int128 low = a->offset, high = a->offset;
  for (int d = 0; d < a->ndim(); ++d) {
    const __int128 reach = static_cast<__int128>(a->shape()[d] - 1) * a->strides()[d];
    (reach < 0 ? low : high) += reach;
  }
  if (low < 0 || (high + 1) * item > s->nbytes) {
    PyErr_Format(PyExc_ValueError, "This layout (offset %lld) reaches outside its storage of %lld bytes.",
                 static_cast<long long>(a->offset), static_cast<long long>(s->nbytes));
    return false;
  }
  if (reinterpret_cast<std::uintptr_t>(s->data) % static_cast<std::uintptr_t>(alignment(static_cast<DType>(a->code))) != 0) {
    PyErr_Format(PyExc_ValueError, "Imported memory at %p is not aligned to its elements of %lld bytes; copy it first.",
                 s->data, static_cast<long long>(item));
    return false;
  }
  return true;
}

// A Python subclass is always a garbage-collected type. An array cannot be part of a cycle that could be collected, so
// the collector need not walk over it.
Array* blank(PyTypeObject* type, int ndim) {
  PyObject* made = type->tp_alloc(type, ndim);
  if (made && PyType_IS_GC(type) && type == globals.tensor_type) PyObject_GC_UnTrack(made);
  return reinterpret_cast<Array*>(made);
}

struct Arguments {
  PyObject *storage, *dtype, *shape, *strides = Py_None;
  long long offset = 0;
};

bool read_arguments(PyObject* args, PyObject* kwargs, Arguments& to) {
  static const char* names[] = {"storage", "dtype", "shape", "strides", "offset", nullptr};
  if (kwargs || PyTuple_GET_SIZE(args) != 5)
    return PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|OL:Array", const_cast<char**>(names), &to.storage, &to.dtype,
                                       &to.shape, &to.strides, &to.offset);
  // As every view is made; three times faster than the parser.
  PyObject** given = &PyTuple_GET_ITEM(args, 0);
  to.storage = given[0];
  to.dtype = given[1];
  to.shape = given[2];
  to.strides = given[3];
  to.offset = PyLong_AsLongLong(given[4]);
  return to.offset != -1 || !PyErr_Occurred();
}

PyObject* array_tp_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  Arguments given;
  if (!read_arguments(args, kwargs, given)) return nullptr;
  const auto [storage, dtype, shape, strides, offset] = given;
  const int code = dtype_code(dtype);
  if (code == -2) return nullptr;
  int64_t dims[kMaxDims], steps[kMaxDims];
  bool plain_shape, plain_strides = false, varies = false;
  const int ndim = read_ints(shape, "shape", dims, plain_shape, varies);
  if (ndim < 0) return nullptr;
  const int64_t size = count_elements(ndim, dims);
  if (size < 0) return nullptr;
  if (strides == Py_None) {
    contiguous_strides(ndim, dims, code, steps);
  } else {
    const int count = read_ints(strides, "strides", steps, plain_strides, varies);
    if (count < 0) return nullptr;
    if (count != ndim)
      return PyErr_Format(PyExc_ValueError, "Array: %d sizes but %d strides were given.", ndim, count);
  }
  Array* a = blank(type, ndim);
  if (!a) return nullptr;
  Py_INCREF(storage);
  Py_INCREF(dtype);
  a->storage = storage;
  a->dtype = dtype;
  a->offset = offset;
  a->size = size;
  a->code = static_cast<std::int8_t>(code);
  a->native = is_storage(storage);
  a->held = !a->native && is_held(storage);
  std::copy_n(dims, ndim, a->shape());
  std::copy_n(steps, ndim, a->strides());
  a->contiguous = is_contiguous(ndim, dims, steps, code);
  a->varies = varies;
  if (plain_shape) Py_INCREF(a->shape_tuple = shape);
  if (plain_strides) Py_INCREF(a->strides_tuple = strides);
  if (a->usable() && !check_inside(a)) {
    Py_DECREF(a);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(a);
}

void array_dealloc(PyObject* self) {
  auto* a = reinterpret_cast<Array*>(self);
  PyTypeObject* type = Py_TYPE(self);
  if (a->weakrefs) PyObject_ClearWeakRefs(self);
  Py_XDECREF(a->storage);
  Py_XDECREF(a->dtype);
  Py_XDECREF(a->shape_tuple);
  Py_XDECREF(a->strides_tuple);
  type->tp_free(self);
  Py_DECREF(type);
}

Array* as_array(PyObject* self) { return reinterpret_cast<Array*>(self); }

PyObject* cached(PyObject*& slot, const int64_t* values, int n) {
  if (!slot) slot = int_tuple(values, n);
  Py_XINCREF(slot);
  return slot;
}

PyObject* get_shape(PyObject* self, void*) {
  Array* a = as_array(self);
  return cached(a->shape_tuple, a->shape(), a->ndim());
}
PyObject* get_strides(PyObject* self, void*) {
  Array* a = as_array(self);
  return cached(a->strides_tuple, a->strides(), a->ndim());
}
PyObject* get_ndim(PyObject* self, void*) { return PyLong_FromLong(as_array(self)->ndim()); }
PyObject* get_contiguous(PyObject* self, void*) { return PyBool_FromLong(as_array(self)->contiguous); }

// elements * dtype.nbytes // dtype.block, where native code does not know the dtype.
PyObject* packed_bytes(Array* a, int64_t elements) {
  int64_t parts[2] = {0, 1};
  const char* names[2] = {"nbytes", "block"};
  for (int i = 0; i < 2; ++i) {
    PyObject* value = PyObject_GetAttrString(a->dtype, names[i]);
    if (!value) return nullptr;
    parts[i] = PyLong_AsLongLong(value);
    Py_DECREF(value);
    if (PyErr_Occurred()) return nullptr;
  }
  return PyLong_FromLongLong(elements * parts[0] / std::max<int64_t>(parts[1], 1));
}

PyObject* bytes_of(Array* a, int64_t elements) {
  return a->code >= 0 ? PyLong_FromLongLong(span(a->code, elements)) : packed_bytes(a, elements);
}

PyObject* get_size(PyObject* self, void*) {
  Array* a = as_array(self);
  if (!a->varies || !a->shape_tuple) return PyLong_FromLongLong(a->size);
  PyObject* product = PyLong_FromLong(1);
  for (Py_ssize_t d = 0; product && d < a->ndim(); ++d) {
    PyObject* before = product;
    product = PyNumber_Multiply(before, PyTuple_GET_ITEM(a->shape_tuple, d));
    Py_DECREF(before);
  }
  return product;
}

PyObject* get_nbytes(PyObject* self, void*) {
  Array* a = as_array(self);
  if (a->varies) {
    PyObject* spec = PyObject_GetAttrString(self, "spec");
    PyObject* nbytes = spec ? PyObject_GetAttrString(spec, "nbytes") : nullptr;
    Py_XDECREF(spec);
    return nbytes;
  }
  int64_t ignored[kMaxDims];
  const bool packed = a->code >= 0 && !is_plain(static_cast<DType>(a->code)) && a->size > 0;
  return bytes_of(a, packed ? contiguous_strides(a->ndim(), a->shape(), a->code, ignored) : a->size);
}

PyObject* get_address(PyObject* self, void*) {
  Array* a = as_array(self);
  if (a->usable()) return PyLong_FromVoidPtr(a->memory()->data + span(a->code, a->offset));
  PyObject* offset = bytes_of(a, a->offset);
  PyObject* base = offset ? PyObject_GetAttrString(a->storage, "address") : nullptr;
  PyObject* sum = base ? PyNumber_Add(base, offset) : nullptr;
  Py_XDECREF(offset);
  Py_XDECREF(base);
  return sum;
}

PyMethodDef array_methods[] = {
    {"number", array_number, METH_NOARGS,
     "number($self, /)\n--\n\nThe one element as a Python number; None where it is not one of a plain dtype here."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef array_getset[] = {
    {"shape", get_shape, nullptr, "Sizes of the axes.", nullptr},
    {"strides", get_strides, nullptr, "Elements from one index to the next, by axis.", nullptr},
    {"ndim", get_ndim, nullptr, "Number of axes.", nullptr},
    {"size", get_size, nullptr, "Number of elements.", nullptr},
    {"nbytes", get_nbytes, nullptr, "Bytes of the elements.", nullptr},
    {"is_contiguous", get_contiguous, nullptr, "Whether the elements lie in order without gaps.", nullptr},
    {"address", get_address, nullptr, "Where the first element is now; for reading only.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef array_members[] = {
    {"storage", T_OBJECT_EX, offsetof(Array, storage), READONLY, "The handle of the memory."},
    {"dtype", T_OBJECT_EX, offsetof(Array, dtype), READONLY, "How an element is stored."},
    {"offset", T_LONGLONG, offsetof(Array, offset), READONLY, "The first element, in elements."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Array, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

// The buffer protocol. Formats by DType; bf16 has none.
const char* const kFormats[kDTypes] = {"?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", nullptr, "f", "d"};

bool wants(int flags, int flag) { return (flags & flag) == flag; }

bool buffer_fits(Array* a, int flags) {
  const char* trouble = nullptr;
  if (a->native && is_complex(static_cast<DType>(a->code))) {
    trouble = "complex numbers have no buffer format; .numpy() gives an array of them";
  } else if (!a->usable()) {
    trouble = "this tensor has no plain CPU memory; bring it there with .to(\"cpu\") first";
  } else if (!a->plain()) {
    trouble = "this tensor is packed, several elements to a byte; dequantize() or repack() it first";
  } else if (!kFormats[a->code]) {
    trouble = "bf16 has no buffer format; .numpy() gives an array of ml_dtypes.bfloat16";
  } else if (wants(flags, PyBUF_WRITABLE) && !a->memory()->writable) {
    trouble = "this tensor looks at read-only memory; write to a copy: x.clone()";
  } else if (!a->contiguous && (!wants(flags, PyBUF_STRIDES) || wants(flags, PyBUF_C_CONTIGUOUS))) {
    trouble = "this tensor is not contiguous; make a contiguous copy first";
  }
  if (trouble) PyErr_Format(PyExc_BufferError, "%s.", trouble);
  return !trouble;
}

int array_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  Array* a = as_array(self);
  view->obj = nullptr;
  if (!buffer_fits(a, flags) || !storage_export(a->memory())) return -1;
  const int ndim = a->ndim();
  const int64_t item = kItemSize[a->code];
  std::unique_ptr<Py_ssize_t[]> dims(new (std::nothrow) Py_ssize_t[2 * ndim + 1]);
  if (!dims) {
    PyErr_NoMemory();
    return -1;
  }
  for (int d = 0; d < ndim; ++d) {
    dims[d] = a->shape()[d];
    dims[ndim + d] = a->strides()[d] * item;
  }
  view->buf = a->memory()->data + a->offset * item;
  view->len = a->size * item;
  view->itemsize = item;
  view->readonly = !a->memory()->writable;
  view->ndim = ndim;
  view->format = wants(flags, PyBUF_FORMAT) ? const_cast<char*>(kFormats[a->code]) : nullptr;
  view->shape = wants(flags, PyBUF_ND) ? dims.get() : nullptr;
  view->strides = wants(flags, PyBUF_STRIDES) ? dims.get() + ndim : nullptr;
  view->suboffsets = nullptr;
  view->internal = dims.get();
  const bool fortran = wants(flags, PyBUF_F_CONTIGUOUS) && !PyBuffer_IsContiguous(view, 'F');
  const bool either = wants(flags, PyBUF_ANY_CONTIGUOUS) && !PyBuffer_IsContiguous(view, 'A');
  if (fortran || either) {
    PyErr_SetString(PyExc_BufferError, "this tensor is not contiguous in the order asked for.");
    return -1;
  }
  Py_INCREF(self);
  view->obj = self;
  dims.release();
  return 0;
}

void array_releasebuffer(PyObject*, Py_buffer* view) { delete[] static_cast<Py_ssize_t*>(view->internal); }

PyType_Slot array_slots[] = {
    {Py_tp_doc, const_cast<char*>("Array(storage, dtype, shape, strides=None, offset=0)\n--\n\nStrided memory; strides "
                                  "and offset count elements.")},
    {Py_tp_new, reinterpret_cast<void*>(array_tp_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(array_dealloc)},
    {Py_tp_methods, array_methods},
    {Py_tp_getset, array_getset},
    {Py_tp_members, array_members},
    {Py_bf_getbuffer, reinterpret_cast<void*>(array_getbuffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(array_releasebuffer)},
    {0, nullptr}};

PyType_Spec array_spec = {"tritium._native.Array", offsetof(Array, dims), 2 * sizeof(int64_t),
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, array_slots};

// Reading `code` from a Python object costs more than all the rest of making an array, so it is remembered.
struct KnownDType {
  PyObject* dtype;
  int code;
};
KnownDType known_dtypes[64];

}  // namespace

int dtype_code(PyObject* dtype) {
  KnownDType& known = known_dtypes[reinterpret_cast<std::uintptr_t>(dtype) / 16 % 64];
  if (known.dtype == dtype) return known.code;
  PyObject* value = PyObject_GetAttrString(dtype, "code");
  if (!value) return -2;
  const long code = PyLong_AsLong(value);
  Py_DECREF(value);
  if (code == -1 && PyErr_Occurred()) return -2;
  if (code < -1 || code >= kCodes) {
    PyErr_Format(PyExc_ValueError, "%R has the code %ld; codes are -1 to %d.", dtype, code, kCodes - 1);
    return -2;
  }
  Py_INCREF(dtype);
  Py_XDECREF(known.dtype);
  known = {dtype, static_cast<int>(code)};
  return known.code;
}

bool size_attribute(PyObject* size, Py_ssize_t where, int64_t& to) {
  PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(size) + where);
  if (!value) {
    PyErr_SetString(PyExc_AttributeError, "A size that varies lacks its number.");
    return false;
  }
  to = PyLong_AsLongLong(value);
  return to != -1 || !PyErr_Occurred();
}

bool set_size_type(PyObject* type) {
  const char* names[] = {"traced", "slot"};
  Py_ssize_t* places[] = {&globals.size_traced, &globals.size_slot};
  for (int i = 0; i < 2; ++i) {
    PyObject* member = PyType_Check(type) ? PyObject_GetAttrString(type, names[i]) : nullptr;
    const bool slot = member && Py_TYPE(member) == &PyMemberDescr_Type;
    if (slot) *places[i] = reinterpret_cast<PyMemberDescrObject*>(member)->d_member->offset;
    Py_XDECREF(member);
    if (!slot) {
      PyErr_Format(PyExc_TypeError, "set_size_type: a class with the slots traced and slot is needed.");
      return false;
    }
  }
  Py_XDECREF(reinterpret_cast<PyObject*>(std::exchange(globals.size_type, reinterpret_cast<PyTypeObject*>(Py_NewRef(type)))));
  return true;
}

int64_t contiguous_strides(int ndim, const int64_t* shape, int code, int64_t* strides) {
  const bool plain = code < 0 || is_plain(static_cast<DType>(code));
  const Tile t = plain ? Tile{1, 1, 1} : tile(static_cast<DType>(code));
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; --d) {
    strides[d] = step;
    const int64_t unit = d == ndim - 1 ? t.block : d == ndim - 2 ? t.rows : 1;
    step *= std::max<int64_t>(whole(shape[d], unit), 1);
  }
  if (ndim == 0) step = t.block;
  return ndim < 2 ? step * t.rows : step;
}

bool is_contiguous(int ndim, const int64_t* shape, const int64_t* strides, int code) {
  if (code >= 0 && !is_plain(static_cast<DType>(code))) {
    int64_t whole[kMaxDims];
    contiguous_strides(ndim, shape, code, whole);
    return std::equal(whole, whole + ndim, strides);
  }
  int64_t step = 1;
  bool ordered = true;
  for (int d = ndim - 1; d >= 0; --d) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != step) ordered = false;
    step *= shape[d];
  }
  return ordered;
}

PyObject* int_tuple(const int64_t* values, int n) {
  PyObject* tuple = PyTuple_New(n);
  for (int i = 0; tuple && i < n; ++i) {
    PyObject* item = PyLong_FromLongLong(values[i]);
    if (item) {
      PyTuple_SET_ITEM(tuple, i, item);
    } else {
      Py_CLEAR(tuple);
    }
  }
  return tuple;
}

// Takes over the reference to `storage`, also when it fails.
Array* array_of(PyTypeObject* type, PyObject* storage, PyObject* dtype, int code, int ndim, const int64_t* shape) {
  Array* a = blank(type, ndim);
  if (!a) {
    Py_DECREF(storage);
    return nullptr;
  }
  Py_INCREF(dtype);
  a->storage = storage;
  a->dtype = dtype;
  a->code = static_cast<std::int8_t>(code);
  a->native = is_storage(storage);
  a->held = !a->native;
  a->contiguous = true;
  a->size = 1;
  for (int d = 0; d < ndim; ++d) {
    a->shape()[d] = shape[d];
    a->size *= shape[d];
  }
  contiguous_strides(ndim, shape, code, a->strides());
  return a;
}

Array* array_view(PyTypeObject* type, Array* of, int ndim, const int64_t* shape, const int64_t* strides, int64_t shift) {
  Array* a = blank(type, ndim);
  if (!a) return nullptr;
  Py_INCREF(a->storage = of->storage);
  Py_INCREF(a->dtype = of->dtype);
  a->code = of->code;
  a->native = of->native;
  a->held = of->held;
  a->offset = of->offset + shift;
  a->size = 1;
  for (int d = 0; d < ndim; ++d) {
    a->shape()[d] = shape[d];
    a->strides()[d] = strides[d];
    a->size *= shape[d];
  }
  a->contiguous = is_contiguous(ndim, shape, strides, of->code);
  return a;
}

PyObject* clone_of(Array* a) {
  static const Entry* const entry = find("copy");
  const bool repeats = std::find(a->strides(), a->strides() + a->ndim(), 0) != a->strides() + a->ndim();
  if (repeats || 2 * span(a->code, a->size) < a->memory()->nbytes) {
    Storage* storage = storage_new(span(a->code, a->size));
    if (!storage) return nullptr;
    Array* out = array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), a->dtype, a->code, a->ndim(), a->shape());
    if (!out) return nullptr;
    View in, to;
    fill_view(a, in);
    fill_view(out, to);
    Array* holders[2] = {a, out};
    const Attrs attrs;
    if (!run_kernel(*entry, Call{&in, 1, &to, &attrs}, holders, 2, 2 * span(a->code, a->size))) Py_CLEAR(out);
    return reinterpret_cast<PyObject*>(out);
  }
  Storage* shared = storage_clone(a->memory());
  if (!shared) return nullptr;
  Array* out = array_view(globals.tensor_type, a, a->ndim(), a->shape(), a->strides(), 0);
  if (out) Py_DECREF(std::exchange(out->storage, reinterpret_cast<PyObject*>(shared)));
  if (!out) Py_DECREF(shared);
  return reinterpret_cast<PyObject*>(out);
}

namespace {

// Bytes of what the innermost strides of a view step over: an element, or the rows and tiles of a packed matrix.
int64_t unit_bytes(const View& v) {
  if (is_plain(v.dtype)) return item_size(v.dtype);
  const int64_t n = tile(v.dtype).rows > 1 && v.ndim > 1 ? v.shape[v.ndim - 2] : 1;
  return matrix_bytes(v.dtype, n, v.ndim ? v.shape[v.ndim - 1] : 1);
}

}  // namespace

int overlap(const View& a, const View& b) {
  if (a.size() == 0 || b.size() == 0) return 0;
  const int64_t item_a = unit_bytes(a), item_b = unit_bytes(b);
  bool same = a.data == b.data && a.ndim == b.ndim && item_a == item_b;
  for (int d = 0; same && d < a.ndim; ++d)
    same = a.shape[d] == b.shape[d] && (a.shape[d] == 1 || a.strides[d] == b.strides[d]);
  if (same) return 1;
  const Extent ea = extent(a.ndim, a.shape, a.strides), eb = extent(b.ndim, b.shape, b.strides);
  const auto at = [](const char* data, int64_t offset) {
    return reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(offset);
  };
  const bool apart =
      at(a.data, ea.high + item_a) <= at(b.data, eb.low) || at(b.data, eb.high + item_b) <= at(a.data, ea.low);
  return apart ? 0 : 2;
}

PyObject* array_overlap(PyObject* a, PyObject* b) {
  for (PyObject* o : {a, b})
    if (!is_array(o) || !as_array(o)->usable())
      return PyErr_Format(PyExc_TypeError, "overlap needs two tensors in CPU memory, given %.100s.",
                          Py_TYPE(o)->tp_name);
  View va, vb;
  fill_view(as_array(a), va);
  fill_view(as_array(b), vb);
  return PyLong_FromLong(overlap(va, vb));
}

PyObject* number_tensor(PyObject* value, PyObject* dtype) {
  const int code = dtype_code(dtype);
  if (code == -2) return nullptr;
  alignas(16) char element[16];  // of the widest dtype
  const bool is_number = PyFloat_Check(value) || PyLong_Check(value) || PyComplex_Check(value);
  if (!globals.tensor_type || !is_number || code < 0 || !is_plain(static_cast<DType>(code)) ||
      !store_scalar(value, code, element))
    Py_RETURN_NONE;
  const int64_t nbytes = span(code, 1);
  Storage* storage = storage_new(nbytes);
  if (!storage) return nullptr;
  std::memcpy(storage->data, element, static_cast<std::size_t>(nbytes));
  return reinterpret_cast<PyObject*>(
      array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), dtype, code, 0, nullptr));
}

PyTypeObject* make_array_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&array_spec)); }

}  // namespace tritium::python
