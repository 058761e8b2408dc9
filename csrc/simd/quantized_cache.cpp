// update_quantized_cache: new tokens of several sequences written as blocks of integers to where they belong, in place or into a copy.
// Compiled without contraction.
#include <cstdint>

#include "../threads.h"
#include "../workspace.h"
#include "cast.h"
#include "kv_blocks.h"
#include "loops.h"
#include "places.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kGrain = 2048;  // elements that make it worth waking another thread

// A thread writes all sequences of its heads, in order: of two in the same place the last stays.
void write_blocks(const View& values, const Place* places, const View& cache) {
  const int64_t batch = values.shape[0], heads = values.shape[2], n = values.shape[3];
  const bool four = cache.shape[3] == n / kKvBlock * kKvBytes4;
  const Gather gather = gather_of<float>(values.dtype);
  int64_t tokens = 0;
  for (int64_t b = 0; b < batch; ++b) tokens += places[b].count;
  parallel_for(heads, kGrain / (tokens * n + 1) + 1, [&](int64_t begin, int64_t end) {
    float block[kKvBlock];
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = begin; h < end; ++h) {
        const char* x = values.data + b * values.strides[0] + h * values.strides[2];
        char* y = cache.data + places[b].slot * cache.strides[0] + h * cache.strides[1] + places[b].start * cache.strides[2];
        for (int64_t t = 0; t < places[b].count; ++t, x += values.strides[1], y += cache.strides[2]) {
          for (int64_t d = 0; d < n / kKvBlock; ++d) {
            gather(x + d * kKvBlock * values.strides[3], values.strides[3], block, kKvBlock);
            char bytes[kKvBytes8];
            const int64_t count = four ? kKvBytes4 : kKvBytes8, step = cache.strides[3];
            kv_quantize(block, four, bytes);
            for (int64_t i = 0; i < count; ++i) y[(d * count + i) * step] = bytes[i];
          }
        }
      }
    }
  });
}

void update_quantized_cache(const Call& call) {
  const View &cache = call.in[0], &values = call.in[1];
  View& to = *call.out;
  const int64_t batch = values.shape[0];
  const Workspace space(batch * static_cast<int64_t>(sizeof(Place)), Need::must);
  Place* const places = space.as<Place>();
  const Room room{cache.shape[0], cache.shape[2], values.shape[1]};
  if (!read_places("update_quantized_cache", call.in[2], batch, room, places)) return;
  if (to.data != cache.data) copy({&cache, 1, &to, call.attrs});
  if (values.size() == 0) return;
  write_blocks(values, places, to);
}

constexpr std::uint32_t kHalfOrSingle = bit(DType::f16) | bit(DType::bf16) | bit(DType::f32);
constexpr Entry kEntries[] = {{"update_quantized_cache", update_quantized_cache, kHalfOrSingle, "", 1, true}};

}  // namespace

Table quantized_cache_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
