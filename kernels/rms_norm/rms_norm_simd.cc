#include "kernels/lanes/lanes-inl.h"
#include "kernels/rms_norm/rms_norm.h"

namespace weft {
namespace {

// Rows that are summed together: one row alone would wait for its one chain of additions.
constexpr int kRowsAtOnce = 4;

struct NoWeight {};

struct SquareOnce {
  Lanes operator()(Lanes x, Lanes sum) const { return fma(x, x, sum); }
};
struct SquareRounded {
  Lanes operator()(Lanes x, Lanes sum) const { return add(sum, round_bf16(mul(x, x))); }
};

template <int R, class T, class Square>
inline void sums_of_squares(const T* x, int64_t stride, int64_t width, Square square, float* sum) {
  Lanes lanes[R];
  for (int r = 0; r < R; ++r) lanes[r] = zero_lanes();
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int r = 0; r < R; ++r) lanes[r] = square(load(x + r * stride + i), lanes[r]);
  }
  if (i < width) {
    for (int r = 0; r < R; ++r) lanes[r] = square(load_first(x + r * stride + i, width - i), lanes[r]);
  }
  for (int r = 0; r < R; ++r) sum[r] = sum_lanes(lanes[r]);
}

inline float round_bf16_scalar(float x) { return first_lane(round_bf16(all(x))); }

inline float inverse_root(float x) { return _mm_cvtss_f32(_mm_div_ss(_mm_set_ss(1.0f), _mm_sqrt_ss(_mm_set_ss(x)))); }

template <class T, class W, class Square>
inline void run(const RmsNormArgs& args, Square square, bool each_step) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const W* w = static_cast<const W*>(args.w);
  const float width = static_cast<float>(args.width);
  for (int64_t row = 0; row < args.num_rows;) {
    float sum[kRowsAtOnce];
    int64_t rows = 1;
    if (row + kRowsAtOnce <= args.num_rows) {
      rows = kRowsAtOnce;
      sums_of_squares<kRowsAtOnce>(x + row * args.x_stride, args.x_stride, args.width, square, sum);
    } else {
      sums_of_squares<1>(x + row * args.x_stride, args.x_stride, args.width, square, sum);
    }
    for (int64_t i = 0; i < rows; ++i, ++row) {
      float r;
      if (each_step) {
        const float mean = round_bf16_scalar(sum[i] / width);
        r = round_bf16_scalar(inverse_root(round_bf16_scalar(mean + args.eps)));
      } else {
        r = inverse_root(sum[i] / width + args.eps);
      }
      const Lanes factor = all(r);
      const T* from = x + row * args.x_stride;
      for_lanes(args.width, y + row * args.y_stride, [&](int64_t k, auto get) {
        const Lanes product = mul(get(from + k), factor);
        if constexpr (__is_same(W, NoWeight)) {
          return product;
        } else {
          return mul(get(w + k), product);
        }
      });
    }
  }
}

template <class T>
void run_dtype(const RmsNormArgs& args) {
  if (args.rounding == NormRounding::kEachStep) return run<T, NoWeight>(args, SquareRounded{}, true);
  if (args.w == nullptr) return run<T, NoWeight>(args, SquareOnce{}, false);
  if (args.w_dtype == DType::kBF16) return run<T, Bf16>(args, SquareOnce{}, false);
  run<T, float>(args, SquareOnce{}, false);
}

}  // namespace

void WEFT_NAME(rms_norm)(const RmsNormArgs& args);
void WEFT_NAME(rms_norm)(const RmsNormArgs& args) {
  args.dtype == DType::kBF16 ? run_dtype<Bf16>(args) : run_dtype<float>(args);
}

}  // namespace weft
