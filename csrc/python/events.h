// Spans of time for those who record: what ran, when it began and how long it took; and what is being carried out now.
// Knows nothing of what that is: it is a Python object of whoever ran it. Everything here needs the GIL.
#pragma once

#include <ctime>
#include <utility>

#include "array.h"

namespace tritium::python {

// The clock of Python's time.perf_counter_ns. On macOS std::chrono::steady_clock goes on while the machine sleeps and
// Python's does not, so the system's own are read.
inline int64_t now_ns() {
#ifdef __APPLE__
  return static_cast<int64_t>(clock_gettime_nsec_np(CLOCK_UPTIME_RAW));
#else
  std::timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
#endif
}

// To all who record and began before the span did. Runs no Python code.
void add_span(PyObject* what, int64_t start_ns, int64_t elapsed_ns);

// What this thread carries out: a borrowed reference, nullptr: nothing. Noted only while someone watches memory.
extern constinit thread_local PyObject* acting;

// Notes it for as long as this object lives, which must not be longer than `what`. A daemon thread that ends while it
// waits for the GIL is unwound through here: only its own pointer is touched.
class Acting {
 public:
  explicit Acting(PyObject* what) : noted_(globals.watcher) {
    if (noted_) before_ = std::exchange(acting, what);
  }
  ~Acting() {
    if (noted_) acting = before_;
  }
  Acting(const Acting&) = delete;
  Acting& operator=(const Acting&) = delete;

 private:
  PyObject* before_ = nullptr;
  const bool noted_;
};

// ns that a span costs: two looks at the clock and its place, the mean of n.
double span_cost_ns(int n);

PyTypeObject* make_spans_type();

}  // namespace tritium::python
