// A compiled program as plain data: what a call is given, where its operands lie, its steps and what it returns.
#pragma once

#include <memory>
#include <new>
#include <vector>

#include "array.h"

namespace tritium::python {

// How elements lie, seen from the first one. The Python objects are held by Plan::kept.
struct Layout {
  PyObject *dtype, *shape_tuple, *strides_tuple;
  int code, ndim;
  bool contiguous;
  int64_t size;
  int64_t shape[kMaxDims], strides[kMaxDims];  // strides in elements
};

// Bytes, counted from an address.
struct Range {
  int64_t low = 0, high = 0;
};

struct Argument {
  Layout layout;
  bool donated;  // its memory may be written
};

// A base is memory whose address is known only when the program runs. Bases are numbered: the arena, the constants, the
// arguments, the captured tensors, the fresh results.
enum : int { kArena, kConstants, kFirstArgument };

// One operand of one step: the place in Frame::views whose address follows a base.
struct Patch {
  int view;
  int64_t offset;  // in bytes
};

struct Step {
  const Entry* entry;  // nullptr: a Python function, one of Plan::python
  Attrs attrs;
  int first, nin, nout;  // its views: the inputs, then the outputs
};

// An operand of a step that Python carries out: it gets a tensor of this layout.
struct Passed {
  int base;  // -1: None
  int64_t offset;  // in bytes
  Layout layout;
};

// A step without a native kernel: kernel(*inputs, out=…, **attrs), called with the GIL. Plan::kept holds the objects.
struct PythonStep {
  int step;
  PyObject *kernel, *names;       // names: "out", then those of the attributes
  std::vector<PyObject*> values;  // of the attributes
  std::vector<Passed> operands;   // the inputs, then the outputs
};

enum class Returns : std::uint8_t { fresh, same, clone, argument };

struct Result {
  Returns kind;
  int from;  // fresh, clone: the base; same: an earlier result; argument: which one
  Layout layout;
  int64_t offset, nbytes;  // the offset in elements, from where the base begins; nbytes of the storage, if fresh
  bool late;               // it looks at memory that the steps write, so it is made after them
};

struct Launch {
  Kernel run;
  Call call;
  bool may_fault;
  int ahead = -1;  // of Frame::views: the weights that this step or the next one with any reads; -1: no step does
  int64_t ahead_bytes = 0;
  int then = -1;  // where this step reads those: the ones after them
  int64_t then_bytes = 0;
};

// Memory from `low` up to `high`.
struct Extent {
  char *low, *high;
};

// What one call needs for itself. Everything but addresses is filled in once.
struct Frame {
  std::vector<View> views;
  std::vector<Launch> launches;
  std::vector<char*> at;         // by base: the address that the views have now
  std::vector<PyObject*> made;   // the results so far
  std::vector<Extent> taken;     // of the donated arguments, in the order of memory
  std::vector<Block*> held;      // blocks kept alive while the GIL is away
  int64_t began_ns = 0;           // when the first step did, if steps are timed
  int64_t before_ns = 0;          // when the step before this one ended, if they are
  std::vector<int64_t> spent_ns;  // by step, if they are
  std::vector<PyObject*> passed;  // to the Python function that runs now
  Storage* arena = nullptr;
};

struct AlignedDelete {
  void operator()(char* memory) const { ::operator delete(memory, std::align_val_t{kAlignment}); }
};

struct Plan {
  std::vector<Argument> args;
  std::vector<int> donated;  // of args, those that are
  std::vector<Array*> captured;
  std::vector<Range> ranges;  // by base: the bytes it has
  std::unique_ptr<char, AlignedDelete> constants;
  int64_t arena_bytes = 0;
  std::vector<Step> steps;
  std::vector<PythonStep> python;  // in the order of steps
  std::vector<View> views;      // of all steps, without addresses
  std::vector<Patch> patches;   // by base
  std::vector<int> first_patch;  // of each base, and the end
  std::vector<Result> results;
  std::vector<int> fresh;  // of results, those with memory of their own, by base
  int64_t touched = 0;  // bytes that all steps read and write
  bool single = false;
  PyObject* about = nullptr;  // a tuple, what spans say ran: of the call, then of each step or none; nullptr: there are none
  std::vector<PyObject*> kept;  // what all of this refers to
  std::vector<std::unique_ptr<Frame>> idle;

  ~Plan() {
    for (PyObject* o : kept) Py_DECREF(o);
  }
};

// From the arguments of Program(...). `sizes`: the values of sizes that vary, by slot; nullptr: none does. nullptr: exception.
std::unique_ptr<Plan> read_plan(PyObject* args, PyObject* kwargs, const std::vector<int64_t>* sizes = nullptr);
PyObject* program_of(std::unique_ptr<Plan> plan);  // a Program; nullptr: exception
bool names_steps(PyObject* program);               // whether its spans can say which steps ran

}  // namespace tritium::python
