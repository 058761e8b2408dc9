// parallel_for for few units of much work: each is a range of its own.
#pragma once

#include <cstdint>
#include <type_traits>

namespace tritium {

// Runs fn(context, begin, end) on [0, n) as parallel_for does, but one unit is a range: a thread takes its share one by
// one, in order, then what others have not begun. So nobody waits long for a thread that is slow or late. Of more than
// 65,535 units neighbours share a range.
void parallel_units(std::int64_t n, void (*fn)(void*, std::int64_t, std::int64_t), void* context);

template <class F>
void parallel_units(std::int64_t n, F&& f) {
  using Body = std::remove_reference_t<F>;
  parallel_units(
      n, [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Body*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace tritium
