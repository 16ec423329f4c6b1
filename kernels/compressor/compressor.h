// kernels/compressor/compressor.h
//
// Pools the candidate values of one group of tokens into one vector (deepseek_v4.md 2.5.5).
//
//   p[n, c] = softmax over n of s[n][c];  u[c] = sum_n p[n, c] * k[n][c]        c < width
//
//   k, s   num_slots row pointers to F32 rows, each at least `width` long from where it points; a null pointer (in
//          both) is a masked slot, which is skipped
//   u      [width] F32
//
// Per channel: max over the slots, exp(s - max) by kernels/vector_math, sums over slots in ascending order (the
// numerator by fma), one division. At least one slot is not masked. Channels do not depend on each other.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace weft {

struct CompressorPoolArgs {
  std::span<const float*const> k, s;
  int64_t width = 0;
  float* u = nullptr;
};

using CompressorPoolFn = void(const CompressorPoolArgs&);
std::span<const KernelVariant<CompressorPoolFn>> compressor_pool_variants();

}  // namespace weft
