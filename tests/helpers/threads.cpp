// Runs many short jobs on changing numbers of threads, with pauses, nested and concurrent calls: every index once.
// Built and run by .ci/long threads.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../../csrc/ahead.h"
#include "../../csrc/threads.h"

using tritium::fetch_ahead;
using tritium::parallel_for;
using tritium::set_num_threads;
using std::int64_t;

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 2000;
  std::vector<int> seen(5000), other(5000);
  std::vector<char> memory(1 << 20);
  long bad = 0;
  std::atomic<bool> stop{false};
  std::thread second([&] {
    while (!stop.load()) {
      parallel_for(700, 1, [&](int64_t b, int64_t e) { for (; b < e; ++b) ++other[b]; });
      for (int i = 0; i < 700; ++i) { if (other[i] != 1) ++bad; other[i] = 0; }
    }
  });
  unsigned r = 1;
  for (int i = 0; i < rounds; ++i) {
    r = r * 1664525u + 1013904223u;
    set_num_threads(1 + r % 16);
    const int64_t n = 1 + r / 16 % 5000, grain = 1 + r / 4096 % 64;
    fetch_ahead(memory.data() + r % 64 * 64, 512 << 10);
    parallel_for(n, grain, [&](int64_t b, int64_t e) {
      for (int64_t j = b; j < e; ++j) ++seen[j];
      parallel_for(100, 1, [&](int64_t, int64_t) {});
    });
    for (int64_t j = 0; j < n; ++j) { if (seen[j] != 1) ++bad; seen[j] = 0; }
    if (r % 97 == 0) std::this_thread::sleep_for(std::chrono::microseconds(700));
  }
  stop = true;
  second.join();
  std::printf("%ld wrong of %d rounds\n", bad, rounds);
  return bad != 0;
}
