#include <cmath>

#include "kernels/lanes/scalar.h"
#include "kernels/rms_norm/rms_norm.h"

namespace weft {
namespace {

void norm_once(const RmsNormArgs& args, int64_t row) {
  const int64_t x0 = row * args.x_stride, y0 = row * args.y_stride;
  LaneSum squares;
  for (int64_t i = 0; i < args.width; ++i) {
    const float x = load_element(args.x, args.dtype, x0 + i);
    squares.add_product(i, x, x);
  }
  const float r = 1.0f / std::sqrt(squares.total() / static_cast<float>(args.width) + args.eps);
  for (int64_t i = 0; i < args.width; ++i) {
    float y = load_element(args.x, args.dtype, x0 + i) * r;
    if (args.w != nullptr) y = load_element(args.w, args.w_dtype, i) * y;
    store_element(args.y, args.dtype, y0 + i, y);
  }
}

void norm_each_step(const RmsNormArgs& args, int64_t row) {
  const int64_t x0 = row * args.x_stride, y0 = row * args.y_stride;
  LaneSum squares;
  for (int64_t i = 0; i < args.width; ++i) {
    const float x = load_element(args.x, args.dtype, x0 + i);
    squares.add(i, round_bf16(x * x));
  }
  const float mean = round_bf16(squares.total() / static_cast<float>(args.width));
  const float r = round_bf16(1.0f / std::sqrt(round_bf16(mean + args.eps)));
  for (int64_t i = 0; i < args.width; ++i) {
    store_element(args.y, args.dtype, y0 + i, load_element(args.x, args.dtype, x0 + i) * r);
  }
}

}  // namespace

void rms_norm_ref(const RmsNormArgs& args);
void rms_norm_ref(const RmsNormArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    if (args.rounding == NormRounding::kEachStep) {
      norm_each_step(args, row);
    } else {
      norm_once(args, row);
    }
  }
}

}  // namespace weft
