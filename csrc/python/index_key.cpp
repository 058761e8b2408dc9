// Keys of x[key] as NumPy reads them: ints, slices, None, an ellipsis, tensors and lists of integers, masks.
// What it does not take is left to Python, which names the mistake.
#include "index_key.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tritium::python {
namespace {

// The DType of a buffer's elements; -1: native code does not know it.
int code_of(const Py_buffer& b) {
  const char* format = b.format ? b.format : "B";
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (!format[0] || format[1]) return -1;
  const int log = b.itemsize == 1 ? 0 : b.itemsize == 2 ? 1 : b.itemsize == 4 ? 2 : b.itemsize == 8 ? 3 : -1;
  if (log < 0) return -1;
  switch (*format) {
    case '?': return static_cast<int>(DType::b8);
    case 'b': case 'h': case 'i': case 'l': case 'q': return static_cast<int>(DType::i8) + log;
    case 'B': case 'H': case 'I': case 'L': case 'Q': return static_cast<int>(DType::u8) + log;
    case 'e': return static_cast<int>(DType::f16);
    case 'f': return static_cast<int>(DType::f32);
    case 'd': return static_cast<int>(DType::f64);
    default: return -1;
  }
}

bool is_ndarray(PyTypeObject* type) {
  static PyTypeObject* known = nullptr;
  if (type == known) return true;
  if (known || std::strcmp(type->tp_name, "numpy.ndarray") != 0) return false;
  known = reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(type)));
  return true;
}

bool is_integer(DType t) { return t >= DType::i8 && t <= DType::u64; }

View vector_of(char* data, DType dtype, int64_t n) {
  View v;
  v.data = data;
  v.dtype = dtype;
  v.ndim = 1;
  v.shape[0] = n;
  v.strides[0] = item_size(dtype);
  return v;
}

int64_t whole_at(const View& v) {
  int64_t value = 0;
  switch (v.dtype) {
    case DType::i8: return *reinterpret_cast<const std::int8_t*>(v.data);
    case DType::i16: return *reinterpret_cast<const std::int16_t*>(v.data);
    case DType::i32: return *reinterpret_cast<const std::int32_t*>(v.data);
    default: std::memcpy(&value, v.data, static_cast<std::size_t>(item_size(v.dtype)));
  }
  return value;
}

}  // namespace

bool Lent::borrow(PyObject* o) {
  if (Py_TYPE(o) == globals.tensor_type) {
    auto* a = reinterpret_cast<Array*>(o);
    if (!a->plain()) return false;
    fill_view(a, view);
    array = a;
    return true;
  }
  if (!is_ndarray(Py_TYPE(o)) || PyObject_GetBuffer(o, &buffer, PyBUF_STRIDES | PyBUF_FORMAT) < 0) {
    PyErr_Clear();  // a dtype without a buffer, such as dates: Python names it
    return false;
  }
  holds = true;
  const int code = code_of(buffer);
  if (code < 0 || buffer.ndim > kMaxDims) {
    let_go();
    return false;
  }
  view.data = static_cast<char*>(buffer.buf);
  view.dtype = static_cast<DType>(code);
  view.ndim = buffer.ndim;
  for (int d = 0; d < view.ndim; ++d) {
    view.shape[d] = buffer.shape[d];
    view.strides[d] = buffer.strides[d];
  }
  return true;
}

bool count_nonzero(const View& x, Array* holder, int64_t* starts) {
  static const Entry* const entry = find("nonzero_count");
  const int64_t n = stretches(x);
  View out = vector_of(reinterpret_cast<char*>(starts + 1), DType::i64, n);
  Attrs attrs;
  attrs.whole[0] = kStretch;
  const int64_t bytes = x.size() * item_size(x.dtype);
  if (!run_kernel(*entry, Call{&x, 1, &out, &attrs}, &holder, holder ? 1 : 0, bytes, 0)) return false;
  starts[0] = 0;
  for (int64_t i = 0; i < n; ++i) starts[i + 1] += starts[i];
  return true;
}

bool find_nonzero(const View& x, Array* holder, const int64_t* starts, int64_t* to, Array* out) {
  static const Entry* const entry = find("nonzero_find");
  const int64_t n = stretches(x), count = starts[n];
  View in[2];
  copy_view(in[0], x);
  copy_view(in[1], vector_of(reinterpret_cast<char*>(const_cast<int64_t*>(starts)), DType::i64, n + 1));
  View rows = vector_of(reinterpret_cast<char*>(to), DType::i64, count);
  rows.ndim = 2;
  rows.shape[0] = std::max(x.ndim, 1);
  rows.shape[1] = count;
  rows.strides[0] = count * 8;
  rows.strides[1] = 8;
  Attrs attrs;
  attrs.whole[0] = kStretch;
  Array* holders[2];
  int held = 0;
  if (holder) holders[held++] = holder;
  if (out) holders[held++] = out;
  const int64_t bytes = x.size() * item_size(x.dtype) + rows.size() * 8;
  return run_kernel(*entry, Call{in, 2, &rows, &attrs}, holders, held, bytes, out ? 1 : 0);
}

void IndexKey::let_go() {
  if (!tensors) return;
  for (int i = 0; i < tensors->lent_count; ++i) tensors->lent[i].let_go();
}

bool IndexKey::add(int64_t n, int64_t step) {
  if (ndim == kMaxDims) return false;
  dims[ndim] = n;
  steps[ndim++] = step;
  return true;
}

bool IndexKey::add_whole() {
  const int d = axis_++;
  return add(of->shape()[d], of->strides()[d]);
}

bool IndexKey::add_index(int64_t n, int64_t step, const View& index, int source) {
  IndexTensors& t = *tensors;
  if (t.count == kMaxIndexTensors || !add(n, step)) return false;
  t.at |= 1u << (ndim - 1);
  t.source[t.count] = static_cast<std::int8_t>(source);
  copy_view(t.views[t.count++], index);
  return true;
}

// Notes whether the next part picks by an index (a tensor, a mask or an int) or lies between such parts.
void IndexKey::enter(bool picks) {
  if (!picks) {
    if (run_ == Run::open) run_ = Run::closed;
  } else if (run_ == Run::none) {
    run_ = Run::open;
    first_ = ndim;
  } else if (run_ == Run::closed) {
    run_ = Run::apart;
  }
}

bool IndexKey::take_int(int64_t i) {
  if (axis_ >= of->ndim()) return false;
  const int64_t n = of->shape()[axis_];
  if (i < -n || i >= n) return false;
  enter(true);
  shift += (i < 0 ? i + n : i) * of->strides()[axis_++];
  return true;
}

bool IndexKey::take_slice(PyObject* slice) {
  if (axis_ >= of->ndim()) return false;
  const int64_t n = of->shape()[axis_], stride = of->strides()[axis_];
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(slice, &start, &stop, &step) < 0) {
    PyErr_Clear();
    return false;
  }
  const Py_ssize_t count = PySlice_AdjustIndices(n, &start, &stop, step);
  const Py_ssize_t reach = n > 0 ? n : 1;  // a longer step names no more elements, and its stride may not fit in 64 bits
  enter(false);
  if (count) shift += start * stride;
  ++axis_;
  return add(count, std::clamp(step, -reach, reach) * stride);
}

char* IndexKey::room(int64_t nbytes) {
  IndexTensors& t = *tensors;
  const int64_t needed = (std::max<int64_t>(nbytes, 8) + 7) / 8 * 8;
  if (needed <= static_cast<int64_t>(sizeof t.small) - t.small_used)
    return t.small + std::exchange(t.small_used, t.small_used + needed);
  if (t.space_count == kMaxIndexTensors) return nullptr;
  t.spaces[t.space_count] = std::make_unique<Workspace>(needed, Need::may);
  return t.spaces[t.space_count++]->data();
}

// A mask without axes picks the whole along a new axis, once or not at all.
bool IndexKey::take_flag(bool truth) {
  enter(true);
  char* zero = room(8);
  if (!zero) return false;
  std::memset(zero, 0, 8);
  return add_index(1, 0, vector_of(zero, DType::i64, truth));
}

// The indices of a mask: of one axis where those it covers lie as one in x, else one vector for each.
bool IndexKey::take_mask(const View& mask, Array* holder) {
  if (mask.ndim == 0) return take_flag(*mask.data != 0);
  if (axis_ + mask.ndim > of->ndim()) return false;
  const int64_t *shape = of->shape() + axis_, *strides = of->strides() + axis_;
  if (!std::equal(mask.shape, mask.shape + mask.ndim, shape)) return false;
  const int64_t size = mask.size();
  View flat;
  copy_view(flat, mask);
  bool joins = size > 0, dense = true;
  for (int d = mask.ndim - 1; joins && d > 0; --d) joins = strides[d - 1] == strides[d] * shape[d];
  for (int d = mask.ndim - 1; d > 0; --d) dense = dense && mask.strides[d - 1] == mask.strides[d] * mask.shape[d];
  if (joins && dense) {
    flat.ndim = 1;
    flat.shape[0] = size;
    flat.strides[0] = mask.strides[mask.ndim - 1];
  }
  auto* starts = reinterpret_cast<int64_t*>(room((stretches(mask) + 1) * 8));
  if (!starts || !count_nonzero(flat, holder, starts)) return false;
  const int64_t count = starts[stretches(mask)];
  auto* places = reinterpret_cast<int64_t*>(room(count * flat.ndim * 8));
  if (!places || !find_nonzero(flat, holder, starts, places, nullptr)) return false;
  enter(true);
  copy_view(tensors->mask, mask);
  axis_ += mask.ndim;
  const auto row = [&](int d) { return vector_of(reinterpret_cast<char*>(places + d * count), DType::i64, count); };
  if (flat.ndim == 1) return add_index(flat.shape[0], strides[mask.ndim - 1], row(0));
  for (int d = 0; d < flat.ndim; ++d)
    if (!add_index(shape[d], strides[d], row(d))) return false;
  return true;
}

bool IndexKey::take_tensor(PyObject* part) {
  IndexTensors& t = *tensors;
  if (t.lent_count == kMaxIndexTensors) return false;
  Lent& lent = t.lent[t.lent_count];
  if (!lent.borrow(part)) return false;
  ++t.lent_count;
  const View& v = lent.view;
  if (v.dtype == DType::b8) return take_mask(v, lent.array);
  if (!is_integer(v.dtype) || axis_ >= of->ndim()) return false;
  if (v.ndim == 0) {
    const int64_t i = whole_at(v);
    return !(v.dtype == DType::u64 && i < 0) && take_int(i);
  }
  enter(true);
  const int d = axis_++;
  return add_index(of->shape()[d], of->strides()[d], v, t.lent_count - 1);
}

// A list of ints, or of bools. Others, nested ones too, are for Python.
bool IndexKey::take_list(PyObject* list) {
  const Py_ssize_t n = PyList_GET_SIZE(list);
  const bool mask = n > 0 && PyBool_Check(PyList_GET_ITEM(list, 0));
  char* data = room(n * 8);
  if (!data) return false;
  for (Py_ssize_t i = 0; i < n; ++i) {
    PyObject* item = PyList_GET_ITEM(list, i);
    int overflow = 0;
    if (mask ? !PyBool_Check(item) : Py_TYPE(item) != &PyLong_Type) return false;
    if (mask) {
      data[i] = item == Py_True;
    } else {
      const int64_t value = PyLong_AsLongLongAndOverflow(item, &overflow);
      if (overflow) return false;
      std::memcpy(data + i * 8, &value, 8);
    }
  }
  if (mask) return take_mask(vector_of(data, DType::b8, n), nullptr);
  if (axis_ >= of->ndim()) return false;
  enter(true);
  const int d = axis_++;
  return add_index(of->shape()[d], of->strides()[d], vector_of(data, DType::i64, n));
}

bool IndexKey::take(PyObject* part) {
  PyTypeObject* type = Py_TYPE(part);
  if (part == Py_None) {
    enter(false);
    return add(1, 0);
  }
  if (type == &PyLong_Type) {
    int overflow;
    const int64_t i = PyLong_AsLongLongAndOverflow(part, &overflow);
    return !overflow && take_int(i);
  }
  if (type == &PySlice_Type) return take_slice(part);
  if (type == &PyBool_Type) return take_flag(part == Py_True);
  if (type == &PyList_Type) return take_list(part);
  return take_tensor(part);
}

namespace {

// The axes of x that a part uses up; -1: it is none that is read here.
int axes_of(PyObject* part) {
  PyTypeObject* type = Py_TYPE(part);
  if (part == Py_None || type == &PyBool_Type) return 0;
  if (type == &PyLong_Type || type == &PySlice_Type || type == &PyList_Type) return 1;
  if (type == globals.tensor_type) {
    auto* a = reinterpret_cast<Array*>(part);
    return a->plain() ? a->code == static_cast<int>(DType::b8) ? a->ndim() : 1 : -1;
  }
  if (!is_ndarray(type)) return -1;
  Lent lent;
  if (!lent.borrow(part)) return -1;
  const int axes = lent.view.dtype == DType::b8 ? lent.view.ndim : 1;
  lent.let_go();
  return axes;
}

bool is_plain(PyObject* part) {
  PyTypeObject* type = Py_TYPE(part);
  return part == Py_None || part == Py_Ellipsis || type == &PyLong_Type || type == &PySlice_Type;
}

}  // namespace

bool IndexKey::read(PyObject* key) {
  PyObject* const* parts = &key;
  Py_ssize_t count = 1;
  if (Py_TYPE(key) == &PyTuple_Type) {
    parts = &PyTuple_GET_ITEM(key, 0);
    count = PyTuple_GET_SIZE(key);
  }
  Py_ssize_t used = 0, ellipses = 0;
  bool plain = true;
  for (Py_ssize_t i = 0; i < count; ++i) {
    ellipses += parts[i] == Py_Ellipsis;
    plain = plain && is_plain(parts[i]);
    const int axes = parts[i] == Py_Ellipsis ? 0 : axes_of(parts[i]);
    if (axes < 0) return false;
    used += axes;
  }
  if (ellipses > 1 || used > of->ndim()) return false;
  ellipsis = ellipses > 0;
  if (!plain) tensors.emplace();
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (parts[i] == Py_Ellipsis) {
      enter(false);
      for (Py_ssize_t rest = of->ndim() - used; rest > 0; --rest)
        if (!add_whole()) return false;
    } else if (!take(parts[i])) {
      return false;
    }
  }
  enter(false);
  while (axis_ < of->ndim())
    if (!add_whole()) return false;
  if (plain) return true;
  if (tensors->count == 0) tensors.reset();  // tensors without axes are ints
  if (!tensors) return true;
  tensors->position = run_ == Run::apart ? 0 : first_;
  tensors->mask_alone = count == 1 && tensors->mask.data;
  tensors->by_element = tensors->mask_alone ? tensors->mask.ndim == of->ndim() : count == 1 && of->ndim() == 0;
  return true;
}

void IndexKey::refresh() {
  for (int k = 0; k < tensors->count; ++k) {
    if (tensors->source[k] < 0) continue;
    Array* a = tensors->lent[tensors->source[k]].array;
    if (a) tensors->views[k].data = a->memory()->data + span(a->code, a->offset);
  }
}

bool IndexKey::shape(int& n, int64_t* to) const {
  const IndexTensors& t = *tensors;
  int block = 0;
  for (int k = 0; k < t.count; ++k) block = std::max(block, t.views[k].ndim);
  n = ndim - t.count + block;
  if (n > kMaxDims) return false;
  int64_t* const own = to + t.position;
  std::fill_n(own, block, 1);
  for (int k = 0; k < t.count; ++k) {
    const View& v = t.views[k];
    for (int d = 0; d < v.ndim; ++d) {
      int64_t& size = own[block - v.ndim + d];
      if (size == 1) {
        size = v.shape[d];
      } else if (v.shape[d] != 1 && v.shape[d] != size) {
        return false;
      }
    }
  }
  for (int d = 0, others = 0; d < ndim; ++d) {
    if (t.at >> d & 1) continue;
    to[others < t.position ? others : others + block] = dims[d];
    ++others;
  }
  return true;
}

void IndexKey::see(View& v) const {
  v.dtype = static_cast<DType>(of->code);
  v.ndim = ndim;
  v.data = of->memory()->data + span(of->code, of->offset + shift);
  for (int d = 0; d < ndim; ++d) {
    v.shape[d] = dims[d];
    v.strides[d] = span(of->code, steps[d]);
  }
}

}  // namespace tritium::python
