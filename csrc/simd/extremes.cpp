// max, min, argmax and argmin; a NaN is the extreme of whatever holds one, and the first of equals is the one found.
// Knows nothing of shapes; reduce.h walks.
#include <type_traits>

#include "lanes.h"
#include "reduce.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

template <bool Max, class T>
inline __attribute__((always_inline)) bool beats(T x, T y) {
  return Max ? x > y : x < y;
}
template <bool Max, class T>
inline __attribute__((always_inline)) T select(T x, T y) {
  return beats<Max>(x, y) ? x : y;
}

// The extreme of n >= 1 elements that hold no NaN. A float block that may hold one is told by `doubt`: x * 0 is NaN for
// it, as for infinities, and stays so in a sum.
template <bool Max, class T>
T extreme(const T* x, int64_t n, bool& doubt) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr int L = kLanes<T>, U = 4;
    T best = x[0], trace = x[0] * 0;
    int64_t i = 0;
    if (n >= L) {
      Vec<T> top[U], zero[U] = {};
      for (int u = 0; u < U; ++u) top[u] = load(x);
      for (; i + U * L <= n; i += U * L) {
#pragma GCC unroll 4
        for (int u = 0; u < U; ++u) {
          const Vec<T> v = load(x + i + u * L);
          top[u] = Max ? (v > top[u] ? v : top[u]) : (v < top[u] ? v : top[u]);
          zero[u] += v * 0;
        }
      }
      for (; i + L <= n; i += L) {
        const Vec<T> v = load(x + i);
        top[0] = Max ? (v > top[0] ? v : top[0]) : (v < top[0] ? v : top[0]);
        zero[0] += v * 0;
      }
      for (int u = 1; u < U; ++u) {
        top[0] = Max ? (top[u] > top[0] ? top[u] : top[0]) : (top[u] < top[0] ? top[u] : top[0]);
        zero[0] += zero[u];
      }
      for (int l = 0; l < L; ++l) {
        best = select<Max>(top[0][l], best);
        trace += zero[0][l];
      }
    }
    for (; i < n; ++i) {
      best = select<Max>(x[i], best);
      trace += x[i] * 0;
    }
    doubt = trace != trace;
    return best;
  } else {
    T best = x[0];
    for (int64_t i = 1; i < n; ++i) best = select<Max>(x[i], best);
    doubt = false;
    return best;
  }
}

template <class T>
int64_t first_nan(const T* x, int64_t n) {
  int64_t i = 0;
  while (i < n && x[i] == x[i]) ++i;
  return i;
}

template <bool Max, class T>
constexpr T lowest() {
  if constexpr (std::is_floating_point_v<T>) {
    return Max ? -static_cast<T>(__builtin_huge_val()) : static_cast<T>(__builtin_huge_val());
  } else {
    constexpr T top = static_cast<T>(~(static_cast<std::make_unsigned_t<T>>(1) << (sizeof(T) * 8 - 1)));
    return Max ? static_cast<T>(-top - 1) : top;
  }
}

template <class T, bool Max>
struct Extreme {
  using C = T;
  struct P {
    T value = lowest<Max, T>();
  };

  static P block(const T* x, int64_t n, int64_t) {
    bool doubt;
    const T best = extreme<Max>(x, n, doubt);
    if (doubt) {
      const int64_t i = first_nan(x, n);
      if (i < n) return {x[i]};
    }
    return {best};
  }
  static void merge(P& a, const P& b) {
    if (beats<Max>(b.value, a.value) || b.value != b.value) a = b;
  }
  static void panel(const T* x, int64_t stride, int64_t rows, int64_t columns, int64_t, P* to) {
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * stride;
      for (int64_t j = 0; j < columns; ++j) {
        const T v = row[j], best = to[j].value;
        to[j].value = beats<Max>(v, best) | (v != v) ? v : best;
      }
    }
  }
};

// Where the extreme is. Blocks come in order, so a later one wins only by being better.
template <class T, bool Max>
struct Position {
  using C = T;
  struct P {
    T value = 0;
    int64_t index = -1;  // -1: of nothing
  };

  static P block(const T* x, int64_t n, int64_t first) {
    bool doubt;
    const T best = extreme<Max>(x, n, doubt);
    if (doubt) {
      const int64_t i = first_nan(x, n);
      if (i < n) return {x[i], first + i};
    }
    constexpr int64_t kStep = 64;  // a step without a hit is told by vectors
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) {
      int hits = 0;
      for (int64_t j = 0; j < kStep; ++j) hits |= x[i + j] == best;
      if (hits) break;
    }
    while (!(x[i] == best)) ++i;
    return {best, first + i};
  }
  static void merge(P& a, const P& b) {
    if (b.index < 0) return;
    if (a.index < 0 || beats<Max>(b.value, a.value) || (b.value != b.value && a.value == a.value)) a = b;
  }
  // Rows are numbered in integers as wide as the elements, so that values and numbers move together in vectors.
  static void panel(const T* x, int64_t stride, int64_t rows, int64_t columns, int64_t first, P* to) {
    using Number = std::conditional_t<sizeof(T) == 8, int64_t, std::conditional_t<sizeof(T) == 4, std::int32_t, std::int8_t>>;
    alignas(64) T best[kColumns];
    alignas(64) Number found[kColumns];
    for (int64_t j = 0; j < columns; ++j) {
      best[j] = x[j];
      found[j] = 0;
    }
    for (int64_t r = 1; r < rows; ++r) {
      const T* row = x + r * stride;
      const Number number = static_cast<Number>(r);
      for (int64_t j = 0; j < columns; ++j) {
        const T v = row[j], b = best[j];
        const bool better = beats<Max>(v, b) | ((v != v) & (b == b));
        best[j] = better ? v : b;
        found[j] = better ? number : found[j];
      }
    }
    for (int64_t j = 0; j < columns; ++j) merge(to[j], {best[j], first + found[j]});
  }
};

template <class T, bool Max>
void extreme_as(const Call& call) {
  using P = typename Extreme<T, Max>::P;
  const DType from = call.in[0].dtype;
  reduce(reduction<Extreme<T, Max>>(
             gather_of<T>(from), item_size(from) == sizeof(T), false,
             [](const void* partials, int64_t n, int64_t, const Call& c, char* out, int64_t stride) {
               static_assert(sizeof(P) == sizeof(T));
               scatter(c.out->dtype, static_cast<const T*>(partials), out, stride, n);
             }),
         call);
}

template <class T, bool Max>
void position_as(const Call& call) {
  using P = typename Position<T, Max>::P;
  const DType from = call.in[0].dtype;
  reduce(reduction<Position<T, Max>>(
             gather_of<T>(from), item_size(from) == sizeof(T), true,
             [](const void* partials, int64_t n, int64_t, const Call&, char* out, int64_t stride) {
               for (int64_t i = 0; i < n; ++i) {
                 __builtin_memcpy(out + i * stride, &static_cast<const P*>(partials)[i].index, sizeof(int64_t));
               }
             }),
         call);
}

template <bool Max>
void extreme_of(const Call& call) {
  switch (call.in[0].dtype) {
    case DType::f64: return extreme_as<double, Max>(call);
    case DType::i64: return extreme_as<int64_t, Max>(call);
    case DType::i32: return extreme_as<std::int32_t, Max>(call);
    case DType::i8: return extreme_as<std::int8_t, Max>(call);
    default: return extreme_as<float, Max>(call);
  }
}

template <bool Max>
void position_of(const Call& call) {
  switch (call.in[0].dtype) {
    case DType::f64: return position_as<double, Max>(call);
    case DType::i64: return position_as<int64_t, Max>(call);
    case DType::i32: return position_as<std::int32_t, Max>(call);
    case DType::i8: return position_as<std::int8_t, Max>(call);
    default: return position_as<float, Max>(call);
  }
}

}  // namespace

void max(const Call& call) { extreme_of<true>(call); }
void min(const Call& call) { extreme_of<false>(call); }
void argmax(const Call& call) { position_of<true>(call); }
void argmin(const Call& call) { position_of<false>(call); }

}  // namespace tritium::TRITIUM_ISA
