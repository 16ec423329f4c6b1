// The same failures (failure_modes_test.cc) for models of latents, whose caches have an entry for every token, and
// whose layers may use the selection of a layer before them.
#include "runtime/failure_modes.h"

namespace weft {
namespace {

// GLM-5.2: 5 layers, the last two with the selection of the third, one dense layer, draft layer that shares its
// selection; 16 picks, 4 heads, hidden width 64; F32.
constexpr const char* kGlm = "golden/glm_moe_dsa/glm52_mtp_f32";

Scenario glm(Steps steps = {{37, 6}, {5, 18}, {1, 1}, {1, 2}, {1, 1}}) {
  Scenario scenario;
  scenario.model = kGlm;
  scenario.dtype = DType::kF32;
  scenario.steps = std::move(steps);
  return scenario;
}

TEST(FailureModesOfLatents, FailureMode08_ResidualGatheredTwice) {
  for (const char* layout : {"tp2+sp", "tp2+dsa_cp+sp", "tp2+sp+ep2", "tp2+dsa_cp+sp+o_proj=replicated+queries=full"}) {
    const Graph graph = graph_of(kGlm, layout, 32);
    for (const Value& value : graph.values()) {
      if (value.type.rows == Rows::kTokens) {
        EXPECT_EQ(value.type.shape()[0], row_set(value.type.placement) == RowSet::kTp ? 16 : 32)
            << layout << " " << value.name;
      }
    }
    for (int layer = 0; layer < 5; ++layer) {
      for (const char* sum : {"attn_out", "ffn_out"})
        EXPECT_EQ(type_of(graph, fmt::format("layers.{}.{}", layer, sum)).shape()[0], 16) << layout;
    }
  }
}

TEST(FailureModesOfLatents, FailureMode09_FullTokensTooEarlyInMoe) {
  for (const char* layout :
       {"tp2+sp", "tp2+sp+ep2", "tp2+ep2", "tp2+dsa_cp+sp+ep2+o_proj=replicated+router=full+queries=full"}) {
    const Graph graph = graph_of(kGlm, layout, 32);
    for (const char* name : {"layers.1.gate", "layers.1.route", "layers.1.experts", "layers.4.gate"}) {
      EXPECT_EQ(type_of(graph, name).shape()[0], 16) << layout << " " << name;
    }
  }
}

TEST(FailureModesOfLatents, FailureMode10_EveryRankWritesAllRows) {
  expect_caches_of_one_rank(glm(), {"tp2", "tp4+sp", "tp2+dsa_cp+sp", "pcp2", "pcp2+split=zigzag", "tp2pcp2+sp",
                                    "tp2+dsa_cp+sp+o_proj=replicated+queries=full"});
}

TEST(FailureModesOfLatents, FailureMode11_FeatureSumOfLocalRowsIsNotScattered) {
  const Graph graph = graph_of(kGlm, "tp2pcp2", 32);
  EXPECT_EQ(type_of(graph, "layers.1.shared.down_proj.partial").shape()[0], 16);
  EXPECT_EQ(type_of(graph, "layers.1.shared.down_proj").shape()[0], 16);
}

// As many tokens as hidden features.
TEST(FailureModesOfLatents, FailureMode13_TokensAsManyAsFeatures) {
  expect_logits_of_one_rank(glm({{64, 0}, {40, 24}, {0, 32}}), {"tp2+sp", "tp4+dsa_cp+sp", "pcp2", "tp2pcp2+sp+ep2"});
}

TEST(FailureModesOfLatents, FailureMode14_FirstResidualIsOfLocalRows) {
  Scenario scenario = glm();
  scenario.watched = {"embedding", "layers.0.attn_in", "layers.0.attn_out", "layers.0.ffn_out"};
  expect_rows_of_one_rank(scenario, {"tp2+sp", "tp2+dsa_cp+sp"});
}

TEST(FailureModesOfLatents, FailureMode16_DraftLayerInEveryLayout) {
  Scenario scenario = glm();
  scenario.draft = true;
  expect_logits_of_one_rank(scenario, {"tp2+sp", "tp2+dsa_cp", "tp2+dsa_cp+sp+owned", "pcp2+split=zigzag", "tp2pcp2+sp",
                                       "tp2+sp+ep2", "tp2dcp2", "tp2+dsa_cp+sp+o_proj=replicated+queries=full"});
  expect_caches_of_one_rank(scenario, {"tp2+dsa_cp+sp", "pcp2+split=zigzag"});
}

// A layer that uses the selection of another has that rank's rows of it, not all.
TEST(FailureModesOfLatents, FailureMode18_SharedSelectionIsOfLocalRows) {
  for (const auto& [layout, rows] : {std::pair<const char*, int64_t>{"tp4+dsa_cp+sp", 8}, {"pcp4", 8}, {"tp4", 32}}) {
    const Graph graph = graph_of(kGlm, layout, 32);
    for (const Node& node : graph.nodes()) {
      const SparseAttention* attention = std::get_if<SparseAttention>(&node.op);
      if (attention == nullptr) continue;
      const ValueId picks = node.in[static_cast<size_t>(attention->inputs(node.in.size()).picks)];
      EXPECT_EQ(graph.value(picks).type.shape()[0], rows) << layout << " " << node.region;
      const bool shared = node.region == "layers.3" || node.region == "layers.4";
      EXPECT_EQ(graph.value(picks).name, shared ? "layers.2.topk" : node.region + ".topk") << layout;
    }
  }
}

TEST(FailureModesOfLatents, FailureMode20_SelectionIsThatOfOneRank) {
  Scenario scenario = glm();
  scenario.watched = {"layers.0.topk", "layers.2.topk"};
  const RankTrace want = play(scenario, "tp1")[0];
  expect_rows_of_one_rank(scenario, {"tp2+dsa_cp+sp", "tp2+dsa_cp+sp+o_proj=replicated+queries=full"},
                          2);                      // prefill: local queries
  for (const char* layout : {"tp2", "tp4dcp4"}) {  // all queries; keys of every second token
    for (const RankTrace& trace : play(scenario, layout)) {
      for (size_t step = 0; step < scenario.steps.size(); ++step) {
        EXPECT_TRUE(trace.seen[step].at("layers.2.topk").bytes == want.seen[step].at("layers.2.topk").bytes)
            << layout << " step " << step;
      }
    }
  }
}

TEST(FailureModesOfLatents, FailureMode23_ReplicatedRowsAreDispatchedOnce) {
  Scenario scenario = glm();
  scenario.watched = {"layers.1.experts", "layers.4.experts"};
  expect_rows_of_one_rank(scenario, {"tp2+ep2", "tp2+sp+ep2"});
}

TEST(FailureModesOfLatents, FailureMode26_LateQueriesSeeTheFirstKey) {
  // 12 keys of 16 that may be picked: the first one is among them.
  Scenario scenario = glm({{12, 3}}), planted = scenario;
  planted.edit = [](std::vector<std::vector<int32_t>>& texts) { texts[0][0] = (texts[0][0] + 1) % 250; };
  for (const char* layout : {"pcp2", "pcp2+split=zigzag", "tp2+dsa_cp+sp", "tp2dcp2"}) {
    const auto a = play(scenario, layout)[0].logits[0], b = play(planted, layout)[0].logits[0];
    EXPECT_TRUE(same_bits(b, play(planted, "tp1")[0].logits[0])) << layout;
    const auto vocab = static_cast<ptrdiff_t>(a.size() / 13);
    const std::vector<float> last_a(a.begin() + 11 * vocab, a.begin() + 12 * vocab),
        last_b(b.begin() + 11 * vocab, b.begin() + 12 * vocab);
    EXPECT_FALSE(same_bits(last_a, last_b)) << layout;
  }
}

TEST(FailureModesOfLatents, FailureMode28_LogitsAreEqualOnAllRanks) {
  for (const char* layout : {"tp2+sp", "tp2pcp2+sp", "tp2+dsa_cp+owned", "tp2+lm_head=replicated"}) {
    const auto traces = play(glm(), layout);
    for (const RankTrace& trace : traces) {
      for (size_t step = 0; step < trace.logits.size(); ++step)
        EXPECT_TRUE(same_bits(trace.logits[step], traces[0].logits[step])) << layout << " step " << step;
    }
  }
}

TEST(FailureModesOfLatents, FailureMode31_UnevenRows) {
  expect_logits_of_one_rank(
      glm({{7, 0}, {1, 0}, {2, 3}, {0, 1}, {3, 2}}),
      {"tp4+dsa_cp+sp", "tp4+sp", "tp4+dsa_cp+o_proj=streamed", "pcp3+split=zigzag", "tp2pcp3+sp+ep6", "tp4dcp2",
       "tp4+dsa_cp+sp+ep2+o_proj=replicated+router=full+queries=full"});
}

TEST(FailureModesOfLatents, FailureMode34_ChunkedAndWholePromptsAreEqual) {
  const Scenario whole = glm({{60, 21}, {1, 1}}), chunked = glm({{23, 21}, {30, 0}, {7, 0}, {1, 1}});
  for (const char* layout : {"pcp2+split=per_request", "tp2+dsa_cp+split=zigzag", "tp2dcp2"}) {
    const auto a = play(whole, layout), b = play(chunked, layout);
    EXPECT_TRUE(same_bits(a[0].logits.back(), b[0].logits.back())) << layout;
    EXPECT_TRUE(same_bits(a[0].logits.back(), play(whole, "tp1")[0].logits.back())) << layout;
  }
}

// More stages than layers with an indexer of their own; stages that begin with one are those of the models' tests.
TEST(FailureModesOfLatents, FailureMode39_StageOnASharedLayer) {
  EngineOptions options;
  options.layout.mesh.pp = 4;
  const auto engine = Engine::create(load_test_model(kGlm), options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().message(),
            "layout pp4: 4 pipeline stages, but only 3 of 5 layers have an indexer of their own and can begin one");
}

TEST(FailureModesOfLatents, FailureMode40_GatheredWeightsLeaveNoTrace) {
  expect_logits_of_one_rank(
      glm({{37, 6}, {1, 1}, {9, 1}, {1, 1}}),
      {"tp2+dsa_cp+o_proj=streamed", "tp2+dsa_cp+sp+o_proj=streamed", "tp2+dsa_cp+owned+o_proj=streamed"});
}

}  // namespace
}  // namespace weft
