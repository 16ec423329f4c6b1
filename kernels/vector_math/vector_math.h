// kernels/vector_math/vector_math.h
//
// The one definition of exp, sigmoid and silu that every kernel uses, so that all variants give the same bits.
//
//   exp_f32(x)      2^n * p(r), n = rint(x * log2 e), r = x - n*ln2_hi - n*ln2_lo by fma, p a polynomial by Horner and
//                   fma; x < -87.3 (result below the normal range) gives 0, x > 88.7 gives +inf, NaN stays NaN;
//                   error <= 1 ulp
//   sigmoid_f32(x)  1 / (1 + exp_f32(-x))
//   silu_f32(x)     x / (1 + exp_f32(-x))
//   dot_f32(x, y)   the canonical sum over features of kernels/linear: 16 partial sums, lane j takes the elements j,
//                   j+16, ... in ascending order by fma from 0; then l[j] += l[j+8], l[j] += l[j+4], l[j] += l[j+2],
//                   l[0] + l[1]
//   fma_no_subnormals  what the vdpbf16ps instruction does with each of its products: fma, subnormal x, y and results taken as 0
//                   (Intel SDM vol. 2; measured equal on AMD Zen 4)
//   dot_bf16_pairs(x, y)  what a chain of them gives; x, y hold bf16 values, n is even: from 0, for k = 0, 2, 4, ... element k + 1,
//                   then k
//
// SIMD sources include vector_math-inl.h, which evaluates the same operations lane by lane.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/variant.h"

namespace weft {

float exp_f32(float x);
float sigmoid_f32(float x);
float silu_f32(float x);
float dot_f32(const float* x, const float* y, int64_t n);
float fma_no_subnormals(float x, float y, float sum);
float dot_bf16_pairs(const float* x, const float* y, int64_t n);

// The same functions over arrays: y[i] = f(x[i]), i < n. y may be x.
struct VectorMathArgs {
  enum class Function { kExp, kSigmoid, kSilu };
  Function function = Function::kExp;
  const float* x = nullptr;
  float* y = nullptr;
  int64_t n = 0;
};

using VectorMathFn = void(const VectorMathArgs&);
std::span<const KernelVariant<VectorMathFn>> vector_math_variants();

}  // namespace weft
