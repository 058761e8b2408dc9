// What Row remembers: for the key of a call, what is to be done.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "array.h"

namespace tritium::python {

constexpr int kMaxRecords = 1024;
constexpr int kMaxReplayed = 8;  // inputs of a call that is remembered
constexpr int kMaxTold = 6;      // arguments and keywords besides, that a library's function is called with

// A tensor that a call gives.
struct Made {
  PyObject *dtype = nullptr, *shape = nullptr, *strides = nullptr;
  int code = -1, ndim = 0;
  int64_t dims[kMaxDims];
  int64_t nbytes = 0;

  Made() = default;
  Made(const Made&) = delete;
  ~Made() {
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
  }
};

// A call that a device's own library carries out, on values.
struct Foreign {
  PyObject* fn = nullptr;        // fn(*values, *told, names=…) -> value, or a tuple of them
  PyObject* told = nullptr;      // what it is given besides, the same at every call: by place, then by name
  PyObject* names = nullptr;     // of the last of those; nullptr: none
  PyTypeObject* type = nullptr;  // of the storages of the results
  PyObject* device = nullptr;
  PyObject* look = nullptr;      // look(array) -> its value, where that is not just what its storage holds
  PyObject* number = nullptr;    // number(scalar, dtype) -> a value
  PyObject* dtypes = nullptr;    // of the scalars, by operand
  bool together = false;         // the values come as one tuple

  Foreign() = default;
  Foreign(const Foreign&) = delete;
  ~Foreign() {
    for (PyObject* o : {fn, told, names, reinterpret_cast<PyObject*>(type), device, look, number, dtypes}) Py_XDECREF(o);
  }
};

// What a call of one key does.
struct Record {
  std::vector<uint64_t> key;
  uint64_t hash = 0;
  int uses = 1;  // the table's own, and one for each replay under way
  bool lately = true;  // replayed since the table was last thinned out
  const Entry* entry = nullptr;  // nullptr: the result is only allocated, or a view
  PyObject* kernel = nullptr;  // a kernel in Python, kernel(*operands, out=…, **settings); among `kept`
  PyObject* settings = nullptr;  // its attributes, a dict; nullptr: none; among `kept`
  std::unique_ptr<Foreign> foreign;  // then it is not a kernel of ours
  bool view = false;
  int number = -1;         // the dtype that the number which varies must fit; -1: none varies
  bool any_shape = false;  // element by element: the result has the shape of the operands, broadcast
  int64_t steps[kMaxDims], shift = 0;  // of a view: its strides, and how far its offset lies from the input's
  Attrs attrs;
  std::unique_ptr<Made[]> made;
  int results = 0;
  bool several = false;  // they come as a tuple
  int64_t touched = 0;
  std::int8_t scalars[kMaxReplayed];
  PyObject* about = nullptr;    // what its spans say ran; nullptr: it leaves none
  std::vector<PyObject*> kept;  // objects the key knows by address, and `about`

  ~Record() {
    for (PyObject* o : kept) Py_DECREF(o);
  }
};

inline void release(Record* r) {
  if (--r->uses == 0) delete r;
}

// Records by key: open addressing, at most half full. Of a full table those not replayed lately make room: what is used stays.
struct Records {
  std::vector<Record*> slots;
  int count = 0;

  Record** place(const uint64_t* words, int n, uint64_t hash) {
    const std::size_t mask = slots.size() - 1;
    for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
      Record* r = slots[i];
      if (!r) return &slots[i];
      if (r->hash == hash && r->key.size() == static_cast<std::size_t>(n) &&
          std::memcmp(r->key.data(), words, sizeof(uint64_t) * static_cast<std::size_t>(n)) == 0)
        return &slots[i];
    }
  }

  void insert(Record* r) {
    if (count >= kMaxRecords) thin_out();
    if (slots.empty()) slots.resize(16);
    if (2 * (count + 1) > static_cast<int>(slots.size())) {
      std::vector<Record*> before(slots.size() * 2);
      before.swap(slots);
      for (Record* old : before)
        if (old) *place(old->key.data(), static_cast<int>(old->key.size()), old->hash) = old;
    }
    Record** at = place(r->key.data(), static_cast<int>(r->key.size()), r->hash);
    Record* old = *at;
    *at = r;
    if (old) {
      release(old);
    } else {
      ++count;
    }
  }

  // Drops at least half of the records, those replayed lately last.
  void thin_out() {
    std::vector<Record*> before(slots.size());
    before.swap(slots);
    int leaving = count / 2;
    std::vector<Record*> gone;
    for (const bool lately : {false, true}) {
      for (Record*& r : before) {
        if (!r || r->lately != lately || (lately && leaving <= 0)) continue;
        gone.push_back(r);
        r = nullptr;
        --leaving;
      }
    }
    count -= static_cast<int>(gone.size());
    for (Record* r : before) {
      if (!r) continue;
      r->lately = false;
      *place(r->key.data(), static_cast<int>(r->key.size()), r->hash) = r;
    }
    for (Record* r : gone) release(r);  // last: releasing objects may run Python code
  }

  void clear() {
    std::vector<Record*> before;
    before.swap(slots);
    count = 0;
    for (Record* r : before)
      if (r) release(r);
  }
};

}  // namespace tritium::python
