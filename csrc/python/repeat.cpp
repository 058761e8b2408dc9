// repeat(x, repeats, axis): slices of x, each several times.
// What it does not take, or what is wrong, is left to Python, which names the mistake.
#include <algorithm>

#include "index.h"
#include "index_key.h"

namespace tritium::python {
namespace {

// x with the axis along which slices are repeated; the only one of a flat view where none is named.
struct Along {
  View view;
  int axis = 0;

  // False: for Python.
  bool read(Array* x, PyObject* given) {
    fill_view(x, view);
    if (given == Py_None) {
      if (!x->contiguous) return false;
      view.ndim = 1;
      view.shape[0] = x->size;
      view.strides[0] = item_size(view.dtype);
      return true;
    }
    int overflow = 0;
    const int64_t number = PyLong_CheckExact(given) ? PyLong_AsLongLongAndOverflow(given, &overflow) : INT64_MAX;
    if (overflow || number < -view.ndim || number >= view.ndim) return false;
    axis = static_cast<int>(number < 0 ? number + view.ndim : number);
    return true;
  }
};

// New memory of the view's shape, but `count` along the axis. nullptr without an exception: too large.
Array* new_result(Array* x, const Along& along, int64_t count) {
  int64_t dims[kMaxDims], extent = 1, size = 1;
  for (int d = 0; d < along.view.ndim; ++d) {
    dims[d] = d == along.axis ? count : along.view.shape[d];
    if (__builtin_mul_overflow(extent, std::max<int64_t>(dims[d], 1), &extent) || extent > INT64_MAX / 1024) return nullptr;
    size *= dims[d];
  }
  Storage* storage = storage_new(span(x->code, size));
  if (!storage) return nullptr;
  return array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), x->dtype, x->code, along.view.ndim, dims);
}

PyObject* finish(Array* out, bool done) {
  if (done) return reinterpret_cast<PyObject*>(out);
  Py_DECREF(out);
  return nullptr;
}

// The same number of times: a copy of a view that repeats its memory along an axis behind that of the slices.
PyObject* repeat_all(Array* x, Along& along, int64_t times) {
  static const Entry* const entry = find("copy");
  int64_t count;
  if (along.view.ndim == kMaxDims || __builtin_mul_overflow(along.view.shape[along.axis], times, &count)) return nullptr;
  Array* out = new_result(x, along, count);
  if (!out) return nullptr;
  View &from = along.view, to;
  from.data = x->memory()->data + span(x->code, x->offset);
  const int inner = along.axis + 1, last = from.ndim++;
  for (int d = last; d > inner; --d) {
    from.shape[d] = from.shape[d - 1];
    from.strides[d] = from.strides[d - 1];
  }
  from.shape[inner] = times;
  from.strides[inner] = 0;
  copy_view(to, from);
  to.data = out->memory()->data;
  int64_t step = item_size(to.dtype);
  for (int d = last; d >= 0; step *= std::max<int64_t>(to.shape[d--], 1)) to.strides[d] = step;
  Array* holders[2] = {x, out};
  const Attrs attrs;
  return finish(out, run_kernel(*entry, Call{&from, 1, &to, &attrs}, holders, 2, 2 * span(out->code, out->size)));
}

// The numbers as 64-bit integers; false: exception.
bool read_counts(const Lent& lent, int64_t* to) {
  static const Entry* const entry = find("copy");
  View out;
  copy_view(out, lent.view);
  out.data = reinterpret_cast<char*>(to);
  out.dtype = DType::i64;
  if (out.ndim) out.strides[0] = 8;
  Array* holder = lent.array;
  const Attrs attrs;
  return run_kernel(*entry, Call{&lent.view, 1, &out, &attrs}, &holder, holder ? 1 : 0, lent.view.size() * 8, 0);
}

// Each slice as often as its own number says: a take by indices, which are a running count of the slices that begin.
PyObject* repeat_each(Array* x, Along& along, const int64_t* counts, int64_t n) {
  static const Entry* const entry = find("take");
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i)
    if (counts[i] < 0 || __builtin_add_overflow(total, counts[i], &total) || total > INT64_MAX / 1024) return nullptr;
  Array* out = new_result(x, along, total);
  Storage* space = out ? storage_new(total * 8 + 8) : nullptr;  // of the pool, which knows how much there may be
  if (!space) {
    Py_XDECREF(out);
    PyErr_Clear();  // Python says which part does not fit
    return nullptr;
  }
  auto* indices = reinterpret_cast<int64_t*>(space->data);
  std::fill_n(indices, total + 1, 0);
  for (int64_t i = 0, start = 0; i + 1 < n; ++i) ++indices[start += counts[i]];
  for (int64_t i = 1; i < total; ++i) indices[i] += indices[i - 1];
  View in[2], to;
  copy_view(in[0], along.view);
  in[0].data = x->memory()->data + span(x->code, x->offset);
  in[1].data = space->data;
  in[1].dtype = DType::i64;
  in[1].ndim = 1;
  in[1].shape[0] = total;
  in[1].strides[0] = 8;
  fill_view(out, to);
  Attrs attrs;
  attrs.whole[0] = along.axis;
  Array* holders[2] = {x, out};
  const int64_t bytes = span(x->code, x->size) + span(out->code, out->size);
  const bool done = run_kernel(*entry, Call{in, 2, &to, &attrs}, holders, 2, bytes);
  Py_DECREF(space);
  return finish(out, done);
}

PyObject* repeat_by(Array* x, Along& along, PyObject* repeats) {
  Lent lent;
  if (!lent.borrow(repeats)) return nullptr;
  const int64_t n = lent.view.size(), slices = along.view.shape[along.axis];
  const bool whole = lent.view.dtype >= DType::i8 && lent.view.dtype <= DType::u64;
  PyObject* result = nullptr;
  const Workspace space(n * 8 + 8, Need::may);
  auto* counts = space.as<int64_t>();
  if (whole && lent.view.ndim <= 1 && (n == 1 || n == slices) && counts && read_counts(lent, counts)) {
    if (n == 1) {
      if (counts[0] >= 0) result = repeat_all(x, along, counts[0]);
    } else {
      result = repeat_each(x, along, counts, n);
    }
  }
  lent.let_go();
  return result;
}

}  // namespace

PyObject* repeat_natively(PyObject* given, PyObject* repeats, PyObject* axis) {
  if (!globals.fast || globals.recorder || !is_indexable(given)) return nullptr;
  auto* x = reinterpret_cast<Array*>(given);
  Along along;
  if (!x->native || !along.read(x, axis)) return nullptr;
  if (!PyLong_CheckExact(repeats)) return repeat_by(x, along, repeats);
  int overflow;
  const int64_t times = PyLong_AsLongLongAndOverflow(repeats, &overflow);
  return overflow || times < 0 ? nullptr : repeat_all(x, along, times);
}

}  // namespace tritium::python
