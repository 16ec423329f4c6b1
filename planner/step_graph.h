// The graph of one step as the ranks of one pipeline stage run it: built by the same code as the executor's, in which few layers
// stand for all equal ones, so that the cost grows with the number of distinct layers.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "graph/memory_plan.h"
#include "graph/row_sets.h"
#include "models/layout_graph.h"

namespace weft {

struct StepKey {
  GraphKind kind = GraphKind::kTrunk;
  StepPhase phase = StepPhase::kPrefill;
  int64_t tokens = 1, logits = 1;  // rows that the graph has room for
  int stage = 0;
  std::array<int64_t, kNumRowSets> rows_of_set{};  // GraphOptions::rows_of_set

  bool operator==(const StepKey&) const = default;
};

struct StepGraph {
  StepKey key;
  CacheCapacity cache;                      // that it was built with
  Graph graph;
  std::vector<std::string> received, sent;  // of the neighbouring stages
  std::vector<int64_t> node_repeat;         // by node: nodes of the whole model that it stands for
  std::vector<int64_t> value_repeat;        // by value: weights and states that it stands for; 1 for all others
  MemoryPlan memory;                        // of the whole graph: arena and fullest are exact; by value as in `graph`

  int64_t num_nodes() const;                // of the whole model
};

// What decides how graphs are built besides the step.
struct StepSetting {
  const Model* model = nullptr;
  NumericMode mode;
  Layout layout;
  CacheCapacity cache;
  int threads = 1;        // of one rank: scratch
  bool expanded = false;  // every layer in the graph: the executor's own
  bool canonical_sums = true;  // GraphOptions::canonical_sums
};

// Errors: the model's contract, and what cannot be split.
Result<StepGraph> build_step(const StepSetting& setting, const StepKey& key);

}  // namespace weft
