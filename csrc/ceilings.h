// What this machine can do at most: loops of one multiply-add instruction, and streams through memory.
#pragma once

#include <cstdint>
#include <vector>

#include "isa.h"

namespace tritium {

// One instruction that multiplies and adds, and a loop of nothing else.
struct Peak {
  const char* name;         // unique: "avx512_vnni"
  const char* kind;         // what it multiplies: "f32" or "int8"
  const char* instruction;  // for people: "vpdpbusd zmm"
  double operations;        // of one turn of the loop; a multiply and an add are two
  Isa isa;                  // what the CPU must have
  const char* absence;      // what to say where it has not
  void (*loop)(std::int64_t turns);
};

// Those of this CPU's family, whether this CPU has them or not.
const std::vector<Peak>& peaks();
const Peak* find_peak(const char* name);  // nullptr: no such name

enum class Stream {
  read,      // one array, front to back
  read4,     // one array, its four quarters side by side: more requests in flight
  copy,      // a = b
  copy_nt,   // a = b, past the caches where the CPU can
  triad,     // a = b + 3c, f32
  triad_nt,  // a = b + 3c, past the caches where the CPU can
};

bool stream_from_name(const char* name, Stream* stream);  // false: no such name

// Operations a second of all threads together, one value a sample. Every sample is a loop that lasts about `seconds`,
// timed from the first thread's start to the last one's end. Throws std::runtime_error when threads are refused.
std::vector<double> peak_rates(const Peak& peak, int threads, int samples, double seconds);

// Bytes a second of all threads together, each on a slice of `bytes` of its own; one list a stream. The arrays of a
// stream share the slice, and each counts once a pass, as in STREAM: what a store reads first is not counted. Throws
// std::bad_alloc.
std::vector<std::vector<double>> stream_rates(const std::vector<Stream>& streams, std::int64_t bytes, int threads,
                                              int samples, double seconds);

}  // namespace tritium
