// Independent uniform numbers, by counter: the random tokens and sizes of checks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/counter_rng.h"

namespace weft {

class Draws {
 public:
  Draws(uint64_t seed, uint64_t stream) : key_{.seed = seed, .request = stream} {}
  int64_t below(int64_t n) {
    const double u = uniform(key_, DrawPurpose::kToken);
    ++key_.position;
    return std::min(static_cast<int64_t>(u * static_cast<double>(n)), n - 1);
  }
  std::vector<int32_t> tokens(int64_t count, int64_t vocab) {
    std::vector<int32_t> out;
    for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(below(vocab)));
    return out;
  }

 private:
  DrawKey key_;
};

}  // namespace weft
