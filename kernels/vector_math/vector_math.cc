#include "kernels/vector_math/vector_math.h"

#include <bit>
#include <cmath>
#include <limits>

namespace weft {
namespace {

constexpr float kLog2E = 0x1.715476p+0f;
// ln 2 = kLn2Hi + kLn2Lo to 48 bits; n * kLn2Hi is exact inside the fma.
constexpr float kLn2Hi = 0x1.62e430p-1f;
constexpr float kLn2Lo = -0x1.05c610p-29f;
// exp(-87.3) is the last tenth above the smallest normal number, exp(88.7) the last below the largest.
constexpr float kLowest = -87.3f;
constexpr float kHighest = 88.7f;
// exp(r) = 1 + r + r^2 (c2 + c3 r + c4 r^2 + c5 r^3 + c6 r^4), the smallest largest relative error on |r| <= ln2 / 2
// (iterated reweighted least squares); 0.06 ulp with these fp32 coefficients.
constexpr float kC6 = 0x1.6a23d0p-10f;
constexpr float kC5 = 0x1.123a20p-7f;
constexpr float kC4 = 0x1.5558f2p-5f;
constexpr float kC3 = 0x1.555492p-3f;
constexpr float kC2 = 0x1.fffffcp-2f;

}  // namespace

float exp_f32(float x) {
  if (x != x) return x + x;  // quiet
  if (x < kLowest) return 0.0f;
  if (x > kHighest) return std::numeric_limits<float>::infinity();
  const float n = std::nearbyint(x * kLog2E);
  float r = std::fma(-n, kLn2Hi, x);
  r = std::fma(-n, kLn2Lo, r);
  float p = kC6;
  p = std::fma(p, r, kC5);
  p = std::fma(p, r, kC4);
  p = std::fma(p, r, kC3);
  p = std::fma(p, r, kC2);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  // p is in [0.7, 1.42] and the result is normal, so n is simply added to the exponent.
  return std::bit_cast<float>(std::bit_cast<int32_t>(p) + (static_cast<int32_t>(n) * (1 << 23)));
}

float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }
float silu_f32(float x) { return x / (1.0f + exp_f32(-x)); }

float fma_no_subnormals(float x, float y, float sum) {
  const auto flushed = [](float v) { return std::fabs(v) < std::numeric_limits<float>::min() ? std::copysign(0.0f, v) : v; };
  return flushed(std::fma(flushed(x), flushed(y), sum));
}

float dot_bf16_pairs(const float* x, const float* y, int64_t n) {
  float sum = 0;
  for (int64_t k = 0; k < n; k += 2) sum = fma_no_subnormals(x[k], y[k], fma_no_subnormals(x[k + 1], y[k + 1], sum));
  return sum;
}

float dot_f32(const float* x, const float* y, int64_t n) {
  constexpr int kLanes = 16;
  float lane[kLanes] = {};
  for (int64_t k = 0; k < n; ++k) lane[k % kLanes] = std::fma(x[k], y[k], lane[k % kLanes]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

namespace {

void vector_math_ref(const VectorMathArgs& args) {
  float (*const f)(float) = args.function == VectorMathArgs::Function::kExp       ? exp_f32
                            : args.function == VectorMathArgs::Function::kSigmoid ? sigmoid_f32
                                                                                  : silu_f32;
  for (int64_t i = 0; i < args.n; ++i) args.y[i] = f(args.x[i]);
}

}  // namespace

void vector_math_avx2(const VectorMathArgs&);
void vector_math_avx512(const VectorMathArgs&);

std::span<const KernelVariant<VectorMathFn>> vector_math_variants() {
  static constexpr KernelVariant<VectorMathFn> kVariants[] = {
      {"avx512", Isa::kAvx512, vector_math_avx512},
      {"avx2", Isa::kAvx2, vector_math_avx2},
      {"ref", Isa::kScalar, vector_math_ref},
  };
  return kVariants;
}

}  // namespace weft
