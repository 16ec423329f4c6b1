// The DSA-MLA family in layouts: a message for every rule of the contract, that what it takes can be built, where stages begin, and
// what a layer of the published models moves between ranks.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "comm/bytes.h"
#include "models/glm_moe_dsa/glm_moe_dsa.h"
#include "models/layout_test_support.h"

namespace weft::glm_moe_dsa {
namespace {

// The published shapes of GLM-5, with the fields that the rules look at.
Config glm5() {
  Config config;
  config.num_hidden_layers = 78;
  config.num_attention_heads = 64;
  config.v_head_dim = 256;
  config.vocab_size = 154880;
  config.intermediate_size = 12288;
  config.first_k_dense_replace = 3;
  config.moe_intermediate_size = 2048;
  config.n_shared_experts = 1;
  config.n_routed_experts = 256;
  config.full_indexer.assign(78, true);
  return config;
}

Config with(void (*edit)(Config&)) {
  Config config = glm5();
  edit(config);
  return config;
}

TEST(GlmContract, EveryRuleHasItsMessage) {
  const struct {
    const char* what;
    Config config;
    Layout layout;
    const char* message;  // "": taken
  } cases[] = {
      {"one rank", glm5(), Layout(), ""},
      {"the usual ones", glm5(), {.mesh = {.tp = 16}, .attention = AttentionChoice::kDsaCp, .sequence_parallel = true}, ""},
      {"heads", glm5(), {.mesh = {.tp = 6}},
       "layout tp6: num_attention_heads 64 is not divisible by tp 6; usable sizes: 1 2 4 8 16 32 64"},
      {"output blocks", glm5(), {.mesh = {.tp = 32}},
       "layout tp32: o_proj has 16384 inputs, a sum of 16 canonical blocks, which tp 32 does not divide; usable sizes: 1 2 4 8 16"},
      {"vocabulary", with([](Config& c) { c.vocab_size = 102; }), {.mesh = {.tp = 4}},
       "layout tp4: vocab_size 102 is not divisible by tp 4; usable sizes: 1 2 3 6 17 34 51 102"},
      {"... whole on every rank", with([](Config& c) { c.vocab_size = 102; }), {.mesh = {.tp = 4}, .lm_head = WeightChoice::kReplicated}, ""},
      {"dense layers", with([](Config& c) { c.intermediate_size = 20; }), {.mesh = {.tp = 8}},
       "layout tp8: intermediate_size 20 is not divisible by tp 8; usable sizes: 1 2 4 5 10 20"},
      {"their blocks", with([](Config& c) { c.intermediate_size = 16; }), {.mesh = {.tp = 8}},
       "layout tp8: mlp.down_proj has 16 inputs, a sum of 4 canonical blocks, which tp 8 does not divide; usable sizes: 1 2 4"},
      {"no dense layers", with([](Config& c) { c.intermediate_size = 20, c.first_k_dense_replace = 0; }), {.mesh = {.tp = 8}}, ""},
      {"shared expert", with([](Config& c) { c.moe_intermediate_size = 20; }), {.mesh = {.tp = 8}},
       "layout tp8: moe_intermediate_size x n_shared_experts 20 is not divisible by tp 8; usable sizes: 1 2 4 5 10 20"},
      {"... whole on every rank", with([](Config& c) { c.moe_intermediate_size = 20; }), {.mesh = {.tp = 8}, .shared = WeightChoice::kReplicated}, ""},
      {"experts", with([](Config& c) { c.n_routed_experts = 6; }), {.mesh = {.tp = 4, .ep = 4}},
       "layout tp4+ep4: n_routed_experts 6 is not divisible by ep 4; usable sizes: 1 2 3 6"},
      {"shares of experts", with([](Config& c) { c.moe_intermediate_size = 20; }),
       {.mesh = {.tp = 8}, .shared = WeightChoice::kReplicated, .moe = MoeChoice::kTp},
       "layout tp8+shared=replicated+moe=tp: moe_intermediate_size 20 is not divisible by tp 8; usable sizes: 1 2 4 5 10 20"},
      {"... of their outputs", with([](Config& c) { c.hidden_size = 20; }), {.mesh = {.tp = 8}, .moe = MoeChoice::kTp},
       "layout tp8+moe=tp: hidden_size 20 is not divisible by tp 8; usable sizes: 1 2 4 5 10 20"},
      {"output projection that is never split", glm5(),
       {.mesh = {.tp = 32}, .attention = AttentionChoice::kDsaCp, .sequence_parallel = true, .o_proj = OProjChoice::kReplicated, .queries = QueryRows::kFull},
       "layout tp32+dsa_cp+sp+o_proj=replicated+queries=full: mlp.down_proj has 12288 inputs, a sum of 16 canonical blocks, which tp 32 does not "
       "divide; usable sizes: 1 2 4 8 16"},
      {"stages", with([](Config& c) { c.full_indexer.assign(78, false), c.full_indexer[0] = c.full_indexer[40] = true; }), {.mesh = {.pp = 3}},
       "layout pp3: 3 pipeline stages, but only 2 of 78 layers have an indexer of their own and can begin one"},
      {"compressors", glm5(), {.mesh = {.pcp = 2}, .compressor = CompressorChoice::kSplit},
       "layout pcp2+compressor=split: GLM-5 and DeepSeek-V3.2 have no compressors to split"},
      {"gate", glm5(), {.mesh = {.tp = 2}, .gate = GateChoice::kKSharded},
       "layout tp2+gate=k_sharded: GLM-5 and DeepSeek-V3.2 have no gate on the attention output"},
      {"per-layer embeddings", glm5(), {.mesh = {.tp = 2}, .ple = PleChoice::kSharded},
       "layout tp2+ple=sharded: GLM-5 and DeepSeek-V3.2 have no per-layer embeddings"},
      {"owned", glm5(), {.mesh = {.tp = 4}, .split = TokenSplit::kOwned},
       "layout tp4+owned: split=owned needs dsa_cp, whose prefill fills the caches of every rank: tpN+dsa_cp+owned"},
  };
  for (const auto& c : cases) EXPECT_EQ(check_layout(c.config, c.layout).message(), c.message) << c.what;
}

TEST(GlmContract, WhatIsTakenCanBeBuilt) {
  const std::shared_ptr<const Model> models[] = {load_test_model("golden/glm_moe_dsa/glm52_mtp_f32"), load_test_model("golden/glm_moe_dsa/glm5_fp8"),
                                                 load_test_model("golden/glm_moe_dsa/deepseek_v32_f32")};
  expect_taken_layouts_can_be_built(models, 1800, 100, [](Layout& layout, RandomChoice& one_of) {
    layout.router = one_of({RouterChoice::kLocal, RouterChoice::kFull});
    const bool may_be_full = layout.attention == AttentionChoice::kDsaCp && layout.sequence_parallel && layout.split == TokenSplit::kFlat;
    if (may_be_full && layout.o_proj == OProjChoice::kReplicated) layout.queries = one_of({QueryRows::kLocal, QueryRows::kFull});
  });
}

GraphOptions options_of(const Model& model, int64_t tokens) { return graph_options(model, tokens, 4096); }

Graph graph_of(const Model& model, const std::string& layout, int64_t tokens, StepPhase phase = StepPhase::kPrefill) {
  return trunk_of(model, options_of(model, tokens), layout, phase);
}

// A stage never begins at a layer without an indexer of its own: it would need the selection of another stage.
TEST(GlmLayoutGraph, StagesBeginWithAnIndexer) {
  const auto model = published("glm-5.2");
  for (const int stages : {2, 3, 4, 7, 21}) {
    Layout layout;
    layout.mesh.pp = stages;
    std::string begins;
    for (int stage = 0; stage < stages; ++stage) {
      const auto part = build_stage(*model, GraphKind::kTrunk, options_of(*model, 8), layout, StepPhase::kPrefill, stage);
      ASSERT_TRUE(part.ok()) << part.status().message();
      EXPECT_EQ(part->received.size(), stage == 0 ? 0u : 1u);
      for (const Node& node : part->graph.nodes()) {
        if (!node.region.starts_with("layers.")) continue;
        const int64_t first = std::stoll(node.region.substr(7));
        EXPECT_TRUE(first < 3 || (first - 2) % 4 == 0) << stages << " stages, stage " << stage << " begins with layer " << first;
        begins += fmt::format("{} ", first);
        break;
      }
    }
    if (stages == 2) {
      EXPECT_EQ(begins, "0 38 ");
    } else if (stages == 4) {
      EXPECT_EQ(begins, "0 18 38 58 ");
    }
  }
}

// A draft that is given a selection hands it on: also the stage that has the draft layer keeps it to the end of the step.
TEST(GlmLayoutGraph, DraftsHandOnTheSelection) {
  const auto model = published("glm-5.2");
  for (const char* text : {"tp1", "tp2+sp", "pp2", "pp3", "pp2tp2"}) {
    const Layout layout = parse_layout(text).value();
    GraphOptions options = options_of(*model, 4);
    options.draft_from = DraftFrom::kDraft;
    const auto stage = build_stage(*model, GraphKind::kDraft, options, layout, StepPhase::kDecode, layout.mesh.pp - 1);
    ASSERT_TRUE(stage.ok()) << stage.status().message();
    const ValueId picks = stage->graph.find(kSelectionInput);
    ASSERT_GE(picks, 0) << text;
    const auto& results = stage->graph.results();
    EXPECT_EQ(std::count(results.begin(), results.end(), picks), 1) << text;
  }
}

// "op axis input width, ..." of one layer, in order; names without the layer's.
std::string moves_of(const Graph& graph, const std::string& layer) {
  std::string moves;
  for (const Node& node : graph.nodes()) {
    if (node.region != layer) continue;
    std::string_view axis;
    std::visit(
        [&](const auto& op) {
          if constexpr (requires { op.axis; op.size; }) axis = mesh_axis_name(op.axis);
        },
        node.op);
    if (axis.empty()) continue;
    std::string name = graph.value(node.in[0]).name;
    if (name.starts_with(layer + ".")) name = name.substr(layer.size() + 1);
    moves += fmt::format("{}{} {} {}", moves.empty() ? "" : ", ", op_name(node.op), axis, name);
  }
  return moves;
}

TEST(GlmLayoutGraph, MovesOfALayer) {
  const auto model = published("glm-5.2");
  const struct {
    const char* layout;
    StepPhase phase;
    const char* moves;  // of layer 6: experts, an indexer
  } cases[] = {
      {"tp1", StepPhase::kPrefill, ""},
      {"tp2", StepPhase::kPrefill, "all_reduce tp o.partial, all_reduce tp shared.down_proj.partial"},
      {"tp2+sp", StepPhase::kPrefill,
       "all_gather tp attn_in, reduce_scatter tp o.partial, all_gather tp ffn_in, reduce_scatter tp shared.down_proj.partial"},
      // Keys are made from local rows; latent, rotated key and index key are gathered together.
      {"tp2+dsa_cp+sp", StepPhase::kPrefill,
       "all_gather tp cache_rows, heads_to_rows tp values, reduce_scatter tp o.partial, all_gather tp ffn_in, "
       "reduce_scatter tp shared.down_proj.partial"},
      {"tp2+dsa_cp+sp+o_proj=replicated+shared=replicated", StepPhase::kPrefill, "all_gather tp cache_rows"},
      {"tp2+dsa_cp+sp+o_proj=streamed+shared=replicated", StepPhase::kPrefill,
       "all_gather tp cache_rows, all_gather tp self_attn.o_proj"},
      // All queries: hidden states, and what every rank selected for its own rows; sliced in front of the output projection.
      {"tp2+dsa_cp+sp+o_proj=replicated+shared=replicated+queries=full", StepPhase::kPrefill,
       "all_gather tp attn_in, slice_rows tp q_norm, all_gather tp topk, slice_rows tp values"},
      {"tp2+dsa_cp+sp+o_proj=replicated+shared=replicated+queries=full", StepPhase::kDecode, ""},
      {"pcp2", StepPhase::kPrefill, "all_gather pcp cache_rows"},
      {"pcp2+split=zigzag", StepPhase::kPrefill, "all_gather pcp cache_rows"},
      {"tp2+dsa_cp", StepPhase::kDecode, "all_reduce tp o.partial, all_reduce tp shared.down_proj.partial"},
      // The sum that is the stream has all rows: what experts give is gathered once, not the stream.
      {"tp2+ep2+shared=replicated", StepPhase::kPrefill,
       "all_reduce tp o.partial, slice_rows tp ffn_in, expert_dispatch ep ffn_in.slice_rows_tp, expert_combine ep experts.slots, slice_rows tp shared.down_proj, all_gather tp "
       "moe_out"},
      {"tp2+sp+ep2+shared=replicated", StepPhase::kPrefill,
       "all_gather tp attn_in, reduce_scatter tp o.partial, expert_dispatch ep ffn_in, expert_combine ep experts.slots"},
  };
  for (const auto& c : cases) EXPECT_EQ(moves_of(graph_of(*model, c.layout, 64, c.phase), "layers.6"), c.moves) << c.layout;
  // A layer that reuses a selection has no index key to send.
  const Graph graph = graph_of(*model, "tp2+dsa_cp+sp+o_proj=replicated+shared=replicated", 64);
  EXPECT_EQ(moves_of(graph, "layers.7"), "all_gather tp kv_rope");
  const auto width = [&](const char* name) {
    const Shape& shape = graph.value(graph.find(name)).type.shape();
    return shape[1];
  };
  EXPECT_EQ(width("layers.6.cache_rows"), 704);
  EXPECT_EQ(width("layers.7.kv_rope"), 576);
}

// glm_moe_dsa.md 2.8: activations have power-of-two scales where the config's scale_fmt says so, else scales of any value.
TEST(GlmGraph, ScalesOfQuantisedActivations) {
  const struct {
    const char* config;
    ActQuant linear;
    QuantFormat latents;
  } cases[] = {{"deepseek-v3.2", ActQuant::kFp8Block128, QuantFormat::kFp8}, {"glm-5.2-fp8", ActQuant::kFp8Block128AnyScale, QuantFormat::kFp8AnyScale}};
  for (const auto& c : cases) {
    const auto model = published(c.config);
    GraphOptions options = options_of(*model, 8);
    options.mode = {DType::kBF16, true};
    const auto graph = model->build(options);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    const auto op_of = [&](const char* name) {
      const auto at = std::find_if(graph->nodes().begin(), graph->nodes().end(),
                                   [&](const Node& node) { return !node.out.empty() && graph->value(node.out[0]).name == name; });
      return at == graph->nodes().end() ? Op{} : at->op;
    };
    for (const char* name : {"layers.0.q_a", "layers.0.o", "layers.6.shared.down_proj"}) {
      const Op op = op_of(name);
      ASSERT_TRUE(std::holds_alternative<Linear>(op)) << name;
      EXPECT_EQ(std::get<Linear>(op).act_quant, c.linear) << c.config << " " << name;
    }
    const Op experts = op_of("layers.6.experts"), latents = op_of("layers.6.kv_quantise"), keys = op_of("layers.6.indexer.k_quantise");
    ASSERT_TRUE(std::holds_alternative<Experts>(experts) && std::holds_alternative<Quantise>(latents) && std::holds_alternative<Quantise>(keys));
    EXPECT_EQ(std::get<Experts>(experts).act_quant, c.linear) << c.config;
    EXPECT_EQ(std::get<Quantise>(latents).format, c.latents) << c.config;
    EXPECT_EQ(std::get<Quantise>(keys).format, c.latents) << c.config;
  }
}

// Bytes that a token has in the caches, glm_moe_dsa.md 3; the draft layer has one entry more of each.
TEST(GlmCaches, BytesPerToken) {
  for (const auto& [name, trunk] : {std::pair<const char*, int64_t>{"deepseek-v3.2", 85888}, {"glm-5", 109824}, {"glm-5.1", 109824}, {"glm-5.2", 95232}}) {
    const auto model = published(name);
    int64_t main = 0, draft = 0;
    for (const CacheSpec& spec : model->caches({DType::kBF16, false}, {})) {
      ASSERT_EQ(spec.kind, CacheKind::kAppend);
      ASSERT_EQ(spec.ratio, 1);
      (spec.name.starts_with("mtp.") ? draft : main) += spec.row_bytes();
    }
    EXPECT_EQ(main, trunk) << name;
    EXPECT_EQ(draft, 1408) << name;
  }
}

}  // namespace
}  // namespace weft::glm_moe_dsa
