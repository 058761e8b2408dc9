// DLPack, both ways and both versions: tensors handed to and taken from other libraries without a copy.
// The structures below are those of dlpack.h 1.0.
#include <memory>

#include "array.h"

namespace tritium::python {
namespace {

struct DLDevice {
  std::int32_t type, id;
};
struct DLDataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct Plain {  // DLManagedTensor
  DLTensor tensor;
  void* context;
  void (*deleter)(Plain*);
};
struct Versioned {  // DLManagedTensorVersioned
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(Versioned*);
  uint64_t flags;
  DLTensor tensor;
};

constexpr std::int32_t kCpu = 1, kCudaHost = 3;
constexpr uint64_t kReadOnly = 1, kCopied = 2;
enum Code : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

constexpr DLDataType kTypes[kCodes] = {
    {kBool, 8, 1},  {kInt, 8, 1},   {kInt, 16, 1},  {kInt, 32, 1},    {kInt, 64, 1},   {kUInt, 8, 1},   {kUInt, 16, 1},
    {kUInt, 32, 1}, {kUInt, 64, 1}, {kFloat, 16, 1}, {kBfloat, 16, 1}, {kFloat, 32, 1}, {kFloat, 64, 1},
    {}, {}, {}, {}, {}, {}, {}, {},  // packed: none
    {kComplex, 64, 1}, {kComplex, 128, 1}};

template <class Managed>
constexpr const char* kName = "dltensor";
template <>
constexpr const char* kName<Versioned> = "dltensor_versioned";
template <class Managed>
constexpr const char* kUsed = "used_dltensor";
template <>
constexpr const char* kUsed<Versioned> = "used_dltensor_versioned";

// What an exported tensor lives on: the array, and its layout in DLPack's form.
template <class Managed>
struct Lent {
  Managed managed;
  PyObject* array;
  int64_t dims[2 * kMaxDims];
};

template <class Managed>
void give_back(Managed* managed) {
  if (!Py_IsInitialized()) return;  // the consumer outlived the interpreter: the process is about to end
  const PyGILState_STATE gil = PyGILState_Ensure();
  auto* lent = static_cast<Lent<Managed>*>(managed->context);
  Py_DECREF(lent->array);
  delete lent;
  PyGILState_Release(gil);
}

// A capsule nobody consumed still owns its tensor.
template <class Managed>
void drop_capsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, kName<Managed>)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kName<Managed>));
  if (managed->deleter) managed->deleter(managed);
}

template <class Managed>
PyObject* lend(Array* a, uint64_t flags) {
  auto lent = std::make_unique<Lent<Managed>>();
  DLTensor& t = lent->managed.tensor;
  t = {a->memory()->data + a->offset * kItemSize[a->code],
       {kCpu, 0},
       a->ndim(),
       kTypes[a->code],
       lent->dims,
       lent->dims + a->ndim(),
       0};
  for (int d = 0; d < 2 * a->ndim(); ++d) lent->dims[d] = a->dims[d];
  lent->managed.context = lent.get();
  lent->managed.deleter = give_back<Managed>;
  if constexpr (std::is_same_v<Managed, Versioned>) {
    lent->managed.major = 1;
    lent->managed.minor = 0;
    lent->managed.flags = flags;
  }
  lent->array = reinterpret_cast<PyObject*>(a);
  PyObject* capsule = PyCapsule_New(&lent->managed, kName<Managed>, drop_capsule<Managed>);
  if (!capsule) return nullptr;
  Py_INCREF(a);
  lent.release();
  return capsule;
}

Array* contiguous_copy(Array* a) {
  const Entry* copy = find("copy");
  if (!copy) {
    PyErr_SetString(PyExc_BufferError, "this build has no native copy kernel; export a clone instead.");
    return nullptr;
  }
  Storage* storage = storage_new(a->size * kItemSize[a->code]);
  if (!storage) return nullptr;
  Array* made = array_of(globals.array_type, reinterpret_cast<PyObject*>(storage), a->dtype, a->code, a->ndim(), a->shape());
  if (!made) return nullptr;
  View in, out;
  Attrs attrs;
  fill_view(a, in);
  fill_view(made, out);
  Array* holders[] = {a, made};
  if (run_kernel(*copy, Call{&in, 1, &out, &attrs}, holders, 2, 2 * storage->nbytes)) return made;
  Py_DECREF(made);
  return nullptr;
}

int code_of(DLDataType type) {
  for (int code = 0; code < kDTypes; ++code)
    if (kTypes[code].code == type.code && kTypes[code].bits == type.bits && type.lanes == 1) return code;
  return -1;
}

template <class Managed>
void release_owner(PyObject* capsule) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, "tritium.owner"));
  if (managed->deleter) managed->deleter(managed);
}

bool acceptable(const DLTensor& t) {
  if (t.device.type != kCpu && t.device.type != kCudaHost) {
    PyErr_Format(PyExc_BufferError, "this DLPack tensor is on device type %d, not in CPU memory; copy it there first.",
                 static_cast<int>(t.device.type));
  } else if (code_of(t.dtype) < 0) {
    PyErr_Format(PyExc_BufferError, "this DLPack tensor's dtype (code %d, %d bits, %d lanes) has no counterpart here.",
                 t.dtype.code, t.dtype.bits, t.dtype.lanes);
  } else if (t.ndim < 0 || t.ndim > kMaxDims) {
    PyErr_Format(PyExc_BufferError, "this DLPack tensor has %d dimensions; at most %d are possible.",
                 static_cast<int>(t.ndim), kMaxDims);
  } else if ((reinterpret_cast<std::uintptr_t>(t.data) + t.byte_offset) % (t.dtype.bits / 8u) != 0) {
    PyErr_SetString(PyExc_BufferError, "this DLPack tensor is not aligned to its elements; copy it first.");
  } else {
    return true;
  }
  return false;
}

// The elements of a tensor, relative to its data: the lowest and the highest that strides reach.
struct Reach {
  int64_t strides[kMaxDims];
  int64_t low = 0, high = 0;
  bool empty = false;
};

constexpr int64_t kMostElements = int64_t{1} << 53;  // as layout.MAX_ELEMENTS: sums and products below stay in 64 bits

// Read shape and strides; nothing is multiplied or added before it is known to fit.
bool reach_of(const DLTensor& t, Reach& r) {
  const auto refuse = [](const char* what) {
    PyErr_Format(PyExc_BufferError, "this DLPack tensor %s; its producer is at fault.", what);
    return false;
  };
  if (t.ndim > 0 && !t.shape) return refuse("has dimensions but no shape");
  if (t.byte_offset > static_cast<uint64_t>(kMostElements)) return refuse("begins beyond any memory (byte_offset)");
  int64_t step = 1;
  for (int d = t.ndim - 1; d >= 0; --d) {
    const int64_t n = t.shape[d];
    if (n < 0) return refuse("has a negative size");
    if (n > kMostElements / step) return refuse("has more elements than can be addressed");
    r.strides[d] = t.strides ? t.strides[d] : step;
    step *= n > 0 ? n : 1;
    r.empty = r.empty || n == 0;
    const int64_t most = kMostElements / (n > 1 ? n - 1 : 1);
    if (r.strides[d] > most || r.strides[d] < -most) return refuse("has strides beyond any memory");
    const int64_t reach = n > 0 ? (n - 1) * r.strides[d] : 0;
    (reach < 0 ? r.low : r.high) += reach;
  }
  if (r.empty) r.low = r.high = 0;
  if (!r.empty && !t.data) return refuse("has elements but no data");
  return true;
}

template <class Managed>
PyObject* take(PyObject* capsule, bool writable) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kName<Managed>));
  if (!managed) return nullptr;
  if constexpr (std::is_same_v<Managed, Versioned>) {
    if (managed->major != 1)
      return PyErr_Format(PyExc_BufferError, "DLPack %u is not known here; version 1 is.", managed->major);
    writable = !(managed->flags & kReadOnly);
  }
  const DLTensor& t = managed->tensor;
  if (!acceptable(t)) return nullptr;
  const int code = code_of(t.dtype);
  const int64_t item = kItemSize[code];
  Reach r;
  if (!reach_of(t, r)) return nullptr;
  char* first = static_cast<char*>(t.data) + t.byte_offset + r.low * item;
  PyObject* owner = PyCapsule_New(managed, "tritium.owner", nullptr);
  if (!owner) return nullptr;
  Storage* storage = storage_wrap(first, r.empty ? 0 : (r.high - r.low + 1) * item, owner, writable);
  PyObject* shape = int_tuple(t.shape, t.ndim);
  PyObject* steps = int_tuple(r.strides, t.ndim);
  PyObject* result = nullptr;
  if (storage && shape && steps)
    result = Py_BuildValue("OiOOL", storage, code, shape, steps, static_cast<long long>(-r.low));
  // From here on the storage owns the tensor; on failure it stays with the capsule.
  if (result && PyCapsule_SetName(capsule, kUsed<Managed>) == 0) PyCapsule_SetDestructor(owner, release_owner<Managed>);
  Py_XDECREF(storage);
  Py_XDECREF(shape);
  Py_XDECREF(steps);
  Py_DECREF(owner);
  return result;
}

}  // namespace

PyObject* dlpack_export(PyObject* array, PyObject* max_version, PyObject* copy) {
  if (!is_array(array) || !reinterpret_cast<Array*>(array)->plain())
    return PyErr_Format(PyExc_BufferError,
                        "only a tensor in CPU memory of a plain dtype can be exported, given %.100s.",
                        Py_TYPE(array)->tp_name);
  bool versioned = false;
  if (max_version != Py_None) {
    if (!PyTuple_Check(max_version) || PyTuple_GET_SIZE(max_version) != 2)
      return PyErr_Format(PyExc_TypeError, "max_version must be a tuple of two ints, given %R.", max_version);
    const long major = PyLong_AsLong(PyTuple_GET_ITEM(max_version, 0));
    if (PyErr_Occurred()) return nullptr;
    versioned = major >= 1;
  }
  auto* a = reinterpret_cast<Array*>(array);
  const bool copies = copy == Py_True;
  if (copies && !(a = contiguous_copy(a))) return nullptr;
  if (!copies) Py_INCREF(a);
  PyObject* capsule = nullptr;
  const bool read_only = !a->memory()->writable;
  if (read_only && !versioned) {
    PyErr_SetString(PyExc_BufferError,
                    "read-only memory needs a consumer of DLPack 1.0 (max_version=(1, 0)); export a copy: x.clone().");
  } else if (storage_export(a->memory())) {
    const uint64_t flags = (read_only ? kReadOnly : 0) | (copies ? kCopied : 0);
    capsule = versioned ? lend<Versioned>(a, flags) : lend<Plain>(a, flags);
  }
  Py_DECREF(a);
  return capsule;
}

PyObject* dlpack_import(PyObject* capsule, bool writable) {
  if (PyCapsule_IsValid(capsule, kName<Versioned>)) return take<Versioned>(capsule, writable);
  if (PyCapsule_IsValid(capsule, kName<Plain>)) return take<Plain>(capsule, writable);
  return PyErr_Format(PyExc_BufferError, "a DLPack capsule that nobody has consumed yet is needed, given %R.", capsule);
}

}  // namespace tritium::python
