// update_cache: new tokens of several sequences written to where they belong, in place or into a copy.
#include <cstdint>
#include <cstring>

#include "../threads.h"
#include "../workspace.h"
#include "cast.h"
#include "loops.h"
#include "places.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 32768;  // elements that make it worth waking another thread

struct Extent {
  const char *low, *high;

  explicit Extent(const View& v) : low(v.data), high(v.data + item_size(v.dtype)) {
    for (int d = 0; d < v.ndim; ++d) {
      const int64_t reach = (v.shape[d] - 1) * v.strides[d];
      (reach < 0 ? low : high) += reach;
    }
  }
  bool meets(const Extent& other) const { return low < other.high && other.low < high; }
};

// One row of elements from one dtype to another; `buffer` holds it as f32.
void write_row(const View& from, const char* x, const View& to, char* y, int64_t n, float* buffer) {
  const int64_t in = from.strides[3], out = to.strides[3], item = item_size(to.dtype);
  if (from.dtype != to.dtype) {
    const bool wide = from.dtype == DType::f32 && in == 4;
    if (!wide) gather_of<float>(from.dtype)(x, in, buffer, n);
    scatter(to.dtype, wide ? reinterpret_cast<const float*>(x) : buffer, y, out, n);
  } else if (in == item && out == item) {
    std::memcpy(y, x, static_cast<std::size_t>(n * item));
  } else {
    for (int64_t i = 0; i < n; ++i) std::memcpy(y + i * out, x + i * in, static_cast<std::size_t>(item));
  }
}

// A thread writes all sequences of its heads, in order: of two in the same place the last stays.
void write_values(const View& values, const Place* places, const View& cache) {
  const int64_t batch = values.shape[0], heads = values.shape[2], n = values.shape[3];
  int64_t tokens = 0;
  for (int64_t b = 0; b < batch; ++b) tokens += places[b].count;
  parallel_for(heads, kGrain / (tokens * n + 1) + 1, [&](int64_t begin, int64_t end) {
    const Workspace space(n * static_cast<int64_t>(sizeof(float)), Need::must);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = begin; h < end; ++h) {
        const char* x = values.data + b * values.strides[0] + h * values.strides[2];
        char* y = cache.data + places[b].slot * cache.strides[0] + h * cache.strides[1] +
                  places[b].start * cache.strides[2];
        for (int64_t t = 0; t < places[b].count; ++t, x += values.strides[1], y += cache.strides[2]) {
          write_row(values, x, cache, y, n, space.as<float>());
        }
      }
    }
  });
}

void update_cache(const Call& call) {
  const View &cache = call.in[0], &values = call.in[1];
  View& to = *call.out;
  const int64_t batch = values.shape[0];
  const Workspace space(batch * static_cast<int64_t>(sizeof(Place)), Need::must);
  Place* const places = space.as<Place>();
  if (!read_places("update_cache", call.in[2], batch, {cache.shape[0], cache.shape[2], values.shape[1]}, places)) return;
  if (to.data != cache.data) copy({&cache, 1, &to, call.attrs});
  if (values.size() == 0) return;
  const bool apart = Extent(values).meets(Extent(to));
  const Workspace aside(apart ? values.size() * item_size(values.dtype) : 0, Need::must);
  View own = values;
  if (apart) {
    own.data = aside.data();
    int64_t step = item_size(values.dtype);
    for (int d = own.ndim - 1; d >= 0; step *= own.shape[d--]) own.strides[d] = step;
    copy({&values, 1, &own, call.attrs});
  }
  write_values(own, places, to);
}

constexpr std::uint32_t kHalfOrSingle = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32);
constexpr Entry kEntries[] = {{"update_cache", update_cache, kHalfOrSingle, "", 0, true}};

}  // namespace

Table cache_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
