// Storage: bytes from the pool or from outside, and copy-on-write between the handles that share them.
#include <cstring>

#include "../threads.h"
#include "array.h"
#include "quiet.h"

namespace tritium::python {

Globals globals;

PyObject* error_class(const char* name) {
  PyObject* errors = PyImport_ImportModule("tritium.errors");
  PyObject* kind = errors ? PyObject_GetAttrString(errors, name) : nullptr;
  Py_XDECREF(errors);
  return kind;
}

void raise_error(const char* name, const char* message) {
  PyObject* kind = error_class(name);
  if (!kind) return;
  PyErr_SetString(kind, message);
  Py_DECREF(kind);
}

namespace {

constexpr int64_t kQuietBytes = 1 << 20;  // a copy of more than this lets other Python threads run

// Calls a user's function; an error it raises is reported, and one that is already set stays.
template <typename... Values>
void call_back(PyObject* callee, const char* format, Values... values) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Py_INCREF(callee);
  PyObject* result = PyObject_CallFunction(callee, format, values...);
  if (!result && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    PyErr_Clear();
    PyErr_SetInterrupt();  // Ctrl-C while it ran: the program hears of it at its next step
  } else if (!result) {
    PyErr_WriteUnraisable(callee);
  }
  Py_XDECREF(result);
  Py_DECREF(callee);
  PyErr_Restore(type, value, trace);
}

[[gnu::noinline]] void tell_listeners(const char* kind, const char* data, int64_t nbytes, bool reused) {
  if (pool_has_news.load(std::memory_order_relaxed)) {
    const PoolNews news = pool_take_news();
    if (news.high && globals.alarm) {
      const PoolStats now = pool_stats();
      call_back(globals.alarm, "LL", static_cast<long long>(now.current_block_bytes),
                static_cast<long long>(now.memory_limit));
    }
    if (news.trims && globals.trim_watcher)
      call_back(globals.trim_watcher, "LL", static_cast<long long>(news.trims),
                static_cast<long long>(news.released));
  }
  if (!globals.watcher) return;
  call_back(globals.watcher, "sKLO", kind,
            static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(data)), static_cast<long long>(nbytes),
            reused ? Py_True : Py_False);
}

inline void tell(const char* kind, const char* data, int64_t nbytes, bool reused) {
  if (globals.watcher || pool_has_news.load(std::memory_order_relaxed)) [[unlikely]]
    tell_listeners(kind, data, nbytes, reused);
}

Block* allocate(int64_t nbytes) {
  try {
    return pool_allocate(nbytes);
  } catch (const std::bad_alloc& error) {
    raise_error("OutOfMemoryError", error.what());
    return nullptr;
  }
}

Storage* blank() {
  auto* s = reinterpret_cast<Storage*>(globals.storage_type->tp_alloc(globals.storage_type, 0));
  if (s) s->writable = true;
  return s;
}

void hold(Storage* s, Block* block) {
  s->block = block;
  s->data = block->data;
  s->nbytes = block->nbytes;
  ++block->handles;
}

void drop(Block* block) {
  if (--block->handles == 0) tell("free", block->data, block->nbytes, false);
  block_release(block);
}

// False: exception, a signal ended it.
bool copy_bytes(char* to, const char* from, int64_t nbytes) {
  const auto body = [=](int64_t begin, int64_t end) { std::memcpy(to + begin, from + begin, end - begin); };
  if (nbytes > kQuietBytes) return run_without_gil(nbytes, [&] { parallel_for(nbytes, kQuietBytes, body); });
  body(0, nbytes);
  return true;
}

// A new block with the bytes of `s`; nullptr: exception. Other threads may run meanwhile.
Block* copy_block(Storage* s) {
  Block* block = allocate(s->nbytes);
  if (!block) return nullptr;
  Block* source = s->block;
  if (source) block_retain(source);
  const bool copied = s->nbytes == 0 || copy_bytes(block->data, s->data, s->nbytes);
  if (source) block_release(source);
  if (copied) return block;
  block_release(block);
  return nullptr;
}

PyObject* address_of(Storage* s) { return PyLong_FromVoidPtr(s->data); }

PyObject* storage_tp_new(PyTypeObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"nbytes", nullptr};
  long long nbytes;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L:Storage", const_cast<char**>(names), &nbytes)) return nullptr;
  return reinterpret_cast<PyObject*>(storage_new(nbytes));
}

void storage_dealloc(PyObject* self) {
  auto* s = reinterpret_cast<Storage*>(self);
  PyTypeObject* type = Py_TYPE(self);
  if (s->weakrefs) PyObject_ClearWeakRefs(self);
  if (s->block) {
    drop(s->block);
  } else if (s->imported) {
    tell("unwrap", s->data, s->nbytes, false);
  }
  Py_XDECREF(s->owner);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* storage_method_wrap(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"address", "nbytes", "owner", "writable", nullptr};
  PyObject *address, *owner;
  long long nbytes;
  int writable;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLOp:wrap", const_cast<char**>(names), &address, &nbytes, &owner,
                                   &writable))
    return nullptr;
  void* data = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return nullptr;
  if (nbytes < 0 || (!data && nbytes > 0))
    return PyErr_Format(PyExc_ValueError, "Storage.wrap: %lld bytes at address %p is no memory.", nbytes, data);
  return reinterpret_cast<PyObject*>(storage_wrap(static_cast<char*>(data), nbytes, owner, writable != 0));
}

PyObject* storage_method_clone(PyObject* self, PyObject*) {
  return reinterpret_cast<PyObject*>(storage_clone(reinterpret_cast<Storage*>(self)));
}

PyObject* storage_method_own(PyObject* self, PyObject*) {
  auto* s = reinterpret_cast<Storage*>(self);
  return storage_own(s) ? address_of(s) : nullptr;
}

PyObject* storage_method_export(PyObject* self, PyObject*) {
  auto* s = reinterpret_cast<Storage*>(self);
  return storage_export(s) ? address_of(s) : nullptr;
}

template <bool Storage::*flag>
PyObject* get_flag(PyObject* self, void*) {
  return PyBool_FromLong(reinterpret_cast<Storage*>(self)->*flag);
}

PyObject* get_nbytes(PyObject* self, void*) { return PyLong_FromLongLong(reinterpret_cast<Storage*>(self)->nbytes); }
PyObject* get_address(PyObject* self, void*) { return address_of(reinterpret_cast<Storage*>(self)); }
PyObject* get_sharers(PyObject* self, void*) {
  const Block* block = reinterpret_cast<Storage*>(self)->block;
  return PyLong_FromLong(block ? block->handles : 1);
}
PyObject* get_device(PyObject*, void*) {
  PyObject* device = globals.device ? globals.device : Py_None;
  Py_INCREF(device);
  return device;
}

PyMethodDef storage_methods[] = {
    {"wrap", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(storage_method_wrap)),
     METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "wrap(address, nbytes, owner, writable)\n--\n\nMemory someone else owns; `owner` is kept alive."},
    {"clone", storage_method_clone, METH_NOARGS,
     "clone($self, /)\n--\n\nA handle sharing the bytes until one side writes; a copy if ever exported or imported."},
    {"own", storage_method_own, METH_NOARGS,
     "own($self, /)\n--\n\nBefore a write: these bytes become this handle's own. Returns the address."},
    {"export", storage_method_export, METH_NOARGS,
     "export($self, /)\n--\n\nOwn the bytes and note that someone outside may write to them. Returns the address."},
    {nullptr, nullptr, 0, nullptr}};

// For kernels in NumPy: unlike a tensor's buffer it does not count as handing memory out.
int storage_getbuffer(PyObject* self, Py_buffer* view, int flags) {
  auto* s = reinterpret_cast<Storage*>(self);
  return PyBuffer_FillInfo(view, self, s->data, s->nbytes, !s->writable, flags);
}

PyObject* get_memory(PyObject* self, void*) { return Py_NewRef(self); }

PyGetSetDef storage_getset[] = {
    {"memory", get_memory, nullptr, "What NumPy's kernels see the bytes through; for them only.", nullptr},
    {"nbytes", get_nbytes, nullptr, "Size in bytes.", nullptr},
    {"address", get_address, nullptr, "Where the bytes are now; for reading only.", nullptr},
    {"writable", get_flag<&Storage::writable>, nullptr, "Whether the bytes may be written.", nullptr},
    {"exported", get_flag<&Storage::exported>, nullptr, "Whether the bytes were ever handed out.", nullptr},
    {"imported", get_flag<&Storage::imported>, nullptr, "Whether someone else owns the bytes.", nullptr},
    {"sharers", get_sharers, nullptr, "Handles sharing these bytes; 1 means exclusive.", nullptr},
    {"device", get_device, nullptr, "The device the bytes are on.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef storage_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Storage, weakrefs), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot storage_slots[] = {
    {Py_tp_doc, const_cast<char*>("Storage(nbytes)\n--\n\nUninitialised bytes from the pool; the handle shared by a "
                                  "tensor and all its views.")},
    {Py_tp_new, reinterpret_cast<void*>(storage_tp_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(storage_dealloc)},
    {Py_tp_methods, storage_methods},
    {Py_tp_getset, storage_getset},
    {Py_bf_getbuffer, reinterpret_cast<void*>(storage_getbuffer)},
    {Py_tp_members, storage_members},
    {0, nullptr}};

PyType_Spec storage_spec = {"tritium._native.Storage", sizeof(Storage), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, storage_slots};

}  // namespace

Storage* storage_new(int64_t nbytes) {
  if (nbytes < 0) {
    PyErr_Format(PyExc_ValueError, "Storage: nbytes must not be negative, given %lld.", static_cast<long long>(nbytes));
    return nullptr;
  }
  Block* block = allocate(nbytes);
  if (!block) return nullptr;
  Storage* s = blank();
  if (!s) {
    block_release(block);
    return nullptr;
  }
  hold(s, block);
  tell("alloc", block->data, nbytes, block->reused);
  return s;
}

Storage* storage_wrap(char* data, int64_t nbytes, PyObject* owner, bool writable) {
  Storage* s = blank();
  if (!s) return nullptr;
  Py_INCREF(owner);
  s->data = data;
  s->nbytes = nbytes;
  s->owner = owner;
  s->writable = writable;
  s->imported = true;
  tell("wrap", data, nbytes, false);
  return s;
}

Storage* storage_clone(Storage* s) {
  Block* block = s->block;
  const bool copies = s->exported || s->imported || s->writing;
  if (copies && !(block = copy_block(s))) return nullptr;
  Storage* made = blank();
  if (!made) {
    if (copies) block_release(block);
    return nullptr;
  }
  if (!copies) block_retain(block);
  hold(made, block);
  if (copies) tell("alloc", block->data, block->nbytes, block->reused);
  return made;
}

bool storage_own(Storage* s) {
  if (!s->writable) {
    raise_error("ViewError", "This tensor looks at read-only memory; write to a copy: x.clone().");
    return false;
  }
  while (s->block && s->block->handles > 1) {
    Block* before = s->block;
    Block* made = copy_block(s);
    if (!made) return false;
    if (s->block != before || before->handles == 1) {  // another thread was here first
      block_release(made);
      continue;
    }
    hold(s, made);
    drop(before);
    tell("copy", made->data, made->nbytes, made->reused);
  }
  return true;
}

bool storage_export(Storage* s) {
  if (s->writable && !storage_own(s)) return false;
  s->exported = true;
  return true;
}

PyTypeObject* make_storage_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&storage_spec)); }

}  // namespace tritium::python
