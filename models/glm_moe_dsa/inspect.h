// What a folder of the DSA-MLA family holds, told to people.
#pragma once

#include <span>

#include "io/checkpoint.h"
#include "models/glm_moe_dsa/weights.h"
#include "models/model_summary.h"

namespace weft::glm_moe_dsa {

// `table`: the weights as the files have them, or as they are announced.
ModelSummary summarise(const Config& config, const Checkpoint& checkpoint, std::span<const Weight> table);

// "GLM-5", "DeepSeek-V3.2": from what the config says.
std::string_view model_title(const Config& config);

}  // namespace weft::glm_moe_dsa
