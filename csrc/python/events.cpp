// Spans: the spans that one recorder keeps, as a Python object. Those that run form a list, which begins in globals.
#include "events.h"

#include <deque>
#include <new>

namespace tritium::python {

constinit thread_local PyObject* acting = nullptr;

namespace {

struct Span {
  PyObject* what;
  int64_t start_ns, elapsed_ns, thread;
};

constexpr Py_ssize_t kNumberBytes = 3 * sizeof(int64_t);  // of a span as Python reads it: start_ns, elapsed_ns, thread

}  // namespace

struct Spans {
  PyObject_HEAD
  std::deque<Span>* kept;  // grows by small blocks: what is kept never moves, and no large memory is asked for ahead
  Py_ssize_t capacity;
  int64_t since_ns;    // spans that began before this are not its own
  long long dropped;   // spans that no longer fitted
  Spans* next;         // another one that runs
  bool running;        // the list holds a reference
};

namespace {

Spans* as_spans(PyObject* self) { return reinterpret_cast<Spans*>(self); }

// Whether there was memory for it.
bool push(std::deque<Span>& to, PyObject* what, int64_t start_ns, int64_t elapsed_ns, int64_t thread) {
  try {
    to.push_back({what, start_ns, elapsed_ns, thread});
  } catch (const std::bad_alloc&) {
    return false;
  }
  Py_INCREF(what);
  return true;
}

int64_t this_thread() { return static_cast<int64_t>(PyThread_get_thread_ident()); }

PyObject* spans_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"capacity", nullptr};
  Py_ssize_t capacity;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:Spans", const_cast<char**>(names), &capacity)) return nullptr;
  if (capacity < 1) return PyErr_Format(PyExc_ValueError, "Spans: a capacity of %zd is not possible.", capacity);
  auto* spans = as_spans(type->tp_alloc(type, 0));
  if (!spans) return nullptr;
  try {
    spans->kept = new std::deque<Span>;
  } catch (const std::bad_alloc&) {
    Py_DECREF(spans);
    return PyErr_NoMemory();
  }
  spans->capacity = capacity;
  return reinterpret_cast<PyObject*>(spans);
}

void spans_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (std::deque<Span>* kept = as_spans(self)->kept) {
    for (const Span& span : *kept) Py_DECREF(span.what);
    delete kept;
  }
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* spans_start(PyObject* self, PyObject*) {
  Spans* spans = as_spans(self);
  if (!spans->running) {
    spans->running = true;
    spans->since_ns = now_ns();
    spans->next = std::exchange(globals.recorder, spans);
    Py_INCREF(self);
  }
  Py_RETURN_NONE;
}

PyObject* spans_stop(PyObject* self, PyObject*) {
  Spans* spans = as_spans(self);
  if (spans->running) {
    Spans** at = &globals.recorder;
    while (*at != spans) at = &(*at)->next;
    *at = std::exchange(spans->next, nullptr);
    spans->running = false;
    Py_DECREF(self);  // the caller holds another
  }
  Py_RETURN_NONE;
}

// The objects as a list, the numbers as bytes. With `forget` the spans are handed over.
PyObject* hand_out(Spans* spans, bool forget) {
  std::deque<Span>& kept = *spans->kept;
  PyObject *whats = nullptr, *numbers = nullptr;
  Py_ssize_t n;
  do {  // making objects may collect garbage, whose Python code may add spans, or take them
    Py_XDECREF(whats);
    Py_XDECREF(numbers);
    n = static_cast<Py_ssize_t>(kept.size());
    whats = PyList_New(n);
    numbers = whats ? PyByteArray_FromStringAndSize(nullptr, n * kNumberBytes) : nullptr;
    if (!numbers) {
      Py_XDECREF(whats);
      return nullptr;
    }
  } while (static_cast<Py_ssize_t>(kept.size()) < n);
  auto* to = reinterpret_cast<int64_t*>(PyByteArray_AS_STRING(numbers));
  auto span = kept.cbegin();
  for (Py_ssize_t i = 0; i < n; ++i, ++span) {
    PyList_SET_ITEM(whats, i, forget ? span->what : Py_NewRef(span->what));
    *to++ = span->start_ns;
    *to++ = span->elapsed_ns;
    *to++ = span->thread;
  }
  if (forget) kept.erase(kept.begin(), kept.begin() + n);
  return Py_BuildValue("(NN)", whats, numbers);
}

PyObject* spans_read(PyObject* self, PyObject*) { return hand_out(as_spans(self), false); }
PyObject* spans_take(PyObject* self, PyObject*) { return hand_out(as_spans(self), true); }

PyMethodDef spans_methods[] = {
    {"start", spans_start, METH_NOARGS, "start($self, /)\n--\n\nKeep every span that begins from now on."},
    {"stop", spans_stop, METH_NOARGS, "stop($self, /)\n--\n\nKeep no more; what was kept stays."},
    {"read", spans_read, METH_NOARGS,
     "read($self, /)\n--\n\n(what ran, by span; the bytes of int64[n, 3]: start_ns, elapsed_ns, thread)"},
    {"take", spans_take, METH_NOARGS, "take($self, /)\n--\n\nAs read, and forgets them."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef spans_members[] = {
    {"dropped", T_LONGLONG, offsetof(Spans, dropped), READONLY, "Spans that no longer fitted."},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot spans_slots[] = {
    {Py_tp_doc, const_cast<char*>("Spans(capacity)\n--\n\nThe spans that one recorder keeps.")},
    {Py_tp_new, reinterpret_cast<void*>(spans_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(spans_dealloc)},
    {Py_tp_methods, spans_methods},
    {Py_tp_members, spans_members},
    {0, nullptr}};

PyType_Spec spans_spec = {"tritium._native.Spans", sizeof(Spans), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                          spans_slots};

}  // namespace

void add_span(PyObject* what, int64_t start_ns, int64_t elapsed_ns) {
  const int64_t thread = this_thread();
  for (Spans* spans = globals.recorder; spans; spans = spans->next) {
    if (start_ns < spans->since_ns) continue;
    const bool fits = static_cast<Py_ssize_t>(spans->kept->size()) < spans->capacity;
    if (!fits || !push(*spans->kept, what, start_ns, elapsed_ns, thread)) ++spans->dropped;
  }
}

double span_cost_ns(int n) {
  std::deque<Span> kept;
  const int64_t began = now_ns();
  for (int i = 0; i < n; ++i) {
    const int64_t start = now_ns();
    push(kept, Py_None, start, now_ns() - start, this_thread());
  }
  const int64_t elapsed = now_ns() - began;
  for (const Span& span : kept) Py_DECREF(span.what);
  return static_cast<double>(elapsed) / n;
}

PyTypeObject* make_spans_type() { return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spans_spec)); }

}  // namespace tritium::python
