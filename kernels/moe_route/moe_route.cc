#include "kernels/moe_route/moe_route.h"

#include <algorithm>
#include <cmath>

#include "kernels/lanes/scalar.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {
namespace {

constexpr float kSoftplusLinearAbove = 20.0f;  // torch's threshold

float sqrt_softplus(float v) {
  const float softplus =
      v > kSoftplusLinearAbove ? v : static_cast<float>(std::log1p(std::exp(static_cast<double>(v))));
  return std::sqrt(softplus);
}

void softmax(const float* logits, int64_t n, float* score) {
  float max = logits[0];
  for (int64_t e = 1; e < n; ++e) max = logits[e] > max ? logits[e] : max;
  LaneSum sum;
  for (int64_t e = 0; e < n; ++e) {
    score[e] = exp_f32(logits[e] - max);
    sum.add(e, score[e]);
  }
  const float total = sum.total();
  for (int64_t e = 0; e < n; ++e) score[e] = score[e] / total;
}

void fill_scores(const MoeRouteArgs& args, const float* logits, float* score) {
  if (args.scoring_func == ScoringFunc::kSoftmax) return softmax(logits, args.num_experts, score);
  for (int64_t e = 0; e < args.num_experts; ++e) {
    score[e] = args.scoring_func == ScoringFunc::kSigmoid ? sigmoid_f32(logits[e]) : sqrt_softplus(logits[e]);
  }
}

// NaN after every number, so that a row of NaN still picks valid experts.
bool better(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// The index of the best of values[0, n) that is not taken, the smaller one of equals; -1 if all are taken.
int64_t best_free(const float* values, const bool* taken, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!taken[i] && (best < 0 || better(values[i], values[best]))) best = i;
  }
  return best;
}

// Marks the experts of all but the topk_group best groups as taken.
void mask_groups(const MoeRouteArgs& args, const float* biased, bool* taken) {
  float value[kMaxExperts];
  bool chosen[kMaxExperts] = {};
  const int64_t size = args.num_experts / args.n_group;
  for (int64_t g = 0; g < args.n_group; ++g) {
    const float* group = biased + g * size;
    bool used[kMaxExperts] = {};
    const int64_t first = best_free(group, used, size);
    used[first] = true;
    const int64_t second = best_free(group, used, size);
    value[g] = second < 0 ? group[first] : group[first] + group[second];
  }
  for (int64_t i = 0; i < args.topk_group; ++i) chosen[best_free(value, chosen, args.n_group)] = true;
  for (int64_t e = 0; e < args.num_experts; ++e) taken[e] = !chosen[e / size];
}

void pick(const MoeRouteArgs& args, const float* score, int32_t* expert) {
  float biased[kMaxExperts];
  bool taken[kMaxExperts] = {};
  for (int64_t e = 0; e < args.num_experts; ++e) biased[e] = args.bias == nullptr ? score[e] : score[e] + args.bias[e];
  if (args.n_group > 1) mask_groups(args, biased, taken);
  for (int64_t j = 0; j < args.top_k; ++j) {
    const int64_t best = best_free(biased, taken, args.num_experts);
    WEFT_CHECK(best >= 0, "top_k {} of {} experts in {} of {} groups", args.top_k, args.num_experts, args.topk_group,
               args.n_group);
    taken[best] = true;
    expert[j] = static_cast<int32_t>(best);
  }
}

void look_up(const MoeRouteArgs& args, int64_t row, int32_t* expert) {
  for (int64_t j = 0; j < args.top_k; ++j) {
    const int64_t e = args.table[args.tokens[row] * args.top_k + j];
    WEFT_CHECK(e >= 0 && e < args.num_experts, "hash routing names expert {} of {}", e, args.num_experts);
    expert[j] = static_cast<int32_t>(e);
  }
}

}  // namespace

void moe_route(const MoeRouteArgs& args) {
  WEFT_CHECK(args.num_experts > 0 && args.num_experts <= kMaxExperts && args.num_experts % args.n_group == 0,
             "{} experts in {} groups", args.num_experts, args.n_group);
  float score[kMaxExperts];
  for (int64_t row = 0; row < args.num_rows; ++row) {
    int32_t* expert = args.expert + row * args.top_k;
    float* weight = args.weight + row * args.top_k;
    fill_scores(args, args.logits + row * args.num_experts, score);
    if (args.table != nullptr) {
      look_up(args, row, expert);
    } else {
      pick(args, score, expert);
    }
    std::sort(expert, expert + args.top_k);
    float sum = 0;
    for (int64_t j = 0; j < args.top_k; ++j) sum += score[expert[j]];
    for (int64_t j = 0; j < args.top_k; ++j) {
      const float w = args.normalise ? score[expert[j]] / (sum + args.sum_eps) : score[expert[j]];
      weight[j] = w * args.scaling;
    }
  }
}

}  // namespace weft
