#include "models/layout_graph.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include <fmt/format.h>

#include "base/int_math.h"
#include "comm/bytes.h"
#include "graph/ops/linear_op.h"
#include "graph/passes/hoist_prefetch.h"
#include "graph/passes/shard.h"

namespace weft {
namespace {

bool splits_queries_over_tp(const Layout& layout, StepPhase phase) {
  const auto split = query_split(layout, phase);
  return split && split->axis == MeshAxis::kTp;
}

bool splits_rows_over_pcp(const Layout& layout, StepPhase phase) {
  const auto split = query_split(layout, phase);
  return split && split->axis == MeshAxis::kPcp;
}

RowSet deeper(RowSet set, bool tp) { return !tp ? set : set == RowSet::kPcp ? RowSet::kPcpTp : RowSet::kTp; }

bool owns_requests(const Layout& layout, StepPhase phase) {
  const auto split = query_split(layout, phase);
  return split && split->split == TokenSplit::kOwned;
}

bool full_queries(const Layout& layout) { return layout.queries == QueryRows::kFull && layout.mesh.tp > 1; }

struct RowChoice {
  RowSet residual, queries, selection, unique, writers = RowSet::kAll, keys = RowSet::kAll;
};

RowChoice choose_rows(const Layout& layout, StepPhase phase) {
  const bool tp = layout.mesh.tp > 1, pcp_rows = splits_rows_over_pcp(layout, phase);
  const RowSet outer = pcp_rows ? RowSet::kPcp : RowSet::kAll;
  RowChoice rows;
  const bool all_rows = full_queries(layout);
  rows.residual = deeper(outer, tp && layout.sequence_parallel && !(all_rows && phase == StepPhase::kDecode));
  rows.selection = splits_queries_over_tp(layout, phase) ? RowSet::kTp : outer;
  rows.queries = all_rows ? outer : rows.selection;
  if (owns_requests(layout, phase)) rows.writers = rows.residual = RowSet::kTp;
  rows.keys = layout.compressor == CompressorChoice::kSplit && rows.writers == RowSet::kAll ? rows.queries : rows.writers;
  rows.unique = deeper(pcp_rows || layout.mesh.pcp == 1 ? outer : RowSet::kPcp, tp);
  return rows;
}

}  // namespace

RowSetOptions row_set_options(const Layout& layout, StepPhase phase) {
  const RowChoice rows = choose_rows(layout, phase);
  const auto used = [&](MeshAxis axis) {
    const auto in = [&](RowSet set) {
      return with_row_set({}, set)[static_cast<size_t>(axis)] == Placement::sharded(0);
    };
    return in(rows.residual) || in(rows.selection) || (layout.mesh.ep > 1 && in(rows.unique));
  };
  RowSetOptions options;
  options.tp = used(MeshAxis::kTp);
  options.pcp = used(MeshAxis::kPcp);
  if (const auto split = query_split(layout, phase)) {
    (split->axis == MeshAxis::kTp ? options.tp_split : options.pcp_split) = split->split;
  }
  return options;
}

Placements weight_placement(const Layout& layout, StepPhase phase, WeightSplit split) {
  Placements placements;
  const auto place = [&](MeshAxis axis, int dim) { placements[static_cast<size_t>(axis)] = Placement::sharded(dim); };
  const bool tp = layout.mesh.tp > 1, heads = tp && !splits_queries_over_tp(layout, phase) && !full_queries(layout);
  const bool output = heads || (tp && layout.o_proj != OProjChoice::kReplicated);
  switch (split) {
    case WeightSplit::kWhole: break;
    case WeightSplit::kHeads:
      if (heads) place(MeshAxis::kTp, 0);
      break;
    case WeightSplit::kOutputGroups:
      if (output) place(MeshAxis::kTp, 0);
      break;
    case WeightSplit::kOutputInputs:
      if (output) place(MeshAxis::kTp, 1);
      break;
    case WeightSplit::kVocabulary:
      if (tp && layout.lm_head == WeightChoice::kSharded) place(MeshAxis::kTp, 0);
      break;
    case WeightSplit::kDenseInner:
      if (tp) place(MeshAxis::kTp, 0);
      break;
    case WeightSplit::kDenseInputs:
      if (tp) place(MeshAxis::kTp, 1);
      break;
    case WeightSplit::kSharedInner:
      if (tp && layout.shared == WeightChoice::kSharded) place(MeshAxis::kTp, 0);
      break;
    case WeightSplit::kSharedInputs:
      if (tp && layout.shared == WeightChoice::kSharded) place(MeshAxis::kTp, 1);
      break;
    case WeightSplit::kExperts:
      if (tp && layout.moe == MoeChoice::kTp) place(MeshAxis::kTp, 1);
      [[fallthrough]];
    case WeightSplit::kExpertScales:
      if (layout.mesh.ep > 1) place(MeshAxis::kEp, 0);
      break;
  }
  return placements;
}

std::string check_shares(std::string_view what, int64_t n, std::string_view axis, int64_t size) {
  const Status status = check_divisible(what, n, axis, size);
  return status.ok() ? "" : std::string(status.message());
}

std::string check_canonical_blocks(std::string_view what, int64_t inputs, int64_t tp) {
  const int64_t blocks = canonical_blocks(inputs);
  if (blocks % tp == 0) return "";
  return fmt::format("{} has {} inputs, a sum of {} canonical blocks, which tp {} does not divide; usable sizes: {}", what, inputs,
                     blocks, tp, usable_sizes(blocks));
}

std::string check_inner(std::string_view what, std::string_view back, int64_t inner, int64_t tp) {
  const std::string uneven = check_shares(what, inner, "tp", tp);
  return uneven.empty() ? check_canonical_blocks(back, inner, tp) : uneven;
}

std::string check_expert_shares(const Layout& layout, int64_t inner, int64_t hidden) {
  if (layout.moe != MoeChoice::kTp) return "";
  const std::string uneven = check_shares("moe_intermediate_size", inner, "tp", layout.mesh.tp);
  return uneven.empty() ? check_shares("hidden_size", hidden, "tp", layout.mesh.tp) : uneven;
}

Status check_executable(const Layout& layout) {
  WEFT_RETURN_IF_ERROR(check_layout(layout));
  static const LayoutRule<> kRules[] = {
      {"owned", [](const Layout& l) {
         return l.split == TokenSplit::kOwned && l.attention != AttentionChoice::kDsaCp
                    ? std::string("split=owned needs dsa_cp, whose prefill fills the caches of every rank: tpN+dsa_cp+owned")
                    : "";
       }},
  };
  return check_rules(std::span<const LayoutRule<>>(kRules), layout);
}

StepRoom step_room(const Layout& layout, StepPhase phase, const GraphOptions& options) {
  const int64_t tokens = options.shape.tokens, tp = layout.mesh.tp;
  const RowSetOptions split = row_set_options(layout, phase);
  const StepCapacity capacity{tokens, options.cache.num_slots, 1 + options.cache.draft_rows};
  const int64_t pcp_rows = local_row_capacity(split.pcp_split, capacity, layout.mesh.pcp);
  const int64_t tp_rows = local_row_capacity(split.tp_split, capacity, tp);
  StepRoom room;
  room.tokens = {tokens, tp_rows, pcp_rows, rows_per_rank(tp, pcp_rows)};
  static_assert(std::tuple_size_v<decltype(options.rows_of_set)> == kNumRowSets);
  for (size_t set = 0; set < kNumRowSets; ++set) {
    if (options.rows_of_set[set] > 0) room.tokens[set] = options.rows_of_set[set];
  }
  room.logits = options.shape.logits;
  room.num_slots = options.cache.num_slots;
  room.num_pages = options.cache.num_pages;
  return room;
}

namespace {

// graph: of one rank, on a mesh of which a stage has several.
Result<Graph> split_over_ranks(const Graph& graph, const Model& model, const GraphOptions& options, const Layout& layout, StepPhase phase,
                               bool verified) {
  const RowChoice rows = choose_rows(layout, phase);
  ShardOptions shard_options;
  shard_options.mesh = layout.mesh;
  shard_options.weight_placement = [&](const Value& weight) {
    return weight_placement(layout, phase, model.weight_split(weight.name));
  };
  shard_options.gathered = [&](const Value& weight) {
    const WeightSplit split = model.weight_split(weight.name);
    return layout.o_proj == OProjChoice::kStreamed && rows.queries == RowSet::kTp &&
           (split == WeightSplit::kOutputGroups || split == WeightSplit::kOutputInputs);
  };
  shard_options.canonical_sums = options.canonical_sums;
  shard_options.verified = verified;
  if (layout.mesh.dcp > 1) {
    std::set<std::string> appended;
    for (const CacheSpec& spec : model.caches(options.mode, options.cache)) {
      if (spec.kind == CacheKind::kAppend) appended.insert(spec.name);
    }
    shard_options.merge_partials = layout.dcp_mode == DcpMode::kMerge && phase == StepPhase::kDecode;
    shard_options.split_entries = [appended](const Value& state) { return appended.contains(state.name); };
  }
  shard_options.writers = rows.writers;
  shard_options.residual = rows.residual;
  shard_options.queries = rows.queries;
  shard_options.selection = rows.selection;
  shard_options.keys = rows.keys;
  shard_options.unique = rows.unique;
  if (layout.router == RouterChoice::kFull) shard_options.router = rows.residual;  // before they are sliced for the experts
  shard_options.capacity = step_room(layout, phase, options).tokens;
  if (!layout.prefetch) return shard(graph, shard_options);
  WEFT_ASSIGN_OR_RETURN(const Graph sharded, shard(graph, shard_options));
  return hoist_prefetch(sharded, verified);
}

}  // namespace

Result<Graph> build_for_layout(const Model& model, GraphKind kind, const GraphOptions& options, const Layout& layout,
                               StepPhase phase) {
  WEFT_ASSIGN_OR_RETURN(Graph graph, kind == GraphKind::kTrunk ? model.build(options) : model.build_draft(options));
  if (layout.mesh.stage() == 1) return graph;
  return split_over_ranks(graph, model, options, layout, phase, true);
}

Result<std::vector<int64_t>> stage_begins(const Model& model, int64_t stages) {
  const int64_t layers = model.num_layers();
  std::vector<int64_t> usable;  // besides 0
  for (int64_t layer = 1; layer < layers; ++layer) {
    if (model.begins_stage(layer)) usable.push_back(layer);
  }
  if (stages > static_cast<int64_t>(usable.size()) + 1) {
    return invalid_argument(fmt::format("{} pipeline stages for {} layers, of which {} may begin one", stages, layers, usable.size() + 1));
  }
  std::vector<int64_t> begins = {0};
  auto next = usable.begin();
  for (int64_t stage = 1; stage < stages; ++stage) {
    const int64_t wanted = ceil_div(stage * layers, stages);
    const auto end = usable.end() - (stages - 1 - stage);  // the later stages need one each
    const auto best = std::min_element(next, end, [&](int64_t a, int64_t b) { return std::abs(a - wanted) < std::abs(b - wanted); });
    begins.push_back(*best);
    next = best + 1;
  }
  return begins;
}

Result<StageGraph> stage_of(const Graph& whole, const Model& model, const GraphOptions& options, const Layout& layout, StepPhase phase, int stage,
                            bool verified) {
  Graph split;
  const bool splits = layout.mesh.stage() > 1;
  if (splits) {
    WEFT_ASSIGN_OR_RETURN(split, split_over_ranks(whole, model, options, layout, phase, verified));
  }
  if (layout.mesh.pp == 1) return StageGraph{splits ? std::move(split) : whole, {}, {}};
  WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> begins, stage_begins(model, layout.mesh.pp));
  return pipeline_stage(splits ? split : whole, stage, begins, verified);
}

Result<StageGraph> build_stage(const Model& model, GraphKind kind, const GraphOptions& options, const Layout& layout,
                               StepPhase phase, int stage) {
  WEFT_ASSIGN_OR_RETURN(const Graph whole, kind == GraphKind::kTrunk ? model.build(options) : model.build_draft(options));
  return stage_of(whole, model, options, layout, phase, stage, true);
}

}  // namespace weft
