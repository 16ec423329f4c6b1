// The processes that mpirun started. Rank 0 runs the command; the others wait for the models that it opens, and follow
// its engines silently until it ends. All of them end with the exit code of rank 0.
#pragma once

#include <memory>
#include <string>

#include "comm/mpi_comm.h"
#include "planner/comm_calibration.h"
#include "runtime/engine.h"

namespace weft {

class RankJob {
 public:
  // Null when mpirun did not start this process. The error is for one process to print: `is_first_process` says which.
  static Result<std::unique_ptr<RankJob>> join();
  // As the environment has it, also where MPI itself is missing.
  static bool is_first_process();

  int local_ranks() const { return local_ranks_; }  // processes of this host
  int rank() const { return world_->world().rank(); }
  int size() const { return world_->world().size(); }
  bool failed() const { return !world_->world().failure().ok(); }

  // Rank 0: an engine whose other ranks are the other processes. The layout has as many ranks as the job.
  Result<std::unique_ptr<Engine>> create_engine(const std::string& model_dir, bool allow_unknown_config,
                                                std::shared_ptr<const Model> model, const EngineOptions& options);
  // Rank 0: times of collectives between all processes.
  Result<CollectiveTimes> measure_collectives();
  // Rank 0, at the end: `code` becomes the exit code of all processes. Returns it. After a failure of the job it ends
  // here.
  int finish(int code);

  // All others: until rank 0 ends. The exit code.
  int follow();

 private:
  explicit RankJob(std::unique_ptr<MpiWorld> world) : world_(std::move(world)) {}
  Status look_around();                                // fills the fields below
  EngineOptions local(const EngineOptions& options) const;
  Result<int> follow_commands();

  std::unique_ptr<MpiWorld> world_;
  int local_ranks_ = 1, local_rank_ = 0;  // processes of this host
  int core_sharers_ = 1;                  // processes that may run on the same cores as this one
  // Of the last engine, for the next one.
  std::string model_dir_;
  bool allow_unknown_config_ = false;
  std::shared_ptr<const Model> model_;
};

}  // namespace weft
