// Time of a node on a device: what its op says of its work (graph/work.h), and what the profile says of the device.
//
//   t = max(matrix, vector, memory) + apart + launch     each at its efficiency; apart: arithmetic that cannot run beside (work.h)
//   t = collective + launch                              for an op between ranks
// The efficiency is that of the op's own table where the profile has one (of the whole sum; measured, interpolated), else those of
// the classes "matrix", "vector" and "memory". planner.md 2.
#pragma once

#include <array>

#include "graph/graph.h"
#include "graph/row_sets.h"
#include "planner/collective_cost.h"
#include "planner/device_profile.h"
#include "planner/efficiency.h"
#include "planner/engine_profile.h"

namespace weft {

// Where the time goes.
enum class Bound { kMatrix, kVector, kMemory, kNetwork, kLaunch };
std::string_view bound_name(Bound bound);  // "matrix", "vector", "memory", "network", "launch"

// Where a figure comes from, best first.
enum class CostSource { kMeasured, kInterpolated, kRoofline };
std::string_view cost_source_name(CostSource source);  // "measured", "interpolated", "roofline"

struct OpCost {
  double seconds = 0;
  // Shares that add up to `seconds`: launch, and all the rest for the resource that binds.
  double compute_s = 0, memory_s = 0, network_s = 0, launch_s = 0;
  // What each resource alone would take, at the efficiency of the op.
  double matrix_term_s = 0, vector_term_s = 0, memory_term_s = 0;
  Bound bound = Bound::kLaunch;
  CostSource source = CostSource::kRoofline;
  FigureMarks unverified = 0;
  double flops = 0, bytes = 0, bytes_sent = 0;
};

enum class LaunchMode { kEager, kGraph };

// What the cost of one rank's nodes depends on besides the graph.
struct CostEnv {
  int threads = 1;      // CPUs: of one rank
  int local_ranks = 1;  // CPUs: ranks on this device that work at the same time
  LaunchMode launch = LaunchMode::kGraph;
  Routing routing = {};                              // how rows pick experts
  const StepBatch* batch = nullptr;                  // null: every row at the end of the longest context
  const RowSets* row_sets = nullptr;                 // of the rank; may be null where no value is split over rows
  std::array<GroupShape, kNumMeshAxes> groups = {};  // by axis
  const EngineProfile* engine = nullptr;             // sums and gathers travel in its dtypes; null: as the graph says
  // Bytes that the step touches on this device (weights, caches, arena; all local ranks): what fits the cache stays there from
  // step to step. 0: nothing stays.
  double working_set_bytes = 0;
};

// What an op's work depends on, with the rows of its first input on this rank.
WorkEnv with_rows(WorkEnv env, TypeSpan in, const StepBatch& batch, const RowSets* row_sets);

class CostModel {
 public:
  // An error that names the figures where the profile lacks what every time needs.
  static Result<CostModel> create(DeviceProfile device);

  const DeviceProfile& device() const { return device_; }

  Result<OpCost> cost(const Op& op, TypeSpan in, TypeSpan out, const CostEnv& env) const;
  Result<OpCost> cost(const Graph& graph, const Node& node, const CostEnv& env) const;

  // A message between two ranks that are no op: the hand-over between pipeline stages, a cache that moves from P to D.
  Result<CollectiveCost> transfer(int from, int to, double bytes, int local_ranks = 1) const;

 private:
  explicit CostModel(DeviceProfile device);

  struct Rates;
  Rates rates(const CostEnv& env) const;
  // Peak of the products of these dtypes: of the wider one, or of the next wider one that the device has.
  const Figure& matrix_peak(DType weight, DType activation) const;
  const Figure& vector_peak(DType dtype) const;
  Result<OpCost> collective(const Op& op, const Work& work, const CostEnv& env) const;
  OpCost local(const Op& op, const Work& work, TypeSpan in, TypeSpan out, const CostEnv& env) const;

  DeviceProfile device_;
  EfficiencySet efficiency_;
};

}  // namespace weft
