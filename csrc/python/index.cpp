// x[key] of a plain key (ints, slices, None, an ellipsis, or a tuple of them), computed from the layout alone: no call is
// remembered, so a loop over rows costs the same at any length.
// Knows nothing of rows. What it does not take, or what is out of bounds, is left to Python, which names the mistake.
#include "index.h"

#include <limits>

namespace tritium::python {
namespace {

constexpr int64_t kFirst = std::numeric_limits<int64_t>::min(), kLast = std::numeric_limits<int64_t>::max();

// An int or None of a slice; values beyond 64 bits are cut, as Python's own slices cut them. False: something else.
bool read_bound(PyObject* o, int64_t absent, int64_t& value) {
  value = absent;
  if (o == Py_None) return true;
  if (Py_TYPE(o) != &PyLong_Type) return false;
  int overflow;
  value = PyLong_AsLongLongAndOverflow(o, &overflow);
  if (overflow) value = overflow > 0 ? kLast : kFirst;
  return true;
}

struct Part {
  int64_t start, count, step;
};

// The elements of an axis of n that a slice names. False: for Python, which also refuses a step of 0.
bool read_slice(PySliceObject* s, int64_t n, Part& part) {
  int64_t start, stop, step;
  if (!read_bound(s->step, 1, step) || step == 0) return false;
  const bool down = step < 0;
  if (!read_bound(s->start, down ? kLast : 0, start) || !read_bound(s->stop, down ? kFirst : kLast, stop)) return false;
  const int64_t reach = n > 0 ? n : 1;  // a longer step names no more elements, and its stride may not fit in 64 bits
  step = step > reach ? reach : step < -reach ? -reach : step;
  const auto cut = [&](int64_t at, bool given) {
    if (at < 0 && given) at = at < -n ? -1 : at + n;
    const int64_t low = down ? -1 : 0, high = down ? n - 1 : n;
    return at < low ? low : at > high ? high : at;
  };
  start = cut(start, s->start != Py_None);
  stop = cut(stop, s->stop != Py_None);
  part.start = start;
  part.step = step;
  part.count = down ? (start > stop ? (start - stop - 1) / -step + 1 : 0) : (stop > start ? (stop - start - 1) / step + 1 : 0);
  return true;
}

struct Builder {
  explicit Builder(Array* a) : of(a) {}

  Array* of;
  int axis = 0, ndim = 0;  // axes read, axes of the view
  int64_t shift = 0, dims[kMaxDims], steps[kMaxDims];

  bool add(int64_t n, int64_t step) {
    if (ndim == kMaxDims) return false;
    dims[ndim] = n;
    steps[ndim++] = step;
    return true;
  }

  bool add_whole() {
    const int d = axis++;
    return add(of->shape()[d], of->strides()[d]);
  }

  // False: for Python.
  bool take(PyObject* o) {
    if (o == Py_None) return add(1, 0);
    if (axis >= of->ndim()) return false;
    const int64_t n = of->shape()[axis], stride = of->strides()[axis];
    if (Py_TYPE(o) == &PyLong_Type) {
      int overflow;
      const int64_t i = PyLong_AsLongLongAndOverflow(o, &overflow);
      if (overflow || i < -n || i >= n) return false;
      shift += (i < 0 ? i + n : i) * stride;
      ++axis;
      return true;
    }
    Part part;
    if (Py_TYPE(o) != &PySlice_Type || !read_slice(reinterpret_cast<PySliceObject*>(o), n, part)) return false;
    if (part.count) shift += part.start * stride;
    ++axis;
    return add(part.count, part.step * stride);
  }
};

bool read_key(Builder& b, PyObject* key) {
  PyObject* const* parts = &key;
  Py_ssize_t count = 1;
  if (Py_TYPE(key) == &PyTuple_Type) {
    parts = &PyTuple_GET_ITEM(key, 0);
    count = PyTuple_GET_SIZE(key);
  }
  Py_ssize_t used = 0, ellipses = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    ellipses += parts[i] == Py_Ellipsis;
    used += parts[i] != Py_None && parts[i] != Py_Ellipsis;
  }
  if (ellipses > 1 || used > b.of->ndim()) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (parts[i] == Py_Ellipsis) {
      for (Py_ssize_t rest = b.of->ndim() - used; rest > 0; --rest)
        if (!b.add_whole()) return false;
    } else if (!b.take(parts[i])) {
      return false;
    }
  }
  while (b.axis < b.of->ndim())
    if (!b.add_whole()) return false;
  return true;
}

}  // namespace

PyObject* index_plainly(PyObject* x, PyObject* key) {
  if (Py_TYPE(x) != globals.tensor_type) return nullptr;
  auto* a = reinterpret_cast<Array*>(x);
  if (!a->known() || a->code >= kDTypes || interpreting()) return nullptr;  // of packed dtypes only some parts can be seen
  Builder b(a);
  if (!read_key(b, key)) return nullptr;
  return reinterpret_cast<PyObject*>(array_view(globals.tensor_type, a, b.ndim, b.dims, b.steps, b.shift));
}

}  // namespace tritium::python
