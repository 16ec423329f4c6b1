// --layout, --ranks, --transport: how a command spreads a model over ranks.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "sharding/layout.h"

namespace weft {

class RankJob;

struct RankArgs {
  std::string layout = "tp1";
  int ranks = 0;          // 0: what the layout says
  std::string transport;  // "threads", "mpi"; empty: mpi in a job of mpirun, else threads

  // The layout for the ranks that there are; checked before anything is read. `job`: of mpirun; null: none.
  Result<Layout> resolve(const RankJob* job) const;
  // Whether the ranks are the processes of the job.
  Result<bool> over_mpi(const RankJob* job) const;
};

void add_rank_options(CLI::App& app, RankArgs& args);
CLI::Option* add_transport_option(CLI::App& app, RankArgs& args);

}  // namespace weft
