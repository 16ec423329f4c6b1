#include "kernels/lanes/lanes-inl.h"
#include "kernels/layer_norm/layer_norm.h"

namespace weft {
namespace {

// Sum over the features: term(i, load, sum) adds those of the lanes at i.
template <class Term>
inline float sum_over(int64_t width, Term term) {
  Lanes sum = zero_lanes();
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) sum = term(i, LoadAll{}, sum);
  if (i == width) return sum_lanes(sum);
  // Lanes beyond the end keep what they have.
  alignas(64) float whole[kLanes], last[kLanes];
  store(whole, sum);
  store(last, term(i, LoadFirst{width - i}, sum));
  for (int64_t j = 0; j < width - i; ++j) whole[j] = last[j];
  return sum_lanes(load(whole));
}

inline float inverse_root(float x) { return _mm_cvtss_f32(_mm_div_ss(_mm_set_ss(1.0f), _mm_sqrt_ss(_mm_set_ss(x)))); }

template <class T, class W>
void run(const LayerNormArgs& args) {
  const W *w = static_cast<const W*>(args.w), *b = static_cast<const W*>(args.b);
  const float width = static_cast<float>(args.width);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.width;
    T* y = static_cast<T*>(args.y) + row * args.width;
    const Lanes mean = all(sum_over(args.width, [&](int64_t i, auto get, Lanes sum) { return add(sum, get(x + i)); }) / width);
    const float squares = sum_over(args.width, [&](int64_t i, auto get, Lanes sum) {
      const Lanes d = sub(get(x + i), mean);
      return fma(d, d, sum);
    });
    const Lanes r = all(inverse_root(squares / width + args.eps));
    for_lanes(args.width, y, [&](int64_t i, auto get) { return fma(get(w + i), mul(sub(get(x + i), mean), r), get(b + i)); });
  }
}

template <class T>
void run_dtype(const LayerNormArgs& args) {
  args.w_dtype == DType::kBF16 ? run<T, Bf16>(args) : run<T, float>(args);
}

}  // namespace

void WEFT_NAME(layer_norm)(const LayerNormArgs& args);
void WEFT_NAME(layer_norm)(const LayerNormArgs& args) {
  args.dtype == DType::kBF16 ? run_dtype<Bf16>(args) : run_dtype<float>(args);
}

}  // namespace weft
