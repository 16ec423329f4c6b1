// weft calibrate: this machine as a device profile for the planner.
#include <chrono>

#include "base/cpu.h"
#include "cli/command.h"
#include "io/safetensors_writer.h"
#include "planner/calibrate.h"

namespace weft {
namespace {

class CalibrateCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("--out", out_, "file for the profile; default: it is printed");
    app.add_option("--isa", isa_, "instruction-set level; default: the one that weft run takes");
    app.add_option("--ranks", max_ranks_, "most ranks that share this machine")->check(whole_number(1))->capture_default_str();
  }

  Status run(Console& console) override {
    CalibrationOptions options;
    const std::optional<Isa> isa = isa_.empty() ? max_isa() : parse_isa(isa_);
    if (!isa || *isa > max_isa()) {
      return invalid_argument(fmt::format("--isa: expected a level up to {}, found '{}'", isa_name(max_isa()), isa_));
    }
    if (console.job != nullptr) {
      return invalid_argument("weft calibrate measures ranks that are threads of one process: start it without mpirun");
    }
    options.isa = *isa;
    options.max_ranks = static_cast<int>(max_ranks_);
    const auto start = std::chrono::steady_clock::now();
    WEFT_ASSIGN_OR_RETURN(DeviceProfile profile, calibrate(options, [&](std::string_view what) { console.progress(what); }));
    console.progress("");
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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
      console.print_json({{"file", out_}, {"seconds", seconds}, {"cores", profile.cores}, {"isa", profile.isa}, {"tables", profile.efficiency.size()}});
      return {};
    }
    console.print(fmt::format("{} cores, {}: {:.1f} GB/s, {:.0f} GFLOP/s in F32; {} tables in {:.0f} s\nweft plan MODEL --device {}\n", profile.cores,
                              profile.isa, profile.memory_bytes_per_s->value * 1e-9, profile.matrix_flops_per_s.at(DType::kF32).value * 1e-9,
                              profile.efficiency.size(), seconds, out_));
    return {};
  }

 private:
  std::string out_, isa_;
  int64_t max_ranks_ = 2;
};

constexpr const char* kExamples = "  weft calibrate --out machine.json\n  weft plan MODEL_DIR --device machine.json\n";

}  // namespace

CommandEntry calibrate_command() {
  return make_command<CalibrateCommand>("calibrate", "measures this machine into a device profile for weft plan", kExamples);
}

}  // namespace weft
