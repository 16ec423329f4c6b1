#include "base/cpu.h"

#include <cpuid.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace weft {
namespace {

constexpr std::pair<Isa, std::string_view> kNames[] = {
    {Isa::kScalar, "ref"},
    {Isa::kAvx2, "avx2"},
    {Isa::kAvx512, "avx512"},
    {Isa::kAvx512Vbmi, "avx512_vbmi"},
    {Isa::kAvx512Bf16, "avx512_bf16"},
};

std::optional<long long> first_number(const std::string& path) {
  std::ifstream file(path);
  long long value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Not every compiler's __builtin_cpu_supports knows F16C. AVX2 implies that the operating system saves the registers.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  for (const auto& [value, name] : kNames) {
    if (value == isa) return name;
  }
  return "?";
}

std::optional<Isa> parse_isa(std::string_view text) {
  for (const auto& [value, name] : kNames) {
    if (name == text) return value;
  }
  return std::nullopt;
}

Isa max_isa() {
  __builtin_cpu_init();
  const auto has = [](bool supported, Isa below, Isa level, Isa reached) {
    return reached == below && supported ? level : reached;
  };
  Isa isa = Isa::kScalar;
  isa = has(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(),
            Isa::kScalar, Isa::kAvx2, isa);
  isa = has(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512cd"),
            Isa::kAvx2, Isa::kAvx512, isa);
  isa = has(__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni"), Isa::kAvx512,
            Isa::kAvx512Vbmi, isa);
  isa = has(__builtin_cpu_supports("avx512bf16"), Isa::kAvx512Vbmi, Isa::kAvx512Bf16, isa);
  return isa;
}

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  std::set<std::string> seen;  // sibling lists: hyper-threads of one core share it
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    if (seen.insert(siblings).second) cores.push_back(cpu);
  }
  return cores;
}

long long available_memory_bytes() {
  long long available = std::numeric_limits<long long>::max();
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  for (long long kib = 0; file >> key >> kib;) {
    std::getline(file, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const auto limit = first_number("/sys/fs/cgroup/memory.max");
  const auto used = first_number("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, std::max(0LL, *limit - *used));
  return available;
}

}  // namespace weft
