// Where every value of a graph lies, and how many bytes of each category a rank needs. The executor allocates exactly this; the
// planner reports exactly this.
//
// Step inputs, activations and the scratch of ops share one arena: each has an offset for the time in which it is live. Weights
// stay in the mapped files, derived ones have memory of their own; states lie in the caches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/graph.h"

namespace weft {

inline constexpr int64_t kArenaAlignment = 64;

// What fills the arena, in bytes of the values themselves.
struct ArenaUse {
  int64_t activations = 0;    // and inputs of the step
  int64_t communication = 0;  // what collectives receive, and what they need while they run
  int64_t scratch = 0;        // of all other ops

  int64_t total() const { return activations + communication + scratch; }
  bool operator==(const ArenaUse&) const = default;
};

struct MemoryPlan {
  static constexpr int64_t kNotInArena = -1;

  std::vector<int64_t> value_offset;    // by value; kNotInArena for weights and states
  std::vector<int64_t> scratch_offset;  // by node; 0 when scratch_bytes is 0
  std::vector<int64_t> scratch_bytes;   // by node
  int64_t arena_bytes = 0;              // peak of live inputs, activations and scratch, as laid out
  ArenaUse fullest;                     // at the node where most is live
  int fullest_node = -1;                // the first such node
  int64_t weight_bytes = 0;             // of all weight values that files hold
  int64_t derived_bytes = 0;            // of all derived weights
  int64_t state_bytes = 0;              // of all state values

  bool operator==(const MemoryPlan&) const = default;
};

// First fit by time: each value gets the lowest gap that is free from its node to its last use (results: to the end).
// alike: by node, an earlier one that needs as much scratch, or itself (graph/passes/resize.h); empty: every node is asked.
MemoryPlan plan_memory(const Graph& graph, const WorkEnv& env, std::span<const int32_t> alike = {});

}  // namespace weft
