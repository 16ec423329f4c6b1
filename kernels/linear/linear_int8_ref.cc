// The reference of int8 activations: plain loops in the order of linear.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numeric.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

#include "kernels/linear/weight_view-inl.h"

constexpr float kLeast = -128, kMost = 127;

float element(const void* x, DType dtype, int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(x)[i] : to_float(static_cast<const bf16*>(x)[i]);
}

// As the conversion instructions do it: NaN becomes the least number.
int8_t to_int8(float v) { return std::isnan(v) ? int8_t{-128} : static_cast<int8_t>(std::clamp(v, kLeast, kMost)); }

}  // namespace

float quantise_row_ref(const void* x, DType dtype, int64_t k, const RowQuant& quant, int8_t* out) {
  float absmax = 0;
  bool has_nan = false;
  for (int64_t i = 0; i < k; ++i) {
    const float v = element(x, dtype, i);
    has_nan = has_nan || std::isnan(v);
    absmax = std::fabs(v) > absmax ? std::fabs(v) : absmax;
  }
  if (quant.absmax != nullptr) absmax = *quant.absmax;
  if (has_nan) absmax = std::numeric_limits<float>::quiet_NaN();
  if (quant.input != nullptr) {
    const float divisor = quant.input[0], factor = quant.input[1], offset = quant.input[2];
    for (int64_t i = 0; i < k; ++i) out[i] = to_int8(std::nearbyint(element(x, dtype, i) / divisor * factor) + offset);
    return has_nan ? absmax : 1.0f;
  }
  const float scale = absmax / kMost;
  for (int64_t i = 0; i < k; ++i) out[i] = scale == 0 ? int8_t{0} : to_int8(std::nearbyint(element(x, dtype, i) / scale));
  return scale;
}

float dot_int8_ref(const WeightMatrix& w, int64_t row, const int8_t* x, float x_scale, int64_t k_blocks) {
  const auto* q = static_cast<const int8_t*>(w.data) + row * row_elements(w);
  const float scale = static_cast<const float*>(w.scale)[(row + w.row0) / w.block_rows * scales_in_row(w)];
  float sum[16];
  const int64_t block = w.cols / k_blocks;
  for (int64_t b = 0; b < k_blocks; ++b) {
    int32_t acc = b == 0 && w.bias != nullptr && w.col0 == 0 ? w.bias[row + w.row0] : 0;
    for (int64_t k = b * block; k < (b + 1) * block; ++k) acc += static_cast<int32_t>(q[k]) * x[k];
    sum[b] = static_cast<float>(acc) * scale * x_scale;
  }
  for (int64_t n = k_blocks; n > 1; n /= 2) {
    for (int64_t b = 0; b < n / 2; ++b) sum[b] = sum[2 * b] + sum[2 * b + 1];
  }
  return sum[0];
}

}  // namespace weft
