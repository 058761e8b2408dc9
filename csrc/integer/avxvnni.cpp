// Products with tiled weights on AVX with VNNI: vectors of 32 bytes, 16 of them.
// Knows nothing of formats beyond views.h, nor of loops beyond vnni.h. Groups must be whole units of 64 k.
#include "entries.h"
#include "vnni.h"

namespace tritium::TRITIUM_ISA {
namespace {

Plan plan(DType format, std::int64_t m, bool grouped) { return vnni_plan<Ymm>(format, m, grouped); }

}  // namespace

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
