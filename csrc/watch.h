// A caller's wish to end a long kernel call early: asked from time to time while parallel_for runs.
#pragma once

#include <atomic>
#include <chrono>

#include "early.h"

namespace tritium {

constexpr auto kPollInterval = std::chrono::milliseconds(100);

// For the calls of the thread that made it, which alone polls; other threads that work for it only read `stopped`. Once
// that is set, parallel_for leaves out what is not done yet: results are then undefined, and the caller drops them.
struct Watch {
  using Clock = std::chrono::steady_clock;

  bool (*poll)(void* context);  // true: end early. May be slow; it is called every kPollInterval at most
  void* context;
  std::atomic<bool> stopped{false};
  const void* const owner = this_thread();
  Clock::time_point last_poll = Clock::now();

  Watch(bool (*poll)(void*), void* context) : poll(poll), context(context) {}
  bool ended() const { return stopped.load(std::memory_order_relaxed); }
  void check(Clock::time_point now) {  // polls if it is time to, on the owner's thread
    if (owner == this_thread() && now - last_poll >= kPollInterval && !ended()) ask();
  }

 private:
  static const void* this_thread();
  void ask();
};

Watch* current_watch();          // of what this thread works for; nullptr: nobody may end it early
Watch* set_watch(Watch* watch);  // returns the one before

}  // namespace tritium
