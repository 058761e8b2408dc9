// A hint to the threads of parallel_for: what will be read next.
// Knows nothing of Python, tensors or kernels.
#pragma once

#include <cstdint>

namespace tritium {

// Threads that wait for work meanwhile fetch the beginnings of their shares of this memory into their caches. It changes no
// result, and the memory may be gone by the time it is fetched.
void fetch_ahead(const void* data, std::int64_t nbytes);

}  // namespace tritium
