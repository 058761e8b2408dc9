// Detects the instruction sets of this CPU and joins the kernel files' tables into one table each.
// Knows the kernel files by name only.
#include "isa.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

// One line per file of simd/ that has a table.
#define TRITIUM_KERNEL_FILES(use) \
  use(map_arithmetic)             \
  use(map_bits)                   \
  use(map_compare)                \
  use(map_float)                  \
  use(copy)                       \
  use(reduce)                     \
  use(rows)                       \
  use(matmul)                     \
  use(random)

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

TRITIUM_DECLARE_ISA(portable)
#if defined(__x86_64__)
TRITIUM_DECLARE_ISA(avx2)
TRITIUM_DECLARE_ISA(avx512)
#elif defined(__aarch64__)
TRITIUM_DECLARE_ISA(neon)
#endif

namespace {

constexpr const char* kNames[kIsas] = {"portable", "avx2", "avx512", "neon"};

struct Kernels {
  std::vector<Entry> entries;
  Table table{nullptr, 0};
  std::unordered_map<std::string, const Entry*> by_name;

  explicit Kernels(Isa isa) {
    if (!isa_available(isa)) return;
    switch (isa) {
#if defined(__x86_64__)
      case Isa::avx2: avx2::collect(entries); break;
      case Isa::avx512: avx512::collect(entries); break;
#elif defined(__aarch64__)
      case Isa::neon: neon::collect(entries); break;
#endif
      default: portable::collect(entries);
    }
    table = {entries.data(), entries.size()};
    for (const Entry& entry : entries) by_name.emplace(entry.name, &entry);
  }
};

const Kernels& kernels(Isa isa) {
  static const Kernels all[kIsas] = {Kernels(Isa::portable), Kernels(Isa::avx2), Kernels(Isa::avx512),
                                     Kernels(Isa::neon)};
  return all[static_cast<int>(isa)];
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

bool isa_available(Isa isa) {
  switch (isa) {
    case Isa::portable: return true;
#if defined(__x86_64__)
    // The x86-64-v3 and v4 levels, as far as the compilers' built-in tests name their parts.
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    case Isa::avx512:
      return isa_available(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
#elif defined(__aarch64__)
    case Isa::neon: return true;
#endif
    default: return false;
  }
}

Isa current_isa() { return choice().isa; }

const char* isa_rejected() { return choice().rejected.empty() ? nullptr : choice().rejected.c_str(); }

const Table& table(Isa isa) { return kernels(isa).table; }

const Entry* find(const char* name) { return find(name, current_isa()); }

const Entry* find(const char* name, Isa isa) {
  const auto& by_name = kernels(isa).by_name;
  const auto hit = by_name.find(name);
  return hit == by_name.end() ? nullptr : hit->second;
}

}  // namespace tritium
