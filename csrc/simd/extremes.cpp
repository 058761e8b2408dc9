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

template <bool Max, class T>
T extreme(const T* x, int64_t n, bool& doubt) {
  doubt = false;
  if constexpr (std::is_floating_point_v<T>) {
    return extreme_of<Max, true>(x, n, doubt);
  } else {
    T best = x[0];
    for (int64_t i = 1; i < n; ++i) best = select<Max>(x[i], best);
    return best;
  }
}

template <class T>
int64_t first_nan(const T* x, int64_t n) {
  int64_t i = 0;
  while (i < n && x[i] == x[i]) ++i;
  return i;
}

// The first i >= start with x[i] == value, which is there before n. Four vectors at a time tell where not to look.
template <class T>
int64_t find(const T* x, int64_t start, int64_t n, T value) {
  constexpr int L = kLanes<T>;
  const Vec<T> wanted = splat(value);
  for (; start + 4 * L <= n; start += 4 * L) {
    const auto hit = [&](int v) { return load(x + start + v * L) == wanted; };
    const auto hits = (hit(0) | hit(1)) | (hit(2) | hit(3));
    Vec<int64_t> any;
    static_assert(sizeof(any) == sizeof(hits));
    __builtin_memcpy(&any, &hits, sizeof(any));
    if (fold_lanes<int64_t, kLanes<int64_t>>(any, [](const auto& a, const auto& b) { return a | b; })) break;
  }
  while (!(x[start] == value)) ++start;
  return start;
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

  static void block(const T* x, int64_t n, int64_t, P& to) {
    bool doubt;
    const T best = extreme<Max>(x, n, doubt);
    const int64_t nan = doubt ? first_nan(x, n) : n;
    merge(to, {nan < n ? x[nan] : best});
  }
  static void merge(P& a, const P& b) {
    if (beats<Max>(b.value, a.value) || b.value != b.value) a = b;
  }
  static void panel(const T* x, int64_t stride, int64_t rows, int64_t columns, int64_t, P* to) {
    constexpr int L = kLanes<T>, kRows = 8;
    static_assert(sizeof(P) == sizeof(T));
    T* best = &to->value;
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t m = rows - r < kRows ? rows - r : kRows;
      const T* from = x + r * stride;
      int64_t j = 0;
      for (; j + L <= columns; j += L) {
        Vec<T> top = load(best + j);
        for (int64_t i = 0; i < m; ++i) {
          const Vec<T> v = load(from + i * stride + j);
          top = ((Max ? v > top : v < top) | (v != v)) ? v : top;
        }
        store(best + j, top);
      }
      for (; j < columns; ++j) {
        for (int64_t i = 0; i < m; ++i) {
          const T v = from[i * stride + j];
          best[j] = (beats<Max>(v, best[j]) || v != v) ? v : best[j];
        }
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

  // The place is looked for only where the block wins, and there only in the first step that holds its extreme.
  static void block(const T* x, int64_t n, int64_t first, P& to) {
    constexpr int64_t kStep = 1024;
    T best = 0;
    int64_t start = -1;
    for (int64_t i = 0; i < n; i += kStep) {
      const int64_t m = n - i < kStep ? n - i : kStep;
      bool doubt;
      const T top = extreme<Max>(x + i, m, doubt);
      const int64_t nan = doubt ? first_nan(x + i, m) : m;
      if (nan < m) return merge(to, {x[i + nan], first + i + nan});
      if (start < 0 || beats<Max>(top, best)) {
        best = top;
        start = i;
      }
    }
    if (to.index >= 0 && !beats<Max>(best, to.value)) return;
    merge(to, {best, first + find(x, start, n, best)});
  }
  static void merge(P& a, const P& b) {
    if (b.index < 0) return;
    if (a.index < 0 || beats<Max>(b.value, a.value) || (b.value != b.value && a.value == a.value)) a = b;
  }
  // Rows are numbered in integers as wide as the elements, so that values and numbers move together in vectors.
  static void panel(const T* x, int64_t stride, int64_t rows, int64_t columns, int64_t first, P* to) {
    using Narrow = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int8_t>;
    using Number = std::conditional_t<sizeof(T) == 8, int64_t, Narrow>;
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
Reduction extreme_reduction(DType from) {
  using P = typename Extreme<T, Max>::P;
  return reduction<Extreme<T, Max>>(
      gather_of<T>(from), item_size(from) == sizeof(T), false,
      [](const void* partials, int64_t n, int64_t, const Call& c, char* out, int64_t stride) {
        static_assert(sizeof(P) == sizeof(T));
        scatter(c.out->dtype, static_cast<const T*>(partials), out, stride, n);
      });
}

template <class T, bool Max>
void extreme_as(const Call& call) {
  reduce(extreme_reduction<T, Max>(call.in[0].dtype), call);
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

Reduction max_of(DType type) {
  return type == DType::f64 ? extreme_reduction<double, true>(type) : extreme_reduction<float, true>(type);
}
Reduction min_of(DType type) {
  return type == DType::f64 ? extreme_reduction<double, false>(type) : extreme_reduction<float, false>(type);
}

void max(const Call& call) { extreme_of<true>(call); }
void min(const Call& call) { extreme_of<false>(call); }
void argmax(const Call& call) { position_of<true>(call); }
void argmin(const Call& call) { position_of<false>(call); }

}  // namespace tritium::TRITIUM_ISA
