// A hint to the threads of parallel_for: what will be read next.
#pragma once

#include <cstdint>

namespace tritium {

struct Memory {
  const void* data;
  std::int64_t nbytes;
};

// Threads that wait for work meanwhile fetch the beginnings of their shares of this memory into their caches; once they are given
// work, and are done with it, those of `then` if it has an address. It changes no result, and the memory may be gone by the time
// it is fetched.
void fetch_ahead(const Memory& now, const Memory& then);

}  // namespace tritium
