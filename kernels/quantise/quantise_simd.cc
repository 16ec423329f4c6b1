#include "kernels/lanes/lanes-inl.h"
#include "kernels/quantise/quantise.h"

namespace weft {
namespace {

// The formats by what rounding needs: a value with exponent e is rounded to multiples of
// 2^(max(e, min_exponent) - mantissa bits).
struct Grid {
  float max_value, inverse_max, min_absmax;
  float min_normal;   // 2^min_exponent
  float round_scale;  // 2^(23 - mantissa bits)
};
constexpr Grid kE4m3Grid = {448.0f, 1.0f / 448.0f, 1e-4f, 0x1p-6f, 0x1p20f};
constexpr Grid kE2m1Grid = {6.0f, 1.0f / 6.0f, 6 * 0x1p-126f, 1.0f, 0x1p22f};

// Adding and subtracting a number whose unit in the last place is the step rounds to the nearest multiple, ties to
// even; multiples are even where codes are.
inline Lanes round_to_grid(Lanes x, const Grid& grid) {
  const Lanes size = min(magnitude(x), all(grid.max_value));
  const Lanes exponent = max(bit_and(size, all(__builtin_bit_cast(float, 0x7f800000))), all(grid.min_normal));
  const Lanes shift = mul(exponent, all(grid.round_scale));
  return bit_or(sub(add(size, shift), shift), sign_bit(x));
}

inline float power_of_two_at_least(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  return __builtin_bit_cast(float, ((bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u)) << 23);
}

inline float inverse_of_power_of_two(float x) {
  return __builtin_bit_cast(float, (254u << 23) - __builtin_bit_cast(uint32_t, x));
}

template <bool kAnyScale, class T>
inline void quantise_block(const T* x, T* y, int64_t count, const Grid& grid) {
  Lanes largest = all(grid.min_absmax);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) largest = max(largest, magnitude(load(x + i)));
  if (i < count) largest = max(largest, magnitude(load_first(x + i, count - i)));
  const float exact = max_of_lanes(largest) * grid.inverse_max;
  if constexpr (kAnyScale) {
    const Lanes scale = all(exact);
    for_lanes(count, y, [&](int64_t k, auto get) { return mul(round_to_grid(div(get(x + k), scale), grid), scale); });
    return;
  }
  const float s = power_of_two_at_least(exact);
  const Lanes scale = all(s), inverse = all(inverse_of_power_of_two(s));
  for_lanes(count, y, [&](int64_t k, auto get) { return mul(round_to_grid(mul(get(x + k), inverse), grid), scale); });
}

// Butterflies of distance 1, 2, 4, 8 inside the lanes: a + b for the lower, a - b for the upper of two.
template <class Swap>
inline Lanes butterfly(Lanes x, Lanes upper_signs, Swap swap) {
  return add(swap(x), bit_xor(x, upper_signs));
}
inline Lanes upper_signs(int distance) {
  alignas(64) float signs[kLanes];
  for (int j = 0; j < kLanes; ++j) signs[j] = (j & distance) != 0 ? -0.0f : 0.0f;
  return load(signs);
}

inline void hadamard_small(float* v, int64_t width) {
  for (int64_t distance = 1; distance < width; distance *= 2) {
    for (int64_t i = 0; i < width; i += 2 * distance) {
      for (int64_t j = i; j < i + distance; ++j) {
        const float a = v[j], b = v[j + distance];
        v[j] = a + b;
        v[j + distance] = a - b;
      }
    }
  }
}

inline void hadamard_wide(float* v, int64_t width) {
  const Lanes sign1 = upper_signs(1), sign2 = upper_signs(2), sign4 = upper_signs(4), sign8 = upper_signs(8);
  for (int64_t i = 0; i < width; i += kLanes) {
    Lanes x = load(v + i);
    x = butterfly(x, sign1, swap_1);
    x = butterfly(x, sign2, swap_2);
    x = butterfly(x, sign4, swap_4);
    x = butterfly(x, sign8, swap_8);
    store(v + i, x);
  }
  for (int64_t distance = kLanes; distance < width; distance *= 2) {
    for (int64_t i = 0; i < width; i += 2 * distance) {
      for (int64_t j = i; j < i + distance; j += kLanes) {
        const Lanes a = load(v + j), b = load(v + j + distance);
        store(v + j, add(a, b));
        store(v + j + distance, sub(a, b));
      }
    }
  }
}

template <class T>
inline void hadamard(const T* x, T* y, int64_t width) {
  alignas(64) float v[kMaxQuantiseSpan];
  for_lanes(width, v, [&](int64_t i, auto get) { return get(x + i); });
  width < kLanes ? hadamard_small(v, width) : hadamard_wide(v, width);
  const Lanes scale = all(static_cast<float>(1 / __builtin_sqrt(static_cast<double>(width))));
  for_lanes(width, y, [&](int64_t i, auto get) { return mul(get(v + i), scale); });
}

template <class T>
void quantise(const QuantiseArgs& args) {
  const Grid& grid = args.format == QuantFormat::kFp4 ? kE2m1Grid : kE4m3Grid;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    T* y = static_cast<T*>(args.y) + row * args.y_stride;
    if (args.hadamard) {
      hadamard(x, y, args.width);
      x = y;
    } else {
      copy_elements(x, y, args.begin);
      copy_elements(x + args.end, y + args.end, args.width - args.end);
    }
    for (int64_t begin = args.begin; begin < args.end; begin += args.block) {
      const int64_t count = begin + args.block < args.end ? args.block : args.end - begin;
      if (args.format == QuantFormat::kFp8AnyScale) {
        quantise_block<true>(x + begin, y + begin, count, grid);
      } else {
        quantise_block<false>(x + begin, y + begin, count, grid);
      }
    }
  }
}

}  // namespace

void WEFT_NAME(quantise)(const QuantiseArgs& args);
void WEFT_NAME(quantise)(const QuantiseArgs& args) {
  args.dtype == DType::kBF16 ? quantise<Bf16>(args) : quantise<float>(args);
}

}  // namespace weft
