// FusedProduct: made once from a kernel and two tapes, given to the kernel fused_product as its attribute `product`.
// Knows nothing of fragments: backends/cpu/fused_product.py takes them apart.
#include "fused_product.h"

#include "tape_object.h"

namespace tritium::python {
namespace {

struct ProductObject {
  PyObject_HEAD
  FusedProduct value;
  PyObject *core, *before, *after;  // kept alive
};

PyTypeObject* product_type = nullptr;

ProductObject* as_product(PyObject* self) { return reinterpret_cast<ProductObject*>(self); }

// Whole numbers from a tuple, at most `most` of them; -1: an exception is set.
template <class T>
int read_numbers(PyObject* given, const char* what, int most, T* to) {
  const Py_ssize_t n = PyTuple_Check(given) ? PyTuple_GET_SIZE(given) : most + 1;
  if (n > most) {
    PyErr_Format(PyExc_TypeError, "FusedProduct: %s must be a tuple of at most %d numbers.", what, most);
    return -1;
  }
  for (Py_ssize_t i = 0; i < n; ++i) {
    to[i] = static_cast<T>(PyLong_AsLongLong(PyTuple_GET_ITEM(given, i)));
    if (to[i] == -1 && PyErr_Occurred()) return -1;
  }
  return static_cast<int>(n);
}

// (tape, inputs), or None.
bool read_taped(PyObject* given, const char* what, int own, Taped& to, PyObject*& kept) {
  if (given == Py_None) return true;
  PyObject *tape, *inputs;
  if (!PyArg_ParseTuple(given, "OO;FusedProduct: before and after are (tape, inputs) or None", &tape, &inputs))
    return false;
  to.tape = tape_of_object(tape);
  to.count = read_numbers(inputs, what, kMaxInputs, to.input);
  if (to.count < 0) return false;
  if (!to.tape || to.tape->inputs != to.count + own) {
    PyErr_Format(PyExc_TypeError, "FusedProduct: %s needs a Tape that takes its %d inputs.", what, to.count + own);
    return false;
  }
  for (int i = 0; i < to.count; ++i) {
    if (to.input[i] >= 0 && to.input[i] < kMaxInputs) continue;
    PyErr_Format(PyExc_ValueError, "FusedProduct: %s reads input %d, which cannot be.", what, to.input[i]);
    return false;
  }
  kept = Py_NewRef(tape);
  return true;
}

bool read_code(int code, DType& to) {
  to = static_cast<DType>(code);
  if (code >= 0 && code < kDTypes) return true;
  PyErr_Format(PyExc_ValueError, "FusedProduct: %d is not the code of a plain dtype.", code);
  return false;
}

bool read_attrs(const Entry& entry, PyObject* given, int ndim, Attrs& to) {
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(given, &at, &name, &value);)
    if (!read_attr(entry, name, value, ndim, to)) return false;
  return true;
}

// FusedProduct(core, attrs, operands, dtype, x, before, after, sums, apart)
bool fill(ProductObject* made, PyObject* args) {
  PyObject *core, *attrs, *operands, *x, *before, *after;
  int code, sums, apart, x_code;
  if (!PyArg_ParseTuple(args, "O!O!OiOOOpp", globals.kernel_type, &core, &PyDict_Type, &attrs, &operands, &code, &x,
                        &before, &after, &sums, &apart))
    return false;
  FusedProduct& f = made->value;
  long long width;
  if (!PyArg_ParseTuple(x, "iiL;FusedProduct: x is (dtype code, ndim, last size)", &x_code, &f.x_ndim, &width)) return false;
  if (f.x_ndim < 0 || f.x_ndim > kMaxDims) {
    PyErr_Format(PyExc_ValueError, "FusedProduct: x cannot have %d axes.", f.x_ndim);
    return false;
  }
  f.x_width = width;
  if ((f.operands = read_numbers(operands, "operands", kProductOperands, f.operand)) < 0) return false;
  for (int i = 0; i < f.operands; ++i) {
    if (f.operand[i] < kMaxInputs) continue;
    PyErr_Format(PyExc_ValueError, "FusedProduct: the product reads input %d, which cannot be.", f.operand[i]);
    return false;
  }
  const Entry& entry = *reinterpret_cast<KernelObject*>(core)->entry;
  made->core = Py_NewRef(core);
  f.core = entry.run;
  f.sums = sums != 0;
  f.apart = apart != 0;
  return read_code(code, f.dtype) && read_code(x_code, f.x_dtype) && read_attrs(entry, attrs, f.x_ndim, f.attrs) &&
         read_taped(before, "before", 0, f.before, made->before) && read_taped(after, "after", 1, f.after, made->after);
}

PyObject* product_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (kwargs && PyDict_GET_SIZE(kwargs)) return PyErr_Format(PyExc_TypeError, "FusedProduct takes no keywords.");
  auto* made = reinterpret_cast<ProductObject*>(type->tp_alloc(type, 0));
  if (!made) return nullptr;
  new (&made->value) FusedProduct();
  if (fill(made, args)) return reinterpret_cast<PyObject*>(made);
  Py_DECREF(made);
  return nullptr;
}

void product_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(as_product(self)->core);
  Py_XDECREF(as_product(self)->before);
  Py_XDECREF(as_product(self)->after);
  type->tp_free(self);
  Py_DECREF(type);
}

PyType_Slot product_slots[] = {
    {Py_tp_doc, const_cast<char*>("A product, what makes its left operand and what its results go through.")},
    {Py_tp_new, reinterpret_cast<void*>(product_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(product_dealloc)},
    {0, nullptr}};

PyType_Spec product_spec = {"tritium._native.FusedProduct", sizeof(ProductObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, product_slots};

}  // namespace

PyTypeObject* make_fused_product_type() {
  return product_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&product_spec));
}

const FusedProduct* product_of_object(PyObject* o) {
  return Py_TYPE(o) == product_type ? &as_product(o)->value : nullptr;
}

}  // namespace tritium::python
