// random_uniform, random_normal and random_integers: a counter-based stream, element i depends on the seed and i alone.
// Knows nothing of generators or their state: a seed comes with every call.
//
// The stream. Philox4x32-10 (Salmon et al. 2011) with key (seed mod 2^32, seed div 2^32) and counter (b mod 2^32,
// b div 2^32, 0, 0) gives the four 32-bit words w[4b] ... w[4b + 3]. With d[i] = w[2i] + 2^32 w[2i + 1]:
//   uniform f32    x[i] = (w[i] >> 8) 2^-24
//   uniform f64    x[i] = (d[i] >> 11) 2^-53
//   integers     x[i] = low + d[i] mod (high - low)
//   normal f32   u = (w[2j] + 1/2) 2^-32, v = w[2j + 1] 2^-32
//   normal f64   u = ((d[2j] >> 12) + 1/2) 2^-52, v = (d[2j + 1] >> 11) 2^-53
//                x[2j] = sqrt(-2 ln u) cos(2 pi v), x[2j + 1] = sqrt(-2 ln u) sin(2 pi v), in f64 for both
#include "../threads.h"
#include "../view.h"
#include "gather.h"
#include "math.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;
using std::uint32_t;
using std::uint64_t;

constexpr int64_t kChunk = 2048;  // elements per step; a multiple of four
constexpr int kLine = 64;         // counters side by side

// Words 4 * block ... 4 * (block + kLine) - 1.
void philox_line(uint64_t seed, uint64_t block, uint32_t* words) {
  uint32_t c0[kLine], c1[kLine], c2[kLine], c3[kLine];
  for (int i = 0; i < kLine; ++i) {
    const uint64_t counter = block + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(counter);
    c1[i] = static_cast<uint32_t>(counter >> 32);
    c2[i] = 0;
    c3[i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLine; ++i) {
      const uint64_t p = uint64_t{0xD2511F53u} * c0[i], q = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(q >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(q);
      c2[i] = static_cast<uint32_t>(p >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kLine; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

// Words first ... first + n - 1 rounded up to whole lines; `first` is a multiple of four.
void philox(uint64_t seed, int64_t first, int64_t n, uint32_t* words) {
  for (int64_t i = 0; i < n; i += 4 * kLine) philox_line(seed, static_cast<uint64_t>((first + i) / 4), words + i);
}

uint64_t pair(const uint32_t* words, int64_t i) { return words[2 * i] | static_cast<uint64_t>(words[2 * i + 1]) << 32; }

// sin and cos on [-pi/4, pi/4].
TRITIUM_INLINE double sine(double x) {
  const double z = x * x;
  const double p = math::horner(z, -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04,
                                2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10);
  return math::fma(x * z, p, x);
}
TRITIUM_INLINE double cosine(double x) {
  const double z = x * x;
  const double p = math::horner(z, 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05,
                                -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11);
  return math::fma(z * z, p, 1.0 - 0.5 * z);
}

// The pair of normal values of u in (0, 1) and the turn (quarter + rest), quarter a whole number of quarter turns.
TRITIUM_INLINE void box_muller(double u, uint64_t quarter, double rest, double& x, double& y) {
  const double radius = math::sqrt(-2.0 * math::log(u)), angle = rest * 6.283185307179586477;
  const double s = sine(angle), c = cosine(angle);
  const double a = quarter & 1 ? s : c, b = quarter & 1 ? c : s;
  x = radius * (((quarter + 1) & 2) != 0 ? -a : a);
  y = radius * ((quarter & 2) != 0 ? -b : b);
}

// Each fills n elements (rounded up to even) from the words that belong to them.
void uniform(const uint32_t* w, float* to, int64_t n, const Attrs&) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(static_cast<std::int32_t>(w[i] >> 8)) * 0x1p-24f;
}
void uniform(const uint32_t* w, double* to, int64_t n, const Attrs&) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(static_cast<int64_t>(pair(w, i) >> 11)) * 0x1p-53;
}
void normal(const uint32_t* w, float* to, int64_t n, const Attrs&) {
  for (int64_t j = 0; 2 * j < n; ++j) {
    const double u = (static_cast<double>(w[2 * j]) + 0.5) * 0x1p-32;
    const uint32_t turn = w[2 * j + 1], quarter = (turn + 0x20000000u) >> 30;
    double x, y;
    box_muller(u, quarter, static_cast<double>(static_cast<std::int32_t>(turn - (quarter << 30))) * 0x1p-32, x, y);
    to[2 * j] = static_cast<float>(x);
    to[2 * j + 1] = static_cast<float>(y);
  }
}
void normal(const uint32_t* w, double* to, int64_t n, const Attrs&) {
  for (int64_t j = 0; 2 * j < n; ++j) {
    const double u = (static_cast<double>(static_cast<int64_t>(pair(w, 2 * j) >> 12)) + 0.5) * 0x1p-52;
    const uint64_t turn = pair(w, 2 * j + 1) >> 11, quarter = (turn + (uint64_t{1} << 50)) >> 51;
    const int64_t rest = static_cast<int64_t>(turn - (quarter << 51));
    box_muller(u, quarter, static_cast<double>(rest) * 0x1p-53, to[2 * j], to[2 * j + 1]);
  }
}
template <class T>
void integers(const uint32_t* w, T* to, int64_t n, const Attrs& attrs) {
  const uint64_t low = static_cast<uint64_t>(attrs.whole[1]), range = static_cast<uint64_t>(attrs.whole[2]) - low;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t drawn = pair(w, i);
    to[i] = static_cast<T>(static_cast<int64_t>(low + (range ? drawn % range : drawn)));  // 0: all of 2^64
  }
}

// The byte offset of element i in row-major order.
int64_t place(const View& v, int64_t i) {
  int64_t at = 0;
  for (int d = v.ndim - 1; d >= 0; --d) {
    at += i % v.shape[d] * v.strides[d];
    i /= v.shape[d];
  }
  return at;
}

bool row_major(const View& v) {
  int64_t expected = item_size(v.dtype);
  for (int d = v.ndim - 1; d >= 0; --d) {
    if (v.shape[d] != 1 && v.strides[d] != expected) return false;
    expected *= v.shape[d];
  }
  return true;
}

// W words per element.
template <int W, class T>
void fill(const Call& call, void (*make)(const uint32_t*, T*, int64_t, const Attrs&)) {
  const View& out = *call.out;
  const int64_t size = out.size(), chunks = (size + kChunk - 1) / kChunk;
  const uint64_t seed = static_cast<uint64_t>(call.attrs->whole[0]);
  const bool dense = row_major(out);
  parallel_for(chunks, 2, [&](int64_t begin, int64_t end) {
    alignas(64) uint32_t words[kChunk * W];
    alignas(64) T values[kChunk];
    for (int64_t c = begin; c < end; ++c) {
      const int64_t first = c * kChunk, n = size - first < kChunk ? size - first : kChunk;
      philox(seed, first * W, n * W, words);
      if (dense && n == kChunk) {
        make(words, reinterpret_cast<T*>(out.data) + first, n, *call.attrs);
        continue;
      }
      make(words, values, n, *call.attrs);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = dense ? (first + i) * static_cast<int64_t>(sizeof(T)) : place(out, first + i);
        __builtin_memcpy(out.data + at, values + i, sizeof(T));
      }
    }
  });
}

void rand(const Call& call) {
  call.out->dtype == DType::f64 ? fill<2, double>(call, uniform) : fill<1, float>(call, uniform);
}
void randn(const Call& call) {
  call.out->dtype == DType::f64 ? fill<2, double>(call, normal) : fill<1, float>(call, normal);
}
void randint(const Call& call) {
  call.out->dtype == DType::i64 ? fill<2, int64_t>(call, integers<int64_t>)
                                : fill<2, std::int32_t>(call, integers<std::int32_t>);
}

constexpr Entry kEntries[] = {
    {"random_uniform", rand, bit(DType::f32) | bit(DType::f64), "seed"},
    {"random_normal", randn, bit(DType::f32) | bit(DType::f64), "seed"},
    {"random_integers", randint, bit(DType::i32) | bit(DType::i64), "seed,low,high"},
};

}  // namespace

Table random_table() { return {kEntries, sizeof(kEntries) / sizeof(kEntries[0])}; }

}  // namespace tritium::TRITIUM_ISA
