#include <cmath>

#include "kernels/lanes/scalar.h"
#include "kernels/rope/rope.h"

namespace weft {

void rope_ref(const RopeArgs& args);
void rope_ref(const RopeArgs& args) {
  const int64_t first = args.head_dim - args.rotary_dims;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* table = args.table + row * args.rotary_dims;
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const int64_t head = (row * args.num_heads + h) * args.head_dim;
      for (int64_t d = 0; d < first; ++d) {
        store_element(args.y, args.dtype, head + d, load_element(args.x, args.dtype, head + d));
      }
      for (int64_t i = 0; i < args.rotary_dims; i += 2) {
        const float c = table[i], s = args.direction == RopeDirection::kForward ? table[i + 1] : -table[i + 1];
        const float a = load_element(args.x, args.dtype, head + first + i);
        const float b = load_element(args.x, args.dtype, head + first + i + 1);
        store_element(args.y, args.dtype, head + first + i, std::fma(a, c, -(b * s)));
        store_element(args.y, args.dtype, head + first + i + 1, std::fma(a, s, b * c));
      }
    }
  }
}

}  // namespace weft
