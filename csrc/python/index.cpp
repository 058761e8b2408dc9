// x[key]: a view, computed from the layout, or elements that index tensors name; x[key] = value; nonzero(x); take.
// What it does not take, or what is out of bounds, is left to Python, which names the mistake.
#include "index.h"

#include <algorithm>

#include "../fault.h"
#include "index_key.h"

namespace tritium::python {
namespace {

constexpr int kMaxHolders = kMaxIndexTensors + 3;

// Runs a kernel for a key. False: an exception, or without one: an index is outside, which is for Python.
bool run(const Entry& entry, const Call& call, Array* const* holders, int count, int nout) {
  int64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += span(holders[i]->code, holders[i]->size);
  if (run_kernel(entry, call, holders, count, bytes, nout)) return true;
  if (PyErr_ExceptionMatches(PyExc_IndexError)) PyErr_Clear();
  return false;
}

Attrs attrs_of(const IndexTensors& t) {
  Attrs attrs;
  attrs.whole[0] = t.at;
  attrs.whole[1] = t.position;
  return attrs;
}

int index_holders(const IndexTensors& t, Array** to) {
  int count = 0;
  for (int i = 0; i < t.lent_count; ++i)
    if (t.lent[i].array) to[count++] = t.lent[i].array;
  return count;
}

PyObject* gather(IndexKey& key) {
  static const Entry* const entry = find("gather");
  IndexTensors& t = *key.tensors;
  int ndim;
  int64_t dims[kMaxDims], size = 1;
  if (!key.shape(ndim, dims)) return nullptr;
  for (int d = 0; d < ndim; ++d)
    if (__builtin_mul_overflow(size, std::max<int64_t>(dims[d], 1), &size) || size > INT64_MAX / 16) return nullptr;
  if (std::find(dims, dims + ndim, 0) != dims + ndim) size = 0;
  Array* x = key.of;
  Storage* storage = storage_new(span(x->code, size));
  if (!storage) return nullptr;
  Array* out = array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), x->dtype, x->code, ndim, dims);
  if (!out) return nullptr;
  key.refresh();
  View* const in = t.operands + 1;
  View result;
  key.see(*in);
  fill_view(out, result);
  Array* holders[kMaxHolders] = {x};
  int count = 1 + index_holders(t, holders + 1);
  holders[count++] = out;
  const Attrs attrs = attrs_of(t);
  if (run(*entry, Call{in, t.count + 1, &result, &attrs}, holders, count, 1)) return reinterpret_cast<PyObject*>(out);
  Py_DECREF(out);
  return nullptr;
}

PyObject* read(PyObject* x, PyObject* key) {
  if (!is_indexable(x)) return nullptr;
  IndexKey parts(reinterpret_cast<Array*>(x));
  PyObject* result = nullptr;
  if (parts.read(key)) {
    if (!parts.tensors) {
      result = reinterpret_cast<PyObject*>(
          array_view(globals.tensor_type, parts.of, parts.ndim, parts.dims, parts.steps, parts.shift));
    } else if (parts.of->native && !globals.recorder) {  // a span says what ran: only Python knows new kinds of calls
      result = gather(parts);
    }
  }
  parts.let_go();
  return result;
}

// A value to be written, as the target's dtype and apart from its memory.
struct Value {
  Lent lent;
  View view;
  alignas(16) char scalar[16];
  std::unique_ptr<Workspace> space;

  // False: for Python.
  bool read(PyObject* o, int code) {
    if (PyFloat_CheckExact(o) || PyLong_CheckExact(o) || PyBool_Check(o) || PyComplex_CheckExact(o)) {
      view.data = scalar;
      view.dtype = static_cast<DType>(code);
      return store_scalar(o, code, scalar);
    }
    if (!lent.borrow(o) || !may_become(static_cast<int>(lent.view.dtype), code)) return false;
    copy_view(view, lent.view);
    return true;
  }

  // Without more axes than there are; those of size 1 in front may go, where `strips`. False: it does not broadcast.
  bool fit(int ndim, const int64_t* dims, bool strips) {
    int lead = 0;
    while (strips && view.ndim - lead > ndim && view.shape[lead] == 1) ++lead;
    view.ndim -= lead;
    std::copy_n(view.shape + lead, view.ndim, view.shape);
    std::copy_n(view.strides + lead, view.ndim, view.strides);
    if (view.ndim > ndim) return false;
    const int64_t* last = dims + ndim - view.ndim;
    for (int d = 0; d < view.ndim; ++d)
      if (view.shape[d] != last[d] && view.shape[d] != 1) return false;
    return true;
  }

  // Copies it where a kernel that moves bytes could not read it while it writes. False: exception, or no memory.
  bool settle(const View& target) {
    if (view.dtype == target.dtype && overlap(view, target) == 0) return true;
    View own;
    copy_view(own, view);
    own.dtype = target.dtype;
    int64_t step = item_size(own.dtype);
    for (int d = own.ndim - 1; d >= 0; step *= std::max<int64_t>(own.shape[d--], 1)) own.strides[d] = step;
    space = std::make_unique<Workspace>(std::max<int64_t>(step, 16), Need::may);
    if (!(own.data = space->data())) return false;
    static const Entry* const entry = find("copy");
    const Attrs attrs;
    Array* holder = lent.array;
    if (!run_kernel(*entry, Call{&view, 1, &own, &attrs}, &holder, holder ? 1 : 0, step, 0)) return false;
    copy_view(view, own);
    return true;
  }

 private:
  // NumPy's rule for storing: a kind may not fall (float to int, signed to unsigned, number to bool).
  static bool may_become(int from, int to) {
    const auto rank = [](int code) {
      const auto t = static_cast<DType>(code);
      return t == DType::b8 ? 0 : is_complex(t) ? 4 : t >= DType::f16 ? 3 : t >= DType::u8 ? 1 : 2;
    };
    return rank(from) <= rank(to);
  }
};

// A view of memory without repeated elements; nobody may write to others.
bool is_writable(const IndexKey& key) {
  for (int d = 0; d < key.ndim; ++d)
    if (key.steps[d] == 0 && key.dims[d] > 1) return false;
  return key.of->memory()->writable;
}

// x[mask] = value that is the same for all that is picked: chosen element by element, in place.
bool choose(IndexKey& key, Value& value) {
  static const Entry* const entry = find("where");
  IndexTensors& t = *key.tensors;
  View &mask = t.mask, x, in[3];
  Array* holder = t.lent_count ? t.lent[0].array : nullptr;
  fill_view(key.of, x);
  if (!value.fit(x.ndim - mask.ndim, x.shape + mask.ndim, false) || !value.settle(x)) return false;
  if (holder) fill_view(holder, mask);
  if (overlap(mask, x) == 2) return false;  // written while it is read: Python computes it apart
  copy_view(in[0], mask);
  in[0].ndim = x.ndim;
  for (int d = mask.ndim; d < x.ndim; ++d) {
    in[0].shape[d] = 1;
    in[0].strides[d] = 0;
  }
  copy_view(in[1], value.view);
  copy_view(in[2], x);
  Array* holders[3];
  int count = 0;
  for (Array* a : {holder, value.space ? nullptr : value.lent.array, key.of})
    if (a) holders[count++] = a;
  const Attrs attrs;
  return run(*entry, Call{in, 3, &x, &attrs}, holders, count, 1);
}

bool put(IndexKey& key, Value& value) {
  static const Entry* const entry = find("put");
  IndexTensors& t = *key.tensors;
  int ndim;
  int64_t dims[kMaxDims];
  if (!key.shape(ndim, dims) || !value.fit(ndim, dims, !t.by_element)) return false;
  View* const in = t.operands;
  View target;
  key.see(target);
  if (!value.settle(target)) return false;
  key.refresh();
  for (int k = 0; k < t.count; ++k)
    if (overlap(t.views[k], target) != 0) return false;  // written while it is read: Python computes it apart
  copy_view(in[0], target);
  copy_view(in[1], value.view);
  Array* holders[kMaxHolders];
  int count = index_holders(t, holders);
  if (value.lent.array && !value.space) holders[count++] = value.lent.array;
  holders[count++] = key.of;
  const Attrs attrs = attrs_of(t);
  return run(*entry, Call{in, t.count + 2, &target, &attrs}, holders, count, 1);
}

bool fill(IndexKey& key, Value& value) {
  static const Entry* const entry = find("copy");
  if (!value.fit(key.ndim, key.dims, key.ndim > 0 || key.ellipsis)) return false;  // one element takes a number
  View target;
  key.see(target);
  if (overlap(value.view, target) != 0 && !value.settle(target)) return false;
  Array* holders[2];
  int count = 0;
  if (value.lent.array && !value.space) holders[count++] = value.lent.array;
  holders[count++] = key.of;
  const int64_t bytes = target.size() * item_size(target.dtype);
  const Attrs attrs;
  return run_kernel(*entry, Call{&value.view, 1, &target, &attrs}, holders, count, bytes, 1);
}

// Whether one value serves all that a mask picks: it has no axis of its own along the picked ones.
bool is_same_for_all(const IndexKey& key, const Value& value) {
  const IndexTensors& t = *key.tensors;
  return t.mask_alone && value.view.ndim <= key.of->ndim() - t.mask.ndim;
}

PyObject* write(PyObject* x, PyObject* key, PyObject* given) {
  auto* a = reinterpret_cast<Array*>(x);
  if (!is_indexable(x) || !a->native || globals.recorder) return nullptr;
  IndexKey parts(a);
  Value value;
  bool done = false;
  if (value.read(given, a->code) && parts.read(key) && is_writable(parts)) {
    if (storage_own(a->memory())) {
      if (Array* from = value.lent.array) value.view.data = from->memory()->data + span(from->code, from->offset);
      done = !parts.tensors                    ? fill(parts, value)
             : is_same_for_all(parts, value) ? choose(parts, value)
                                               : put(parts, value);
    }
  }
  parts.let_go();
  value.lent.let_go();
  return done ? Py_NewRef(Py_None) : nullptr;
}

PyObject* i64_dtype() {
  static PyObject* known = nullptr;
  if (!known) {
    PyObject* module = PyImport_ImportModule("tritium.dtype");
    known = module ? PyObject_GetAttrString(module, "i64") : nullptr;
    Py_XDECREF(module);
  }
  return known;
}

// One tensor of places for each axis; they share their memory.
PyObject* nonzero_of(Array* x, View& view, int64_t* starts) {
  PyObject* dtype = i64_dtype();
  if (!dtype || !count_nonzero(view, x, starts)) return nullptr;
  const int64_t count = starts[stretches(view)], shape[2] = {view.ndim, count};
  Storage* storage = storage_new(8 * count * view.ndim);
  if (!storage) return nullptr;
  constexpr int kCode = static_cast<int>(DType::i64);
  Array* all = array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), dtype, kCode, 2, shape);
  if (!all) return nullptr;
  fill_view(x, view);
  PyObject* tuple = nullptr;
  if (find_nonzero(view, x, starts, reinterpret_cast<int64_t*>(storage->data), all)) tuple = PyTuple_New(view.ndim);
  const int64_t step = 1;
  for (int d = 0; tuple && d < view.ndim; ++d) {
    Array* row = array_view(globals.tensor_type, all, 1, &count, &step, d * count);
    if (!row) Py_CLEAR(tuple);
    if (row) PyTuple_SET_ITEM(tuple, d, reinterpret_cast<PyObject*>(row));
  }
  Py_DECREF(all);
  return tuple;
}

PyObject* nonzero(PyObject* x) {
  auto* a = reinterpret_cast<Array*>(x);
  if (!is_indexable(x) || !a->native || a->ndim() == 0 || globals.recorder) return nullptr;
  if (is_complex(static_cast<DType>(a->code))) return nullptr;
  View view;
  fill_view(a, view);
  const Workspace space((stretches(view) + 1) * 8, Need::may);
  return space.data() ? nonzero_of(a, view, space.as<int64_t>()) : nullptr;
}

// The axis of take(x, indices, axis=…), counted from the front; -1: for Python.
int read_axis(PyObject* const* given, PyObject* names, int missing, int ndim) {
  int64_t axis = missing;
  if (names) {
    if (PyTuple_GET_SIZE(names) != 1 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "axis") != 0) return -1;
    if (!PyLong_CheckExact(*given)) return -1;
    int overflow;
    axis = PyLong_AsLongLongAndOverflow(*given, &overflow);
    if (overflow) return -1;
  }
  return static_cast<int>(axis < -ndim || axis >= ndim ? -1 : axis < 0 ? axis + ndim : axis);
}

// The shape of take: that of the indices in place of the axis. False: too many axes.
bool shape_of_take(Array* x, const View& indices, int axis, int& ndim, int64_t* dims) {
  ndim = x->ndim() - 1 + indices.ndim;
  if (ndim > kMaxDims) return false;
  std::copy_n(x->shape(), axis, dims);
  std::copy_n(indices.shape, indices.ndim, dims + axis);
  std::copy_n(x->shape() + axis + 1, x->ndim() - axis - 1, dims + axis + indices.ndim);
  return true;
}

// The shape of take_along_axis: that of the indices, broadcast with x along the other axes. False: they do not fit.
bool shape_along(Array* x, const View& indices, int axis, int& ndim, int64_t* dims) {
  ndim = x->ndim();
  if (indices.ndim != ndim) return false;
  for (int d = 0; d < ndim; ++d) {
    const int64_t n = x->shape()[d], m = indices.shape[d];
    if (d != axis && n != m && n != 1 && m != 1) return false;
    dims[d] = d == axis || n == 1 ? m : n;
  }
  return true;
}

PyObject* take_by(Array* x, const Lent& indices, int axis, bool along) {
  static const Entry *const take = find("take"), *const take_along = find("take_along_axis");
  int ndim;
  int64_t dims[kMaxDims], extent = 1, size = 1;
  if (indices.view.dtype < DType::i8 || indices.view.dtype > DType::u64) return nullptr;
  if (!(along ? shape_along : shape_of_take)(x, indices.view, axis, ndim, dims)) return nullptr;
  for (int d = 0; d < ndim; size *= dims[d++])
    if (__builtin_mul_overflow(extent, std::max<int64_t>(dims[d], 1), &extent) || extent > INT64_MAX / 1024) return nullptr;
  Storage* storage = storage_new(span(x->code, size));
  if (!storage) return nullptr;
  Array* out = array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), x->dtype, x->code, ndim, dims);
  if (!out) return nullptr;
  View in[2], result;
  fill_view(x, in[0]);
  copy_view(in[1], indices.view);
  if (Array* a = indices.array) in[1].data = a->memory()->data + span(a->code, a->offset);
  fill_view(out, result);
  Array* holders[3] = {x, indices.array, out};
  if (!indices.array) holders[1] = out;
  const int count = indices.array ? 3 : 2;
  Attrs attrs;
  attrs.whole[0] = axis;
  const int64_t bytes = span(x->code, x->size) + span(x->code, size);
  if (run_kernel(along ? *take_along : *take, Call{in, 2, &result, &attrs}, holders, count, bytes))
    return reinterpret_cast<PyObject*>(out);
  Py_DECREF(out);
  return nullptr;
}

PyObject* take(PyObject* const* args, PyObject* names, bool along) {
  auto* x = reinterpret_cast<Array*>(args[0]);
  if (!is_indexable(args[0]) || !x->native || globals.recorder) return nullptr;
  const int axis = names || along || x->ndim() == 1 ? read_axis(args + 2, names, along ? -1 : 0, x->ndim()) : -1;
  Lent indices;
  if (axis < 0 || !indices.borrow(args[1])) return nullptr;
  PyObject* result = take_by(x, indices, axis, along);
  indices.let_go();
  return result;
}

}  // namespace

bool is_indexable(PyObject* x) {
  if (Py_TYPE(x) != globals.tensor_type || interpreting()) return false;
  auto* a = reinterpret_cast<Array*>(x);
  return a->known() && is_plain(static_cast<DType>(a->code));  // of packed dtypes only some parts can be seen
}

PyObject* index_natively(char what, PyObject* const* args, Py_ssize_t nargs, PyObject* names) {
  if ((what == kTakes || what == kTakesAlong) && nargs == 2) return take(args, names, what == kTakesAlong);
  if (names) return nullptr;
  if (what == kReads && nargs == 2) return read(args[0], args[1]);
  if (what == kWrites && nargs == 3) return write(args[0], args[1], args[2]);
  if (what == kNonzero && nargs == 1) return nonzero(args[0]);
  return nullptr;
}

}  // namespace tritium::python
