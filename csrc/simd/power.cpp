// Powers of integers, which wrap. A negative power is a fault, looked for before anything is written.
#include <cstdint>
#include <type_traits>

#include "../fault.h"
#include "gather.h"
#include "iterate.h"
#include "loops.h"

namespace tritium::TRITIUM_ISA {
namespace {

using std::int64_t;

constexpr int64_t kBlock = 256;

// By squares: all elements of a block at once, as often as the largest power has bits.
template <class T>
void run_power(const void*, const char* const* in, char* out, int64_t n) {
  using Wide = std::conditional_t<sizeof(T) < 4, std::uint32_t, T>;  // lest a product be promoted to int
  const T *x = reinterpret_cast<const T*>(in[0]), *y = reinterpret_cast<const T*>(in[1]);
  T* to = reinterpret_cast<T*>(out);
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = n - first < kBlock ? n - first : kBlock;
    alignas(64) Wide square[kBlock], result[kBlock];
    alignas(64) T power[kBlock];
    T bits = 0;
    for (int64_t i = 0; i < count; ++i) {
      square[i] = x[first + i];
      result[i] = 1;
      power[i] = y[first + i];
      bits = static_cast<T>(bits | power[i]);
    }
    for (; bits != 0; bits = static_cast<T>(bits >> 1)) {
      for (int64_t i = 0; i < count; ++i) {
        result[i] = static_cast<T>(power[i] & 1 ? result[i] * square[i] : result[i]);
        square[i] = static_cast<T>(square[i] * square[i]);
        power[i] = static_cast<T>(power[i] >> 1);
      }
    }
    for (int64_t i = 0; i < count; ++i) to[first + i] = static_cast<T>(result[i]);
  }
}

template <class T>
bool any_negative(const View& v, int axis, const char* from) {
  if (axis == v.ndim) return at<T>(from) < 0;
  const int64_t n = v.strides[axis] == 0 && v.shape[axis] > 0 ? 1 : v.shape[axis];
  if (axis + 1 == v.ndim) {
    T signs = 0;
    for (int64_t i = 0; i < n; ++i) signs = static_cast<T>(signs | at<T>(from + i * v.strides[axis]));
    return signs < 0;
  }
  for (int64_t i = 0; i < n; ++i)
    if (any_negative<T>(v, axis + 1, from + i * v.strides[axis])) return true;
  return false;
}

bool has_negative(const View& v) {
  switch (v.dtype) {
    case DType::i8: return any_negative<std::int8_t>(v, 0, v.data);
    case DType::i16: return any_negative<std::int16_t>(v, 0, v.data);
    case DType::i32: return any_negative<std::int32_t>(v, 0, v.data);
    case DType::i64: return any_negative<int64_t>(v, 0, v.data);
    default: return false;
  }
}

void power(const Call& call) {
  if (has_negative(call.in[1])) return set_fault({Faulty::power, "pow", {}});
  const DType t = call.out->dtype;
  Body body{run_power<std::uint64_t>, nullptr, {t, t}, t, INT64_MAX, static_cast<int64_t>(Cost::dear)};
  switch (item_size(t)) {
    case 1: body.run = run_power<std::uint8_t>; break;
    case 2: body.run = run_power<std::uint16_t>; break;
    case 4: body.run = run_power<std::uint32_t>; break;
  }
  iterate(body, call.in, 2, *call.out);
}

constexpr std::uint32_t kIntegers = (bit(DType::f16) - 1) & ~bit(DType::b8);
constexpr Entry kEntries[] = {{"whole_pow", power, kIntegers, "", -1, true}};

}  // namespace

Table power_table() { return {kEntries, length(kEntries)}; }

}  // namespace tritium::TRITIUM_ISA
