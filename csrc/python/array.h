// The Python types of the native runtime as C structures: Storage, Array, Kernel, Row, Program, and what they share.
// Everything here needs the GIL unless it says otherwise.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstdint>

#include "../isa.h"
#include "../pool.h"
#include "../view.h"

namespace tritium::python {

using std::int64_t;
using std::uint64_t;

// The handle shared by a tensor and all its views. A block may be shared by several handles until one of them writes.
struct Storage {
  PyObject_HEAD
  Block* block;  // nullptr: imported memory, kept alive by `owner`
  char* data;
  int64_t nbytes;
  PyObject* owner;
  PyObject* weakrefs;
  bool writable, exported, imported;
  int writing;  // kernels that write here now, without the GIL
};

// Strided memory; ob_size is the number of dimensions. Strides and offset count elements.
struct Array {
  PyObject_VAR_HEAD
  PyObject* storage;  // a Storage when `native`, else any object: then this is only a record
  PyObject* dtype;
  PyObject* shape_tuple;  // made when first asked for
  PyObject* strides_tuple;
  PyObject* weakrefs;
  int64_t offset, size;
  std::int8_t code;  // the DType, or -1: native code does not know it
  bool native, held, contiguous;  // `held`: the storage is a Held
  bool varies;  // traced, and its shape has sizes that vary: Python computes with them
  int64_t dims[1];  // shape, then strides

  int ndim() const { return static_cast<int>(ob_base.ob_size); }
  int64_t* shape() { return dims; }
  int64_t* strides() { return dims + ob_base.ob_size; }
  Storage* memory() { return reinterpret_cast<Storage*>(storage); }
  bool usable() const { return native && code >= 0; }           // a kernel can work on it
  bool plain() const { return usable() && is_plain(static_cast<DType>(code)); }     // so can whoever knows addresses and strides
  bool known() const { return (native || held) && code >= 0; }  // its calls can be told from others
};

// Bytes of so many elements of an array; of a packed dtype they fill whole tiles.
inline int64_t span(int code, int64_t elements) {
  if (is_plain(static_cast<DType>(code))) return elements * kItemSize[code];
  const Tile t = tile(static_cast<DType>(code));
  return elements / (t.rows * t.block) * t.nbytes;
}

struct KernelObject {
  PyObject_HEAD
  const Entry* entry;
  Isa isa;
  vectorcallfunc call;
};

struct Spans;  // what a recorder keeps

// What `setup` was told, and the types of this module.
struct Globals {
  PyTypeObject *storage_type, *held_type, *array_type, *kernel_type, *row_type, *program_type, *caller_type;
  PyTypeObject* tensor_type;  // what replay makes
  PyTypeObject* size_type;    // of sizes that vary, while a function is traced; nullptr: none yet
  Py_ssize_t size_traced, size_slot;  // where an object of it has its integers `traced` and `slot`
  PyObject* device;           // what Storage.device returns
  PyObject* interpreter;      // a ContextVar; replay only while it is None
  PyObject* identity_types;   // instances of these are known by their address
  PyObject* watcher;          // nullptr: nobody listens
  PyObject* alarm;            // called when memory runs low; nullptr: nobody
  PyObject* trim_watcher;     // called when the pool has trimmed itself; nullptr: nobody
  bool fast = true;
  bool usual = false;         // new tensors that name no device are made on the CPU, of any size
  Spans* recorder = nullptr;  // the first of those who record; nullptr: nobody does
};
extern Globals globals;

PyTypeObject* make_storage_type();
PyTypeObject* make_held_type();
PyTypeObject* make_array_type();
PyTypeObject* make_kernel_type();
PyTypeObject* make_row_type();
PyTypeObject* make_program_type();
PyTypeObject* make_programs_type();
PyTypeObject* make_caller_type();
PyTypeObject* make_bound_caller_type();
PyTypeObject* make_guarded_type();
PyTypeObject* make_again_type();
PyTypeObject* make_quick_type();

// Calls, for types whose calls mostly need no Python frame.
bool interpreting();  // whether someone traces: then calls are Python's
PyObject* call_python(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* names);  // self.call(…)
void keep_vectorcall(PyTypeObject* type);  // a Python subclass calls as fast as its base

// A size that varies: an integer with attributes `traced`, its value now, and `slot`, its number in a program of many sizes.
inline bool is_size(PyObject* o) { return Py_TYPE(o) == globals.size_type; }
bool size_attribute(PyObject* size, Py_ssize_t where, int64_t& to);  // false: exception
bool set_size_type(PyObject* type);                                  // false: exception

inline bool is_storage(PyObject* o) { return Py_TYPE(o) == globals.storage_type; }
inline bool is_held(PyObject* o) { return PyObject_TypeCheck(o, globals.held_type); }
inline bool is_array(PyObject* o) { return PyObject_TypeCheck(o, globals.array_type); }

// The package's own errors, by their names in tritium.errors.
PyObject* error_class(const char* name);  // a new reference, or nullptr with an exception
void raise_error(const char* name, const char* message);

// Storage. Where a function returns nullptr or false, a Python exception is set.
Storage* storage_new(int64_t nbytes);
Storage* storage_wrap(char* data, int64_t nbytes, PyObject* owner, bool writable);
Storage* storage_clone(Storage* s);  // shares the bytes until one side writes; a copy if ever exported or imported
bool storage_own(Storage* s);     // before a write: its bytes become its own
bool storage_export(Storage* s);  // own, and note that someone outside may write

// Array.
int dtype_code(PyObject* dtype);  // its `code`; -2: exception
bool is_contiguous(int ndim, const int64_t* shape, const int64_t* strides, int code);
// Strides of contiguous memory; returns the number of elements, the padding of packed dtypes included.
int64_t contiguous_strides(int ndim, const int64_t* shape, int code, int64_t* strides);
PyObject* exact(PyObject* value);  // attributes as a key; a new reference, or nullptr with an exception
PyObject* order_nodes(PyObject* roots, PyObject* known);  // a list: every node that the roots need, inputs first
PyObject* int_tuple(const int64_t* values, int n);
Array* array_of(PyTypeObject* type, PyObject* storage, PyObject* dtype, int code, int ndim, const int64_t* shape);
// Another layout of the same storage and dtype, its offset `shift` elements from the array's.
Array* array_view(PyTypeObject* type, Array* of, int ndim, const int64_t* shape, const int64_t* strides, int64_t shift);
PyObject* clone_of(Array* a);  // shares the memory until one side writes; a copy where that would keep much more alive
PyObject* array_overlap(PyObject* a, PyObject* b);
PyObject* number_tensor(PyObject* value, PyObject* dtype);  // 0-d; None: Python's own path takes it
int overlap(const View& a, const View& b);  // 0 disjoint, 1 the same elements in the same places, 2 anything else

inline void fill_view(Array* a, View& v) {
  const int ndim = a->ndim();
  v.dtype = static_cast<DType>(a->code);
  v.ndim = ndim;
  v.data = a->memory()->data + span(a->code, a->offset);
  const int inner = is_plain(v.dtype) ? 0 : tile(v.dtype).rows > 1 ? 2 : 1;  // axes inside a tile
  for (int d = 0; d < ndim; ++d) {
    v.shape[d] = a->shape()[d];
    v.strides[d] = d < ndim - inner ? span(a->code, a->strides()[d]) : 0;
  }
}

// Kernels.
bool read_attr(const Entry& entry, PyObject* name, PyObject* value, int ndim, Attrs& attrs);
bool store_scalar(PyObject* value, int code, void* to);  // false: it does not fit; no exception
PyObject* kernel_object(const Entry* entry, Isa isa);
// Runs it; without the GIL when there is enough to do. `holders` are the arrays behind the views. False: exception.
bool run_kernel(const Entry& entry, const Call& call, Array* const* holders, int count, int64_t bytes, int nout = 1);
void raise_fault();  // the exception of the fault that a kernel left behind

// DLPack.
PyObject* dlpack_export(PyObject* array, PyObject* max_version, PyObject* copy);
// `writable` is for capsules of the first version, which do not say whether their memory may be written.
PyObject* dlpack_import(PyObject* capsule, bool writable);

}  // namespace tritium::python
