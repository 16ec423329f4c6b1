// The graphs of the published DeepSeek-V4-Flash in its layouts: what each kind of layer moves, on which rows its parts work, how
// many bytes that is, and that layers repeat.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "comm/bytes.h"
#include "graph/passes/layer_repetition.h"
#include "graph/passes/pipeline.h"
#include "graph/text.h"
#include "models/layout_test_support.h"

namespace weft {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Layers of the published model: two of SWA, then CSA and HCA by turns.
constexpr int kSwa = 1, kCsa = 4, kHca = 5, kCsaHash = 2;

std::shared_ptr<const Model> flash() { return published("deepseek-v4-flash"); }

GraphOptions options_of(const Model& model, int64_t tokens) { return graph_options(model, tokens, 2048); }

Graph graph_of(const Model& model, const std::string& layout, int64_t tokens, StepPhase phase = StepPhase::kPrefill) {
  return trunk_of(model, options_of(model, tokens), layout, phase);
}

bool is_between_ranks(const Op& op) {
  return std::visit([](const auto& o) { return requires { o.axis; o.size; }; }, op);
}

Work work_of(const Graph& graph, const Node& node) {
  return std::visit([&](const auto& op) { return op.work(types_of(graph, node.in), types_of(graph, node.out), {1}); }, node.op);
}

// "op axis input, ..." of one layer, in order; names without the layer's.
std::string moves_of(const Graph& graph, const std::string& layer) {
  std::string moves;
  for (const Node& node : graph.nodes()) {
    if (node.region != layer || !is_between_ranks(node.op)) continue;
    std::string_view axis;
    std::visit(
        [&](const auto& op) {
          if constexpr (requires { op.axis; }) axis = mesh_axis_name(op.axis);
        },
        node.op);
    std::string name = graph.value(node.in[0]).name;
    if (name.starts_with(layer + ".")) name = name.substr(layer.size() + 1);
    moves += fmt::format("{}{} {} {}", moves.empty() ? "" : ", ", op_name(node.op), axis, name);
  }
  return moves;
}

struct LayoutCase {
  const char* layout;
  StepPhase phase;
  const char* moves;
};

const char* const kTp = "all_reduce tp wo_b.partial, all_reduce tp shared.w2.partial";
const char* const kTpSp =
    "all_gather tp attn_in, reduce_scatter tp wo_b.partial, all_gather tp ffn_in, reduce_scatter tp shared.w2.partial";

const LayoutCase kCases[] = {
    {"tp1", StepPhase::kPrefill, ""},
    {"tp2", StepPhase::kPrefill, kTp},
    {"tp8", StepPhase::kDecode, kTp},
    {"tp2+sp", StepPhase::kPrefill, kTpSp},
    {"tp2+dsa_cp", StepPhase::kPrefill,
     "slice_rows tp attn_in, heads_to_rows tp o_rope, all_reduce tp wo_b.partial, all_reduce tp shared.w2.partial"},
    // In decode steps the same weights are used by heads.
    {"tp2+dsa_cp", StepPhase::kDecode, kTp},
    {"tp2+dsa_cp+sp", StepPhase::kDecode, kTpSp},
    {"tp2+dsa_cp+sp", StepPhase::kPrefill,
     "all_gather tp attn_in, heads_to_rows tp o_rope, reduce_scatter tp wo_b.partial, all_gather tp ffn_in, "
     "reduce_scatter tp shared.w2.partial"},
    {"tp2+dsa_cp+sp+o_proj=replicated", StepPhase::kPrefill,
     "all_gather tp attn_in, all_gather tp ffn_in, reduce_scatter tp shared.w2.partial"},
    {"tp2+dsa_cp+o_proj=replicated", StepPhase::kPrefill, "slice_rows tp attn_in, all_gather tp wo_b, all_reduce tp shared.w2.partial"},
    {"tp2+dsa_cp+sp+o_proj=streamed", StepPhase::kPrefill,
     "all_gather tp attn_in, all_gather tp attn.wo_a, all_gather tp attn.wo_b, all_gather tp ffn_in, "
     "reduce_scatter tp shared.w2.partial"},
    {"tp2+dsa_cp+sp+o_proj=streamed+prefetch=on", StepPhase::kPrefill,
     "all_gather tp attn.wo_a, all_gather tp attn.wo_b, all_gather tp attn_in, all_gather tp ffn_in, "
     "reduce_scatter tp shared.w2.partial"},
    {"tp2+sp+moe=tp", StepPhase::kPrefill,
     "all_gather tp attn_in, reduce_scatter tp wo_b.partial, all_gather tp ffn_in, all_gather tp experts.up, "
     "columns_to_rows tp experts.down, reduce_scatter tp shared.w2.partial"},
    {"tp2+moe=tp", StepPhase::kPrefill,
     "all_reduce tp wo_b.partial, all_gather tp experts.up, all_gather tp experts.down, all_reduce tp shared.w2.partial"},
    {"tp2+dsa_cp+o_proj=streamed", StepPhase::kPrefill,
     "slice_rows tp attn_in, all_gather tp attn.wo_a, all_gather tp attn.wo_b, all_gather tp wo_b, all_reduce tp shared.w2.partial"},
    {"tp2+dsa_cp+sp+shared=replicated", StepPhase::kPrefill,
     "all_gather tp attn_in, heads_to_rows tp o_rope, reduce_scatter tp wo_b.partial"},
    {"pcp2", StepPhase::kPrefill, "all_gather pcp attn_in"},
    {"pcp2+split=zigzag", StepPhase::kPrefill, "all_gather pcp attn_in"},
    {"pcp2", StepPhase::kDecode, ""},  // decode steps are not split
    {"tp2pcp2", StepPhase::kPrefill, "all_gather pcp attn_in, all_reduce tp wo_b.partial, all_reduce tp shared.w2.partial"},
    {"tp2pcp2+sp", StepPhase::kPrefill,
     "all_gather tp attn_in, all_gather pcp attn_in.all_gather_tp, reduce_scatter tp wo_b.partial, all_gather tp ffn_in, "
     "reduce_scatter tp shared.w2.partial"},
    {"tp2+ep2", StepPhase::kPrefill,
     "all_reduce tp wo_b.partial, slice_rows tp ffn_in, expert_dispatch ep ffn_in.slice_rows_tp, expert_combine ep experts.slots, "
     "reduce_scatter tp shared.w2.partial, all_gather tp ffn_out"},
    {"tp2+sp+ep2", StepPhase::kPrefill,
     "all_gather tp attn_in, reduce_scatter tp wo_b.partial, expert_dispatch ep ffn_in, expert_combine ep experts.slots, "
     "all_gather tp ffn_in, reduce_scatter tp shared.w2.partial"},
    // The patterns' best case: one gather, one exchange for attention, the experts' own.
    {"tp2+sp+ep2+shared=replicated", StepPhase::kPrefill,
     "all_gather tp attn_in, reduce_scatter tp wo_b.partial, expert_dispatch ep ffn_in, expert_combine ep experts.slots"},
    {"pcp2+ep2", StepPhase::kPrefill, "all_gather pcp attn_in, expert_dispatch ep ffn_in, expert_combine ep experts.slots"},
};

TEST(DeepseekV4LayoutGraph, MovesOfALayerOfEachKind) {
  const auto model = flash();
  for (const LayoutCase& c : kCases) {
    const Graph graph = graph_of(*model, c.layout, 64, c.phase);
    for (const int layer : {0, kSwa, kCsaHash, kCsa, kHca, 42}) {
      EXPECT_EQ(moves_of(graph, fmt::format("layers.{}", layer)), c.moves) << c.layout << " layer " << layer;
    }
  }
}

TEST(DeepseekV4LayoutGraph, OneRankIsTheGraphOfNoLayout) {
  const auto model = flash();
  const auto whole = model->build(options_of(*model, 64));
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(to_text(graph_of(*model, "tp1", 64)), to_text(*whole));
}

// ---- Rows

TEST(DeepseekV4LayoutGraph, RowsOfEveryPart) {
  const auto model = flash();
  for (const LayoutCase& c : kCases) {
    SCOPED_TRACE(c.layout);
    const Layout layout = layout_of(c.layout);
    const Graph graph = graph_of(*model, c.layout, 64, c.phase);
    ASSERT_TRUE(verify(graph, layout.mesh).ok()) << verify(graph, layout.mesh).message();
    const auto split = query_split(layout, c.phase);
    const RowSet queries = !split ? RowSet::kAll : split->axis == MeshAxis::kTp ? RowSet::kTp : RowSet::kPcp;
    std::set<std::pair<ValueId, std::string>> moved;
    for (const Node& node : graph.nodes()) {
      const std::string name = node.out.empty() ? std::string(op_name(node.op)) : graph.value(node.out[0]).name;
      const auto rows = [&](size_t i) { return row_set(graph.value(node.in[i]).type.placement); };
      // Caches are written from all rows, on every rank.
      if (!std::visit([](const auto& op) { return op.mutates(); }, node.op).empty()) {
        EXPECT_EQ(rows(0), RowSet::kAll) << node.region << " " << op_name(node.op);
      }
      if (std::holds_alternative<SparseAttention>(node.op)) {
        EXPECT_EQ(rows(0), queries) << name;
        EXPECT_EQ(rows(1), RowSet::kAll) << name;
      }
      if (std::holds_alternative<IndexTopK>(node.op)) {
        EXPECT_EQ(rows(0), queries) << name;
        // Index heads are on every rank: scores are summed nowhere else.
        EXPECT_EQ(graph.value(node.in[0]).type.shape()[1], 64) << name;
      }
      // A row is dispatched by one rank.
      if (std::holds_alternative<ExpertDispatch>(node.op)) {
        const int64_t ranks = layout.mesh.tp * layout.mesh.pcp;
        EXPECT_EQ(graph.value(node.in[0]).type.shape()[0], 64 / ranks) << name;
        EXPECT_EQ(rows(1), rows(0)) << name;  // and so is its routing
      }
      if (!is_between_ranks(node.op) || node.region.empty()) continue;
      // Residual streams never cross ranks within a layer, and nothing is moved the same way twice.
      const Shape& shape = graph.value(node.in[0]).type.shape();
      EXPECT_FALSE(shape.rank() == 3 && shape[1] == 4) << name;
      if (node.in.size() == 1) {
        EXPECT_TRUE(moved.emplace(node.in[0], to_string(graph.value(node.out[0]).type)).second) << name << " a second time";
      }
    }
  }
}

// ---- Bytes

int64_t bytes_of_layer(const Graph& graph, const std::string& layer, std::string_view op = "") {
  int64_t bytes = 0;
  for (const Node& node : graph.nodes()) {
    if (node.region == layer && (op.empty() || op_name(node.op) == op)) bytes += work_of(graph, node).bytes_sent;
  }
  return bytes;
}

// By the formulas of comm/bytes.h, from the model's shapes alone.
TEST(DeepseekV4LayoutGraph, BytesOfALayer) {
  const auto model = flash();
  constexpr int64_t kTokens = 8192, kHidden = 4096, kRanks = 4, kRow = kHidden * 2;
  const std::string layer = "layers.4";
  const int64_t reduce = all_reduce_bytes(kRanks, kTokens, kHidden, 2), scatter = reduce_scatter_bytes(kRanks, kTokens, kHidden),
                gather = all_gather_bytes(kRanks, kTokens, kRow), heads = all_to_all_bytes(kRanks, kTokens / kRanks * 64 / kRanks * 512 * 2),
                weights = all_gather_bytes(kRanks, 8192, 4096) + all_to_all_bytes(kRanks, 4096 * 8192 / kRanks);
  ASSERT_EQ(gather, 48 * kMiB);
  ASSERT_EQ(heads, 96 * kMiB);
  ASSERT_EQ(scatter, 96 * kMiB);
  ASSERT_EQ(weights, 48 * kMiB);  // FP8
  const struct {
    const char* layout;
    int64_t attention, ffn;
  } cases[] = {
      {"tp4", reduce, reduce},
      {"tp4+sp", gather + scatter, gather + scatter},
      {"tp4+dsa_cp", heads + reduce, reduce},
      {"tp4+dsa_cp+sp", gather + heads + scatter, gather + scatter},
      {"tp4+dsa_cp+sp+shared=replicated", gather + heads + scatter, 0},
      {"tp4+dsa_cp+sp+o_proj=replicated+shared=replicated", gather, 0},
      {"tp4+dsa_cp+sp+o_proj=streamed+shared=replicated", gather + weights, 0},
      {"tp4+dsa_cp+o_proj=streamed", weights + gather, reduce},
      {"pcp4", gather, 0},
  };
  for (const auto& c : cases) EXPECT_EQ(bytes_of_layer(graph_of(*model, c.layout, kTokens), layer), c.attention + c.ffn) << c.layout;
  EXPECT_EQ(reduce, gather + scatter);  // so sequence parallelism moves as much as plain tp
}

// Owned decode steps with int8 codes: a byte for every feature and four for every group, where bf16 has two for every feature.
TEST(DeepseekV4LayoutGraph, CodesOfGroupsTravel) {
  const auto model = flash();
  constexpr int64_t kHeads = 64, kDim = 512, kGroups = 8;
  for (const int64_t ranks : {2, 4, 8}) {
    const std::string layout = fmt::format("tp{}+dsa_cp+owned", ranks), layer = "layers.4";
    GraphOptions options = options_of(*model, 64);
    const Graph plain = trunk_of(*model, options, layout, StepPhase::kDecode);
    options.mode.output_quant = OutputQuant::kInt8;
    const Graph codes = trunk_of(*model, options, layout, StepPhase::kDecode);
    const std::string moves = moves_of(codes, layer);
    EXPECT_TRUE(moves.starts_with("heads_to_rows tp o_quantise, reduce_scatter tp wo_b.partial")) << moves;
    const int64_t rows = codes.value(codes.find(layer + ".o_quantise")).type.shape()[0];
    EXPECT_EQ(bytes_of_layer(plain, layer, "heads_to_rows"), (ranks - 1) * rows * kHeads * kDim * 2 / ranks) << layout;
    EXPECT_EQ(bytes_of_layer(codes, layer, "heads_to_rows"), (ranks - 1) * rows * (kHeads * kDim + 4 * kGroups) / ranks) << layout;
  }
}

// Every collective of every layout, from the types of its own input and output.
TEST(DeepseekV4LayoutGraph, BytesOfEveryCollective) {
  const auto model = flash();
  for (const LayoutCase& c : kCases) {
    const Graph graph = graph_of(*model, c.layout, 50, c.phase);  // rows that no group divides evenly
    for (const Node& node : graph.nodes()) {
      if (!is_between_ranks(node.op) || node.in.empty()) continue;
      const TensorType &in = graph.value(node.in[0]).type.tensor, &out = graph.value(node.out[0]).type.tensor;
      const int64_t width = in.shape.num_elements() / in.shape[0], element = dtype_bits(in.dtype) / 8;
      int64_t want = 0;
      if (const auto* reduce = std::get_if<AllReduce>(&node.op)) {
        want = all_reduce_bytes(reduce->size, in.shape[0], width, dtype_bits(out.dtype) / 8);
      } else if (const auto* scatter = std::get_if<ReduceScatter>(&node.op)) {
        want = reduce_scatter_bytes(scatter->size, in.shape[0], width);
      } else if (const auto* gather = std::get_if<AllGather>(&node.op)) {
        want = gather->dim == 0 ? all_gather_bytes(gather->size, out.shape[0], width * element) : all_to_all_bytes(gather->size, in.bytes());
      } else if (const auto* heads = std::get_if<HeadsToRows>(&node.op)) {
        want = all_to_all_bytes(heads->size, in.bytes() / heads->size);
      } else if (const auto* columns = std::get_if<ColumnsToRows>(&node.op)) {
        want = all_to_all_bytes(columns->size, rows_per_rank(columns->size, in.shape[0]) * width * element);
      } else if (!std::holds_alternative<SliceRows>(node.op)) {
        continue;  // experts: an expectation (graph/ops/collective_test.cc counts what is sent)
      }
      EXPECT_EQ(work_of(graph, node).bytes_sent, want) << c.layout << " " << graph.value(node.out[0]).name;
    }
  }
}

// ---- Layers that repeat

// The model with its equal layers folded.
class FoldedModel final : public ForwardingModel {
 public:
  using ForwardingModel::ForwardingModel;
  Result<Graph> build(const GraphOptions& options) const override {
    WEFT_ASSIGN_OR_RETURN(const Graph whole, model().build(options));
    return fold_layers(whole).graph;
  }
};

// Op, attributes, shapes, dtypes, placements, bytes; without names.
std::multiset<std::string> nodes_of(const Graph& graph) {
  std::multiset<std::string> nodes;
  for (const Node& node : graph.nodes()) {
    Graph alone("");
    std::vector<ValueId> in;
    for (const ValueType& type : types_of(graph, node.in)) {
      in.push_back(*alone.add_value("in" + std::to_string(in.size()), type, ValueRole::kState));
    }
    EXPECT_TRUE(alone.add_node(node.op, in, "out", "", node.stream).ok());
    nodes.insert(fmt::format("{} sends {}", to_text(alone), work_of(graph, node).bytes_sent));
  }
  return nodes;
}

TEST(DeepseekV4LayoutGraph, ExpandUndoesFold) {
  const auto model = flash();
  const auto whole = model->build(options_of(*model, 64));
  ASSERT_TRUE(whole.ok());
  const FoldedGraph folded = fold_layers(*whole);
  ASSERT_EQ(folded.runs.size(), 2u);
  EXPECT_EQ(folded.runs[0].regions, (std::vector<std::string>{"layers.0"}));  // SWA, routed by token
  EXPECT_EQ(folded.runs[0].count(), 2);
  EXPECT_EQ(folded.runs[1].regions, (std::vector<std::string>{"layers.3", "layers.4"}));  // HCA and CSA by turns
  EXPECT_EQ(folded.runs[1].count(), 20);
  EXPECT_EQ(folded.runs[1].copies.back(), (std::vector<std::string>{"layers.41", "layers.42"}));
  EXPECT_TRUE(verify(folded.graph).ok()) << verify(folded.graph).message();
  EXPECT_LT(folded.graph.nodes().size() * 8, whole->nodes().size());
  const auto expanded = expand_layers(folded.graph, folded.runs);
  ASSERT_TRUE(expanded.ok()) << expanded.status().message();
  EXPECT_EQ(to_text(*expanded), to_text(*whole));
  EXPECT_TRUE(*expanded == *whole);
}

TEST(DeepseekV4LayoutGraph, PassesCommuteWithRepetition) {
  const auto model = flash();
  const FoldedModel folded_model(model);
  const auto runs = fold_layers(*model->build(options_of(*model, 64))).runs;
  std::vector<std::pair<std::string, StepPhase>> layouts;
  for (const LayoutCase& c : kCases) layouts.emplace_back(c.layout, c.phase);
  for (const char* layout : {"tp2dcp2", "tp2dcp2+dcp_mode=merge", "tp4+dsa_cp+owned", "tp2+dsa_cp+sp+compressor=split", "pcp2+compressor=split",
                             "tp4+dsa_cp+o_proj=streamed+prefetch=on", "dp2tp2+sp+ep4"}) {
    for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) layouts.emplace_back(layout, phase);
  }
  for (const OutputQuant output : {OutputQuant::kNone, OutputQuant::kInt8}) {
    for (const auto& [layout, phase] : layouts) {
      GraphOptions options = options_of(*model, 64);
      options.mode.output_quant = output;
      const Graph expect = trunk_of(*model, options, layout, phase);
      const auto expanded = expand_layers(trunk_of(folded_model, options, layout, phase), runs);
      ASSERT_TRUE(expanded.ok()) << layout << ": " << expanded.status().message();
      EXPECT_TRUE(verify(*expanded, layout_of(layout).mesh).ok()) << verify(*expanded, layout_of(layout).mesh).message();
      EXPECT_TRUE(nodes_of(*expanded) == nodes_of(expect)) << layout;
    }
  }
}

// Cuts between runs: a stage of the folded graph, expanded, is that stage of the whole one. A cut through a run divides its copies, so
// there it is the stage that folds and expands.
TEST(DeepseekV4LayoutGraph, StagesCommuteWithRepetition) {
  const auto model = flash();
  const FoldedModel folded_model(model);
  const auto runs = fold_layers(*model->build(options_of(*model, 64))).runs;
  const std::vector<int64_t> cuts[] = {{0, 2, 3}, {0, 1, 23}};
  const auto is_between_runs = [](int64_t layer) { return layer == 0 || layer == 2 || layer == 3; };
  for (const char* layout : {"tp1", "tp2+sp", "tp2+dsa_cp+owned"}) {
    for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
      const GraphOptions options = options_of(*model, 64);
      const Graph whole = trunk_of(*model, options, layout, phase), folded = trunk_of(folded_model, options, layout, phase);
      for (const std::vector<int64_t>& begins : cuts) {
        for (int stage = 0; stage < static_cast<int>(begins.size()); ++stage) {
          SCOPED_TRACE(fmt::format("{}, stage {} of {}", layout, stage, begins.size()));
          const auto expect = pipeline_stage(whole, stage, begins);
          ASSERT_TRUE(expect.ok()) << expect.status().message();
          const FoldedGraph again = fold_layers(expect->graph);
          const auto unfolded = expand_layers(again.graph, again.runs);
          ASSERT_TRUE(unfolded.ok()) << unfolded.status().message();
          EXPECT_TRUE(nodes_of(*unfolded) == nodes_of(expect->graph));
          if (!std::ranges::all_of(begins, is_between_runs)) continue;
          const auto part = pipeline_stage(folded, stage, begins);
          ASSERT_TRUE(part.ok()) << part.status().message();
          std::vector<LayerRun> own;
          for (const LayerRun& run : runs) {
            const auto& nodes = part->graph.nodes();
            if (std::ranges::any_of(nodes, [&](const Node& node) { return node.region == run.regions[0]; })) own.push_back(run);
          }
          const auto expanded = expand_layers(part->graph, own);
          ASSERT_TRUE(expanded.ok()) << expanded.status().message();
          EXPECT_TRUE(nodes_of(*expanded) == nodes_of(expect->graph));
          EXPECT_EQ(part->received.size(), expect->received.size());
          EXPECT_EQ(part->sent.size(), expect->sent.size());
        }
      }
    }
  }
}

// ---- Draft layer

TEST(DeepseekV4LayoutGraph, TheDraftLayerIsShardedLikeTheOthers) {
  const auto model = flash();
  ASSERT_EQ(model->num_draft_layers(), 1);
  for (const LayoutCase& c : kCases) {
    const auto graph = build_for_layout(*model, GraphKind::kDraft, options_of(*model, 64), layout_of(c.layout), c.phase);
    ASSERT_TRUE(graph.ok()) << c.layout << ": " << graph.status().message();
    EXPECT_TRUE(verify(*graph, layout_of(c.layout).mesh).ok());
    const std::string moves = moves_of(*graph, "mtp.0");
    EXPECT_NE(moves.find(c.moves), std::string::npos) << c.layout << ": " << moves;
  }
}

}  // namespace
}  // namespace weft
