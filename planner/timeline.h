// List schedule of a step: every stream of a rank (compute, comm, prefetch) runs its nodes in order, a node starts when its inputs
// are there and its stream is free. The makespan is the time of the step (planner.md 2.6).
#pragma once

#include <string>
#include <vector>

#include "planner/cost_model.h"
#include "planner/step_graph.h"

namespace weft {

struct TimelineEvent {
  int node = 0;           // of StepGraph::graph
  Stream stream = Stream::kCompute;
  double start_s = 0, seconds = 0;
};

struct Timeline {
  double makespan_s = 0;   // all layers
  double exposed_s = 0;    // time in which no compute runs
  std::vector<TimelineEvent> events;  // of the layers that the graph has, in order of start
};

// costs: by node. Repeated layers take the time that the steady period takes.
Timeline schedule(const StepGraph& step, const std::vector<OpCost>& costs);

}  // namespace weft
