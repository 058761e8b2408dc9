// Where sequences stand in a cache, read and checked.
#pragma once

#include <cstdint>

#include "../fault.h"
#include "../view.h"
#include "gather.h"

namespace tritium::TRITIUM_ISA {

struct Place {
  std::int64_t slot, start, count;
};

// What the places of sequences must fit in.
struct Room {
  std::int64_t slots, capacity, tokens;
};

// The places of `batch` sequences, i32 [batch, 3]. False: one is outside; the fault is set.
inline bool read_places(const char* row, const View& given, std::int64_t batch, const Room& room, Place* to) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const char* const from = given.data + b * given.strides[0];
    const auto number = [&](int i) { return std::int64_t{at<std::int32_t>(from + i * given.strides[1])}; };
    const Place p = to[b] = {number(0), number(1), number(2)};
    const bool inside = p.slot >= 0 && p.slot < room.slots && p.start >= 0 && p.count >= 0 && p.count <= room.tokens &&
                        p.start + p.count <= room.capacity;
    if (inside) continue;
    set_fault({Faulty::place, row, {b, p.slot, p.start, p.count, room.slots, room.capacity, room.tokens}});
    return false;
  }
  return true;
}

}  // namespace tritium::TRITIUM_ISA
