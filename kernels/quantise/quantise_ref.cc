#include <algorithm>
#include <cmath>

#include "kernels/lanes/scalar.h"
#include "kernels/quantise/quantise.h"

namespace weft {
namespace {

struct Format {
  float max_value;    // largest value of the format
  float inverse_max;  // fp32(1 / max_value)
  float min_absmax;
};
constexpr Format kFp8Format = {448.0f, 1.0f / 448.0f, 1e-4f};
constexpr Format kFp4Format = {6.0f, 1.0f / 6.0f, 6 * 0x1p-126f};

float round_trip(QuantFormat format, float x) {
  return format == QuantFormat::kFp8 ? e4m3_to_float(float_to_e4m3(x)) : e2m1_to_float(float_to_e2m1(x));
}

void quantise_block(const QuantiseArgs& args, int64_t y0, int64_t begin, int64_t end, const float* v) {
  const Format& format = args.format == QuantFormat::kFp8 ? kFp8Format : kFp4Format;
  float absmax = format.min_absmax;
  for (int64_t i = begin; i < end; ++i) absmax = std::max(absmax, std::fabs(v[i - begin]));
  const float s = power_of_two_above(absmax * format.inverse_max);
  for (int64_t i = begin; i < end; ++i) {
    const float q = std::clamp(v[i - begin] / s, -format.max_value, format.max_value);
    store_element(args.y, args.dtype, y0 + i, round_trip(args.format, q) * s);
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
