// The table of an ARM kernel file: which function runs a product of which format, for one unit.
#pragma once

#include "arm_product.h"
#include "entries.h"

namespace tritium::TRITIUM_ISA {
namespace {

// Activations stay plain rows; run() packs them, since how depends on the number of tokens in a slab.
template <class U>
Plan plan_of(DType format) {
  switch (format) {
    case DType::tern2_r16: return {kInSlots, run<U, Tern2>};
    case DType::i8_r16: return {kInSlots, run<U, Int8>};
    default: return {kInSlots, run<U, Int4>};
  }
}

constexpr std::uint32_t kFormats = bit(DType::tern2_r16) | bit(DType::i8_r16) | bit(DType::i4_r32);

}  // namespace
}  // namespace tritium::TRITIUM_ISA
