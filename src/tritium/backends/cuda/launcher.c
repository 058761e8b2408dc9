/* Launches of compiled kernels, prepared once: a call writes two addresses and launches all of them.

Built by `launcher.py` with the C compiler that Triton uses. The driver is opened by name when it is first needed, so that the
module loads on machines without one. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

typedef struct {
  CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **);
  CUresult (*encode)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                     const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                     CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  CUresult (*replace)(CUtensorMap *, void *);
  CUresult (*current)(CUcontext *);
  CUresult (*retain)(CUcontext *, CUdevice);
  CUresult (*use)(CUcontext);
  CUresult (*describe)(CUresult, const char **);
} Driver;

static Driver driver;

static PyObject *open_driver(PyObject *self, PyObject *name) {
  const char *path = PyUnicode_AsUTF8(name);
  if (path == NULL) return NULL;
  void *library = dlopen(path, RTLD_NOW);
  if (library == NULL) return PyErr_Format(PyExc_OSError, "%s: %s", path, dlerror());
  struct {
    const char *name;
    void **to;
  } wanted[] = {
      {"cuLaunchKernelEx", (void **)&driver.launch},       {"cuTensorMapEncodeTiled", (void **)&driver.encode},
      {"cuTensorMapReplaceAddress", (void **)&driver.replace}, {"cuCtxGetCurrent", (void **)&driver.current},
      {"cuDevicePrimaryCtxRetain", (void **)&driver.retain},   {"cuCtxSetCurrent", (void **)&driver.use},
      {"cuGetErrorString", (void **)&driver.describe},
  };
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    *wanted[i].to = dlsym(library, wanted[i].name);
    if (*wanted[i].to == NULL) return PyErr_Format(PyExc_OSError, "%s has no function %s", path, wanted[i].name);
  }
  Py_RETURN_NONE;
}

static PyObject *failed(CUresult code, const char *what) {
  const char *text = NULL;
  driver.describe(code, &text);
  return PyErr_Format(PyExc_RuntimeError, "%s: CUDA error %d, %s", what, (int)code, text ? text : "unknown");
}

#define MAP_ALIGNMENT 128 /* of a tensor map: the driver needs 64 bytes, headers since CUDA 13 declare 128 */

/* encode(address, swizzle, element bytes, element type, box, shape, strides): a tensor map as bytes; rows come first. */
static PyObject *encode(PyObject *self, PyObject *args) {
  unsigned long long address;
  int swizzle, size, type;
  PyObject *box, *shape, *strides;
  if (!PyArg_ParseTuple(args, "KiiiO!O!O!", &address, &swizzle, &size, &type, &PyTuple_Type, &box, &PyTuple_Type, &shape,
                        &PyTuple_Type, &strides))
    return NULL;
  Py_ssize_t rank = PyTuple_GET_SIZE(box);
  if (rank < 1 || rank > 5 || PyTuple_GET_SIZE(shape) != rank || PyTuple_GET_SIZE(strides) != rank)
    return PyErr_Format(PyExc_ValueError, "a tensor map has 1 to 5 axes, with a box, a size and a stride each");
  cuuint64_t sizes[5], steps[5];
  cuuint32_t boxes[5], ones[5] = {1, 1, 1, 1, 1};
  for (Py_ssize_t i = 0; i < rank; i++) {
    Py_ssize_t to = rank - 1 - i; /* the driver takes the innermost axis first */
    boxes[to] = (cuuint32_t)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(box, i));
    sizes[to] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(shape, i));
    if (i + 1 < rank) steps[to - 1] = (cuuint64_t)size * PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(strides, i));
    if (PyErr_Occurred()) return NULL;
  }
  steps[rank - 1] = 0;
  _Alignas(MAP_ALIGNMENT) CUtensorMap map;
  CUresult code = driver.encode(&map, (CUtensorMapDataType)type, (cuuint32_t)rank, (void *)(uintptr_t)address, sizes, steps,
                                boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, (CUtensorMapSwizzle)swizzle,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) return failed(code, "a tensor map could not be made");
  return PyBytes_FromStringAndSize((const char *)&map, sizeof map);
}

/* ---- plans */

typedef struct {
  CUlaunchConfig config;
  CUlaunchAttribute early;
  CUfunction function;
  CUtensorMap *maps; /* aligned, one for each parameter */
  uint64_t *values;  /* one for each parameter */
  void **params;
  char *kinds;
  Py_ssize_t count;
} Step;

typedef struct {
  PyObject_HEAD
  int device;
  Py_ssize_t count;
  Step *steps;
} Plan;

static void plan_dealloc(PyObject *self) {
  Plan *plan = (Plan *)self;
  for (Py_ssize_t i = 0; i < plan->count; i++) {
    free(plan->steps[i].maps);
    free(plan->steps[i].values);
    free(plan->steps[i].params);
    free(plan->steps[i].kinds);
  }
  free(plan->steps);
  Py_TYPE(self)->tp_free(self);
}

/* One parameter: kind is p (address), i (32 bits), l (64 bits), f (float), m (tensor map), s and t (addresses of the input and of
   the result of a call), n (tensor map of the result). */
static int fill(Step *step, Py_ssize_t i, int kind, PyObject *value) {
  step->kinds[i] = (char)kind;
  step->params[i] = &step->values[i];
  switch (kind) {
    case 'm':
    case 'n': {
      char *bytes;
      Py_ssize_t size;
      if (PyBytes_AsStringAndSize(value, &bytes, &size) < 0) return -1;
      if (size != sizeof(CUtensorMap)) {
        PyErr_Format(PyExc_ValueError, "a tensor map has %zu bytes, given %zd", sizeof(CUtensorMap), size);
        return -1;
      }
      memcpy(&step->maps[i], bytes, (size_t)size);
      step->params[i] = &step->maps[i];
      return 0;
    }
    case 'f': {
      float number = (float)PyFloat_AsDouble(value);
      memcpy(&step->values[i], &number, sizeof number);
      break;
    }
    case 'p':
    case 's':
    case 't':
    case 'i':
    case 'l':
      step->values[i] = PyLong_AsUnsignedLongLongMask(value);
      break;
    default:
      PyErr_Format(PyExc_ValueError, "a parameter is one of p, i, l, f, m, s, t and n, given %c", kind);
      return -1;
  }
  return PyErr_Occurred() ? -1 : 0;
}

static int prepare(Step *step, PyObject *given) {
  unsigned long long function;
  unsigned x, y, z, threads, shared;
  int early;
  PyObject *parameters;
  if (!PyArg_ParseTuple(given, "K(III)IIpO!", &function, &x, &y, &z, &threads, &shared, &early, &PyTuple_Type, &parameters))
    return -1;
  step->count = PyTuple_GET_SIZE(parameters);
  size_t room = step->count > 0 ? (size_t)step->count : 1;
  step->maps = aligned_alloc(MAP_ALIGNMENT, room * sizeof(CUtensorMap));
  step->values = calloc(room, sizeof(uint64_t));
  step->params = calloc(room, sizeof(void *));
  step->kinds = calloc(room, 1);
  if (!step->maps || !step->values || !step->params || !step->kinds) {
    PyErr_NoMemory();
    return -1;
  }
  for (Py_ssize_t i = 0; i < step->count; i++) {
    int kind;
    PyObject *value;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parameters, i), "CO", &kind, &value) || fill(step, i, kind, value) < 0) return -1;
  }
  step->function = (CUfunction)(uintptr_t)function;
  step->config = (CUlaunchConfig){.gridDimX = x, .gridDimY = y, .gridDimZ = z, .blockDimX = threads, .blockDimY = 1,
                                  .blockDimZ = 1, .sharedMemBytes = shared, .numAttrs = early ? 1 : 0};
  step->early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  step->early.value.programmaticStreamSerializationAllowed = 1;
  return 0;
}

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *names) {
  int device;
  PyObject *steps;
  if (!PyArg_ParseTuple(args, "iO!", &device, &PyTuple_Type, &steps)) return NULL;
  if (driver.launch == NULL) return PyErr_Format(PyExc_RuntimeError, "call open_driver before a plan is made");
  Plan *plan = (Plan *)type->tp_alloc(type, 0);
  if (plan == NULL) return NULL;
  plan->device = device;
  plan->steps = calloc((size_t)PyTuple_GET_SIZE(steps) + 1, sizeof(Step));
  if (plan->steps == NULL) {
    Py_DECREF(plan);
    return PyErr_NoMemory();
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
    plan->count = i + 1;
    if (prepare(&plan->steps[i], PyTuple_GET_ITEM(steps, i)) < 0) {
      Py_DECREF(plan);
      return NULL;
    }
    plan->steps[i].config.attrs = &plan->steps[i].early;
  }
  return (PyObject *)plan;
}

static CUresult run(Plan *plan, uint64_t source, uint64_t target, CUstream stream) {
  CUcontext context = NULL;
  CUresult code = driver.current(&context);
  if (code == CUDA_SUCCESS && context == NULL) { /* a thread that has launched nothing yet */
    code = driver.retain(&context, plan->device);
    if (code == CUDA_SUCCESS) code = driver.use(context);
  }
  for (Py_ssize_t i = 0; i < plan->count && code == CUDA_SUCCESS; i++) {
    Step *step = &plan->steps[i];
    for (Py_ssize_t j = 0; j < step->count && code == CUDA_SUCCESS; j++) {
      if (step->kinds[j] == 's') step->values[j] = source;
      if (step->kinds[j] == 't') step->values[j] = target;
      if (step->kinds[j] == 'n') code = driver.replace(&step->maps[j], (void *)(uintptr_t)target);
    }
    step->config.hStream = stream;
    if (code == CUDA_SUCCESS) code = driver.launch(&step->config, step->function, step->params, NULL);
  }
  return code;
}

/* plan(source, target, stream): all as numbers. The lock is released: a full queue waits for the device. */
static PyObject *plan_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
  if (PyVectorcall_NARGS(flags) != 3 || names != NULL)
    return PyErr_Format(PyExc_TypeError, "a plan takes the addresses of the input and of the result, and a stream");
  uint64_t numbers[3];
  for (int i = 0; i < 3; i++) numbers[i] = PyLong_AsUnsignedLongLong(args[i]);
  if (PyErr_Occurred()) return NULL;
  CUresult code;
  Py_BEGIN_ALLOW_THREADS;
  code = run((Plan *)self, numbers[0], numbers[1], (CUstream)(uintptr_t)numbers[2]);
  Py_END_ALLOW_THREADS;
  if (code != CUDA_SUCCESS) return failed(code, "a kernel could not be launched");
  Py_RETURN_NONE;
}

static PyMethodDef plan_methods[] = {
    {"launch", (PyCFunction)(void (*)(void))plan_call, METH_FASTCALL | METH_KEYWORDS, "launch(source, target, stream)"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PlanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tritium_launcher.Plan",
    .tp_basicsize = sizeof(Plan),
    .tp_dealloc = plan_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Plan(device, steps): launches whose input and result change from call to call.",
    .tp_methods = plan_methods,
    .tp_new = plan_new,
};

/* ---- calls that are like those before */

enum { GRAD, CURRENT, STREAM, EMPTY, LOOKS }; /* functions of torch, in the order in which they are given; then those that say
                                                 whether something watches the call: all of them must answer False or None */

typedef struct {
  PyObject_HEAD
  long index;
  PyObject *type, *names, *tensors, *functions, *plans, *level, *number;
  uint64_t versions[8], addresses[8];
} Quick;

static PyObject *name_get_device, *name_is_contiguous, *name_data_ptr, *name_version, *name_requires_grad, *name_shape, *name_dtype,
    *name_level;

static void quick_dealloc(PyObject *self) {
  Quick *q = (Quick *)self;
  PyObject *all[] = {q->type, q->names, q->tensors, q->functions, q->plans, q->level, q->number};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) Py_XDECREF(all[i]);
  Py_TYPE(self)->tp_free(self);
}

/* The number that a call or an attribute gives; takes the reference. */
static uint64_t number_of(PyObject *value) {
  if (value == NULL) return (uint64_t)-1;
  uint64_t number = PyLong_AsUnsignedLongLongMask(value);
  Py_DECREF(value);
  return number;
}

/* 1 if a call or an attribute gives anything but False and None, -1 where it failed; takes the reference. */
static int is_set(PyObject *value) {
  if (value == NULL) return -1;
  int set = value != Py_False && value != Py_None;
  Py_DECREF(value);
  return set;
}

static PyObject *quick_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  long index;
  PyObject *tensor, *names, *tensors, *functions, *plans, *level;
  if (!PyArg_ParseTuple(args, "lOO!O!O!O!O", &index, &tensor, &PyTuple_Type, &names, &PyTuple_Type, &tensors, &PyTuple_Type,
                        &functions, &PyDict_Type, &plans, &level))
    return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  if (count > 8 || PyTuple_GET_SIZE(names) != count || PyTuple_GET_SIZE(functions) < LOOKS)
    return PyErr_Format(PyExc_ValueError, "at most 8 tensors with a name each are needed, and at least %d functions", LOOKS);
  Quick *q = (Quick *)type->tp_alloc(type, 0);
  if (q == NULL) return NULL;
  q->index = index;
  q->type = Py_NewRef(tensor);
  q->names = Py_NewRef(names);
  q->tensors = Py_NewRef(tensors);
  q->functions = Py_NewRef(functions);
  q->plans = Py_NewRef(plans);
  q->level = Py_NewRef(level);
  q->number = PyLong_FromLong(index);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *one = PyTuple_GET_ITEM(tensors, i);
    if (one == Py_None) continue;
    q->versions[i] = number_of(PyObject_GetAttr(one, name_version));
    q->addresses[i] = number_of(PyObject_CallMethodNoArgs(one, name_data_ptr));
  }
  if (PyErr_Occurred()) {
    Py_DECREF(q);
    return NULL;
  }
  return (PyObject *)q;
}

/* 1 if all tensors are those of the module, and torch counted no write to them; 0 if not, -1 where a look failed. */
static int as_before(Quick *q, PyObject *parameters) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(q->tensors); i++) {
    PyObject *one = PyTuple_GET_ITEM(q->tensors, i);
    PyObject *now = PyDict_GetItemWithError(parameters, PyTuple_GET_ITEM(q->names, i));
    if (now == NULL && PyErr_Occurred()) return -1;
    if (now != one) return 0;
    if (one == Py_None) continue;
    if (number_of(PyObject_GetAttr(one, name_version)) != q->versions[i]) return PyErr_Occurred() ? -1 : 0;
    if (number_of(PyObject_CallMethodNoArgs(one, name_data_ptr)) != q->addresses[i]) return PyErr_Occurred() ? -1 : 0;
  }
  return 1;
}

/* 1 if x or a parameter needs a gradient, while they are recorded. */
static int needs_gradient(Quick *q, PyObject *x) {
  int on = is_set(PyObject_CallNoArgs(PyTuple_GET_ITEM(q->functions, GRAD)));
  if (on <= 0) return on;
  int needs = is_set(PyObject_GetAttr(x, name_requires_grad));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(q->tensors) && needs == 0; i++) {
    PyObject *one = PyTuple_GET_ITEM(q->tensors, i);
    if (one != Py_None) needs = is_set(PyObject_GetAttr(one, name_requires_grad));
  }
  return needs;
}

/* 1 if vmap, a tracer, autocast, forward derivatives or a capture must see what happens, or another GPU is current. */
static int is_watched(Quick *q) {
  if ((long)number_of(PyObject_CallNoArgs(PyTuple_GET_ITEM(q->functions, CURRENT))) != q->index)
    return PyErr_Occurred() ? -1 : 1;
  if ((int64_t)number_of(PyObject_GetAttr(q->level, name_level)) >= 0) return 1;
  int watched = PyErr_Occurred() ? -1 : 0;
  for (Py_ssize_t i = LOOKS; i < PyTuple_GET_SIZE(q->functions) && watched == 0; i++)
    watched = is_set(PyObject_CallNoArgs(PyTuple_GET_ITEM(q->functions, i)));
  return watched;
}

/* The plan of calls like this one: (plan, shape, strides, dtype), borrowed; NULL where there is none. */
static PyObject *plan_of(Quick *q, PyObject *x, PyObject *stream) {
  PyObject *shape = PyObject_GetAttr(x, name_shape), *dtype = PyObject_GetAttr(x, name_dtype);
  PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
  PyObject *key = shape && dtype && thread ? PyTuple_Pack(4, shape, dtype, stream, thread) : NULL;
  Py_XDECREF(shape);
  Py_XDECREF(dtype);
  Py_XDECREF(thread);
  PyObject *found = key ? PyDict_GetItemWithError(q->plans, key) : NULL;
  Py_XDECREF(key);
  if (found != NULL && (!PyTuple_Check(found) || PyTuple_GET_SIZE(found) != 4 || Py_TYPE(PyTuple_GET_ITEM(found, 0)) != &PlanType))
    return PyErr_Format(PyExc_TypeError, "a plan comes with the shape, the strides and the dtype of its result");
  return found;
}

static PyObject *launched(Quick *q, PyObject *x, uint64_t source) {
  PyObject *stream = PyObject_CallOneArg(PyTuple_GET_ITEM(q->functions, STREAM), q->number);
  if (stream == NULL) return NULL;
  PyObject *found = plan_of(q, x, stream);
  uint64_t on = number_of(stream);
  if (found == NULL || PyErr_Occurred()) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
  Py_INCREF(found); /* another thread may forget it while the lock is released */
  PyObject *out = PyObject_Vectorcall(PyTuple_GET_ITEM(q->functions, EMPTY), &PyTuple_GET_ITEM(found, 1), 3, NULL);
  CUresult code = CUDA_SUCCESS;
  if (out != NULL) {
    uint64_t target = number_of(PyObject_CallMethodNoArgs(out, name_data_ptr));
    Plan *plan = (Plan *)PyTuple_GET_ITEM(found, 0);
    Py_BEGIN_ALLOW_THREADS;
    code = run(plan, source, target, (CUstream)(uintptr_t)on);
    Py_END_ALLOW_THREADS;
  }
  Py_DECREF(found);
  if (out != NULL && code != CUDA_SUCCESS) {
    Py_DECREF(out);
    return failed(code, "a kernel could not be launched");
  }
  return out;
}

/* quick.call(x, parameters): the result, or None where something is not as it was. */
static PyObject *quick_call(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  Quick *q = (Quick *)self;
  if (count != 2 || !PyDict_Check(args[1])) return PyErr_Format(PyExc_TypeError, "an input and a dict of parameters are needed");
  PyObject *x = args[0];
  if ((PyObject *)Py_TYPE(x) != q->type) Py_RETURN_NONE;
  if ((long)number_of(PyObject_CallMethodNoArgs(x, name_get_device)) != q->index) goto other;
  if (is_set(PyObject_CallMethodNoArgs(x, name_is_contiguous)) != 1) goto other;
  uint64_t source = number_of(PyObject_CallMethodNoArgs(x, name_data_ptr));
  if (source % 16) goto other;
  if (as_before(q, args[1]) != 1 || needs_gradient(q, x) != 0 || is_watched(q) != 0) goto other;
  return launched(q, x, source);
other:
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef quick_methods[] = {
    {"call", (PyCFunction)(void (*)(void))quick_call, METH_FASTCALL, "call(x, parameters): the result, or None."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject QuickType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "tritium_launcher.Quick",
    .tp_basicsize = sizeof(Quick),
    .tp_dealloc = quick_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Quick(device, type, names, tensors, functions, plans, level): calls that find all as it was.",
    .tp_methods = quick_methods,
    .tp_new = quick_new,
};

static int intern_names(void) {
  struct {
    PyObject **to;
    const char *text;
  } all[] = {
      {&name_get_device, "get_device"}, {&name_is_contiguous, "is_contiguous"}, {&name_data_ptr, "data_ptr"},
      {&name_version, "_version"},      {&name_requires_grad, "requires_grad"}, {&name_shape, "shape"},
      {&name_dtype, "dtype"},           {&name_level, "_current_level"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if ((*all[i].to = PyUnicode_InternFromString(all[i].text)) == NULL) return -1;
  return 0;
}

static PyMethodDef methods[] = {
    {"open_driver", open_driver, METH_O, "Open CUDA's driver by the name of its library."},
    {"encode", encode, METH_VARARGS, "Return a tensor map as bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tritium_launcher", NULL, -1, methods};

PyMODINIT_FUNC PyInit_tritium_launcher(void) {
  if (PyType_Ready(&PlanType) < 0 || PyType_Ready(&QuickType) < 0 || intern_names() < 0) return NULL;
  PyObject *m = PyModule_Create(&module);
  if (m == NULL) return NULL;
  if (PyModule_AddObjectRef(m, "Plan", (PyObject *)&PlanType) < 0 || PyModule_AddObjectRef(m, "Quick", (PyObject *)&QuickType) < 0) {
    Py_DECREF(m);
    return NULL;
  }
  return m;
}
