// quant_model_description.json: the side file of checkpoints that were quantised with ModelSlim. It names the scheme of every
// tensor; config.json of such a checkpoint says nothing about it. Source of the format: glm_moe_dsa.md section 5.3.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace weft {

enum class QuantScheme {
  kFloat,       // "FLOAT": as stored
  kW8A8,        // "W8A8": int8, a scale per output, activations with one stored scale and offset
  kW8A8Dynamic  // "W8A8_DYNAMIC": int8, a scale per output, activations with a scale per token
};
std::string_view quant_scheme_name(QuantScheme scheme);

struct QuantDescription {
  static constexpr const char* kFileName = "quant_model_description.json";

  std::string model_quant_type;
  bool is_rot_used = false;  // hidden states of the main model live in a rotated basis
  std::map<std::string, QuantScheme, std::less<>> schemes;  // by tensor; empty: the file has its general keys alone
};

// Errors: not JSON, a value that is no known scheme.
Result<QuantDescription> read_quant_description(const std::filesystem::path& path);

}  // namespace weft
