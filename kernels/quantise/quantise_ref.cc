#include <algorithm>
#include <cmath>

#include "kernels/lanes/scalar.h"
#include "kernels/quantise/quantise.h"

namespace weft {
namespace {

constexpr float kE2m1Max = 6.0f, kE2m1LeastAbsmax = 6 * 0x1p-126f;

float e2m1_round_trip(float x, float scale) {
  return e2m1_to_float(float_to_e2m1(std::clamp(x / scale, -kE2m1Max, kE2m1Max))) * scale;
}

void quantise_block(const QuantiseArgs& args, int64_t y0, int64_t begin, int64_t end, const float* v) {
  const bool fp8 = args.format != QuantFormat::kFp4;
  const E4m3Scale kind = args.format == QuantFormat::kFp8 ? E4m3Scale::kPowerOfTwo : E4m3Scale::kAny;
  float absmax = fp8 ? kE4m3LeastAbsmax : kE2m1LeastAbsmax;
  for (int64_t i = begin; i < end; ++i) absmax = std::max(absmax, std::fabs(v[i - begin]));
  const float scale = fp8 ? e4m3_block_scale(absmax, kind) : power_of_two_above(absmax * (1.0f / kE2m1Max));
  for (int64_t i = begin; i < end; ++i) {
    const float x = v[i - begin];
    store_element(args.y, args.dtype, y0 + i, fp8 ? e4m3_round_trip(x, scale) : e2m1_round_trip(x, scale));
  }
}

void hadamard_row(const QuantiseArgs& args, float* v) {
  for (int64_t distance = 1; distance < args.width; distance *= 2) {
    for (int64_t i = 0; i < args.width; i += 2 * distance) {
      for (int64_t j = i; j < i + distance; ++j) {
        const float a = v[j], b = v[j + distance];
        v[j] = a + b;
        v[j + distance] = a - b;
      }
    }
  }
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(args.width)));
  for (int64_t i = 0; i < args.width; ++i) {
    const float y = v[i] * scale;
    v[i] = args.dtype == DType::kBF16 ? round_bf16(y) : y;
  }
}

}  // namespace

void quantise_ref(const QuantiseArgs& args);
void quantise_ref(const QuantiseArgs& args) {
  float v[kMaxQuantiseSpan];
  WEFT_CHECK(args.block <= kMaxQuantiseSpan && (!args.hadamard || args.width <= kMaxQuantiseSpan));
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const int64_t x0 = row * args.x_stride, y0 = row * args.y_stride;
    if (args.hadamard) {
      for (int64_t i = 0; i < args.width; ++i) v[i] = load_element(args.x, args.dtype, x0 + i);
      hadamard_row(args, v);
      for (int64_t i = 0; i < args.width; ++i) store_element(args.y, args.dtype, y0 + i, v[i]);
    } else {
      for (int64_t i = 0; i < args.width; ++i) {
        store_element(args.y, args.dtype, y0 + i, load_element(args.x, args.dtype, x0 + i));
      }
    }
    for (int64_t begin = args.begin; begin < args.end; begin += args.block) {
      const int64_t end = std::min(begin + args.block, args.end);
      for (int64_t i = begin; i < end; ++i) v[i - begin] = load_element(args.y, args.dtype, y0 + i);
      quantise_block(args, y0, begin, end, v);
    }
  }
}

}  // namespace weft
