#include "cli/plan_search.h"

#include <thread>

#include "cli/interrupt.h"
#include "cli/number_options.h"
#include "cli/time_option.h"
#include "io/safetensors_writer.h"
#include "planner/report_html.h"
#include "planner/search_report.h"

namespace weft {

CLI::App* PlanSearch::declare(CLI::App& plan) {
  CLI::App* sub = plan.add_subcommand("search", "which layout serves a workload best, and why the others lose");
  CLI::App& app = *sub;
  app.add_option("MODEL", args_.model.model_dir,
                 "model folder (config.json is enough), config file, or name of a shipped config")
      ->required();
  app.add_flag("--allow-unknown-config", args_.model.allow_unknown_config,
               "config keys that weft does not know are no error");
  add_numeric_options(app, args_.model);
  const char* group = "Search";
  add_number_list(app, "--devices", devices_, 1, "numbers of devices to look at", 65536)->required()->group(group);
  app.add_option("--objective", objective_,
                 "throughput: most tokens/s of all devices; cost: of one device; latency: shortest answer")
      ->check(one_of({"throughput", "cost", "latency"}))
      ->capture_default_str()
      ->group(group);
  add_time_option(app, "--ttft", ttft_s_, "longest time to the first token, e.g. 2s (mean over the batch)")
      ->group(group);
  add_time_option(
      app, "--tpot", tpot_s_,
      "longest time between tokens, e.g. 50ms (prefills of other requests come in between where they share devices)")
      ->group(group);
  app.add_option("--mode", mode_,
                 "prefill and decode on the same devices (together), on instances of their own (apart), or any of both")
      ->check(one_of({"any", "together", "apart"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--choices", choices_, "which choices of layouts are varied (docs/search.md): the usual ones, or all")
      ->check(one_of({"usual", "all"}))
      ->capture_default_str()
      ->group(group);
  add_number_list(app, "--chunks", chunks_, 1, "rows of a prefill step to look at; default: that of --chunk")
      ->group(group);
  app.add_option("--max-batch", max_batch_, "most requests at a time of an instance")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  app.add_option("--jobs", jobs_, "threads of the search; default: as many as CPUs")
      ->check(whole_number(1, 1024))
      ->group(group);
  app.add_option("--html", html_, "report as one HTML page: Pareto plot, ranking, plan of the winner")
      ->check(some_text())
      ->group(group);
  add_plan_workload_options(app, args_);
  add_plan_device_options(app, args_);
  // What the search chooses.
  for (const char* chosen : {"--batch", "--phase"}) app.remove_option(app.get_option(chosen));
  app.get_option("--chunks")->excludes(app.get_option("--chunk"));
  return sub;
}

Status PlanSearch::run(Console& console) {
  SearchRequest request;
  request.ttft_s = ttft_s_;
  request.tpot_s = tpot_s_;
  if (!html_.empty()) WEFT_RETURN_IF_ERROR(check_writable(html_));
  WEFT_ASSIGN_OR_RETURN(request.plan, plan_request(args_, console));
  request.device_text = args_.device;
  request.engine_text = args_.engine;
  request.devices = devices_;
  request.objective = objective_ == "cost"      ? Objective::kCost
                      : objective_ == "latency" ? Objective::kLatency
                                                : Objective::kThroughput;
  request.together = mode_ != "apart";
  request.apart = mode_ != "together";
  request.breadth = choices_ == "all" ? SpaceBreadth::kAll : SpaceBreadth::kUsual;
  request.chunks = chunks_;
  request.max_batch = max_batch_;
  request.threads = jobs_ > 0 ? jobs_ : static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));

  InterruptGuard interrupt;
  SearchHooks hooks;
  hooks.progress = [&](int64_t done, int64_t total) {
    console.progress(fmt::format("{} of {} layouts", done, total));
    return !interrupt.pending();
  };
  WEFT_ASSIGN_OR_RETURN(const SearchResult result, search(request, hooks));
  console.progress("");
  if (!html_.empty()) {
    HtmlReport report{fmt::format("weft plan search: {} on {}", args_.model.model_dir, args_.device), nullptr, &result};
    Plan plan;
    if (result.winner) {
      const SearchPoint& point = result.winner->decode;
      PlanRequest winner = request.plan;
      winner.layout = point.layout;
      winner.phase = point.phase;
      winner.batch = point.batch;
      winner.chunk = point.chunk;
      PlanOptions options;
      options.timeline = true;
      WEFT_ASSIGN_OR_RETURN(plan, make_plan(winner, options));
      report.plan = &plan;
    }
    WEFT_RETURN_IF_ERROR(write_report_html(html_, report));
    console.note(fmt::format("{}: the report", html_));
  }
  if (console.json) {
    console.print_json(search_json(result));
  } else {
    console.print(search_text(result));
  }
  return result.winner ? Status() : check_failed("no layout fits and keeps the limits");
}

}  // namespace weft
