// The pool: free lists per size class, a best-fit list of large blocks, exact counters under one short lock.
#include "pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "limits.h"
#include "view.h"

namespace tritium {
namespace {

using std::int64_t;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
constexpr int64_t kHuge = 2 * kMiB;  // from here on blocks are mapped, so that giving them back really frees memory
constexpr int kSteps = 32;           // classes of 64 bytes up to 2 KiB, then so many per doubling: at most 3 % is lost
constexpr int kStepBits = 5, kFirstBits = 11;  // the logarithms of kSteps, and of 2 KiB
constexpr int kClasses = kSteps + kSteps * 29;
constexpr int64_t kWaste = 20;  // an idle block is reused for a smaller request if at most 1/20 of it is lost
constexpr int64_t kMaxBytes = int64_t{1} << 62;

int class_of(int64_t nbytes) {
  if (nbytes <= kSteps * 64) return nbytes <= 64 ? 0 : static_cast<int>((nbytes - 1) / 64);
  // Nearly a huge page: the whole is read a fifth faster.
  if (nbytes > kHuge - kHuge / kWaste && nbytes < kHuge) nbytes = kHuge;
  const int log = 63 - std::countl_zero(static_cast<std::uint64_t>(nbytes - 1));
  return kSteps + (log - kFirstBits) * kSteps + static_cast<int>((nbytes - 1) >> (log - kStepBits) & (kSteps - 1));
}

int64_t class_size(int index) {
  if (index < kSteps) return (index + 1) * 64;
  const int log = kFirstBits + (index - kSteps) / kSteps, step = (index - kSteps) % kSteps;
  return int64_t{kSteps + step + 1} << (log - kStepBits);
}

int64_t large_size(int64_t nbytes) {
  const auto floor = static_cast<int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<int64_t>(nbytes, 1))));
  const int64_t unit = std::clamp<int64_t>(floor / kSteps, kAlignment, kHuge);
  return (nbytes + unit - 1) / unit * unit;
}

// A lock for a few dozen instructions: cheaper than a mutex, and it may be held across fork.
struct SpinLock {
  std::atomic<bool> taken{false};
  void lock() {
    for (int tries = 0; taken.exchange(true, std::memory_order_acquire); ++tries)
      if (tries > 32) std::this_thread::yield();
  }
  void unlock() { taken.store(false, std::memory_order_release); }
};

struct Guard {
  explicit Guard(SpinLock& l) : spin(l) { spin.lock(); }
  ~Guard() { spin.unlock(); }
  SpinLock& spin;
};

struct State {
  SpinLock lock;
  bool above = false;        // live blocks were reported to be near their limit, and are not yet well below it again
  int64_t most = INT64_MAX;  // that live blocks may hold: the configured limit
  int64_t high = INT64_MAX;  // live blocks above this are reported
  PoolNews news;             // that nobody has taken yet
  int64_t memory = 0;        // what the process may use, or less by configuration; 0: unknown
  PoolStats totals;
  ClassStats large;
  std::multimap<int64_t, Block*> large_free;  // by capacity; among equals the oldest comes first
  Block* free[kClasses] = {};
  ClassStats classes[kClasses];
};

State& state();

char* map_aligned(int64_t capacity) {
  const std::size_t length = static_cast<std::size_t>(capacity + kHuge);
  void* at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(at);
  const auto first = (start + kHuge - 1) / kHuge * kHuge;
  // What lies before and after the aligned part goes back at once; pages may be larger than 4 KiB.
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto end = (first + static_cast<std::uintptr_t>(capacity) + page - 1) / page * page;
  if (first > start) munmap(at, first - start);
  if (start + length > end) munmap(reinterpret_cast<void*>(end), start + length - end);
#if defined(MADV_HUGEPAGE)
  madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
  return reinterpret_cast<char*>(first);
}

Block* system_allocate(int64_t capacity) {
  void* data = nullptr;
  if (capacity >= kHuge) {
    data = map_aligned(capacity);
  } else if (posix_memalign(&data, kAlignment, static_cast<std::size_t>(capacity)) != 0) {
    data = nullptr;
  }
  if (!data) return nullptr;
  return new Block{static_cast<char*>(data), 0, capacity, 1, 0, -1, false, nullptr};
}

void system_free(Block* block) {
  if (block->capacity >= kHuge) {
    munmap(block->data, static_cast<std::size_t>(block->capacity));
  } else {
    std::free(block->data);
  }
  delete block;
}

void system_free_list(Block* block) {
  while (block) {
    Block* next = block->next;
    system_free(block);
    block = next;
  }
}

// The functions below are called with the lock held.

void note_unpooled(State& s, Block* block) {
  ClassStats& c = block->size_class < 0 ? s.large : s.classes[block->size_class];
  --c.free;
  c.free_bytes -= block->capacity;
  --s.totals.pooled_blocks;
  s.totals.pooled_bytes -= block->capacity;
}

Block* take_free(State& s, int index, int64_t nbytes) {
  Block* block;
  if (index >= 0) {
    block = s.free[index];
    if (!block) return nullptr;
    s.free[index] = block->next;
  } else {
    const auto at = s.large_free.lower_bound(nbytes);
    if (at == s.large_free.end() || (at->first - nbytes) * kWaste > at->first) return nullptr;
    block = at->second;
    s.large_free.erase(at);
  }
  note_unpooled(s, block);
  return block;
}

// Unhooks idle blocks, the largest first, until at most `keep` bytes are pooled. The caller frees them unlocked.
Block* take_idle(State& s, int64_t keep, int64_t& released) {
  Block* list = nullptr;
  const auto drop = [&](Block* block) {
    note_unpooled(s, block);
    released += block->capacity;
    block->next = list;
    list = block;
  };
  while (s.totals.pooled_bytes > keep && !s.large_free.empty()) {
    const auto last = s.large_free.lower_bound(s.large_free.rbegin()->first);
    Block* block = last->second;
    s.large_free.erase(last);
    drop(block);
  }
  for (int i = kClasses - 1; i >= 0 && s.totals.pooled_bytes > keep; --i) {
    while (s.totals.pooled_bytes > keep && s.free[i]) {
      Block* block = s.free[i];
      s.free[i] = block->next;
      drop(block);
    }
  }
  if (list) ++s.totals.trims;
  return list;
}

// Notes that idle blocks were given back without a call of pool_trim from outside. The caller holds the lock.
void note_own_trim(State& s, int64_t released) {
  if (!released) return;
  ++s.news.trims;
  s.news.released += released;
  pool_has_news.store(true, std::memory_order_relaxed);
}

void note_live(State& s, Block* block, bool hit) {
  ClassStats& c = block->size_class < 0 ? s.large : s.classes[block->size_class];
  PoolStats& t = s.totals;
  ++c.live;
  c.live_bytes += block->capacity;
  ++(hit ? c.hits : c.misses);
  ++(hit ? t.hits : t.misses);
  ++t.allocations;
  t.current_bytes += block->nbytes;
  t.current_block_bytes += block->capacity;
  t.peak_bytes = std::max(t.peak_bytes, t.current_bytes);
  t.peak_block_bytes = std::max(t.peak_block_bytes, t.current_block_bytes);
  if (t.current_block_bytes > s.high && !s.above) [[unlikely]] {
    s.above = true;
    s.news.high = true;
    pool_has_news.store(true, std::memory_order_relaxed);
  }
}

// Sets what live blocks may hold, by configuration; 0: no limit but that of the process.
void set_memory(State& s, int64_t limit) {
  s.memory = limit ? limit : memory_limit();
  s.most = limit ? limit : INT64_MAX;
  s.high = s.memory ? s.memory / 10 * 9 : INT64_MAX;
  s.totals.memory_limit = s.memory;
  if (s.totals.current_block_bytes <= s.high) s.above = false;
}

State& make_state() {
  State& s = *new State;  // never freed: tensors may outlive every static object
  set_memory(s, 0);
  s.totals.small_block_size = 64 * kKiB;
  s.totals.large_block_threshold = 16 * kMiB;
  s.totals.limit = s.memory ? std::min(kGiB, s.memory / 8) : kGiB;
  for (int i = 0; i < kClasses; ++i) s.classes[i].size = class_size(i);
  pthread_atfork([] { state().lock.lock(); }, [] { state().lock.unlock(); }, [] { state().lock.unlock(); });
  return s;
}

State& state() {
  static State& s = make_state();
  return s;
}

std::string in_words(int64_t bytes) {
  static const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit < 6; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
  return text;
}

[[noreturn]] void refuse(State& s, int64_t nbytes) {
  int64_t live, pooled;
  {
    Guard guard(s.lock);
    ++s.totals.failed;
    live = s.totals.current_block_bytes;
    pooled = s.totals.pooled_bytes;
  }
  std::string text = "a tensor of " + in_words(nbytes) + " does not fit in memory: " + in_words(live) +
                     " are in live tensors, " + in_words(pooled) + " idle in the pool";
  if (s.most != INT64_MAX) {
    text += ", and tensors may use " + in_words(s.most) + " (memory_limit of tt.memory.configure)";
  } else if (s.memory) {
    text += ", and this process may use " + in_words(s.memory);
  }
  throw OutOfMemory(text + ". Free tensors (del), work in smaller batches, or use a smaller dtype.");
}

// Gives all idle blocks back, since memory is short.
void trim_all(State& s) {
  const int64_t released = pool_trim(0);
  Guard guard(s.lock);
  note_own_trim(s, released);
}

Block* allocate_miss(State& s, int index, int64_t nbytes) {
  const int64_t capacity = index >= 0 ? class_size(index) : large_size(nbytes);
  if (s.memory && nbytes > s.memory) refuse(s, nbytes);
  // Memory is promised before it is there: past 90 % of the limit idle blocks go first, lest the kernel kill us.
  if (index < 0 && s.memory && memory_used() + nbytes > s.memory / 10 * 9) trim_all(s);
  Block* block = system_allocate(capacity);
  if (!block) {
    trim_all(s);
    block = system_allocate(capacity);
  }
  if (!block) refuse(s, nbytes);
  block->size_class = index;
  return block;
}

}  // namespace

std::atomic<bool> pool_has_news{false};

PoolNews pool_take_news() {
  State& s = state();
  Guard guard(s.lock);
  pool_has_news.store(false, std::memory_order_relaxed);
  return std::exchange(s.news, {});
}

Block* pool_allocate(int64_t nbytes) {
  State& s = state();
  if (nbytes < 0 || nbytes > kMaxBytes) refuse(s, nbytes);
  int index = 0;
  bool fits;
  {
    Guard guard(s.lock);
    fits = nbytes <= s.most - s.totals.current_block_bytes;
    index = nbytes <= s.totals.large_block_threshold ? class_of(nbytes) : -1;
    if (Block* block = fits ? take_free(s, index, nbytes) : nullptr) {
      block->nbytes = nbytes;
      block->refs.store(1, std::memory_order_relaxed);
      block->handles = 0;
      block->reused = true;
      note_live(s, block, true);
      return block;
    }
  }
  if (!fits) refuse(s, nbytes);
  Block* block = allocate_miss(s, index, nbytes);
  block->nbytes = nbytes;
  Guard guard(s.lock);
  note_live(s, block, false);
  return block;
}

void block_release(Block* block) {
  if (block->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  State& s = state();
  Block* excess = nullptr;
  {
    Guard guard(s.lock);
    PoolStats& t = s.totals;
    ClassStats& c = block->size_class < 0 ? s.large : s.classes[block->size_class];
    --c.live;
    c.live_bytes -= block->capacity;
    ++t.frees;
    t.current_bytes -= block->nbytes;
    t.current_block_bytes -= block->capacity;
    if (s.above && t.current_block_bytes < s.high / 9 * 8) [[unlikely]] s.above = false;
    if (block->capacity > t.limit) {
      block->next = nullptr;
      excess = block;
    } else {
      if (t.pooled_bytes + block->capacity > t.limit) {
        int64_t released = 0;
        excess = take_idle(s, t.limit - block->capacity, released);
        note_own_trim(s, released);
      }
      ++c.free;
      c.free_bytes += block->capacity;
      ++t.pooled_blocks;
      t.pooled_bytes += block->capacity;
      t.peak_pooled_bytes = std::max(t.peak_pooled_bytes, t.pooled_bytes);
      if (block->size_class >= 0) {
        block->next = s.free[block->size_class];
        s.free[block->size_class] = block;
      } else {
        s.large_free.emplace(block->capacity, block);
      }
    }
  }
  system_free_list(excess);
}

PoolStats pool_stats() {
  State& s = state();
  std::vector<ClassStats> classes;
  classes.reserve(kClasses);
  PoolStats result;
  {
    Guard guard(s.lock);
    result = s.totals;
    result.large = s.large;
    for (const ClassStats& c : s.classes)
      if (c.live || c.free || c.hits || c.misses) classes.push_back(c);
    if (!s.large_free.empty()) result.largest_free = s.large_free.rbegin()->first;
  }
  for (const ClassStats& c : classes) {
    ClassStats& tier = c.size <= result.small_block_size ? result.small : result.medium;
    tier.live += c.live;
    tier.free += c.free;
    tier.hits += c.hits;
    tier.misses += c.misses;
    tier.live_bytes += c.live_bytes;
    tier.free_bytes += c.free_bytes;
    if (c.free) result.largest_free = std::max(result.largest_free, c.size);
  }
  result.classes = std::move(classes);
  return result;
}

void pool_reset_stats() {
  State& s = state();
  Guard guard(s.lock);
  PoolStats& t = s.totals;
  t.allocations = t.frees = t.hits = t.misses = t.failed = t.trims = 0;
  t.peak_bytes = t.current_bytes;
  t.peak_block_bytes = t.current_block_bytes;
  t.peak_pooled_bytes = t.pooled_bytes;
  for (ClassStats& c : s.classes) c.hits = c.misses = 0;
  s.large.hits = s.large.misses = 0;
}

int64_t pool_swap_peak(int64_t peak) {
  State& s = state();
  Guard guard(s.lock);
  const int64_t before = s.totals.peak_bytes;
  s.totals.peak_bytes = std::max(peak, s.totals.current_bytes);
  return before;
}

int64_t pool_trim(int64_t keep) {
  State& s = state();
  int64_t released = 0;
  Block* list;
  {
    Guard guard(s.lock);
    list = take_idle(s, std::max<int64_t>(keep, 0), released);
  }
  system_free_list(list);
  return released;
}

void pool_configure(int64_t small_block_size, int64_t large_block_threshold, int64_t limit, int64_t memory) {
  if (small_block_size < 0 || large_block_threshold < small_block_size || large_block_threshold > 64 * kGiB ||
      limit < 0 || memory < 0)
    throw std::invalid_argument(
        "pool: 0 <= small_block_size <= large_block_threshold <= 64 GiB, limit >= 0 and memory_limit >= 0 are needed, "
        "given " +
        std::to_string(small_block_size) + ", " + std::to_string(large_block_threshold) + ", " + std::to_string(limit) +
        ", " + std::to_string(memory));
  State& s = state();
  bool moved;
  {
    Guard guard(s.lock);
    PoolStats& t = s.totals;
    moved = t.large_block_threshold != large_block_threshold;
    t.small_block_size = small_block_size;
    t.large_block_threshold = large_block_threshold;
    t.limit = limit;
    set_memory(s, memory);
  }
  // Idle blocks of a class that is no longer asked for would lie there for good.
  pool_trim(moved ? 0 : limit);
}

double pool_bench(int64_t nbytes, int64_t n) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < n; ++i) block_release(pool_allocate(nbytes));
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
  return elapsed.count() / static_cast<double>(std::max<int64_t>(n, 1));
}

}  // namespace tritium
