#include "models/glm_moe_dsa/check_storage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include <fmt/format.h>

namespace weft::glm_moe_dsa {
namespace {

std::string_view format_name(const Weight& w) {
  return w.sides.empty() ? dtype_name(w.type.dtype) : format_of(w) == WeightFormat::kFp8 ? "F8_E4M3" : quant_scheme_name(scheme_of(w));
}

// Where weights are parts of one computation, or taken apart: which formats that takes.
void check_formats(std::span<const Weight> table, const Checkpoint& checkpoint, std::vector<std::string>& wrong) {
  for (const Weight& w : table) {
    const std::string name = first_tensor(w, checkpoint);
    const bool is_static = format_of(w) == WeightFormat::kInt8Static;
    if (is_static && w.num_experts > 0) {
      wrong.push_back(fmt::format("'{}' is W8A8, experts can be FLOAT, FP8 or W8A8_DYNAMIC", name));
    } else if (is_static && w.name.ends_with(".kv_b_proj")) {
      wrong.push_back(fmt::format("'{}' is W8A8, a weight that is taken apart for attention can be FLOAT, FP8 or W8A8_DYNAMIC", name));
    }
    if (w.num_experts == 0 || !w.name.ends_with(".up_proj")) continue;
    const Weight* gate = find_weight(table, w.name.substr(0, w.name.size() - 7) + "gate_proj");
    if (gate != nullptr && (gate->type.dtype != w.type.dtype || format_of(*gate) != format_of(w))) {
      wrong.push_back(fmt::format("'{}' is {} and '{}' {}: the two work as one module and must be stored alike", name, format_name(w),
                                  first_tensor(*gate, checkpoint), format_name(*gate)));
    }
  }
}

// quantization_config stands for FP8, with rounded latents and index keys; int8 has the description instead.
std::string config_problem(const Config& config, std::span<const Weight> table, const Checkpoint& checkpoint) {
  const Weight *fp8 = nullptr, *int8 = nullptr;
  for (const Weight& w : table) {
    if (fp8 == nullptr && format_of(w) == WeightFormat::kFp8) fp8 = &w;
    if (int8 == nullptr && w.type.dtype == DType::kI8) int8 = &w;
  }
  if (!config.fp8 && fp8 != nullptr) {
    return fmt::format("; config.json has no quantization_config, but '{}' is F8_E4M3", first_tensor(*fp8, checkpoint));
  }
  if (config.fp8 && int8 != nullptr) {
    return fmt::format("; quantization_config of config.json says fp8, but '{}' is I8", first_tensor(*int8, checkpoint));
  }
  if (config.fp8 && fp8 == nullptr) return "; quantization_config of config.json says fp8, but no weight is F8_E4M3";
  return "";
}

std::string description_problems(std::span<const Weight> table, const Checkpoint& checkpoint) {
  if (!checkpoint.quant_description()) return "";
  const QuantDescription& description = *checkpoint.quant_description();
  const auto& schemes = description.schemes;
  std::vector<std::string> others, unnamed, absent;
  std::unordered_set<std::string> known;
  const auto compare = [&](const std::string& name, const Weight& w) {
    const auto said = schemes.find(name);
    known.insert(name);
    if (said == schemes.end()) return false;
    if (said->second != scheme_of(w)) {
      others.push_back(fmt::format("'{}' is {}, the tensors say {}", name, quant_scheme_name(said->second), quant_scheme_name(scheme_of(w))));
    }
    return true;
  };
  for (const Weight& w : table) {
    // An export with stacked experts may name the stacked tensors or those that they were.
    const bool stacked = is_stacked(w, checkpoint);
    const bool as_stacked = stacked && compare(w.stacked_name, w);
    if (stacked) {
      for (const SideTensor& side : w.sides) compare(w.stacked_name + side.stacked_suffix, w);
    }
    for (const FileTensor& tensor : file_tensors({&w, 1})) {
      const bool named = compare(tensor.name, w);
      if (!named && !as_stacked && tensor.side == nullptr) unnamed.push_back(tensor.name);
    }
  }
  for (const auto& [name, scheme] : schemes) {
    if (!known.contains(name)) absent.push_back(name);
  }
  const std::string file = QuantDescription::kFileName;
  std::string problems = listed_names(file + " says otherwise", others) + listed_names(file + " names what is not there", absent);
  if (!schemes.empty()) problems += listed_names(file + " does not name", unnamed);  // else it has its general keys alone
  const bool rotation = find_weight(table, "rot") != nullptr;
  const bool mtp = std::any_of(table.begin(), table.end(), [](const Weight& w) { return w.mtp; });
  if (description.is_rot_used && !rotation && mtp) {
    problems += fmt::format("; {} says is_rot_used, but there is no rot.weight, which turns hidden states for the draft layer", file);
  }
  if (!description.is_rot_used && rotation) problems += fmt::format("; there is a rot.weight, but {} does not say is_rot_used: true", file);
  return problems;
}

// Numbers of one kind of side tensor, and in words what they have to be.
struct Expected {
  std::string_view side;
  bool (*holds)(float);
  std::string_view words;
};
constexpr float kSmallest = std::numeric_limits<float>::min();  // so that the reciprocal is a number
constexpr Expected kExpected[] = {
    {"scale", [](float v) { return std::isfinite(v) && v >= 0; }, "a number from 0"},
    {"deq_scale", [](float v) { return std::isfinite(v) && v >= 0; }, "a number from 0"},
    {"input_scale", [](float v) { return v >= kSmallest && v <= 1 / kSmallest; }, "a number above 0 whose reciprocal is one, too"},
    {"input_offset", [](float v) { return v >= -128 && v <= 127 && std::floor(v) == v; }, "a whole number from -128 to 127"},
    // An offset would be left out of the sums.
    {"offset", [](float v) { return v == 0; }, "0: only symmetric int8 weights are supported"},
};

}  // namespace

std::string storage_problems(const Config& config, std::span<const Weight> table, const Checkpoint& checkpoint) {
  std::vector<std::string> wrong;
  check_formats(table, checkpoint, wrong);
  return config_problem(config, table, checkpoint) + listed_names("not supported", wrong) + description_problems(table, checkpoint);
}

Status check_side_values(const WeightData& data, const Checkpoint& checkpoint) {
  for (const Weight& w : data.weights()) {
    if (format_of(w) == WeightFormat::kFp8) continue;  // of every block of a large file, and what is no number shows in the logits
    for (const SideTensor& side : w.sides) {
      const auto* expected = std::find_if(std::begin(kExpected), std::end(kExpected), [&](const Expected& e) { return e.side == side.name; });
      if (expected == std::end(kExpected)) continue;
      WEFT_ASSIGN_OR_RETURN(const TensorView view, data.view(w.name + "." + side.name));
      const int64_t parts = std::max<int64_t>(w.num_experts, 1), count = view.shape().num_elements() / parts;
      for (int64_t p = 0; p < parts; ++p) {
        const auto* values = static_cast<const float*>(w.num_experts > 0 ? view.parts[static_cast<size_t>(p)] : view.data);
        const auto* wrong = std::find_if_not(values, values + count, expected->holds);
        if (wrong == values + count) continue;
        const std::string name = is_stacked(w, checkpoint) ? w.stacked_name + side.stacked_suffix
                                 : w.num_experts > 0       ? side_name(expert_name(w.tensor_name, p), side.suffix)
                                                           : side_name(w.tensor_name, side.suffix);
        return invalid_argument(fmt::format("{}: '{}' has {}, expected {}", checkpoint.dir().string(), name, *wrong, expected->words));
      }
    }
  }
  return {};
}

}  // namespace weft::glm_moe_dsa
