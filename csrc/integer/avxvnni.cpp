// Products with tiled weights on AVX with VNNI: vectors of 32 bytes, 16 of them.
#include "entries.h"
#include "vnni.h"

namespace tritium::TRITIUM_ISA {
namespace {

Plan plan(const Product& p, std::int64_t m) { return vnni_plan<Ymm>(p, m); }

}  // namespace

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
