// Counter-based random numbers: a pure function of (seed, request, position, purpose), no state. So a draw depends
// neither on the batch that the request is in nor on what was drawn before, and can be repeated.
//
// Generator: Philox4x32 with 10 rounds. Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace weft {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// What a number is drawn for; different purposes at one position are independent.
enum class DrawPurpose : uint32_t { kToken, kAccept, kResidual };

struct DrawKey {
  uint64_t seed = 0;
  uint64_t request = 0;  // which of several answers with the same seed: 0 unless one prompt gets several
  int64_t position = 0;  // tokens before the drawn one, prompt included; < 2^32
};

// Uniform in [0, 1), a multiple of 2^-53.
double uniform(const DrawKey& key, DrawPurpose purpose);

}  // namespace weft
