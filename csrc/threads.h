// One pool of native threads for all kernels: parallel_for and its settings.
#pragma once

#include <cstdint>
#include <type_traits>

namespace tritium {

int available_threads();      // what the affinity mask and the cgroup quota allow
int num_threads();            // how many threads parallel_for may use now, the caller included
void set_num_threads(int n);  // clamped to 1 … 256

// Splits [0, n) into ranges of about `grain` or more and runs fn(context, begin, end) on them; returns when all are
// done. At most four ranges per thread. Runs inline when one range suffices, when called from inside another
// parallel_for, or when another thread holds the pool. `fn` must not throw.
void parallel_for(std::int64_t n, std::int64_t grain, void (*fn)(void*, std::int64_t, std::int64_t), void* context);

template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  using Body = std::remove_reference_t<F>;
  parallel_for(
      n, grain,
      [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Body*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace tritium
