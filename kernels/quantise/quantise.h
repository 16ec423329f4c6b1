// kernels/quantise/quantise.h
//
// Round trips of activations through a narrow format: the values change, the dtype does not.
//
//   kFp8  per block: a = max(absmax, 1e-4); s = smallest power of two >= fp32(a * fp32(1/448));
//         y = A(e4m3(clamp(x/s, +-448)) * s)                                    deepseek_v4.md 2.5.6, 5.3
//   kFp8AnyScale  the same with s = fp32(a * fp32(1/448))                         glm_moe_dsa.md 2.8
//   kFp4  per block: a = max(absmax, 6 * 2^-126); s = smallest power of two >= fp32(a * fp32(1/6));
//         y = A(e2m1(clamp(x/s, +-6)) * s)                                      deepseek_v4.md 2.6
//
// hadamard: before that, every vector of `width` features (a power of two) is multiplied by the Walsh-Hadamard matrix
// in Sylvester order (butterflies of distance 1, 2, 4, ... in fp32), scaled by fp32(width^-0.5), and rounded to A.
//
//   x, y  [num_rows, width], row strides in elements, F32 or BF16; only features [begin, end) are quantised, the others
//   are copied (y may be x); end - begin is a multiple of `block`, or the last block is shorter.
//   block <= kMaxQuantiseSpan, and width too where hadamard is set. Values are finite. Row-independent.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/variant.h"
#include "tensor/dtype.h"

namespace weft {

constexpr int64_t kMaxQuantiseSpan = 1024;

enum class QuantFormat { kFp8, kFp4, kFp8AnyScale };

struct QuantiseArgs {
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::kF32;
  int64_t x_stride = 0, y_stride = 0;
  int64_t num_rows = 0, width = 0, begin = 0, end = 0, block = 0;
  QuantFormat format = QuantFormat::kFp8;
  bool hadamard = false;
};

using QuantiseFn = void(const QuantiseArgs&);
std::span<const KernelVariant<QuantiseFn>> quantise_variants();

}  // namespace weft
