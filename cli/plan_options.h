// The options that `weft plan` and its subcommands share, and the request that they make.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/model_location.h"
#include "planner/plan.h"

namespace weft {

// Folders of shipped device and engine profiles: beside the installed program, then the source tree.
std::vector<std::filesystem::path> device_folders();
std::vector<std::filesystem::path> engine_folders();

struct PlanArgs {
  ModelArgs model;  // MODEL, --dtype, --act-quant, --allow-unknown-config
  std::string layout = "tp1", device, engine = "weft", phase = "both", routing = "uniform", expert_load;
  std::vector<double> acceptance;
  int64_t devices = 0;  // 0: what the layout says
  int64_t prompt = 8192, gen = 512, batch = 16, cached = 0, chunk = 0, drafts = 0;
  double reserve_gib = 0, dp_imbalance = 1, memory_gb_per_s = 0;
  int local_ranks = 1;
  int threads = 0;  // 0: the cores, shared by the ranks of a device
  bool eager = false;
};

void add_plan_workload_options(CLI::App& app,
                               PlanArgs& args);  // --prompt, --gen, --batch, ... without layout and devices
void add_plan_device_options(CLI::App& app,
                             PlanArgs& args);  // --device, --engine, --local-ranks, --threads, --eager, --reserve

// A request without its layout: the model is opened, the profiles are read. MODEL and --device must be given.
Result<PlanRequest> plan_request(const PlanArgs& args, Console& console);
// LAYOUT of `devices` ranks.
Result<Layout> plan_layout(const std::string& text, int64_t devices, int local_ranks);

}  // namespace weft
