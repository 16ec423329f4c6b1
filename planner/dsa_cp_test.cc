// DSA-CP in the form of msmodeling's proposal (sharding.md 5.1, 5.2, 7.2, 10): when an engine plans it, and the layout of tokens at
// every boundary of a layer, read off the graph that is planned.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include "models/layout_test_support.h"
#include "planner/engine_layout.h"
#include "planner/step_graph.h"
#include "planner/test_support.h"
#include "planner/traffic.h"

namespace weft {
namespace {

constexpr double kMiB = 1 << 20;

EngineProfile tensorcast() {
  auto engine = load_engine_profile("tensorcast", {WEFT_SOURCE_DIR "/devices/engines"});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : EngineProfile();
}

TEST(DsaStructure, IsReadOffTheGraph) {
  for (const char* name :
       {"glm-5", "glm-5.1-w8a8", "glm-5.2-fp8", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro"}) {
    const auto dsa = has_dsa_structure(*published(name));
    ASSERT_TRUE(dsa.ok()) << dsa.status().message();
    EXPECT_TRUE(*dsa) << name;
  }
  // Layers of the same model: window attention, selected entries, all entries.
  const auto model = published("deepseek-v4-flash");
  for (const auto& [layer, expected] : {std::pair<int64_t, bool>{0, false}, {2, true}, {3, false}}) {
    GraphOptions options = graph_options(*model, 4, 512);
    options.layers = {layer};
    const auto graph = model->build(options);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    EXPECT_EQ(has_dsa_structure(*graph), expected) << "layer " << layer;
  }
}

TEST(DsaStructure, SequenceParallelismBringsIt) {
  const EngineProfile engine = tensorcast(), weft;
  const auto glm = published("glm-5.1-w8a8");
  const struct {
    const char *layout, *planned;
  } cases[] = {
      {"dp2tp16+ep32", "dp2tp16+ep32"},
      {"dp2tp16+sp+ep32", "dp2tp16+dsa_cp+sp+ep32+o_proj=replicated+router=full+queries=full"},
      {"dp2tp16+dsa_cp+sp+ep32", "dp2tp16+dsa_cp+sp+ep32+o_proj=replicated+router=full+queries=full"},
      {"tp16+sp", "tp16+dsa_cp+sp+o_proj=replicated+queries=full"},
      {"dp2tp16+dsa_cp+ep32",
       "layout dp2tp16+dsa_cp+ep32: engine tensorcast has dsa_cp where sequence parallelism is on; add +sp, or leave "
       "dsa_cp out"},
  };
  for (const auto& c : cases) {
    const auto planned = engine_layout(engine, *glm, layout_of(c.layout));
    EXPECT_EQ(planned.ok() ? to_string(*planned) : std::string(planned.status().message()), c.planned) << c.layout;
    EXPECT_EQ(engine_layout(weft, *glm, layout_of(c.layout)).value(),
              layout_of(c.layout));  // choices of weft stay as they are
  }
}

StepSetting setting_of(const Model& model, const std::string& layout) {
  StepSetting setting;
  setting.model = &model;
  setting.mode = model.mode(DType::kBF16, std::nullopt);
  setting.layout = engine_layout(tensorcast(), model, layout_of(layout)).value();
  setting.cache = {.num_slots = 16, .num_pages = 64, .max_context = 4096};
  setting.canonical_sums = false;
  return setting;
}

// "name [shape]" of inputs, then of outputs, of the op that makes `value` in a layer; names without the layer's.
struct LayerView {
  const StepGraph& step;
  std::string layer;

  const Node* maker(const std::string& value) const {
    const ValueId id = step.graph.find(layer + "." + value);
    for (const Node& node : step.graph.nodes()) {
      for (const ValueId out : node.out) {
        if (out == id) return &node;
      }
    }
    return nullptr;
  }
  std::string shape(ValueId id) const {
    std::string text;
    for (const int64_t dim : step.graph.value(id).type.shape().dims())
      text += fmt::format("{}{}", text.empty() ? "" : ",", dim);
    return "[" + text + "]";
  }
  // "[256,6144] x [256,6144] -> [256,256]": the first input, the second where it is a weight, and the first output.
  std::string work(const std::string& value) const {
    const Node* node = maker(value);
    if (node == nullptr) return "none";
    std::string text = shape(node->in[0]);
    if (node->in.size() > 1 && is_weight(step.graph.value(node->in[1]).role)) text += " x " + shape(node->in[1]);
    return text + " -> " + shape(node->out[0]);
  }
};

struct Boundary {
  const char *value, *shapes;
};

// sharding.md 5.1: T = 4096, P = 16, 256 tokens a rank. Weights are [out, in]: the projection of 16384 inputs to 6144 outputs is
// [6144,16384].
constexpr Boundary kPrefill[] = {
    {"attn_in", "[256,6144] x [6144] -> [256,6144]"},        // residual and norm local
    {"attn_in.all_gather_tp", "[256,6144] -> [4096,6144]"},  // the one gather of hidden states: output 0 of the norm
    {"q_a", "[4096,6144] x [2048,6144] -> [4096,2048]"},     // attention on all tokens
    {"q_b", "[4096,2048] x [16384,2048] -> [4096,64,256]"},  // q_b whole: all heads
    {"q_latent", "[4096,64,256] x [32768,192] -> [4096,64,576]"},  // W_UK whole
    {"kv_a", "[4096,6144] x [576,6144] -> [4096,576]"},            // caches are written by all tokens
    {"cache_rows", "[4096,576] -> [4096,704]"},
    {"indexer.wq_b", "[256,2048] x [4096,2048] -> [256,32,128]"},  // queries of the selection: local
    {"indexer.weights_proj", "[256,6144] x [32,6144] -> [256,32]"},
    {"topk", "[256,32,128] -> [256,2048]"},
    {"attention", "[4096,64,576] -> [4096,64,512]"},
    {"values", "[4096,64,512] x [16384,512] -> [4096,64,256]"},  // W_UV whole
    {"values.slice_rows_tp", "[4096,64,256] -> [256,64,256]"},   // the token slice
    {"o", "[256,64,256] x [6144,16384] -> [256,6144]"},          // [256,16384] x o_proj whole: no reduction
    {"attn_out", "[256,6144] -> [256,6144]"},                    // residual local
    {"ffn_in", "[256,6144] x [6144] -> [256,6144]"},
};
// Of layers with experts: local.
constexpr Boundary kPrefillMoe[] = {
    {"gate", "[256,6144] x [256,6144] -> [256,256]"},
    {"route", "[256,256] x [256] -> [256,8]"},
    {"shared.gate_proj", "[256,6144] x [2048,6144] -> [256,2048]"},
    {"moe_out", "[256,6144] -> [256,6144]"},
};

// What attention of a decode step hands on, and the router: sharding.md 5.2.
constexpr Boundary kDecode[] = {
    {"values", "[9,64,512] x [16384,512] -> [9,64,256]"},
    {"o", "[9,64,256] x [6144,16384] -> [9,6144]"},
    {"attn_out", "[9,6144] -> [9,6144]"},
    {"gate", "[9,6144] x [256,6144] -> [9,256]"},  // on all tokens
    {"gate.slice_rows_tp", "[9,256] -> [3,256]"},  // room for 12, of which a rank has 3
    {"route", "[3,256] x [256] -> [3,8]"},
    {"ffn_in.slice_rows_tp", "[9,6144] -> [3,6144]"},  // what the experts get
    {"shared.gate_proj", "[9,6144] x [2048,6144] -> [9,2048]"},
};

// docs/glm_5_1_w8a8.md has the same table.
TEST(DsaCp, ThePageSaysTheSame) {
  std::ifstream in(WEFT_SOURCE_DIR "/docs/glm_5_1_w8a8.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  for (const std::span<const Boundary> table :
       {std::span<const Boundary>(kPrefill), std::span<const Boundary>(kPrefillMoe),
        std::span<const Boundary>(kDecode)}) {
    for (const Boundary& b : table) {
      const std::string wanted = fmt::format("| `{}` | `{}` |", b.value, b.shapes);
      EXPECT_NE(page.find(wanted), page.npos) << wanted;
    }
  }
}

// All layers of a step of 4096 rows.
Result<StepGraph> whole_prefill() {
  const auto model = published("glm-5.1-w8a8");
  StepSetting setting = setting_of(*model, "dp2tp16+sp+ep32+shared=replicated");
  setting.expanded = true;
  return build_step(setting, {GraphKind::kTrunk, StepPhase::kPrefill, 4096, 1, 0, {}});
}

TEST(DsaCp, ShapesOfAll78Layers) {
  const auto step = whole_prefill();
  ASSERT_TRUE(step.ok()) << step.status().message();
  for (int layer = 0; layer < 78; ++layer) {
    const LayerView view{*step, fmt::format("layers.{}", layer)};
    for (const Boundary& b : kPrefill) EXPECT_EQ(view.work(b.value), b.shapes) << view.layer << "." << b.value;
    if (layer < 3) continue;
    for (const Boundary& b : kPrefillMoe) EXPECT_EQ(view.work(b.value), b.shapes) << view.layer << "." << b.value;
  }
}

// Failure mode 8 of sharding.md 12 (4096 rows that become 65536), and 10.4: with few layers for all of them, or with all 78.
TEST(DsaCp, FailureMode8AndRepetition) {
  for (const char* name : {"glm-5.1-w8a8", "glm-5.2"}) {
    const auto model = published(name);
    for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
      const int64_t tokens = phase == StepPhase::kPrefill ? 4096 : 16;
      StepSetting setting = setting_of(*model, "dp2tp16+sp+ep32+shared=replicated");
      const StepKey key{GraphKind::kTrunk, phase, tokens, 1, 0, {}};
      const auto few = build_step(setting, key);
      setting.expanded = true;
      const auto all = build_step(setting, key);
      ASSERT_TRUE(few.ok() && all.ok()) << few.status().message() << all.status().message();
      EXPECT_LT(few->graph.nodes().size(), all->graph.nodes().size() / 2);
      EXPECT_EQ(nodes_of(*few), nodes_of(*all)) << name;
      EXPECT_EQ(traffic_of(*few, {}), traffic_of(*all, {})) << name;
      EXPECT_EQ(few->memory.weight_bytes, all->memory.weight_bytes);
      EXPECT_EQ(few->memory.derived_bytes, all->memory.derived_bytes);
      EXPECT_EQ(few->memory.state_bytes, all->memory.state_bytes);
      EXPECT_EQ(few->memory.arena_bytes, all->memory.arena_bytes);
      std::set<int64_t> rows;
      for (const Value& value : all->graph.values()) {
        if (value.type.rows == Rows::kTokens) rows.insert(value.type.shape()[0]);
      }
      EXPECT_EQ(rows, (phase == StepPhase::kPrefill ? std::set<int64_t>{256, 4096} : std::set<int64_t>{1, 16})) << name;
    }
  }
}

// sharding.md 10.5 and 11: no reduction behind attention, one gather of hidden states (45 MiB); and the selection of every rank's own
// tokens, which attention on all tokens needs on all ranks. The proposal's fused indexer has no such gather.
TEST(DsaCp, CollectivesOfALayer) {
  const auto step = whole_prefill();
  ASSERT_TRUE(step.ok()) << step.status().message();
  std::map<std::string, double> sent;
  for (const Node& node : step->graph.nodes()) {
    if (node.region != "layers.40") continue;
    const std::vector<ValueType> in = types_of(step->graph, node.in), out = types_of(step->graph, node.out);
    const int64_t bytes = std::visit([&](const auto& op) { return op.work(in, out, {}).bytes_sent; }, node.op);
    if (bytes > 0 && std::holds_alternative<ExpertDispatch>(node.op)) continue;
    if (bytes > 0 && std::holds_alternative<ExpertCombine>(node.op)) continue;
    if (bytes > 0) sent[step->graph.value(node.out[0]).name] = static_cast<double>(bytes) / kMiB;
  }
  EXPECT_EQ(sent, (std::map<std::string, double>{{"layers.40.attn_in.all_gather_tp", 45},
                                                 {"layers.40.topk.all_gather_tp", 30}}));
  // The residual of a rank is 3 MiB, its output projection 96 MiB of int8 (192 as bf16).
  const auto bytes_of = [&](const std::string& name) {
    return static_cast<double>(step->graph.value(step->graph.find(name)).type.tensor.bytes()) / kMiB;
  };
  EXPECT_EQ(bytes_of("layers.40.attn_out"), 3);
  EXPECT_EQ(bytes_of("layers.40.self_attn.o_proj"), 96);
}

// sharding.md 5.2: nine decoded tokens, dp8 tp4. The product of the gate on all of them, room for twelve, three on a rank.
TEST(DsaCp, DecodeNineTwelveThree) {
  const auto model = published("glm-5.1-w8a8");
  const StepSetting setting = setting_of(*model, "dp8tp4+sp+ep32+shared=replicated");
  const auto step = build_step(setting, {GraphKind::kTrunk, StepPhase::kDecode, 9, 9, 0, {}});
  ASSERT_TRUE(step.ok()) << step.status().message();
  const LayerView view{*step, "layers.3"};
  for (const Boundary& b : kDecode) EXPECT_EQ(view.work(b.value), b.shapes) << b.value;
  // Twelve places, of which nine are taken: the last rank has none of its own, and enters every collective.
  StepBatch batch;
  for (int32_t r = 0; r < 9; ++r) {
    batch.segments.push_back({r, r, 1, 100});
    batch.tokens.push_back(0);
    batch.positions.push_back(99);
  }
  std::vector<int64_t> rows;
  for (int rank = 0; rank < 4; ++rank) {
    RankContext context;
    context.size[static_cast<size_t>(MeshAxis::kTp)] = 4;
    context.index[static_cast<size_t>(MeshAxis::kTp)] = rank;
    const auto sets = make_row_sets(batch, row_set_options(setting.layout, StepPhase::kDecode), context);
    ASSERT_TRUE(sets.ok()) << sets.status().message();
    rows.push_back(sets->of(Rows::kTokens, RowSet::kTp).size());
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{3, 3, 3, 0}));
}

// Sparse attention is an op of its own, in bf16, however the weights are stored: what linears quantise stays theirs.
TEST(DsaCp, SparseAttentionIsBf16) {
  for (const char* name : {"glm-5.1", "glm-5.1-w8a8", "glm-5.1-fp8", "deepseek-v3.2"}) {
    const auto model = published(name);
    const StepSetting setting = setting_of(*model, "tp8+sp");
    for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
      const auto step = build_step(setting, {GraphKind::kTrunk, phase, 64, 1, 0, {}});
      ASSERT_TRUE(step.ok()) << step.status().message();
      int64_t found = 0;
      for (size_t n = 0; n < step->graph.nodes().size(); ++n) {
        const Node& node = step->graph.nodes()[n];
        if (!std::holds_alternative<SparseAttention>(node.op)) continue;
        found += step->node_repeat[n];
        for (const size_t i : {size_t{0}, size_t{1}})
          EXPECT_EQ(step->graph.value(node.in[i]).type.dtype(), DType::kBF16) << name;
        EXPECT_EQ(step->graph.value(node.out[0]).type.dtype(), DType::kBF16) << name;
      }
      EXPECT_EQ(found, model->num_layers()) << name;
    }
  }
}

}  // namespace
}  // namespace weft
