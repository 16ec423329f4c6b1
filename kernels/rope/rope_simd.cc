#include "kernels/lanes/lanes-inl.h"
#include "kernels/rope/rope.h"

namespace weft {
namespace {

template <class T>
void copy_others(const RopeArgs& args, const T* x, T* y) {
  const int64_t first = args.first(), end = first + args.rotary_dims;
  copy_elements(x, y, first);
  copy_elements(x + end, y + end, args.head_dim - end);
}

template <class T>
void rope_interleaved(const RopeArgs& args) {
  const int64_t first = args.first();
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
      copy_others(args, x, y);
      for_lanes(args.rotary_dims, y + first, [&](int64_t i, auto get) {
        const Lanes pairs = get(x + first + i), turn = bit_xor(get(table + i), flip);  // (a, b), (c, s)
        return fma_sub_add(even_twice(pairs), turn, mul(odd_twice(pairs), swap_1(turn)));
      });
    }
  }
}

template <class T>
void rope_half_split(const RopeArgs& args) {
  const int64_t first = args.first(), half = args.rotary_dims / 2;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float* table = args.table + row * args.rotary_dims;
    const int64_t head0 = row * args.num_heads * args.head_dim;
    for (int64_t h = 0; h < args.num_heads; ++h) {
      copy_others(args, static_cast<const T*>(args.x) + head0 + h * args.head_dim, static_cast<T*>(args.y) + head0 + h * args.head_dim);
    }
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t n = half - i < kLanes ? half - i : kLanes;
      alignas(64) float cosines[kLanes] = {}, sines[kLanes] = {};
      for (int64_t j = 0; j < n; ++j) {
        cosines[j] = table[2 * (i + j)];
        sines[j] = args.direction == RopeDirection::kForward ? table[2 * (i + j) + 1] : -table[2 * (i + j) + 1];
      }
      const Lanes c = load(cosines), s = load(sines), minus_s = bit_xor(s, all(-0.0f));
      for (int64_t h = 0; h < args.num_heads; ++h) {
        const T* x = static_cast<const T*>(args.x) + head0 + h * args.head_dim + first + i;
        T* y = static_cast<T*>(args.y) + head0 + h * args.head_dim + first + i;
        const Lanes a = n == kLanes ? load(x) : load_first(x, n), b = n == kLanes ? load(x + half) : load_first(x + half, n);
        const Lanes u = fma(a, c, mul(b, minus_s)), v = fma(a, s, mul(b, c));
        if (n == kLanes) {
          store(y, u);
          store(y + half, v);
        } else {
          store_first(y, u, n);
          store_first(y + half, v, n);
        }
      }
    }
  }
}

template <class T>
void rope(const RopeArgs& args) {
  args.pairs == RopePairs::kInterleaved ? rope_interleaved<T>(args) : rope_half_split<T>(args);
}

}  // namespace

void WEFT_NAME(rope)(const RopeArgs& args);
void WEFT_NAME(rope)(const RopeArgs& args) { args.dtype == DType::kBF16 ? rope<Bf16>(args) : rope<float>(args); }

}  // namespace weft
