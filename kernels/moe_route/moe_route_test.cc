#include "kernels/moe_route/moe_route.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace weft {
namespace {

constexpr float kExampleLogits[] = {1, 0, 3, -2};

struct Picks {
  std::vector<int32_t> expert;
  std::vector<float> weight;
};

Picks route(MoeRouteArgs args) {
  Picks picks{std::vector<int32_t>(args.num_rows * args.top_k, -7),
              std::vector<float>(args.num_rows * args.top_k, NAN)};
  args.expert = picks.expert.data();
  args.weight = picks.weight.data();
  moe_route(args);
  return picks;
}

// deepseek_v4.md 2.8.1
TEST(MoeRoute, SqrtSoftplusExample) {
  const float bias[] = {0, 0.9f, -1.0f, 0.2f};
  MoeRouteArgs args{
      .logits = kExampleLogits, .num_rows = 1, .num_experts = 4, .top_k = 2, .bias = bias, .scaling = 1.5f};
  const Picks picks = route(args);
  EXPECT_EQ(picks.expert, (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(picks.weight[0], 0.868808, 1e-6);
  EXPECT_NEAR(picks.weight[1], 0.631192, 1e-6);

  args.top_k = 4, args.normalise = false, args.scaling = 1, args.bias = nullptr;
  const Picks scores = route(args);
  const double expected[] = {1.145976, 0.832555, 1.746020, 0.356270};
  for (int e = 0; e < 4; ++e) EXPECT_NEAR(scores.weight[e], expected[e], 1e-6) << e;
}

TEST(MoeRoute, SoftplusIsLinearAbove20) {
  const float logits[] = {20.0f, 25.0f, 1000.0f, -200.0f};
  const Picks picks = route({.logits = logits, .num_rows = 1, .num_experts = 4, .top_k = 4, .normalise = false});
  EXPECT_FLOAT_EQ(picks.weight[0], std::sqrt(20.0f));
  EXPECT_EQ(picks.weight[1], 5.0f);
  EXPECT_EQ(picks.weight[2], std::sqrt(1000.0f));
  EXPECT_NEAR(picks.weight[3], 0, 1e-20);
}

// glm_moe_dsa.md 2.9: sigmoid scores with groups. The logits give the example's scores.
TEST(MoeRoute, GroupsExample) {
  const double s[] = {.60, .50, .90, .10, .55, .52, .20, .30};
  const float bias[] = {0, 0, -.3f, 0, .1f, .1f, 0, 0};
  float logits[8];
  for (int e = 0; e < 8; ++e) logits[e] = static_cast<float>(std::log(s[e] / (1 - s[e])));
  const Picks picks = route({.logits = logits,
                             .num_rows = 1,
                             .num_experts = 8,
                             .top_k = 2,
                             .scoring_func = ScoringFunc::kSigmoid,
                             .bias = bias,
                             .n_group = 4,
                             .topk_group = 2,
                             .scaling = 2.5f});
  EXPECT_EQ(picks.expert, (std::vector<int32_t>{4, 5}));
  EXPECT_NEAR(picks.weight[0], 1.285047, 2e-6);
  EXPECT_NEAR(picks.weight[1], 1.214953, 2e-6);
}

TEST(MoeRoute, SoftmaxAndSumEps) {
  MoeRouteArgs args{.logits = kExampleLogits,
                    .num_rows = 1,
                    .num_experts = 4,
                    .top_k = 4,
                    .scoring_func = ScoringFunc::kSoftmax,
                    .normalise = false};
  const Picks picks = route(args);
  const double sum = std::exp(1.0) + 1 + std::exp(3.0) + std::exp(-2.0);
  for (int e = 0; e < 4; ++e) EXPECT_NEAR(picks.weight[e], std::exp(kExampleLogits[e]) / sum, 1e-6);
  args.normalise = true, args.sum_eps = 1;
  EXPECT_NEAR(route(args).weight[2], std::exp(3.0) / sum / 2, 1e-6);
}

TEST(MoeRoute, TiesGoToTheSmallerExpert) {
  const float logits[] = {1, 2, 2, 2, 0, 2};
  const Picks picks = route({.logits = logits, .num_rows = 1, .num_experts = 6, .top_k = 3});
  EXPECT_EQ(picks.expert, (std::vector<int32_t>{1, 2, 3}));
}

TEST(MoeRoute, HashTable) {
  const int64_t table[] = {0, 1, 3, 2, 2, 0};
  const int32_t tokens[] = {1, 2};
  const float logits[] = {1, 0, 3, -2, 1, 0, 3, -2}, bias[] = {100, 100, 100, 100};
  const Picks picks = route(
      {.logits = logits, .num_rows = 2, .num_experts = 4, .top_k = 2, .bias = bias, .table = table, .tokens = tokens});
  EXPECT_EQ(picks.expert, (std::vector<int32_t>{2, 3, 0, 2}));
  EXPECT_NEAR(picks.weight[0], 1.746020 / (1.746020 + 0.356270), 1e-6);
  EXPECT_NEAR(picks.weight[2], 1.145976 / (1.746020 + 1.145976), 1e-6);
}

TEST(MoeRoute, NanPicksValidExperts) {
  const float logits[] = {NAN, NAN, 1, NAN};
  const Picks picks = route({.logits = logits, .num_rows = 1, .num_experts = 4, .top_k = 3});
  EXPECT_EQ(picks.expert, (std::vector<int32_t>{0, 1, 2}));
}

// A row alone gives what it gives among others, and the picks are those of a sort.
TEST(MoeRoute, RowsAreIndependent) {
  constexpr unsigned kSeed = 24;
  constexpr int64_t kRows = 17, kExperts = 256, kTop = 6;
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  std::vector<float> logits(kRows * kExperts), bias(kExperts);
  for (float& v : logits) v = normal(random);
  for (float& v : bias) v = normal(random) * 0.1f;
  MoeRouteArgs args{.logits = logits.data(),
                    .num_rows = kRows,
                    .num_experts = kExperts,
                    .top_k = kTop,
                    .bias = bias.data(),
                    .scaling = 1.5f};
  const Picks all = route(args);
  for (int64_t row = 0; row < kRows; ++row) {
    args.logits = logits.data() + row * kExperts, args.num_rows = 1;
    const Picks one = route(args);
    float sum = 0;
    for (int64_t j = 0; j < kTop; ++j) {
      EXPECT_EQ(one.expert[j], all.expert[row * kTop + j]) << "seed " << kSeed;
      EXPECT_EQ(one.weight[j], all.weight[row * kTop + j]) << "seed " << kSeed;
      if (j > 0) {
        EXPECT_LT(one.expert[j - 1], one.expert[j]);
      }
      sum += one.weight[j];
    }
    EXPECT_NEAR(sum, 1.5, 1e-6);
    const auto biased = [&](int64_t e) { return std::sqrt(std::log1p(std::exp(double{args.logits[e]}))) + bias[e]; };
    double worst = 1e9;
    for (int64_t j = 0; j < kTop; ++j) worst = std::min(worst, biased(one.expert[j]));
    int64_t above = 0;
    for (int64_t e = 0; e < kExperts; ++e) above += biased(e) > worst + 1e-6;
    EXPECT_LT(above, kTop);
  }
}

}  // namespace
}  // namespace weft
