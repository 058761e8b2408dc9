// Kernel: one native kernel as a Python callable, and how attributes and scalars reach it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>

#include "../fault.h"
#include "array.h"
#include "fused_product.h"
#include "join.h"
#include "quiet.h"
#include "tape_object.h"

namespace tritium::python {
namespace {

constexpr int64_t kQuietBytes = 64 << 10;  // with more to do than this the GIL is released

// Where `name` stands in a list such as "seed,low,high"; -1: it does not.
int param_index(const char* params, const char* name) {
  const std::size_t length = std::strlen(name);
  for (int i = 0; *params; ++i) {
    const std::size_t span = std::strcspn(params, ",");
    if (span == length && std::memcmp(params, name, length) == 0) return i;
    params += span + (params[span] == ',');
  }
  return -1;
}

bool add_axis(const Entry& entry, PyObject* value, int ndim, std::uint32_t& axes) {
  const long axis = PyLong_AsLong(value);
  if (axis == -1 && PyErr_Occurred()) return false;
  if (axis < -ndim || axis >= ndim) {
    PyErr_Format(PyExc_IndexError, "%s: axis %ld does not exist in a tensor of %d dimensions.", entry.name, axis, ndim);
    return false;
  }
  axes |= 1u << (axis < 0 ? axis + ndim : axis);
  return true;
}

bool read_axes(const Entry& entry, PyObject* value, int ndim, Attrs& attrs) {
  if (value == Py_None) return true;
  attrs.axes = 0;
  if (!PyTuple_Check(value)) return add_axis(entry, value, ndim, attrs.axes);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
    if (!add_axis(entry, PyTuple_GET_ITEM(value, i), ndim, attrs.axes)) return false;
  return true;
}

bool read_number(const Entry& entry, const char* name, PyObject* value, int index, Attrs& attrs) {
  if (value == Py_None) {
    attrs.absent |= static_cast<std::uint8_t>(1u << index);
    return true;
  }
  if (PyFloat_Check(value)) {
    attrs.real[index] = PyFloat_AS_DOUBLE(value);
    return true;
  }
  if (!PyLong_Check(value)) {
    PyErr_Format(PyExc_TypeError, "%s: %s must be a number, given %.100s.", entry.name, name, Py_TYPE(value)->tp_name);
    return false;
  }
  int overflow;
  long long whole = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow > 0) whole = static_cast<long long>(PyLong_AsUnsignedLongLong(value));  // a 64-bit seed: its bits
  if (overflow < 0) PyErr_Format(PyExc_OverflowError, "%s: %s does not fit in 64 bits.", entry.name, name);
  if (PyErr_Occurred()) return false;
  attrs.whole[index] = whole;
  attrs.real[index] = PyLong_AsDouble(value);
  return true;
}

// A number, or a tuple of as many as a name in `params` has places: "shift,,,,axis,,," has four for each. Those left are absent.
bool read_numbers(const Entry& entry, const char* name, PyObject* value, int index, Attrs& attrs) {
  const char* rest = entry.params;
  for (int i = 0; i < index; ++i) rest += std::strcspn(rest, ",") + 1;
  rest += std::strcspn(rest, ",");
  int places = 1;
  for (; *rest == ',' && (rest[1] == ',' || rest[1] == '\0'); ++rest) ++places;
  const bool several = PyTuple_Check(value);
  const Py_ssize_t given = several ? PyTuple_GET_SIZE(value) : 1;
  if (several && (given < 1 || given > places)) {
    PyErr_Format(PyExc_ValueError, "%s: %s has 1 to %d numbers, given %zd.", entry.name, name, places, given);
    return false;
  }
  for (int i = 0; i < places; ++i) {
    if (i >= given) {
      attrs.absent |= static_cast<std::uint8_t>(1u << (index + i));
    } else if (!read_number(entry, name, several ? PyTuple_GET_ITEM(value, i) : value, index + i, attrs)) {
      return false;
    }
  }
  return true;
}

// The key of an index whose parts are whole axes and, as text, places of index tensors: the bits of those, then where
// their axes stand in the result: in place of the first if they are adjacent, else in front.
bool read_key(const Entry& entry, PyObject* value, Attrs& attrs) {
  const Py_ssize_t n = PyTuple_Check(value) ? PyTuple_GET_SIZE(value) : kMaxDims + 1;
  int64_t bits = 0, first = -1, last = -1, count = 0;
  bool fits = n <= kMaxDims;
  for (Py_ssize_t d = 0; fits && d < n; ++d) {
    PyObject* part = PyTuple_GET_ITEM(value, d);
    fits = PyUnicode_Check(part) || PyTuple_Check(part);
    if (!PyUnicode_Check(part)) continue;
    bits |= int64_t{1} << d;
    first = first < 0 ? d : first;
    last = d;
    ++count;
  }
  if (!fits) PyErr_Format(PyExc_ValueError, "%s: the key %R has other parts than whole axes and indices.", entry.name, value);
  attrs.whole[0] = bits;
  attrs.whole[1] = count == last - first + 1 ? first : 0;
  return fits;
}

KernelObject* as_kernel(PyObject* self) { return reinterpret_cast<KernelObject*>(self); }

bool check_dtype(const Entry& entry, const Array* a) {
  if (entry.dtypes >> a->code & 1) return true;
  PyErr_Format(PyExc_TypeError, "the native kernel %s does not take %S.", entry.name, a->dtype);
  return false;
}

Array* checked_array(const Entry& entry, PyObject* given, const char* role) {
  if (is_array(given) && reinterpret_cast<Array*>(given)->usable()) return reinterpret_cast<Array*>(given);
  PyErr_Format(PyExc_TypeError, "%s: %s must be a tensor in CPU memory of a dtype native code knows, given %.100s.",
               entry.name, role, Py_TYPE(given)->tp_name);
  return nullptr;
}

// out=array, or out=(array, …) for a row of several outputs. Returns how many, or 0 with an exception.
int read_outs(const Entry& entry, PyObject* given, Array** outs) {
  if (!PyTuple_Check(given)) return (outs[0] = checked_array(entry, given, "out")) ? 1 : 0;
  const Py_ssize_t n = PyTuple_GET_SIZE(given);
  if (n < 1 || n > kMaxOutputs) {
    PyErr_Format(PyExc_TypeError, "%s: 1 to %d outputs are possible, given %zd.", entry.name, kMaxOutputs, n);
    return 0;
  }
  for (Py_ssize_t i = 0; i < n; ++i)
    if (!(outs[i] = checked_array(entry, PyTuple_GET_ITEM(given, i), "out"))) return 0;
  return static_cast<int>(n);
}

// A tape knows how many operands it has, and of which dtypes; the shapes are the caller's to get right.
bool check_tape(const Entry& entry, const Tape& tape, Array* const* ins, Py_ssize_t nin, Array* const* outs, int nout) {
  bool fits = nin == tape.inputs && nout == tape.outputs;
  for (int i = 0; fits && i < tape.inputs + tape.outputs; ++i) {
    const Array* a = i < tape.inputs ? ins[i] : outs[i - tape.inputs];
    fits = a && a->code == static_cast<int>(tape.operand[i + 1].dtype);
  }
  if (!fits) PyErr_Format(PyExc_TypeError, "%s: the operands are not those of its tape.", entry.name);
  return fits;
}

// A call of more inputs than a kernel takes at once, which joins them.
PyObject* join_many(const Entry& entry, PyObject* const* args, Py_ssize_t nin, PyObject* names) {
  for (Py_ssize_t i = 0; i < nin; ++i) {
    Array* a = checked_array(entry, args[i], "an input");
    if (!a || !check_dtype(entry, a)) return nullptr;
  }
  Array* outs[kMaxOutputs];
  int nout = 0;
  Attrs attrs;
  for (Py_ssize_t i = 0; i < (names ? PyTuple_GET_SIZE(names) : 0); ++i) {
    PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[nin + i];
    if (PyUnicode_CompareWithASCIIString(name, "out") == 0) {
      if (!(nout = read_outs(entry, value, outs))) return nullptr;
    } else if (!read_attr(entry, name, value, 0, attrs)) {
      return nullptr;
    }
  }
  if (nout != 1) return PyErr_Format(PyExc_TypeError, "%s: the native kernel needs one out=.", entry.name);
  if (!storage_own(outs[0]->memory()) || !run_join(entry, attrs, args, nin, outs[0])) return nullptr;
  return Py_NewRef(reinterpret_cast<PyObject*>(outs[0]));
}

// k(*inputs, out=array, **attrs). An input may be None.
PyObject* kernel_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Entry& entry = *as_kernel(self)->entry;
  const Py_ssize_t nin = PyVectorcall_NARGS(flags);
  if (nin > kMaxInputs && entry.join != Join::none) return join_many(entry, args, nin, names);
  if (nin > kMaxInputs)
    return PyErr_Format(PyExc_TypeError, "%s: at most %d inputs are possible.", entry.name, kMaxInputs);
  Array* holders[kMaxInputs + kMaxOutputs];
  int count = 0, nout = 0;
  Array* last = nullptr;
  Array *ins[kMaxInputs], *outs[kMaxOutputs];
  for (Py_ssize_t i = 0; i < nin; ++i) {
    ins[i] = nullptr;
    if (args[i] == Py_None) continue;
    ins[i] = checked_array(entry, args[i], "an input");
    if (!ins[i]) return nullptr;
    if (entry.decides < 0 || entry.decides == i) last = ins[i];
    holders[count++] = ins[i];
  }
  PyObject* result = nullptr;
  Attrs attrs;
  const int ndim = nin && ins[0] ? ins[0]->ndim() : 0;
  for (Py_ssize_t i = 0; i < (names ? PyTuple_GET_SIZE(names) : 0); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    if (PyUnicode_CompareWithASCIIString(name, "out") == 0) {
      result = args[nin + i];
      if (!(nout = read_outs(entry, result, outs))) return nullptr;
    } else if (!read_attr(entry, name, args[nin + i], ndim, attrs)) {
      return nullptr;
    }
  }
  if (!nout) return PyErr_Format(PyExc_TypeError, "%s: the native kernel needs out=.", entry.name);
  if (!check_dtype(entry, last ? last : outs[0])) return nullptr;
  if (attrs.tape && !check_tape(entry, *attrs.tape, ins, nin, outs, nout)) return nullptr;
  for (int i = 0; i < nout; ++i) {
    if (!storage_own(outs[i]->memory())) return nullptr;
    holders[count++] = outs[i];
  }
  View in[kMaxInputs], out[kMaxOutputs];
  int64_t bytes = 0;
  for (Py_ssize_t i = 0; i < nin; ++i)
    if (ins[i]) fill_view(ins[i], in[i]);
  for (int i = 0; i < nout; ++i) fill_view(outs[i], out[i]);
  for (int i = 0; i < count; ++i) bytes += span(holders[i]->code, holders[i]->size);
  if (!run_kernel(entry, Call{in, static_cast<int>(nin), out, &attrs}, holders, count, bytes, nout)) return nullptr;
  Py_INCREF(result);
  return result;
}

void kernel_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* kernel_repr(PyObject* self) {
  return PyUnicode_FromFormat("<Kernel %s %s>", as_kernel(self)->entry->name, isa_name(as_kernel(self)->isa));
}
PyObject* get_name(PyObject* self, void*) { return PyUnicode_FromString(as_kernel(self)->entry->name); }
PyObject* get_isa(PyObject* self, void*) { return PyUnicode_FromString(isa_name(as_kernel(self)->isa)); }
PyObject* get_params(PyObject* self, void*) { return PyUnicode_FromString(as_kernel(self)->entry->params); }
PyObject* get_decides(PyObject* self, void*) { return PyLong_FromLong(as_kernel(self)->entry->decides); }
PyObject* get_dtypes(PyObject* self, void*) {
  int64_t codes[kCodes];
  int n = 0;
  for (int code = 0; code < kCodes; ++code)
    if (as_kernel(self)->entry->dtypes >> code & 1) codes[n++] = code;
  return int_tuple(codes, n);
}

PyGetSetDef kernel_getset[] = {
    {"name", get_name, nullptr, "The row it serves.", nullptr},
    {"isa", get_isa, nullptr, "The instruction set it is compiled for.", nullptr},
    {"dtypes", get_dtypes, nullptr, "Codes of the dtypes that the input which decides may have.", nullptr},
    {"decides", get_decides, nullptr, "The input whose dtype is looked at; -1: the last one.", nullptr},
    {"params", get_params, nullptr, "The numeric attributes it takes, by name.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(KernelObject, call), READONLY, nullptr}, {nullptr, 0, 0, 0, nullptr}};

PyType_Slot kernel_slots[] = {
    {Py_tp_doc, const_cast<char*>("A native kernel: kernel(*inputs, out=array, **attrs) writes and returns `out`.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(kernel_dealloc)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(kernel_repr)},
    {Py_tp_getset, kernel_getset},
    {Py_tp_members, kernel_members},
    {0, nullptr}};

PyType_Spec kernel_spec = {"tritium._native.Kernel", sizeof(KernelObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL |
                               Py_TPFLAGS_DISALLOW_INSTANTIATION,
                           kernel_slots};

// x rounded once to a float of `mantissa` stored bits, as f16 (10, 15) and bf16 (7, 127).
std::uint16_t small_float(double x, int mantissa, int bias) {
  const int sign = std::signbit(x) ? 0x8000 : 0, infinity = (2 * bias + 1) << mantissa;
  const double a = std::fabs(x);
  int bits;
  if (std::isnan(x)) {
    bits = infinity | 1 << (mantissa - 1);
  } else if (std::isinf(x)) {
    bits = infinity;
  } else if (a < std::ldexp(1.0, 1 - bias)) {
    bits = static_cast<int>(std::nearbyint(std::ldexp(a, mantissa + bias - 1)));
  } else {
    const int exponent = std::ilogb(a);
    bits = static_cast<int>(std::nearbyint(std::ldexp(a, mantissa - exponent))) - (1 << mantissa);
    bits = exponent > bias ? infinity : std::min(((exponent + bias) << mantissa) + bits, infinity);
  }
  return static_cast<std::uint16_t>(sign | bits);
}

template <class T>
bool put(void* to, T value) {
  std::memcpy(to, &value, sizeof value);
  return true;
}

template <class T>
bool put_int(void* to, long long value) {
  return static_cast<long long>(static_cast<T>(value)) == value && put(to, static_cast<T>(value));
}

bool put_complex(void* to, int code, Py_complex value) {
  if (code == static_cast<int>(DType::c128)) return put(to, value);
  const float parts[2] = {static_cast<float>(value.real), static_cast<float>(value.imag)};
  std::memcpy(to, parts, sizeof parts);
  return code == static_cast<int>(DType::c64);
}

bool put_real(void* to, int code, double value) {
  switch (static_cast<DType>(code)) {
    case DType::f16: return put(to, small_float(value, 10, 15));
    case DType::bf16: return put(to, small_float(value, 7, 127));
    case DType::f32: return put(to, static_cast<float>(value));
    case DType::f64: return put(to, value);
    case DType::c64:
    case DType::c128: return put_complex(to, code, {value, 0.0});
    default: return false;
  }
}

bool put_whole(PyObject* value, int code, void* to) {
  if (code == static_cast<int>(DType::u64)) {
    const unsigned long long whole = PyLong_AsUnsignedLongLong(value);
    return !PyErr_Occurred() && put<std::uint64_t>(to, whole);
  }
  const long long whole = PyLong_AsLongLong(value);
  if (whole == -1 && PyErr_Occurred()) return false;
  switch (static_cast<DType>(code)) {
    case DType::i8: return put_int<std::int8_t>(to, whole);
    case DType::i16: return put_int<std::int16_t>(to, whole);
    case DType::i32: return put_int<std::int32_t>(to, whole);
    case DType::i64: return put<std::int64_t>(to, whole);
    case DType::u8: return put_int<std::uint8_t>(to, whole);
    case DType::u16: return put_int<std::uint16_t>(to, whole);
    case DType::u32: return put_int<std::uint32_t>(to, whole);
    default: return false;
  }
}

}  // namespace

bool store_scalar(PyObject* value, int code, void* to) {
  bool fits;
  if (code == static_cast<int>(DType::b8)) return PyBool_Check(value) && put<std::uint8_t>(to, value == Py_True);
  if (PyFloat_Check(value)) return put_real(to, code, PyFloat_AS_DOUBLE(value));
  if (PyComplex_Check(value)) return is_complex(static_cast<DType>(code)) && put_complex(to, code, PyComplex_AsCComplex(value));
  if (code >= static_cast<int>(DType::f16)) {
    const double real = PyLong_AsDouble(value);
    fits = !(real == -1 && PyErr_Occurred()) && put_real(to, code, real);
  } else {
    fits = put_whole(value, code, to);
  }
  PyErr_Clear();  // a number too large: the caller's Python path says so in its own words
  return fits;
}

bool read_attr(const Entry& entry, PyObject* name, PyObject* value, int ndim, Attrs& attrs) {
  const char* text = PyUnicode_AsUTF8(name);
  if (!text) return false;
  const int index = param_index(entry.params, text);
  if (index >= 0) return read_numbers(entry, text, value, index, attrs);
  if (std::strcmp(text, "key") == 0) return read_key(entry, value, attrs);
  if (std::strcmp(text, "axis") == 0) return read_axes(entry, value, ndim, attrs);
  if (std::strcmp(text, "keepdims") == 0) {
    const int truth = PyObject_IsTrue(value);
    attrs.keepdims = truth > 0;
    return truth >= 0;
  }
  if (std::strcmp(text, "tape") == 0) {
    attrs.tape = tape_of_object(value);
    if (attrs.tape) return true;
    PyErr_Format(PyExc_TypeError, "%s: a Tape is needed, given %.100s.", entry.name, Py_TYPE(value)->tp_name);
    return false;
  }
  if (std::strcmp(text, "product") == 0) {
    attrs.product = product_of_object(value);
    if (attrs.product) return true;
    PyErr_Format(PyExc_TypeError, "%s: a FusedProduct is needed, given %.100s.", entry.name, Py_TYPE(value)->tp_name);
    return false;
  }
  for (const char* ignored : {"dtype", "algorithm", "approximate", "shape", "copy", "side", "mode", "activations"})
    if (std::strcmp(text, ignored) == 0) return true;
  PyErr_Format(PyExc_TypeError, "%s: the native kernel has no attribute '%s'.", entry.name, text);
  return false;
}

// "3, 0, 17": the place of a Faulty::element.
std::string place_text(const Fault& fault) {
  std::string out;
  for (int i = 1; i <= fault.values[0]; ++i) out += (i > 1 ? ", " : "") + std::to_string(fault.values[i]);
  return out;
}

void raise_not_finite(PyObject* kind, const Fault& fault, const std::string& place, std::int64_t sign) {
  PyErr_Format(kind,
               "%s: element [%s] is %s; quantisation needs finite numbers. Find where it comes from, or replace it with "
               "where(isfinite(x), x, 0).",
               fault.row, place.c_str(), sign == 0 ? "nan" : sign > 0 ? "inf" : "-inf");
}

void raise_scale(PyObject* kind, const Fault& fault) {
  const auto bits = static_cast<std::uint32_t>(fault.values[2]);
  float value;
  std::memcpy(&value, &bits, sizeof value);
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
  PyErr_Format(kind, "%s: a scale is %s (row %lld, group %lld); scales must be finite and above 0.", fault.row, text,
               static_cast<long long>(fault.values[0]), static_cast<long long>(fault.values[1]));
}

void raise_fault() {
  const Fault fault = take_fault();
  const bool bounds = fault.kind == Faulty::index || fault.kind == Faulty::place || fault.kind == Faulty::power ||
                      fault.kind == Faulty::state;
  PyObject* kind = error_class(bounds ? "BoundsError" : "QuantError");
  if (!kind) return;
  long long v[std::size(fault.values)];
  std::copy(std::begin(fault.values), std::end(fault.values), v);
  if (fault.kind == Faulty::number) {
    raise_not_finite(kind, fault, std::to_string(v[0]) + ", " + std::to_string(v[1]), v[2]);
  } else if (fault.kind == Faulty::element) {
    raise_not_finite(kind, fault, place_text(fault), v[6]);
  } else if (fault.kind == Faulty::scale) {
    raise_scale(kind, fault);
  } else if (fault.kind == Faulty::zero) {
    PyErr_Format(kind, "%s: a zero point is %lld (row %lld, group %lld); it must be one of the codes, %lld to %lld.",
                 fault.row, v[2], v[0], v[1], v[3], v[4]);
  } else if (fault.kind == Faulty::code) {
    PyErr_Format(kind,
                 "%s: the code of element [%lld, %lld] means no weight; the data is damaged or of another layout.",
                 fault.row, v[0], v[1]);
  } else if (fault.kind == Faulty::state && v[6] >= 0) {
    PyErr_Format(kind, "%s: sequences %lld and %lld are both in slot %lld; each needs a state of its own.", fault.row, v[6],
                 v[0], v[1]);
  } else if (fault.kind == Faulty::state) {
    PyErr_Format(kind,
                 "%s: sequence %lld is at (slot %lld, start %lld, count %lld), outside %lld slots and the %lld tokens given. "
                 "Make more states, or give fewer tokens.",
                 fault.row, v[0], v[1], v[2], v[3], v[4], v[5]);
  } else if (fault.kind == Faulty::power) {
    PyErr_Format(kind, "%s: an integer to a negative power is not an integer; cast to a float dtype first: x.to('f32').",
                 fault.row);
  } else if (fault.kind == Faulty::index) {
    const std::string index = v[2] ? std::to_string(static_cast<unsigned long long>(v[0])) : std::to_string(v[0]);
    PyErr_Format(kind, "%s: index %s is outside an axis of size %lld.", fault.row, index.c_str(), v[1]);
  } else {
    PyErr_Format(kind,
                 "%s: sequence %lld is at (slot %lld, start %lld, count %lld), outside %lld slots of %lld tokens and the "
                 "%lld tokens given. Make a larger cache, or write fewer tokens.",
                 fault.row, v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
  }
  Py_DECREF(kind);
}

// Another thread may copy-on-write a handle while the kernel runs: its old block must outlive it. False: exception, a
// signal ended it. Apart from run_kernel, whose short calls need no room for blocks.
[[gnu::noinline]] bool run_large(const Entry& entry, const Call& call, Array* const* holders, int count, int64_t bytes,
                                 int nout) {
  Block* blocks[kMaxInputs + kMaxOutputs];
  for (int i = 0; i < count; ++i)
    if ((blocks[i] = holders[i]->memory()->block)) block_retain(blocks[i]);
  for (int i = count - nout; i < count; ++i) ++holders[i]->memory()->writing;  // results come last
  const bool whole = run_without_gil(bytes, [&] { entry.run(call); });
  for (int i = count - nout; i < count; ++i) --holders[i]->memory()->writing;
  for (int i = 0; i < count; ++i)
    if (blocks[i]) block_release(blocks[i]);
  if (!whole) take_fault();  // it may come of numbers that were never computed
  return whole;
}

bool run_kernel(const Entry& entry, const Call& call, Array* const* holders, int count, int64_t bytes, int nout) {
  if (bytes < kQuietBytes) {
    entry.run(call);
  } else if (!run_large(entry, call, holders, count, bytes, nout)) {
    return false;
  }
  if (!entry.may_fault || !has_fault()) return true;
  raise_fault();
  return false;
}

PyObject* kernel_object(const Entry* entry, Isa isa) {
  auto* k = reinterpret_cast<KernelObject*>(globals.kernel_type->tp_alloc(globals.kernel_type, 0));
  if (!k) return nullptr;
  k->entry = entry;
  k->isa = isa;
  k->call = kernel_call;
  return reinterpret_cast<PyObject*>(k);
}

PyTypeObject* make_kernel_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kernel_spec)); }

}  // namespace tritium::python
