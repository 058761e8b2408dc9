// The key of x[key], read: the part of x that its plain parts see, and the tensors of indices beside them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "../workspace.h"
#include "array.h"

namespace tritium::python {

constexpr int kMaxIndexTensors = 6;  // of a key; more are for Python: to make room for them costs every call

// Memory of a tensor, or of an ndarray that lends it until let_go. By hand: a daemon thread that ends while it waits for
// the GIL is unwound and must not touch it any more.
struct Lent {
  View view;
  Array* array = nullptr;  // borrowed
  Py_buffer buffer;        // of an ndarray, where `holds`
  bool holds = false;

  bool borrow(PyObject* o);  // false: it is neither, or of a dtype native code does not know; no exception
  void let_go() {
    if (holds) PyBuffer_Release(&buffer);
    holds = false;
  }
};

// A view's axes without the room behind them.
inline void copy_view(View& to, const View& from) {
  to.data = from.data;
  to.dtype = from.dtype;
  to.ndim = from.ndim;
  for (int d = 0; d < from.ndim; ++d) {
    to.shape[d] = from.shape[d];
    to.strides[d] = from.strides[d];
  }
}

struct IndexTensors {
  IndexTensors() {}  // most of it stays as it is: to clear it would cost more than to index

  View operands[2];  // what a kernel is given before them
  View views[kMaxIndexTensors];
  std::int8_t source[kMaxIndexTensors];  // which of `lent` it is; -1: memory of ours
  int count = 0;
  std::uint32_t at = 0;     // the axes of the view that they index
  int position = 0;         // where their own axes stand among the other axes
  bool mask_alone = false;  // the key is one mask with axes
  View mask;                // that mask
  bool by_element = false;  // the key is one mask with all axes of x
  Lent lent[kMaxIndexTensors];
  int lent_count = 0;
  std::unique_ptr<Workspace> spaces[kMaxIndexTensors];  // numbers of lists, indices of masks
  int space_count = 0;
  alignas(8) char small[1024];  // the same, while there is room
  int64_t small_used = 0;
};
static_assert(offsetof(IndexTensors, views) == offsetof(IndexTensors, operands) + 2 * sizeof(View));

class IndexKey {
 public:
  explicit IndexKey(Array* x) : of(x) {}

  Array* const of;
  int ndim = 0;  // of the view
  int64_t shift = 0, dims[kMaxDims], steps[kMaxDims];
  bool ellipsis = false;                // it has one
  std::optional<IndexTensors> tensors;  // none: the key is plain

  bool read(PyObject* key);  // false: for Python, which says what is wrong; or an exception
  // The shape that the key makes. False: index tensors do not broadcast, or there are too many axes.
  bool shape(int& n, int64_t* to) const;
  void see(View& to) const;  // where it is now
  void refresh();     // memory of index tensors may have moved, where Python code ran
  void let_go();

 private:
  enum class Run : char { none, open, closed, apart };
  Run run_ = Run::none;  // of index tensors, and ints beside them, one after another
  int axis_ = 0;         // axes read
  int first_ = 0;        // axes of the view before the run

  bool add(int64_t n, int64_t step);
  bool add_whole();
  bool add_index(int64_t n, int64_t step, const View& index, int source = -1);
  void enter(bool picks);
  bool take(PyObject* part);
  bool take_int(int64_t i);
  bool take_slice(PyObject* part);
  bool take_list(PyObject* part);
  bool take_tensor(PyObject* part);
  bool take_mask(const View& mask, Array* holder);
  bool take_flag(bool truth);
  char* room(int64_t nbytes);
};

// How many elements of x are not 0, by stretches of kStretch: counts[i] becomes where those of stretch i begin, and one more
// where all end. False: exception.
constexpr int64_t kStretch = 16384;
inline int64_t stretches(const View& x) { return (x.size() + kStretch - 1) / kStretch; }
bool count_nonzero(const View& x, Array* holder, int64_t* starts);
// Their places, one row of `to` for each axis of x. False: exception.
bool find_nonzero(const View& x, Array* holder, const int64_t* starts, int64_t* to, Array* out);

}  // namespace tritium::python
