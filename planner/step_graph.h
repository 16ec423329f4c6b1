// The graph of one step as the ranks of one pipeline stage run it: built by the same code as the executor's, in which few layers
// stand for all equal ones, so that the cost grows with the number of distinct layers.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph/memory_plan.h"
#include "graph/row_sets.h"
#include "models/distinct_layers.h"
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
  CacheCapacity cache;  // that it was built with
  Graph graph;
  std::vector<std::string> received, sent;  // of the neighbouring stages
  std::vector<int64_t> node_repeat;         // by node: nodes of the whole model that it stands for
  std::vector<int64_t> value_repeat;        // by value: weights and states that it stands for; 1 for all others
  std::vector<int32_t> alike;               // by node: the first one that is equal in all but names
  MemoryPlan memory;                        // of the whole graph: arena and fullest are exact; by value as in `graph`

  int64_t num_nodes() const;  // of the whole model
};

// What decides how graphs are built besides the step.
struct StepSetting {
  const Model* model = nullptr;
  NumericMode mode;
  Layout layout;
  CacheCapacity cache;
  int threads = 1;             // of one rank: scratch
  bool expanded = false;       // every layer in the graph: the executor's own
  bool canonical_sums = true;  // GraphOptions::canonical_sums
};

// Errors: the model's contract, and what cannot be split.
Result<StepGraph> build_step(const StepSetting& setting, const StepKey& key);

// The graph of one rank of the model (Model::build, build_draft), as something that keeps such graphs has it.
using WholeGraph = std::function<Result<std::shared_ptr<const Graph>>(GraphKind kind, const GraphOptions& options)>;

// A step that was built once and takes any size after that: the graph, and the memory plan, that building it anew would give.
class SizedStep {
 public:
  // The fewest periods of equal layers that there may be.
  static constexpr int64_t kFewestPeriods = 2;

  // periods: of every run of equal layers, those that are built (models/distinct_layers.h).
  static Result<SizedStep> build(const StepSetting& setting, const StepKey& key, int64_t periods,
                                 const WholeGraph& whole);

  const StepGraph& step() const { return step_; }
  // Rows, requests and pages; all else is as it was built.
  Status resize(const StepSetting& setting, const StepKey& key);
  // Whether the layers that were left out lie in the arena as those that are there. Else more periods are needed.
  bool settled() const;
  // By node: where the arena is fullest; "" where it holds nothing.
  std::string peak_op() const;

 private:
  // Layers in a row that stand for others: the run after them begins like them, or every other period is alike.
  struct Join {
    size_t next = 0, here = 0, before = 0;  // places in begins_; before == here: no period before
  };

  Status build_graph(const StepSetting& setting, const std::vector<LayerShare>& shares, const WholeGraph& whole);
  void plan();
  void find_joins(const StepSetting& setting, const std::vector<LayerShare>& shares, size_t own_begin, size_t own_end);
  bool lie_alike(size_t a, size_t b) const;

  StepGraph step_;
  SizeFreeFacts facts_;
  int threads_ = 1;
  bool complete_ = false;  // no layer was left out
  std::vector<Join> joins_;
  std::vector<std::vector<ValueId>> begins_;  // values that are live where a layer begins
};

}  // namespace weft
