// What this CPU can do, and how many cores there are.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace weft {

// Instruction-set levels of kernel variants, ascending: a CPU that has one has all before it.
//   kScalar  plain C++, the reference of every kernel ("ref")
//   kAvx2    AVX2 + FMA + F16C: the floor for speed
//   kAvx512  AVX-512 F, BW, DQ, VL, CD
//   kAvx512Vbmi  + VBMI, VNNI (byte permutes and int8 dot products; Ice Lake, Zen 4 and later)
//   kAvx512Bf16  + BF16 dot products (Cooper Lake, Sapphire Rapids, Zen 4 and later): its own bits with --dtype bf16
// Results are equal to the bit between all levels, except those of kAvx512Bf16 on bf16 activations (docs/numerics.md).
enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Vbmi, kAvx512Bf16 };

std::string_view isa_name(Isa isa);                    // "ref", "avx2", "avx512", "avx512_vbmi", "avx512_bf16"
std::optional<Isa> parse_isa(std::string_view name);
Isa max_isa();                                         // the highest level that CPU and operating system support

// One CPU number per physical core that this process may use, ascending.
std::vector<int> usable_cores();

// Bytes of memory that can still be used without swapping (MemAvailable, cut by the cgroup's limit).
long long available_memory_bytes();

}  // namespace weft
