// kernels/rms_norm/rms_norm.h
//
//   y[r, i] = A( w[i] * (x[r, i] * 1/sqrt(mean_i(x[r, i]^2) + eps)) )        w absent: factor 1
//
//   x, y  [num_rows, width]   F32 or BF16, the same; row strides in elements; y may be x
//   w     [width]             F32 or BF16 (used as fp32), or null
//
// Rounding kOnce: all in fp32, one rounding to the dtype at the end. kEachStep (bf16 only, w null; deepseek_v4.md
// 2.5.2): x^2 rounded to bf16, their mean (fp32 sum) rounded, + eps rounded, rsqrt rounded, product rounded.
// Sum of squares: 16 lanes and the tree of kernels/linear (each square is one fma into its lane; kEachStep adds the
// rounded squares). 1/sqrt is a correctly rounded sqrt and a division. Row-independent.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/variant.h"
#include "tensor/dtype.h"

namespace weft {

enum class NormRounding { kOnce, kEachStep };

struct RmsNormArgs {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::kF32;
  int64_t x_stride = 0, y_stride = 0;
  int64_t num_rows = 0, width = 0;
  const void* w = nullptr;
  DType w_dtype = DType::kF32;
  float eps = 0;
  NormRounding rounding = NormRounding::kOnce;
};

using RmsNormFn = void(const RmsNormArgs&);
std::span<const KernelVariant<RmsNormFn>> rms_norm_variants();

}  // namespace weft
