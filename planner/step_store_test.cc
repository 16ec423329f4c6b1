// Plans with shared graphs are the plans without.
#include "planner/step_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>

#include "graph/text.h"
#include "models/test_support.h"
#include "planner/layout_space.h"
#include "planner/plan_store.h"
#include "planner/report.h"

namespace weft {
namespace {

StepSetting setting_of(const Model& model, const Layout& layout) {
  StepSetting setting;
  setting.model = &model;
  setting.mode = model.mode(DType::kBF16, std::nullopt);
  setting.layout = layout;
  setting.cache = {.num_slots = 3, .num_pages = 9, .max_context = 512};
  return setting;
}

// Weights and states are declared where they are first used or at the beginning, by the pass that made the graph: their lines do not count.
std::string text_of(const Graph& graph) {
  std::string kept, text = to_text(graph);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line(text.data() + at, end - at);
    if (!line.starts_with("weight ") && !line.starts_with("state ")) kept += line;
    at = end;
  }
  return kept;
}

TEST(StepStore, LayoutsThatLookAlikeInAPhaseHaveTheSameGraph) {
  const auto model = load_test_model("sample/austen-v4");
  LayoutSpaceOptions options;
  options.breadth = SpaceBreadth::kAll;
  int shared = 0, built = 0;
  for (const int devices : {2, 4}) {
    const std::vector<Layout> layouts = enumerate_layouts(*model, devices, options).layouts;
    for (size_t i = 0; i < layouts.size(); i += devices == 4 ? 61 : 5) {  // some of many
      for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
        const Layout same = phase_layout(layouts[i], phase);
        if (same == layouts[i]) continue;
        ++shared;
        for (const GraphKind kind : {GraphKind::kTrunk, GraphKind::kDraft}) {
          if (kind == GraphKind::kDraft && model->num_draft_layers() == 0) continue;
          const StepKey key{kind, phase, 13, 2, 0, {}};
          const auto want = build_step(setting_of(*model, layouts[i]), key),
                     have = build_step(setting_of(*model, same), key);
          ASSERT_EQ(want.ok(), have.ok()) << to_string(layouts[i]);
          if (!want.ok()) continue;
          ++built;
          EXPECT_EQ(text_of(have->graph), text_of(want->graph)) << to_string(layouts[i]) << " as " << to_string(same);
          EXPECT_EQ(have->memory.arena_bytes, want->memory.arena_bytes) << to_string(layouts[i]);
          EXPECT_EQ(have->memory.fullest, want->memory.fullest) << to_string(layouts[i]);
          EXPECT_EQ(have->memory.weight_bytes, want->memory.weight_bytes) << to_string(layouts[i]);
          EXPECT_EQ(have->memory.state_bytes, want->memory.state_bytes) << to_string(layouts[i]);
        }
      }
    }
  }
  EXPECT_GT(shared, 20);
  EXPECT_GT(built, 20);
}

std::shared_ptr<const Model> shipped(const std::string& name) {
  return model_of(
      Checkpoint::open_config(std::filesystem::path(WEFT_SOURCE_DIR) / "model_configs" / name / "config.json"));
}

WholeGraph built_by(const Model& model) {
  return [&model](GraphKind kind, const GraphOptions& options) -> Result<std::shared_ptr<const Graph>> {
    WEFT_ASSIGN_OR_RETURN(Graph graph, kind == GraphKind::kTrunk ? model.build(options) : model.build_draft(options));
    return std::make_shared<const Graph>(std::move(graph));
  };
}

// What nothing but a size changes is the graph that is built with that size: every type, every attribute, every offset.
TEST(SizedStep, ResizedIsTheGraphThatIsBuilt) {
  const struct {
    std::shared_ptr<const Model> model;
    int every;  // layouts
  } cases[] = {{load_test_model("sample/austen-v4"), 23},
               {load_test_model("golden/glm_moe_dsa/glm51_w8a8"), 29},
               {shipped("deepseek-v4-flash"), 211},
               {shipped("glm-5.1"), 307}};
  LayoutSpaceOptions options;
  options.breadth = SpaceBreadth::kAll;
  int compared = 0;
  for (const auto& c : cases) {
    std::vector<Layout> layouts = {Layout()};
    for (const int devices : {2, 4, 8}) {
      const LayoutSpace space = enumerate_layouts(*c.model, devices, options);
      for (size_t i = 0; i < space.layouts.size(); i += static_cast<size_t>(c.every))
        layouts.push_back(space.layouts[i]);
    }
    for (size_t l = 0; l < layouts.size(); ++l) {
      const StepPhase phase = l % 2 == 0 ? StepPhase::kDecode : StepPhase::kPrefill;
      const GraphKind kind = l % 5 == 4 && c.model->num_draft_layers() > 0 ? GraphKind::kDraft : GraphKind::kTrunk;
      StepSetting small = setting_of(*c.model, layouts[l]);
      small.cache.page_tokens *= layouts[l].mesh.dcp;
      StepSetting large = small;
      large.cache.num_slots = 40;
      large.cache.num_pages = 117;
      const int stage = layouts[l].mesh.pp - 1;
      auto sized = SizedStep::build(small, {kind, phase, 16, 16, stage, {}}, 2, built_by(*c.model));
      ASSERT_TRUE(sized.ok()) << to_string(layouts[l]) << ": " << sized.status().message();
      for (const auto& [tokens, logits] : {std::pair<int64_t, int64_t>(1024, 1), {40, 40}, {1, 1}, {16, 16}}) {
        const StepKey key{kind, phase, tokens, logits, stage, {}};
        const auto want = SizedStep::build(large, key, 2, built_by(*c.model));
        ASSERT_TRUE(want.ok()) << want.status().message();
        ASSERT_TRUE(sized->resize(large, key).ok());
        SCOPED_TRACE(fmt::format("{} {} phase {} kind {} rows {}", c.model->family(), to_string(layouts[l]),
                                 static_cast<int>(phase), static_cast<int>(kind), tokens));
        EXPECT_TRUE(sized->step().graph == want->step().graph) << to_text(sized->step().graph) << "\n---\n"
                                                               << to_text(want->step().graph);
        EXPECT_EQ(sized->step().memory, want->step().memory);
        EXPECT_EQ(sized->settled(), want->settled());
        EXPECT_TRUE(verify(sized->step().graph).ok());
        ++compared;
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(compared, 200);
}

// Weights of steps whose graphs need different numbers of periods are counted once: those of the graph that has all layers.
TEST(StepStore, WeightsDoNotDependOnPeriods) {
  const auto model = shipped("deepseek-v4-flash");
  for (const char* text : {"dp2pcp4+ep8", "pcp4+ep4", "tp4+dsa_cp+o_proj=streamed", "tp2"}) {
    PlanRequest request;
    request.model = model;
    request.layout = *parse_layout(text);
    auto device = std::make_shared<DeviceProfile>();
    device->name = "none";
    request.device = device;
    request.engine = std::make_shared<const EngineProfile>();
    request.mode = model->mode(DType::kBF16, std::nullopt);
    request.batch = 16;
    PlanOptions options;
    options.times = false;
    const auto plan = make_plan(request, options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::map<std::string, int64_t> bytes;  // the most of all steps
    for (const StepPhase phase : {StepPhase::kPrefill, StepPhase::kDecode}) {
      StepSetting setting = setting_of(*model, request.layout);
      setting.expanded = true;
      const auto all = build_step(setting, {GraphKind::kTrunk, phase, 16, 16, 0, {}});
      ASSERT_TRUE(all.ok()) << all.status().message();
      for (const Value& value : all->graph.values()) {
        if (is_weight(value.role)) bytes[value.name] = std::max(bytes[value.name], value.type.tensor.bytes());
      }
    }
    int64_t sum = 0;
    for (const auto& [name, n] : bytes) sum += n;
    EXPECT_EQ(plan->ledger[0].weight_bytes, sum) << text;
  }
}

// The cost of a plan: graphs that are built. It follows the kinds of layers and stages, not their number or that of ranks.
TEST(StepStore, GraphsBuiltFollowDistinctLayers) {
  const auto model = shipped("deepseek-v4-pro");
  const auto device = load_device_profile("h200-sxm", {std::filesystem::path(WEFT_SOURCE_DIR) / "devices"});
  ASSERT_TRUE(device.ok());
  const auto built = [&](const std::string& layout, int64_t batch) {
    PlanRequest request;
    request.model = model;
    request.layout = *parse_layout(layout);
    request.device = std::make_shared<const DeviceProfile>(*device);
    request.engine = std::make_shared<const EngineProfile>();
    request.mode = model->mode(DType::kBF16, std::nullopt);
    request.batch = batch;
    request.drafts = 3;
    PlanStore store;
    PlanOptions options;
    options.store = &store;
    const auto plan = make_plan(request, options);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return store.graphs.counts().built;
  };
  const int64_t one_stage = built("tp8+ep8", 16);
  EXPECT_EQ(built("dp8tp8+ep8", 512), one_stage);     // 64 ranks
  EXPECT_EQ(built("dp512tp8+ep8", 4096), one_stage);  // 4096 ranks
  const int64_t stages = built("pp8tp8+ep8", 16);
  EXPECT_LE(stages, 9 * one_stage);  // eight stages, some of which need more periods
  EXPECT_EQ(built("dp64pp8tp8+ep8", 4096), stages);
  EXPECT_LE(one_stage, 10);
}

// Bytes, traffic and times of whole plans; layouts, batches and phases in an order that makes the store answer from what it has.
TEST(PlanStore, PlansAreTheSameWithAndWithout) {
  const auto model = load_test_model("sample/austen-v4");
  const auto device = load_device_profile("h20-96g", {std::filesystem::path(WEFT_SOURCE_DIR) / "devices"});
  ASSERT_TRUE(device.ok()) << device.status().message();
  LayoutSpaceOptions all;
  all.breadth = SpaceBreadth::kAll;
  std::vector<Layout> layouts;
  for (const int devices : {1, 2, 4}) {
    const LayoutSpace space = enumerate_layouts(*model, devices, all);
    layouts.insert(layouts.end(), space.layouts.begin(), space.layouts.end());
  }
  auto engine = std::make_shared<EngineProfile>();
  engine->name = "weft";
  PlanRequest request;
  request.model = model;
  request.model_name = "austen";
  request.device = std::make_shared<const DeviceProfile>(*device);
  request.engine = engine;
  request.mode = model->mode(DType::kBF16, std::nullopt);
  request.prompt = 100;
  request.gen = 8;
  PlanStore store(24);  // few graphs: some are forgotten
  for (uint64_t seed = 0; seed < 150; ++seed) {
    std::mt19937_64 random(seed);
    request.layout = layouts[random() % layouts.size()];
    request.phase = static_cast<PlanPhase>(random() % 3);
    request.chunk = random() % 2 == 0 ? 0 : 48;
    request.batch = request.layout.mesh.dp * static_cast<int64_t>(1 + random() % 9);
    PlanOptions options;
    options.ops = false;
    options.max_batch = seed % 10 == 0;  // plans many sizes
    const auto want = make_plan(request, options);
    options.store = &store;
    const auto have = make_plan(request, options);
    ASSERT_EQ(want.ok(), have.ok()) << "seed " << seed << " " << to_string(request.layout);
    if (!want.ok()) continue;
    auto a = plan_json(*want), b = plan_json(*have);
    a.erase("planning_s");
    b.erase("planning_s");
    EXPECT_EQ(a.dump(), b.dump()) << "seed " << seed << " " << to_string(request.layout) << " batch " << request.batch;
  }
}

}  // namespace
}  // namespace weft
