// kernels/hyper_connection/hyper_connection.h
//
// Manifold-constrained hyper-connections (mHC), deepseek_v4.md 2.3. S streams of D features; x = the row's streams one
// after the other as fp32, length S*D.
//
// hc_pre:   m = (fn x) * 1/sqrt(mean(x^2) + rms_eps)                       fn [(2+S)*S, S*D] F32; 16-lane sums
//           pre_j = sigmoid(m_j * scale0 + base_j) + hc_eps
//           post_j = 2 * sigmoid(m_{S+j} * scale1 + base_{S+j})
//           C = softmax over k of (m_{2S+S*j+k} * scale2 + base_{2S+S*j+k}) + hc_eps;  C_jk /= (sum_j C_jk + hc_eps);
//           then iterations-1 times: C_jk /= (sum_k C_jk + hc_eps); C_jk /= (sum_j C_jk + hc_eps)
//           out[d] = A(sum_j pre_j * X[j][d])       j ascending: pre_0*X[0][d], then fma
//           mix = (post, C): [S + S*S] F32
// hc_post:  X'[k][d] = A(post_k * y[d] + sum_j C_jk * X[j][d])             from post_k*y[d], fma, j ascending
// hc_head:  pre as above from fn [S, S*D], base [S], scale [1]; out[d] = A(sum_j pre_j * X[j][d])
//
//   X, X'  [num_rows, S, D]   A (F32 or BF16);  out, y  [num_rows, D]  A;  mix  [num_rows, S + S*S]  F32
//   X' may be X. Sums over j and k inside Sinkhorn go in ascending order. exp / sigmoid by kernels/vector_math.
// m is a product of fp32 values, rounded at each step: (fn x) * r, * scale, + base. S <= kMaxHcStreams.
// Row-independent. The variants run on one thread (callers may split rows); hc_pre below runs on a pool: it splits the
// rows or, when there are few, the outputs of the projection, with the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/variant.h"
#include "tensor/dtype.h"

namespace weft {

constexpr int64_t kMaxHcStreams = 8;

struct HcWeights {
  const float *fn = nullptr, *base = nullptr, *scale = nullptr;
};

struct HcPreArgs {
  const void* x = nullptr;  // [num_rows, S, D]
  DType dtype = DType::kF32;
  int64_t num_rows = 0, streams = 0, hidden = 0;
  HcWeights weights;
  int iterations = 0;
  float rms_eps = 0, hc_eps = 0;
  void* out = nullptr;   // [num_rows, D]
  float* mix = nullptr;  // [num_rows, S + S*S]; null: hc_head (fn has S rows, one scale)
};

struct HcPostArgs {
  const void *x = nullptr, *y = nullptr;
  const float* mix = nullptr;
  void* out = nullptr;  // [num_rows, S, D]
  DType dtype = DType::kF32;
  int64_t num_rows = 0, streams = 0, hidden = 0;
};

using HcPreFn = void(const HcPreArgs&);
using HcPostFn = void(const HcPostArgs&);
std::span<const KernelVariant<HcPreFn>> hc_pre_variants();
std::span<const KernelVariant<HcPostFn>> hc_post_variants();

// hc_pre (or hc_head) on all threads of the pool.
void hc_pre(const HcPreArgs& args, Isa isa, ThreadPool& pool);

}  // namespace weft
