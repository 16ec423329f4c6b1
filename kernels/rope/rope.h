// kernels/rope/rope.h
//
// Rotary position embedding of the last (or the first) `rotary_dims` features of every head: pairs of features as complex
// numbers times e^{+i phi} (inverse: e^{-i phi}), phi = fp32(position) * fp32(frequency_i), rounded to fp32 before an
// accurate cos / sin (double, then rounded to fp32). Pair i is (2i, 2i+1), or (i, i + rotary_dims/2) where split in halves.
// fp32 inside, one rounding to the dtype. Row-independent.
//
//   (a, b) -> (a*c - b*s, a*s + b*c)   each as: fma(a, c, -(b*s)), fma(a, s, b*c), the inner product rounded to fp32
//
// Sources: deepseek_v4.md 2.4, glm_moe_dsa.md 2.4.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/variant.h"
#include "tensor/dtype.h"

namespace weft {

struct RopeScaling {  // YaRN; factor 1: none
  double factor = 1, beta_fast = 32, beta_slow = 1;
  int64_t original_max_position_embeddings = 0;
  bool operator==(const RopeScaling&) const = default;
};

// frequency_i, i < rotary_dims / 2: 1 / fp32 pow(theta, 2i / rotary_dims), then YaRN's ramp (deepseek_v4.md 2.4; low
// and high are clamped to [0, rotary_dims - 1], and high = low + 0.001 where they meet).
std::vector<float> rope_frequencies(double theta, int64_t rotary_dims, const RopeScaling& scaling);

// table[r, i] = (cos, sin) of positions[r] * frequencies[i]: [num_rows, rotary_dims/2, 2]
void rope_table(std::span<const int32_t> positions, std::span<const float> frequencies, float* table);

enum class RopeDirection { kForward, kInverse };
enum class RopePairs { kInterleaved, kHalfSplit };
enum class RopePlace { kLast, kFirst };  // which features of a head are rotated

struct RopeArgs {
  const void* x = nullptr;    // [num_rows, num_heads, head_dim]
  void* y = nullptr;          // the same shape; may be x. All features are written (those not rotated are copied).
  DType dtype = DType::kF32;  // kF32 or kBF16
  int64_t num_rows = 0, num_heads = 0, head_dim = 0, rotary_dims = 0;
  const float* table = nullptr;
  RopeDirection direction = RopeDirection::kForward;
  RopePairs pairs = RopePairs::kInterleaved;
  RopePlace place = RopePlace::kLast;

  // The first rotated feature of a head.
  int64_t first() const { return place == RopePlace::kFirst ? 0 : head_dim - rotary_dims; }
};

using RopeFn = void(const RopeArgs&);
std::span<const KernelVariant<RopeFn>> rope_variants();

}  // namespace weft
