#include "kernels/quantise/quantise.h"

#include <gtest/gtest.h>

#include "kernels/lanes/test_array.h"

namespace weft {

void quantise_ref(const QuantiseArgs& args);

namespace {

constexpr unsigned kSeed = 22;

struct Example {
  QuantFormat format;
  std::vector<float> x, y;
};

// deepseek_v4.md 2.5.6 and 2.6, and 5.3 by its scales: 449 -> 2: step of [256, 512) * 2 is 64.
TEST(Quantise, WorkedExamples) {
  const Example kExamples[] = {
      {QuantFormat::kFp8, {3.0f, 0.10009766f, -0.00099945f, 1.0e-5f}, {3.0f, 0.1015625f, -0.00097656f, 1.526e-5f}},
      {QuantFormat::kFp4, {2.90625f, 0.369f, -1.242f, 0.625f, 1.25f, 0.375f, 0.125f}, {3, 0.25f, -1, 0.5f, 1, 0.5f, 0}},
      {QuantFormat::kFp8, {448, 447, -1}, {448, 448, -1}},
      {QuantFormat::kFp8, {449, 420, 3.0f}, {448, 416, 3.0f}},
      {QuantFormat::kFp8, {7.0f, 6.8f}, {7.0f, 7.0f}},
      {QuantFormat::kFp8, {7.1f, 6.4f}, {7.0f, 6.5f}},                      // scale 2^-5, steps of 0.5
      {QuantFormat::kFp8, {1e-4f, 5e-5f, 0}, {9.9182e-5f, 4.9591e-5f, 0}},  // scale 2^-22
      {QuantFormat::kFp8, {0, 0, 0}, {0, 0, 0}},
      {QuantFormat::kFp8AnyScale, {5.0f, 2.5f, 0.1f}, {5.0f, 2.5f, 0.1004464f}},  // codes 448, 224, 9 (8.96 rounded)
      {QuantFormat::kFp8AnyScale, {7.1f, 6.4f}, {7.1f, 6.5928571f}},             // 403.8 rounds to 416
      {QuantFormat::kFp8AnyScale, {1e-4f, 5e-5f, 0}, {1e-4f, 5e-5f, 0}},
      {QuantFormat::kFp8AnyScale, {0, 0, 0}, {0, 0, 0}},
      {QuantFormat::kFp4, {0, 0}, {0, 0}},
      {QuantFormat::kFp4, {6, 4.9f, 5.0f, 5.1f, -2.5f, -3.5f, 0.75f}, {6, 4, 4, 6, -2, -4, 1}},
  };
  for (const auto& variant : quantise_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const Example& e : kExamples) {
      const auto n = static_cast<int64_t>(e.x.size());
      TestArray x(DType::kF32, n), y(DType::kF32, n);
      for (int64_t i = 0; i < n; ++i) x.set(i, e.x[i]);
      variant.run({.x = x.data(),
                   .y = y.data(),
                   .x_stride = n,
                   .y_stride = n,
                   .num_rows = 1,
                   .width = n,
                   .begin = 0,
                   .end = n,
                   .block = 64,
                   .format = e.format});
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_NEAR(y.get(i), e.y[i], std::fabs(e.y[i]) * 1e-4) << variant.name << " x = " << e.x[i];
      }
    }
  }
}

// One rounding step against base/numeric for values all over the range of a block.
TEST(Quantise, EveryPlaceOfTheGrid) {
  for (const auto& variant : quantise_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kFp8AnyScale, QuantFormat::kFp4}) {
      const float max = format == QuantFormat::kFp4 ? 6.0f : 448.0f;
      std::vector<float> x, y;
      for (float v = max; v > 1e-5f; v *= 0.9993f) x.push_back(x.size() % 2 == 0 ? v : -v);
      for (int code = 0; code < 127; ++code) {  // the grid, its midpoints, and the numbers beside them
        const float low = e4m3_to_float(static_cast<uint8_t>(code)),
                    high = e4m3_to_float(static_cast<uint8_t>(code + 1));
        for (const float v :
             {low, (low + high) / 2, std::nextafter((low + high) / 2, 0.0f), std::nextafter((low + high) / 2, 1e9f)}) {
          if (v <= max) x.push_back(v), x.push_back(-v);
        }
      }
      for (int step = 0; step <= 48; ++step) {
        const float v = static_cast<float>(step) / 8;
        for (const float w : {v, std::nextafter(v, 9.0f), std::nextafter(v, 0.0f)}) {
          if (w <= max) x.push_back(w), x.push_back(-w);
        }
      }
      while (x.size() % 64 != 0) x.push_back(0);
      for (size_t i = 63; i < x.size(); i += 64) x[i] = max;  // every block has scale 1
      y.resize(x.size());
      const auto n = static_cast<int64_t>(x.size());
      variant.run({.x = x.data(),
                   .y = y.data(),
                   .x_stride = n,
                   .y_stride = n,
                   .num_rows = 1,
                   .width = n,
                   .begin = 0,
                   .end = n,
                   .block = 64,
                   .format = format});
      for (size_t i = 0; i < x.size(); ++i) {
        const float expected =
            format == QuantFormat::kFp4 ? e2m1_to_float(float_to_e2m1(x[i])) : e4m3_to_float(float_to_e4m3(x[i]));
        ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected)) << variant.name << " x = " << x[i];
      }
    }
  }
}

// H is symmetric and orthonormal: rows of Sylvester's matrix have the sign (-1)^popcount(i & j).
TEST(Quantise, Hadamard) {
  const int64_t n = 128;
  TestArray x(DType::kF32, n), y(DType::kF32, n);
  for (const auto& variant : quantise_variants()) {
    if (variant.isa > max_isa()) continue;
    for (int64_t i : {0, 1, 5, 64, 127}) {
      for (int64_t j = 0; j < n; ++j) x.set(j, j == i ? 1.0f : 0.0f);
      variant.run({.x = x.data(),
                   .y = y.data(),
                   .x_stride = n,
                   .y_stride = n,
                   .num_rows = 1,
                   .width = n,
                   .begin = 0,
                   .end = 0,
                   .block = 32,
                   .format = QuantFormat::kFp4,
                   .hadamard = true});
      for (int64_t j = 0; j < n; ++j) {
        const float sign = std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1.0f : -1.0f;
        ASSERT_EQ(y.get(j), sign * 0.088388347f) << variant.name << " " << i << " " << j;
      }
    }
  }
}

struct Case {
  int64_t rows, width, begin, end, block, offset;
  bool hadamard;
};

TEST(Quantise, VariantsEqualTheReference) {
  std::mt19937 random(kSeed);
  const Case kCases[] = {
      {0, 64, 0, 64, 64, 0, false},    {2, 1, 0, 1, 128, 0, false},       {3, 17, 0, 17, 32, 1, false},
      {2, 64, 0, 64, 64, 0, false},    {2, 512, 0, 448, 64, 0, false},    {2, 512, 0, 448, 64, 3, false},
      {3, 130, 0, 130, 128, 1, false}, {2, 100, 7, 91, 32, 2, false},     {1, 300, 3, 300, 33, 1, false},
      {2, 128, 0, 128, 32, 0, true},   {3, 64, 0, 64, 32, 1, true},       {2, 16, 0, 16, 32, 0, true},
      {2, 8, 0, 8, 4, 1, true},        {2, 1, 0, 1, 1, 0, true},          {1, 1024, 0, 512, 32, 1, true},
      {2, 32, 0, 0, 32, 0, true},      {1, 4096, 0, 4096, 128, 0, false}, {1, 15, 5, 5, 8, 0, false},
  };
  for (const auto& variant : quantise_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const DType dtype : kFloatTypes) {
      for (const Case& c : kCases) {
        for (const QuantFormat format : {QuantFormat::kFp8, QuantFormat::kFp8AnyScale, QuantFormat::kFp4}) {
          for (const float scale : {1.0f, 1e-6f, 1e4f, 1e-37f}) {
            const int64_t stride = c.width + 5, count = c.rows * stride;
            TestArray x(dtype, count, c.offset), expected(dtype, count), y(dtype, count, c.offset);
            x.fill(random, scale);
            QuantiseArgs args{.x = x.data(),
                              .y = expected.data(),
                              .dtype = dtype,
                              .x_stride = stride,
                              .y_stride = stride,
                              .num_rows = c.rows,
                              .width = c.width,
                              .begin = c.begin,
                              .end = c.end,
                              .block = c.block,
                              .format = format,
                              .hadamard = c.hadamard};
            quantise_ref(args);
            args.y = y.data();
            variant.run(args);
            ASSERT_EQ(y.bits(), expected.bits()) << variant.name << " " << dtype_name(dtype) << " width " << c.width
                                                 << " block " << c.block << " scale " << scale << " seed " << kSeed;
            EXPECT_TRUE(y.guards_are_nan());
            args.y = x.data();
            variant.run(args);
            for (int64_t row = 0; row < c.rows; ++row) {
              ASSERT_EQ(x.bits(row * stride, c.width), expected.bits(row * stride, c.width))
                  << variant.name << " in place";
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
