// Failures that other engines had with split models (reference, section 12), as far as they need a model that runs; the
// number is in the name. Ranks are threads, and each of them is looked at: what it computed, on which rows, and what is
// in its caches. Others: sharding/failure_modes_test.cc (integers), graph/passes/shard_test.cc and
// graph/ops/collective_test.cc (refusals, tails).
#include "runtime/failure_modes.h"

#include <mutex>

namespace weft {
namespace {

// Windows, entries of 4 and of 128, hash and score routing, draft layer; BF16 with quantised activations.
constexpr const char* kSample = "sample/austen-v4";
// Entries of 4 and of 128, 8 heads in 4 groups, hidden width 64, 6 experts, 3 hash layers; F32.
constexpr const char* kPro = "golden/deepseek_v4/f32_pro_like";

// ---- The graphs

TEST(FailureModes, FailureMode08_ResidualGatheredTwice) {
  for (const char* layout : {"tp2+sp", "tp2+dsa_cp+sp", "tp2+sp+ep2"}) {
    const Graph graph = graph_of(kPro, layout, 32);
    for (const Value& value : graph.values()) {
      if (value.type.rows == Rows::kTokens) {
        EXPECT_EQ(value.type.shape()[0], row_set(value.type.placement) == RowSet::kTp ? 16 : 32)
            << layout << " " << value.name;
      }
    }
    for (int layer = 0; layer < 5; ++layer)
      EXPECT_EQ(type_of(graph, fmt::format("layers.{}.ffn_hc_post", layer)).shape()[0], 16) << layout;
  }
}

TEST(FailureModes, FailureMode09_FullTokensTooEarlyInMoe) {
  for (const char* layout : {"tp2+sp", "tp2+sp+ep2", "tp2+ep2"}) {
    const Graph graph = graph_of(kPro, layout, 32);
    const int64_t rows = 16;  // of this rank
    for (const char* name :
         {"layers.0.gate", "layers.0.route", "layers.0.experts", "layers.4.gate", "layers.4.experts"}) {
      EXPECT_EQ(type_of(graph, name).shape()[0], rows) << layout << " " << name;
    }
  }
}

TEST(FailureModes, FailureMode11_FeatureSumOfLocalRowsIsNotScattered) {
  const Graph graph = graph_of(kPro, "tp2pcp2", 32);  // rows split over pcp, features over tp
  EXPECT_EQ(type_of(graph, "layers.0.shared.w2.partial").shape()[0], 16);
  EXPECT_EQ(type_of(graph, "layers.0.shared.w2").shape()[0], 16);
  EXPECT_EQ(to_string(type_of(graph, "layers.0.shared.w2").placement), " pcp:shard(0)");
}

TEST(FailureModes, FailureMode29_HeadSplitCutsOutputGroups) {
  EngineOptions options;
  options.layout.mesh.tp = 8;
  const auto engine = Engine::create(load_test_model(kPro), options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().message(), "layout tp8: o_groups 4 is not divisible by tp 8; usable sizes: 1 2 4");
}

// ---- Caches

TEST(FailureModes, FailureMode10_EveryRankWritesAllRows) {
  expect_caches_of_one_rank({}, {"tp2", "tp2+sp", "tp2+dsa_cp+sp", "pcp2", "pcp2+split=zigzag", "tp2pcp2+sp",
                                 "tp2+dsa_cp+sp+compressor=split", "pcp2+split=zigzag+compressor=split"});
  Scenario pro;
  pro.model = kPro;
  pro.dtype = DType::kF32;
  expect_caches_of_one_rank(pro, {"tp4+dsa_cp", "pcp3+split=per_request", "tp2+sp+ep2"});
}

// 4 k + 2 tokens leave two in the compressors' state; decode completes the entry on the ranks that hold the request.
TEST(FailureModes, FailureMode36_TailStateIsThereInDecode) {
  Scenario scenario;
  scenario.steps = {{42, 86}, {1, 1}, {1, 1}, {1, 1}};
  expect_caches_of_one_rank(scenario, {"tp2+dsa_cp", "tp2+dsa_cp+sp", "pcp2+split=zigzag", "pcp2+compressor=split",
                                       "tp2+dsa_cp+split=zigzag+compressor=split"});
  expect_logits_of_one_rank(scenario, {"tp2+dsa_cp+owned", "tp2+dsa_cp+sp+owned", "tp2dcp2"});
}

// ---- Rows

// As many tokens as hidden features.
TEST(FailureModes, FailureMode13_TokensAsManyAsFeatures) {
  Scenario scenario;
  scenario.model = kPro;  // hidden width 64, 48 for queries, 32 for heads and experts
  scenario.dtype = DType::kF32;
  scenario.steps = {{64, 0}, {40, 8}, {0, 32}};
  expect_logits_of_one_rank(scenario, {"tp2+sp", "tp4+dsa_cp+sp", "pcp2", "tp2pcp2+sp+ep2"});
}

TEST(FailureModes, FailureMode14_FirstResidualIsOfLocalRows) {
  Scenario scenario;
  scenario.watched = {"embedding", "layers.0.attn_hc_post", "layers.0.ffn_hc_post"};
  expect_rows_of_one_rank(scenario, {"tp2+sp", "tp2+dsa_cp+sp"});  // odd numbers of rows too, and one row
}

TEST(FailureModes, FailureMode31_UnevenRows) {
  Scenario scenario;
  scenario.model = kPro;
  scenario.dtype = DType::kF32;
  scenario.steps = {{7, 0}, {1, 0}, {2, 3}, {0, 1}, {3, 2}};  // ranks with t, t - 1 and no rows
  expect_logits_of_one_rank(
      scenario, {"tp4+dsa_cp+sp", "tp4+sp", "tp4+dsa_cp+o_proj=streamed", "pcp3+split=zigzag", "tp2pcp3+sp+ep6"});
}

TEST(FailureModes, FailureMode34_ChunkedAndWholePromptsAreEqual) {
  Scenario whole, chunked;
  whole.steps = {{60, 21}, {1, 1}};
  chunked.steps = {{23, 21}, {30, 0}, {7, 0}, {1, 1}};
  for (const char* layout :
       {"pcp2+split=per_request", "pcp2+split=zigzag", "tp2+dsa_cp+split=zigzag", "tp2+dsa_cp+sp+split=per_request"}) {
    const auto a = play(whole, layout), b = play(chunked, layout);
    EXPECT_TRUE(same_bits(a[0].logits.back(), b[0].logits.back())) << layout;
    EXPECT_TRUE(a[1].caches == b[1].caches) << layout;
    EXPECT_TRUE(same_bits(a[0].logits.back(), play(whole, "tp1")[0].logits.back())) << layout;
  }
}

TEST(FailureModes, FailureMode26_LateQueriesSeeTheFirstKey) {
  Scenario scenario, planted;
  scenario.steps = planted.steps = {{60, 3}};
  planted.edit = [](std::vector<std::vector<int32_t>>& texts) { texts[0][0] = (texts[0][0] + 1) % 1000; };
  for (const char* layout : {"pcp2", "pcp2+split=zigzag", "tp2+dsa_cp+sp"}) {
    const auto a = play(scenario, layout)[0].logits[0], b = play(planted, layout)[0].logits[0];
    const auto want = play(planted, "tp1")[0].logits[0];
    EXPECT_TRUE(same_bits(b, want)) << layout;
    // The last row of the prompt, 59 tokens later.
    const auto vocab = static_cast<ptrdiff_t>(a.size() / 61);
    const std::vector<float> last_a(a.begin() + 59 * vocab, a.begin() + 60 * vocab),
        last_b(b.begin() + 59 * vocab, b.begin() + 60 * vocab);
    EXPECT_FALSE(same_bits(last_a, last_b)) << layout;
  }
}

// ---- Selection and routing

TEST(FailureModes, FailureMode05_LateQueriesSelectDistinctEntries) {
  Scenario scenario;
  scenario.watched = {"layers.1.topk"};
  scenario.steps = {{120, 4}};
  const auto traces = play(scenario, "tp2+dsa_cp+sp");
  const Seen& picks = traces[1].seen[0].at("layers.1.topk");  // the second half of the rows
  const int64_t k = picks.type.shape()[1];
  ASSERT_EQ(picks.type.shape()[0], 62);
  const auto* ids = reinterpret_cast<const int32_t*>(picks.bytes.data());
  for (int64_t t = 0; t < 58; ++t) {  // positions 62 .. 119 of the first sequence
    std::vector<int32_t> row(ids + t * k, ids + (t + 1) * k);
    row.erase(std::remove(row.begin(), row.end(), -1), row.end());
    const int64_t visible = (62 + t + 1) / 4;
    EXPECT_EQ(static_cast<int64_t>(row.size()), std::min(k, visible)) << "row " << t;
    EXPECT_TRUE(std::adjacent_find(row.begin(), row.end(), std::greater_equal<>()) == row.end()) << "row " << t;
  }
}

TEST(FailureModes, FailureMode20_SelectionIsThatOfOneRank) {
  Scenario scenario;
  scenario.watched = {"layers.1.topk", "layers.3.topk"};
  const RankTrace want = play(scenario, "tp1")[0];
  expect_rows_of_one_rank(scenario, {"tp2+dsa_cp+sp"}, 2);  // prefill: local queries
  for (const char* layout :
       {"tp2", "tp2+sp", "tp2dcp2"}) {  // all queries, whole index heads; or keys of every second entry
    for (const RankTrace& trace : play(scenario, layout)) {
      for (size_t step = 0; step < scenario.steps.size(); ++step) {
        EXPECT_TRUE(trace.seen[step].at("layers.1.topk").bytes == want.seen[step].at("layers.1.topk").bytes)
            << layout << " step " << step;
      }
    }
  }
}

TEST(FailureModes, FailureMode22_PadRowsAreNotRouted) {
  Scenario scenario;  // steps of 43, 23, 2, 3 and 2 rows, in room for 64, 32, 2, 4 and 2
  for (int layer = 0; layer < 4; ++layer)
    scenario.watched.push_back(fmt::format("layers.{}.experts.dispatch.1", layer));
  const int64_t top_k = 2;
  for (const char* layout : {"tp2+ep2", "tp2+sp+ep2", "pcp2+ep2", "tp2pcp2+sp+ep4"}) {
    const auto traces = play(scenario, layout);
    for (size_t step = 0; step < scenario.steps.size(); ++step) {
      const int64_t rows = scenario.steps[step][0] + scenario.steps[step][1];
      for (const std::string& name : scenario.watched) {
        int64_t used = 0;
        for (const RankTrace& trace : traces) {
          const Seen& experts = trace.seen[step].at(name);
          for (size_t i = 0; i < experts.bytes.size(); i += sizeof(int32_t)) {
            int32_t e = 0;
            std::memcpy(&e, experts.bytes.data() + i, sizeof(e));
            used += e >= 0 ? 1 : 0;
          }
        }
        EXPECT_EQ(used, rows * top_k) << layout << " step " << step << " " << name;
      }
    }
  }
}

TEST(FailureModes, FailureMode23_ReplicatedRowsAreDispatchedOnce) {
  Scenario scenario;
  scenario.model = kPro;
  scenario.dtype = DType::kF32;
  scenario.watched = {"layers.0.experts", "layers.4.experts"};
  expect_rows_of_one_rank(scenario, {"tp2+ep2", "tp2+sp+ep2"});  // in the first one all ranks have all rows
}

// Hash layers look their experts up by token: rows and tokens must still belong together.
TEST(FailureModes, FailureMode27_TokensStayWithTheirRows) {
  Scenario scenario;
  scenario.model = kPro;
  scenario.dtype = DType::kF32;
  scenario.watched = {"layers.0.route", "layers.1.route", "layers.2.route", "layers.0.route.1", "layers.2.route.1"};
  expect_rows_of_one_rank(scenario, {"tp4+sp", "tp2+sp+ep2", "tp2+ep2", "tp4+dsa_cp+sp"});
}

// ---- Heads

TEST(FailureModes, FailureMode25_EveryRankHasItsOwnSinks) {
  const auto model = load_test_model(kPro);
  const auto sink = model->weight("layers.0.attn.attn_sink");
  ASSERT_TRUE(sink.ok());
  std::vector<float> sinks(sink->as<float>(), sink->as<float>() + 8);
  std::sort(sinks.begin(), sinks.end());
  ASSERT_TRUE(std::adjacent_find(sinks.begin(), sinks.end()) == sinks.end()) << "sinks must be distinct for this test";
  Scenario scenario;
  scenario.model = kPro;
  scenario.dtype = DType::kF32;
  scenario.watched = {"layers.0.attention"};
  const RankTrace want = play(scenario, "tp1")[0];
  const auto traces = play(scenario, "tp4");
  for (size_t step = 0; step < scenario.steps.size(); ++step) {
    const Seen& whole = want.seen[step].at("layers.0.attention");
    const int64_t rows = whole.type.shape()[0], row = whole.type.shape()[1] * whole.type.shape()[2] * 4, part = row / 4;
    for (int r = 0; r < 4; ++r) {
      const Seen& local = traces[static_cast<size_t>(r)].seen[step].at("layers.0.attention");
      ASSERT_EQ(local.type.shape()[1], 2);
      for (int64_t t = 0; t < rows; ++t) {
        ASSERT_EQ(std::memcmp(local.bytes.data() + t * part, whole.bytes.data() + t * row + r * part,
                              static_cast<size_t>(part)),
                  0)
            << "rank " << r << " step " << step << " row " << t;
      }
    }
  }
}

// ---- Steps

TEST(FailureModes, FailureMode16_DraftLayerInEveryLayout) {
  Scenario scenario;
  scenario.draft = true;
  expect_logits_of_one_rank(
      scenario, {"tp2", "tp2+sp", "tp2+dsa_cp", "tp2+dsa_cp+sp", "tp2+dsa_cp+owned", "pcp2+split=zigzag", "tp2pcp2+sp",
                 "tp2+sp+ep2", "tp2dcp2", "pcp2+compressor=split"});
  expect_caches_of_one_rank(scenario, {"tp2+dsa_cp+sp", "pcp2+split=zigzag", "tp2pcp2+sp"});
}

// Whoever samples, samples from the same numbers.
TEST(FailureModes, FailureMode28_LogitsAreEqualOnAllRanks) {
  for (const char* layout :
       {"tp2+sp", "tp2pcp2+sp", "pcp2+split=zigzag", "tp2+dsa_cp+owned", "tp2+lm_head=replicated"}) {
    const auto traces = play({}, layout);
    for (const RankTrace& trace : traces) {
      for (size_t step = 0; step < trace.logits.size(); ++step) {
        EXPECT_TRUE(same_bits(trace.logits[step], traces[0].logits[step])) << layout << " step " << step;
      }
    }
  }
}

// Weights that are gathered for a step are values of that step: prefill does not change what decode uses, nor does a
// refusal.
TEST(FailureModes, FailureMode40_GatheredWeightsLeaveNoTrace) {
  Scenario scenario;
  scenario.steps = {{37, 6}, {1, 1}, {9, 1}, {1, 1}};
  expect_logits_of_one_rank(
      scenario, {"tp2+dsa_cp+o_proj=streamed", "tp2+dsa_cp+sp+o_proj=streamed", "tp2+dsa_cp+owned+o_proj=streamed"});

  const auto model = load_test_model(kSample);
  std::vector<std::vector<float>> logits;
  for (const bool refused : {false, true}) {
    EngineOptions options;
    options.mode = model->mode(DType::kBF16, std::nullopt);
    options.layout = *parse_layout("tp2+dsa_cp+o_proj=streamed");
    options.num_threads = 1;
    options.max_context = 200;
    auto made = Engine::create(model, options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    Engine& engine = **made;
    const int32_t slot = *engine.open_sequence();
    const auto tokens = some_tokens(40, model->vocab_size(), 5);
    const StepRequest prompt{slot, std::span(tokens).first(39), Logits::kLast},
        next{slot, std::span(tokens).subspan(39), Logits::kLast};
    ASSERT_TRUE(engine.step({&prompt, 1}).ok());
    if (refused) {
      const std::vector<int32_t> unknown = {1 << 30};
      const StepRequest bad{slot, unknown, Logits::kLast};
      EXPECT_FALSE(engine.step({&bad, 1}).ok());
    }
    ASSERT_TRUE(engine.step({&next, 1}).ok());
    logits.emplace_back(engine.logits(0).begin(), engine.logits(0).end());
  }
  EXPECT_TRUE(same_bits(logits[0], logits[1]));
}

}  // namespace
}  // namespace weft
