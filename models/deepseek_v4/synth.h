// A random DeepSeek-V4 checkpoint: which tensors, of which distribution, and the config for the chosen layers.
#pragma once

#include "models/deepseek_v4/config.h"
#include "models/synth.h"

namespace weft::deepseek_v4 {

// Layers keep their kind (window, 4, 128) and routing (hash, score). Hash layers must come first, as in every config.
Result<SynthPlan> plan_synth(const Json& config, const std::string& where, const SynthOptions& options);

}  // namespace weft::deepseek_v4
