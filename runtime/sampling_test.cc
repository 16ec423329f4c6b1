#include "runtime/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "runtime/counter_rng.h"

namespace weft {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// Known answers that the authors of the generator published with it (Random123, kat_vectors).
TEST(CounterRng, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRng, EveryPartOfTheKeyCounts) {
  const DrawKey key{7, 3, 100};
  const double base = uniform(key, DrawPurpose::kToken);
  EXPECT_EQ(base, uniform(key, DrawPurpose::kToken));
  EXPECT_NE(base, uniform(key, DrawPurpose::kAccept));
  EXPECT_NE(base, uniform(key, DrawPurpose::kResidual));
  EXPECT_NE(base, uniform({8, 3, 100}, DrawPurpose::kToken));
  EXPECT_NE(base, uniform({7 + (uint64_t{1} << 32), 3, 100}, DrawPurpose::kToken));
  EXPECT_NE(base, uniform({7, 3 + (uint64_t{1} << 32), 100}, DrawPurpose::kToken));
  EXPECT_NE(base, uniform({7, 3, 101}, DrawPurpose::kToken));
}

struct FilterCase {
  const char* what;
  SamplingParams params;
  std::vector<float> probabilities;  // the logits are their logarithms
  std::vector<int32_t> ids;
};

const FilterCase kFilterCases[] = {
    {"no filter keeps all", {}, {.4f, .3f, .2f, .1f}, {0, 1, 2, 3}},
    {"greedy", {.temperature = 0}, {.2f, .4f, .3f, .1f}, {1}},
    {"greedy, tie: lower id", {.temperature = 0}, {.2f, .3f, .3f, .2f}, {1}},
    {"greedy does not look at filters", {.temperature = 0, .top_k = 3, .min_p = .1}, {.2f, .5f, .3f}, {1}},
    {"tiny temperature keeps only the best", {.temperature = 1e-30}, {.3f, .4f, .3f}, {1}},
    {"tiny temperature keeps all that are equal to the best", {.temperature = 1e-30}, {.4f, .2f, .4f}, {0, 2}},
    {"ids that are no tokens are not picked", {.num_ids = 3}, {.1f, .2f, .3f, .4f}, {0, 1, 2}},
    {"... nor is the best of them", {.temperature = 0, .num_ids = 3}, {.3f, .2f, .1f, .4f}, {0}},
    {"... nor do they count for filters", {.top_k = 2, .num_ids = 3}, {.1f, .2f, .3f, .4f}, {1, 2}},
    {"top_k", {.top_k = 2}, {.1f, .4f, .2f, .3f}, {1, 3}},
    {"top_k, tie at the boundary: lower id", {.top_k = 2}, {.2f, .2f, .4f, .2f}, {0, 2}},
    {"top_k beyond the vocabulary", {.top_k = 9}, {.5f, .5f}, {0, 1}},
    {"top_p takes the token that crosses", {.top_p = .5}, {.4f, .3f, .2f, .1f}, {0, 1}},
    {"top_p keeps one at least", {.top_p = 1e-9}, {.1f, .2f, .7f}, {2}},
    {"top_p, tie at the boundary: lower id", {.top_p = .45}, {.2f, .3f, .2f, .3f}, {1, 3}},
    {"top_p counts what top_k left: 0.4 / 0.7 < 0.6", {.top_k = 2, .top_p = .6}, {.4f, .3f, .2f, .1f}, {0, 1}},
    {"top_p after top_k: 0.4 / 0.7 > 0.5", {.top_k = 2, .top_p = .5}, {.4f, .3f, .2f, .1f}, {0}},
    {"min_p is relative to the best", {.min_p = .45}, {.4f, .3f, .2f, .1f}, {0, 1, 2}},
    {"min_p 1 keeps the best", {.min_p = 1}, {.4f, .3f, .2f, .1f}, {0}},
    {"temperature comes before min_p: (0.2 / 0.4)^2 < 0.45",
     {.temperature = .5, .min_p = .45},
     {.4f, .3f, .2f, .1f},
     {0, 1}},
};

TEST(Sampling, Filters) {
  for (const FilterCase& c : kFilterCases) {
    SCOPED_TRACE(c.what);
    ASSERT_TRUE(validate(c.params).ok());
    std::vector<float> logits;
    for (const float p : c.probabilities) logits.push_back(std::log(p));
    const auto result = Sampler().distribution(logits, c.params, {});
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->ids, c.ids);
    double kept = 0;
    for (const int32_t id : c.ids)
      kept += c.params.greedy() ? 1 : std::pow(c.probabilities[id], 1 / c.params.temperature);
    for (const int32_t id : c.ids) {
      if (c.params.temperature < 0.1) continue;
      EXPECT_NEAR(result->probability(id), std::pow(c.probabilities[id], 1 / c.params.temperature) / kept, 1e-6);
    }
    EXPECT_EQ(result->total, std::accumulate(result->weights.begin(), result->weights.end(), 0.0));
  }
}

// The partial sort of top_p and the selection of top_k against sorting everything, with many equal logits.
TEST(Sampling, FiltersOfALargeVocabulary) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<float> logits = random_logits(5000, seed);
    if (seed % 2 == 1) {
      for (float& logit : logits) logit = std::round(logit);
    }
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    const TokenDistribution all = Sampler().distribution(logits, {}, {}).value();
    for (const double top_p : {0.05, 0.5, 0.9, 0.999}) {
      std::vector<int32_t> expected;
      double sum = 0;
      for (const int32_t id : order) {
        if (sum >= top_p * all.total) break;
        expected.push_back(id);
        sum += all.weights[std::lower_bound(all.ids.begin(), all.ids.end(), id) - all.ids.begin()];
      }
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(Sampler().distribution(logits, {.top_p = top_p}, {}).value().ids, expected) << top_p;
    }
    std::vector<int32_t> expected(order.begin(), order.begin() + 777);
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(Sampler().distribution(logits, {.top_k = 777}, {}).value().ids, expected);
  }
}

TEST(Sampling, Penalties) {
  // Token 0 in the prompt only, 1 twice in the answer, 2 in both, 3 in neither.
  TokenCounts counts;
  const int32_t prompt[] = {0, 2, 2};
  counts.add_prompt(prompt);
  for (const int32_t id : {1, 2, 1, 3}) counts.add_answer(id);
  counts.remove_answer(3);
  struct Case {
    const char* what;
    SamplingParams params;
    std::vector<float> logits, expected;
  };
  const Case cases[] = {
      {"repetition divides positive logits", {.repetition_penalty = 2}, {1, 2, 4, 3}, {.5f, 1, 2, 3}},
      {"and multiplies negative ones", {.repetition_penalty = 2}, {-1, -2, 4, -3}, {-2, -4, 2, -3}},
      {"presence: once for tokens of the answer", {.presence_penalty = .5}, {1, 2, 4, 3}, {1, 1.5f, 3.5f, 3}},
      {"frequency: per occurrence in the answer", {.frequency_penalty = .5}, {1, 2, 4, 3}, {1, 1, 3.5f, 3}},
      {"repetition first",
       {.repetition_penalty = 2, .presence_penalty = 1, .frequency_penalty = 1},
       {1, 2, 4, 3},
       {.5f, -2, 0, 3}},
      {"negative penalties reward", {.presence_penalty = -1}, {1, 2, 4, 3}, {1, 3, 5, 3}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const TokenDistribution penalised = Sampler().distribution(c.logits, c.params, counts).value();
    const TokenDistribution plain = Sampler().distribution(c.expected, {}, {}).value();
    EXPECT_EQ(penalised.ids, plain.ids);
    EXPECT_EQ(penalised.weights, plain.weights);
  }
  SamplingParams greedy{.temperature = 0, .presence_penalty = 3};
  EXPECT_EQ(Sampler().sample(std::vector<float>{1, 2, 4, 3}, greedy, counts, 0).value().id, 3) << "greedy too";
}

TEST(Sampling, Logprobs) {
  const std::vector<float> logits = {std::log(.1f), std::log(.4f), std::log(.1f), std::log(.4f)};
  const SamplingParams params{.temperature = 0.1, .top_k = 1, .presence_penalty = 100, .top_logprobs = 3};
  TokenCounts counts;
  counts.add_answer(1);
  const SampledToken token = Sampler().sample(logits, params, counts, 5).value();
  EXPECT_EQ(token.id, 3) << "1 is penalised";
  EXPECT_NEAR(token.logprob, std::log(.4), 1e-6) << "the model's own, without temperature and filters";
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_EQ(token.top[1].id, 3);
  EXPECT_EQ(token.top[2].id, 0);
  EXPECT_NEAR(token.top[2].logprob, std::log(.1), 1e-6);
  EXPECT_EQ(token.top[1], (TokenLogprob{3, token.logprob}));

  SamplingParams more = params;
  more.top_logprobs = 9;
  EXPECT_EQ(Sampler().sample(logits, more, counts, 5).value().top.size(), 4u) << "no more than there are";
  more.top_logprobs = 0;
  EXPECT_TRUE(Sampler().sample(logits, more, counts, 5).value().top.empty());
}

TEST(Sampling, TopLogprobsAreTheBestOfALargeVocabulary) {
  const uint32_t seed = 11;
  std::vector<float> logits = random_logits(3000, seed);
  for (float& logit : logits) logit = std::round(logit);  // ties
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const SampledToken token = Sampler().sample(logits, {.top_logprobs = 20}, {}, 0).value();
  ASSERT_EQ(token.top.size(), 20u);
  for (size_t i = 0; i < token.top.size(); ++i) EXPECT_EQ(token.top[i].id, order[i]) << i << " seed " << seed;
}

TEST(Sampling, LogitsThatAreNotFinite) {
  for (const float bad : {kNaN, kInf, -kInf}) {
    for (const double temperature : {0.0, 1.0}) {
      const auto result = Sampler().sample(std::vector<float>{0, 1, bad, 2}, {.temperature = temperature}, {}, 0);
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.status().message(),
                fmt::format("the logit of token 2 is {}, expected a finite number: check the weights", bad));
    }
  }
  TokenCounts counts;
  counts.add_answer(1);
  const auto result = Sampler().sample(std::vector<float>{0, 3e38f}, {.frequency_penalty = -3e38}, counts, 0);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message(),
            "the logit with penalties of token 1 is inf, expected a finite number: check the weights");
}

TEST(Sampling, ParametersOutOfRange) {
  struct Case {
    SamplingParams params;
    const char* message;
  };
  const Case cases[] = {
      {{.temperature = -1}, "temperature: expected a number from 0 to 100, found -1"},
      {{.temperature = kNaN}, "temperature: expected a number from 0 to 100, found nan"},
      {{.temperature = kInf}, "temperature: expected a number from 0 to 100, found inf"},
      {{.temperature = 101}, "temperature: expected a number from 0 to 100, found 101"},
      {{.top_k = -1}, "top_k: expected a number from 0 to 2147483647, found -1"},
      {{.top_p = 0}, "top_p: expected a number above 0 and at most 1, found 0"},
      {{.top_p = 1.5}, "top_p: expected a number above 0 and at most 1, found 1.5"},
      {{.min_p = -0.1}, "min_p: expected a number from 0 to 1, found -0.1"},
      {{.repetition_penalty = 0}, "repetition_penalty: expected a number from 0.01 to 100, found 0"},
      {{.repetition_penalty = 1e38}, "repetition_penalty: expected a number from 0.01 to 100, found 1e+38"},
      {{.presence_penalty = kInf}, "presence_penalty: expected a number from -100 to 100, found inf"},
      {{.presence_penalty = -1e38}, "presence_penalty: expected a number from -100 to 100, found -1e+38"},
      {{.frequency_penalty = kNaN}, "frequency_penalty: expected a number from -100 to 100, found nan"},
      {{.frequency_penalty = 1e38}, "frequency_penalty: expected a number from -100 to 100, found 1e+38"},
      {{.top_logprobs = -2}, "top_logprobs: expected a number from -1 to 2147483647, found -2"},
  };
  for (const Case& c : cases) EXPECT_EQ(validate(c.params).message(), c.message);
}

// What the draw of one request is does not depend on which other requests the sampler serves, or in which order.
TEST(Sampling, IndependentOfTheBatch) {
  constexpr int kRequests = 5, kTokens = 40;
  const auto text = [](Sampler& sampler, int request, int position) {
    const auto logits = random_logits(257, static_cast<uint32_t>(1000 * request + position));
    const SamplingParams params{
        .temperature = 0.9, .top_p = 0.95, .seed = 42, .request = static_cast<uint64_t>(request)};
    return sampler.sample(logits, params, {}, position).value().id;
  };
  std::vector<std::vector<int32_t>> alone(kRequests), together(kRequests);
  for (int request = 0; request < kRequests; ++request) {
    Sampler sampler;
    for (int position = 0; position < kTokens; ++position) alone[request].push_back(text(sampler, request, position));
  }
  Sampler shared;
  for (int position = 0; position < kTokens; ++position) {
    for (int request = kRequests - 1; request >= 0; --request)
      together[request].push_back(text(shared, request, position));
  }
  EXPECT_EQ(alone, together);
  const auto logits = random_logits(257, 1);
  int differ = 0;
  for (int position = 0; position < kTokens; ++position) {
    differ += Sampler().sample(logits, {.seed = 1}, {}, position).value().id !=
              Sampler().sample(logits, {.seed = 2}, {}, position).value().id;
  }
  EXPECT_GT(differ, kTokens / 2) << "another seed, another text";
}

// sum (count - expected)^2 / expected over ids.
double chi_square(const std::vector<int>& counts, const TokenDistribution& expected) {
  const int draws = std::accumulate(counts.begin(), counts.end(), 0);
  double sum = 0;
  for (size_t id = 0; id < counts.size(); ++id) {
    const double mean = expected.probability(static_cast<int32_t>(id)) * draws;
    if (mean == 0) {
      EXPECT_EQ(counts[id], 0) << id;
      continue;
    }
    sum += (counts[id] - mean) * (counts[id] - mean) / mean;
  }
  return sum;
}

// Seven degrees of freedom: P(chi^2 > 29.9) = 1e-4. The seeds are fixed, so the test passes or fails for good.
constexpr double kChiSquareBound = 29.9;
const std::vector<float> kModelLogits = {0.5f, 1.5f, -1, 0, 2, -0.5f, 1, -2};
const std::vector<float> kDraftLogits = {1.5f, 0.5f, -1, 1, 1, 0.5f, -1, -1};

TEST(Sampling, FrequenciesFollowTheDistribution) {
  for (const uint64_t seed : {1, 2, 3}) {
    const SamplingParams params{.temperature = 1.3, .seed = seed};
    Sampler sampler;
    std::vector<int> counts(kModelLogits.size(), 0);
    for (int position = 0; position < 20000; ++position) {
      ++counts[static_cast<size_t>(sampler.sample(kModelLogits, params, {}, position).value().id)];
    }
    EXPECT_LT(chi_square(counts, sampler.distribution(kModelLogits, params, {}).value()), kChiSquareBound) << seed;
    EXPECT_GT(chi_square(counts, sampler.distribution(kDraftLogits, params, {}).value()), kChiSquareBound)
        << "the test would see a wrong distribution";
  }
}

TEST(Speculation, CountAccepted) {
  struct Case {
    std::vector<int32_t> drafts, model;
    int64_t accepted;
  };
  const Case cases[] = {
      {{}, {5}, 0}, {{5}, {5, 6}, 1}, {{4}, {5, 6}, 0}, {{5, 6, 7}, {5, 6, 7, 8}, 3}, {{5, 9, 7}, {5, 6, 7, 8}, 1},
  };
  for (const Case& c : cases) EXPECT_EQ(count_accepted(c.drafts, c.model), c.accepted);
}

// Drafts from another distribution, verified: the tokens that come out follow the model's distribution, and drafts are
// accepted at the rate sum_i min(model_i, draft_i).
TEST(Speculation, VerifiedDraftsFollowTheModel) {
  for (const uint64_t seed : {1, 2, 3}) {
    const SamplingParams model_params{.top_k = 7, .seed = seed};
    Sampler sampler;
    const TokenDistribution model = sampler.distribution(kModelLogits, model_params, {}).value();
    const TokenDistribution draft = sampler.distribution(kDraftLogits, {}, {}).value();
    double overlap = 0;
    for (int32_t id = 0; id < 8; ++id) overlap += std::min(model.probability(id), draft.probability(id));
    constexpr int kDraws = 20000;
    int accepted = 0;
    std::vector<int> counts(kModelLogits.size(), 0);
    for (int position = 0; position < kDraws; ++position) {
      const int32_t id = draw(draft, uniform({seed + 100, 0, position}, DrawPurpose::kToken));
      const DraftVerdict verdict = verify_draft(model, draft, id, model_params, position);
      accepted += verdict.accepted;
      ++counts[static_cast<size_t>(verdict.id)];
      if (verdict.accepted) {
        EXPECT_EQ(verdict.id, id);
      }
    }
    EXPECT_LT(chi_square(counts, model), kChiSquareBound) << seed;
    EXPECT_NEAR(accepted / double{kDraws}, overlap, 4 * std::sqrt(overlap * (1 - overlap) / kDraws)) << seed;
  }
}

TEST(Speculation, EqualDistributionsAlwaysAccept) {
  const TokenDistribution model = Sampler().distribution(kModelLogits, {}, {}).value();
  for (int position = 0; position < 200; ++position) {
    EXPECT_TRUE(verify_draft(model, model, position % 8, {.seed = 9}, position).accepted);
  }
}

TEST(Speculation, GreedyModelTakesOnlyItsOwnToken) {
  const SamplingParams greedy{.temperature = 0};
  const TokenDistribution model = Sampler().distribution(kModelLogits, greedy, {}).value();
  const TokenDistribution draft = Sampler().distribution(kDraftLogits, {}, {}).value();
  for (int32_t id = 0; id < 8; ++id) {
    const DraftVerdict verdict = verify_draft(model, draft, id, greedy, id);
    EXPECT_EQ(verdict.accepted, id == 4);
    EXPECT_EQ(verdict.id, 4);
  }
}

}  // namespace
}  // namespace weft
