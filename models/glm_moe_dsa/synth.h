// A random checkpoint of the DSA-MLA family: which tensors, of which distribution, and the config for the chosen layers.
#pragma once

#include "models/synth.h"

namespace weft::glm_moe_dsa {

// Layers keep their kind: dense or experts, with an indexer of their own or without. Dense layers must come first, and a layer with
// an indexer before those without, as in every config.
Result<SynthPlan> plan_synth(const Json& config, const std::string& where, const SynthOptions& options);

}  // namespace weft::glm_moe_dsa
