// Program: a compiled program as a Python callable. One call runs all its steps, without Python between them except
// for steps that are Python functions.
#include "program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "../ahead.h"
#include "../fault.h"
#include "../watch.h"
#include "events.h"
#include "quiet.h"

namespace tritium::python {
namespace {

constexpr int64_t kWeightBytes = 256 << 10;  // of a captured matrix that is worth fetching ahead
constexpr int64_t kQuietBytes = 64 << 10;  // with more to do than this the GIL is released, as for one kernel

struct Program {
  PyObject_HEAD
  vectorcallfunc call;
  Plan* plan;
  long long runs, last_ns;
};

// A call may be refused, so that Python takes its slow path; only then is there no exception.
enum class Verdict : std::uint8_t { go, refuse, fail };

Program* as_program(PyObject* self) { return reinterpret_cast<Program*>(self); }
Array* as_array(PyObject* o) { return reinterpret_cast<Array*>(o); }

bool matches(PyObject* given, const Layout& wanted) {
  if (Py_TYPE(given) != globals.tensor_type && !is_array(given)) return false;
  Array* a = as_array(given);
  if (!a->native || a->code != wanted.code || a->ndim() != wanted.ndim) return false;
  for (int d = 0; d < wanted.ndim; ++d) {
    const int64_t n = wanted.shape[d];
    if (a->shape()[d] != n || (a->strides()[d] != wanted.strides[d] && n > 1)) return false;
  }
  return true;
}

bool shared(const Storage* s) { return s->block && s->block->handles > 1; }

char* first_element(Array* a) { return a->memory()->data + span(a->code, a->offset); }

Array* array_at(const Plan& plan, PyObject* const* args, int base) {
  const int i = base - kFirstArgument, count = static_cast<int>(plan.args.size());
  return i < count ? as_array(args[i]) : plan.captured[i - count];
}

Extent extent_of(const Plan& plan, PyObject* const* args, int base) {
  char* at = first_element(array_at(plan, args, base));
  return {at + plan.ranges[base].low, at + plan.ranges[base].high};
}

bool accept(const Plan& plan, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != static_cast<Py_ssize_t>(plan.args.size())) return false;
  for (Py_ssize_t i = 0; i < nargs; ++i)
    if (!matches(args[i], plan.args[i].layout)) return false;
  return true;
}

// Donated memory becomes the argument's own, and nothing else the steps read may lie in it.
Verdict take_donated(const Plan& plan, Frame& frame, PyObject* const* args) {
  for (const int i : plan.donated) {
    Storage* s = as_array(args[i])->memory();
    if (!s->writable) return Verdict::refuse;
    if (shared(s) && !storage_own(s)) return Verdict::fail;
  }
  std::vector<Extent>& taken = frame.taken;
  taken.clear();
  for (const int i : plan.donated) taken.push_back(extent_of(plan, args, kFirstArgument + i));
  std::sort(taken.begin(), taken.end(), [](const Extent& a, const Extent& b) { return a.low < b.low; });
  for (std::size_t i = 1; i < taken.size(); ++i)
    if (taken[i - 1].high > taken[i].low) return Verdict::refuse;
  const int others = static_cast<int>(plan.args.size() + plan.captured.size());
  for (int i = 0; i < others; ++i) {
    if (i < static_cast<int>(plan.args.size()) && plan.args[i].donated) continue;
    const Extent e = extent_of(plan, args, kFirstArgument + i);
    const auto met = std::partition_point(taken.begin(), taken.end(), [=](const Extent& t) { return t.high <= e.low; });
    if (met != taken.end() && met->low < e.high) return Verdict::refuse;
  }
  return Verdict::go;
}

int first_captured(const Plan& plan) { return kFirstArgument + static_cast<int>(plan.args.size()); }

// Whether a step reads all of a matrix that it is given; not of a table from which it takes rows.
bool reads_whole(const Step& s, const View& v) {
  if (v.ndim != 2 || !s.entry || !std::strncmp(s.entry->name, "take", 4)) return false;
  return std::strcmp(s.entry->name, "bounded_argmax") != 0 || !is_plain(v.dtype) || v.dtype == DType::i8;
}

// Tells every step which weights are read next, by itself or by a step after it, and then; after the last ones come those of
// the next call. Weights are captured matrices.
void look_ahead(const Plan& plan, Frame& frame) {
  std::vector<int64_t> nbytes(frame.views.size(), 0);
  for (int base = first_captured(plan); base < first_captured(plan) + static_cast<int>(plan.captured.size()); ++base) {
    for (int i = plan.first_patch[base]; i < plan.first_patch[base + 1]; ++i)
      nbytes[plan.patches[i].view] = plan.ranges[base].high - plan.patches[i].offset;
  }
  int ahead = -1;
  const int count = static_cast<int>(plan.steps.size());
  for (int i = 2 * count - 1; i >= 0; --i) {
    const Step& s = plan.steps[i % count];
    Launch& launch = frame.launches[i % count];
    const int after = ahead;
    int64_t most = kWeightBytes - 1;
    for (int view = s.first; view < s.first + s.nin; ++view) {
      if (nbytes[view] <= most || !reads_whole(s, frame.views[view])) continue;
      most = nbytes[view];
      ahead = view;
    }
    if (ahead < 0) continue;
    launch.ahead = ahead;
    launch.ahead_bytes = nbytes[ahead];
    if (most < kWeightBytes || after < 0) continue;
    launch.then = after;
    launch.then_bytes = nbytes[after];
  }
}

std::unique_ptr<Frame> new_frame(Plan& plan) {
  auto frame = std::make_unique<Frame>();
  frame->views = plan.views;
  frame->launches.reserve(plan.steps.size());
  for (const Step& s : plan.steps) {
    View* in = frame->views.data() + s.first;
    frame->launches.push_back({s.entry ? s.entry->run : nullptr, {in, s.nin, in + s.nin, &s.attrs},
                               s.entry && s.entry->may_fault});
  }
  look_ahead(plan, *frame);
  frame->at.resize(plan.ranges.size());
  frame->taken.reserve(plan.donated.size());
  frame->made.resize(plan.results.size());
  frame->held.resize(plan.args.size() + plan.captured.size());
  frame->spent_ns.resize(plan.steps.size());
  std::size_t most = 0;
  for (const PythonStep& s : plan.python) most = std::max(most, s.operands.size() + s.values.size() + 1);
  frame->passed.reserve(most);
  return frame;
}

// nullptr: exception. A frame is given back by hand, never by a destructor: a daemon thread that ends while it waits
// for the GIL is unwound through here and must not touch anything of ours any more.
Frame* take_frame(Plan& plan) {
  try {
    if (plan.idle.empty()) {
      plan.idle.reserve(plan.idle.capacity() + 1);  // giving it back cannot fail
      return new_frame(plan).release();
    }
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return nullptr;
  }
  Frame* frame = plan.idle.back().release();
  plan.idle.pop_back();
  return frame;
}

void give_back(Plan& plan, Frame* frame) {
  for (PyObject*& made : frame->made) Py_CLEAR(made);
  Py_CLEAR(frame->arena);
  plan.idle.emplace_back(frame);
}

// A tensor on a storage whose reference it takes over; nullptr: exception.
PyObject* tensor_on(Storage* storage, const Layout& layout, int64_t offset) {
  if (!storage) return nullptr;
  Array* a = array_of(globals.tensor_type, reinterpret_cast<PyObject*>(storage), layout.dtype, layout.code, layout.ndim, layout.shape);
  if (!a) return nullptr;
  a->offset = offset;
  a->contiguous = layout.contiguous;
  std::copy_n(layout.strides, layout.ndim, a->strides());
  a->shape_tuple = Py_NewRef(layout.shape_tuple);
  a->strides_tuple = Py_NewRef(layout.strides_tuple);
  return reinterpret_cast<PyObject*>(a);
}

PyObject* make_result(const Plan& plan, const Frame& frame, const Result& r, PyObject* const* args) {
  switch (r.kind) {
    case Returns::fresh: return tensor_on(storage_new(r.nbytes), r.layout, r.offset);
    case Returns::same: return tensor_on(storage_clone(as_array(frame.made[r.from])->memory()), r.layout, r.offset);
    case Returns::clone: {
      Array* of = array_at(plan, args, r.from);
      return tensor_on(storage_clone(of->memory()), r.layout, of->offset + r.offset);
    }
    default: return Py_NewRef(args[r.from]);
  }
}

bool make_results(const Plan& plan, Frame& frame, PyObject* const* args, bool late) {
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    const Result& r = plan.results[i];
    if (r.late == late && !(frame.made[i] = make_result(plan, frame, r, args))) return false;
  }
  return true;
}

// Views follow a base only when it has moved.
void move_base(const Plan& plan, Frame& frame, int base, char* to) {
  if (frame.at[base] == to) return;
  frame.at[base] = to;
  const Patch* end = plan.patches.data() + plan.first_patch[base + 1];
  for (const Patch* p = plan.patches.data() + plan.first_patch[base]; p != end; ++p)
    frame.views[p->view].data = to + p->offset;
}

int first_fresh(const Plan& plan) { return kFirstArgument + static_cast<int>(plan.args.size() + plan.captured.size()); }

// The memory of this call alone: the arena and the fresh results.
void place_own(const Plan& plan, Frame& frame) {
  move_base(plan, frame, kArena, frame.arena ? frame.arena->data : nullptr);
  int base = first_fresh(plan);
  for (const int i : plan.fresh) move_base(plan, frame, base++, as_array(frame.made[i])->memory()->data);
}

// From here on no Python code may run until the steps do: it could move what is looked at. While a step that is a Python
// function runs, blocks are held and donated memory is marked, as while the GIL is away.
void place(const Plan& plan, Frame& frame, PyObject* const* args) {
  place_own(plan, frame);
  move_base(plan, frame, kConstants, plan.constants.get());
  int base = kFirstArgument;
  for (std::size_t i = 0; i < plan.args.size(); ++i) move_base(plan, frame, base++, first_element(as_array(args[i])));
  for (Array* a : plan.captured) move_base(plan, frame, base++, first_element(a));
}

// Memory for everything, then addresses. Making a result may have run a watcher's Python code, or cloned the storage of
// a donated argument: that one is made its own once more.
Verdict prepare(const Plan& plan, Frame& frame, PyObject* const* args) {
  if (!plan.donated.empty()) {
    if (const Verdict taken = take_donated(plan, frame, args); taken != Verdict::go) return taken;
  }
  if (plan.arena_bytes && !(frame.arena = storage_new(plan.arena_bytes))) return Verdict::fail;
  if (!make_results(plan, frame, args, false)) return Verdict::fail;
  for (const int i : plan.donated)
    if (Storage* s = as_array(args[i])->memory(); shared(s) && !storage_own(s)) return Verdict::fail;
  for (const int i : plan.donated)
    if (shared(as_array(args[i])->memory())) return Verdict::refuse;
  place(plan, frame, args);
  return Verdict::go;
}

void end_step(Frame& frame, std::size_t i) {
  const int64_t after = now_ns();
  frame.spent_ns[i] = after - frame.before_ns;
  frame.before_ns = after;
}

// Runs native steps; returns `end`, or the number of the one that found a fault or was ended early.
std::size_t run_steps(Frame& frame, std::size_t begin, std::size_t end, bool timed) {
  for (std::size_t i = begin; i < end; ++i) {
    const Launch& step = frame.launches[i];
    if (step.ahead >= 0) {
      const View* const then = step.then >= 0 ? &frame.views[step.then] : nullptr;
      fetch_ahead({frame.views[step.ahead].data, step.ahead_bytes}, {then ? then->data : nullptr, step.then_bytes});
    }
    step.run(step.call);
    if ((step.may_fault && has_fault()) || ends_early()) return i;
    if (timed) end_step(frame, i);
  }
  return end;
}

// The same, without the GIL where there is enough to do. With an exception, a signal ended them.
std::size_t run_part(const Plan& plan, Frame& frame, std::size_t begin, std::size_t end, bool timed) {
  if (begin == end || plan.touched < kQuietBytes) return run_steps(frame, begin, end, timed);
  std::size_t done = begin;
  const bool whole = run_without_gil(plan.touched, [&] { done = run_steps(frame, begin, end, timed); });
  if (whole) return done;
  take_fault();  // it may come of numbers that were never computed
  return std::min(done, end - 1);
}

// The tensor that a Python function gets for an operand; nullptr: exception.
PyObject* pass(Program* self, const Frame& frame, PyObject* const* args, const Passed& p) {
  const Plan& plan = *self->plan;
  if (p.base < 0) return Py_NewRef(Py_None);
  const Tile t = tile(static_cast<DType>(p.layout.code));
  const int64_t unit = t.rows * t.block, nbytes = plan.ranges[p.base].high;
  Storage* owner = frame.arena;
  int64_t first = 0;
  if (p.base >= first_fresh(plan)) {
    owner = as_array(frame.made[plan.fresh[p.base - first_fresh(plan)]])->memory();
  } else if (p.base >= kFirstArgument) {
    Array* a = array_at(plan, args, p.base);
    owner = a->memory();
    first = a->offset;
  }
  if (p.base == kConstants)
    return tensor_on(storage_wrap(plan.constants.get() + p.offset, nbytes - p.offset, reinterpret_cast<PyObject*>(self), false),
                     p.layout, 0);
  if (!owner) return tensor_on(storage_new(0), p.layout, 0);  // an arena of no bytes
  if (p.base == kArena && p.offset % t.nbytes != 0)  // a tile that begins where no count of tiles does
    return tensor_on(storage_wrap(owner->data + p.offset, nbytes - p.offset, reinterpret_cast<PyObject*>(owner), true),
                     p.layout, 0);
  return tensor_on(reinterpret_cast<Storage*>(Py_NewRef(owner)), p.layout, first + p.offset / t.nbytes * unit);
}

// Calls kernel(*inputs, out=…, **attrs). False: exception.
bool call_step(Program* self, Frame& frame, PyObject* const* args, const PythonStep& s) {
  const Plan& plan = *self->plan;
  const int nin = plan.steps[s.step].nin, nout = plan.steps[s.step].nout;
  std::vector<PyObject*>& values = frame.passed;
  values.clear();
  for (int i = 0; i < nin; ++i) values.push_back(pass(self, frame, args, s.operands[i]));
  PyObject* out = nout == 1 ? pass(self, frame, args, s.operands[nin]) : PyTuple_New(nout);
  for (int i = 0; out && nout > 1 && i < nout; ++i)
    PyTuple_SET_ITEM(out, i, pass(self, frame, args, s.operands[nin + i]));
  values.push_back(out);
  PyObject* result = nullptr;
  if (!PyErr_Occurred()) {
    values.insert(values.end(), s.values.begin(), s.values.end());
    result = PyObject_Vectorcall(s.kernel, values.data(), static_cast<std::size_t>(nin), s.names);
  }
  for (int i = 0; i <= nin; ++i) Py_XDECREF(values[i]);
  Py_XDECREF(result);
  if (result) place_own(plan, frame);  // memory that somebody cloned meanwhile has moved
  return result != nullptr;
}

std::size_t run_parts(Program* self, Frame& frame, PyObject* const* args, bool timed) {
  const Plan& plan = *self->plan;
  std::size_t begin = 0;
  for (const PythonStep& s : plan.python) {
    const auto here = static_cast<std::size_t>(s.step);
    const std::size_t done = run_part(plan, frame, begin, here, timed);
    if (done != here || !call_step(self, frame, args, s)) return done;
    if (timed) end_step(frame, here);
    begin = here + 1;
  }
  return run_part(plan, frame, begin, plan.steps.size(), timed);
}

// How many steps ran whole: all of them, or those before the one that failed or was ended early. Another thread, or a
// step that is a Python function, may copy-on-write a handle meanwhile: its old block must outlive the steps.
std::size_t run_all(Program* self, Frame& frame, PyObject* const* args, bool timed) {
  const Plan& plan = *self->plan;
  if (timed) frame.began_ns = frame.before_ns = now_ns();
  if (plan.touched < kQuietBytes && plan.python.empty()) return run_steps(frame, 0, plan.steps.size(), timed);
  const int count = static_cast<int>(frame.held.size());
  for (int i = 0; i < count; ++i)
    if ((frame.held[i] = array_at(plan, args, kFirstArgument + i)->memory()->block)) block_retain(frame.held[i]);
  for (const int i : plan.donated) ++as_array(args[i])->memory()->writing;
  const std::size_t done = run_parts(self, frame, args, timed);
  for (const int i : plan.donated) --as_array(args[i])->memory()->writing;
  for (int i = 0; i < count; ++i)
    if (frame.held[i]) block_release(frame.held[i]);
  return done;
}

constexpr const char* kWritten = "A donated argument was written before that and keeps it; to go back, clone() it first.";

bool wrote_donated(const Plan& plan, const Frame& frame, PyObject* const* args, std::size_t steps) {
  const auto lies_in_donated = [&](const View& v) {
    return std::any_of(plan.donated.begin(), plan.donated.end(), [&](int i) {
      const Extent e = extent_of(plan, args, kFirstArgument + i);
      return e.low <= v.data && v.data < e.high;
    });
  };
  for (std::size_t i = 0; i < steps; ++i) {
    const View* out = frame.views.data() + plan.steps[i].first + plan.steps[i].nin;
    if (std::any_of(out, out + plan.steps[i].nout, lies_in_donated)) return true;
  }
  return false;
}

// Adds to the exception of a Python function.
void add_note(const char* text) {
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  PyErr_NormalizeException(&kind, &value, &trace);
  PyObject* done = PyObject_CallMethod(value, "add_note", "s", text);
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  PyErr_Restore(kind, value, trace);
}

// Raises what a step found, and tells where the steps before it have written to an argument: nothing takes that back.
void raise_after(const Plan& plan, const Frame& frame, PyObject* const* args, std::size_t steps) {
  const bool raised = PyErr_Occurred() != nullptr;
  if (raised && plan.steps[steps].entry) return;  // a signal ended it
  if (!raised) raise_fault();
  if (!wrote_donated(plan, frame, args, steps)) return;
  if (raised) {
    add_note(kWritten);
    return;
  }
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  if (kind) PyErr_Format(kind, "%S %s", value, kWritten);
  Py_XDECREF(kind);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

PyObject* collect(const Plan& plan, Frame& frame) {
  if (plan.single) return std::exchange(frame.made[0], nullptr);
  PyObject* all = PyTuple_New(static_cast<Py_ssize_t>(frame.made.size()));
  for (std::size_t i = 0; all && i < frame.made.size(); ++i)
    PyTuple_SET_ITEM(all, static_cast<Py_ssize_t>(i), std::exchange(frame.made[i], nullptr));
  return all;
}

bool names_steps(const Plan& plan) {
  return plan.about && PyTuple_GET_SIZE(plan.about) == static_cast<Py_ssize_t>(plan.steps.size()) + 1;
}

// One span for the call, then one for each of its steps, which follow one another without a gap.
void add_spans(const Plan& plan, const Frame& frame, int64_t called_ns) {
  add_span(PyTuple_GET_ITEM(plan.about, 0), called_ns, now_ns() - called_ns);
  int64_t at = frame.began_ns;
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    add_span(PyTuple_GET_ITEM(plan.about, static_cast<Py_ssize_t>(i + 1)), at, frame.spent_ns[i]);
    at += frame.spent_ns[i];
  }
}

// The results, or None where the call was refused. With `spent`, a new list of ns by step too.
PyObject* run(Program* self, PyObject* const* args, Py_ssize_t nargs, PyObject** spent) {
  Plan& plan = *self->plan;
  if (!accept(plan, args, nargs)) Py_RETURN_NONE;
  const Acting now(plan.about ? PyTuple_GET_ITEM(plan.about, 0) : reinterpret_cast<PyObject*>(self));
  const int64_t called_ns = globals.recorder && names_steps(plan) ? now_ns() : 0;
  Frame* frame = take_frame(plan);
  if (!frame) return nullptr;
  const Verdict verdict = prepare(plan, *frame, args);
  PyObject* result = nullptr;
  if (verdict == Verdict::go) {
    const int64_t began = now_ns();
    const bool timed = spent || called_ns;
    const std::size_t done = run_all(self, *frame, args, timed);
    const bool good = done == plan.steps.size() && !PyErr_Occurred();
    self->last_ns = now_ns() - began;
    ++self->runs;
    if (!good) raise_after(plan, *frame, args, done);
    if (good && make_results(plan, *frame, args, true)) result = collect(plan, *frame);
    if (result && called_ns) add_spans(plan, *frame, called_ns);
    if (result && spent && !(*spent = PyList_New(static_cast<Py_ssize_t>(plan.steps.size())))) Py_CLEAR(result);
    for (std::size_t i = 0; result && spent && i < plan.steps.size(); ++i)
      PyList_SET_ITEM(*spent, static_cast<Py_ssize_t>(i), PyLong_FromLongLong(frame->spent_ns[i]));
  } else if (verdict == Verdict::refuse) {
    result = Py_NewRef(Py_None);
  }
  give_back(plan, frame);
  return result;
}

PyObject* program_call(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  if (names && PyTuple_GET_SIZE(names))
    return PyErr_Format(PyExc_TypeError, "a Program takes its tensors by position, given %R by name.", names);
  return run(as_program(self), args, PyVectorcall_NARGS(flags), nullptr);
}

PyObject* program_time(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  PyObject* spent = nullptr;
  PyObject* result = run(as_program(self), args, nargs, &spent);
  return spent ? Py_BuildValue("(NN)", result, spent) : result;
}

PyObject* new_program(PyTypeObject* type, std::unique_ptr<Plan> plan) {
  if (!plan) return nullptr;
  auto* p = reinterpret_cast<Program*>(type->tp_alloc(type, 0));
  if (!p) return nullptr;
  p->call = program_call;
  p->plan = plan.release();
  return reinterpret_cast<PyObject*>(p);
}

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return new_program(type, read_plan(args, kwargs));
}

// What spans say ran, and kernels in Python, may refer to the function that the program is of.
int program_traverse(PyObject* self, visitproc visit, void* arg) {
  if (const Plan* plan = as_program(self)->plan) {
    for (PyObject* o : plan->kept) Py_VISIT(o);
  }
  Py_VISIT(Py_TYPE(self));
  return 0;
}

void program_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete as_program(self)->plan;
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* program_repr(PyObject* self) {
  const Plan& plan = *as_program(self)->plan;
  return PyUnicode_FromFormat("<Program of %zu steps, %zu arguments, %zu results, an arena of %lld bytes>",
                              plan.steps.size(), plan.args.size(), plan.results.size(),
                              static_cast<long long>(plan.arena_bytes));
}

PyObject* get_python_steps(PyObject* self, void*) {
  return PyLong_FromSize_t(as_program(self)->plan->python.size());
}
PyObject* get_steps(PyObject* self, void*) { return PyLong_FromSize_t(as_program(self)->plan->steps.size()); }
PyObject* get_arena_bytes(PyObject* self, void*) { return PyLong_FromLongLong(as_program(self)->plan->arena_bytes); }

PyMethodDef program_methods[] = {
    {"time", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(program_time)), METH_FASTCALL,
     "time($self, /, *tensors)\n--\n\nRuns it: (what a call returns, the ns of every step); None when refused."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef program_getset[] = {
    {"steps", get_steps, nullptr, "How many kernels a call runs.", nullptr},
    {"python_steps", get_python_steps, nullptr, "How many of them are Python functions.", nullptr},
    {"arena_bytes", get_arena_bytes, nullptr, "Bytes of temporaries while it runs.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMemberDef program_members[] = {
    {"runs", T_LONGLONG, offsetof(Program, runs), READONLY, "How many calls have run."},
    {"last_ns", T_LONGLONG, offsetof(Program, last_ns), READONLY, "How long the steps of the last run took."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Program, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot program_slots[] = {
    {Py_tp_doc, const_cast<char*>(
                    "Program(args, captured, constants, arena_bytes, operands, steps, results, single=False, "
                    "about=None)\n--\n\n"
                    "A compiled program: program(*tensors) runs its steps and returns its results, or None when the "
                    "tensors are not those it was made for. The kernel of a step is a native one, or a Python "
                    "function called as kernel(*inputs, out=..., **attrs). `about` is what spans say ran: of a call, then of "
                    "each step.")},
    {Py_tp_new, reinterpret_cast<void*>(program_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(program_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(program_traverse)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(program_repr)},
    {Py_tp_methods, program_methods},
    {Py_tp_getset, program_getset},
    {Py_tp_members, program_members},
    {0, nullptr}};

PyType_Spec program_spec = {"tritium._native.Program", sizeof(Program), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
                            program_slots};

}  // namespace

PyObject* program_of(std::unique_ptr<Plan> plan) { return new_program(globals.program_type, std::move(plan)); }

bool names_steps(PyObject* program) { return names_steps(*as_program(program)->plan); }

PyTypeObject* make_program_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&program_spec)); }

}  // namespace tritium::python
