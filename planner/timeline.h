// List schedule of a step: every stream of a rank (compute, comm, prefetch) runs its nodes in order, a node starts when its inputs
// are there and its stream is free; a prefetch starts when what stands before it is computed, as the executor starts it (where it
// stands is the layout's choice: graph/passes/hoist_prefetch.h). The makespan is the time of the step (planner.md 2.6).
#pragma once

#include <string>
#include <vector>

#include "planner/cost_model.h"
#include "planner/step_graph.h"

namespace weft {

struct TimelineEvent {
  std::string name;  // of the node's first output
  std::string_view op;
  Stream stream = Stream::kCompute;
  int64_t repeat = 1;   // layers that it stands for, ...
  double period_s = 0;  // ... one after the other, so far apart
  double start_s = 0, seconds = 0;
  OpCost cost;
};

struct Timeline {
  double makespan_s = 0;  // all layers
  double exposed_s = 0;   // of it, time in which no compute runs
  // Of the layers that the graph has, in order of start: of each the first, behind all that the layers before it stand for.
  std::vector<TimelineEvent> events;
};

struct TimelineOptions {
  bool streams = true;  // false: one node after another, as weft's executor runs them
  bool events = false;
};

// costs: by node. Layers that stand for others take, that many times, what lies between their start and the next layer's.
Timeline schedule(const StepGraph& step, const std::vector<OpCost>& costs, const TimelineOptions& options);

}  // namespace weft
