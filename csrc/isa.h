// The instruction sets the kernels are compiled for, the one in use, and the kernels of each.
#pragma once

#include "view.h"

namespace tritium {

// Every name is also the namespace its kernels live in; each is preferred to those before it. Some have kernels for
// integer products only and use another one's for all the rest, their base.
enum class Isa : std::uint8_t { portable, avx2, avxvnni, avx512, avx512bw, avx512vnni, amx, neon, dotprod, i8mm };
constexpr int kIsas = 10;

Isa base(Isa isa);  // itself if it has kernels for everything

const char* isa_name(Isa isa);
bool isa_from_name(const char* name, Isa* isa);  // false: no such name

bool isa_built(Isa isa);      // its kernels are part of this build
bool isa_detected(Isa isa);   // this CPU can run them
bool isa_available(Isa isa);  // both

// The widest available one, or the one the environment variable TRITIUM_ISA names. A name that is unknown or not
// available here changes nothing; isa_rejected() then gives it back, so that the caller can report it, else nullptr.
Isa current_isa();
const char* isa_rejected();

// All kernels for everything of an available instruction set's base, and its kernels for products with tiled weights
// (avx512 has those of avx512bw); names are unique in each.
const Table& table(Isa isa);
const Table& tiled_table(Isa isa);

// The kernel of that name: one for tiled weights if there is, else the base's; `from`, if given, becomes the set it was
// compiled for. nullptr: none. A name of both kinds is found in the base by find(name, base(isa), Tiled::no).
enum class Tiled : bool { no, yes };
const Entry* find(const char* name);
const Entry* find(const char* name, Isa isa, Tiled tiled = Tiled::yes, Isa* from = nullptr);

}  // namespace tritium
