// The blocks of scratch memory that are kept between kernel calls.
#include "workspace.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tritium {
namespace {

constexpr std::int64_t kLargest = std::int64_t{64} << 20;  // larger ones go back at once
constexpr std::int64_t kSmall = std::int64_t{1} << 18;     // small and large ones are kept apart
constexpr std::int64_t kHuge = std::int64_t{2} << 20;
constexpr int kSlots = 64;  // blocks that are in use at the same time

// The first word of a kept block holds its capacity.
std::atomic<char*> kept[2][kSlots];

std::int64_t capacity_of(const char* block) { return *reinterpret_cast<const std::int64_t*>(block); }

// Where this thread left its last block: it takes that one again, which is still in its cache.
thread_local unsigned home = 0;

bool keep(char* block, std::int64_t capacity) {
  if (capacity > kLargest) return false;
  *reinterpret_cast<std::int64_t*>(block) = capacity;
  for (unsigned i = 0; i < kSlots; ++i) {
    const unsigned at = (home + i) % kSlots;
    char* expected = nullptr;
    if (kept[capacity > kSmall][at].compare_exchange_strong(expected, block, std::memory_order_release)) {
      home = at;
      return true;
    }
  }
  return false;
}

// A block that is large enough. If all are too small, one makes room for the larger one to come.
char* take(std::int64_t nbytes) {
  char* small = nullptr;
  char* found = nullptr;
  for (unsigned i = 0; i < kSlots && !found; ++i) {
    auto& slot = kept[nbytes > kSmall][(home + i) % kSlots];
    if (!slot.load(std::memory_order_relaxed)) continue;
    char* block = slot.exchange(nullptr, std::memory_order_acquire);
    if (!block) continue;
    if (capacity_of(block) >= nbytes) {
      home = (home + i) % kSlots;
      found = block;
    } else if (!small) {
      small = block;
    } else if (!keep(block, capacity_of(block))) {
      std::free(block);
    }
  }
  if (small && (!found || !keep(small, capacity_of(small)))) std::free(small);
  return found;
}

}  // namespace

Workspace::Workspace(std::int64_t nbytes, Need need) {
  if (nbytes <= 0) return;
  data_ = take(nbytes);
  if (data_) {
    capacity_ = capacity_of(data_);
    return;
  }
  const std::int64_t step = nbytes >= kHuge ? kHuge : 4096;
  capacity_ = nbytes <= kSmall ? kSmall : (nbytes + step - 1) / step * step;
  data_ = static_cast<char*>(std::aligned_alloc(static_cast<std::size_t>(step), static_cast<std::size_t>(capacity_)));
  if (!data_ && need == Need::must) {
    std::fprintf(stderr, "tritium: out of memory: a kernel needs %lld bytes of scratch memory\n",
                 static_cast<long long>(nbytes));
    std::abort();
  }
#if defined(__linux__)
  if (data_ && step == kHuge) madvise(data_, static_cast<std::size_t>(capacity_), MADV_HUGEPAGE);
#endif
}

Workspace::~Workspace() {
  if (data_ && !keep(data_, capacity_)) std::free(data_);
}

}  // namespace tritium
