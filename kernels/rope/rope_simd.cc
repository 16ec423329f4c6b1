#include "kernels/lanes/lanes-inl.h"
#include "kernels/rope/rope.h"

namespace weft {
namespace {

template <class T>
void rope(const RopeArgs& args) {
  const int64_t first = args.head_dim - args.rotary_dims;
  // Inverse: the sines change their sign.
  const float odd_sign = args.direction == RopeDirection::kForward ? 0.0f : -0.0f;
  alignas(64) float signs[kLanes];
  for (int j = 0; j < kLanes; ++j) signs[j] = j % 2 == 0 ? 0.0f : odd_sign;
  const Lanes flip = load(signs);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* table = args.table + row * args.rotary_dims;
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const T* x = static_cast<const T*>(args.x) + (row * args.num_heads + h) * args.head_dim;
      T* y = static_cast<T*>(args.y) + (row * args.num_heads + h) * args.head_dim;
      copy_elements(x, y, first);
      for_lanes(args.rotary_dims, y + first, [&](int64_t i, auto get) {
        const Lanes pairs = get(x + first + i), turn = bit_xor(get(table + i), flip);  // (a, b), (c, s)
        return fma_sub_add(even_twice(pairs), turn, mul(odd_twice(pairs), swap_1(turn)));
      });
    }
  }
}

}  // namespace

void WEFT_NAME(rope)(const RopeArgs& args);
void WEFT_NAME(rope)(const RopeArgs& args) { args.dtype == DType::kBF16 ? rope<Bf16>(args) : rope<float>(args); }

}  // namespace weft
