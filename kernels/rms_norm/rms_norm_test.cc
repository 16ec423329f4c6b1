#include "kernels/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include "kernels/lanes/test_array.h"

namespace weft {

void rms_norm_ref(const RmsNormArgs& args);

namespace {

constexpr unsigned kSeed = 20;

TEST(RmsNorm, Formula) {
  // x = (3, 4), mean of squares 12.5
  const float x[2] = {3, 4}, w[2] = {2, 0.5f};
  float y[2] = {NAN, NAN};
  for (const auto& variant : rms_norm_variants()) {
    if (variant.isa > max_isa()) continue;
    variant.run({.x = x, .y = y, .x_stride = 2, .y_stride = 2, .num_rows = 1, .width = 2, .w = w, .eps = 0});
    EXPECT_NEAR(y[0], 6 / std::sqrt(12.5), 1e-6) << variant.name;
    EXPECT_NEAR(y[1], 2 / std::sqrt(12.5), 1e-6) << variant.name;
    const float zero[2] = {0, 0};
    variant.run({.x = zero, .y = y, .x_stride = 2, .y_stride = 2, .num_rows = 1, .width = 2, .eps = 1e-6f});
    EXPECT_EQ(y[0], 0) << variant.name;
  }
}

// Every step of kEachStep has eight significant bits: 1.7 squared is 2.890625 in bf16 (1.7 -> 1.703125), and so on.
TEST(RmsNorm, EachStepRounds) {
  TestArray x(DType::kBF16, 3), y(DType::kBF16, 3);
  const float values[3] = {1.7f, -0.3f, 2.9f};
  float sum = 0;
  for (int i = 0; i < 3; ++i) {
    x.set(i, values[i]);
    sum += round_bf16(x.get(i) * x.get(i));
  }
  const float r = round_bf16(1.0f / std::sqrt(round_bf16(round_bf16(sum / 3) + 1e-6f)));
  for (const auto& variant : rms_norm_variants()) {
    if (variant.isa > max_isa()) continue;
    variant.run({.x = x.data(),
                 .y = y.data(),
                 .dtype = DType::kBF16,
                 .x_stride = 3,
                 .y_stride = 3,
                 .num_rows = 1,
                 .width = 3,
                 .eps = 1e-6f,
                 .rounding = NormRounding::kEachStep});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(y.get(i), round_bf16(x.get(i) * r)) << variant.name;
  }
}

// The order of the sum shows in the bits: lanes of 16, then the tree.
TEST(RmsNorm, SumOrder) {
  const int64_t width = 40;
  std::mt19937 random(kSeed);
  TestArray x(DType::kF32, width), y(DType::kF32, width);
  x.fill(random);
  float lane[16] = {};
  for (int64_t i = 0; i < width; ++i) lane[i % 16] = std::fma(x.get(i), x.get(i), lane[i % 16]);
  const auto l = [&](int j) { return (lane[j] + lane[j + 8]) + (lane[j + 4] + lane[j + 12]); };
  const float sum = (l(0) + l(2)) + (l(1) + l(3));
  const float r = 1.0f / std::sqrt(sum / 40.0f + 1e-5f);
  for (const auto& variant : rms_norm_variants()) {
    if (variant.isa > max_isa()) continue;
    variant.run({.x = x.data(),
                 .y = y.data(),
                 .x_stride = width,
                 .y_stride = width,
                 .num_rows = 1,
                 .width = width,
                 .eps = 1e-5f});
    for (int64_t i = 0; i < width; ++i) EXPECT_EQ(y.get(i), x.get(i) * r) << variant.name << " " << i;
  }
}

struct Case {
  int64_t rows, width, pad, offset;
  bool in_place;
};

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const int64_t width : {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 512, 1000}) {
    result.push_back({3, width, 0, 0, false});
    result.push_back({2, width, 5, 1, false});
    result.push_back({2, width, 3, 3, true});
  }
  result.push_back({0, 16, 0, 0, false});
  result.push_back({1, 4096, 0, 0, false});
  return result;
}

TEST(RmsNorm, VariantsEqualTheReference) {
  std::mt19937 random(kSeed);
  for (const auto& variant : rms_norm_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const DType dtype : kFloatTypes) {
      for (const Case& c : cases()) {
        for (const int weight : {0, 1, 2, 3}) {  // none, F32, BF16, kEachStep
          if (weight == 3 && dtype != DType::kBF16) continue;
          const int64_t stride = c.width + c.pad, count = c.rows * stride;
          TestArray x(dtype, count, c.offset), expected(dtype, count), y(dtype, count, c.in_place ? 0 : c.offset);
          TestArray w(weight == 2 ? DType::kBF16 : DType::kF32, c.width, c.offset);
          x.fill(random, weight == 3 ? 3.0f : 1.0f);
          w.fill(random);
          RmsNormArgs args{.x = x.data(),
                           .y = expected.data(),
                           .dtype = dtype,
                           .x_stride = stride,
                           .y_stride = stride,
                           .num_rows = c.rows,
                           .width = c.width,
                           .eps = 1e-6f};
          if (weight == 1 || weight == 2) args.w = w.data(), args.w_dtype = w.dtype();
          if (weight == 3) args.rounding = NormRounding::kEachStep;
          rms_norm_ref(args);
          TestArray& result = c.in_place ? x : y;
          args.y = result.data();
          variant.run(args);
          for (int64_t row = 0; row < c.rows; ++row) {
            ASSERT_EQ(result.bits(row * stride, c.width), expected.bits(row * stride, c.width))
                << variant.name << " " << dtype_name(dtype) << " width " << c.width << " weight " << weight
                << " in place " << c.in_place << " seed " << kSeed;
            for (int64_t i = c.width; i < stride && !c.in_place; ++i) EXPECT_TRUE(std::isnan(y.get(row * stride + i)));
          }
          EXPECT_TRUE(result.guards_are_nan());
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
