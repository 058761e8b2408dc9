// The watch of each thread.
#include "watch.h"

namespace tritium {
namespace {

thread_local Watch* current = nullptr;

}  // namespace

const void* Watch::this_thread() { return &current; }

void Watch::ask() {
  Watch* const before = set_watch(nullptr);  // what poll itself runs on this thread is not part of the call
  if (poll(context)) stopped.store(true, std::memory_order_relaxed);
  set_watch(before);
  last_poll = Clock::now();
}

Watch* current_watch() { return current; }

Watch* set_watch(Watch* watch) {
  Watch* const before = current;
  current = watch;
  return before;
}

bool ends_early() {
  if (!current) return false;
  current->check(Watch::Clock::now());
  return current->ended();
}

}  // namespace tritium
