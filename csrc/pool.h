// Memory for tensors: reference-counted blocks from a pool of size classes that keeps what was freed for the next use.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

namespace tritium {

struct Block {
  char* data;             // 64-byte aligned; from 2 MiB on aligned to 2 MiB
  std::int64_t nbytes;    // as asked for
  std::int64_t capacity;  // as allocated
  std::atomic<std::int32_t> refs;
  std::int32_t handles;    // storage handles that share this block; kept by their owner, not by the pool
  std::int32_t size_class;  // -1: large
  bool reused;            // came from the free lists
  Block* next;            // while it is free
};

// Says what was asked, what is live, what is pooled, and what to do.
struct OutOfMemory : std::bad_alloc {
  explicit OutOfMemory(std::string text) : text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }
  std::string text;
};

Block* pool_allocate(std::int64_t nbytes);  // one reference, contents undefined; throws OutOfMemory, never null
inline void block_retain(Block* block) { block->refs.fetch_add(1, std::memory_order_relaxed); }
void block_release(Block* block);  // the last release returns it to the pool

struct ClassStats {
  std::int64_t size = 0;  // capacity of a block of the class; 0: mixed
  std::int64_t live = 0, free = 0, hits = 0, misses = 0;
  std::int64_t live_bytes = 0, free_bytes = 0;  // capacities
};

struct PoolStats {
  std::int64_t allocations = 0, frees = 0, hits = 0, misses = 0, failed = 0, trims = 0;
  std::int64_t current_bytes = 0, peak_bytes = 0;              // requested and live
  std::int64_t current_block_bytes = 0, peak_block_bytes = 0;  // capacities of the live blocks
  std::int64_t pooled_bytes = 0, pooled_blocks = 0, peak_pooled_bytes = 0;
  std::int64_t largest_free = 0;
  std::int64_t small_block_size = 0, large_block_threshold = 0, limit = 0;
  std::int64_t memory_limit = 0;        // what live blocks may hold: configured, else what the process may use; 0: unknown
  std::vector<ClassStats> classes;      // every class ever used, small to large
  ClassStats small, medium, large;      // the same by tier
};

PoolStats pool_stats();
void pool_reset_stats();                      // counters to zero, peaks to now; live and pooled bytes stay true
std::int64_t pool_swap_peak(std::int64_t peak);  // sets peak_bytes (never below what is live); the one before
std::int64_t pool_trim(std::int64_t keep);    // gives idle blocks back, largest first, until at most `keep` are pooled
// Blocks up to small_block_size are the small tier, above large_block_threshold the large one; `limit` bounds the
// bytes kept idle, `memory` those of the live blocks (0: no bound of their own). Throws std::invalid_argument.
void pool_configure(std::int64_t small_block_size, std::int64_t large_block_threshold, std::int64_t limit,
                    std::int64_t memory);
// What happened in the pool since it was last asked.
struct PoolNews {
  bool high = false;  // live blocks rose above 90 % of memory_limit; told once until they were below 80 % of it
  std::int64_t trims = 0, released = 0;  // idle blocks that it gave back by itself: how often, and their bytes
};
extern std::atomic<bool> pool_has_news;
PoolNews pool_take_news();
double pool_bench(std::int64_t nbytes, std::int64_t n);  // ns per allocate and release

}  // namespace tritium
