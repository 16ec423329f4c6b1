#include "kernels/machine_bench/machine_bench.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

KernelBenchOptions quick() {
  KernelBenchOptions options;
  options.min_seconds = 0.005;
  options.min_repetitions = 2;
  return options;
}

TEST(MachineBench, LimitsArePlausible) {
  const auto limits = measure_machine(quick());
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  const MachineLimits& m = limits.value();
  EXPECT_EQ(m.read_bytes_per_s.size(), static_cast<size_t>(m.threads));
  EXPECT_GT(m.best_read_bytes_per_s(), 1e8);
  EXPECT_GT(m.f32_flops_per_s, 1e8);
  EXPECT_GT(m.f32_flops_per_s_one_thread, 1e8);
  EXPECT_GT(m.last_level_cache_bytes, 1 << 16);
  if (max_isa() >= Isa::kAvx2) {
    EXPECT_GT(m.int8_dot_ops_per_s, 0);
  }
}

TEST(MachineBench, RefusesALevelThatTheCpuLacks) {
  if (max_isa() == Isa::kAvx512Bf16) GTEST_SKIP();
  KernelBenchOptions options = quick();
  options.isa = Isa::kAvx512Bf16;
  const auto limits = measure_machine(options);
  ASSERT_FALSE(limits.ok());
  EXPECT_EQ(limits.status().code(), StatusCode::kInvalidArgument);
}

TEST(MachineBench, RowsHaveTheirFigures) {
  KernelBenchOptions options = quick();
  options.filter = "hc_pre M=1 4 x 4096";
  const auto limits = measure_machine(options);
  ASSERT_TRUE(limits.ok());
  std::vector<std::string> announced;
  const auto results =
      bench_kernels(options, limits.value(), [&](std::string_view what) { announced.emplace_back(what); });
  ASSERT_TRUE(results.ok()) << results.status().message();
  ASSERT_EQ(results.value().size(), 1u);
  EXPECT_EQ(announced.size(), 1u);
  const KernelBenchResult& row = results.value()[0];
  EXPECT_EQ(row.kernel, "hc_pre");
  EXPECT_GE(row.repetitions, 2);
  EXPECT_LE(row.seconds_min, row.seconds);
  EXPECT_LE(row.seconds, row.seconds_max);
  EXPECT_EQ(row.bytes, 24 * 16384 * 4 + (16384 + 4096) * 2);
  EXPECT_EQ(row.flops, 2.0 * 16384 * 26);
  EXPECT_NEAR(row.ratio, row.bytes / row.seconds / limits.value().best_read_bytes_per_s(), 1e-9);
  EXPECT_NEAR(row.compute_ratio, row.flops / row.seconds / limits.value().f32_flops_per_s, 1e-9);
  EXPECT_TRUE(row.meets_bar());
}

TEST(MachineBench, PeaksByPath) {
  MachineLimits limits;
  limits.f32_flops_per_s = 1;
  limits.bf16_dot_flops_per_s = 2;
  limits.int8_dot_ops_per_s = 4;
  EXPECT_EQ(limits.compute_peak(ComputePath::kF32Fma), 1);
  EXPECT_EQ(limits.compute_peak(ComputePath::kBf16Dot), 2);
  EXPECT_EQ(limits.compute_peak(ComputePath::kInt8Dot), 4);
}

TEST(MachineBench, Bars) {
  KernelBenchResult row;
  row.ratio = 0.7;
  EXPECT_TRUE(row.meets_bar());
  row.bar = 0.8;
  EXPECT_FALSE(row.meets_bar());
  row.bar = 0.7;
  EXPECT_TRUE(row.meets_bar());
  row.limit = BenchLimit::kShareOfLayer;
  row.bar = 0.03;
  EXPECT_FALSE(row.meets_bar());
  row.ratio = -0.01;
  EXPECT_TRUE(row.meets_bar());
  row.skipped = "why";
  EXPECT_FALSE(row.meets_bar());
}

}  // namespace
}  // namespace weft
