// Native work without the GIL: who handles signals, and how often they are looked for.
#include "quiet.h"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "../watch.h"

namespace tritium::python {
namespace {

constexpr int64_t kWatchedBytes = 1 << 20;  // with less to do than this it is over before anybody could ask

std::atomic<int> forks{0};  // the thread that forks is the main thread of its child

// Python's own answer, remembered by each thread until the next fork.
bool is_main_thread() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); }); });
  thread_local int asked = -1;
  thread_local bool main = false;
  if (asked == forks.load()) return main;
  PyObject* threading = PyImport_ImportModule("threading");
  PyObject* thread = threading ? PyObject_CallMethod(threading, "main_thread", nullptr) : nullptr;
  PyObject* ident = thread ? PyObject_GetAttrString(thread, "ident") : nullptr;
  const unsigned long number = ident && PyLong_Check(ident) ? PyLong_AsUnsignedLong(ident) : 0;
  Py_XDECREF(ident);
  Py_XDECREF(thread);
  Py_XDECREF(threading);
  PyErr_Clear();  // at the end of the process: nobody is left to be asked
  main = number == PyThread_get_thread_ident();
  asked = forks.load();
  return main;
}

bool run_signal_handlers(void* context) {
  PyThreadState*& thread = *static_cast<PyThreadState**>(context);
  PyEval_RestoreThread(thread);
  const bool raised = PyErr_CheckSignals() != 0;
  thread = PyEval_SaveThread();
  return raised;
}

}  // namespace

bool run_without_gil(int64_t bytes, void (*work)(void*), void* context) {
  const bool watched = bytes >= kWatchedBytes && is_main_thread();
  PyThreadState* thread = PyEval_SaveThread();
  if (!watched) {
    work(context);
    PyEval_RestoreThread(thread);
    return true;
  }
  Watch watch(run_signal_handlers, &thread);
  Watch* const before = set_watch(&watch);
  work(context);
  set_watch(before);
  PyEval_RestoreThread(thread);
  return !watch.ended();
}

}  // namespace tritium::python
