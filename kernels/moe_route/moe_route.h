// kernels/moe_route/moe_route.h
//
// Which experts a row goes to, and with what weight.
//
//   score_e = sqrt(softplus(logit_e))   softplus(v) = v for v > 20, else log1p(exp(v)) (in double, rounded to fp32)
//             or sigmoid(logit_e), or softmax over e
//   picks   = top_k of (score + bias), ties to the smaller e; with groups: only inside the topk_group groups whose
//             two best biased scores have the largest sum (DeepSeek-V3); or row `token` of `table` (hash routing)
//   weight_j = score_e (unbiased), divided by the sum of the row's weights (+ sum_eps) if normalise, times scaling
//
//   logits [num_rows, num_experts] F32; bias [num_experts] F32 or null
//   table  [vocab, top_k] I64 with tokens [num_rows] I32: hash routing; null otherwise. Whoever loads the table
//          checks that its values are experts, and whoever takes tokens that they are rows of it.
//   expert [num_rows, top_k] I32, ascending; weight [num_rows, top_k] F32 in that order. Sums go in ascending expert.
// The sum of the softmax takes the order of kernels/linear. num_experts <= kMaxExperts. NaN scores are picked last.
// Row-independent. Source: deepseek_v4.md 2.8.1; glm_moe_dsa.md (sigmoid, groups).
#pragma once

#include <cstdint>

namespace weft {

constexpr int64_t kMaxExperts = 2048;

enum class ScoringFunc { kSqrtSoftplus, kSigmoid, kSoftmax };

struct MoeRouteArgs {
  const float* logits = nullptr;
  int64_t num_rows = 0, num_experts = 0, top_k = 0;
  ScoringFunc scoring_func = ScoringFunc::kSqrtSoftplus;
  const float* bias = nullptr;
  const int64_t* table = nullptr;
  const int32_t* tokens = nullptr;
  int64_t n_group = 1, topk_group = 1;
  bool normalise = true;
  float sum_eps = 0, scaling = 1;
  int32_t* expert = nullptr;
  float* weight = nullptr;
};

void moe_route(const MoeRouteArgs& args);

}  // namespace weft
