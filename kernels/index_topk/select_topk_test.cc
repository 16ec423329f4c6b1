#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/index_topk/index_topk.h"

namespace weft {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<int32_t> select(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> picks(k, 12345), scratch(scores.size(), -77);
  select_topk(scores, picks, scratch);
  return picks;
}

std::vector<int32_t> by_sorting(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(scores[b])) return !std::isnan(scores[a]);
    return scores[a] > scores[b];
  });
  order.resize(std::min<size_t>(order.size(), k));
  std::sort(order.begin(), order.end());
  order.resize(k, -1);
  return order;
}

struct Case {
  const char* what;
  std::vector<float> scores;
  int64_t k;
  std::vector<int32_t> picks;
};

TEST(SelectTopk, Table) {
  const Case cases[] = {
      {"ascending order of picks", {1, 5, 3, 4}, 2, {1, 3}},
      {"ties go to the lower entry", {2, 1, 2, 2, 3}, 3, {0, 2, 4}},
      {"all equal", {7, 7, 7, 7}, 2, {0, 1}},
      {"zeros of both signs are equal", {0.0f, -0.0f, 0.0f, -0.0f}, 2, {0, 1}},
      {"minus zero first", {-0.0f, 0.0f, -1}, 1, {0}},
      {"negative scores", {-3, -1, -2}, 2, {1, 2}},
      {"minus infinity is picked last", {-kInf, -1, -kInf}, 2, {0, 1}},
      {"NaN sorts after minus infinity", {kNan, -kInf, -kNan, 1}, 3, {0, 1, 3}},
      {"only NaN", {kNan, kNan, kNan}, 2, {0, 1}},
      {"plus infinity", {1, kInf, 2, kInf}, 2, {1, 3}},
      {"k beyond n", {1, 2}, 4, {0, 1, -1, -1}},
      {"k equals n", {2, kNan, 1}, 3, {0, 1, 2}},
      {"no scores", {}, 2, {-1, -1}},
      {"k is 0", {1, 2}, 0, {}},
      {"subnormals keep their order", {1e-44f, 1e-45f, 3e-44f}, 2, {0, 2}},
      {"neighbours in the last bit", {1.0f, std::nextafterf(1.0f, 2.0f), std::nextafterf(1.0f, 0.0f)}, 1, {1}},
  };
  for (const Case& c : cases) EXPECT_EQ(select(c.scores, c.k), c.picks) << c.what;
}

TEST(SelectTopk, EqualsSorting) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> scores(1 + random() % 3000);
    for (float& score : scores) {
      score = normal(random);
      if (seed % 3 == 1) score = std::round(score * 4);  // many ties
      if (seed % 3 == 2) score = 1.0f + score * 1e-6f;   // only the last digits differ
      if (random() % 50 == 0) score = random() % 2 != 0 ? kNan : -kInf;
    }
    for (const int64_t k : {int64_t{1}, int64_t{17}, int64_t{512}, static_cast<int64_t>(scores.size()) - 1}) {
      ASSERT_EQ(select(scores, k), by_sorting(scores, k)) << "seed " << seed << " n " << scores.size() << " k " << k;
    }
  }
}

// Lists long enough for the sampled shortcut, with values that make its guess good, useless and wrong.
TEST(SelectTopk, LongListsEqualSorting) {
  constexpr int64_t n = 20000, period = n / 1024;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  struct {
    const char* what;
    float (*score)(int64_t g, float noise);
  } const kinds[] = {
      {"normal", [](int64_t, float noise) { return noise; }},
      {"all equal", [](int64_t, float) { return 1.0f; }},
      {"few values", [](int64_t, float noise) { return std::round(noise); }},
      {"ascending", [](int64_t g, float) { return static_cast<float>(g); }},
      {"descending", [](int64_t g, float) { return -static_cast<float>(g); }},
      {"sampled entries are high", [](int64_t g, float noise) { return g % period == 0 ? 100 + noise : noise; }},
      {"mostly NaN", [](int64_t g, float noise) { return g % 70 == 3 ? noise : kNan; }},
      {"mostly minus infinity", [](int64_t g, float noise) { return g % 70 == 3 ? noise : -kInf; }},
      {"zeros of both signs", [](int64_t g, float noise) { return g % 9 == 0 ? noise : std::copysign(0.0f, noise); }},
  };
  for (const auto& kind : kinds) {
    std::vector<float> scores;
    for (int64_t g = 0; g < n; ++g) scores.push_back(kind.score(g, normal(random)));
    for (const int64_t k : {1, 50, 512, 2048, 15000}) {
      ASSERT_EQ(select(scores, k), by_sorting(scores, k)) << kind.what << ", k " << k;
    }
  }
}

}  // namespace
}  // namespace weft
