// weft check: golden cases.
#include "cli/command.h"
#include "cli/model_options.h"
#include "runtime/golden_case.h"

namespace weft {
namespace {

class CheckCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    app.add_option("CASE_DIR", dirs_, "folders with config.json, tensors, case.json and expected.safetensors")->required();
    app.add_option("--step-tokens", step_tokens_, "tokens per step")->check(at_least(1));
    add_machine_options(app, args_);
  }

  Status run(Console& console) override {
    GoldenOptions options;
    options.num_threads = args_.threads;
    options.isa = args_.isa_level();
    options.max_step_tokens = step_tokens_;
    nlohmann::ordered_json cases = nlohmann::ordered_json::array();
    int failed = 0;
    for (const std::string& dir : dirs_) {
      console.progress(fmt::format("checking {}", dir));
      auto report = check_golden_case(dir, options);
      console.progress("");
      if (!report.ok()) return report.status();
      failed += report->ok() ? 0 : 1;
      if (console.json) {
        cases.push_back(to_json(*report));
      } else {
        print(console, *report);
      }
    }
    if (console.json) console.print_json(nlohmann::ordered_json{{"cases", cases}, {"passed", dirs_.size() - failed}, {"failed", failed}});
    if (failed > 0) return check_failed(fmt::format("{} of {} cases are outside their tolerance", failed, dirs_.size()));
    return {};
  }

 private:
  static void print(Console& console, const GoldenReport& report) {
    console.print(fmt::format("{} ({}, {}): {}\n", report.name, report.family, report.dtype, report.ok() ? "ok" : "FAILED"));
    for (const GoldenQuantity& q : report.quantities) {
      const std::string limit = q.tolerance == 0 ? "must be 0" : fmt::format("{} {:.4g}", q.at_least ? "at least" : "at most", q.tolerance);
      console.print(fmt::format("  {:<40} {:>10.4g}  {:<18} {}{}\n", q.name, q.found, limit, q.ok ? "" : "OUTSIDE ",
                                q.found > 0 ? q.detail : ""));
    }
  }

  static nlohmann::ordered_json to_json(const GoldenReport& report) {
    nlohmann::ordered_json quantities = nlohmann::ordered_json::array();
    for (const GoldenQuantity& q : report.quantities) {
      quantities.push_back({{"name", q.name}, {"found", q.found}, {"tolerance", q.tolerance}, {"at_least", q.at_least},
                            {"ok", q.ok}, {"detail", q.detail}});
    }
    return {{"name", report.name}, {"description", report.description}, {"family", report.family}, {"dtype", report.dtype},
            {"ok", report.ok()}, {"quantities", quantities}};
  }

  ModelArgs args_;
  std::vector<std::string> dirs_;
  int64_t step_tokens_ = 512;
};

}  // namespace

CommandEntry check_command() {
  return make_command<CheckCommand>("check", "compares golden cases with an independent oracle",
                                    "  weft check testdata/golden/deepseek_v4/*\n  weft check --isa avx2 --step-tokens 7 CASE_DIR\n");
}

}  // namespace weft
