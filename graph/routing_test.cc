#include "graph/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace weft {
namespace {

using Kind = Routing::Kind;

TEST(ExpertLoad, OfKnownCases) {
  struct Case {
    const char* what;
    Routing routing;
    int64_t rows, top_k, local_experts;
    double hit, picks;
  };
  for (const Case& c : {
           Case{"worst: every pick another expert", {Kind::kWorst}, 3, 6, 256, 18, 18},
           Case{"worst: all experts", {Kind::kWorst}, 512, 6, 256, 256, 3072},
           Case{"worst: all picks on this rank's four", {Kind::kWorst, 0, 8}, 10, 6, 4, 4, 40},
           Case{"uniform, one row", {Kind::kUniform}, 1, 6, 256, 6, 6},
           Case{"no rows", {Kind::kUniform}, 0, 6, 256, 0, 0},
           Case{"uniform, one row, an eighth of the experts", {Kind::kUniform, 0, 8}, 1, 8, 32, 1, 1},
           // planner.md 2.2: E (1 - (1 - K/E)^T)
           Case{"uniform, many rows", {Kind::kUniform}, 64, 8, 256, 256 * (1 - std::pow(1 - 8.0 / 256, 64)), 512},
           Case{"zipf 0 is uniform", {Kind::kZipf, 0}, 64, 8, 256, 256 * (1 - std::pow(1 - 8.0 / 256, 64)), 512},
           Case{"all experts for every row", {Kind::kZipf, 1.2}, 5, 8, 8, 8, 40},
       }) {
    SCOPED_TRACE(c.what);
    const ExpertLoad load = expert_load(c.routing, c.rows, c.top_k, c.local_experts);
    EXPECT_NEAR(load.experts_hit, c.hit, 1e-6 * std::max(1.0, c.hit));
    EXPECT_NEAR(load.picks, c.picks, 1e-6 * std::max(1.0, c.picks));
  }
}

// Few rows hit fewer experts when some are popular, and the rank of the most popular one gets more than its share.
TEST(ExpertLoad, SkewMakesFewerExpertsAndABusyRank) {
  const ExpertLoad uniform = expert_load({Kind::kUniform, 0, 8}, 64, 8, 32), zipf = expert_load({Kind::kZipf, 1.0, 8}, 64, 8, 32);
  EXPECT_LT(zipf.experts_hit, uniform.experts_hit);
  EXPECT_GT(zipf.picks, 1.2 * uniform.picks);
  const ExpertLoad alone = expert_load({Kind::kZipf, 1.0, 1}, 64, 8, 256);
  EXPECT_NEAR(alone.picks, 64 * 8, 1e-6);
}

// Rows drawn one by one: top_k different experts, all equally likely.
TEST(ExpertLoad, UniformIsTheMeanOfDraws) {
  constexpr int64_t kExperts = 64, kTopK = 6, kRows = 9, kTrials = 4000;
  std::mt19937_64 random(7);
  double hit = 0;
  std::vector<int> order(kExperts);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t trial = 0; trial < kTrials; ++trial) {
    std::vector<bool> got(kExperts);
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t j = 0; j < kTopK; ++j) {
        std::swap(order[static_cast<size_t>(j)], order[static_cast<size_t>(j) + random() % static_cast<uint64_t>(kExperts - j)]);
        got[static_cast<size_t>(order[static_cast<size_t>(j)])] = true;
      }
    }
    hit += static_cast<double>(std::count(got.begin(), got.end(), true));
  }
  EXPECT_NEAR(hit / kTrials, expert_load({Kind::kUniform}, kRows, kTopK, kExperts).experts_hit, 0.2);
}

}  // namespace
}  // namespace weft
