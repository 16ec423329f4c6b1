#include <gtest/gtest.h>

#include <set>

#include "models/layout_test_support.h"
#include "planner/calibration_cases.h"
#include "planner/comm_calibration.h"
#include "planner/cost_model.h"

namespace weft {
namespace {

// Every case is an op with inputs that it takes, and runs; every table is a full grid of points that lie apart.
TEST(Calibration, CasesRun) {
  auto bench = OpBench::make(1, 1, max_isa());
  ASSERT_TRUE(bench.ok()) << bench.status().message();
  for (const CalibrationTable& table : calibration_tables()) {
    SCOPED_TRACE(table.op);
    size_t points = 1;
    for (const size_t extent : table.extents) points *= extent;
    ASSERT_EQ(table.cases.size(), points);
    for (const OpCase& test : table.cases) {
      const auto out = std::visit([&](const auto& op) { return op.infer(test.in); }, test.op);
      ASSERT_TRUE(out.ok()) << out.status().message();
      EXPECT_EQ(op_name(test.op), table.op);
    }
    for (const bool cached : {false, true}) {
      const Result<double> seconds = (*bench)->measure(table.cases.front(), cached, 1e-4);
      ASSERT_TRUE(seconds.ok()) << seconds.status().message();
      EXPECT_GT(*seconds, 0);
      EXPECT_LT(*seconds, 1);
    }
  }
}

std::string product_of(const Op& op, TypeSpan in, TypeSpan out) {
  const Work work = std::visit([&](const auto& o) { return o.work(in, out, {}); }, op);
  return fmt::format("{} of {} by {}", op_name(op), dtype_name(work.activation), dtype_name(work.weight));
}

// Large products with stored weights, of every published checkpoint in the mode that it is run in, are measured as they are stored.
TEST(Calibration, HasTheProductsOfPublishedModels) {
  std::set<std::string> measured;
  for (const CalibrationTable& table : calibration_tables()) {
    const OpCase& test = table.cases.front();
    const auto out = std::visit([&](const auto& op) { return op.infer(test.in); }, test.op);
    ASSERT_TRUE(out.ok()) << out.status().message();
    measured.insert(product_of(test.op, test.in, *out));
  }
  for (const char* name :
       {"deepseek-v4-flash", "deepseek-v4-pro", "glm-5-fp8", "glm-5.1-w8a8", "glm-5.2-fp8", "deepseek-v3.2"}) {
    const auto model = published(name);
    GraphOptions options = graph_options(*model, 4, 512);
    options.mode = model->mode(DType::kBF16, std::nullopt);
    const auto graph = model->build(options);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    for (const Node& node : graph->nodes()) {
      const bool product = std::holds_alternative<Linear>(node.op) || std::holds_alternative<Experts>(node.op);
      if (!product || graph->value(node.in[1]).type.dtype() == DType::kF32) continue;
      const std::string text = product_of(node.op, types_of(*graph, node.in), types_of(*graph, node.out));
      EXPECT_TRUE(measured.contains(text)) << name << ": " << text;
    }
  }
}

TEST(Calibration, CollectivesOfThreadRanks) {
  DeviceProfile profile;
  const auto figure = [](double value) { return Figure{value, true, "test"}; };
  profile.name = "machine";
  profile.cores = 2;
  profile.visible_bytes = figure(1e9);
  profile.memory_bytes_per_s = figure(2e10);
  profile.matrix_flops_per_s[DType::kF32] = profile.vector_flops_per_s[DType::kF32] = figure(1e11);
  EfficiencyTable one;
  one.values = {1};
  one.provenance = figure(0);
  for (const char* kind : {"matrix", "memory"}) {
    one.op = kind;
    profile.efficiency.push_back(one);
  }
  const Status status = calibrate_thread_collectives(2, 1, profile);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(profile.links.size(), 1u);
  EXPECT_GT(profile.links[0].bytes_per_s.value, 1e7);
  EXPECT_EQ(profile.efficiency.size(), 2u + 7u);
  for (const EfficiencyTable& table : profile.efficiency) {
    for (const double value : table.values) EXPECT_GT(value, 0) << table.op;
  }
}

}  // namespace
}  // namespace weft
