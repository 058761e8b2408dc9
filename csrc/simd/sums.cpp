// sum, prod, mean, count_nonzero, all and any: f32 in vector lanes within a block, in f64 between blocks.
// Knows nothing of shapes; reduce.h walks.
#include <type_traits>

#include "lanes.h"
#include "reduce.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

// Partial results: f64 for floats, wrapping 64-bit integers for the rest.
template <class T>
using Total = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;

template <class T>
struct Sum {
  using C = T;
  using P = Total<T>;

  static void block(const T* x, int64_t n, int64_t, P& to) {
    if constexpr (std::is_floating_point_v<T>) {
      to += sum_of(x, n);
    } else {
      using Lane = std::conditional_t<sizeof(T) == 1, std::int32_t, std::uint64_t>;
      Lane total = 0;
      for (int64_t i = 0; i < n; ++i) total += static_cast<Lane>(x[i]);
      to += static_cast<P>(static_cast<int64_t>(total));
    }
  }
  static void merge(P& a, const P& b) { a += b; }
  // A panel has few enough rows for lanes of T, bytes apart.
  static void panel(const T* x, int64_t stride, int64_t rows, int64_t columns, int64_t, P* to) {
    using Lane = std::conditional_t<std::is_floating_point_v<T>, T,
                                    std::conditional_t<sizeof(T) == 1, std::int16_t, std::uint64_t>>;
    alignas(64) Lane total[kColumns];
    for (int64_t j = 0; j < columns; ++j) total[j] = 0;
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) {
      const T* row[8];
      for (int i = 0; i < 8; ++i) row[i] = x + (r + i) * stride;
      for (int64_t j = 0; j < columns; ++j) {
        const auto at = [&row, j](int i) { return static_cast<Lane>(row[i][j]); };
        const auto sum = ((at(0) + at(1)) + (at(2) + at(3))) + ((at(4) + at(5)) + (at(6) + at(7)));
        total[j] = static_cast<Lane>(total[j] + sum);
      }
    }
    for (; r < rows; ++r) {
      const T* row = x + r * stride;
      for (int64_t j = 0; j < columns; ++j) total[j] = static_cast<Lane>(total[j] + static_cast<Lane>(row[j]));
    }
    for (int64_t j = 0; j < columns; ++j) to[j] += static_cast<P>(total[j]);
  }
};

constexpr int kFactors = 32;  // products side by side, so many that none waits for the one before

// The products of elements kFactors apart, as far as there are whole groups of them; returns how many elements that are.
template <class T>
int64_t multiply_lanes(const T* x, int64_t n, std::uint64_t* lane) {
  for (int l = 0; l < kFactors; ++l) lane[l] = 1;
  int64_t i = 0;
  for (; i + kFactors <= n; i += kFactors) {
    for (int l = 0; l < kFactors; ++l) lane[l] *= static_cast<std::uint64_t>(x[i + l]);
  }
  return i;
}
using Deep = Vec<double>;
constexpr int kDeep = kLanes<double>;
inline Deep deep_at(const double* from) { return load(from); }
inline Deep deep_at(const float* from) {
  typename VectorOf<float, kDeep>::type narrow;
  __builtin_memcpy(&narrow, from, sizeof(narrow));
  return doubles(narrow);
}
template <class T>
int64_t multiply_lanes(const T* x, int64_t n, double* lane) {
  constexpr int kVectors = kFactors / kDeep;
  Deep product[kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) product[v] = splat(1.0);
  int64_t i = 0;
  for (; i + kFactors <= n; i += kFactors) {
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) product[v] *= deep_at(x + i + v * kDeep);
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) store(lane + v * kDeep, product[v]);
  return i;
}

// A product has no range to spare in f32: every factor goes to f64 (or u64) at once.
template <class T>
struct Prod {
  using C = T;
  struct P {
    Total<T> value = 1;
  };

  static void block(const T* x, int64_t n, int64_t, P& to) {
    alignas(64) Total<T> lane[kFactors];
    int64_t i = multiply_lanes(x, n, lane);
    for (int l = 0; i < n; ++i, ++l) lane[l] *= static_cast<Total<T>>(x[i]);
    for (int half = kFactors / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lane[l] *= lane[l + half];
    }
    to.value *= lane[0];
  }
  static void merge(P& a, const P& b) { a.value *= b.value; }
  static void panel(const T* x, int64_t stride, int64_t rows, int64_t columns, int64_t, P* to) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns; ++j) to[j].value *= static_cast<Total<T>>(x[r * stride + j]);
    }
  }
};

void put(DType type, double value, char* out) {
  if (type == DType::f64) return static_cast<void>(__builtin_memcpy(out, &value, sizeof(value)));
  const float x = static_cast<float>(value);
  scatter(type, &x, out, 0, 1);
}
void put(DType type, std::uint64_t value, char* out) {
  const auto x = static_cast<std::int64_t>(value);
  scatter(type, &x, out, 0, 1);
}

// n results, each result(partial, count) of the output's dtype.
template <class P, class F>
void finish(const void* partials, int64_t n, int64_t count, const Call& call, char* out, int64_t stride, F result) {
  const P* from = static_cast<const P*>(partials);
  for (int64_t i = 0; i < n; ++i) put(call.out->dtype, result(from[i], count), out + i * stride);
}

template <class Op, class F>
Reduction reduction_of(DType from, F) {
  using T = typename Op::C;
  return reduction<Op>(gather_of<T>(from), item_size(from) == sizeof(T), false,
                       [](const void* partials, int64_t n, int64_t count, const Call& c, char* out, int64_t stride) {
                         finish<typename Op::P>(partials, n, count, c, out, stride, F());
                       });
}

struct Whole {
  template <class P>
  P operator()(const P& total, int64_t) const { return total; }
};
struct Share {
  double operator()(double total, int64_t count) const { return total / static_cast<double>(count); }
};

template <class T>
void sum_as(const Call& call) {
  reduce(reduction_of<Sum<T>>(call.in[0].dtype, Whole()), call);
}

template <class T>
void mean_as(const Call& call) {
  reduce(reduction_of<Sum<T>>(call.in[0].dtype, Share()), call);
}

template <class T>
void prod_as(const Call& call) {
  reduce(reduction_of<Prod<T>>(call.in[0].dtype, [](const auto& total, int64_t) { return total.value; }), call);
}

template <class T>
void nonzero(const char* from, int64_t stride, void* into, int64_t n) {
  std::int8_t* to = static_cast<std::int8_t*>(into);
  if (stride == static_cast<int64_t>(sizeof(T))) {
    for (int64_t i = 0; i < n; ++i) to[i] = at<T>(from + i * static_cast<int64_t>(sizeof(T))) != 0;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = at<T>(from + i * stride) != 0;
  }
}

// The sign of a 16-bit float does not make it nonzero.
void nonzero_half(const char* from, int64_t stride, void* into, int64_t n) {
  std::int8_t* to = static_cast<std::int8_t*>(into);
  for (int64_t i = 0; i < n; ++i) to[i] = (at<std::uint16_t>(from + i * stride) & 0x7fff) != 0;
}

Gather nonzero_of(DType type) {
  switch (type) {
    case DType::f32: return nonzero<float>;
    case DType::f64: return nonzero<double>;
    case DType::f16:
    case DType::bf16: return nonzero_half;
    case DType::i32: return nonzero<std::int32_t>;
    case DType::i64: return nonzero<std::int64_t>;
    default: return nonzero<std::int8_t>;
  }
}

// Whether any element is nonzero (or, with All, zero): as bits of a word as wide as an element. What follows a block that
// answers is not read. The sign of a float does not make it nonzero.
template <class Word, bool Float, bool All>
struct Truth {
  using C = Word;
  using P = Word;
  static constexpr Word kSize = Float ? static_cast<Word>(static_cast<Word>(-1) >> 1) : static_cast<Word>(-1);

  static inline __attribute__((always_inline)) Word mark(Word x) {
    const Word size = static_cast<Word>(x & kSize);
    return All ? static_cast<Word>(size == 0 ? -1 : 0) : size;
  }
  static void block(const Word* x, int64_t n, int64_t, P& to) {
    constexpr int64_t kStep = 2048 / sizeof(Word);
    for (int64_t i = 0; i < n && to == 0; i += kStep) {
      const int64_t end = n - i < kStep ? n : i + kStep;
      Word seen = 0;
      for (int64_t j = i; j < end; ++j) seen = static_cast<Word>(seen | mark(x[j]));
      to = seen;
    }
  }
  static void merge(P& a, const P& b) { a = static_cast<P>(a | b); }
  static void panel(const Word* x, int64_t stride, int64_t rows, int64_t columns, int64_t, P* to) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns; ++j) to[j] = static_cast<P>(to[j] | mark(x[r * stride + j]));
    }
  }
};

template <class Word, bool Float, bool All>
void truth_as(const Call& call) {
  reduce(reduction<Truth<Word, Float, All>>(
             gather_as<Word, Word>, true, false,
             [](const void* partials, int64_t n, int64_t, const Call&, char* out, int64_t stride) {
               for (int64_t i = 0; i < n; ++i) {
                 const bool value = (static_cast<const Word*>(partials)[i] != 0) != All;
                 __builtin_memcpy(out + i * stride, &value, sizeof(value));
               }
             }),
         call);
}

template <bool All>
void truth(const Call& call) {
  switch (call.in[0].dtype) {
    case DType::f64: return truth_as<std::uint64_t, true, All>(call);
    case DType::f32: return truth_as<std::uint32_t, true, All>(call);
    case DType::f16:
    case DType::bf16: return truth_as<std::uint16_t, true, All>(call);
    case DType::i64: return truth_as<std::uint64_t, false, All>(call);
    case DType::i32: return truth_as<std::uint32_t, false, All>(call);
    default: return truth_as<std::uint8_t, false, All>(call);
  }
}

}  // namespace

void sum(const Call& call) {
  switch (call.in[0].dtype) {
    case DType::f64: return sum_as<double>(call);
    case DType::i64: return sum_as<int64_t>(call);
    case DType::i32: return sum_as<std::int32_t>(call);
    case DType::b8:
    case DType::i8: return sum_as<std::int8_t>(call);
    default: return sum_as<float>(call);
  }
}

Reduction sum_of(DType type) {
  return type == DType::f64 ? reduction_of<Sum<double>>(type, Whole()) : reduction_of<Sum<float>>(type, Whole());
}
Reduction mean_of(DType type) {
  return type == DType::f64 ? reduction_of<Sum<double>>(type, Share()) : reduction_of<Sum<float>>(type, Share());
}

void mean(const Call& call) { call.in[0].dtype == DType::f64 ? mean_as<double>(call) : mean_as<float>(call); }

void prod(const Call& call) {
  switch (call.in[0].dtype) {
    case DType::f64: return prod_as<double>(call);
    case DType::f32:
    case DType::f16:
    case DType::bf16: return prod_as<float>(call);
    default: return prod_as<int64_t>(call);
  }
}

void count_nonzero(const Call& call) {
  const DType from = call.in[0].dtype;
  reduce(reduction<Sum<std::int8_t>>(
             nonzero_of(from), from == DType::b8, false,
             [](const void* partials, int64_t n, int64_t, const Call&, char* out, int64_t stride) {
               for (int64_t i = 0; i < n; ++i) {
                 __builtin_memcpy(out + i * stride, static_cast<const std::uint64_t*>(partials) + i, sizeof(std::uint64_t));
               }
             }),
         call);
}

void all(const Call& call) { truth<true>(call); }
void any(const Call& call) { truth<false>(call); }

}  // namespace tritium::TRITIUM_ISA
