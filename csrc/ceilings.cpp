// The loops behind the ceilings. Assembly where a compiler could leave something out; CPU support is asked at run time,
// so that the file needs no flags.
#include "ceilings.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#if defined(__x86_64__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace tritium {
namespace {

using std::int64_t;

// How many independent chains keep every unit busy: x86-64 has two units of latency 4 or 5 (12 chains), ARM up to four
// of latency 4 (24).
#define TWELVE(each) \
  each("0") each("1") each("2") each("3") each("4") each("5") each("6") each("7") each("8") each("9") each("10") each("11")
#define TWENTY_FOUR(each)                                                                                          \
  TWELVE(each) each("12") each("13") each("14") each("15") each("16") each("17") each("18") each("19") each("20") \
      each("21") each("22") each("23")

#if defined(__x86_64__)

#define XMM                                                                                                          \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
      "xmm14", "xmm15"

// All operands are zero: no chain can overflow or meet a slow number.
#define VECTOR_LOOP(each) \
  asm volatile("vzeroall\n1:\n\t" TWELVE(each) "dec %0\n\tjnz 1b\n\tvzeroupper" : "+r"(n) : : "cc", XMM)

#define SSE_ZERO(d) "xorps %%xmm" d ", %%xmm" d "\n\t"
#define SSE_PAIR(d) "mulps %%xmm14, %%xmm" d "\n\t"
#define SSE_ADD(d) "addps %%xmm15, %%xmm" d "\n\t"
void sse2_f32(int64_t n) {
  asm volatile(TWELVE(SSE_ZERO) SSE_ZERO("14") SSE_ZERO("15")
               "1:\n\t" SSE_PAIR("0") SSE_ADD("1") SSE_PAIR("2") SSE_ADD("3") SSE_PAIR("4") SSE_ADD("5") SSE_PAIR("6")
               SSE_ADD("7") SSE_PAIR("8") SSE_ADD("9") SSE_PAIR("10") SSE_ADD("11") "dec %0\n\tjnz 1b"
               : "+r"(n) : : "cc", XMM);
}

#define FMA_YMM(d) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" d "\n\t"
#define FMA_ZMM(d) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" d "\n\t"
// Products of bytes are of use once they are added to a sum: vpmaddubsw alone adds only pairs.
#define MADD_YMM(d) "vpmaddubsw %%ymm14, %%ymm15, %%ymm12\n\tvpaddw %%ymm12, %%ymm" d ", %%ymm" d "\n\t"
#define MADD_ZMM(d) "vpmaddubsw %%zmm14, %%zmm15, %%zmm12\n\tvpaddw %%zmm12, %%zmm" d ", %%zmm" d "\n\t"
#define DOT_YMM(d) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" d "\n\t"
#define DOT_ZMM(d) "vpdpbusd %%zmm14, %%zmm15, %%zmm" d "\n\t"
[[gnu::target("avx2,fma")]] void avx2_f32(int64_t n) { VECTOR_LOOP(FMA_YMM); }
[[gnu::target("avx512f")]] void avx512_f32(int64_t n) { VECTOR_LOOP(FMA_ZMM); }
[[gnu::target("avx2")]] void avx2_int8(int64_t n) { VECTOR_LOOP(MADD_YMM); }
[[gnu::target("avx512f,avx512bw")]] void avx512_int8(int64_t n) { VECTOR_LOOP(MADD_ZMM); }
[[gnu::target("avx2,avxvnni")]] void avx_vnni(int64_t n) { VECTOR_LOOP(DOT_YMM); }
[[gnu::target("avx512f,avx512vnni")]] void avx512_vnni(int64_t n) { VECTOR_LOOP(DOT_ZMM); }

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
const TileConfig kTiles;

#define TILE_ZERO(d) "tilezero %%tmm" d "\n\t"
#define TILES_ZERO                                                                                                 \
  TILE_ZERO("0") TILE_ZERO("1") TILE_ZERO("2") TILE_ZERO("3") TILE_ZERO("4") TILE_ZERO("5") TILE_ZERO("6") TILE_ZERO("7")
#define TILE_DOT(d) "tdpbusd %%tmm7, %%tmm6, %%tmm" d "\n\t"
[[gnu::target("amx-tile,amx-int8")]] void amx_int8(int64_t n) {
  asm volatile("ldtilecfg %1\n\t" TILES_ZERO
               "1:\n\t" TILE_DOT("0") TILE_DOT("1") TILE_DOT("2") TILE_DOT("3") TILE_DOT("4") TILE_DOT("5")
               "dec %0\n\tjnz 1b\n\ttilerelease"
               : "+r"(n) : "m"(kTiles) : "cc");
}

// The same unit fed as a kernel feeds it: two tiles of each side are loaded from L1, then multiplied crosswise.
alignas(4096) const std::uint8_t kOperands[3 * 4096] = {};
[[gnu::target("amx-tile,amx-int8")]] void amx_int8_l1(int64_t n) {
  const std::uint8_t* p = kOperands;
  asm volatile("ldtilecfg %2\n\t" TILES_ZERO
               "1:\n\t"
               "tileloadd (%1,%3), %%tmm4\n\ttileloadd 8192(%1,%3), %%tmm6\n\ttdpbusd %%tmm6, %%tmm4, %%tmm0\n\t"
               "tileloadd 9216(%1,%3), %%tmm7\n\ttdpbusd %%tmm7, %%tmm4, %%tmm1\n\t"
               "tileloadd 1024(%1,%3), %%tmm5\n\ttdpbusd %%tmm6, %%tmm5, %%tmm2\n\ttdpbusd %%tmm7, %%tmm5, %%tmm3\n\t"
               "xor $2048, %1\n\tdec %0\n\tjnz 1b\n\ttilerelease"
               : "+r"(n), "+r"(p) : "m"(kTiles), "r"(int64_t{64}), "m"(kOperands) : "cc");
}

constexpr const char* kNoAmx = "this CPU has no AMX-INT8, or the operating system does not grant its use";
const std::vector<Peak> kPeaks = {
    {"sse2_f32", "f32", "mulps + addps xmm", 12 * 4, Isa::portable, "", sse2_f32},
    {"avx2_f32", "f32", "vfmadd231ps ymm", 12 * 16, Isa::avx2, "this CPU has no AVX2 and FMA", avx2_f32},
    {"avx512_f32", "f32", "vfmadd231ps zmm", 12 * 32, Isa::avx512, "this CPU has no AVX-512", avx512_f32},
    {"avx2", "int8", "vpmaddubsw + vpaddw ymm", 12 * 64, Isa::avx2, "this CPU has no AVX2", avx2_int8},
    {"avx512bw", "int8", "vpmaddubsw + vpaddw zmm", 12 * 128, Isa::avx512bw, "this CPU has no AVX-512", avx512_int8},
    {"avxvnni", "int8", "vpdpbusd ymm", 12 * 64, Isa::avxvnni, "this CPU has no AVX-VNNI", avx_vnni},
    {"avx512vnni", "int8", "vpdpbusd zmm", 12 * 128, Isa::avx512vnni, "this CPU has no AVX-512-VNNI", avx512_vnni},
    {"amx", "int8", "tdpbusd, from registers", 6 * 32768, Isa::amx, kNoAmx, amx_int8},
    {"amx_l1", "int8", "tdpbusd, tiles loaded from L1", 4 * 32768, Isa::amx, kNoAmx, amx_int8_l1},
};

// Every turn loads four pieces of four registers each, at p, p + stride, p + 2 stride and p + 3 stride.
#define PIECE(op, v, second, third, fourth, at)                                                         \
  op " " at ", %%" v "0\n\t" op " " second at ", %%" v "1\n\t" op " " third at ", %%" v "2\n\t" op " " \
  fourth at ", %%" v "3\n\t"
#define PIECES(...)                                                                                             \
  "1:\n\t" PIECE(__VA_ARGS__, "(%0)") PIECE(__VA_ARGS__, "(%0,%3)") PIECE(__VA_ARGS__, "(%0,%3,2)")              \
  PIECE(__VA_ARGS__, "(%1)") "add %4, %0\n\tadd %4, %1\n\tdec %2\n\tjnz 1b"
#define READ(loop)                                                                                 \
  const char* last = p + 3 * stride;                                                               \
  asm volatile(loop : "+r"(p), "+r"(last), "+r"(turns) : "r"(stride), "r"(step) : "cc", "memory", XMM)
void read_sse2(const char* p, int64_t turns, int64_t stride, int64_t step) {
  READ(PIECES("movups", "xmm", "16", "32", "48"));
}
[[gnu::target("avx2")]] void read_avx2(const char* p, int64_t turns, int64_t stride, int64_t step) {
  READ(PIECES("vmovups", "ymm", "32", "64", "96") "\n\tvzeroupper");
}
[[gnu::target("avx512f")]] void read_avx512(const char* p, int64_t turns, int64_t stride, int64_t step) {
  READ(PIECES("vmovups", "zmm", "64", "128", "192") "\n\tvzeroupper");
}

struct Reader {
  int piece;  // bytes
  void (*run)(const char*, int64_t, int64_t, int64_t);
};
Reader reader() {
  if (isa_detected(Isa::avx512)) return {256, read_avx512};
  if (isa_detected(Isa::avx2)) return {128, read_avx2};
  return {64, read_sse2};
}

using Lanes = __m128;
inline Lanes load(const float* p) { return _mm_load_ps(p); }
inline Lanes times3_plus(Lanes c, Lanes b) { return _mm_add_ps(_mm_mul_ps(c, _mm_set1_ps(3)), b); }
template <bool kPast>
inline void store(float* p, Lanes v) {
  kPast ? _mm_stream_ps(p, v) : _mm_store_ps(p, v);
}
inline void stored() { _mm_sfence(); }
inline void pause() { __builtin_ia32_pause(); }

#elif defined(__aarch64__)

#define VECTORS                                                                                                    \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", \
      "v18", "v19", "v20", "v21", "v22", "v23", "v30", "v31"

// All operands are zero: no chain can overflow or meet a slow number.
#define VECTOR_ZERO(d) "movi v" d ".2d, #0\n\t"
#define VECTOR_LOOP(each)                                                                                   \
  asm volatile(TWENTY_FOUR(VECTOR_ZERO) VECTOR_ZERO("30") VECTOR_ZERO("31") "1:\n\t" TWENTY_FOUR(each)       \
               "subs %0, %0, #1\n\tb.ne 1b"                                                                 \
               : "+r"(n) : : "cc", VECTORS)

#define FMLA(d) "fmla v" d ".4s, v30.4s, v31.4s\n\t"
#define SMLAL(d) "smlal v" d ".8h, v30.8b, v31.8b\n\t"
// By their codes: an assembler takes the names only where the whole file may use them.
#define SDOT(d) ".inst 0x4e9f97c0 + " d "\n\t"   // sdot  vd.4s, v30.16b, v31.16b
#define SMMLA(d) ".inst 0x4e9fa7c0 + " d "\n\t"  // smmla vd.4s, v30.16b, v31.16b
void neon_f32(int64_t n) { VECTOR_LOOP(FMLA); }
void neon_int8(int64_t n) { VECTOR_LOOP(SMLAL); }
void dotprod(int64_t n) { VECTOR_LOOP(SDOT); }
void i8mm(int64_t n) { VECTOR_LOOP(SMMLA); }

const std::vector<Peak> kPeaks = {
    {"neon_f32", "f32", "fmla 4s", 24 * 8, Isa::portable, "", neon_f32},
    {"neon", "int8", "smlal 8h", 24 * 16, Isa::portable, "", neon_int8},
    {"dotprod", "int8", "sdot 4s", 24 * 32, Isa::dotprod, "this CPU has no dot products (FEAT_DotProd)", dotprod},
    {"i8mm", "int8", "smmla 4s", 24 * 64, Isa::i8mm, "this CPU has no int8 matrix products (FEAT_I8MM)", i8mm},
};

// Every turn loads four pieces of 128 bytes, at p, p + stride, p + 2 stride and p + 3 stride.
#define PIECE(p) "ldp q0, q1, [" p "]\n\tldp q2, q3, [" p ", 32]\n\tldp q4, q5, [" p ", 64]\n\tldp q6, q7, [" p ", 96]\n\t"
void read_neon(const char* p, int64_t turns, int64_t stride, int64_t step) {
  const char *second = p + stride, *third = second + stride, *fourth = third + stride;
  asm volatile("1:\n\t" PIECE("%0") PIECE("%1") PIECE("%2") PIECE("%3")
               "add %0, %0, %5\n\tadd %1, %1, %5\n\tadd %2, %2, %5\n\tadd %3, %3, %5\n\tsubs %4, %4, #1\n\tb.ne 1b"
               : "+r"(p), "+r"(second), "+r"(third), "+r"(fourth), "+r"(turns)
               : "r"(step)
               : "cc", "memory", VECTORS);
}

struct Reader {
  int piece;  // bytes
  void (*run)(const char*, int64_t, int64_t, int64_t);
};
Reader reader() { return {128, read_neon}; }

using Lanes = float32x4_t;
inline Lanes load(const float* p) { return vld1q_f32(p); }
inline Lanes times3_plus(Lanes c, Lanes b) { return vfmaq_n_f32(b, c, 3); }
template <bool>
inline void store(float* p, Lanes v) {
  vst1q_f32(p, v);
}
inline void stored() {}
inline void pause() { asm volatile("yield"); }

#else

// No instruction of this family is known here: one plain loop stands for all.
void plain_f32(int64_t n) {
  float sums[16] = {};
  const float zero = 0;
  for (; n > 0; --n) {
    for (float& sum : sums) sum += zero * sum;
    asm volatile("" : : "r"(sums) : "memory");
  }
}
const std::vector<Peak> kPeaks = {{"plain_f32", "f32", "as compiled", 16 * 2, Isa::portable, "", plain_f32}};

void read_plain(const char* p, int64_t turns, int64_t stride, int64_t step) {
  std::uint64_t word, seen = 0;
  for (; turns > 0; --turns, p += step) {
    for (int64_t at = 0; at < 4 * stride; at += stride) {
      for (int i = 0; i < 64; i += 8) {
        std::memcpy(&word, p + at + i, 8);
        seen |= word;
      }
    }
  }
  asm volatile("" : : "r"(seen));
}

struct Reader {
  int piece;  // bytes
  void (*run)(const char*, int64_t, int64_t, int64_t);
};
Reader reader() { return {64, read_plain}; }

using Lanes = float;
inline Lanes load(const float* p) { return *p; }
inline Lanes times3_plus(Lanes c, Lanes b) { return 3 * c + b; }
template <bool>
inline void store(float* p, Lanes v) {
  *p = v;
}
inline void stored() {}
inline void pause() {}

#endif

constexpr int64_t kGrain = 4 * 1024;  // slices are multiples of it, so that no loop has a tail
constexpr int64_t kPart = 8 << 20;    // a larger slice is walked in parts of this size

// bytes is a multiple of kGrain.
void read(const char* p, int64_t bytes, bool quarters) {
  const Reader r = reader();
  const int64_t piece = r.piece;
  r.run(p, bytes / (4 * piece), quarters ? bytes / 4 : piece, quarters ? piece : 4 * piece);
}

template <bool kPast>
void copy(float* a, const float* b, int64_t n) {
  constexpr int64_t kLanes = sizeof(Lanes) / sizeof(float);
  for (int64_t i = 0; i < n; i += kLanes) store<kPast>(a + i, load(b + i));
  stored();
}

template <bool kPast>
void triad(float* a, const float* b, const float* c, int64_t n) {
  constexpr int64_t kLanes = sizeof(Lanes) / sizeof(float);
  for (int64_t i = 0; i < n; i += kLanes) store<kPast>(a + i, times3_plus(load(c + i), load(b + i)));
  stored();
}

// One pass over a slice; the bytes that count.
int64_t pass(Stream stream, char* slice, int64_t bytes) {
  const bool three = stream == Stream::triad || stream == Stream::triad_nt;
  const int64_t part = bytes / (three ? 3 : 2) / kGrain * kGrain, n = part / static_cast<int64_t>(sizeof(float));
  float *a = reinterpret_cast<float*>(slice), *b = a + n, *c = b + n;
  switch (stream) {
    case Stream::read: read(slice, bytes, false); return bytes;
    case Stream::read4: read(slice, bytes, true); return bytes;
    case Stream::copy: copy<false>(a, b, n); return 2 * part;
    case Stream::copy_nt: copy<true>(a, b, n); return 2 * part;
    case Stream::triad: triad<false>(a, b, c, n); return 3 * part;
    case Stream::triad_nt: triad<true>(a, b, c, n); return 3 * part;
  }
  return 0;
}

// When all CPUs are used, every thread has its own.
void settle_on_cpu(int thread, int threads) {
#if defined(__linux__)
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) != threads) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || thread-- != 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
#else
  (void)thread, (void)threads;
#endif
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Times {
  std::vector<double> seconds;  // of each sample, from the first start to the last end
  double least;                 // that one thread took for one sample, the fastest of all
};

// Runs body(thread) on all threads at once, `samples` times.
Times together(int threads, int samples, const std::function<void(int)>& body) {
  std::vector<double> begins(static_cast<std::size_t>(threads) * samples), ends(begins.size());
  std::atomic<int> arrived{0};
  std::atomic<bool> cancelled{false};
  const auto work = [&](int thread) {
    settle_on_cpu(thread, threads);
    for (int i = 0; i < samples; ++i) {
      arrived.fetch_add(1);
      for (int spins = 0; arrived.load() < threads * (i + 1); ++spins) {
        if (cancelled.load()) return;
        spins % 1024 ? pause() : std::this_thread::yield();
      }
      const std::size_t at = static_cast<std::size_t>(i) * threads + thread;
      begins[at] = now();
      body(thread);
      ends[at] = now();
    }
  };
  sigset_t all, before;  // signals are left to the threads of the program
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::vector<std::thread> made;
  try {
    for (int t = 0; t < threads; ++t) made.emplace_back(work, t);
  } catch (const std::system_error&) {
    cancelled.store(true);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (std::thread& t : made) t.join();
  if (cancelled.load()) throw std::runtime_error("the system grants no more threads.");
  Times found{std::vector<double>(samples), ends[0] - begins[0]};
  for (std::size_t i = 0; i < ends.size(); ++i) found.least = std::min(found.least, ends[i] - begins[i]);
  for (int i = 0; i < samples; ++i) {
    const auto from = static_cast<std::ptrdiff_t>(i) * threads;
    found.seconds[i] = *std::max_element(ends.begin() + from, ends.begin() + from + threads) -
                 *std::min_element(begins.begin() + from, begins.begin() + from + threads);
  }
  return found;
}

// Rates of `body(thread, turns)`, which does `work` a turn on each thread. The turns of a sample are found by trial,
// which also brings the clock to speed. They are told by the fastest thread: one that the system holds up for
// milliseconds must not make all samples too short to be timed.
std::vector<double> rates(int threads, int samples, double seconds, double work,
                          const std::function<void(int, int64_t)>& body) {
  int64_t turns = 1;
  for (;;) {
    const double least = std::max(1e-9, together(threads, 2, [&](int t) { body(t, turns); }).least);
    if (least >= seconds / 4) {
      turns = std::max<int64_t>(1, static_cast<int64_t>(turns * seconds / least));
      break;
    }
    turns = std::max(turns * 2, static_cast<int64_t>(turns * std::min(1000.0, seconds / 3 / least)));
  }
  std::vector<double> found = together(threads, samples, [&](int t) { body(t, turns); }).seconds;
  for (double& value : found) value = work * static_cast<double>(turns) * threads / value;
  return found;
}

// Memory of its own, in large pages where the system has them.
struct Pages {
  std::size_t size;
  char* data;

  explicit Pages(std::size_t bytes) : size(bytes) {
    void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) throw std::bad_alloc();
    data = static_cast<char*>(got);
#if defined(MADV_HUGEPAGE)
    madvise(data, size, MADV_HUGEPAGE);
#endif
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(data, size); }
};

}  // namespace

const std::vector<Peak>& peaks() { return kPeaks; }

const Peak* find_peak(const char* name) {
  for (const Peak& peak : kPeaks)
    if (std::strcmp(peak.name, name) == 0) return &peak;
  return nullptr;
}

bool stream_from_name(const char* name, Stream* stream) {
  constexpr const char* kNames[] = {"read", "read4", "copy", "copy_nt", "triad", "triad_nt"};
  for (int i = 0; i < 6; ++i) {
    if (std::strcmp(name, kNames[i]) != 0) continue;
    *stream = static_cast<Stream>(i);
    return true;
  }
  return false;
}

std::vector<double> peak_rates(const Peak& peak, int threads, int samples, double seconds) {
  return rates(threads, samples, seconds, peak.operations, [&](int, int64_t turns) { peak.loop(turns); });
}

std::vector<std::vector<double>> stream_rates(const std::vector<Stream>& streams, int64_t bytes, int threads,
                                              int samples, double seconds) {
  // A turn takes one part of a slice; the parts take turns too, so that a large slice never becomes warm.
  const int64_t parts = std::max<int64_t>(1, bytes / kPart), part = std::max(3 * kGrain, bytes / parts / kGrain * kGrain);
  const int64_t slice = part * parts;
  const Pages pages(static_cast<std::size_t>(slice) * threads);
  // Touched by the thread that uses it, so that it lies near.
  together(threads, 1, [&](int t) { std::memset(pages.data + t * slice, 1, static_cast<std::size_t>(slice)); });
  std::vector<int64_t> next(threads, 0);
  std::vector<std::vector<double>> found;
  for (const Stream stream : streams) {
    const double counted = static_cast<double>(pass(stream, pages.data, part));
    found.push_back(rates(threads, samples, seconds, counted, [&](int t, int64_t turns) {
      int64_t at = next[t];
      for (; turns > 0; --turns, at = at + 1 == parts ? 0 : at + 1) pass(stream, pages.data + t * slice + at * part, part);
      next[t] = at;
    }));
  }
  return found;
}

}  // namespace tritium
