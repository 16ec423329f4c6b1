// What others published, and what machines took, beside what weft plans: `weft plan --validate`, and a test.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/json.h"
#include "models/model.h"
#include "planner/engine_profile.h"

namespace weft {

enum class FigureKind { kPublished, kMeasured };

struct ValidationLine {
  FigureKind kind = FigureKind::kPublished;
  // Something of weft was set so that it comes out (rules of engine profiles). All others are held out: nothing was
  // fitted to them.
  bool fitted = false;
  std::string what, unit, source;
  double published = 0, planned = 0;
  double tolerance = 0;      // relative; 0: exact
  std::string remark;        // what is counted differently
  std::string not_modelled;  // why it may be further off: what weft leaves out

  double error() const { return published == 0 ? (planned == 0 ? 0 : 1) : planned / published - 1; }
  bool ok() const { return error() <= tolerance && -error() <= tolerance; }
  bool passes() const { return ok() || !not_modelled.empty(); }
};

// A shipped config, a shipped engine profile, by name.
using OpenModel = std::function<Result<std::shared_ptr<const Model>>(const std::string& name)>;
using OpenEngine = std::function<Result<std::shared_ptr<const EngineProfile>>(const std::string& name)>;
Result<std::vector<ValidationLine>> validate_published(const OpenModel& open, const OpenEngine& open_engine);

// How far off the lines of a group are, without their sign.
struct ErrorSummary {
  std::string group;  // "published, held out"
  int64_t figures = 0;
  double median = 0, p90 = 0, max = 0;
};
// Of the groups that have lines: published and measured figures, fitted and held out.
std::vector<ErrorSummary> summarise(const std::vector<ValidationLine>& lines);

std::string validation_text(const std::vector<ValidationLine>& lines);
nlohmann::ordered_json validation_json(const std::vector<ValidationLine>& lines);

}  // namespace weft
