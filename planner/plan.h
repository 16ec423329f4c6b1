// A plan: whether a model fits on devices in a layout, where the bytes go, what is sent, and how long steps take.
//
// It reads the graphs that the executor runs (planner/step_graph.h) and the memory plan of the executor; nothing here computes a
// shape or a byte count. No weights are allocated or read.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "planner/cost_model.h"
#include "planner/memory_ledger.h"
#include "planner/plan_request.h"
#include "planner/service.h"
#include "planner/timeline.h"
#include "planner/traffic.h"

namespace weft {

// A kind of node in a step: all nodes of the same place in equal layers.
struct PlanOp {
  std::string name;  // "attn.wq_a" of a layer, or the value's name outside of layers
  std::string op;    // "linear"
  Stream stream = Stream::kCompute;
  int64_t calls = 0;  // in one step, all layers of the stage
  OpCost cost;        // sums over all calls
};

// One kind of step on the slowest rank of a stage.
struct StagePlan {
  int rank = 0;  // in the world
  // Of one micro-batch; the hand-over is to the next stage.
  double seconds = 0, exposed_s = 0, hand_over_s = 0;
  // Of the whole step, all micro-batches, with what the runtime sends.
  double compute_s = 0, memory_s = 0, network_s = 0, launch_s = 0;  // of all nodes, by binding resource
  std::array<double, 3> source_s{};                                 // by CostSource
  std::vector<PlanOp> ops;                                          // most seconds first
  std::vector<TrafficLine> traffic;
  Timeline timeline;  // events only when asked for
};

struct StepPlan {
  std::string name;  // "prefill", "decode", "draft"
  int64_t rows = 0;  // of the whole step, all data-parallel groups
  int64_t requests = 0;
  int64_t context = 0;  // tokens in the caches at its end, on average
  int64_t times = 1;    // steps like this one for the whole batch (prefill chunks), or for one decode step (drafts)
  int64_t micro_batches = 1;
  double seconds = 0;   // through all stages, micro-batches and logits included
  double logits_s = 0;  // of it, until every rank has the logits
  double bubble = 0;    // pipeline: share of time in which a stage waits
  std::vector<StagePlan> stages;
};

struct Plan {
  PlanRequest request;
  bool fits = false;
  int64_t capacity_bytes = 0;      // of one device, before the reserve; 0: the profile does not say
  std::vector<RankLedger> ledger;  // by pipeline stage
  int worst_stage = 0;
  int64_t ranks = 1, devices = 1;
  int64_t max_batch = 0;  // most requests that fit at this context, in data-parallel groups of equal size; 0: none
  int64_t chunk = 0;      // rows of a prefill step at most, all data-parallel groups

  std::vector<StepPlan> prefill;         // chunks that were costed, first to last (times: how many each stands for)
  StepPlan decode;                       // at the mean context of the answers; rows 0: none
  std::vector<StepPlan> drafts;          // draft passes of one decode step, in order
  std::vector<StepPlan> prefill_drafts;  // of each of `prefill`; empty without drafts
  double prefill_all_s = 0;              // of the whole batch
  double decode_step_s = 0;              // with its drafts
  bool has_times = false;                // PlanOptions::times
  double tokens_per_step = 1;
  ServiceResult service;

  // What rests on figures that nobody verified, and the names of those of device and engine.
  bool memory_unverified = false, times_unverified = false;
  std::vector<std::string> unverified;
  std::vector<std::string> notes;
  double planning_s = 0;

  // The prefill step of most rows, the last one of those: the one to show. Null: there is none.
  const StepPlan* main_prefill() const;
  int64_t needed_bytes() const { return ledger[static_cast<size_t>(worst_stage)].total() * request.local_ranks; }
};

class PlanStore;

struct PlanOptions {
  bool times = true;      // false: memory alone
  bool ops = true;        // op tables, and weights by tensor
  bool timeline = false;  // events of the schedule
  bool max_batch = true;
  bool fitting_only = false;   // memory alone for what does not fit
  PlanStore* store = nullptr;  // what plans of the same search share; borrowed
};

// Errors: the request (check_request), the model's contract for the layout, with times: figures that the device profile lacks. A
// plan that does not fit is no error.
Result<Plan> make_plan(const PlanRequest& request, const PlanOptions& options = {});

}  // namespace weft
