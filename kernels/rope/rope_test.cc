#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include "kernels/lanes/test_array.h"

namespace weft {

void rope_ref(const RopeArgs& args);

namespace {

constexpr unsigned kSeed = 21;
constexpr RopeScaling kV4Scaling = {.factor = 16, .original_max_position_embeddings = 65536};

// deepseek_v4.md 2.4. Three roundings of fp32 separate a value from the formula in real numbers.
TEST(Rope, FrequenciesOfV4) {
  const auto f = rope_frequencies(160000, 64, kV4Scaling);
  ASSERT_EQ(f.size(), 32u);
  struct Case {
    size_t i;
    double value;
  };
  for (auto [i, value] : {Case{0, 1},
                          {1, 0.687656045},
                          {15, 3.63553858e-3},
                          {16, 2.265625e-3},
                          {17, 1.39680129e-3},
                          {20, 2.96977778e-4},
                          {24, 1.953125e-5},
                          {25, 5.37231267e-6},
                          {31, 5.68052904e-7}}) {
    EXPECT_NEAR(f[i] / value, 1, 3 * 0x1p-24) << i;
  }
  const auto plain = rope_frequencies(10000, 64, {});
  for (size_t i = 0; i < 32; ++i)
    EXPECT_NEAR(plain[i] * std::pow(10000.0, static_cast<double>(i) / 32), 1, 0x1p-23) << i;
}

// glm_moe_dsa.md 2.5: the ratios of the scaled to the plain frequencies.
TEST(Rope, FrequenciesOfV32) {
  const auto f = rope_frequencies(10000, 64, {.factor = 40, .original_max_position_embeddings = 4096});
  const auto plain = rope_frequencies(10000, 64, {});
  struct Case {
    size_t i;
    double ratio;
  };
  for (auto [i, ratio] :
       {Case{0, 1}, {10, 1}, {11, 0.925}, {15, 0.625}, {16, 0.55}, {20, 0.25}, {22, 0.1}, {23, 0.025}, {31, 0.025}}) {
    EXPECT_NEAR(f[i] / plain[i], ratio, 1e-6) << i;
  }
}

TEST(Rope, TableRoundsTheAngleFirst) {
  const int32_t positions[] = {0, 3, 700001};
  const float frequencies[] = {1.0f, 0.687656045f};
  float table[12];
  rope_table(positions, frequencies, table);
  EXPECT_EQ(table[0], 1.0f);
  EXPECT_EQ(table[1], 0.0f);
  const float angle = 700001.0f * 0.687656045f;  // off by up to 2^-6 from the product of real numbers
  EXPECT_EQ(table[10], static_cast<float>(std::cos(static_cast<double>(angle))));
  EXPECT_EQ(table[11], static_cast<float>(std::sin(static_cast<double>(angle))));
}

// deepseek_v4.md 2.4: pair (1, 2), f = 1, t = 3 -> (-1.272233, -1.838865)
TEST(Rope, Pair) {
  const int32_t positions[] = {3};
  const float frequencies[] = {1.0f};
  float table[2];
  rope_table(positions, frequencies, table);
  for (const auto& variant : rope_variants()) {
    if (variant.isa > max_isa()) continue;
    const float x[3] = {7, 1, 2};
    float y[3] = {NAN, NAN, NAN}, back[3] = {NAN, NAN, NAN};
    RopeArgs args{.x = x, .y = y, .num_rows = 1, .num_heads = 1, .head_dim = 3, .rotary_dims = 2, .table = table};
    variant.run(args);
    EXPECT_EQ(y[0], 7);
    EXPECT_NEAR(y[1], -1.272233, 1e-6) << variant.name;
    EXPECT_NEAR(y[2], -1.838865, 1e-6) << variant.name;
    args.x = y, args.y = back, args.direction = RopeDirection::kInverse;
    variant.run(args);
    EXPECT_NEAR(back[1], 1, 1e-6) << variant.name;
    EXPECT_NEAR(back[2], 2, 1e-6) << variant.name;
  }
}

// glm_moe_dsa.md 2.4: dim 4, f = (1, 0.01), position 1, x = (1, 2, 3, 4), in front of or behind a feature that is not rotated.
TEST(Rope, PairsAndPlace) {
  const int32_t positions[] = {1};
  const float frequencies[] = {1.0f, 0.01f};
  float table[4];
  rope_table(positions, frequencies, table);
  for (const auto& variant : rope_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const RopePlace place : {RopePlace::kLast, RopePlace::kFirst}) {
      const int at = place == RopePlace::kLast ? 1 : 0;
      float x[5], y[5];
      for (int i = 0; i < 4; ++i) x[at + i] = static_cast<float>(i + 1);
      x[4 - 4 * at] = 7;
      RopeArgs args{.x = x, .y = y, .num_rows = 1, .num_heads = 1, .head_dim = 5, .rotary_dims = 4, .table = table, .place = place};
      const double expected[2][4] = {{-1.142640, 1.922076, 2.959851, 4.029799}, {-1.984111, 1.959901, 2.462378, 4.019800}};
      for (const RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kHalfSplit}) {
        std::fill_n(y, 5, NAN);
        args.pairs = pairs;
        variant.run(args);
        for (int i = 0; i < 4; ++i) EXPECT_NEAR(y[at + i], expected[static_cast<int>(pairs)][i], 1e-6) << variant.name << " " << i;
        EXPECT_EQ(y[4 - 4 * at], 7) << variant.name;
      }
    }
  }
}

struct Case {
  int64_t rows, heads, head_dim, rotary_dims, offset;
};

TEST(Rope, VariantsEqualTheReference) {
  std::mt19937 random(kSeed);
  for (const auto& variant : rope_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const DType dtype : kFloatTypes) {
      for (const Case& c : {Case{0, 1, 8, 4, 0},
                            {1, 1, 2, 2, 0},
                            {2, 3, 8, 4, 1},
                            {2, 1, 20, 14, 3},
                            {3, 2, 16, 16, 0},
                            {2, 2, 24, 18, 1},
                            {1, 3, 33, 30, 5},
                            {2, 2, 64, 32, 0},
                            {1, 2, 66, 34, 2},
                            {3, 5, 128, 64, 0},
                            {2, 4, 512, 64, 7},
                            {2, 1, 67, 66, 1}}) {
        std::vector<int32_t> positions;
        for (int64_t row = 0; row < c.rows; ++row) positions.push_back(static_cast<int32_t>(random() % 1000000));
        std::vector<float> table(c.rows * c.rotary_dims);
        rope_table(positions, rope_frequencies(160000, c.rotary_dims, kV4Scaling), table.data());
        for (const int how : {0, 1, 2, 3, 4, 5, 6, 7}) {
          const auto direction = how % 2 == 0 ? RopeDirection::kForward : RopeDirection::kInverse;
          const auto pairs = how / 2 % 2 == 0 ? RopePairs::kInterleaved : RopePairs::kHalfSplit;
          const auto place = how < 4 ? RopePlace::kLast : RopePlace::kFirst;
          const int64_t count = c.rows * c.heads * c.head_dim;
          TestArray x(dtype, count, c.offset), expected(dtype, count), y(dtype, count, 2 * c.offset);
          x.fill(random);
          RopeArgs args{.x = x.data(),
                        .y = expected.data(),
                        .dtype = dtype,
                        .num_rows = c.rows,
                        .num_heads = c.heads,
                        .head_dim = c.head_dim,
                        .rotary_dims = c.rotary_dims,
                        .table = table.data(),
                        .direction = direction,
                        .pairs = pairs,
                        .place = place};
          rope_ref(args);
          args.y = y.data();
          variant.run(args);
          ASSERT_EQ(y.bits(), expected.bits()) << variant.name << " " << dtype_name(dtype) << " head_dim " << c.head_dim
                                               << " rotary " << c.rotary_dims << " pairs " << static_cast<int>(pairs)
                                               << " place " << static_cast<int>(place) << " seed " << kSeed;
          EXPECT_TRUE(y.guards_are_nan());
          args.y = x.data();
          variant.run(args);
          ASSERT_EQ(x.bits(), expected.bits()) << variant.name << " in place";
          EXPECT_TRUE(x.guards_are_nan());
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
