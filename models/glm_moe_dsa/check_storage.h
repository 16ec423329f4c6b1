// What a checkpoint says about its own storage, held against its tensors: quantization_config, quant_model_description.json, and the
// numbers beside quantised weights. None of it changes the sums of a layer visibly when it is wrong, so it is checked here.
#pragma once

#include <span>
#include <string>

#include "models/glm_moe_dsa/config.h"
#include "models/glm_moe_dsa/weights.h"

namespace weft::glm_moe_dsa {

// Of a table that has the stored types (Contents::kTensors): formats that a weight cannot have, and what config.json and the
// description say otherwise than the tensors do. For the `problems` of bind_weights; "" if there are none.
std::string storage_problems(const Config& config, std::span<const Weight> table, const Checkpoint& checkpoint);

// Scales, offsets and parameters of activations: numbers that a quantiser can have written.
Status check_side_values(const WeightData& data, const Checkpoint& checkpoint);

}  // namespace weft::glm_moe_dsa
