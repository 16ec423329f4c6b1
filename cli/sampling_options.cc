#include "cli/sampling_options.h"

#include <filesystem>

#include "cli/command.h"
#include "io/json.h"

namespace weft {
namespace {

// A number of generation_config.json; null and absent alike leave the default.
template <class T>
Status take_default(const Json& config, const std::string& file, const char* key, T& value) {
  const auto at = config.find(key);
  if (at == config.end() || at->is_null()) return {};
  if (!at->is_number())
    return invalid_argument(fmt::format("{}: {}: expected a number, found {}", file, key, json_kind(*at)));
  value = at->get<T>();
  return {};
}

Status read_generation_config(const std::filesystem::path& file, SamplingParams& params) {
  const std::string name = file.string();
  WEFT_ASSIGN_OR_RETURN(const Json config, read_json_file(file));
  if (!config.is_object())
    return invalid_argument(fmt::format("{}: expected an object, found {}", name, json_kind(config)));
  WEFT_RETURN_IF_ERROR(take_default(config, name, "temperature", params.temperature));
  WEFT_RETURN_IF_ERROR(take_default(config, name, "top_k", params.top_k));
  WEFT_RETURN_IF_ERROR(take_default(config, name, "top_p", params.top_p));
  WEFT_RETURN_IF_ERROR(take_default(config, name, "min_p", params.min_p));
  WEFT_RETURN_IF_ERROR(take_default(config, name, "repetition_penalty", params.repetition_penalty));
  if (const auto sample = config.find("do_sample"); sample != config.end() && *sample == false) params.temperature = 0;
  if (const Status valid = validate(params); !valid.ok())
    return invalid_argument(fmt::format("{}: {}", name, valid.message()));
  return {};
}

}  // namespace

Result<SamplingParams> SamplingArgs::params(const std::string& model_dir) const {
  SamplingParams params;
  const std::filesystem::path file = std::filesystem::path(model_dir) / "generation_config.json";
  std::error_code error;
  if (std::filesystem::exists(file, error)) WEFT_RETURN_IF_ERROR(read_generation_config(file, params));
  params.temperature = temperature.value_or(params.temperature);
  params.top_k = top_k.value_or(params.top_k);
  params.top_p = top_p.value_or(params.top_p);
  params.min_p = min_p.value_or(params.min_p);
  params.repetition_penalty = repetition_penalty.value_or(params.repetition_penalty);
  params.presence_penalty = presence_penalty.value_or(params.presence_penalty);
  params.frequency_penalty = frequency_penalty.value_or(params.frequency_penalty);
  params.seed = seed;
  WEFT_RETURN_IF_ERROR(validate(params));
  return params;
}

void add_sampling_options(CLI::App& app, SamplingArgs& args) {
  // Ranges are checked by validate(), which the server uses, too.
  const char* group = "Sampling (defaults: generation_config.json)";
  app.add_option("--temperature", args.temperature, "0: the most probable token")->group(group);
  app.add_option("--top-p", args.top_p, "keep the fewest tokens with this much probability together")->group(group);
  app.add_option("--top-k", args.top_k, "keep this many tokens; 0: all")->group(group);
  app.add_option("--min-p", args.min_p, "keep tokens with this share of the best one's probability")->group(group);
  app.add_option("--repetition-penalty", args.repetition_penalty, "divides logits of tokens that occurred; 1: off")
      ->group(group);
  app.add_option("--presence-penalty", args.presence_penalty, "subtracted from logits of tokens in the answer")
      ->group(group);
  app.add_option("--frequency-penalty", args.frequency_penalty, "the same, times how often they occurred")
      ->group(group);
  app.add_option("--seed", args.seed, "the same seed gives the same text")
      ->check(at_least(0))
      ->capture_default_str()
      ->group(group);
}

}  // namespace weft
