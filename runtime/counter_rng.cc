#include "runtime/counter_rng.h"

#include "base/check.h"

namespace weft {

// Multipliers and key increments of the paper (golden ratio and sqrt(3) - 1 as fractions of 2^32).
constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double uniform(const DrawKey& key, DrawPurpose purpose) {
  WEFT_CHECK(key.position >= 0 && key.position >> 32 == 0, "position {}", key.position);
  const auto words = philox4x32({static_cast<uint32_t>(key.position), static_cast<uint32_t>(purpose),
                                 static_cast<uint32_t>(key.request), static_cast<uint32_t>(key.request >> 32)},
                                {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
  const uint64_t bits = uint64_t{words[1]} << 32 | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;  // the 53 bits that a double holds
}

}  // namespace weft
