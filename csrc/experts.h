// expert_matmul: each token times the weights of the experts it chose, by the product that an instruction set has for one matrix.
#pragma once

#include "isa.h"

namespace tritium {

// The entry of expert_matmul beside a `quantized_matmul` of an instruction set, of any kind of activations: the same weights, the
// same attributes. Its name is nullptr beside other entries.
Entry experts_entry(const Entry& product, Isa isa, Tiled tiled);

}  // namespace tritium
