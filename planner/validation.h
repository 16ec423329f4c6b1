// What others published or measured, beside what weft plans: `weft plan --validate`, and a test. Nothing here is fitted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "models/model.h"
#include "planner/engine_profile.h"

namespace weft {

struct ValidationLine {
  std::string what, unit, source;
  double published = 0, planned = 0;
  double tolerance = 0;  // relative; 0: exact
  std::string remark;    // what is counted differently

  double error() const { return published == 0 ? (planned == 0 ? 0 : 1) : planned / published - 1; }
  bool ok() const { return error() <= tolerance && -error() <= tolerance; }
};

// A shipped config, a shipped engine profile, by name.
using OpenModel = std::function<Result<std::shared_ptr<const Model>>(const std::string& name)>;
using OpenEngine = std::function<Result<std::shared_ptr<const EngineProfile>>(const std::string& name)>;
Result<std::vector<ValidationLine>> validate_published(const OpenModel& open, const OpenEngine& open_engine);

std::string validation_text(const std::vector<ValidationLine>& lines);
nlohmann::ordered_json validation_json(const std::vector<ValidationLine>& lines);

}  // namespace weft
