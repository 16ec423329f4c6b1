#include <gtest/gtest.h>

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
