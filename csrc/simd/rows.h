// Functions of one row of contiguous elements, for whoever has a row in the cache; x may be y.
#pragma once

#include <cstdint>

namespace tritium::TRITIUM_ISA {

// C is float or double; weight and bias may be nullptr.
template <class C>
void softmax_row(const C* x, C* y, std::int64_t n);
template <class C>
void log_softmax_row(const C* x, C* y, std::int64_t n);
template <class C>
void layer_norm_row(const C* x, C* y, std::int64_t n, const C* weight, const C* bias, double eps);
template <class C>
void rms_norm_row(const C* x, C* y, std::int64_t n, const C* weight, double eps);

// q = x in units of the scale returned; sum is that of q.
float quantize_row(const float* x, std::int64_t n, std::int8_t* q, std::int32_t* sum);

}  // namespace tritium::TRITIUM_ISA
