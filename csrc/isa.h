// The instruction sets the kernels are compiled for, the one in use, and the kernels of each.
// Knows nothing of what a kernel computes.
#pragma once

#include "view.h"

namespace tritium {

// Every name is also the namespace its kernels live in.
enum class Isa : std::uint8_t { portable, avx2, avx512, neon };
constexpr int kIsas = 4;

const char* isa_name(Isa isa);
bool isa_from_name(const char* name, Isa* isa);  // false: no such name

// Whether the kernels of `isa` are part of this build and this CPU can run them.
bool isa_available(Isa isa);

// The widest available one, or the one the environment variable TRITIUM_ISA names. A name that is unknown or not
// available here changes nothing; isa_rejected() then gives it back, so that the caller can report it, else nullptr.
Isa current_isa();
const char* isa_rejected();

// All kernels of an available instruction set; names are unique in it.
const Table& table(Isa isa);

// nullptr: no kernel of that name.
const Entry* find(const char* name);
const Entry* find(const char* name, Isa isa);

}  // namespace tritium
