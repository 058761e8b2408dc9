// Calls that join any number of tensors: the shape of the result, and the calls of a kernel that fill it.
// What does not fit is left to Python, which names the mistake.
#include "join.h"

#include <algorithm>

namespace tritium::python {
namespace {

bool is_flat(const Entry& entry, const Attrs& attrs) { return entry.join == Join::along && (attrs.absent & 1); }

// The axis of the result along which the operands lie; -1: there is none.
int axis_in(const Attrs& attrs, int ndim) {
  const int64_t axis = attrs.whole[0];
  if (axis < -ndim || axis >= ndim) return -1;
  return static_cast<int>(axis < 0 ? axis + ndim : axis);
}

// Whether two tensors have one shape, apart from one axis; -1: in all of them.
bool alike(Array* a, Array* b, int except) {
  if (a->ndim() != b->ndim()) return false;
  for (int d = 0; d < a->ndim(); ++d)
    if (d != except && a->shape()[d] != b->shape()[d]) return false;
  return true;
}

bool add_length(int64_t& length, int64_t more) { return !__builtin_add_overflow(length, more, &length); }

Array* operand(PyObject* const* operands, Py_ssize_t i) { return reinterpret_cast<Array*>(operands[i]); }

}  // namespace

bool join_shape(const Entry& entry, const Attrs& attrs, const Given& g, int code, Fit& fit) {
  Array* first = operand(g.operands, 0);
  const bool flat = is_flat(entry, attrs), anew = entry.join == Join::anew;
  fit.ndim = flat ? 1 : first->ndim() + anew;
  if (fit.ndim > kMaxDims) return false;
  const int axis = flat ? 0 : axis_in(attrs, fit.ndim);
  if (axis < 0) return false;
  int64_t length = 0;
  for (Py_ssize_t i = 0; i < g.count; ++i) {
    Array* a = operand(g.operands, i);
    if (!flat && !alike(first, a, anew ? -1 : axis)) return false;
    if (!add_length(length, flat ? a->size : anew ? 1 : a->shape()[axis])) return false;
    fit.touched += span(a->code, a->size);
  }
  for (int d = 0, from = 0; d < fit.ndim && !flat; ++d) {
    if (d == axis) {
      from += !anew;
    } else {
      fit.dims[d] = first->shape()[from++];
    }
  }
  fit.dims[axis] = length;
  int64_t size = 1;
  for (int d = 0; d < fit.ndim; ++d)
    if (__builtin_mul_overflow(size, fit.dims[d], &size) || size > INT64_MAX / 16) return false;
  fit.nbytes = span(code, size);
  fit.touched += fit.nbytes;
  return true;
}

bool run_join(const Entry& entry, const Attrs& attrs, PyObject* const* operands, Py_ssize_t count, Array* out) {
  const bool flat = is_flat(entry, attrs);
  const int axis = flat ? 0 : axis_in(attrs, out->ndim());
  View in[kMaxInputs], part;
  Array* holders[kMaxInputs + 1];
  int64_t before = 0;  // places of the axis that are filled
  for (Py_ssize_t first = 0; first < count; first += kMaxInputs) {
    const int n = static_cast<int>(std::min<Py_ssize_t>(kMaxInputs, count - first));
    // Seen anew in every run: meanwhile other threads may have given a tensor other memory.
    fill_view(out, part);
    part.data += before * part.strides[axis];
    int64_t bytes = 0;
    for (int i = 0; i < n; ++i) {
      Array* a = holders[i] = operand(operands, first + i);
      fill_view(a, in[i]);
      bytes += 2 * span(a->code, a->size);
      before += flat ? a->size : entry.join == Join::anew ? 1 : a->shape()[axis];
    }
    holders[n] = out;
    if (!run_kernel(entry, Call{in, n, &part, &attrs}, holders, n + 1, bytes)) return false;
  }
  return true;
}

}  // namespace tritium::python
