#include <cmath>

#include "kernels/lanes/scalar.h"
#include "kernels/layer_norm/layer_norm.h"

namespace weft {

void layer_norm_ref(const LayerNormArgs& args);
void layer_norm_ref(const LayerNormArgs& args) {
  const float width = static_cast<float>(args.width);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const int64_t x0 = row * args.width;
    LaneSum sum, squares;
    for (int64_t i = 0; i < args.width; ++i) sum.add(i, load_element(args.x, args.dtype, x0 + i));
    const float mean = sum.total() / width;
    for (int64_t i = 0; i < args.width; ++i) {
      const float d = load_element(args.x, args.dtype, x0 + i) - mean;
      squares.add_product(i, d, d);
    }
    const float r = 1.0f / std::sqrt(squares.total() / width + args.eps);
    for (int64_t i = 0; i < args.width; ++i) {
      const float d = (load_element(args.x, args.dtype, x0 + i) - mean) * r;
      store_element(args.y, args.dtype, x0 + i,
                    std::fma(load_element(args.w, args.w_dtype, i), d, load_element(args.b, args.w_dtype, i)));
    }
  }
}

}  // namespace weft
