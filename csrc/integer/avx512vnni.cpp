// Products with tiled weights on AVX-512 with VNNI: vectors of 64 bytes, 32 of them. amx.cpp leaves few tokens to these.
#include "entries.h"
#include "vnni.h"

namespace tritium::TRITIUM_ISA {
namespace {

Plan plan(const Product& p, std::int64_t m) { return vnni_plan<Zmm>(p, m); }

}  // namespace

Plan vnni_plan(const Product& p, std::int64_t m) { return plan(p, m); }

Table tiled_table() { return products<kFormats>(); }

}  // namespace tritium::TRITIUM_ISA
