// weft plan: what a model needs on devices in a layout, and how fast it is there.
#include "cli/command.h"
#include "cli/plan_options.h"
#include "cli/plan_search.h"
#include "cli/unused_options.h"
#include "io/safetensors_writer.h"
#include "planner/measured_times.h"
#include "planner/report.h"
#include "planner/report_html.h"
#include "planner/validation.h"

namespace weft {
namespace {

Status verdict(const Plan& plan) {
  if (plan.fits) return {};
  return check_failed(fmt::format("layout {} needs {:.2f} GiB a device, {} has {:.2f}", to_string(plan.request.layout),
                                  static_cast<double>(plan.needed_bytes()) / (1 << 30), plan.request.device->name,
                                  static_cast<double>(plan.capacity_bytes) / (1 << 30)));
}

class PlanCommand : public Command {
 public:
  void declare(CLI::App& app) override {
    app_ = &app;
    declare_shared(app, false);
    declare_layout(app);
    declare_memory(app);
    app.add_flag("--validate", validate_, "every figure that is published or measured elsewhere, beside weft's");
    app.add_option("--html", html_, "the plan as one HTML page, beside what is printed")->check(some_text());
    app.require_subcommand(0, 1);
    search_ = plan_search_.declare(app);

    diff_ = app.add_subcommand(
        "diff", "two layouts side by side: weft plan diff MODEL LAYOUT[@ENGINE] LAYOUT[@ENGINE] --device D");
    declare_shared(*diff_, true);
    declare_memory(*diff_);
    diff_->add_option("A", a_, "layout, or layout@engine")->required();
    diff_->add_option("B", b_, "layout, or layout@engine")->required();

    trace_ = app.add_subcommand("trace", "timeline for ui.perfetto.dev: a process per rank, a track per stream");
    declare_shared(*trace_, true);
    declare_layout(*trace_);
    trace_->add_option("--out", out_, "file; default: stdout")->check(some_text());
    trace_->add_option("--ranks", trace_ranks_, "ranks that are written out")
        ->check(whole_number(1, 4096))
        ->capture_default_str();
  }

  Status run(Console& console) override {
    if (search_->parsed()) return plan_search_.run(console);
    if (validate_) return run_validation(console);
    for (const std::string* file : {&html_, &out_}) {
      if (!file->empty()) WEFT_RETURN_IF_ERROR(check_writable(*file));
    }
    WEFT_ASSIGN_OR_RETURN(PlanRequest request, plan_request(args_, console));
    if (diff_->parsed()) return run_diff(request, console);
    WEFT_ASSIGN_OR_RETURN(request.layout, plan_layout(args_.layout, args_.devices, args_.local_ranks));
    if (trace_->parsed()) return run_trace(request, console);
    PlanOptions options;
    options.times = !memory_only_;
    options.timeline = !html_.empty();
    WEFT_ASSIGN_OR_RETURN(const Plan plan, make_plan(request, options));
    if (!html_.empty()) {
      const std::string title =
          fmt::format("weft plan: {}, {} on {}", request.model_name, to_string(request.layout), request.device->name);
      WEFT_RETURN_IF_ERROR(write_report_html(html_, {title, &plan, nullptr}));
      console.note(fmt::format("{}: the report", html_));
    }
    if (console.json) {
      console.print_json(plan_json(plan));
    } else {
      console.print(plan_text(plan));
    }
    return verdict(plan);
  }

 private:
  void declare_shared(CLI::App& app, bool required) {
    CLI::Option* model =
        app.add_option("MODEL", args_.model.model_dir,
                       "model folder (config.json is enough), config file, or name of a shipped config");
    if (required) model->required();
    app.add_flag("--allow-unknown-config", args_.model.allow_unknown_config,
                 "config keys that weft does not know are no error");
    add_numeric_options(app, args_.model);
    add_plan_workload_options(app, args_);
    add_plan_device_options(app, args_);
  }
  void declare_layout(CLI::App& app) {
    app.add_option("--layout", args_.layout, "how the model is split over ranks (docs/layouts.md)")
        ->capture_default_str();
    app.add_option("--devices", args_.devices, "number of devices; default: what the layout says")
        ->check(whole_number(1));
  }
  void declare_memory(CLI::App& app) {
    app.add_flag("--memory", memory_only_, "memory alone: the device profile needs no speeds");
  }

  Status run_trace(const PlanRequest& request, Console& console) const {
    WEFT_ASSIGN_OR_RETURN(const Plan plan, make_plan(request, {.timeline = true}));
    const std::string text = plan_trace(plan, trace_ranks_);
    if (out_.empty()) {
      console.print(text);
      return {};
    }
    WEFT_RETURN_IF_ERROR(write_file(out_, text));
    console.note(fmt::format("{}: open it in ui.perfetto.dev", out_));
    if (console.json)
      console.print_json(
          {{"file", out_}, {"ranks", std::min(trace_ranks_, plan.ranks)}, {"unverified", plan.unverified}});
    return {};
  }

  Result<Plan> plan_of(PlanRequest request, const std::string& text) const {
    const size_t at = text.find('@');
    WEFT_ASSIGN_OR_RETURN(request.layout, plan_layout(text.substr(0, at), 0, args_.local_ranks));
    if (at != text.npos) {
      WEFT_ASSIGN_OR_RETURN(EngineProfile engine, load_engine_profile(text.substr(at + 1), engine_folders()));
      request.engine = std::make_shared<const EngineProfile>(std::move(engine));
    }
    return make_plan(request, {.times = !memory_only_});
  }

  Status run_diff(const PlanRequest& request, Console& console) const {
    WEFT_ASSIGN_OR_RETURN(const Plan a, plan_of(request, a_));
    WEFT_ASSIGN_OR_RETURN(const Plan b, plan_of(request, b_));
    if (console.json) {
      console.print_json(plan_diff_json(a, b));
    } else {
      console.print(plan_diff_text(a, b));
    }
    WEFT_RETURN_IF_ERROR(verdict(a));
    return verdict(b);
  }

  Status run_validation(Console& console) const {
    WEFT_RETURN_IF_ERROR(only_options(*app_, "weft plan --validate", {"--validate", "--json", "--quiet"}));
    const auto model_of = [](const std::string& name) -> Result<std::shared_ptr<const Model>> {
      WEFT_ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> checkpoint, open_location(name));
      WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, open_model(std::move(checkpoint), {}));
      return std::shared_ptr<const Model>(std::move(model));
    };
    const auto engine_of = [](const std::string& name) -> Result<std::shared_ptr<const EngineProfile>> {
      WEFT_ASSIGN_OR_RETURN(EngineProfile engine, load_engine_profile(name, engine_folders()));
      return std::make_shared<const EngineProfile>(std::move(engine));
    };
    WEFT_ASSIGN_OR_RETURN(std::vector<ValidationLine> lines, validate_published(model_of, engine_of));
    std::vector<std::filesystem::path> folders = device_folders();
    for (std::filesystem::path& folder : folders) folder /= "measured";
    for (const std::filesystem::path& folder : measured_folders(folders)) {
      WEFT_ASSIGN_OR_RETURN(const std::vector<ValidationLine> measured, validate_measured(folder, model_of));
      lines.insert(lines.end(), measured.begin(), measured.end());
    }
    if (console.json) {
      console.print_json(validation_json(lines));
    } else {
      console.print(validation_text(lines));
    }
    const auto bad = std::count_if(lines.begin(), lines.end(), [](const ValidationLine& line) { return !line.passes(); });
    return bad == 0 ? Status()
                    : check_failed(fmt::format("{} of {} figures are off by more than they may be", bad, lines.size()));
  }

  PlanArgs args_;
  bool memory_only_ = false, validate_ = false;
  std::string a_, b_, out_, html_;
  PlanSearch plan_search_;
  int64_t trace_ranks_ = 8;
  const CLI::App *app_ = nullptr, *search_ = nullptr;
  CLI::App *diff_ = nullptr, *trace_ = nullptr;
};

}  // namespace

CommandEntry plan_command() {
  return make_command<PlanCommand>(
      "plan", "plans a model on devices: memory, traffic, times",
      "  weft plan deepseek-v4-pro --layout tp8+ep8 --device h200-sxm --batch 16\n"
      "  weft plan deepseek-v4-flash --layout pcp8+ep8 --device h100-sxm --prompt 65536 --phase prefill --json\n"
      "  weft plan MODEL_DIR --layout tp2 --device this-machine.json --local-ranks 2 --mtp 1 --acceptance 0.8\n"
      "  weft plan diff deepseek-v4-pro tp8+ep8 dp8+ep8 --device h200-sxm\n"
      "  weft plan diff glm-5.1-w8a8 dp2tp16+ep32@tensorcast dp2tp16+sp+ep32@tensorcast --device ascend-910c-752t "
      "--memory\n"
      "  weft plan trace deepseek-v4-pro --layout tp8+ep8 --device h200-sxm --out trace.json\n"
      "  weft plan search deepseek-v4-flash --device h20-96g --devices 8,16 --ttft 2s --tpot 50ms\n"
      "  weft plan --validate\n");
}

}  // namespace weft
