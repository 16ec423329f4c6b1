#include "kernels/swiglu/swiglu.h"

#include <gtest/gtest.h>

#include "kernels/lanes/test_array.h"

namespace weft {

void swiglu_ref(const SwigluArgs& args);

namespace {

constexpr unsigned kSeed = 23;

TEST(Swiglu, Formula) {
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  const float g[5] = {0, 1, -2, 12, -30}, u[5] = {3, -2, 50, -11, 0.5f};
  for (const auto& variant : swiglu_variants()) {
    if (variant.isa > max_isa()) continue;
    float y[5];
    variant.run({.g = g, .u = u, .y = y, .count = 5});
    for (int i = 0; i < 5; ++i)
      EXPECT_NEAR(y[i], silu(g[i]) * u[i], std::fabs(silu(g[i]) * u[i]) * 1e-6) << variant.name;
    variant.run({.g = g, .u = u, .y = y, .count = 5, .limit = 10});
    EXPECT_NEAR(y[2], silu(-2) * 10, 1e-5) << variant.name;     // u from above
    EXPECT_NEAR(y[3], silu(10) * -10, 1e-4) << variant.name;    // g from above, u from below
    EXPECT_NEAR(y[4], silu(-30) * 0.5, 1e-15) << variant.name;  // g is not clamped from below
  }
}

TEST(Swiglu, VariantsEqualTheReference) {
  std::mt19937 random(kSeed);
  for (const auto& variant : swiglu_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const DType dtype : kFloatTypes) {
      for (const float limit : {0.0f, 10.0f, 1.5f}) {
        for (const int64_t count : {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000, 2048}) {
          for (const int64_t offset : {0, 1, 5}) {
            TestArray g(dtype, count, offset), u(dtype, count, 2 * offset), y(dtype, count, offset),
                expected(dtype, count);
            g.fill(random, 3);
            u.fill(random, 5);
            SwigluArgs args{
                .g = g.data(), .u = u.data(), .y = expected.data(), .dtype = dtype, .count = count, .limit = limit};
            swiglu_ref(args);
            args.y = y.data();
            variant.run(args);
            ASSERT_EQ(y.bits(), expected.bits())
                << variant.name << " " << dtype_name(dtype) << " " << count << " seed " << kSeed;
            EXPECT_TRUE(y.guards_are_nan());
            args.y = offset == 1 ? u.data() : g.data();
            variant.run(args);
            ASSERT_EQ((offset == 1 ? u : g).bits(), expected.bits()) << variant.name << " in place";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
