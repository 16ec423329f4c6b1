#include "kernels/vector_math/vector_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace weft {
namespace {

using Function = VectorMathArgs::Function;
constexpr Function kFunctions[] = {Function::kExp, Function::kSigmoid, Function::kSilu};

// Bit patterns of all exponents (both signs, infinities and NaN among them), and the edges.
std::vector<float> sample_inputs() {
  std::vector<float> x = {0.0f,
                          -0.0f,
                          1.0f,
                          -1.0f,
                          87.3f,
                          -87.3f,
                          88.7f,
                          -88.7f,
                          88.8f,
                          -88.8f,
                          200.0f,
                          -200.0f,
                          std::nextafter(-87.3f, -100.0f),
                          std::nextafter(88.7f, 100.0f),
                          1e-30f,
                          1e-40f,
                          -1e-40f,
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::signaling_NaN()};
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099 * 16) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  for (float v = -87.3f; v <= 88.7f; v += 0.00377f) x.push_back(v);
  return x;
}

double ulp(double reference) {
  int exponent = 0;
  std::frexp(reference, &exponent);
  return std::ldexp(1.0, std::max(exponent, -125) - 24);
}

TEST(VectorMath, ErrorInUlp) {
  for (float x : sample_inputs()) {
    if (!(x >= -87.3f && x <= 88.7f)) continue;
    const double exact = std::exp(static_cast<double>(x));
    EXPECT_LE(std::abs(exp_f32(x) - exact), 1.0 * ulp(exact)) << "x = " << x;
    const double e = std::exp(-static_cast<double>(x));
    // Half an ulp each for the sum and the division, and exp's own.
    if (x > -87 && x < 87) {
      EXPECT_LE(std::abs(sigmoid_f32(x) - 1 / (1 + e)), 2.5 * ulp(1 / (1 + e))) << "x = " << x;
      EXPECT_LE(std::abs(silu_f32(x) - x / (1 + e)), 2.5 * ulp(x / (1 + e))) << "x = " << x;
    }
  }
}

TEST(VectorMath, Edges) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-inf), 0.0f);
  EXPECT_EQ(exp_f32(inf), inf);
  EXPECT_EQ(exp_f32(std::nextafter(-87.3f, -100.0f)), 0.0f);
  EXPECT_EQ(exp_f32(std::nextafter(88.7f, 100.0f)), inf);
  EXPECT_TRUE(std::isnormal(exp_f32(-87.3f)));
  EXPECT_TRUE(std::isfinite(exp_f32(88.7f)));
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(sigmoid_f32(inf), 1.0f);
  EXPECT_EQ(sigmoid_f32(-inf), 0.0f);
  EXPECT_EQ(silu_f32(-200.0f), -0.0f);
}

TEST(VectorMath, VariantsGiveTheSameBits) {
  const std::vector<float> x = sample_inputs();
  const int64_t n = static_cast<int64_t>(x.size());
  for (const auto& variant : vector_math_variants()) {
    if (variant.isa > max_isa()) continue;
    for (Function function : kFunctions) {
      std::vector<float> expected(x.size()), y(x.size() + 1, 77.0f);
      vector_math_variants().back().run({function, x.data(), expected.data(), n});
      variant.run({function, x.data(), y.data(), n});
      int differences = 0;
      for (int64_t i = 0; i < n; ++i) differences += std::bit_cast<int>(expected[i]) != std::bit_cast<int>(y[i]);
      EXPECT_EQ(differences, 0) << variant.name << " function " << static_cast<int>(function);
      EXPECT_EQ(y[x.size()], 77.0f);
    }
  }
}

TEST(VectorMath, DotAddsLanesInTheFixedTree) {
  // 2^24 + 1 is lost unless the ones meet first: lanes 1 and 9 make 2, which then counts.
  std::vector<float> x(16, 0.0f), ones(16, 1.0f);
  x[0] = 0x1p24f;
  x[1] = x[9] = 1.0f;
  EXPECT_EQ(dot_f32(x.data(), ones.data(), 16), 0x1p24f + 2.0f);
  x[9] = 0.0f;
  EXPECT_EQ(dot_f32(x.data(), ones.data(), 16), 0x1p24f);
  EXPECT_EQ(dot_f32(x.data(), ones.data(), 1), 0x1p24f);
  EXPECT_EQ(dot_f32(x.data(), ones.data(), 0), 0.0f);
}

TEST(VectorMath, PairsTakeTheSecondFirst) {
  const std::vector<float> ones(4, 1.0f);
  EXPECT_EQ(dot_bf16_pairs(std::vector<float>{1.0f, 0x1p24f, 1.0f, 0.0f}.data(), ones.data(), 4), 0x1p24f);       // 2^24 + 1, twice
  EXPECT_EQ(dot_bf16_pairs(std::vector<float>{0x1p24f, 1.0f, 0.0f, 1.0f}.data(), ones.data(), 4), 0x1p24f);       // 1 + 2^24, + 1
  EXPECT_EQ(dot_bf16_pairs(std::vector<float>{1.0f, 1.0f, 0x1p24f, 0.0f}.data(), ones.data(), 4), 0x1p24f + 2.0f);
  EXPECT_EQ(fma_no_subnormals(0x1p-127f, 4.0f, 0.0f), 0.0f);
  EXPECT_EQ(fma_no_subnormals(0x1p-80f, 0x1p-80f, 0x1p-126f), 0x1p-126f);
  EXPECT_EQ(fma_no_subnormals(0x1p-64f, 0x1p-64f, 0.0f), 0.0f);
}

TEST(VectorMath, AnyLengthInPlace) {
  for (const auto& variant : vector_math_variants()) {
    if (variant.isa > max_isa()) continue;
    for (int64_t n = 0; n <= 40; ++n) {
      std::vector<float> y(n + 2, 77.0f);
      for (int64_t i = 0; i < n; ++i) y[i + 1] = 0.25f * static_cast<float>(i - 20);
      variant.run({Function::kExp, y.data() + 1, y.data() + 1, n});
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(y[i + 1], exp_f32(0.25f * static_cast<float>(i - 20))) << variant.name;
      EXPECT_EQ(y[0], 77.0f);
      EXPECT_EQ(y[n + 1], 77.0f);
    }
  }
}

}  // namespace
}  // namespace weft
