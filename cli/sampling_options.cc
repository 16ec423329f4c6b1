#include "cli/sampling_options.h"

#include <filesystem>

#include "cli/command.h"
#include "io/json_fields.h"

namespace weft {
namespace {

// Numbers that are null or absent leave the default; other keys are for other programs.
Status read_generation_config(const std::filesystem::path& file, SamplingParams& params) {
  const std::string name = file.string();
  WEFT_ASSIGN_OR_RETURN(const Json config, read_json_file(file));
  JsonFields fields(config, name);
  const auto number = [&](const char* key, double& value, const NumberRange& range) {
    value = fields.number_or(key, value, range.min, range.max);
  };
  number("temperature", params.temperature, kTemperatureRange);
  params.top_k = fields.integer_or("top_k", params.top_k, 0, kMaxTopK);
  number("top_p", params.top_p, kTopPRange);
  number("min_p", params.min_p, kMinPRange);
  number("repetition_penalty", params.repetition_penalty, kRepetitionPenaltyRange);
  WEFT_RETURN_IF_ERROR(fields.status());
  if (const auto sample = config.find("do_sample"); sample != config.end() && !sample->is_null()) {
    if (!sample->is_boolean()) {
      return invalid_argument(fmt::format("{}: do_sample: expected true or false, found {}", name, json_kind(*sample)));
    }
    if (!sample->get<bool>()) params.temperature = 0;
  }
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
  const char* group = "Sampling (defaults: generation_config.json)";
  const auto number = [&](const char* name, std::optional<double>& value, const NumberRange& range, const char* what) {
    app.add_option(name, value, what)->check(number_in(range))->group(group);
  };
  number("--temperature", args.temperature, kTemperatureRange, "0: the most probable token");
  number("--top-p", args.top_p, kTopPRange, "keep the fewest tokens with this much probability together");
  app.add_option("--top-k", args.top_k, "keep this many tokens; 0: all")
      ->check(whole_number(0, static_cast<uint64_t>(kMaxTopK)))
      ->group(group);
  number("--min-p", args.min_p, kMinPRange, "keep tokens with this share of the best one's probability");
  number("--repetition-penalty", args.repetition_penalty, kRepetitionPenaltyRange,
         "divides logits of tokens that occurred; 1: off");
  number("--presence-penalty", args.presence_penalty, kAdditivePenaltyRange,
         "subtracted from logits of tokens in the answer");
  number("--frequency-penalty", args.frequency_penalty, kAdditivePenaltyRange,
         "the same, times how often they occurred");
  app.add_option("--seed", args.seed, "the same seed gives the same text")
      ->check(whole_number(0, kMaxSeed))
      ->capture_default_str()
      ->group(group);
}

}  // namespace weft
