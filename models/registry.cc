// One line per family.
#include "models/deepseek_v4/deepseek_v4.h"
#include "models/deepseek_v4/synth.h"
#include "models/glm_moe_dsa/glm_moe_dsa.h"
#include "models/glm_moe_dsa/synth.h"
#include "models/model.h"
#include "models/synth.h"

namespace weft {
namespace {

struct Family {
  std::string_view model_type;
  Result<std::unique_ptr<Model>> (*open)(std::shared_ptr<const Checkpoint>, const ModelOptions&);
  Result<SynthPlan> (*plan_synth)(const Json&, const std::string&, const SynthOptions&);
  bool listed = true;  // false: known, and refused with a reason
};

constexpr Family kFamilies[] = {
    {"deepseek_v4", deepseek_v4::open, deepseek_v4::plan_synth},
    {"deepseek_v41", deepseek_v4::open, deepseek_v4::plan_synth, false},
    {"glm_moe_dsa", glm_moe_dsa::open, glm_moe_dsa::plan_synth},
    {"deepseek_v32", glm_moe_dsa::open, glm_moe_dsa::plan_synth},
};

Result<const Family*> find_family(const Json& config, const std::string& where) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return invalid_argument(fmt::format("{}: 'model_type' is missing; it names the model family", where));
  }
  const std::string name = type->get<std::string>();
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.model_type == name) return &family;
    if (family.listed) known += fmt::format(" {}", family.model_type);
  }
  return invalid_argument(fmt::format("{}: model_type '{}' is not a family that weft knows (known:{})", where, name, known));
}

}  // namespace

Result<std::unique_ptr<Model>> open_model(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const Family* family, find_family(checkpoint->config(), checkpoint->config_name()));
  return family->open(std::move(checkpoint), options);
}

Result<SynthPlan> plan_synth(const Json& config, const std::string& where, const SynthOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const Family* family, find_family(config, where));
  return family->plan_synth(config, where, options);
}

}  // namespace weft
