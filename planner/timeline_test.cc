// Schedules of steps: nothing is lost, streams overlap, and few layers take the time of all.
#include "planner/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/test_support.h"

namespace weft {
namespace {

std::shared_ptr<const Model> flash() {
  auto checkpoint =
      Checkpoint::open_config(std::filesystem::path(WEFT_SOURCE_DIR) / "model_configs/deepseek-v4-flash/config.json");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto model = open_model(std::make_shared<const Checkpoint>(std::move(*checkpoint)), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

StepGraph step_of(const Model& model, const std::string& layout, bool expanded) {
  StepSetting setting;
  setting.model = &model;
  setting.mode = model.mode(DType::kBF16, std::nullopt);
  setting.layout = *parse_layout(layout);
  setting.cache = {.num_slots = 1, .num_pages = 32, .max_context = 8192};
  setting.expanded = expanded;
  auto step = build_step(setting, {GraphKind::kTrunk, StepPhase::kPrefill, 512, 1, 0});
  EXPECT_TRUE(step.ok()) << step.status().message();
  return std::move(*step);
}

// A time for every node that depends on what it is, not on where it stands.
std::vector<OpCost> costs_of(const StepGraph& step) {
  std::vector<OpCost> costs;
  for (const Node& node : step.graph.nodes()) {
    OpCost cost;
    cost.seconds = 1 + static_cast<double>(op_name(node.op).size() % 5) + static_cast<double>(node.in.size());
    if (node.stream != Stream::kCompute) cost.seconds *= 3;
    costs.push_back(cost);
  }
  return costs;
}

TEST(Timeline, OneAfterAnother) {
  const auto model = flash();
  for (const bool expanded : {false, true}) {
    const StepGraph step = step_of(*model, "tp4+dsa_cp+sp+o_proj=streamed", expanded);
    const std::vector<OpCost> costs = costs_of(step);
    double sum = 0;
    for (size_t n = 0; n < costs.size(); ++n) sum += costs[n].seconds * static_cast<double>(step.node_repeat[n]);
    const Timeline timeline = schedule(step, costs, {.streams = false, .events = true});
    EXPECT_NEAR(timeline.makespan_s, sum, 1e-6);
    ASSERT_EQ(timeline.events.size(), costs.size());
    // With every layer as often as it stands for others, one after another from the begin to the end.
    std::vector<std::pair<double, double>> all;
    for (const TimelineEvent& e : timeline.events) {
      for (int64_t layer = 0; layer < e.repeat; ++layer) {
        const double start = e.start_s + static_cast<double>(layer) * e.period_s;
        all.emplace_back(start, start + e.seconds);
      }
    }
    std::sort(all.begin(), all.end());
    double end = 0;
    for (const auto& [from, to] : all) {
      EXPECT_NEAR(from, end, 1e-6);
      end = to;
    }
    EXPECT_NEAR(end, sum, 1e-6);
  }
}

TEST(Timeline, StreamsOverlap) {
  const auto model = flash();
  const char* layouts[] = {"tp4", "tp4+sp", "tp4+dsa_cp+sp+o_proj=streamed",
                           "tp4+dsa_cp+sp+o_proj=streamed+prefetch=on", "tp4+sp+ep4"};
  for (const char* layout : layouts) {
    const StepGraph few = step_of(*model, layout, false), all = step_of(*model, layout, true);
    const Timeline serial = schedule(few, costs_of(few), {.streams = false});
    const Timeline overlapped = schedule(few, costs_of(few), {.streams = true});
    const Timeline whole = schedule(all, costs_of(all), {.streams = true});
    EXPECT_LE(overlapped.makespan_s, serial.makespan_s + 1e-6) << layout;
    EXPECT_GE(overlapped.makespan_s, serial.makespan_s - serial.exposed_s - 1e-6)
        << layout;  // no less than what is computed
    EXPECT_NEAR(overlapped.makespan_s, whole.makespan_s, 0.01 * whole.makespan_s) << layout;
  }
}

// The same nodes in another order: the gathers of a layer's weights run beside its attention.
TEST(Timeline, PrefetchHidesTheWeights) {
  const auto model = flash();
  const std::string layout = "tp4+dsa_cp+sp+o_proj=streamed";
  const StepGraph late = step_of(*model, layout, false), early = step_of(*model, layout + "+prefetch=on", false);
  ASSERT_EQ(late.graph.nodes().size(), early.graph.nodes().size());
  const auto makespan = [](const StepGraph& step, bool streams) {
    return schedule(step, costs_of(step), {.streams = streams}).makespan_s;
  };
  EXPECT_LT(makespan(early, true), 0.98 * makespan(late, true));
  EXPECT_NEAR(makespan(early, false), makespan(late, false), 1e-6);  // one after another: nothing to hide behind
}

}  // namespace
}  // namespace weft
