// Whether a long kernel call is to end early: all that kernels read of watch.h.
// Knows nothing of clocks, threads or who ends it; includes little, since every kernel file is compiled for each instruction set.
#pragma once

#include <cstdint>

namespace tritium {

// For loops that parallel_for cannot cut: whether what this thread works for is to end. Costs a look at the clock.
bool ends_early();
// The same at every `every`th of the steps i of a loop, but the first.
inline bool ends_early_at(std::int64_t i, std::int64_t every) { return i > 0 && i % every == 0 && ends_early(); }

}  // namespace tritium
