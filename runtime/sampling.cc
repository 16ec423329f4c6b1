#include "runtime/sampling.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/vector_math/vector_math.h"
#include "runtime/counter_rng.h"

namespace weft {
namespace {

constexpr auto kBetter = [](const auto& a, const auto& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
};
constexpr auto kLowerId = [](const auto& a, const auto& b) { return a.id < b.id; };

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());  // the first of equals
}

void exp_all(std::span<float> values) {
  // All variants give the same bits, so the fastest one may be taken without asking.
  const VectorMathArgs args{.function = VectorMathArgs::Function::kExp,
                            .x = values.data(),
                            .y = values.data(),
                            .n = static_cast<int64_t>(values.size())};
  pick_variant(vector_math_variants(), max_isa())(args);
}

void apply_penalties(const SamplingParams& params, const TokenCounts& counts, std::span<float> logits) {
  const auto repetition = static_cast<float>(params.repetition_penalty);
  const auto presence = static_cast<float>(params.presence_penalty);
  const auto frequency = static_cast<float>(params.frequency_penalty);
  for (const auto& [id, count] : counts.counts()) {  // in any order: each token by itself
    if (static_cast<size_t>(id) >= logits.size()) continue;  // of a prompt of ids that are no tokens
    float& logit = logits[static_cast<size_t>(id)];
    if (count.prompt > 0 || count.answer > 0) logit = logit > 0 ? logit / repetition : logit * repetition;
    if (count.answer > 0) {
      logit -= frequency * static_cast<float>(count.answer);
      logit -= presence;
    }
  }
}

// log(sum exp(logit)) = best + log(sum exp(logit - best)); `scratch` has the size of `logits`.
double log_sum_exp(std::span<const float> logits, float best, std::span<float> scratch) {
  for (size_t id = 0; id < logits.size(); ++id) scratch[id] = logits[id] - best;
  exp_all(scratch);
  double sum = 0;
  for (const float value : scratch) sum += value;
  return best + std::log(sum);
}

// The ids that may be picked.
std::span<const float> tokens_of(std::span<const float> logits, const SamplingParams& params) {
  if (params.num_ids == 0) return logits;
  return logits.first(std::min(static_cast<size_t>(params.num_ids), logits.size()));
}

void add_logprobs(std::span<const float> logits, const SamplingParams& params, std::span<float> scratch, SampledToken& token) {
  const double norm = log_sum_exp(logits, logits[static_cast<size_t>(argmax(logits))], scratch);
  const auto logprob = [&](int32_t id) { return static_cast<float>(logits[static_cast<size_t>(id)] - norm); };
  token.logprob = logprob(token.id);
  logits = tokens_of(logits, params);
  std::vector<int32_t> best(std::min(static_cast<size_t>(params.top_logprobs), logits.size()));
  // A short sorted list while scanning: for the few entries that are asked for, cheaper than sorting the vocabulary.
  size_t filled = 0;
  for (int32_t id = 0; static_cast<size_t>(id) < logits.size() && !best.empty(); ++id) {
    const float logit = logits[static_cast<size_t>(id)];
    if (filled == best.size() && logit <= logits[static_cast<size_t>(best.back())]) continue;
    size_t place = filled < best.size() ? filled++ : best.size() - 1;
    for (; place > 0 && logits[static_cast<size_t>(best[place - 1])] < logit; --place) best[place] = best[place - 1];
    best[place] = id;
  }
  for (const int32_t id : best) token.top.push_back({id, logprob(id)});
}

}  // namespace

std::string NumberRange::to_text() const {
  return above_min ? fmt::format("above {} and at most {}", min, max) : fmt::format("from {} to {}", min, max);
}

Status expect_finite(std::span<const float> logits, std::string_view what) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!std::isfinite(logits[id])) {
      return invalid_argument(fmt::format("{} of token {} is {}, expected a finite number: check the weights", what, id, logits[id]));
    }
  }
  return {};
}

Status validate(const SamplingParams& params) {
  struct Number {
    const char* name;
    double value;
    NumberRange range;
  };
  const Number numbers[] = {
      {"temperature", params.temperature, kTemperatureRange},
      {"top_k", static_cast<double>(params.top_k), {0, kMaxTopK}},
      {"top_p", params.top_p, kTopPRange},
      {"min_p", params.min_p, kMinPRange},
      {"repetition_penalty", params.repetition_penalty, kRepetitionPenaltyRange},
      {"presence_penalty", params.presence_penalty, kAdditivePenaltyRange},
      {"frequency_penalty", params.frequency_penalty, kAdditivePenaltyRange},
      {"num_ids", static_cast<double>(params.num_ids), {0, std::numeric_limits<int32_t>::max()}},
      {"top_logprobs", static_cast<double>(params.top_logprobs), {-1, std::numeric_limits<int>::max()}},
  };
  for (const Number& number : numbers) {
    if (!number.range.contains(number.value)) {
      return invalid_argument(
          fmt::format("{}: expected a number {}, found {}", number.name, number.range.to_text(), number.value));
    }
  }
  return {};
}

void TokenCounts::add_prompt(std::span<const int32_t> ids) {
  for (const int32_t id : ids) ++counts_[id].prompt;
}

void TokenCounts::remove_answer(int32_t id) {
  const auto it = counts_.find(id);
  WEFT_CHECK(it != counts_.end() && it->second.answer > 0, "token {} was not added", id);
  if (--it->second.answer == 0 && it->second.prompt == 0) counts_.erase(it);
}

double TokenDistribution::probability(int32_t id) const {
  const auto it = std::lower_bound(ids.begin(), ids.end(), id);
  if (it == ids.end() || *it != id) return 0;
  return weights[static_cast<size_t>(it - ids.begin())] / total;
}

int32_t draw(const TokenDistribution& distribution, double u) {
  WEFT_CHECK(!distribution.ids.empty());
  const double target = u * distribution.total;
  double sum = 0;
  for (size_t i = 0; i < distribution.ids.size(); ++i) {
    sum += distribution.weights[i];
    if (sum > target) return distribution.ids[i];
  }
  return distribution.ids.back();
}

Result<SampledToken> Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                                     const TokenCounts& counts, int64_t position) {
  WEFT_ASSIGN_OR_RETURN(const TokenDistribution tokens, distribution(logits, params, counts));
  SampledToken token;
  token.id = params.greedy() ? tokens.ids.front()
                             : draw(tokens, uniform({params.seed, params.request, position}, DrawPurpose::kToken));
  if (params.top_logprobs >= 0) {
    weights_.resize(logits.size());
    add_logprobs(logits, params, weights_, token);
  }
  return token;
}

Result<TokenDistribution> Sampler::distribution(std::span<const float> logits, const SamplingParams& params,
                                                const TokenCounts& counts) {
  WEFT_CHECK(!logits.empty());
  WEFT_RETURN_IF_ERROR(expect_finite(logits));
  logits = tokens_of(logits, params);
  if (params.has_penalties()) {
    adjusted_.assign(logits.begin(), logits.end());
    apply_penalties(params, counts, adjusted_);
    WEFT_RETURN_IF_ERROR(expect_finite(adjusted_, "the logit with penalties"));
    logits = adjusted_;
  }
  const int32_t best_id = argmax(logits);
  if (params.greedy()) return TokenDistribution{{best_id}, {1.0}, 1.0};

  // Relative to the best: a tiny temperature then gives -inf, weight 0, instead of an overflow. The best token has
  // weight exp(0) = 1, so weights are relative to the largest probability.
  const double best = logits[static_cast<size_t>(best_id)];
  weights_.resize(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    weights_[id] = static_cast<float>((logits[id] - best) / params.temperature);
  }
  exp_all(weights_);
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (weights_[id] > 0 && weights_[id] >= params.min_p) {
      candidates_.push_back({logits[id], weights_[id], static_cast<int32_t>(id)});
    }
  }
  if (params.top_k > 0) keep_top_k(params.top_k);
  if (params.top_p < 1) keep_top_p(params.top_p);

  TokenDistribution result;
  for (const Candidate& candidate : candidates_) {
    result.ids.push_back(candidate.id);
    result.weights.push_back(candidate.weight);
    result.total += candidate.weight;
  }
  return result;
}

void Sampler::keep_top_k(int64_t k) {
  const auto count = static_cast<int64_t>(candidates_.size());
  if (k >= count) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), kBetter);
  candidates_.resize(static_cast<size_t>(k));
  std::sort(candidates_.begin(), candidates_.end(), kLowerId);
}

void Sampler::keep_top_p(double top_p) {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double wanted = top_p * total;
  // Mostly a few tokens suffice: sort only the best 64, then 8 times as many, until their sum is enough.
  constexpr size_t kFirst = 64, kGrowth = 8;
  const auto begin = candidates_.begin();
  double sum = 0;
  size_t kept = 0;
  for (size_t sorted = 0, until = kFirst; sum < wanted && sorted < candidates_.size(); until *= kGrowth) {
    const size_t end = std::min(until, candidates_.size());
    std::partial_sort(begin + static_cast<int64_t>(sorted), begin + static_cast<int64_t>(end), candidates_.end(),
                      kBetter);
    sorted = end;
    while (sum < wanted && kept < sorted) sum += candidates_[kept++].weight;
  }
  candidates_.resize(kept);
  std::sort(candidates_.begin(), candidates_.end(), kLowerId);
}

int64_t count_accepted(std::span<const int32_t> drafts, std::span<const int32_t> model_tokens) {
  WEFT_CHECK(model_tokens.size() >= drafts.size(), "{} tokens for {} drafts", model_tokens.size(), drafts.size());
  return std::mismatch(drafts.begin(), drafts.end(), model_tokens.begin()).first - drafts.begin();
}

DraftVerdict verify_draft(const TokenDistribution& model, const TokenDistribution& draft, int32_t draft_id,
                          const SamplingParams& params, int64_t position) {
  const double drafted = draft.probability(draft_id);
  WEFT_CHECK(drafted > 0, "token {} cannot have been drafted", draft_id);
  const DrawKey key{params.seed, params.request, position};
  if (uniform(key, DrawPurpose::kAccept) * drafted < model.probability(draft_id)) return {true, draft_id};

  TokenDistribution residual;
  for (size_t i = 0; i < model.ids.size(); ++i) {
    const double weight = model.weights[i] / model.total - draft.probability(model.ids[i]);
    if (weight <= 0) continue;
    residual.ids.push_back(model.ids[i]);
    residual.weights.push_back(weight);
    residual.total += weight;
  }
  // A refusal means model < draft at draft_id, so that some other token has model > draft; only rounding can hide it.
  if (residual.ids.empty()) return {false, draw(model, uniform(key, DrawPurpose::kResidual))};
  return {false, draw(residual, uniform(key, DrawPurpose::kResidual))};
}

}  // namespace weft
