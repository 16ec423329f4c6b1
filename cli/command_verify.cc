// weft verify: the bitwise promises, on one model.
#include "cli/command.h"
#include "cli/model_options.h"
#include "runtime/verify.h"

namespace weft {
namespace {

std::string_view outcome_name(VerifyLine::Outcome outcome) {
  switch (outcome) {
    case VerifyLine::Outcome::kPass: return "pass";
    case VerifyLine::Outcome::kFail: return "FAIL";
    case VerifyLine::Outcome::kSkipped: return "skipped";
  }
  return "";
}

std::string_view dtype_option(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

class VerifyCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    add_model_dir(app, args_);
    app.add_option("--dtype", dtype_, "activations and caches")
        ->check(one_of({"both", "f32", "bf16"}))
        ->capture_default_str();
    app.add_option("--act-quant", args_.act_quant,
                   "quantise activations; default: on with bf16 if the checkpoint's format has it")
        ->check(one_of({"on", "off"}));
    app.add_option("--tokens", options_.tokens, "length of the random sequence")
        ->check(whole_number(2))
        ->capture_default_str();
    app.add_option("--seed", options_.seed, "of the random tokens")
        ->check(whole_number(0, kMaxSeed))
        ->capture_default_str();
    add_machine_options(app, args_);
  }

  Status run(Console& console) override {
    if (dtype_ != "both") options_.dtypes = {dtype_ == "f32" ? DType::kF32 : DType::kBF16};
    if (!args_.act_quant.empty()) options_.act_quant = args_.act_quant == "on";
    options_.num_threads = args_.threads;
    options_.isa = args_.isa_level();
    WEFT_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model(args_, console));
    VerifyEvents events;
    events.on_start = [&](const std::string& name) { console.progress(name + " ..."); };
    events.on_line = [&](const VerifyLine& line) {
      if (console.json) return;
      console.print(fmt::format("{:<8}{:<5}{:<58}{:>7.2f} s{}{}\n", outcome_name(line.outcome),
                                dtype_option(line.dtype), line.name, line.seconds, line.detail.empty() ? "" : "  ",
                                line.detail));
    };
    WEFT_ASSIGN_OR_RETURN(const VerifyReport report, verify_model(loaded.model, options_, events));
    int64_t counts[3] = {};
    for (const VerifyLine& line : report.lines) ++counts[static_cast<int>(line.outcome)];
    const int64_t passed = counts[static_cast<int>(VerifyLine::Outcome::kPass)],
                  failed = counts[static_cast<int>(VerifyLine::Outcome::kFail)],
                  skipped = counts[static_cast<int>(VerifyLine::Outcome::kSkipped)];
    if (console.json) {
      nlohmann::ordered_json lines = nlohmann::ordered_json::array();
      for (const VerifyLine& line : report.lines) {
        lines.push_back(
            {{"dtype", std::string(dtype_option(line.dtype))},
             {"name", line.name},
             {"outcome", line.outcome == VerifyLine::Outcome::kFail ? "fail" : std::string(outcome_name(line.outcome))},
             {"detail", line.detail},
             {"seconds", line.seconds}});
      }
      console.print_json(nlohmann::ordered_json{{"model", args_.model_dir},
                                                {"tokens", report.tokens},
                                                {"seed", options_.seed},
                                                {"passed", passed},
                                                {"failed", failed},
                                                {"skipped", skipped},
                                                {"lines", lines}});
    } else {
      console.print(fmt::format("{} passed, {} failed, {} skipped ({} tokens, seed {})\n", passed, failed, skipped,
                                report.tokens, options_.seed));
    }
    return report.ok() ? Status() : check_failed(fmt::format("{} of {} lines differ", failed, report.lines.size()));
  }

 private:
  ModelArgs args_;
  VerifyOptions options_;
  std::string dtype_ = "both";
};

}  // namespace

CommandEntry verify_command() {
  return make_command<VerifyCommand>("verify", "checks that the bits do not depend on how the work is done",
                                     "  weft verify MODEL_DIR\n"
                                     "  weft verify MODEL_DIR --dtype f32 --tokens 600 --seed 7\n"
                                     "  weft verify MODEL_DIR --isa avx2 --json\n");
}

}  // namespace weft
