// One line per family.
#include "models/deepseek_v4/deepseek_v4.h"
#include "models/model.h"

namespace weft {
namespace {

struct Family {
  std::string_view model_type;
  Result<std::unique_ptr<Model>> (*open)(std::shared_ptr<const Checkpoint>, const ModelOptions&);
};

constexpr Family kFamilies[] = {
    {"deepseek_v4", deepseek_v4::open},
    {"deepseek_v41", deepseek_v4::open},  // refused there, with the reason
};

}  // namespace

Result<std::unique_ptr<Model>> open_model(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options) {
  const Json& config = checkpoint->config();
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) {
    return invalid_argument(fmt::format("{}: 'model_type' is missing; it names the model family", checkpoint->config_name()));
  }
  const std::string name = type->get<std::string>();
  std::string known;
  for (const Family& family : kFamilies) {
    if (family.model_type == name) return family.open(std::move(checkpoint), options);
    known += fmt::format(" {}", family.model_type);
  }
  return invalid_argument(fmt::format("{}: model_type '{}' is not a family that weft knows (known:{})",
                                      checkpoint->config_name(), name, known));
}

}  // namespace weft
