// The instructions of a tape as functions: the accumulator, eight vectors, is passed on in registers, and each function
// ends by jumping to the next.
#pragma once

#include <cstdint>

#include "half.h"
#include "span.h"
#include "tape_bytes.h"

#if defined(__clang__)
#define TRITIUM_TAIL [[clang::musttail]] return
#else
#define TRITIUM_TAIL return
#endif

namespace tritium::TRITIUM_ISA::tape {

constexpr int kVectors = 8;
template <class T>
constexpr int kBlock = kVectors * kLanes<T>;  // elements computed at once
constexpr int kBlockBytes = kVectors * kVectorBytes;
constexpr int kScratchBlocks = 2;

struct Instr {
  void (*fn)();  // a Step<T>
  Span span;     // what a step that leaves the registers calls
  std::int64_t x, y;
};

#define TRITIUM_TAPE_ARGUMENTS                                                                            \
  [[maybe_unused]] const Instr *ip, [[maybe_unused]] char *const *at, Vec<T> a0, Vec<T> a1, Vec<T> a2, Vec<T> a3, \
      Vec<T> a4, Vec<T> a5, Vec<T> a6, Vec<T> a7
#define TRITIUM_TAPE_NEXT \
  TRITIUM_TAIL reinterpret_cast<Step<T>>(ip[1].fn)(ip + 1, at, a0, a1, a2, a3, a4, a5, a6, a7)
// Every vector of the accumulator becomes f(number of the vector, its value).
#define TRITIUM_TAPE_EVERY(f) \
  a0 = f(0, a0);              \
  a1 = f(1, a1);              \
  a2 = f(2, a2);              \
  a3 = f(3, a3);              \
  a4 = f(4, a4);              \
  a5 = f(5, a5);              \
  a6 = f(6, a6);              \
  a7 = f(7, a7);

template <class T>
using Step = void (*)(const Instr*, char* const*, Vec<T>, Vec<T>, Vec<T>, Vec<T>, Vec<T>, Vec<T>, Vec<T>, Vec<T>);

template <class T>
TRITIUM_INLINE Vec<T> vector_at(const void* block, int i) {
  return load(static_cast<const T*>(block) + i * kLanes<T>);
}

template <class T>
void stop(TRITIUM_TAPE_ARGUMENTS) {
  (void)a0, (void)a1, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7;
}

template <class T, class Op>
void unary_step(TRITIUM_TAPE_ARGUMENTS) {
  const auto f = [](int, Vec<T> a) __attribute__((always_inline)) { return Op::of(a); };
  TRITIUM_TAPE_EVERY(f)
  TRITIUM_TAPE_NEXT;
}

template <class T, class Op>
void binary_step(TRITIUM_TAPE_ARGUMENTS) {
  const char* const x = at[ip->x];
  const auto f = [x](int i, Vec<T> a) __attribute__((always_inline)) { return Op::of(a, vector_at<T>(x, i)); };
  TRITIUM_TAPE_EVERY(f)
  TRITIUM_TAPE_NEXT;
}

template <class T, class Op>
void reversed_step(TRITIUM_TAPE_ARGUMENTS) {
  const char* const x = at[ip->x];
  const auto f = [x](int i, Vec<T> a) __attribute__((always_inline)) { return Op::of(vector_at<T>(x, i), a); };
  TRITIUM_TAPE_EVERY(f)
  TRITIUM_TAPE_NEXT;
}

// op(acc, x, y); where the mask is in memory, the accumulator is the second (or, reversed, the third) argument.
template <class T, class Op>
void ternary_step(TRITIUM_TAPE_ARGUMENTS) {
  const char *const x = at[ip->x], *const y = at[ip->y];
  const auto f = [x, y](int i, Vec<T> a) __attribute__((always_inline)) {
    return Op::of(a, vector_at<T>(x, i), vector_at<T>(y, i));
  };
  TRITIUM_TAPE_EVERY(f)
  TRITIUM_TAPE_NEXT;
}
template <class T, class Op, bool Reversed>
void masked_step(TRITIUM_TAPE_ARGUMENTS) {
  const char *const x = at[ip->x], *const y = at[ip->y];
  const auto f = [x, y](int i, Vec<T> a) __attribute__((always_inline)) {
    const Vec<T> mask = vector_at<T>(x, i), other = vector_at<T>(y, i);
    return Reversed ? Op::of(mask, other, a) : Op::of(mask, a, other);
  };
  TRITIUM_TAPE_EVERY(f)
  TRITIUM_TAPE_NEXT;
}

// ---- memory: how a vector of the accumulator comes from elements of a dtype, and goes there

template <class E, class T>
TRITIUM_INLINE Elements<E, T> elements_at(const char* p, int i) {
  Elements<E, T> v;
  __builtin_memcpy(&v, p + i * sizeof(v), sizeof(v));
  return v;
}

struct Raw {
  template <class T>
  TRITIUM_INLINE static Vec<T> get(const char* p, int i) { return vector_at<T>(p, i); }
  template <class T, bool Around = false>
  TRITIUM_INLINE static void put(char* p, int i, Vec<T> v) { put_at<Around>(p, i, v); }
};
struct Truth {
  template <class T>
  TRITIUM_INLINE static Vec<T> get(const char* p, int i) {
    return (Vec<T>)(bytes_at(p + i * kLanes<T>, T{}) != 0);
  }
  template <class T, bool Around = false>
  TRITIUM_INLINE static void put(char* p, int i, Vec<T> v) {
    put_at<Around>(p, i, low_bytes(bits(v) & 1));
  }
};
struct Int8 {
  template <class T>
  TRITIUM_INLINE static Vec<T> get(const char* p, int i) {
    return lanes(bytes_at(p + i * kLanes<T>, T{}));
  }
  template <class T, bool Around = false>
  TRITIUM_INLINE static void put(char* p, int i, Vec<T> v) {
    put_at<Around>(p, i, low_bytes(bits(v)));
  }
};
struct Bf16 {
  template <class T>
  TRITIUM_INLINE static Vec<T> get(const char* p, int i) {
    return (Vec<T>)(__builtin_convertvector(elements_at<std::uint16_t, T>(p, i), Vec<std::uint32_t>) << 16);
  }
  template <class T, bool Around = false>
  TRITIUM_INLINE static void put(char* p, int i, Vec<T> v) {
    const auto high = (Vec<std::uint32_t>)RoundBf16::of(v) >> 16;
    put_at<Around>(p, i, __builtin_convertvector(high, Elements<std::uint16_t, T>));
  }
};

template <class T, class Kind>
void load_step(TRITIUM_TAPE_ARGUMENTS) {
  const char* const x = at[ip->x];
  const auto f = [x](int i, Vec<T>) __attribute__((always_inline)) { return Kind::template get<T>(x, i); };
  TRITIUM_TAPE_EVERY(f)
  TRITIUM_TAPE_NEXT;
}

template <class T, class Kind, bool Around>
void store_step(TRITIUM_TAPE_ARGUMENTS) {
  char* const x = at[ip->x];
  const auto f = [x](int i, Vec<T> a) __attribute__((always_inline)) {
    Kind::template put<T, Around>(x, i, a);
    return a;
  };
  TRITIUM_TAPE_EVERY(f)
  TRITIUM_TAPE_NEXT;
}

#if defined(__AVX512F__)
struct F16 {
  template <class T>
  TRITIUM_INLINE static Vec<T> get(const char* p, int i) {
    return (Vec<T>)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + i));
  }
  template <class T, bool Around = false>
  TRITIUM_INLINE static void put(char* p, int i, Vec<T> v) {
    put_at<Around>(p, i, narrowed(v));
  }
  TRITIUM_INLINE static __m256i narrowed(Vec<float> v) {
    return _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  TRITIUM_INLINE static Vec<float> of(Vec<float> v) { return (Vec<float>)_mm512_maskz_cvtph_ps(0xffff, narrowed(v)); }
};
#elif defined(__F16C__)
struct F16 {
  template <class T>
  TRITIUM_INLINE static Vec<T> get(const char* p, int i) {
    return (Vec<T>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + i));
  }
  template <class T, bool Around = false>
  TRITIUM_INLINE static void put(char* p, int i, Vec<T> v) {
    put_at<Around>(p, i, narrowed(v));
  }
  TRITIUM_INLINE static __m128i narrowed(Vec<float> v) { return _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
  TRITIUM_INLINE static Vec<float> of(Vec<float> v) { return (Vec<float>)_mm256_cvtph_ps(narrowed(v)); }
};
#endif

// ---- what leaves the registers: the accumulator goes to scratch memory and comes back

#define TRITIUM_TAPE_OUT(to)                                                      \
  const auto out = [to](int i, Vec<T> a) __attribute__((always_inline)) {         \
    Raw::put<T>(to, i, a);                                                        \
    return a;                                                                     \
  };                                                                              \
  TRITIUM_TAPE_EVERY(out)
#define TRITIUM_TAPE_BACK(from)                                                                             \
  const auto back = [from](int i, Vec<T>) __attribute__((always_inline)) { return vector_at<T>(from, i); }; \
  TRITIUM_TAPE_EVERY(back)

template <class T, int Arity, bool Reversed>
void span_step(TRITIUM_TAPE_ARGUMENTS) {
  char* const s = at[0];
  TRITIUM_TAPE_OUT(s)
  const char* const x = Arity == 1 ? nullptr : at[ip->x];
  ip->span(Reversed ? x : s, Reversed ? s : x, nullptr, s, kBlock<T>);
  TRITIUM_TAPE_BACK(s)
  TRITIUM_TAPE_NEXT;
}

#if !defined(__F16C__)
template <class T>
void load_f16_step(TRITIUM_TAPE_ARGUMENTS) {
  char* const s = at[0];
  widen(DType::f16, at[ip->x], reinterpret_cast<float*>(s), kBlock<T>);
  TRITIUM_TAPE_BACK(s)
  TRITIUM_TAPE_NEXT;
}
template <class T>
void store_f16_step(TRITIUM_TAPE_ARGUMENTS) {
  char* const s = at[0];
  TRITIUM_TAPE_OUT(s)
  narrow(DType::f16, reinterpret_cast<const float*>(s), at[ip->x], kBlock<T>);
  TRITIUM_TAPE_NEXT;
}
template <class T>
void round_f16_step(TRITIUM_TAPE_ARGUMENTS) {
  char* const s = at[0];
  TRITIUM_TAPE_OUT(s)
  narrow(DType::f16, reinterpret_cast<const float*>(s), s + kBlockBytes, kBlock<T>);
  widen(DType::f16, s + kBlockBytes, reinterpret_cast<float*>(s), kBlock<T>);
  TRITIUM_TAPE_BACK(s)
  TRITIUM_TAPE_NEXT;
}
#endif

}  // namespace tritium::TRITIUM_ISA::tape
