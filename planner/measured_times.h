// Times of steps that a calibrated machine took, kept with its profile: devices/measured/NAME/times.json. `weft plan
// --validate` lists them beside what is planned. docs/devices.md has the schema; tools/validate_time.sh measures.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "planner/plan_request.h"
#include "planner/validation.h"

namespace weft {

struct MeasuredTime {
  std::string model, layout;
  PlanPhase phase = PlanPhase::kPrefill;  // or kDecode
  int64_t tokens = 1, depth = 0;          // of one request, after so many
  double seconds = 0;                     // median of the runs
  double read_bytes_per_s = 0;            // of memory, beside them
  int64_t runs = 1;
  std::string not_modelled;  // why the plan may be further off than it promises; ""
};

struct MeasuredMachine {
  struct Model {
    std::string name, config, expert_load;  // files beside times.json; expert_load may be ""
  };
  std::string machine, source, profile;  // profile: a file beside times.json
  std::vector<Model> models;
  std::vector<MeasuredTime> times;
};

Result<MeasuredMachine> parse_measured_times(std::string_view text, std::string_view where);

// The folders in `folders` that have a times.json, by name.
std::vector<std::filesystem::path> measured_folders(const std::vector<std::filesystem::path>& folders);

// A line for each time of the folder: planned with its profile, and with memory as fast as it was then. What the
// calibration's memory gives stands in the remark.
Result<std::vector<ValidationLine>> validate_measured(const std::filesystem::path& folder, const OpenModel& open);

}  // namespace weft
