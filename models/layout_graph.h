// From a layout to the graph that its ranks run: which weights are split (by what they are, not by model), which rows each
// part of a step works on, and the pass that does it (graph/passes/shard.h).
#pragma once

#include "graph/passes/pipeline.h"
#include "graph/passes/resize.h"
#include "graph/row_sets.h"
#include "models/model.h"
#include "sharding/layout.h"

namespace weft {

enum class GraphKind { kTrunk, kDraft };

// How the rows of steps of this phase are split.
RowSetOptions row_set_options(const Layout& layout, StepPhase phase);

// Where a weight of this kind lies in steps of this phase.
Placements weight_placement(const Layout& layout, StepPhase phase, WeightSplit split);

// Room of the graph that these options ask for.
StepRoom step_room(const Layout& layout, StepPhase phase, const GraphOptions& options);

// The graph of one rank. Errors: the model's contract (check_layout of the model), and what cannot be split.
Result<Graph> build_for_layout(const Model& model, GraphKind kind, const GraphOptions& options, const Layout& layout,
                               StepPhase phase);

// The first layer of every pipeline stage, near equal shares. An error when fewer layers may begin one.
Result<std::vector<int64_t>> stage_begins(const Model& model, int64_t stages);

// The part of it that the ranks of one pipeline stage run.
Result<StageGraph> build_stage(const Model& model, GraphKind kind, const GraphOptions& options, const Layout& layout,
                               StepPhase phase, int stage);

// The same from the graph of one rank, Model::build or build_draft of these options. verified: as ShardOptions::verified.
Result<StageGraph> stage_of(const Graph& whole, const Model& model, const GraphOptions& options, const Layout& layout, StepPhase phase, int stage,
                            bool verified);

// What is wrong with a split, or "", for the rules of families.
// `size` ranks of `axis` take equal shares of n things.
std::string check_shares(std::string_view what, int64_t n, std::string_view axis, int64_t size);
// The sum over the inputs of a row-parallel layer is split in whole canonical blocks.
std::string check_canonical_blocks(std::string_view what, int64_t inputs, int64_t tp);
// Equal shares of inner features, and the sum over them in the layer `back`.
std::string check_inner(std::string_view what, std::string_view back, int64_t inner, int64_t tp);
// moe=tp: shares of the inner features of all experts, then of their outputs.
std::string check_expert_shares(const Layout& layout, int64_t inner, int64_t hidden);

// Rules that hold for every family: what weft can execute today.
Status check_executable(const Layout& layout);

}  // namespace weft
