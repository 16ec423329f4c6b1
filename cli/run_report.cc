#include "cli/run_report.h"

#include "cli/model_options.h"

namespace weft {
namespace {

using OrderedJson = nlohmann::ordered_json;

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

OrderedJson token_json(const Tokenizer& tokenizer, int32_t id, float logprob) {
  return {{"id", id}, {"text", tokenizer.decode({&id, 1})}, {"logprob", logprob}};
}

}  // namespace

void note_result(const GenerateResult& result, Console& console) {
  const int64_t prefilled = result.prompt_tokens - result.cached_tokens;
  console.note(fmt::format(
      "prefill   {} tokens in {:.2f} s, {:.1f} tokens/s{}", prefilled, result.prefill_s, result.prefill_tokens_per_s(),
      result.cached_tokens > 0 ? fmt::format(" ({} were in the cache)", result.cached_tokens) : ""));
  console.note(fmt::format("decode    {} tokens in {:.2f} s, {:.1f} tokens/s; ended by {}", result.tokens.size(),
                           result.decode_s, result.decode_tokens_per_s(), finish_reason_name(result.reason)));
  if (result.drafted > 0) {
    console.note(fmt::format("drafts    {} of {} accepted, {:.1f} %", result.accepted, result.drafted,
                             100 * share(result.accepted, result.drafted)));
  }
}

OrderedJson result_json(const GenerateResult& result) {
  OrderedJson json = {{"finish_reason", std::string(finish_reason_name(result.reason))},
                      {"prompt_tokens", result.prompt_tokens},
                      {"cached_tokens", result.cached_tokens},
                      {"completion_tokens", result.tokens.size()}};
  json["timings"] = {{"ttft_s", result.ttft_s},
                     {"prefill_s", result.prefill_s},
                     {"prefill_tokens_per_s", result.prefill_tokens_per_s()},
                     {"decode_s", result.decode_s},
                     {"decode_tokens_per_s", result.decode_tokens_per_s()}};
  json["drafts"] = {
      {"drafted", result.drafted}, {"accepted", result.accepted}, {"rate", share(result.accepted, result.drafted)}};
  return json;
}

OrderedJson logprobs_json(const GenerateResult& result, const Tokenizer& tokenizer) {
  OrderedJson list = OrderedJson::array();
  for (const SampledToken& token : result.tokens) {
    OrderedJson entry = token_json(tokenizer, token.id, token.logprob);
    entry["top"] = OrderedJson::array();
    for (const TokenLogprob& other : token.top) entry["top"].push_back(token_json(tokenizer, other.id, other.logprob));
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace weft
