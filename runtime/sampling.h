// From logits to the next token.
//
// The steps, in this order (that of vLLM, for which most published sampling parameters are given):
//   1. repetition_penalty r   tokens of the prompt or the answer: logit / r if positive, else logit * r
//      frequency, presence    tokens of the answer: logit - frequency * count - presence
//   2. temperature T          logit / T; 0: the best logit, steps 3 to 5 are left out
//   3. min_p                  keeps tokens with probability >= min_p * (largest probability)
//   4. top_k                  keeps the k best
//   5. top_p                  renormalises, keeps the fewest best tokens whose probabilities add up to >= top_p
//   6. one draw from what is left, renormalised
// (llama.cpp applies the temperature last: there, min_p and top_p see the distribution at temperature 1.)
//
// Everywhere a tie of logits goes to the lower token id, also at the boundary of top_k and top_p. At least one token is
// kept.
// Before them ids that are no tokens (num_ids) are left out.
// Logprobs are those of the model: log-softmax of the logits as they come, before penalties and temperature.
//
// Deterministic: the token is a function of (logits, params, counts, position) alone, and the same with every
// instruction set (exp by kernels/vector_math, sums in double in ascending id). A logit that is NaN or infinite is an
// error.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace weft {

struct NumberRange {
  double min, max;
  bool above_min = false;  // min itself is outside

  bool contains(double value) const { return (above_min ? value > min : value >= min) && value <= max; }  // NaN: false
  std::string to_text() const;  // "from 0 to 100", "above 0 and at most 1"
};

// Far beyond what anybody uses (temperature up to 2, penalties within -2 .. 2), and so that no finite logit of a model
// leaves the range of float.
inline constexpr NumberRange kTemperatureRange{0, 100};
inline constexpr NumberRange kTopPRange{0, 1, true};
inline constexpr NumberRange kMinPRange{0, 1};
inline constexpr NumberRange kRepetitionPenaltyRange{0.01, 100};
inline constexpr NumberRange kAdditivePenaltyRange{-100, 100};  // presence and frequency
inline constexpr int64_t kMaxTopK = std::numeric_limits<int32_t>::max();

struct SamplingParams {
  double temperature = 1;  // kTemperatureRange; 0: greedy
  int64_t top_k = 0;       // 0 .. kMaxTopK; 0: all
  double top_p = 1;        // kTopPRange
  double min_p = 0;        // kMinPRange
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  uint64_t seed = 0;
  uint64_t request = 0;   // DrawKey::request: the same seed and request give the same text in any batch
  int top_logprobs = -1;  // -1: no logprobs; n >= 0: that of the chosen token and of the n best
  int64_t num_ids = 0;    // ids from here on are not tokens (rows that pad a vocabulary) and are never picked; 0: all are

  bool greedy() const { return temperature == 0; }
  bool has_penalties() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
  bool operator==(const SamplingParams&) const = default;
};

// The message names the parameter.
Status validate(const SamplingParams& params);

// Logits that are used have to be numbers: where they are not, the weights are not those of the model, which is bad input.
Status expect_finite(std::span<const float> logits, std::string_view what = "the logit");

// The tokens of one request that penalties look at.
class TokenCounts {
 public:
  struct Count {
    int32_t prompt = 0, answer = 0;
  };

  void add_prompt(std::span<const int32_t> ids);
  void add_answer(int32_t id) { ++counts_[id].answer; }
  void remove_answer(int32_t id);  // takes a rolled-back draft away again; must have been added
  const std::unordered_map<int32_t, Count>& counts() const { return counts_; }

 private:
  std::unordered_map<int32_t, Count> counts_;
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;
  bool operator==(const TokenLogprob&) const = default;
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0;              // 0 without top_logprobs
  std::vector<TokenLogprob> top;  // logprob descending, then id ascending
};

// What step 6 draws from: ids ascending, weights > 0 and not normalised, total = their sum in ascending id.
struct TokenDistribution {
  std::vector<int32_t> ids;
  std::vector<double> weights;
  double total = 0;

  double probability(int32_t id) const;  // 0 for an id that is not there
};

// u in [0, 1): the first token at which the running sum of weights exceeds u * total.
int32_t draw(const TokenDistribution& distribution, double u);

// One per thread: holds scratch of the size of the vocabulary.
class Sampler {
 public:
  // The token that follows `position` tokens. logits: F32, one per id.
  Result<SampledToken> sample(std::span<const float> logits, const SamplingParams& params, const TokenCounts& counts,
                              int64_t position);

  // Steps 1 to 5. Greedy: one token of weight 1. params are valid.
  Result<TokenDistribution> distribution(std::span<const float> logits, const SamplingParams& params,
                                         const TokenCounts& counts);

 private:
  struct Candidate {
    float logit;   // with penalties
    float weight;  // exp((logit - best logit) / temperature)
    int32_t id;
  };
  void keep_top_k(int64_t k);
  void keep_top_p(double top_p);

  std::vector<float> adjusted_, weights_;
  std::vector<Candidate> candidates_;
};

// Speculative decoding: two ways; both leave the distribution of the text that of the model, whatever the drafts are.
//   * The model's own tokens are sampled at every drafted position (same draws as without drafts), and drafts are kept
//     as long as they equal them: the text is the very same as without drafts, greedy or not.
//   * Rejection sampling keeps more of the drafts that were themselves sampled, but gives another text than without
//     drafts. Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", 2023.

// How many leading drafts equal the model's own tokens: 0 .. drafts.size(). model_tokens has an entry for each draft at
// least; model_tokens[i] is the token sampled from the logits that follow drafts[0 .. i-1].
int64_t count_accepted(std::span<const int32_t> drafts, std::span<const int32_t> model_tokens);

struct DraftVerdict {
  bool accepted = false;
  int32_t id = 0;  // the draft, or the token that replaces it
};

// `draft_id` was drawn from `draft`. Accepts it with probability min(1, model / draft); otherwise draws from the part
// of `model` above `draft`. Both are the distributions of the token that follows `position` tokens.
DraftVerdict verify_draft(const TokenDistribution& model, const TokenDistribution& draft, int32_t draft_id,
                          const SamplingParams& params, int64_t position);

}  // namespace weft
