#include <cmath>

#include "kernels/lanes/scalar.h"
#include "kernels/rope/rope.h"

namespace weft {

void rope_ref(const RopeArgs& args);
void rope_ref(const RopeArgs& args) {
  const int64_t half = args.rotary_dims / 2;
  const bool interleaved = args.pairs == RopePairs::kInterleaved;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* table = args.table + row * args.rotary_dims;
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const int64_t head = (row * args.num_heads + h) * args.head_dim, first = head + args.first();
      for (int64_t d = head; d < head + args.head_dim; ++d) {
        if (d >= first && d < first + args.rotary_dims) continue;
        store_element(args.y, args.dtype, d, load_element(args.x, args.dtype, d));
      }
      for (int64_t i = 0; i < half; ++i) {
        const float c = table[2 * i], s = args.direction == RopeDirection::kForward ? table[2 * i + 1] : -table[2 * i + 1];
        const int64_t at = first + (interleaved ? 2 * i : i), to = interleaved ? at + 1 : at + half;
        const float a = load_element(args.x, args.dtype, at), b = load_element(args.x, args.dtype, to);
        store_element(args.y, args.dtype, at, std::fma(a, c, -(b * s)));
        store_element(args.y, args.dtype, to, std::fma(a, s, b * c));
      }
    }
  }
}

}  // namespace weft
