// The pool behind parallel_for: workers are made when first needed, wait for the next job for a moment, then sleep.
//
// A job costs its threads no line of memory that several of them write: each worker has a seat with its share of the ranges
// and the number of the job it is in. The caller opens a job by one store, which all waiting workers see, closes it by
// another, and then looks at the seats. A worker enters its seat first and asks then whether the job is still open; the
// caller closes first and looks then: one of them sees the other. So nobody waits for a worker that was asleep: its share is
// taken by those that are there.
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

#include "ahead.h"
#include "limits.h"
#include "units.h"
#include "watch.h"

namespace tritium {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

constexpr int kMaxThreads = 256;
constexpr int kRangesPerThread = 4;  // the caller starts at once; workers that wake late still find something to do
constexpr int64_t kMostRanges = (1 << 16) - 1;  // that a seat can count
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kLongestSpin = std::chrono::microseconds(500);
constexpr int kSpinShare = 16;  // of the time since it last slept, a worker waits for the next job
constexpr int64_t kAheadBytes = int64_t{192} << 10;  // that a waiting worker fetches: a part of its second cache
constexpr int64_t kLine = 64, kLinesAtOnce = 8;      // of memory; between two looks for a job
constexpr auto kBlockTime = std::chrono::milliseconds(20);  // of a range, between two looks at the clock
constexpr int64_t kFirstGrains = 16;                        // in the first block, whose time is not known yet

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until done() holds, for at most `time`; meanwhile() is called between two looks.
template <class F, class G>
bool spin_until(std::chrono::steady_clock::duration time, F done, G meanwhile) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      meanwhile();
    }
  } while (std::chrono::steady_clock::now() - start < time);
  return done();
}

// Where the caller sleeps. wake() is one load when it does not.
struct Bed {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers{0};

  // Sleeps until done() holds, for at most `time`; false: it does not hold yet.
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

// Memory that is read soon, fetched by workers that have nothing else to do: each its share. It may be gone by the time it is
// fetched, and its address and length of two different calls: fetching never fails.
struct Ahead {
  std::atomic<const char*> data{nullptr};
  std::atomic<int64_t> nbytes{0};

  void set(const Memory& memory) {
    const auto* const begin = static_cast<const char*>(memory.data);
    if (data.load(std::memory_order_relaxed) == begin) return;
    nbytes.store(memory.nbytes, std::memory_order_relaxed);
    data.store(begin, std::memory_order_relaxed);
  }
};

class Fetcher {
 public:
  // The next lines of share `index` of `shares`; false: there are none left.
  bool fetch(const Ahead& ahead, int64_t index, int64_t shares) {
    const char* const data = ahead.data.load(std::memory_order_relaxed);
    if (data != data_) {
      const int64_t nbytes = data ? ahead.nbytes.load(std::memory_order_relaxed) : 0;
      const int64_t begin = nbytes / shares * index, length = std::min(nbytes / shares, kAheadBytes);
      data_ = data;
      next_ = data + begin;
      left_ = length / kLine;
    }
    const int64_t now = std::min(left_, kLinesAtOnce);
    for (int64_t i = 0; i < now; ++i) __builtin_prefetch(next_ + i * kLine, 0, 2);
    next_ += now * kLine;
    left_ -= now;
    return now > 0;
  }

 private:
  const char* data_ = nullptr;
  const char* next_ = nullptr;
  int64_t left_ = 0;
};

// Where a thread sits while it works: the caller in the first seat. Two lines: processors fetch lines in pairs.
struct alignas(128) Seat {
  std::atomic<uint32_t> inside{0};   // the state of the job that its worker is in; 0: of none
  std::atomic<uint32_t> asleep{0};   // 1: its worker sleeps until somebody writes 0
  std::atomic<uint64_t> claimed{0};  // the number of a job, and how many ranges of this seat's share are taken
};

struct Job {
  Work task;
  int64_t n = 0, ranges = 0, align = 1, seats = 1;
  uint64_t number = 0;

  int64_t edge(int64_t i) const { return i == ranges ? n : n / ranges * i + n % ranges * i / ranges; }
  int64_t share(int64_t seat) const { return ranges * seat / seats; }  // the first range of a seat
  // A range of a seat's share that nobody else has; -1: all are taken.
  int64_t claim(Seat& seat, int64_t index) const {
    constexpr uint64_t kUnit = uint64_t{1} << 16;
    const auto count = static_cast<uint64_t>(share(index + 1) - share(index));
    uint64_t now = seat.claimed.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t taken = now / kUnit == number ? now % kUnit : 0;
      if (taken >= count) return -1;
      if (seat.claimed.compare_exchange_weak(now, number * kUnit + taken + 1, std::memory_order_relaxed))
        return share(index) + static_cast<int64_t>(taken);
    }
  }
  // The thread's own share, then what others have not begun.
  void work(Seat* all, int64_t own) const {
    for (int64_t turn = 0; turn < seats; ++turn) {
      const int64_t index = own + turn < seats ? own + turn : own + turn - seats;
      for (int64_t i; (i = claim(all[index], index)) >= 0;) {
        const int64_t begin = edge(i) / align * align, end = i + 1 == ranges ? n : edge(i + 1) / align * align;
        task.run(begin, end);
      }
    }
  }
};

// `state`: a number that changes with every job, and how many seats are open; none: the job is closed.
constexpr uint32_t kSeatBits = 9, kOpen = (1u << kSeatBits) - 1;
static_assert(kMaxThreads <= static_cast<int>(kOpen));

struct Pool {
  alignas(128) std::atomic<uint32_t> state{1u << kSeatBits};
  std::atomic<int> sleepers{0};  // workers
  alignas(128) Ahead ahead;
  alignas(128) Ahead then;  // what is fetched once the next job has begun
  alignas(128) std::atomic<bool> held{false};
  int workers = 0;  // touched by the holder only
  Job job;
  Bed finish;
  Seat seats[kMaxThreads];

  // A worker that works wakes two more, so that a sleeping team is up after a few steps.
  void rouse(uint32_t own, uint32_t open) {
    if (sleepers.load() == 0) return;
    for (uint32_t child = 2 * own + 1; child <= 2 * own + 2 && child < open; ++child) {
      std::atomic<uint32_t>& asleep = seats[child].asleep;
      if (asleep.load() == 1 && asleep.exchange(0) == 1) asleep.notify_one();
    }
  }

  void sleep(Seat& seat, uint32_t seen) {
    sleepers.fetch_add(1);
    seat.asleep.store(1);
    // A job that came meanwhile may have found nobody asleep.
    if (state.load() != seen) seat.asleep.store(0);
    while (seat.asleep.load() == 1) seat.asleep.wait(1);
    sleepers.fetch_sub(1);
  }

  void serve(uint32_t own) {
    using Clock = std::chrono::steady_clock;
    Seat& seat = seats[own];
    Fetcher fetcher;
    auto woke = Clock::now();
    for (uint32_t seen = 0;;) {
      const auto news = [&] { return state.load() != seen; };
      const auto meanwhile = [&] {
        if (!fetcher.fetch(ahead, own, num_threads())) pause();
      };
      const auto patience = std::clamp<Clock::duration>((Clock::now() - woke) / kSpinShare, kSpin, kLongestSpin);
      if (!spin_until(patience, news, meanwhile)) {
        sleep(seat, seen);
        woke = Clock::now();
      }
      seen = state.load();
      const uint32_t open = seen & kOpen;
      if (own >= open) continue;
      seat.inside.store(seen);
      if (state.load() == seen) {
        rouse(own, open);
        set_watch(job.task.watch);
        job.work(seats, own);
        set_watch(nullptr);
      }
      seat.inside.store(0);
      finish.wake();
    }
  }

  // The workers stay for the life of the process and touch only this pool, which is never freed: nothing to join at
  // exit. Signals are left to the threads of the program.
  void hire(int wanted) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; workers < wanted; ++workers) {
        std::thread([this, own = static_cast<uint32_t>(workers + 1)] { serve(own); }).detach();
      }
    } catch (const std::system_error&) {
      // The system grants no more threads: the work is done by those there are.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // The memory that a job reads needs no fetching once it has begun: those who are done with their shares fetch what follows.
  void turn_ahead() {
    const char* const next = then.data.load(std::memory_order_relaxed);
    if (next) ahead.set({next, then.nbytes.load(std::memory_order_relaxed)});
  }

  void run(int wanted) {
    if (workers < wanted) hire(wanted);
    wanted = std::min(wanted, workers);
    job.seats = wanted + 1;
    ++job.number;
    const uint32_t number = ((state.load() >> kSeatBits) + 1) << kSeatBits;
    const auto open = static_cast<uint32_t>(job.seats);
    state.store(number | open);
    rouse(0, open);
    turn_ahead();
    job.work(seats, 0);
    state.store(number);
    const auto done = [this, number, open] {
      for (uint32_t i = 1; i < open; ++i)
        if (seats[i].inside.load() == (number | open)) return false;
      return true;
    };
    if (spin_until(kSpin, done, pause)) return;
    while (!finish.sleep_for(kPollInterval, done))
      if (job.task.watch) job.task.watch->check(Watch::Clock::now());
  }
};

std::atomic<Pool*> pool{nullptr};

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

// Runs fn on `ranges` parts of [0, n), of `grain` or more each.
void run_ranges(int64_t n, int64_t grain, int64_t ranges, void (*fn)(void*, int64_t, int64_t), void* context) {
  Watch* const watch = current_watch();
  if (n <= 0 || (watch && watch->ended())) return;
  if (ranges <= 1) {
    fn(context, 0, n);
    if (watch) watch->check(Watch::Clock::now());
    return;
  }
  const int count = num_threads();
  const Work task{fn, context, grain, watch};
  if (count == 1) return task.run(0, n);
  static std::once_flag once;
  std::call_once(once, [] {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, forget_workers);
  });
  Pool& mine = *pool.load();
  if (mine.held.exchange(true, std::memory_order_acquire)) return task.run(0, n);
  mine.job.task = task;
  mine.job.n = n;
  mine.job.ranges = ranges;
  mine.job.align = n / ranges >= 1024 ? 64 : 1;  // long ranges begin on a cache line
  mine.run(static_cast<int>(std::min<int64_t>(count, ranges)) - 1);
  mine.held.store(false, std::memory_order_release);
}

}  // namespace

int available_threads() {
  static const int count = cpu_limit();
  return count;
}

int num_threads() { return threads().load(std::memory_order_relaxed); }

void set_num_threads(int n) { threads().store(std::clamp(n, 1, kMaxThreads), std::memory_order_relaxed); }

void parallel_for(int64_t n, int64_t grain, void (*fn)(void*, int64_t, int64_t), void* context) {
  grain = std::max<int64_t>(grain, 1);
  run_ranges(n, grain, std::min<int64_t>(n / grain, int64_t{num_threads()} * kRangesPerThread), fn, context);
}

void parallel_units(int64_t n, void (*fn)(void*, int64_t, int64_t), void* context) {
  run_ranges(n, 1, std::min(n, kMostRanges), fn, context);
}

void fetch_ahead(const Memory& now, const Memory& then) {
  Pool* const mine = pool.load(std::memory_order_acquire);
  if (!mine) return;
  mine->ahead.set(now);
  mine->then.set(then);
}

}  // namespace tritium

extern "C" {
__attribute__((visibility("default"))) int tritium_get_num_threads() { return tritium::num_threads(); }
__attribute__((visibility("default"))) void tritium_set_num_threads(int n) { tritium::set_num_threads(n); }
}
