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

}  // namespace
}  // namespace weft
