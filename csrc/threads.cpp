// The pool behind parallel_for: workers are made when first needed, spin for a moment after a job, then sleep.
// Knows nothing of what it runs.
#include "threads.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#include "limits.h"
#include "watch.h"

namespace tritium {
namespace {

using std::int64_t;
using std::uint64_t;

constexpr int kMaxThreads = 256;
constexpr int kRangesPerThread = 4;  // the caller starts at once; workers that wake late still find something to do
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kBlockTime = std::chrono::milliseconds(20);  // of a range, between two looks at the clock
constexpr int64_t kFirstGrains = 16;                        // in the first block, whose time is not known yet

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until done() holds, for at most kSpin.
template <class F>
bool spin_until(F done) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() - start < kSpin);
  return done();
}

// A place to sleep. wake() is one load when nobody sleeps.
struct Bed {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers{0};

  template <class F>
  void sleep_until(F done) {
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    changed.wait(lock, done);
    sleepers.fetch_sub(1);
  }
  // The same for at most `time`; false: it does not hold yet.
  template <class F>
  bool sleep_for(Watch::Clock::duration time, F done) {
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    const bool held = changed.wait_for(lock, time, done);
    sleepers.fetch_sub(1);
    return held;
  }
  void wake() {
    if (sleepers.load() == 0) return;
    { std::lock_guard lock(mutex); }
    changed.notify_all();
  }
};

// What parallel_for runs, in one piece or, where somebody watches, in blocks of about kBlockTime.
struct Work {
  void (*fn)(void*, int64_t, int64_t) = nullptr;
  void* context = nullptr;
  int64_t grain = 1;
  Watch* watch = nullptr;  // nullptr: nobody may end it early

  // A unit may take any time where the grain is 1; otherwise a grain takes microseconds.
  void run(int64_t begin, int64_t end) const {
    if (!watch) return fn(context, begin, end);
    int64_t block = grain > 1 ? grain * kFirstGrains : 1;
    auto before = Watch::Clock::now();
    while (begin < end && !watch->ended()) {
      const int64_t length = block >= 1024 ? block / 64 * 64 : block;  // as for ranges
      const int64_t stop = end - begin > length ? begin + length : end;
      fn(context, begin, stop);
      begin = stop;
      const auto now = Watch::Clock::now();
      if (now - before < kBlockTime / 2 && block < end) block *= 2;
      if (now - before > kBlockTime) block = std::max<int64_t>(block / 2, 1);
      before = now;
      watch->check(now);
    }
  }
};

struct Job {
  Work task;
  int64_t n = 0, ranges = 0, align = 1;
  std::atomic<int64_t> next{0};

  int64_t edge(int64_t i) const { return i == ranges ? n : n / ranges * i + n % ranges * i / ranges; }
  void work() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < ranges;) {
      const int64_t begin = edge(i) / align * align, end = i + 1 == ranges ? n : edge(i + 1) / align * align;
      task.run(begin, end);
    }
  }
};

// `state` holds the number of the job, whether it may still be joined, how many workers it wants and how many are in
// it: a worker joins and leaves with one atomic step, so the caller never waits for one that was asleep.
constexpr uint64_t kInside = 0xffff, kWantedUnit = uint64_t{1} << 16, kOpen = uint64_t{1} << 31;
constexpr uint64_t kNumberUnit = uint64_t{1} << 32;

struct Pool {
  std::atomic<uint64_t> state{0};
  std::atomic<bool> held{false};
  int workers = 0;  // touched by the holder only
  Job job;
  Bed idle, finish;

  bool join(uint64_t& seen) {
    uint64_t now = state.load();
    seen = now / kNumberUnit;
    while ((now & kOpen) && (now & kInside) < (now / kWantedUnit & 0x7fff)) {
      if (state.compare_exchange_weak(now, now + 1)) {
        seen = now / kNumberUnit;
        return true;
      }
      seen = now / kNumberUnit;
    }
    return false;
  }

  void serve() {
    for (uint64_t seen = 0;;) {
      const auto news = [&] { return state.load() / kNumberUnit != seen; };
      if (!spin_until(news)) idle.sleep_until(news);
      if (!join(seen)) continue;
      set_watch(job.task.watch);
      job.work();
      set_watch(nullptr);
      const uint64_t before = state.fetch_sub(1);
      if (!(before & kOpen) && (before & kInside) == 1) finish.wake();
    }
  }

  // The workers stay for the life of the process and touch only this pool, which is never freed: nothing to join at
  // exit. Signals are left to the threads of the program.
  void hire(int wanted) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; workers < wanted; ++workers) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // The system grants no more threads: the work is done by those there are.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void run(int wanted) {
    if (workers < wanted) hire(wanted);
    wanted = std::min(wanted, workers);
    job.next.store(0, std::memory_order_relaxed);
    const uint64_t number = state.load() / kNumberUnit + 1;
    state.store(number * kNumberUnit | kOpen | static_cast<uint64_t>(wanted) * kWantedUnit);
    idle.wake();
    job.work();
    state.fetch_and(~kOpen);
    const auto done = [this] { return (state.load() & kInside) == 0; };
    if (spin_until(done)) return;
    if (!job.task.watch) return finish.sleep_until(done);
    while (!finish.sleep_for(kPollInterval, done)) job.task.watch->check(Watch::Clock::now());
  }
};

Pool* pool = nullptr;

// After fork the child has none of the workers and perhaps a lock held by one of them: it starts a new pool.
void forget_workers() { pool = new Pool; }

int env_threads() {
  for (const char* name : {"TRITIUM_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* text = std::getenv(name);
    const int n = text ? std::atoi(text) : 0;
    if (n > 0) return n;
  }
  return 0;
}

std::atomic<int>& threads() {
  static std::atomic<int> count{std::clamp(env_threads() ? env_threads() : available_threads(), 1, kMaxThreads)};
  return count;
}

}  // namespace

int available_threads() {
  static const int count = cpu_limit();
  return count;
}

int num_threads() { return threads().load(std::memory_order_relaxed); }

void set_num_threads(int n) { threads().store(std::clamp(n, 1, kMaxThreads), std::memory_order_relaxed); }

void parallel_for(int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* context) {
  Watch* const watch = current_watch();
  if (n <= 0 || (watch && watch->ended())) return;
  const int count = num_threads();
  const int64_t ranges = std::min<int64_t>(n / std::max<int64_t>(grain, 1), int64_t{count} * kRangesPerThread);
  if (ranges <= 1) {
    fn(context, 0, n);
    if (watch) watch->check(Watch::Clock::now());
    return;
  }
  const Work task{fn, context, std::max<int64_t>(grain, 1), watch};
  if (count == 1) return task.run(0, n);
  static std::once_flag once;
  std::call_once(once, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, forget_workers);
  });
  Pool& mine = *pool;
  if (mine.held.exchange(true, std::memory_order_acquire)) return task.run(0, n);
  mine.job.task = task;
  mine.job.n = n;
  mine.job.ranges = ranges;
  mine.job.align = n / ranges >= 1024 ? 64 : 1;  // long ranges begin on a cache line
  mine.run(static_cast<int>(std::min<int64_t>(count, ranges)) - 1);
  mine.held.store(false, std::memory_order_release);
}

}  // namespace tritium

extern "C" {
__attribute__((visibility("default"))) int tritium_get_num_threads() { return tritium::num_threads(); }
__attribute__((visibility("default"))) void tritium_set_num_threads(int n) { tritium::set_num_threads(n); }
}
