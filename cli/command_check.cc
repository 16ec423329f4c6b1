// weft check: golden cases.
#include "base/shown_text.h"
#include "cli/command.h"
#include "cli/model_options.h"
#include "runtime/golden_case.h"

namespace weft {
namespace {

class CheckCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("CASE_DIR", dirs_, "folders with config.json, tensors, case.json and expected.safetensors")
        ->required();
    app.add_option("--step-tokens", step_tokens_, "tokens per step")->check(whole_number(1))->capture_default_str();
    add_machine_options(app, args_);
    add_rank_options(app, args_.ranks);
  }

  Status run(Console& console) override {
    GoldenOptions options;
    options.num_threads = args_.threads;
    options.isa = args_.isa_level();
    options.max_step_tokens = step_tokens_;
    WEFT_ASSIGN_OR_RETURN(options.layout, args_.ranks.resolve(console.job));
    nlohmann::ordered_json cases = nlohmann::ordered_json::array();
    int failed = 0, unreadable = 0;
    Status first_error;
    for (const std::string& dir : dirs_) {
      console.progress(fmt::format("checking {}", dir));
      options.make_engine = [&](const std::shared_ptr<const Model>& model, const EngineOptions& engine_options) {
        return make_engine(dir, false, model, engine_options, console);
      };
      const auto report = check_golden_case(dir, options);
      console.progress("");
      // One bad folder does not take the results of the others away.
      if (!report.ok()) {
        ++unreadable;
        if (first_error.ok()) first_error = report.status();
        cases.push_back({{"name", (std::filesystem::path(dir) / "").parent_path().filename().string()},
                         {"ok", false},
                         {"error", report.status().message()}});
        if (!console.json)
          console.print(
              fmt::format("{}: CANNOT BE CHECKED: {}\n", shown(dir), shown(report.status().message(), kMessageBytes)));
        continue;
      }
      failed += report->ok() ? 0 : 1;
      if (console.json) {
        cases.push_back(to_json(*report));
      } else {
        print(console, *report);
      }
    }
    if (console.json) {
      const size_t passed = dirs_.size() - static_cast<size_t>(failed + unreadable);
      console.print_json(
          nlohmann::ordered_json{{"cases", cases}, {"passed", passed}, {"failed", failed}, {"unreadable", unreadable}});
    }
    if (unreadable > 0) {
      if (dirs_.size() == 1) return first_error;
      return Status(first_error.code(),
                    fmt::format("{} of {} cases cannot be checked, {} are outside their tolerance; {}", unreadable,
                                dirs_.size(), failed, first_error.message()));
    }
    if (failed > 0)
      return check_failed(fmt::format("{} of {} cases are outside their tolerance", failed, dirs_.size()));
    return {};
  }

 private:
  static void print(Console& console, const GoldenReport& report) {
    console.print(
        fmt::format("{} ({}, {}): {}\n", report.name, report.family, report.dtype, report.ok() ? "ok" : "FAILED"));
    for (const GoldenQuantity& q : report.quantities) {
      const std::string limit =
          q.tolerance == 0 ? "must be 0" : fmt::format("{} {:.4g}", q.at_least ? "at least" : "at most", q.tolerance);
      console.print(fmt::format("  {:<40} {:>10.4g}  {:<18} {}{}\n", q.name, q.found, limit, q.ok ? "" : "OUTSIDE ",
                                q.found > 0 ? q.detail : ""));
    }
  }

  static nlohmann::ordered_json to_json(const GoldenReport& report) {
    nlohmann::ordered_json quantities = nlohmann::ordered_json::array();
    for (const GoldenQuantity& q : report.quantities) {
      quantities.push_back({{"name", q.name},
                            {"found", q.found},
                            {"tolerance", q.tolerance},
                            {"at_least", q.at_least},
                            {"ok", q.ok},
                            {"detail", q.detail}});
    }
    return {{"name", report.name},     {"description", report.description},
            {"family", report.family}, {"dtype", report.dtype},
            {"ok", report.ok()},       {"quantities", quantities}};
  }

  ModelArgs args_;
  std::vector<std::string> dirs_;
  int64_t step_tokens_ = 512;
};

}  // namespace

CommandEntry check_command() {
  return make_command<CheckCommand>(
      "check", "compares golden cases with an independent oracle",
      "  weft check testdata/golden/deepseek_v4/*\n  weft check --isa avx2 --step-tokens 7 CASE_DIR\n");
}

}  // namespace weft
