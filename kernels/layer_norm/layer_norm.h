// kernels/layer_norm/layer_norm.h
//
//   mu = mean_i(x[r, i]),  r = 1/sqrt(mean_i((x[r, i] - mu)^2) + eps)
//   y[r, i] = A( w[i] * ((x[r, i] - mu) * r) + b[i] )
//
//   x, y  [num_rows, width]   F32 or BF16, the same, rows one after the other; y may be x
//   w, b  [width]             F32 or BF16, the same (used as fp32)
//
// All in fp32, the last step by fused multiply-add, one rounding to the dtype at the end. Both sums: 16 lanes and the tree of
// kernels/linear (each square is one fma into its lane). 1/sqrt is a correctly rounded sqrt and a division. Row-independent.
// Source: glm_moe_dsa.md 2.2 (k_norm of the indexer).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/variant.h"
#include "tensor/dtype.h"

namespace weft {

struct LayerNormArgs {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::kF32;
  int64_t num_rows = 0, width = 0;
  const void* w = nullptr;
  const void* b = nullptr;
  DType w_dtype = DType::kF32;
  float eps = 0;
};

using LayerNormFn = void(const LayerNormArgs&);
std::span<const KernelVariant<LayerNormFn>> layer_norm_variants();

}  // namespace weft
