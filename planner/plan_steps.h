// Times and traffic of the steps of a plan, stage by stage.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "planner/plan.h"
#include "planner/plan_store.h"
#include "planner/workload.h"

namespace weft {

class StepPlanner {
 public:
  // Borrowed. cost: null: traffic alone. like: by stage, the first one that is the same in all but the numbers of its
  // layers.
  struct Setup {
    const PlanRequest& request;
    const PlanOptions& options;
    const StepSetting& setting;
    const Mesh& mesh;
    const CostModel* cost = nullptr;
    std::span<const int> like;
    std::span<const int64_t> begins;  // by stage: its first layer; then the number of layers
    std::span<const RankLedger> ledger;
    PlanStore& store;
  };
  explicit StepPlanner(const Setup& setup);

  Result<StepPlan> plan(const WorkStep& work);
  FigureMarks unverified() const { return unverified_; }  // of all steps so far

 private:
  using GroupShapes = std::array<GroupShape, kNumMeshAxes>;
  struct Place {
    int rank = 0;
    RowSets rows;
  };

  int like(int stage) const;
  bool runs(const WorkStep& work, int stage) const;
  RankContext context_of(int rank) const;
  GroupShapes group_shapes(int rank) const;
  Routing routing() const;
  double working_set(int stage) const;
  Result<Place> slowest_rank(const WorkStep& work, int stage) const;
  std::string time_key(const WorkStep& work, int stage) const;
  Result<StepTimes> graph_times(const WorkStep& work, int stage);
  Result<StepTimes> make_stage(const WorkStep& work, int stage);
  bool measured(const Node& node) const;
  Result<OpCost> node_cost(const Graph& graph, const Node& node, int stage, const CostEnv& env) const;
  Status cost_nodes(const WorkStep& work, const Place& place, const StepGraph& step, StepTimes& times);
  Result<CollectiveCost> message_cost(const TrafficLine& line, int rank) const;
  void add_message(StagePlan& stage, const TrafficLine& line, std::string_view name, const CollectiveCost& cost);
  Result<double> send_values(std::span<const int64_t> sent_bytes, int64_t micro_batches, StagePlan& stage);
  Result<double> share_logits(const WorkStep& work, std::vector<StagePlan>& stages);

  const PlanRequest& request_;
  const PlanOptions& options_;
  const StepSetting& setting_;
  const Layout& layout_;
  const Mesh& mesh_;
  const CostModel* cost_;
  std::vector<int> like_;  // by stage: the same, and with links of the same kinds between its ranks
  std::span<const int64_t> begins_;
  std::span<const RankLedger> ledger_;
  PlanStore& store_;
  FigureMarks unverified_ = 0;
};

}  // namespace weft
