// The layout matrix on the sample model: every layout that it takes on 2 ranks, and those of 4 ranks that nest two
// splits.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "graph/text.h"
#include "models/layout_graph.h"
#include "runtime/layout_compare.h"
#include "runtime/layout_matrix.h"
#include "runtime/test_support.h"

namespace weft {
namespace {

void expect_all_equal(const std::shared_ptr<const Model>& model, LayoutMatrixOptions options) {
  options.num_threads = 1;
  const auto report = verify_layouts(model, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->lines.size(), options.layouts.size() * options.dtypes.size());
  for (const LayoutLine& line : report->lines) {
    EXPECT_EQ(line.outcome, VerifyLine::Outcome::kPass) << line.layout << ": " << line.detail;
    EXPECT_EQ(line.batches_passed, line.batches) << line.layout;
    EXPECT_GT(line.rows, 1000) << line.layout;
  }
}

std::vector<Layout> parse_all(std::initializer_list<const char*> texts) {
  std::vector<Layout> layouts;
  for (const char* text : texts) layouts.push_back(parse_layout(text).value());
  return layouts;
}

// One of each kind; all that there are: weft verify --layouts all (make verify).
TEST(LayoutMatrix, LayoutsOfTwoRanksGiveTheBitsOfOne) {
  const auto model = load_test_model("sample/austen-v4");
  LayoutMatrixOptions options;
  options.layouts = parse_all({"tp2", "tp2+sp+ep2", "pcp2+split=zigzag", "pcp2+split=per_request+ep2", "dp2+ep2", "pp2",
                               "tp2+dsa_cp", "tp2+dsa_cp+sp+o_proj=streamed+prefetch=on", "tp2+dsa_cp+owned+ep2",
                               "tp2+sp+moe=tp", "tp2dcp2", "tp2dcp2+dcp_mode=merge", "tp2+dsa_cp+sp+compressor=split"});
  options.dtypes = {DType::kBF16};
  options.tokens = 100;
  expect_all_equal(model, options);
}

// Its third draft is handed on the selection of the first by the second.
TEST(LayoutMatrix, DraftsThatShareASelection) {
  const auto model = load_test_model("golden/glm_moe_dsa/glm52_mtp_f32");
  LayoutMatrixOptions options;
  options.layouts = parse_all({"tp2+sp", "pp2"});
  options.dtypes = {DType::kF32};
  options.tokens = 24;
  expect_all_equal(model, options);
}

TEST(LayoutMatrix, NestedSplitsOfFourRanks) {
  const auto model = load_test_model("sample/austen-v4");
  LayoutMatrixOptions options;
  options.layouts = parse_all({"tp2pcp2", "tp2pcp2+sp+split=zigzag+ep4", "dp2tp2+sp+ep4", "pp2tp2dcp2+sp"});
  options.dtypes = {DType::kF32};
  options.tokens = 60;
  expect_all_equal(model, options);
}

// int8 codes of the output projection's input: other numbers than without, the same in every layout. Where codes
// travel, they are fewer bytes, as the plan says (each line compares them).
TEST(LayoutMatrix, OutputCodesAreTheSameInEveryLayout) {
  const auto model = load_test_model("golden/deepseek_v4/f32_pro_like");
  LayoutMatrixOptions options;
  options.layouts = parse_all({"tp2", "tp4+sp", "tp2+dsa_cp+owned", "tp4+dsa_cp+sp+owned", "tp4+dsa_cp+sp",
                               "tp2+dsa_cp+o_proj=streamed", "pcp2"});
  options.dtypes = {DType::kF32};
  options.output_quant = OutputQuant::kInt8;
  options.tokens = 40;
  expect_all_equal(model, options);
}

TEST(LayoutMatrix, OutputCodesAreRefusedWhereThereAreNoGroups) {
  const auto model = load_test_model("golden/glm_moe_dsa/glm5_fp8");
  EngineOptions options;
  options.mode = model->mode(DType::kBF16, std::nullopt);
  options.mode.output_quant = OutputQuant::kInt8;
  const auto engine = Engine::create(model, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().message(),
            "--output-quant int8: glm_moe_dsa has no output groups, each of which would have a scale");
}

TEST(LayoutMatrix, RunnableLayoutsAreTakenAndListedOnce) {
  const auto model = load_test_model("sample/austen-v4");
  for (const int ranks : {1, 2, 3, 4}) {
    const std::vector<Layout> layouts = runnable_layouts(*model, ranks);
    std::set<std::string> texts;
    for (const Layout& layout : layouts) {
      EXPECT_EQ(layout.mesh.world(), ranks);
      EXPECT_TRUE(model->check_layout(layout).ok()) << to_string(layout);
      EXPECT_TRUE(texts.insert(to_string(layout)).second) << to_string(layout);
    }
    if (ranks == 1) {
      EXPECT_TRUE(texts.contains("tp1"));
    }
    if (ranks == 2) {
      for (const char* text :
           {"tp2", "tp2+sp", "pcp2+split=zigzag", "tp2+dsa_cp+sp+owned+ep2", "tp2+lm_head=replicated"}) {
        EXPECT_TRUE(texts.contains(text)) << text;
      }
    }
    if (ranks == 4) {
      EXPECT_FALSE(texts.contains("tp4")) << "two output groups";
    }
  }
}

// What a rank does, as text: the graphs of both phases, and how rows are dealt out.
std::string work_of(const Model& model, const Layout& layout) {
  GraphOptions options;
  options.mode = model.mode(DType::kBF16, std::nullopt);
  options.shape = {8, 2};
  options.cache.num_slots = 4;
  options.cache.num_pages = 8;
  options.cache.max_context = 512;
  options.cache.page_tokens *= layout.mesh.dcp;
  std::string text;
  for (const GraphKind kind : {GraphKind::kTrunk, GraphKind::kDraft}) {
    if (kind == GraphKind::kDraft && model.num_draft_layers() == 0) continue;
    for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
      const RowSetOptions rows = row_set_options(layout, phase);
      text += fmt::format("{} {} {} {}\n", rows.tp, rows.pcp, static_cast<int>(rows.tp_split),
                          static_cast<int>(rows.pcp_split));
      const auto graph = build_for_layout(model, kind, options, layout, phase);
      text += graph.ok() ? to_text(*graph) : graph.status().message();
    }
  }
  return text;
}

// A choice that is taken is one that can be seen in the work; one that is refused as without effect would leave it as
// it is. Choices with needs that are no matter of effect: queries=full; a gate and tables that these models do not
// have; router=full beside moe=tp, where experts have more rows than are routed, not fewer.
TEST(LayoutMatrix, ChoicesThatAreTakenChangeTheWorkAndOthersDoNot) {
  for (const char* name : {"sample/austen-v4", "golden/glm_moe_dsa/glm52_mtp_f32"}) {
    const auto model = load_test_model(name);
    std::map<std::string, std::string> works;
    const auto work = [&](const Layout& layout) -> const std::string& {
      std::string& text = works[to_string(layout)];
      if (text.empty()) text = work_of(*model, layout);
      return text;
    };
    int changed = 0, unchanged = 0;
    for (const int ranks : {1, 2, 4}) {
      for (const Layout& layout : runnable_layouts(*model, ranks)) {
        for (const LayoutChoice& choice : layout_choices()) {
          Layout without = layout;
          choice.set(without, 0);
          if (choice.get(layout) != 0 && model->check_layout(without).ok()) {
            ++changed;
            EXPECT_NE(work(layout), work(without)) << name << " " << to_string(layout) << ": " << choice.key;
          }
          const bool other_need = choice.key == "queries" || choice.key == "gate" || choice.key == "ple" ||
                                  (choice.key == "router" && layout.moe == MoeChoice::kTp);
          if (ranks == 4 || other_need) continue;
          for (size_t value = 1; choice.get(layout) == 0 && value < choice.values.size(); ++value) {
            Layout with = layout;
            choice.set(with, static_cast<int>(value));
            if (choice_without_effect(with).empty() ||
                !choice_without_effect(with).starts_with(std::string(choice.key)))
              continue;
            ++unchanged;
            EXPECT_EQ(work(layout), work(with)) << name << " " << to_string(with);
          }
        }
      }
    }
    EXPECT_GT(changed, 100) << name;
    EXPECT_GT(unchanged, 20) << name;
  }
}

TEST(LayoutMatrix, LayoutsThatTheModelRefusesAreSkippedWithTheReason) {
  const auto model = load_test_model("sample/austen-v4");
  LayoutMatrixOptions options;
  options.layouts = {parse_layout("tp4").value()};
  options.dtypes = {DType::kF32};
  options.tokens = 16;
  const auto report = verify_layouts(model, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->lines.size(), 1u);
  EXPECT_EQ(report->lines[0].outcome, VerifyLine::Outcome::kSkipped);
  EXPECT_NE(report->lines[0].detail.find("o_groups 2 is not divisible by tp 4"), std::string::npos)
      << report->lines[0].detail;
}

// The ranks of this layout compute something else: the first value that differs is named, on which rank and in which
// batch.
TEST(LayoutMatrix, NamesTheFirstDifference) {
  const auto model = load_test_model("sample/austen-v4");
  LayoutMatrixOptions options;
  options.layouts = {parse_layout("tp2").value()};
  options.dtypes = {DType::kBF16};
  options.tokens = 16;
  options.num_threads = 1;
  options.make_engine = [&](const EngineOptions& asked) {
    EngineOptions other = asked;
    other.mode.act_quant = !other.mode.act_quant;
    return Engine::create(model, other);
  };
  const auto report = verify_layouts(model, options);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_FALSE(report->ok());
  ASSERT_EQ(report->lines.size(), 1u);
  const LayoutLine& line = report->lines[0];
  EXPECT_EQ(line.outcome, VerifyLine::Outcome::kFail);
  EXPECT_EQ(line.batches_passed, 0);
  EXPECT_TRUE(line.detail.starts_with("one prompt: call 1 (step of 16 rows): layers.0.")) << line.detail;
  EXPECT_NE(line.detail.find(", row 0, rank 0"), std::string::npos) << line.detail;
}

// What is saved of a sequence does not show the layout that computed it, and another layout can go on from it.
TEST(LayoutMatrix, SavedSequencesAreTheSameInEveryLayout) {
  const auto model = load_test_model("sample/austen-v4");
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 90; ++i) tokens.push_back((i * 37 + 11) % 200);
  const auto play = [&](const char* layout, const SavedSequence* from,
                        std::vector<float>& logits) -> Result<SavedSequence> {
    EngineOptions options;
    options.mode = model->mode(DType::kBF16, std::nullopt);
    options.layout = parse_layout(layout).value();
    options.num_threads = 1;
    options.max_sequences = 4;
    options.max_context = 128;
    WEFT_ASSIGN_OR_RETURN(const auto engine, Engine::create(model, options));
    // The second one is not of rank 0 where sequences have owners.
    WEFT_RETURN_IF_ERROR(engine->open_sequence().status());
    WEFT_ASSIGN_OR_RETURN(const int32_t slot, engine->open_sequence());
    if (from != nullptr) WEFT_RETURN_IF_ERROR(engine->restore(slot, *from));
    const size_t cuts[] = {0, 40, 79, 80, 81};  // a prompt in two chunks, and two decode steps
    for (size_t i = from == nullptr ? 0 : 3; i < 4; ++i) {
      const StepRequest request{slot, std::span<const int32_t>(tokens).subspan(cuts[i], cuts[i + 1] - cuts[i]),
                                Logits::kLast};
      WEFT_RETURN_IF_ERROR(engine->step({&request, 1}));
      const auto row = engine->logits(0);
      logits.assign(row.begin(), row.end());
      if (from == nullptr && i == 2) break;
    }
    return engine->save(slot);
  };
  std::vector<float> want_logits, logits;
  const auto half = play("tp1", nullptr, logits);
  ASSERT_TRUE(half.ok()) << half.status().message();
  const auto want = play("tp1", &*half, want_logits);
  ASSERT_TRUE(want.ok()) << want.status().message();
  for (const char* layout : {"tp2", "pp2", "dp2", "pcp2", "tp2+dsa_cp+owned", "dp2tp2+dsa_cp+owned", "tp2dcp2",
                             "dp2tp2dcp2", "pcp2+compressor=split"}) {
    const auto saved = play(layout, nullptr, logits);
    ASSERT_TRUE(saved.ok()) << layout << ": " << saved.status().message();
    EXPECT_TRUE(*saved == *half) << layout;
    const auto went_on = play(layout, &*saved, logits);
    ASSERT_TRUE(went_on.ok()) << layout << ": " << went_on.status().message();
    EXPECT_TRUE(*went_on == *want) << layout;
    EXPECT_EQ(logits, want_logits) << layout;
  }
}

StepRecord one_value(std::vector<StepTrace> ranks) {
  return {StepCall{StepCall::Kind::kStep, 3, false}, std::move(ranks), {7}};
}

TEST(LayoutCompare, FindsEveryKindOfDifference) {
  const StepRecord want = one_value({{{"x", 8, {0, 1, 2}, {10, 11, 12}}, {"y", 8, {0, 1, 2}, {20, 21, 22}}}});
  struct Case {
    std::vector<StepTrace> ranks;
    const char* expected;
  };
  const Case cases[] = {
      {{{{"x", 8, {0, 1}, {10, 11}}}, {{"x", 8, {2}, {12}}}}, ""},
      {{{{"x", 8, {0, 1}, {10, 11}}}, {{"x", 8, {2}, {13}}}}, "call 5 (step of 3 rows): x, row 2, rank 1"},
      // The earlier value of the graph is named, whichever rank has it.
      {{{{"x", 8, {0}, {10}}, {"y", 8, {0}, {9}}}, {{"x", 8, {1}, {9}}}}, "call 5 (step of 3 rows): x, row 1, rank 1"},
      // Moved values go by the name of what was moved; values that one rank does not have are not compared.
      {{{{"x.all_gather_tp", 8, {0, 1, 2}, {10, 11, 9}}}}, "call 5 (step of 3 rows): x.all_gather_tp, row 2, rank 0"},
      {{{{"x.slice_rows_tp.2", 8, {1}, {9}}}}, "call 5 (step of 3 rows): x.slice_rows_tp.2, row 1, rank 0"},
      {{{{"x.partial", 8, {1}, {9}}, {"z", 8, {1}, {9}}}}, ""},
      {{{{"x", 4, {1}, {9}}}}, ""},
      {{{{"x", 8, {3}, {10}}}}, "call 5 (step of 3 rows): x, row 3, rank 0"},
  };
  for (const Case& c : cases) {
    int64_t rows = 0;
    EXPECT_EQ(first_difference(one_value(c.ranks), want, 4, rows), c.expected);
  }
  StepRecord other_logits = one_value({{}});
  other_logits.logits = {8};
  int64_t rows = 0;
  EXPECT_EQ(first_difference(other_logits, want, 0, rows), "call 1 (step of 3 rows): logits as rank 0 gives them");
}

TEST(LayoutCompare, Caches) {
  const std::vector<CacheHashes> want = {{"a", 2, {1, 2}}, {"b", 0, {3}}};
  int64_t rows = 0;
  EXPECT_EQ(cache_difference({{"b", 0, {3}}}, want, rows), "");
  EXPECT_EQ(rows, 1);
  EXPECT_EQ(cache_difference({{"a", 2, {1, 5}}}, want, rows), "cache a, row 3");
  EXPECT_EQ(cache_difference({{"a", 1, {1, 2}}}, want, rows), "cache a: 2 rows from 1, expected 2 from 2");
  EXPECT_EQ(cache_difference({{"c", 0, {}}}, want, rows), "cache c is unknown to one rank");
  // Every second entry, of either rank.
  const std::vector<CacheHashes> entries = {{"e", 0, {5, 6, 7}}};
  EXPECT_EQ(cache_difference({{"e", 0, {5, 7}, 2}}, entries, rows), "");
  EXPECT_EQ(cache_difference({{"e", 1, {6}, 2}}, entries, rows), "");
  EXPECT_EQ(cache_difference({{"e", 1, {7}, 2}}, entries, rows), "cache e, row 1");
  EXPECT_EQ(cache_difference({{"e", 1, {6, 7}, 2}}, entries, rows), "cache e: 2 rows from 1, expected 1 from 1");
  EXPECT_EQ(cache_difference({{"e", 2, {7}, 2}}, entries, rows), "cache e: 1 rows from 2, expected 3 from 0");
  const Layout owned = parse_layout("tp2+dsa_cp+owned").value();
  EXPECT_TRUE(holds_caches(owned, 1, 3));
  EXPECT_FALSE(holds_caches(owned, 0, 3));
  EXPECT_TRUE(holds_caches(parse_layout("tp2").value(), 0, 3));
}

TEST(LayoutCompare, MergedLayoutsHaveATolerance) {
  const auto step = [](std::vector<std::vector<float>> values) {
    StepRecord record = one_value({});
    record.values = std::move(values);
    return record;
  };
  const StepRecord want = step({{3, 4}, {0, -5}});
  LogitsError close, far, broken, other;
  EXPECT_EQ(close.add(step({{3, 4}, {0, -5.005f}}), want, 0), "");
  EXPECT_EQ(close.beyond({1e-3, 2e-3}), "");
  EXPECT_NE(close.beyond({1e-4, 2e-3}), "");
  EXPECT_EQ(close.beyond({1e-3, 1e-4}),
            "half of the 1 logit rows that differ do so by 0.001 of their root mean square or more, tolerance 0.0001");
  EXPECT_EQ(far.add(step({{3, 4}, {5, -5}}), want, 0), "");
  EXPECT_EQ(far.beyond({0.5, 2}), "logits differ by 0.707 of their root mean square, tolerance 0.5");
  EXPECT_EQ(broken.add(step({{3, std::nanf("")}, {0, -5}}), want, 0), "");
  EXPECT_NE(broken.beyond({0.5, 0.5}), "");
  EXPECT_NE(other.add(step({{3, 4}}), want, 0), "");
  EXPECT_FALSE(tolerance_of(parse_layout("tp2dcp2").value(), DType::kF32).has_value());
  EXPECT_TRUE(tolerance_of(parse_layout("tp2dcp2+dcp_mode=merge").value(), DType::kBF16).has_value());
}

}  // namespace
}  // namespace weft
