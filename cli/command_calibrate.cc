// weft calibrate: this machine as a device profile for the planner.
#include "base/clock.h"
#include "base/cpu.h"
#include "base/shown_text.h"
#include "cli/command.h"
#include "cli/rank_job.h"
#include "cli/unused_options.h"
#include "io/safetensors_writer.h"
#include "planner/calibrate.h"
#include "planner/comm_calibration.h"
#include "planner/device_profile.h"

namespace weft {
namespace {

class CalibrateCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    app_ = &app;
    app.add_option("--out", out_, "file for the profile; default: it is printed")->check(some_text());
    app.add_option("--profile", profile_,
                   "under mpirun: the profile of this machine whose collectives are measured anew, between processes");
    app.add_option("--isa", isa_, "instruction-set level; default: the one that weft run takes");
    app.add_option("--ranks", max_ranks_, "most ranks that share this machine")
        ->check(whole_number(1))
        ->capture_default_str();
  }

  Status run(Console& console) override {
    CalibrationOptions options;
    const std::optional<Isa> isa = isa_.empty() ? max_isa() : parse_isa(isa_);
    if (!isa || *isa > max_isa()) {
      return invalid_argument(fmt::format("--isa: expected a level up to {}, found '{}'", isa_name(max_isa()), shown(isa_)));
    }
    if (!profile_.empty() && console.job == nullptr) {
      return invalid_argument(
          "--profile: weft was not started by mpirun; without it everything is measured, into a new profile (leave "
          "--profile out)");
    }
    if (console.job != nullptr) {
      WEFT_RETURN_IF_ERROR(unused_options(*app_, {"--isa", "--ranks"},
                                          "under mpirun only collectives are measured, between its processes"));
    }
    if (!out_.empty()) WEFT_RETURN_IF_ERROR(check_writable(out_));  // before a minute of measuring
    options.isa = *isa;
    options.max_ranks = static_cast<int>(max_ranks_);
    const auto start = Clock::now();
    WEFT_ASSIGN_OR_RETURN(DeviceProfile profile,
                          console.job != nullptr ? over_mpi(console) : calibrate(options, [&](std::string_view what) {
                            console.progress(what);
                          }));
    console.progress("");
    const double seconds = seconds_since(start);
    if (!out_.empty()) profile.name = std::filesystem::path(out_).stem().string();
    const std::string text = device_profile_json(profile);
    WEFT_ASSIGN_OR_RETURN(const DeviceProfile check, parse_device_profile(text, out_.empty() ? "profile" : out_));
    WEFT_CHECK(check.missing.empty(), "a calibrated profile lacks '{}'", check.missing.front());
    if (out_.empty()) {
      console.print(text);
      return {};
    }
    WEFT_RETURN_IF_ERROR(write_file(out_, text));
    if (console.json) {
      console.print_json({{"file", out_},
                          {"seconds", seconds},
                          {"cores", profile.cores},
                          {"isa", profile.isa},
                          {"tables", profile.efficiency.size()}});
      return {};
    }
    console.print(fmt::format(
        "{} cores, {}: {:.1f} GB/s, {:.0f} GFLOP/s in F32; {} tables in {:.0f} s\nweft plan MODEL --device {}\n",
        profile.cores, profile.isa, profile.memory_bytes_per_s->value * 1e-9,
        profile.matrix_flops_per_s.at(DType::kF32).value * 1e-9, profile.efficiency.size(), seconds, out_));
    return {};
  }

 private:
  // What processes of this machine have in common with threads is in the profile already.
  Result<DeviceProfile> over_mpi(Console& console) const {
    RankJob& job = *console.job;
    const char* usage =
        "calibrate this machine without mpirun first, then: mpirun -n 2 weft calibrate --profile machine.json --out "
        "machine-mpi.json";
    if (profile_.empty()) {
      return invalid_argument(
          fmt::format("weft calibrate: under mpirun only collectives are measured, into the profile of --profile, "
                      "which is missing; {}",
                      usage));
    }
    if (job.size() < 2 || job.local_ranks() != job.size()) {
      return invalid_argument(fmt::format(
          "weft calibrate: expected 2 or more processes on one host, found {} of which {} are on this one; {}",
          job.size(), job.local_ranks(), usage));
    }
    WEFT_ASSIGN_OR_RETURN(DeviceProfile profile, load_device_profile(profile_, {}));
    if (!profile.is_cpu())
      return invalid_argument(
          fmt::format("{}: expected the profile of a CPU machine by weft calibrate; {}", profile_, usage));
    console.progress(fmt::format("collectives of {} processes", job.size()));
    WEFT_ASSIGN_OR_RETURN(const CollectiveTimes times, job.measure_collectives());
    std::erase_if(profile.links, [](const Link& link) { return link.kind == LinkKind::kHostMemory; });
    WEFT_RETURN_IF_ERROR(add_collectives(times, job.size(), std::max(profile.cores / job.size(), 1),
                                         "weft calibrate, ranks as processes of one MPI job", profile));
    return profile;
  }

  const CLI::App* app_ = nullptr;
  std::string out_, isa_, profile_;
  int64_t max_ranks_ = 2;
};

constexpr const char* kExamples =
    "  weft calibrate --out machine.json\n  weft plan MODEL_DIR --device machine.json\n"
    "  mpirun -n 2 weft calibrate --profile machine.json --out machine-mpi.json\n";

}  // namespace

CommandEntry calibrate_command() {
  return make_command<CalibrateCommand>("calibrate", "measures this machine into a device profile for weft plan",
                                        kExamples);
}

}  // namespace weft
