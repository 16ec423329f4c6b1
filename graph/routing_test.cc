#include "graph/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include <fmt/format.h>

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
  const ExpertLoad uniform = expert_load({Kind::kUniform, 0, 8}, 64, 8, 32),
                   zipf = expert_load({Kind::kZipf, 1.0, 8}, 64, 8, 32);
  EXPECT_LT(zipf.experts_hit, uniform.experts_hit);
  EXPECT_GT(zipf.picks, 1.2 * uniform.picks);
  const ExpertLoad alone = expert_load({Kind::kZipf, 1.0, 1}, 64, 8, 256);
  EXPECT_NEAR(alone.picks, 64 * 8, 1e-6);
}

// Draws of top_k different experts a row, `rows` rows at a time: what the busiest of the ranks gets, on average.
ExpertLoad drawn(const std::vector<double>& weights, int64_t ranks, int64_t rows, int64_t top_k, int64_t trials) {
  std::mt19937_64 random(11);
  const size_t experts = weights.size(), local = experts / static_cast<size_t>(ranks);
  ExpertLoad sum;
  for (int64_t trial = 0; trial < trials; ++trial) {
    std::vector<int64_t> picks(experts);
    for (int64_t t = 0; t < rows; ++t) {
      std::vector<double> left = weights;
      for (int64_t j = 0; j < top_k; ++j) {
        const size_t e = std::discrete_distribution<size_t>(left.begin(), left.end())(random);
        left[e] = 0;
        ++picks[e];
      }
    }
    double hit = 0, most = 0;
    for (size_t begin = 0; begin < experts; begin += local) {
      const auto first = picks.begin() + static_cast<std::ptrdiff_t>(begin),
                 last = first + static_cast<std::ptrdiff_t>(local);
      hit = std::max(hit, static_cast<double>(std::count_if(first, last, [](int64_t n) { return n > 0; })));
      most = std::max(most, static_cast<double>(std::accumulate(first, last, int64_t{0})));
    }
    sum.experts_hit += hit / static_cast<double>(trials);
    sum.picks += most / static_cast<double>(trials);
  }
  return sum;
}

// Ranks meet after every layer: the busiest one counts, also where all are equally busy on average.
TEST(ExpertLoad, IsThatOfTheBusiestRank) {
  for (const auto& [experts, top_k, ranks, rows] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{8, 2, 2, 1},
                                                    {8, 2, 2, 16},
                                                    {8, 2, 2, 512},
                                                    {256, 6, 8, 1},
                                                    {256, 6, 8, 16},
                                                    {256, 8, 32, 64},
                                                    {384, 6, 2, 4},
                                                    {256, 8, 256, 128}}) {
    SCOPED_TRACE(fmt::format("{} of {} experts on {} ranks, {} rows", top_k, experts, ranks, rows));
    const ExpertLoad seen =
        drawn(std::vector<double>(static_cast<size_t>(experts), 1), ranks, rows, top_k, rows > 100 ? 60 : 300);
    const ExpertLoad load = expert_load({Kind::kUniform, 0, ranks}, rows, top_k, experts / ranks);
    EXPECT_NEAR(load.experts_hit, seen.experts_hit, 0.06 * seen.experts_hit);
    EXPECT_NEAR(load.picks, seen.picks, 0.06 * seen.picks);
    // The same shares, measured.
    const std::vector<double> shares(static_cast<size_t>(experts),
                                     static_cast<double>(top_k) / static_cast<double>(experts));
    const ExpertLoad measured = expert_load({Kind::kMeasured, 0, ranks, &shares}, rows, top_k, experts / ranks);
    EXPECT_NEAR(measured.experts_hit, load.experts_hit, 1e-6 * load.experts_hit);
    EXPECT_NEAR(measured.picks, load.picks, 1e-6 * load.picks);
  }
}

// Shares as a trained model of 8 experts has them: the first half of the experts gets 4 of 5 picks.
TEST(ExpertLoad, OfMeasuredShares) {
  const std::vector<double> shares = {0.57, 0.13, 0.33, 0.61, 0.10, 0.09, 0.08, 0.09};
  const ExpertLoad many = expert_load({Kind::kMeasured, 0, 2, &shares}, 512, 2, 4),
                   alone = expert_load({Kind::kMeasured, 0, 1, &shares}, 512, 2, 8);
  EXPECT_NEAR(many.picks, 512 * 1.64, 1e-3 * 512);
  EXPECT_NEAR(many.experts_hit, 4, 1e-6);
  EXPECT_NEAR(alone.picks, 1024, 1e-9);
  EXPECT_NEAR(alone.experts_hit, 8, 1e-6);
  const ExpertLoad few = expert_load({Kind::kMeasured, 0, 2, &shares}, 1, 2, 4);
  EXPECT_GT(few.picks, 1.64);  // now and then it is the other rank
  EXPECT_LE(few.picks, 2);
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
        std::swap(order[static_cast<size_t>(j)],
                  order[static_cast<size_t>(j) + random() % static_cast<uint64_t>(kExperts - j)]);
        got[static_cast<size_t>(order[static_cast<size_t>(j)])] = true;
      }
    }
    hit += static_cast<double>(std::count(got.begin(), got.end(), true));
  }
  EXPECT_NEAR(hit / kTrials, expert_load({Kind::kUniform}, kRows, kTopK, kExperts).experts_hit, 0.2);
}

}  // namespace
}  // namespace weft
