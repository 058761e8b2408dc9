// Products with tiled weights on AVX2: vectors of 32 bytes, 16 of them.
#include "entries.h"
#include "pairs.h"

namespace tritium::TRITIUM_ISA {
namespace {

Plan plan(const Product& p, std::int64_t m) { return pairs_plan<Ymm>(p, m); }

}  // namespace

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
