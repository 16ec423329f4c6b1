// From a layout to the graph that its ranks run: which weights are split (by what they are, not by model), which rows each
// part of a step works on, and the pass that does it (graph/passes/shard.h).
#pragma once

#include "graph/passes/pipeline.h"
#include "graph/row_sets.h"
#include "models/model.h"
#include "sharding/layout.h"

namespace weft {

enum class GraphKind { kTrunk, kDraft };

// How the rows of steps of this phase are split.
RowSetOptions row_set_options(const Layout& layout, StepPhase phase);

// Where a weight of this kind lies in steps of this phase.
Placements weight_placement(const Layout& layout, StepPhase phase, WeightSplit split);

// The graph of one rank. Errors: the model's contract (check_layout of the model), and what cannot be split.
Result<Graph> build_for_layout(const Model& model, GraphKind kind, const GraphOptions& options, const Layout& layout,
                               StepPhase phase);

// The first layer of every pipeline stage, near equal shares. An error when fewer layers may begin one.
Result<std::vector<int64_t>> stage_begins(const Model& model, int64_t stages);

// The part of it that the ranks of one pipeline stage run.
Result<StageGraph> build_stage(const Model& model, GraphKind kind, const GraphOptions& options, const Layout& layout,
                               StepPhase phase, int stage);

// The sum over the inputs of a row-parallel layer is split in whole canonical blocks: what is wrong with that, or "".
std::string check_canonical_blocks(std::string_view what, int64_t inputs, int64_t tp);

// Rules that hold for every family: what weft can execute today.
Status check_executable(const Layout& layout);

}  // namespace weft
