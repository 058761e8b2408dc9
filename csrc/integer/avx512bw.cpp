// Products with tiled weights on AVX-512 without VNNI: vectors of 64 bytes, 32 of them.
#include "entries.h"
#include "pairs.h"

namespace tritium::TRITIUM_ISA {
namespace {

Plan plan(const Product& p, std::int64_t m) { return pairs_plan<Zmm>(p, m); }

}  // namespace

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
