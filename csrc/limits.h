// What this process may use of the machine: CPU quota and memory, from cgroup v1/v2 and the operating system.
#pragma once

#include <cstdint>

namespace tritium {

int cpu_limit();              // CPUs by affinity mask and cgroup quota (rounded up), at least 1
std::int64_t memory_limit();  // bytes: the smaller of the cgroup limit and physical memory; 0 when unknown
std::int64_t memory_used();   // bytes resident in this process; 0 when unknown

}  // namespace tritium
