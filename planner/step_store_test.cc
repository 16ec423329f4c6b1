// Plans with shared graphs are the plans without.
#include "planner/step_store.h"

#include <gtest/gtest.h>

#include <filesystem>
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
          const auto want = build_step(setting_of(*model, layouts[i]), key), have = build_step(setting_of(*model, same), key);
          ASSERT_EQ(want.ok(), have.ok()) << to_string(layouts[i]);
          if (!want.ok()) continue;
          ++built;
          EXPECT_EQ(to_text(have->graph), to_text(want->graph)) << to_string(layouts[i]) << " as " << to_string(same);
          EXPECT_EQ(have->memory, want->memory) << to_string(layouts[i]);
        }
      }
    }
  }
  EXPECT_GT(shared, 20);
  EXPECT_GT(built, 20);
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
