// Native work without the GIL, which a signal such as Ctrl-C may end early.
#pragma once

#include <memory>
#include <type_traits>

#include "array.h"

namespace tritium::python {

// Runs work(context) without the GIL. On the thread that handles signals, and with `bytes` enough to take a while,
// Python's signal handlers run meanwhile; false: one of them raised, what the work wrote is undefined.
bool run_without_gil(int64_t bytes, void (*work)(void*), void* context);

template <class F>
bool run_without_gil(int64_t bytes, F&& work) {
  using Body = std::remove_reference_t<F>;
  return run_without_gil(
      bytes, [](void* context) { (*static_cast<Body*>(context))(); },
      const_cast<void*>(static_cast<const void*>(std::addressof(work))));
}

}  // namespace tritium::python
