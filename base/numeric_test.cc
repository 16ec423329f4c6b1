#include "base/numeric.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weft {
namespace {

// Every code survives decode -> encode; +0/-0 keep their sign bit.
TEST(Numeric, E4m3RoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if (std::isnan(value)) {
      EXPECT_EQ(code & 0x7f, 0x7f);
      continue;
    }
    EXPECT_EQ(float_to_e4m3(value), code) << value;
  }
}

// Nearest value and ties to even, against a search through all codes.
TEST(Numeric, E4m3Nearest) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code)), high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(float_to_e4m3(middle), code + (code & 1)) << middle;
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 1e9f)), code + 1);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 0.0f)), code);
  }
  EXPECT_EQ(float_to_e4m3(1e6f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-464.0f), 0xfe);
}

TEST(Numeric, E2m1) {
  for (int code = 0; code < 16; ++code) EXPECT_EQ(float_to_e2m1(e2m1_to_float(static_cast<uint8_t>(code))), code);
  // deepseek_v4.md 2.6: ties to the even code
  struct Case { float x, rounded; };
  for (auto [x, rounded] : {Case{1.25f, 1.0f}, {2.5f, 2.0f}, {0.75f, 1.0f}, {0.25f, 0.0f}, {5.0f, 4.0f}, {7.0f, 6.0f},
                            {3.5f, 4.0f}, {1.75f, 2.0f}, {-2.484f, -2.0f}, {0.738f, 0.5f}}) {
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(x)), rounded) << x;
  }
}

TEST(Numeric, E8m0) {
  EXPECT_EQ(e8m0_to_float(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(e8m0_to_float(1), std::ldexp(1.0f, -126));
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(254), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(Numeric, PowerOfTwoAbove) {
  // deepseek_v4.md 5.3
  struct Case { float absmax, scale; };
  for (auto [absmax, scale] : {Case{448, 1}, {449, 2}, {447, 1}, {1, 0x1p-8f}, {7, 0x1p-6f}, {1e-4f, 0x1p-22f}}) {
    EXPECT_EQ(power_of_two_above(absmax * (1 / 448.0f)), scale) << absmax;
  }
}

TEST(Numeric, Bf16) {
  EXPECT_EQ(round_bf16(1.00390625f), 1.0f);       // tie, to even
  EXPECT_EQ(round_bf16(1.01171875f), 1.015625f);  // tie, to even upwards
  EXPECT_TRUE(std::isnan(round_bf16(std::nanf(""))));
  EXPECT_TRUE(std::isinf(round_bf16(3.4e38f)));
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_float(0x83ff), -1023 * 0x1p-24f);
  EXPECT_TRUE(std::isinf(f16_to_float(0x7c00)));
}

}  // namespace
}  // namespace weft
