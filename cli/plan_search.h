// weft plan search: a subcommand of `weft plan` (cli/command_plan.cc).
#pragma once

#include <CLI/CLI.hpp>

#include "cli/console.h"
#include "cli/plan_options.h"

namespace weft {

class PlanSearch {
 public:
  void declare(CLI::App& plan);
  bool parsed() const { return app_->parsed(); }
  Status run(Console& console);

 private:
  CLI::App* app_ = nullptr;
  PlanArgs args_;
  std::vector<int64_t> devices_, chunks_;
  std::string ttft_, tpot_, objective_ = "throughput", mode_ = "any", choices_ = "usual", html_;
  int64_t max_batch_ = 4096;
  int jobs_ = 0;
  bool json_ = false, quiet_ = false;
};

}  // namespace weft
