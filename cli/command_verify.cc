// weft verify: the bitwise promises, on one model.
#include "cli/command.h"
#include "cli/verify_layouts.h"
#include "runtime/layout_compare.h"

namespace weft {
namespace {

std::string_view dtype_option(DType dtype) { return dtype == DType::kF32 ? "f32" : "bf16"; }

class VerifyCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    add_model_dir(app, args_);
    app.add_option("--dtype", dtype_, "activations and caches")
        ->check(one_of({"both", "f32", "bf16"}))
        ->capture_default_str();
    add_quant_options(app, args_);
    app.add_option("--tokens", tokens_,
                   fmt::format("length of the random sequence; default: {}, of the longest prompt with --layouts: {}",
                               options_.tokens, LayoutMatrixOptions().tokens))
        ->check(whole_number(2));
    app.add_option("--seed", options_.seed, "of the random tokens")
        ->check(whole_number(0, kMaxSeed))
        ->capture_default_str();
    add_machine_options(app, args_);
    const char* group = "Ranks";
    auto* layout =
        app.add_option("--layout", args_.ranks.layout, "the layout of all runs")->capture_default_str()->group(group);
    app.add_option(
           "--layouts", matrix_.layouts,
           "compare layouts with one rank instead: all that the model takes, or a list, tp2,tp2+sp,... Over MPI: start "
           "with mpirun -n N, the layouts of N ranks are compared")
        ->excludes(layout)
        ->group(group);
    add_number_list(app, "--ranks", matrix_.ranks, 1,
                    "numbers of ranks; default: those of the layouts, with `all` 2 and 4", kMaxRanks)
        ->group(group);
    app.add_option("--transport", matrix_.transports, "threads, mpi (under mpirun), with --layouts also threads,mpi")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(one_of({"threads", "mpi"}))
        ->group(group);
  }

  Status run(Console& console) override {
    if (dtype_ != "both") options_.dtypes = {dtype_ == "f32" ? DType::kF32 : DType::kBF16};
    if (!args_.act_quant.empty()) options_.act_quant = args_.act_quant == "on";
    options_.output_quant = args_.output();
    options_.num_threads = args_.threads;
    options_.isa = args_.isa_level();
    if (matrix_.layouts.has_value()) return run_matrix(console);
    options_.tokens = tokens_.value_or(options_.tokens);
    if (matrix_.ranks.size() > 1 || matrix_.transports.size() > 1) {
      return invalid_argument("several --ranks or --transport need --layouts");
    }
    if (!matrix_.ranks.empty()) args_.ranks.ranks = static_cast<int>(matrix_.ranks[0]);
    if (!matrix_.transports.empty()) args_.ranks.transport = matrix_.transports[0];
    WEFT_ASSIGN_OR_RETURN(options_.layout, args_.ranks.resolve(console.job));
    if (tolerance_of(options_.layout, DType::kF32)) {
      // Its own bits depend on how steps are cut: there is nothing to compare but one rank, and that by tolerance.
      matrix_.layouts = to_string(options_.layout);
      matrix_.ranks.clear();
      console.note(fmt::format(
          "{} does not promise bits: its logits are compared with those of one rank, as by --layouts (docs/layouts.md)",
          *matrix_.layouts));
      return run_matrix(console);
    }
    WEFT_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model(args_, console));
    WEFT_RETURN_IF_ERROR(loaded.model->check_layout(options_.layout));
    options_.make_engine = [&](const EngineOptions& options) {
      return make_engine(args_.model_dir, args_.allow_unknown_config, loaded.model, options, console);
    };
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
                                                {"layout", to_string(options_.layout)},
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
  Status run_matrix(Console& console) {
    LayoutMatrixOptions matrix;
    matrix.dtypes = options_.dtypes;
    matrix.act_quant = options_.act_quant;
    matrix.output_quant = options_.output_quant;
    matrix.tokens = tokens_.value_or(matrix.tokens);
    matrix.seed = options_.seed;
    matrix.num_threads = args_.threads;
    matrix.isa = options_.isa;
    return run_layout_matrix(args_, matrix_, std::move(matrix), console);
  }

  ModelArgs args_;
  VerifyOptions options_;
  LayoutMatrixArgs matrix_;
  std::optional<int64_t> tokens_;
  std::string dtype_ = "both";
};

}  // namespace

CommandEntry verify_command() {
  return make_command<VerifyCommand>("verify", "checks that the bits do not depend on how the work is done",
                                     "  weft verify MODEL_DIR\n"
                                     "  weft verify MODEL_DIR --dtype f32 --tokens 600 --seed 7\n"
                                     "  weft verify MODEL_DIR --isa avx2 --json\n"
                                     "  weft verify MODEL_DIR --layouts all --ranks 2,4\n"
                                     "  mpirun -n 2 weft verify MODEL_DIR --layouts tp2,tp2+sp --dtype bf16\n");
}

}  // namespace weft
