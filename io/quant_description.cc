#include "io/quant_description.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "io/json.h"

namespace weft {
namespace {

constexpr QuantScheme kSchemes[] = {QuantScheme::kFloat, QuantScheme::kW8A8, QuantScheme::kW8A8Dynamic};

// General keys, which are no tensors.
constexpr std::array<std::string_view, 7> kGeneral = {"model_quant_type", "version",  "metadata",     "group_size",
                                                      "optional",         "is_rot_used", "kv_quant_type"};

}  // namespace

std::string_view quant_scheme_name(QuantScheme scheme) {
  switch (scheme) {
    case QuantScheme::kFloat: return "FLOAT";
    case QuantScheme::kW8A8: return "W8A8";
    case QuantScheme::kW8A8Dynamic: return "W8A8_DYNAMIC";
  }
  return "?";
}

Result<QuantDescription> read_quant_description(const std::filesystem::path& path) {
  WEFT_ASSIGN_OR_RETURN(const Json json, read_json_file(path));
  const std::string where = path.string();
  if (!json.is_object())
    return invalid_argument(fmt::format("{}: expected an object, found {}", where, json_kind(json)));
  QuantDescription description;
  for (const auto& [key, value] : json.items()) {
    if (key == "model_quant_type" && value.is_string()) description.model_quant_type = value.get<std::string>();
    if (key == "is_rot_used" && value.is_boolean()) description.is_rot_used = value.get<bool>();
    if (std::find(kGeneral.begin(), kGeneral.end(), key) != kGeneral.end()) continue;
    if (!value.is_string())
      return invalid_argument(fmt::format("{}: '{}': expected a scheme, found {}", where, key, json_kind(value)));
    const auto& text = value.get_ref<const std::string&>();
    const auto* scheme = std::find_if(std::begin(kSchemes), std::end(kSchemes),
                                      [&](QuantScheme s) { return quant_scheme_name(s) == text; });
    if (scheme == std::end(kSchemes)) {
      return invalid_argument(fmt::format(
          "{}: '{}': scheme '{}' is not supported; supported: FLOAT, W8A8, W8A8_DYNAMIC", where, key, text));
    }
    description.schemes.emplace(key, *scheme);
  }
  return description;
}

}  // namespace weft
