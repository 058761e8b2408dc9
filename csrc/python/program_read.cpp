// Reads a program from Python and checks it: every operand lies inside its memory, every kernel takes its dtypes.
// Knows nothing of how a program runs, and not which shapes a kernel wants: those are the word of whoever made it.
#include <algorithm>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include "program.h"

namespace tritium::python {
namespace {

constexpr int64_t kFarthest = int64_t{1} << 60;  // bytes; further apart than any memory

struct Operand {
  int base;
  int64_t offset;  // in bytes
  Layout layout;
};

// Whether the elements fill the bytes they reach, each in a place of its own.
bool is_dense(const Layout& of) {
  int64_t step = 1;
  for (int d = 0; d < of.ndim;) {
    const bool next = of.shape[d] > 1 && std::abs(of.strides[d]) == step;
    if (next) step *= of.shape[d];
    d = next ? 0 : d + 1;  // the axis of the next larger stride may stand before this one
  }
  return is_plain(static_cast<DType>(of.code)) && step == of.size;
}

long long shown(int64_t value) { return value; }

class Reader {
 public:
  Reader(Plan& plan, const std::vector<int64_t>* sizes) : plan_(plan), sizes_(sizes) {}
  bool read(PyObject* args, PyObject* kwargs);

 private:
  bool wrong(PyObject* type, const char* format, ...);
  bool each(PyObject* given, const char* what, bool (Reader::*read_one)(PyObject*));
  PyObject* keep(PyObject* made);
  bool read_integer(PyObject* given, int64_t& to);
  PyObject* settle(PyObject* value);
  bool read_layout(PyObject* dtype, PyObject* shape, PyObject* strides, Layout& to);
  bool read_ints(PyObject* given, const char* what, int64_t* to, int& n);
  bool reach(const Layout& of, Range& to);
  bool check_inside(const Layout& layout, int base, int64_t offset);

  bool read_argument(PyObject* item);
  bool read_captured(PyObject* item);
  bool read_constants(PyObject* given);
  bool read_operand(PyObject* item);
  bool read_step(PyObject* item);
  bool read_result(PyObject* item);
  bool read_fresh(PyObject* item, Result& to);
  bool read_same(PyObject* item, Result& to);
  bool read_clone(PyObject* item, Result& to);
  bool read_returned(PyObject* item, Result& to);
  bool read_seen(PyObject* item, Result& to);
  bool check_result(const Result& r, int base);
  bool read_indices(PyObject* given, const char* what, int lowest, int most, std::vector<int>& to);
  bool read_attrs(const Entry& entry, PyObject* attrs, int ndim, Attrs& to);
  bool read_python(PyObject* kernel, PyObject* attrs, const std::vector<int>& operands);
  bool check_written(const Operand& to);
  bool check_dtype(const Entry& entry, const int* in, int nin, int out);
  void add_view(int operand);
  void sort_patches();
  int argument_bases() const { return kFirstArgument + static_cast<int>(plan_.args.size()); }
  int captured_bases() const { return argument_bases() + static_cast<int>(plan_.captured.size()); }
  // The layout of an argument or a captured tensor; nullptr: the base is something else.
  const Layout* whole(int base) const;

  Plan& plan_;
  const std::vector<int64_t>* sizes_;  // by slot: the values of sizes that vary; nullptr: none does
  const char* what_ = "";  // what is being read, for messages
  int index_ = 0;
  const char* kernel_ = nullptr;  // of the step that is being read
  std::vector<Layout> captured_;
  std::vector<Operand> operands_;
  std::vector<std::pair<int, Patch>> patches_;
};

// An exception that begins with what is being read: "Program: step 3 (add) ...". Always false.
bool Reader::wrong(PyObject* type, const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  PyObject* text = PyUnicode_FromFormatV(format, rest);
  va_end(rest);
  if (text && kernel_) {
    PyErr_Format(type, "Program: %s %d (%s) %U", what_, index_, kernel_, text);
  } else if (text) {
    PyErr_Format(type, "Program: %s %d %U", what_, index_, text);
  }
  Py_XDECREF(text);
  return false;
}

// Reads every item of a sequence; what goes wrong is reported under its number.
bool Reader::each(PyObject* given, const char* what, bool (Reader::*read_one)(PyObject*)) {
  PyObject* items = PySequence_Tuple(given);  // of our own: reading may run Python code
  if (!items) return false;
  bool good = true;
  what_ = what;
  for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(items); ++i) {
    index_ = static_cast<int>(i);
    kernel_ = nullptr;
    PyObject* item = PyTuple_GET_ITEM(items, i);
    good = PyTuple_Check(item) || is_array(item) || wrong(PyExc_TypeError, "is a %.100s.", Py_TYPE(item)->tp_name);
    good = good && (this->*read_one)(item);
  }
  Py_DECREF(items);
  return good;
}

// Takes over a new reference.
PyObject* Reader::keep(PyObject* made) {
  if (made) plan_.kept.push_back(made);
  return made;
}

// An integer, or the value of a size that varies.
bool Reader::read_integer(PyObject* given, int64_t& to) {
  if (!sizes_ || !is_size(given)) {
    to = PyLong_AsLongLong(given);
    return to != -1 || !PyErr_Occurred();
  }
  int64_t slot;
  if (!size_attribute(given, globals.size_slot, slot)) return false;
  if (slot < 0 || slot >= static_cast<int64_t>(sizes_->size()))
    return wrong(PyExc_ValueError, "has a size that varies in slot %lld; there are %zu.", shown(slot), sizes_->size());
  to = (*sizes_)[static_cast<std::size_t>(slot)];
  return true;
}

// An attribute with the values of its sizes that vary, in tuples too; a new reference, or nullptr with an exception.
PyObject* Reader::settle(PyObject* value) {
  int64_t number;
  if (sizes_ && is_size(value)) return read_integer(value, number) ? PyLong_FromLongLong(number) : nullptr;
  if (!sizes_ || !PyTuple_CheckExact(value)) return Py_NewRef(value);
  if (Py_EnterRecursiveCall(" in a nested attribute")) return nullptr;
  PyObject* settled = PyTuple_New(PyTuple_GET_SIZE(value));
  for (Py_ssize_t i = 0; settled && i < PyTuple_GET_SIZE(value); ++i) {
    PyObject* part = settle(PyTuple_GET_ITEM(value, i));
    if (part) {
      PyTuple_SET_ITEM(settled, i, part);
    } else {
      Py_CLEAR(settled);
    }
  }
  Py_LeaveRecursiveCall();
  return settled;
}

bool Reader::read_ints(PyObject* given, const char* what, int64_t* to, int& n) {
  PyObject* items = PySequence_Tuple(given);
  if (!items) return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(items);
  bool good = count <= kMaxDims ||
              wrong(PyExc_ValueError, "has a %s of %zd axes; at most %d are possible.", what, count, kMaxDims);
  n = static_cast<int>(count);
  for (int d = 0; good && d < n; ++d) {
    good = read_integer(PyTuple_GET_ITEM(items, d), to[d]);
  }
  Py_DECREF(items);
  return good;
}

bool Reader::read_layout(PyObject* dtype, PyObject* shape, PyObject* strides, Layout& to) {
  to.code = dtype_code(dtype);
  if (to.code == -2) return false;
  if (to.code < 0) return wrong(PyExc_TypeError, "has the dtype %R, which native code does not know.", dtype);
  int steps;
  if (!read_ints(shape, "shape", to.shape, to.ndim) || !read_ints(strides, "strides", to.strides, steps)) return false;
  if (steps != to.ndim)
    return wrong(PyExc_ValueError, "has %d sizes but %d strides.", to.ndim, steps);
  int64_t padded = 1;  // without the zeros: what contiguous_strides multiplies must fit too
  to.size = 1;
  for (int d = 0; d < to.ndim; ++d) {
    const int64_t n = to.shape[d];
    const bool over = __builtin_mul_overflow(padded, std::max<int64_t>(n, 1), &padded);
    if (n < 0 || over || padded > kFarthest / 128) return wrong(PyExc_ValueError, "has no possible shape: %R.", shape);
    to.size *= n;
  }
  to.contiguous = is_contiguous(to.ndim, to.shape, to.strides, to.code);
  plan_.kept.push_back(Py_NewRef(dtype));
  to.dtype = dtype;
  to.shape_tuple = keep(int_tuple(to.shape, to.ndim));
  to.strides_tuple = keep(int_tuple(to.strides, to.ndim));
  return to.shape_tuple && to.strides_tuple;
}

// The bytes a layout reaches. The axes inside the tiles of a packed dtype lie as they do in contiguous memory.
bool Reader::reach(const Layout& of, Range& to) {
  to = {};
  if (of.size == 0) return true;
  const Tile t = tile(static_cast<DType>(of.code));
  const bool packed = !is_plain(static_cast<DType>(of.code));
  const int64_t unit = t.rows * t.block;
  const int inner = packed ? std::min(of.ndim, t.rows > 1 ? 2 : 1) : 0;
  int64_t contiguous[kMaxDims];
  contiguous_strides(of.ndim, of.shape, of.code, contiguous);
  __int128 low = 0, high = 0;
  bool whole = true;
  for (int d = 0; d < of.ndim - inner; ++d) {
    const __int128 last = static_cast<__int128>(of.shape[d] - 1) * of.strides[d];
    whole = whole && (!packed || (of.strides[d] >= 0 && of.strides[d] % unit == 0));
    (last < 0 ? low : high) += last;
  }
  for (int d = of.ndim - inner; d < of.ndim; ++d) whole = whole && of.strides[d] == contiguous[d];
  high += packed ? contiguous_strides(inner, of.shape + of.ndim - inner, of.code, contiguous) : 1;
  if (!whole)
    return wrong(PyExc_ValueError, "has strides that cut through the blocks of %S.", of.dtype);
  low = low / unit * t.nbytes;
  high = high / unit * t.nbytes;
  if (low < -kFarthest || high > kFarthest)
    return wrong(PyExc_ValueError, "has strides that no memory has.");
  to = {static_cast<int64_t>(low), static_cast<int64_t>(high)};
  return true;
}

const Layout* Reader::whole(int base) const {
  if (base >= kFirstArgument && base < argument_bases()) return &plan_.args[base - kFirstArgument].layout;
  if (base >= argument_bases() && base < captured_bases()) return &captured_[base - argument_bases()];
  return nullptr;
}

bool Reader::check_inside(const Layout& layout, int base, int64_t offset) {
  Range reached;
  if (!reach(layout, reached)) return false;
  const Range& range = plan_.ranges[base];
  const int64_t step = std::min<int64_t>(tile(static_cast<DType>(layout.code)).nbytes, kAlignment);
  const bool begins = offset >= range.low && offset <= range.high;
  if (!begins || reached.low + offset < range.low || reached.high + offset > range.high)
    return wrong(PyExc_ValueError, "reaches bytes %lld to %lld of base %d, which has %lld to %lld.",
                 shown(offset + reached.low), shown(offset + reached.high), base, shown(range.low), shown(range.high));
  if (offset % step != 0)
    return wrong(PyExc_ValueError, "begins at byte %lld; %S needs a multiple of %lld.", shown(offset), layout.dtype,
                 shown(step));
  if (const Layout* of = whole(base); of && of->code != layout.code)
    return wrong(PyExc_ValueError, "sees %S as %S.", of->dtype, layout.dtype);
  return true;
}

bool Reader::read_argument(PyObject* item) {
  PyObject *dtype, *shape, *strides;
  int donated;
  Argument a;
  if (!PyArg_ParseTuple(item, "OOOp;an argument is (dtype, shape, strides, donated)", &dtype, &shape, &strides,
                        &donated))
    return false;
  Range range;
  if (!read_layout(dtype, shape, strides, a.layout) || !reach(a.layout, range)) return false;
  a.donated = donated != 0;
  if (donated) plan_.donated.push_back(index_);
  plan_.args.push_back(a);
  plan_.ranges.push_back(range);
  return true;
}

bool Reader::read_captured(PyObject* item) {
  if (!is_array(item) || !reinterpret_cast<Array*>(item)->usable())
    return wrong(PyExc_TypeError, "must be a tensor in CPU memory of a dtype native code knows, given %.100s.",
                 Py_TYPE(item)->tp_name);
  auto* a = reinterpret_cast<Array*>(item);
  Layout layout{a->dtype, nullptr, nullptr, a->code, a->ndim(), a->contiguous, a->size, {}, {}};
  std::copy_n(a->shape(), a->ndim(), layout.shape);
  std::copy_n(a->strides(), a->ndim(), layout.strides);
  Range range;
  if (!reach(layout, range)) return false;
  plan_.kept.push_back(Py_NewRef(item));
  plan_.captured.push_back(a);
  captured_.push_back(layout);
  plan_.ranges.push_back(range);
  return true;
}

bool Reader::read_constants(PyObject* given) {
  char* bytes;
  Py_ssize_t n;
  if (PyBytes_AsStringAndSize(given, &bytes, &n) < 0) return false;
  const std::size_t size = static_cast<std::size_t>(::tritium::whole(std::max<int64_t>(n, 1), kAlignment));
  plan_.constants.reset(static_cast<char*>(::operator new(size, std::align_val_t{kAlignment})));
  std::memcpy(plan_.constants.get(), bytes, static_cast<std::size_t>(n));
  plan_.ranges[kConstants] = {0, n};
  return true;
}

// Where the layout of a result begins in its base, and that it lies inside.
bool Reader::check_result(const Result& r, int base) {
  const Tile t = tile(static_cast<DType>(r.layout.code));
  const int64_t unit = t.rows * t.block;
  if (r.offset % unit != 0 || r.offset > kFarthest / 1024 || r.offset < -kFarthest / 1024)
    return wrong(PyExc_ValueError, "cannot begin at element %lld.", shown(r.offset));
  return check_inside(r.layout, base, r.offset / unit * t.nbytes);
}

// ("new", dtype, shape, strides, offset, nbytes)
bool Reader::read_fresh(PyObject* item, Result& to) {
  PyObject *ignored, *dtype, *shape, *strides, *offset_given, *nbytes_given;
  int64_t offset, nbytes;
  if (!PyArg_ParseTuple(item, "OOOOOO;a result is (\"new\", dtype, shape, strides, offset, nbytes)", &ignored, &dtype,
                        &shape, &strides, &offset_given, &nbytes_given))
    return false;
  if (!read_integer(offset_given, offset) || !read_integer(nbytes_given, nbytes)) return false;
  if (nbytes < 0 || nbytes > kFarthest) return wrong(PyExc_ValueError, "cannot have %lld bytes.", shown(nbytes));
  to.from = static_cast<int>(plan_.ranges.size());
  to.offset = offset;
  to.nbytes = nbytes;
  plan_.ranges.push_back({0, nbytes});
  plan_.fresh.push_back(index_);
  return read_layout(dtype, shape, strides, to.layout) && check_result(to, to.from);
}

// ("same" or "clone", from, dtype, shape, strides, offset)
bool Reader::read_seen(PyObject* item, Result& to) {
  PyObject *ignored, *dtype, *shape, *strides, *offset;
  if (!PyArg_ParseTuple(item, "OiOOOO;a result is (\"same\" or \"clone\", from, dtype, shape, strides, offset)",
                        &ignored, &to.from, &dtype, &shape, &strides, &offset))
    return false;
  if (!read_integer(offset, to.offset)) return false;
  return read_layout(dtype, shape, strides, to.layout);
}

bool Reader::read_same(PyObject* item, Result& to) {
  if (!read_seen(item, to)) return false;
  if (to.from < 0 || to.from >= index_ || plan_.results[to.from].kind != Returns::fresh)
    return wrong(PyExc_ValueError, "is to share the memory of result %d, which is no earlier new one.", to.from);
  return check_result(to, plan_.results[to.from].from);
}

bool Reader::read_clone(PyObject* item, Result& to) {
  if (!read_seen(item, to)) return false;
  if (!whole(to.from))
    return wrong(PyExc_ValueError, "is to be a clone of base %d, which is no argument or captured tensor.", to.from);
  to.late = to.from < argument_bases() && plan_.args[to.from - kFirstArgument].donated;
  return check_result(to, to.from);
}

// ("arg", argument)
bool Reader::read_returned(PyObject* item, Result& to) {
  PyObject* ignored;
  if (!PyArg_ParseTuple(item, "Oi;a result is (\"arg\", argument)", &ignored, &to.from)) return false;
  if (std::find(plan_.donated.begin(), plan_.donated.end(), to.from) != plan_.donated.end()) return true;
  return wrong(PyExc_ValueError, "is to be argument %d, which is not a donated one.", to.from);
}

bool Reader::read_result(PyObject* item) {
  struct Kind {
    const char* name;
    Returns kind;
    bool (Reader::*read)(PyObject*, Result&);
  };
  static constexpr Kind kinds[] = {{"new", Returns::fresh, &Reader::read_fresh},
                                   {"same", Returns::same, &Reader::read_same},
                                   {"clone", Returns::clone, &Reader::read_clone},
                                   {"arg", Returns::argument, &Reader::read_returned}};
  PyObject* name = PyTuple_Check(item) && PyTuple_GET_SIZE(item) ? PyTuple_GET_ITEM(item, 0) : nullptr;
  for (const Kind& k : kinds) {
    if (!name || !PyUnicode_Check(name) || PyUnicode_CompareWithASCIIString(name, k.name) != 0) continue;
    Result r{};
    r.kind = k.kind;
    if (!(this->*k.read)(item, r)) return false;
    plan_.results.push_back(r);
    return true;
  }
  return wrong(PyExc_ValueError, "must begin with \"new\", \"same\", \"clone\" or \"arg\", given %R.", item);
}

bool Reader::read_operand(PyObject* item) {
  PyObject *offset, *dtype, *shape, *strides;
  Operand o;
  if (!PyArg_ParseTuple(item, "iOOOO;an operand is (base, byte_offset, dtype, shape, strides)", &o.base, &offset,
                        &dtype, &shape, &strides))
    return false;
  if (o.base < 0 || o.base >= static_cast<int>(plan_.ranges.size()))
    return wrong(PyExc_ValueError, "has the base %d; there are %zu.", o.base, plan_.ranges.size());
  if (!read_integer(offset, o.offset) || !read_layout(dtype, shape, strides, o.layout) || !check_inside(o.layout, o.base, o.offset)) return false;
  operands_.push_back(o);
  return true;
}

bool Reader::read_indices(PyObject* given, const char* what, int lowest, int most, std::vector<int>& to) {
  PyObject* items = PySequence_Tuple(given);
  if (!items) return false;
  const Py_ssize_t count = PyTuple_GET_SIZE(items);
  bool good = count <= most || wrong(PyExc_ValueError, "has %zd %s; at most %d are possible.", count, what, most);
  for (Py_ssize_t i = 0; good && i < count; ++i) {
    const long at = PyLong_AsLong(PyTuple_GET_ITEM(items, i));
    if (at == -1 && PyErr_Occurred()) {
      good = false;
    } else if (at < lowest || at >= static_cast<long>(operands_.size())) {
      good = wrong(PyExc_ValueError, "names the operand %ld among its %s; there are %zu.", at, what, operands_.size());
    }
    to.push_back(static_cast<int>(at));
  }
  Py_DECREF(items);
  return good;
}

// A step may write the arena, fresh results and donated arguments. Between the elements of an argument there may lie
// those of other tensors, so of such a one only the whole is written.
bool Reader::check_written(const Operand& to) {
  const bool donated = to.base >= kFirstArgument && to.base < argument_bases() &&
                       plan_.args[to.base - kFirstArgument].donated;
  if (to.base != kArena && to.base < captured_bases() && !donated)
    return wrong(PyExc_ValueError, "writes base %d, which may only be read.", to.base);
  for (int d = 0; d < to.layout.ndim; ++d)
    if (to.layout.strides[d] == 0 && to.layout.shape[d] > 1)
      return wrong(PyExc_ValueError, "writes elements that share their place.");
  if (!donated) return true;
  const Layout& all = plan_.args[to.base - kFirstArgument].layout;
  const bool same = to.offset == 0 && to.layout.ndim == all.ndim &&
                    std::equal(all.shape, all.shape + all.ndim, to.layout.shape) &&
                    std::equal(all.strides, all.strides + all.ndim, to.layout.strides);
  return same || is_dense(all) ||
         wrong(PyExc_ValueError, "writes a part of argument %d, which has gaps.", to.base - kFirstArgument);
}

bool Reader::check_dtype(const Entry& entry, const int* in, int nin, int out) {
  int last = out;
  for (int i = 0; i < nin; ++i)
    if (in[i] >= 0 && (entry.decides < 0 || entry.decides == i)) last = in[i];
  const Layout& layout = operands_[last].layout;
  return (entry.dtypes >> layout.code & 1) ||
         wrong(PyExc_TypeError, "has a native kernel that does not take %S.", layout.dtype);
}

void Reader::add_view(int operand) {
  View v;
  if (operand >= 0) {
    const auto& [base, offset, layout] = operands_[operand];
    v.dtype = static_cast<DType>(layout.code);
    v.ndim = layout.ndim;
    const int inner = is_plain(v.dtype) ? 0 : tile(v.dtype).rows > 1 ? 2 : 1;  // axes inside a tile
    for (int d = 0; d < v.ndim; ++d) {
      v.shape[d] = layout.shape[d];
      v.strides[d] = d < v.ndim - inner ? span(layout.code, layout.strides[d]) : 0;
    }
    plan_.touched += span(layout.code, layout.size);
    patches_.push_back({base, {static_cast<int>(plan_.views.size()), offset}});
  }
  plan_.views.push_back(v);
}

bool Reader::read_attrs(const Entry& entry, PyObject* attrs, int ndim, Attrs& to) {
  PyObject* own = keep(PyDict_Copy(attrs));  // keeps what an attribute points to
  PyObject *name, *value;
  for (Py_ssize_t at = 0; own && PyDict_Next(own, &at, &name, &value);) {
    PyObject* settled = keep(settle(value));
    if (!settled || !read_attr(entry, name, settled, ndim, to)) return false;
  }
  return own != nullptr;
}

// A step that calls kernel(*inputs, out=…, **attrs).
bool Reader::read_python(PyObject* kernel, PyObject* attrs, const std::vector<int>& operands) {
  PythonStep s{static_cast<int>(plan_.steps.size()), kernel, nullptr, {}, {}};
  PyObject* own = keep(PyDict_Copy(attrs));
  if (!own || !(s.names = keep(PyTuple_New(PyDict_GET_SIZE(own) + 1)))) return false;
  PyTuple_SET_ITEM(s.names, 0, PyUnicode_InternFromString("out"));
  PyObject *name, *value;
  for (Py_ssize_t at = 0, i = 1; PyDict_Next(own, &at, &name, &value); ++i) {
    if (!PyUnicode_Check(name)) return wrong(PyExc_TypeError, "has an attribute that is no name: %R.", name);
    PyTuple_SET_ITEM(s.names, i, Py_NewRef(name));
    s.values.push_back(value);
  }
  for (const int i : operands) {
    if (i < 0) {
      s.operands.push_back({-1, 0, {}});
    } else {
      s.operands.push_back({operands_[i].base, operands_[i].offset, operands_[i].layout});
    }
  }
  plan_.python.push_back(std::move(s));
  return true;
}

bool Reader::read_step(PyObject* item) {
  PyObject *kernel, *attrs, *inputs, *outputs;
  if (!PyArg_ParseTuple(item, "OO!OO;a step is (kernel, attrs, inputs, outputs)", &kernel, &PyDict_Type, &attrs,
                        &inputs, &outputs))
    return false;
  const bool native = Py_TYPE(kernel) == globals.kernel_type;
  if (!native && !PyCallable_Check(kernel))
    return wrong(PyExc_TypeError, "has a %.100s where a native Kernel or a function is needed.",
                 Py_TYPE(kernel)->tp_name);
  Step s{};
  s.entry = native ? reinterpret_cast<KernelObject*>(kernel)->entry : nullptr;
  kernel_ = native ? s.entry->name : nullptr;
  s.first = static_cast<int>(plan_.views.size());
  std::vector<int> in, out;
  if (!read_indices(inputs, "inputs", -1, native ? kMaxInputs : INT_MAX, in)) return false;
  if (!read_indices(outputs, "outputs", 0, native ? kMaxOutputs : INT_MAX, out)) return false;
  s.nin = static_cast<int>(in.size());
  s.nout = static_cast<int>(out.size());
  if (!s.nout) return wrong(PyExc_ValueError, "has no output.");
  if (native && !check_dtype(*s.entry, in.data(), s.nin, out[0])) return false;
  for (const int o : out)
    if (!check_written(operands_[o])) return false;
  std::vector<int> operands = in;
  operands.insert(operands.end(), out.begin(), out.end());
  const int ndim = s.nin && in[0] >= 0 ? operands_[in[0]].layout.ndim : 0;
  plan_.kept.push_back(Py_NewRef(kernel));
  if (!(native ? read_attrs(*s.entry, attrs, ndim, s.attrs) : read_python(kernel, attrs, operands))) return false;
  for (const int o : operands) add_view(o);
  plan_.steps.push_back(s);
  return true;
}

void Reader::sort_patches() {
  std::stable_sort(patches_.begin(), patches_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  plan_.first_patch.assign(plan_.ranges.size() + 1, 0);
  for (const auto& [base, patch] : patches_) {
    ++plan_.first_patch[base + 1];
    plan_.patches.push_back(patch);
  }
  for (std::size_t b = 0; b < plan_.ranges.size(); ++b) plan_.first_patch[b + 1] += plan_.first_patch[b];
}

bool Reader::read(PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"args",  "captured", "constants", "arena_bytes", "operands",
                                "steps", "results",  "single",    "about",       nullptr};
  PyObject *given, *captured, *constants, *arena, *operands, *steps, *results, *about = Py_None;
  int64_t arena_bytes;
  int single = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOO|pO:Program", const_cast<char**>(names), &given, &captured,
                                   &constants, &arena, &operands, &steps, &results, &single, &about))
    return false;
  if (!read_integer(arena, arena_bytes)) return false;
  if (!globals.tensor_type) PyErr_SetString(PyExc_RuntimeError, "Program: setup was not called.");
  if (arena_bytes < 0 || arena_bytes > kFarthest)
    PyErr_Format(PyExc_ValueError, "Program: an arena of %lld bytes is not possible.", shown(arena_bytes));
  if (PyErr_Occurred()) return false;
  plan_.arena_bytes = arena_bytes;
  plan_.single = single != 0;
  plan_.ranges = {{0, arena_bytes}, {0, 0}};
  const bool good = read_constants(constants) &&
                    each(given, "argument", &Reader::read_argument) &&
                    each(captured, "captured", &Reader::read_captured) &&
                    each(results, "result", &Reader::read_result) &&
                    each(operands, "operand", &Reader::read_operand) &&
                    each(steps, "step", &Reader::read_step);
  if (!good) return false;
  if (single && plan_.results.size() != 1)
    PyErr_Format(PyExc_ValueError, "Program: single is for one result, given %zu.", plan_.results.size());
  const bool named = PyTuple_Check(about) && (PyTuple_GET_SIZE(about) == Py_ssize_t(plan_.steps.size()) + 1 ||
                                              (sizes_ && PyTuple_GET_SIZE(about) == 1));
  if (about != Py_None && !named)
    PyErr_Format(PyExc_ValueError, "Program: about is a tuple for the call and each of %zu steps.", plan_.steps.size());
  if (about != Py_None) plan_.about = keep(Py_NewRef(about));
  sort_patches();
  return !PyErr_Occurred();
}

}  // namespace

std::unique_ptr<Plan> read_plan(PyObject* args, PyObject* kwargs, const std::vector<int64_t>* sizes) {
  try {
    auto plan = std::make_unique<Plan>();
    return Reader(*plan, sizes).read(args, kwargs) ? std::move(plan) : nullptr;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return nullptr;
  }
}

}  // namespace tritium::python
