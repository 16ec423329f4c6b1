// kernels/lanes/scalar.h
//
// What the scalar references share: elements of F32 or BF16 arrays, and the order of every sum over features.
// SIMD sources use lanes-inl.h instead.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "base/numeric.h"
#include "tensor/dtype.h"

namespace weft {

inline float load_element(const void* data, DType dtype, int64_t i) {
  WEFT_DCHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kBF16 ? to_float(static_cast<const bf16*>(data)[i]) : static_cast<const float*>(data)[i];
}

// One rounding to the dtype.
inline void store_element(void* data, DType dtype, int64_t i, float value) {
  WEFT_DCHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  if (dtype == DType::kBF16) {
    static_cast<bf16*>(data)[i] = to_bf16(value);
  } else {
    static_cast<float*>(data)[i] = value;
  }
}

// 16 strided partial sums and their fixed tree (docs/numerics.md).
struct LaneSum {
  static constexpr int kLanes = 16;
  float lane[kLanes] = {};

  void add(int64_t i, float value) { lane[i % kLanes] += value; }
  void add_product(int64_t i, float a, float b) { lane[i % kLanes] = std::fma(a, b, lane[i % kLanes]); }
  float total() const {
    float sum[kLanes];
    for (int j = 0; j < kLanes; ++j) sum[j] = lane[j];
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) sum[j] += sum[j + half];
    }
    return sum[0];
  }
};

}  // namespace weft
