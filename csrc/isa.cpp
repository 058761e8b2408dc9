// Detects the instruction sets of this CPU and joins the kernel files' tables into one table each.
// Knows the kernel files by name only.
#include "isa.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "built.h"
#include "experts.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

// One line per file of simd/ that has a table.
#define TRITIUM_KERNEL_FILES(use) \
  use(map_arithmetic)             \
  use(map_bits)                   \
  use(map_compare)                \
  use(map_float)                  \
  use(copy)                       \
  use(reduce)                     \
  use(rows)                       \
  use(moves)                      \
  use(matmul)                     \
  use(fused_product)              \
  use(random)                     \
  use(tape)                       \
  use(indexed)                    \
  use(nonzero)                    \
  use(rope)                       \
  use(linear)                     \
  use(certified)                  \
  use(cache)                      \
  use(quantized_cache)            \
  use(attention)                  \
  use(recurrent)                  \
  use(hadamard)                   \
  use(integer)                    \
  use(ternary)                    \
  use(quantize)                   \
  use(dequantize)                 \
  use(take_rows)                  \
  use(sort)                       \
  use(complex)                    \
  use(power)                      \
  use(source)

#define TRITIUM_DECLARE(file) Table file##_table();
#define TRITIUM_APPEND(file) append(to, file##_table());

#define TRITIUM_DECLARE_ISA(isa)                \
  namespace isa {                               \
  TRITIUM_KERNEL_FILES(TRITIUM_DECLARE)         \
  static void collect(std::vector<Entry>& to) { \
    TRITIUM_KERNEL_FILES(TRITIUM_APPEND)        \
  }                                             \
  }

namespace tritium {

static void append(std::vector<Entry>& to, const Table& from) {
  to.insert(to.end(), from.first, from.first + from.count);
}

#define TRITIUM_DECLARE_TILED(isa) \
  namespace isa {                  \
  Table tiled_table();             \
  }

TRITIUM_KERNEL_SETS(TRITIUM_DECLARE_ISA)
TRITIUM_PRODUCT_SETS(TRITIUM_DECLARE_TILED)

namespace {

constexpr const char* kNames[kIsas] = {"portable",   "avx2", "avxvnni", "avx512",  "avx512bw",
                                       "avx512vnni", "amx",  "neon",    "dotprod", "i8mm"};

struct Kernels {
  std::vector<Entry> entries;
  Table table{nullptr, 0};
  std::unordered_map<std::string, const Entry*> by_name;

  explicit Kernels(std::vector<Entry> given) : entries(std::move(given)) {
    table = {entries.data(), entries.size()};
    for (const Entry& entry : entries) by_name.emplace(entry.name, &entry);
  }
  Kernels(const Kernels&) = delete;

  const Entry* find(const char* name) const {
    const auto hit = by_name.find(name);
    return hit == by_name.end() ? nullptr : hit->second;
  }
};

// What has a product for one matrix has it for those of experts.
void append_experts(std::vector<Entry>& entries, Isa isa, Tiled tiled) {
  const std::size_t own = entries.size();
  for (std::size_t i = 0; i < own; ++i) {
    const Entry entry = experts_entry(entries[i], isa, tiled);
    if (entry.name) entries.push_back(entry);
  }
}

#define TRITIUM_COLLECT(isa) \
  case Isa::isa: isa::collect(entries); break;
#define TRITIUM_COLLECT_TILED(isa) \
  case Isa::isa: append(entries, isa::tiled_table()); break;
#define TRITIUM_BUILT(isa) \
  case Isa::isa: return true;

std::vector<Entry> collect(Isa isa) {
  std::vector<Entry> entries;
  switch (isa) {
    TRITIUM_KERNEL_SETS(TRITIUM_COLLECT)
    default: break;
  }
  append_experts(entries, isa, Tiled::no);
  return entries;
}

// Whose kernels for tiled weights an instruction set uses.
Isa tiled_base(Isa isa) { return isa == Isa::avx512 ? Isa::avx512bw : isa; }

std::vector<Entry> collect_tiled(Isa isa) {
  std::vector<Entry> entries;
  switch (isa) {
    TRITIUM_PRODUCT_SETS(TRITIUM_COLLECT_TILED)
    default: break;
  }
  append_experts(entries, isa, Tiled::yes);
  return entries;
}

bool has_kernels(Isa isa) {
  switch (isa) {
    TRITIUM_KERNEL_SETS(TRITIUM_BUILT)
    default: return false;
  }
}

bool has_products(Isa isa) {
  switch (isa) {
    TRITIUM_PRODUCT_SETS(TRITIUM_BUILT)
    default: return false;
  }
}

// By instruction set; those not available here, and bases not their own, have none.
const Kernels& kernels(Isa isa) {
  static const auto all = [] {
    std::vector<std::unique_ptr<const Kernels>> made;
    for (int i = 0; i < kIsas; ++i) {
      const Isa each = static_cast<Isa>(i);
      const bool own = isa_available(each) && base(each) == each;
      made.push_back(std::make_unique<const Kernels>(own ? collect(each) : std::vector<Entry>{}));
    }
    return made;
  }();
  return *all[static_cast<std::size_t>(base(isa))];
}

const Kernels& tiled(Isa isa) {
  static const auto all = [] {
    std::vector<std::unique_ptr<const Kernels>> made;
    for (int i = 0; i < kIsas; ++i) {
      const Isa each = static_cast<Isa>(i);
      made.push_back(std::make_unique<const Kernels>(isa_available(each) ? collect_tiled(each) : std::vector<Entry>{}));
    }
    return made;
  }();
  return *all[static_cast<std::size_t>(tiled_base(isa))];
}

struct Choice {
  Isa isa = Isa::portable;
  std::string rejected;

  Choice() {
    for (int i = 0; i < kIsas; ++i) {
      if (isa_available(static_cast<Isa>(i))) isa = static_cast<Isa>(i);
    }
    const char* wish = std::getenv("TRITIUM_ISA");
    if (wish == nullptr || *wish == '\0') return;
    Isa named;
    if (isa_from_name(wish, &named) && isa_available(named)) {
      isa = named;
    } else {
      rejected = wish;
    }
  }
};

const Choice& choice() {
  static const Choice chosen;
  return chosen;
}

#if defined(__x86_64__)
// Bit `bit` of register 0 … 3 (eax … edx) that the CPUID leaf 7 gives.
bool leaf7(unsigned subleaf, int index, int bit) {
  unsigned r[4];
  if (!__get_cpuid_count(7, subleaf, &r[0], &r[1], &r[2], &r[3])) return false;
  return r[index] >> bit & 1;
}

// The tile registers are large: Linux grants them to a process that asks.
bool tiles_granted() {
#if defined(__linux__)
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}

bool detect(Isa isa) {
  switch (isa) {
    case Isa::portable: return true;
    // The x86-64-v3 and v4 levels, as far as the compilers' built-in tests name their parts.
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    case Isa::avxvnni: return detect(Isa::avx2) && leaf7(1, 0, 4);
    case Isa::avx512:
    case Isa::avx512bw:
      return detect(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::avx512vnni: return detect(Isa::avx512) && __builtin_cpu_supports("avx512vnni");
    case Isa::amx: return detect(Isa::avx512vnni) && leaf7(0, 3, 24) && leaf7(0, 3, 25) && tiles_granted();
    default: return false;
  }
}
#elif defined(__aarch64__)
#if defined(__APPLE__)
bool reported(const char* feature) {
  int value = 0;
  std::size_t size = sizeof(value);
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
bool has_dotprod() { return reported("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return reported("hw.optional.arm.FEAT_I8MM"); }
#elif defined(__linux__)
bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }  // HWCAP_ASIMDDP
bool has_i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; }    // HWCAP2_I8MM
#else
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif

bool detect(Isa isa) {
  switch (isa) {
    case Isa::portable:
    case Isa::neon: return true;
    case Isa::dotprod: return has_dotprod();
    case Isa::i8mm: return has_dotprod() && has_i8mm();
    default: return false;
  }
}
#else
bool detect(Isa isa) { return isa == Isa::portable; }
#endif

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool isa_from_name(const char* name, Isa* isa) {
  for (int i = 0; i < kIsas; ++i) {
    if (std::strcmp(name, kNames[i]) == 0) {
      *isa = static_cast<Isa>(i);
      return true;
    }
  }
  return false;
}

Isa base(Isa isa) {
  switch (isa) {
    case Isa::avxvnni: return Isa::avx2;
    case Isa::avx512bw:
    case Isa::avx512vnni:
    case Isa::amx: return Isa::avx512;
    case Isa::dotprod:
    case Isa::i8mm: return Isa::neon;
    default: return isa;
  }
}

bool isa_built(Isa isa) { return has_kernels(isa) || has_products(isa); }

bool isa_detected(Isa isa) {
  static const auto detected = [] {
    std::array<bool, kIsas> found{};
    for (int i = 0; i < kIsas; ++i) found[static_cast<std::size_t>(i)] = detect(static_cast<Isa>(i));
    return found;
  }();
  return detected[static_cast<std::size_t>(isa)];
}

bool isa_available(Isa isa) { return isa_built(isa) && isa_detected(isa); }

Isa current_isa() { return choice().isa; }

const char* isa_rejected() { return choice().rejected.empty() ? nullptr : choice().rejected.c_str(); }

const Table& table(Isa isa) { return kernels(isa).table; }

const Table& tiled_table(Isa isa) { return tiled(isa).table; }

const Entry* find(const char* name) { return find(name, current_isa()); }

const Entry* find(const char* name, Isa isa, Tiled which, Isa* from) {
  const Entry* const special = which == Tiled::yes ? tiled(isa).find(name) : nullptr;
  if (from != nullptr) *from = special != nullptr ? tiled_base(isa) : base(isa);
  return special != nullptr ? special : kernels(isa).find(name);
}

}  // namespace tritium
