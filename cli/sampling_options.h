// Options of sampling, with defaults from the checkpoint's generation_config.json.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "base/status.h"
#include "runtime/sampling.h"

namespace weft {

struct SamplingArgs {
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> top_k;
  uint64_t seed = 0;

  // What was given, then generation_config.json of the folder (do_sample false: temperature 0), then SamplingParams'
  // defaults.
  Result<SamplingParams> params(const std::string& model_dir) const;
};

void add_sampling_options(CLI::App& app, SamplingArgs& args);

}  // namespace weft
