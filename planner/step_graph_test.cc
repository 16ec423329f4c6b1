// The graph of few layers tells what the whole graph does: bytes, arena, traffic, and what each node of it costs.
#include "planner/step_graph.h"

#include <gtest/gtest.h>

#include <map>

#include "models/distinct_layers.h"
#include "models/test_support.h"
#include "planner/test_support.h"
#include "planner/traffic.h"

namespace weft {
namespace {

std::shared_ptr<const Model> shipped(const std::string& name) {
  auto checkpoint =
      Checkpoint::open_config(std::filesystem::path(WEFT_SOURCE_DIR) / "model_configs" / name / "config.json");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto model = open_model(std::make_shared<const Checkpoint>(std::move(*checkpoint)), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

Layout layout_of(const std::string& text) {
  const auto layout = parse_layout(text);
  EXPECT_TRUE(layout.ok()) << layout.status().message();
  return *layout;
}

TEST(DistinctLayers, RunsOfEqualPeriods) {
  const struct {
    const char* what;
    const char* kinds;  // a letter a layer
    int64_t periods;
    const char* expect;  // layer x count
  } cases[] = {
      {"none", "", 2, ""},
      {"one", "a", 2, "0x1"},
      {"all different", "abcd", 2, "0x1 1x1 2x1 3x1"},
      {"two equal are kept", "aa", 2, "0x1 1x1"},
      {"three: the parity asks for one more", "aaa", 2, "0x1 1x1 2x1"},
      {"four", "aaaa", 2, "0x3 3x1"},
      {"five", "aaaaa", 2, "0x1 1x3 4x1"},
      {"by turns, behind others", "xabababab", 2, "0x1 1x3 2x3 7x1 8x1"},
      {"two runs", "aaaabbbb", 2, "0x3 3x1 4x3 7x1"},
      {"more periods", "aaaaaaaa", 3, "0x1 1x1 2x5 7x1"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> kinds;
    for (const char* k = c.kinds; *k != 0; ++k) kinds.emplace_back(1, *k);
    std::string text;
    for (const LayerShare& share : distinct_layers(kinds, 0, c.periods)) {
      text += fmt::format("{}{}x{}", text.empty() ? "" : " ", share.layer, share.count);
    }
    EXPECT_EQ(text, c.expect) << c.what;
  }
}

struct Case {
  const char* model;
  const char* layout;
};
constexpr Case kCases[] = {
    {"deepseek-v4-flash", "tp1"},
    {"deepseek-v4-flash", "tp4+sp+dsa_cp"},
    {"deepseek-v4-flash", "tp8+ep8"},
    {"deepseek-v4-flash", "pcp4+split=zigzag+ep4"},
    {"deepseek-v4-flash", "pp5tp2"},
    {"deepseek-v4-pro", "dp2tp4+ep8+sp"},
    {"deepseek-v4-pro", "tp4+dsa_cp+owned"},
    {"deepseek-v4-pro", "pp16tp4+ep4"},
};

TEST(StepGraph, FewLayersStandForAll) {
  for (const Case& c : kCases) {
    const auto model = shipped(c.model);
    for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
      for (const GraphKind kind : {GraphKind::kTrunk, GraphKind::kDraft}) {
        const Layout layout = layout_of(c.layout);
        for (const int stage : {0, layout.mesh.pp / 2, layout.mesh.pp - 1}) {
          SCOPED_TRACE(fmt::format("{} {} phase {} kind {} stage {}", c.model, c.layout, static_cast<int>(phase),
                                   static_cast<int>(kind), stage));
          StepSetting setting;
          setting.model = model.get();
          setting.mode = model->mode(DType::kBF16, std::nullopt);
          setting.layout = layout;
          setting.cache = {.num_slots = 16, .num_pages = 512, .max_context = 8192, .draft_rows = 1};
          setting.threads = 3;
          const StepKey key{kind, phase, phase == StepPhase::kPrefill ? 1024 : 32, 8, stage};
          const auto few = build_step(setting, key);
          setting.expanded = true;
          const auto all = build_step(setting, key);
          ASSERT_TRUE(few.ok()) << few.status().message();
          ASSERT_TRUE(all.ok()) << all.status().message();
          EXPECT_EQ(few->memory.weight_bytes, all->memory.weight_bytes);
          EXPECT_EQ(few->memory.state_bytes, all->memory.state_bytes);
          EXPECT_EQ(few->memory.arena_bytes, all->memory.arena_bytes);
          EXPECT_EQ(few->memory.fullest, all->memory.fullest);
          EXPECT_EQ(few->received, all->received);
          EXPECT_EQ(few->sent, all->sent);
          EXPECT_EQ(few->num_nodes(), static_cast<int64_t>(all->graph.nodes().size()));
          EXPECT_EQ(nodes_of(*few), nodes_of(*all));
          EXPECT_EQ(traffic_of(*few, {3}), traffic_of(*all, {3}));
        }
      }
    }
  }
}

// sharding.md 5.2: nine decoded rows over tp4 have room for twelve, three on each rank; the router works on those three.
TEST(StepGraph, NineRowsTwelveThree) {
  const auto model = shipped("deepseek-v4-flash");
  StepSetting setting;
  setting.model = model.get();
  setting.mode = model->mode(DType::kBF16, std::nullopt);
  setting.layout = layout_of("dp8tp4+sp+ep32");
  setting.cache = {.num_slots = 9, .num_pages = 64, .max_context = 1024};
  const auto step = build_step(setting, {GraphKind::kTrunk, StepPhase::kDecode, 9, 9, 0});
  ASSERT_TRUE(step.ok()) << step.status().message();
  int routers = 0, dispatches = 0;
  for (const Node& node : step->graph.nodes()) {
    if (std::holds_alternative<MoeRoute>(node.op)) {
      ++routers;
      EXPECT_EQ(step->graph.value(node.in[0]).type.shape(), (Shape{3, 256}));
      EXPECT_EQ(step->graph.value(node.out[0]).type.shape(), (Shape{3, 6}));
    }
    if (const auto* dispatch = std::get_if<ExpertDispatch>(&node.op)) {
      ++dispatches;
      EXPECT_EQ(dispatch->capacity, 32 * 3);
    }
    if (std::holds_alternative<AllGather>(node.op) && step->graph.value(node.in[0]).type.rows == Rows::kTokens) {
      EXPECT_EQ(step->graph.value(node.in[0]).type.shape()[0], 3);
      EXPECT_EQ(step->graph.value(node.out[0]).type.shape()[0], 9);  // of the twelve, three are nobody's
    }
  }
  EXPECT_GT(routers, 0);
  EXPECT_GT(dispatches, 0);
}

// The layers of a kind decide what is built, not how many there are.
TEST(StepGraph, SizeOfTheGraphFollowsDistinctLayers) {
  for (const char* name : {"deepseek-v4-flash", "deepseek-v4-pro"}) {
    const auto model = shipped(name);
    StepSetting setting;
    setting.model = model.get();
    setting.mode = model->mode(DType::kBF16, std::nullopt);
    setting.layout = layout_of("tp4+sp");
    setting.cache = {.num_slots = 1, .num_pages = 32, .max_context = 8192};
    const auto step = build_step(setting, {GraphKind::kTrunk, StepPhase::kPrefill, 512, 1, 0});
    ASSERT_TRUE(step.ok());
    std::set<std::string> regions;
    for (const Node& node : step->graph.nodes()) regions.insert(node.region);
    EXPECT_LE(regions.size(), 14u) << name;
    EXPECT_GT(step->num_nodes(), 4 * static_cast<int64_t>(step->graph.nodes().size())) << name;
  }
}

}  // namespace
}  // namespace weft
