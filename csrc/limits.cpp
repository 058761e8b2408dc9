// Reads the limits of the process: sched_getaffinity, /proc, /sys/fs/cgroup, sysctl.
#include "limits.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace tritium {
namespace {

#if defined(__linux__)

// A small file as text, "" if it is not there. By C's own functions: streams carry locales along, which break where
// another library brings its own copy of the C++ runtime.
std::string text_of(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (!file) return "";
  char buffer[4096];
  std::string text;
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
  std::fclose(file);
  return text;
}

// The directories that limit this process for one controller: its own group and every parent. A container often sees
// its own group mounted as the root, so the root is always among them.
std::vector<std::string> groups(const std::string& controller, bool& unified) {
  const std::string text = text_of("/proc/self/cgroup");
  std::string root = "/sys/fs/cgroup", path;
  unified = true;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (names.empty() && path.empty()) path = line.substr(second + 1);
    if (("," + names + ",").find("," + controller + ",") != std::string::npos) {
      unified = false;
      root = "/sys/fs/cgroup/" + names;
      if (access(root.c_str(), F_OK) != 0) root = "/sys/fs/cgroup/" + controller;
      path = line.substr(second + 1);
    }
  }
  std::vector<std::string> found;
  while (path.size() > 1) {
    found.push_back(root + path);
    path.resize(path.rfind('/'));
  }
  found.push_back(root);
  return found;
}

double cpu_quota() {
  bool unified;
  double least = 1e9;
  for (const auto& group : groups("cpu", unified)) {
    double quota = -1, period = 0;
    if (unified) {
      const std::string text = text_of(group + "/cpu.max");  // "max 100000" or "150000 100000"
      if (std::sscanf(text.c_str(), "%lf %lf", &quota, &period) != 2) continue;
    } else {
      quota = std::atof(text_of(group + "/cpu.cfs_quota_us").c_str());
      period = std::atof(text_of(group + "/cpu.cfs_period_us").c_str());
    }
    if (quota > 0 && period > 0) least = std::min(least, quota / period);
  }
  return least;
}

std::int64_t group_memory() {
  bool unified;
  std::int64_t least = INT64_MAX;
  for (const auto& group : groups("memory", unified)) {
    const std::string text = text_of(group + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
    const std::int64_t bytes = std::atoll(text.c_str());  // "max" reads as 0
    if (bytes > 0) least = std::min(least, bytes);
  }
  return least;
}

#endif

std::int64_t physical_memory() {
#if defined(__APPLE__)
  std::int64_t bytes = 0;
  std::size_t length = sizeof bytes;
  return sysctlbyname("hw.memsize", &bytes, &length, nullptr, 0) == 0 ? bytes : 0;
#else
  return std::max<std::int64_t>(0, sysconf(_SC_PHYS_PAGES)) * std::max<std::int64_t>(0, sysconf(_SC_PAGESIZE));
#endif
}

}  // namespace

int cpu_limit() {
  int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) count = std::max(1, CPU_COUNT(&mask));
  count = static_cast<int>(std::min<double>(count, std::max(1.0, std::ceil(cpu_quota()))));
#endif
  return count;
}

std::int64_t memory_limit() {
#if defined(__linux__)
  return std::min(physical_memory(), group_memory());
#else
  return physical_memory();
#endif
}

std::int64_t memory_used() {
#if defined(__linux__)
  long long total = 0, resident = 0;
  std::sscanf(text_of("/proc/self/statm").c_str(), "%lld %lld", &total, &resident);
  return resident * sysconf(_SC_PAGESIZE);
#elif defined(__APPLE__)
  mach_task_basic_info info;
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  const auto result = task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info), &count);
  return result == KERN_SUCCESS ? static_cast<std::int64_t>(info.resident_size) : 0;
#else
  return 0;
#endif
}

}  // namespace tritium
