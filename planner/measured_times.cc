#include "planner/measured_times.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "io/json_fields.h"
#include "io/text_file.h"
#include "planner/expert_load.h"
#include "planner/plan.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFile = "times.json";
constexpr double kTolerance = 0.15;  // that a calibrated machine is promised

// An object of a list: every key is read, or an error.
template <class Read>
Status items(const Json& json, const std::string& where, const char* key, Read read) {
  if (!json.contains(key) || !json[key].is_array())
    return invalid_argument(fmt::format("{}: {}: expected a list", where, key));
  for (size_t i = 0; i < json[key].size(); ++i) {
    JsonFields fields(json[key][i], where, fmt::format("{}[{}].", key, i));
    read(fields);
    WEFT_RETURN_IF_ERROR(fields.finish(UnknownKeys::kError, nullptr));
  }
  return {};
}

// Plans the step that was timed.
class Planned {
 public:
  static Result<Planned> open(const fs::path& folder, const MeasuredMachine& machine, const OpenModel& open) {
    Planned planned;
    EngineProfile weft;
    weft.name = "weft";
    weft.exact = true;
    planned.engine_ = std::make_shared<const EngineProfile>(std::move(weft));
    WEFT_ASSIGN_OR_RETURN(planned.device_, load_device_profile((folder / machine.profile).string(), {}));
    for (const MeasuredMachine::Model& model : machine.models) {
      PlanRequest& request = planned.requests_[model.name];
      WEFT_ASSIGN_OR_RETURN(request.model, open((folder / model.config).string()));
      request.model_name = model.name;
      request.mode = request.model->mode(DType::kBF16, std::nullopt);
      request.engine = planned.engine_;
      if (model.expert_load.empty()) continue;
      const std::string file = (folder / model.expert_load).string();
      WEFT_ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
      WEFT_ASSIGN_OR_RETURN(const ExpertCounts counts, parse_expert_load(text, file));
      WEFT_RETURN_IF_ERROR(check_expert_load(counts, *request.model, request.mode));
      request.expert_shares = std::make_shared<const std::map<int64_t, std::vector<double>>>(counts.shares());
    }
    return planned;
  }

  // bytes_per_s: of memory; 0: as the profile has it.
  Result<double> seconds(const MeasuredTime& time, double bytes_per_s) const {
    PlanRequest request = requests_.at(time.model);
    DeviceProfile device = device_;
    if (bytes_per_s > 0) set_memory_bandwidth(device, {bytes_per_s, true, "measured beside the step"});
    WEFT_ASSIGN_OR_RETURN(request.layout, parse_layout(time.layout));
    request.local_ranks = static_cast<int>(request.layout.mesh.world());
    request.threads = std::max(device.cores / request.local_ranks, 1);
    request.device = std::make_shared<const DeviceProfile>(std::move(device));
    request.batch = 1;
    const bool prefill = time.phase == PlanPhase::kPrefill;
    request.prompt = prefill ? time.depth + time.tokens : std::max<int64_t>(time.depth, 1);
    request.cached = prefill ? time.depth : 0;
    request.gen = prefill ? 1 : time.tokens;
    WEFT_ASSIGN_OR_RETURN(const Plan plan, make_plan(request, {.ops = false, .max_batch = false}));
    return prefill ? plan.prefill_all_s : plan.decode_step_s * static_cast<double>(time.tokens);
  }

  double calibrated_bytes_per_s() const { return device_.memory_bytes_per_s->value; }

 private:
  std::shared_ptr<const EngineProfile> engine_;
  DeviceProfile device_;
  std::map<std::string, PlanRequest> requests_;
};

}  // namespace

Result<MeasuredMachine> parse_measured_times(std::string_view text, std::string_view where) {
  WEFT_ASSIGN_OR_RETURN(const Json json, parse_json(text, where));
  const std::string file(where);
  MeasuredMachine machine;
  JsonFields fields(json, file);
  fields.one_of("schema", {"weft.measured_times"});
  if (fields.status().ok()) fields.integer("version", 1, 1);
  machine.machine = fields.string("machine");
  machine.source = fields.string("source");
  machine.profile = fields.string("profile");
  fields.informational({"models", "times"});
  WEFT_RETURN_IF_ERROR(fields.finish(UnknownKeys::kError, nullptr));
  WEFT_RETURN_IF_ERROR(items(json, file, "models", [&](JsonFields& item) {
    MeasuredMachine::Model& model = machine.models.emplace_back();
    model.name = item.string("name");
    model.config = item.string("config");
    if (item.has("expert_load")) model.expert_load = item.string("expert_load");
  }));
  WEFT_RETURN_IF_ERROR(items(json, file, "times", [&](JsonFields& item) {
    constexpr double kMostSeconds = 1e6, kMostBytes = 1e16;
    MeasuredTime& time = machine.times.emplace_back();
    time.model = item.string("model");
    time.layout = item.string("layout");
    time.phase = item.one_of("phase", {"prefill", "decode"}) == "decode" ? PlanPhase::kDecode : PlanPhase::kPrefill;
    time.tokens = item.integer("tokens", 1);
    time.depth = item.integer("depth", 0);
    time.seconds = item.number("seconds", 1e-9, kMostSeconds);
    time.read_bytes_per_s = item.number("read_bytes_per_s", 1, kMostBytes);
    time.runs = item.integer("runs", 1);
    if (item.has("not_modelled")) time.not_modelled = item.string("not_modelled");
    const auto known = [&](const MeasuredMachine::Model& model) { return model.name == time.model; };
    if (item.status().ok() && std::none_of(machine.models.begin(), machine.models.end(), known)) {
      item.fail("model", fmt::format(": '{}' is none of the models", time.model));
    }
  }));
  return machine;
}

std::vector<fs::path> measured_folders(const std::vector<fs::path>& folders) {
  std::map<std::string, fs::path> found;
  for (const fs::path& folder : folders) {
    std::error_code error;  // a folder that is not there has none
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (fs::is_regular_file(it->path() / kFile)) found.emplace(it->path().filename().string(), it->path());
    }
  }
  std::vector<fs::path> all;
  for (const auto& [name, path] : found) all.push_back(path);
  return all;
}

Result<std::vector<ValidationLine>> validate_measured(const fs::path& folder, const OpenModel& open) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, read_text_file(folder / kFile));
  WEFT_ASSIGN_OR_RETURN(const MeasuredMachine machine, parse_measured_times(text, (folder / kFile).string()));
  WEFT_ASSIGN_OR_RETURN(const Planned planned, Planned::open(folder, machine, open));
  std::vector<ValidationLine> lines;
  for (const MeasuredTime& time : machine.times) {
    WEFT_ASSIGN_OR_RETURN(const double then, planned.seconds(time, time.read_bytes_per_s));
    WEFT_ASSIGN_OR_RETURN(const double calibrated, planned.seconds(time, 0));
    constexpr double kMilli = 1e3, kGiga = 1e9, kPercent = 100;
    ValidationLine line;
    line.kind = FigureKind::kMeasured;
    line.what = fmt::format("{}, {}, {}: {}{} tokens{}", folder.filename().string(), time.model, time.layout,
                            time.phase == PlanPhase::kPrefill ? "a prompt of " : "", time.tokens,
                            time.depth > 0 ? fmt::format(" after {}", time.depth) : "");
    line.unit = "ms";
    line.source = machine.source;
    line.published = kMilli * time.seconds;
    line.planned = kMilli * then;
    line.tolerance = kTolerance;
    line.not_modelled = time.not_modelled;
    line.remark = fmt::format("median of {}; memory {:.1f} GB/s; with the {:.1f} GB/s of the calibration {:+.1f} %",
                              time.runs, time.read_bytes_per_s / kGiga, planned.calibrated_bytes_per_s() / kGiga,
                              kPercent * (calibrated / time.seconds - 1));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace weft
