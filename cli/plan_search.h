// weft plan search: a subcommand of `weft plan` (cli/command_plan.cc).
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

#include "cli/console.h"
#include "cli/plan_options.h"

namespace weft {

class PlanSearch {
 public:
  CLI::App* declare(CLI::App& plan);  // the subcommand
  Status run(Console& console);

 private:
  PlanArgs args_;
  std::vector<int64_t> devices_, chunks_;
  std::optional<double> ttft_s_, tpot_s_;
  std::string objective_ = "throughput", mode_ = "any", choices_ = "usual", html_;
  int64_t max_batch_ = 4096;
  int jobs_ = 0;
};

}  // namespace weft
