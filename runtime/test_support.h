// What tests of whole models share.
#pragma once

#include <cstdint>
#include <vector>

#include "models/test_support.h"

namespace weft {

// The same tokens for the same seed, everywhere.
inline std::vector<int32_t> some_tokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((seed >> 8) % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

}  // namespace weft
