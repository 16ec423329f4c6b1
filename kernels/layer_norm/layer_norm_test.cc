#include "kernels/layer_norm/layer_norm.h"

#include <gtest/gtest.h>

#include "kernels/lanes/test_array.h"

namespace weft {

void layer_norm_ref(const LayerNormArgs& args);

namespace {

constexpr unsigned kSeed = 22;

TEST(LayerNorm, Formula) {
  // x = (1, 3): mean 2, variance 1
  const float x[2] = {1, 3}, w[2] = {2, 0.5f}, b[2] = {10, 20};
  for (const auto& variant : layer_norm_variants()) {
    if (variant.isa > max_isa()) continue;
    float y[2] = {NAN, NAN};
    variant.run({.x = x, .y = y, .num_rows = 1, .width = 2, .w = w, .b = b, .eps = 3});
    EXPECT_NEAR(y[0], 9, 1e-6) << variant.name;  // 2 * -1 / sqrt(1 + 3) + 10
    EXPECT_NEAR(y[1], 20.25, 1e-6) << variant.name;
    const float equal[2] = {5, 5};
    variant.run({.x = equal, .y = y, .num_rows = 1, .width = 2, .w = w, .b = b, .eps = 1e-6f});
    EXPECT_EQ(y[0], 10) << variant.name;
    EXPECT_EQ(y[1], 20) << variant.name;
  }
}

// The order of both sums shows in the bits: lanes of 16, then the tree.
TEST(LayerNorm, SumOrder) {
  const int64_t width = 40;
  std::mt19937 random(kSeed);
  TestArray x(DType::kF32, width), w(DType::kF32, width), b(DType::kF32, width), y(DType::kF32, width);
  x.fill(random);
  w.fill(random);
  b.fill(random);
  const auto tree = [](const float (&lane)[16]) {
    const auto l = [&](int j) { return (lane[j] + lane[j + 8]) + (lane[j + 4] + lane[j + 12]); };
    return (l(0) + l(2)) + (l(1) + l(3));
  };
  float sum[16] = {}, squares[16] = {};
  for (int64_t i = 0; i < width; ++i) sum[i % 16] += x.get(i);
  const float mean = tree(sum) / 40.0f;
  for (int64_t i = 0; i < width; ++i) squares[i % 16] = std::fma(x.get(i) - mean, x.get(i) - mean, squares[i % 16]);
  const float r = 1.0f / std::sqrt(tree(squares) / 40.0f + 1e-5f);
  for (const auto& variant : layer_norm_variants()) {
    if (variant.isa > max_isa()) continue;
    variant.run({.x = x.data(), .y = y.data(), .num_rows = 1, .width = width, .w = w.data(), .b = b.data(), .eps = 1e-5f});
    for (int64_t i = 0; i < width; ++i) {
      EXPECT_EQ(y.get(i), std::fma(w.get(i), (x.get(i) - mean) * r, b.get(i))) << variant.name << " " << i;
    }
  }
}

TEST(LayerNorm, VariantsEqualTheReference) {
  std::mt19937 random(kSeed);
  for (const auto& variant : layer_norm_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const DType dtype : kFloatTypes) {
      for (const DType w_dtype : kFloatTypes) {
        for (const int64_t width : {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 64, 100, 127, 128, 129, 512}) {
          for (const int64_t rows : {0, 1, 3}) {
            const bool in_place = width % 3 == 0;
            const int64_t offset = width % 4;
            TestArray x(dtype, rows * width, offset), expected(dtype, rows * width), y(dtype, rows * width, offset);
            TestArray w(w_dtype, width, offset), b(w_dtype, width);
            x.fill(random);
            w.fill(random);
            b.fill(random);
            LayerNormArgs args{.x = x.data(), .y = expected.data(), .dtype = dtype, .num_rows = rows, .width = width,
                               .w = w.data(), .b = b.data(), .w_dtype = w_dtype, .eps = 1e-6f};
            layer_norm_ref(args);
            TestArray& result = in_place ? x : y;
            args.y = result.data();
            variant.run(args);
            ASSERT_EQ(result.bits(), expected.bits())
                << variant.name << " " << dtype_name(dtype) << " width " << width << " rows " << rows << " seed " << kSeed;
            EXPECT_TRUE(result.guards_are_nan());
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
