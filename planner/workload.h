// The steps that serve a workload, as the engine cuts it: chunks of prompts, decode steps, draft steps, micro-batches of pipeline
// stages. What each of them computes is a StepBatch like that of a running engine.
#pragma once

#include <string>
#include <vector>

#include "models/engine_sizes.h"
#include "planner/plan_request.h"
#include "planner/step_graph.h"

namespace weft {

struct WorkStep {
  std::string name;  // "prefill", "decode", "draft"
  GraphKind kind = GraphKind::kTrunk;
  StepPhase phase = StepPhase::kPrefill;
  StepBatch batch;      // of one data-parallel group, of one micro-batch
  int64_t rows = 0;     // of all groups and micro-batches
  int64_t context = 0;  // tokens of a request in the caches at its end
  int64_t times = 1;    // steps like this one for the whole workload (decode: one)
  int64_t micro_batches = 1;
  int64_t requests = 0;  // of all groups and micro-batches
  int64_t logits = 0;    // wanted of one data-parallel group, all micro-batches

  int64_t group_rows() const { return batch.num_tokens(); }
  int64_t group_logits() const { return static_cast<int64_t>(batch.logit_rows.size()); }
};

// Prompts that are done together: the prefill steps from `first` on are those of all `times` such waves.
struct PromptWave {
  int64_t requests = 0;  // of one data-parallel group
  int64_t times = 1;     // one after the other
  size_t first = 0, steps = 0;
};

struct Workload {
  EngineSizes sizes;
  std::vector<WorkStep> prefill;         // chunks, first to last; `times` of neighbours that are alike stand in one
  std::vector<WorkStep> prefill_drafts;  // of the draft layer's caches, one for each of `prefill`; empty without drafts
  WorkStep decode;                       // at the mean context of the answers
  std::vector<WorkStep> drafts;          // of one decode step, in order
  std::vector<PromptWave> waves;         // how prompts are done, first to last
  int64_t chunk = 0;                     // most rows of a prefill step, all groups
  std::vector<StepKey> shapes;           // of all graphs that the engine builds for it (stage 0)
};

// The request is checked.
Workload make_workload(const PlanRequest& request);

}  // namespace weft
