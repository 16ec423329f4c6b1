// Activations of int8: the worked examples of glm_moe_dsa.md 5.4, the formula, and the bits of every variant.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/numeric.h"
#include "kernels/linear/linear.h"

namespace weft {
namespace {

constexpr unsigned kSeed = 31;

struct Case {
  int64_t rows, k, cols, k_blocks = 1;
  ActQuant quant = ActQuant::kInt8PerRow;
  DType x_dtype = DType::kF32, y_dtype = DType::kF32;
  bool bias = true;
  int threads = 1;

  std::string name() const {
    return "M " + std::to_string(rows) + " K " + std::to_string(k) + " N " + std::to_string(cols) + " k_blocks " +
           std::to_string(k_blocks) + (quant == ActQuant::kInt8Static ? " static" : " per row") + " x " +
           std::string(dtype_name(x_dtype)) + " y " + std::string(dtype_name(y_dtype)) + " seed " + std::to_string(kSeed);
  }
};

std::vector<std::byte> stored(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bits(dtype)) / 8);
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kBF16) {
      const bf16 v = to_bf16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &v, 2);
    } else {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    }
  }
  return bytes;
}

struct Problem {
  Case c;
  std::vector<float> x;
  std::vector<int8_t> w;
  std::vector<float> scale;
  std::vector<int32_t> bias;
  std::vector<float> input = {0.02f, 1.0f, -7.0f};

  explicit Problem(const Case& wanted) : c(wanted) {
    std::mt19937 random(kSeed);
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < c.rows * c.k; ++i) x.push_back(normal(random) * (i / c.k % 3 == 2 ? 40.0f : 1.0f));
    if (c.rows > 4) std::fill_n(x.begin() + 3 * c.k, c.k, 0.0f);  // a row of zeros
    for (int64_t i = 0; i < c.cols * c.k; ++i) w.push_back(static_cast<int8_t>(static_cast<int>(random() % 256) - 128));
    for (int64_t n = 0; n < c.cols; ++n) {
      scale.push_back(1e-3f * (1 + static_cast<float>(random() % 100)));
      bias.push_back(static_cast<int32_t>(random() % 20001) - 10000);
    }
  }

  LinearArgs args(const std::vector<std::byte>& stored_x, void* y, std::byte* scratch) const {
    LinearArgs a;
    a.x = stored_x.data();
    a.x_dtype = c.x_dtype;
    a.x_stride = c.k;
    a.num_rows = c.rows;
    a.w = {.dtype = DType::kI8, .data = w.data(), .rows = c.cols, .cols = c.k, .scale = scale.data(), .scale_dtype = DType::kF32,
           .block_cols = c.k};
    if (c.quant == ActQuant::kInt8Static) {
      if (c.bias) a.w.bias = bias.data();
      a.static_quant = input.data();
    }
    a.k_blocks = c.k_blocks;
    a.act_quant = c.quant;
    a.y = y;
    a.y_dtype = c.y_dtype;
    a.y_stride = c.cols;
    a.scratch = scratch;
    return a;
  }

  // With a guard behind y; NaN before.
  std::vector<uint8_t> run(LinearFn* variant) const {
    const int64_t y_bytes = c.rows * c.cols * dtype_bits(c.y_dtype) / 8;
    std::vector<uint8_t> y(static_cast<size_t>(y_bytes) + 64, 0xff);
    ThreadPool pool(c.threads);
    std::vector<std::byte> scratch(static_cast<size_t>(linear_scratch_bytes(c.rows, c.k, c.cols, 1, DType::kI8, c.threads)) + 64,
                                   std::byte{0xff});
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    const std::vector<std::byte> stored_x = stored(x, c.x_dtype);
    variant(args(stored_x, y.data(), scratch.data() + (64 - address % 64) % 64), pool);
    for (size_t i = static_cast<size_t>(y_bytes); i < y.size(); ++i) EXPECT_EQ(y[i], 0xff) << "written beyond the end";
    y.resize(static_cast<size_t>(y_bytes));
    return y;
  }
  std::vector<float> run_f32(LinearFn* variant) const {
    const std::vector<uint8_t> bytes = run(variant);
    std::vector<float> y(bytes.size() / 4);
    std::memcpy(y.data(), bytes.data(), bytes.size());
    return y;
  }
};

void expect_equal_variants(const Case& c) {
  const Problem problem(c);
  const std::vector<uint8_t> expected = problem.run(linear_variants().back().run);
  for (const auto& variant : linear_variants()) {
    if (variant.isa > max_isa()) continue;
    EXPECT_EQ(problem.run(variant.run), expected) << variant.name << " " << c.name();
  }
}

template <class F>
void for_variants(F f) {
  for (const auto& variant : linear_variants()) {
    if (variant.isa <= max_isa()) f(variant);
  }
}

TEST(LinearInt8, ExamplesOfTheReference) {
  for_variants([](const auto& variant) {
    Problem fixed({.rows = 1, .k = 4, .cols = 1, .quant = ActQuant::kInt8Static});
    fixed.x = {0.30f, -0.12f, 0, 0};
    fixed.w = {3, -5, 0, 0};
    fixed.input = {0.01f, 1, -10};
    fixed.scale = {0.0002f};
    fixed.bias = {-20};
    EXPECT_FLOAT_EQ(fixed.run_f32(variant.run)[0], 0.0300f) << variant.name;

    Problem by_row({.rows = 1, .k = 4, .cols = 1});
    by_row.x = {1, -0.5f, 0.25f, 0};  // 127, -64 (a tie), 32
    by_row.w = {10, 20, -4, 0};
    by_row.scale = {0.01f};
    EXPECT_NEAR(by_row.run_f32(variant.run)[0], -0.0108661, 1e-7) << variant.name;
  });
}

TEST(LinearInt8, ReferenceFollowsTheFormula) {
  for (const ActQuant quant : {ActQuant::kInt8PerRow, ActQuant::kInt8Static}) {
    const Problem p({.rows = 5, .k = 76, .cols = 9, .quant = quant});
    const std::vector<float> y = p.run_f32(linear_variants().back().run);
    for (int64_t m = 0; m < 5; ++m) {
      float absmax = 0;
      for (int64_t k = 0; k < 76; ++k) absmax = std::max(absmax, std::fabs(p.x[m * 76 + k]));
      const float s = quant == ActQuant::kInt8Static ? 1.0f : absmax / 127.0f;
      for (int64_t n = 0; n < 9; ++n) {
        int64_t sum = quant == ActQuant::kInt8Static ? p.bias[n] : 0;
        for (int64_t k = 0; k < 76; ++k) {
          const float v = p.x[m * 76 + k];
          const float q = quant == ActQuant::kInt8Static ? std::clamp(std::nearbyint(v / 0.02f) - 7.0f, -128.0f, 127.0f)
                          : s == 0                       ? 0.0f
                                                         : std::nearbyint(v / s);
          sum += static_cast<int64_t>(q) * p.w[n * 76 + k];
        }
        EXPECT_EQ(y[m * 9 + n], static_cast<float>(sum) * p.scale[n] * s) << m << " " << n;
      }
    }
  }
}

TEST(LinearInt8, VariantsGiveTheSameBits) {
  for (const ActQuant quant : {ActQuant::kInt8PerRow, ActQuant::kInt8Static}) {
    for (int64_t k : {4, 12, 60, 64, 68, 128, 200, 512}) {
      for (int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 24, 37}) {
        const DType dtype = (k + rows) % 2 == 0 ? DType::kF32 : DType::kBF16;
        expect_equal_variants({.rows = rows, .k = k, .cols = 1 + (k * 7 + rows * 13) % 70, .quant = quant, .x_dtype = dtype,
                               .y_dtype = dtype, .bias = rows % 2 == 0});
      }
    }
    for (int64_t cols : {1, 3, 4, 15, 16, 17, 31, 32, 33, 64}) {
      for (int64_t rows : {1, 6, 20}) expect_equal_variants({.rows = rows, .k = 96, .cols = cols, .quant = quant, .threads = 2});
    }
    for (int64_t k_blocks : {2, 4, 8, 16}) {
      for (int64_t rows : {1, 4, 20}) {
        expect_equal_variants({.rows = rows, .k = 16 * 28, .cols = 37, .k_blocks = k_blocks, .quant = quant});
      }
    }
  }
  expect_equal_variants({.rows = 13, .k = 8192, .cols = 33});  // no room for the wide panel
}

TEST(LinearInt8, LargestSumsAreExact) {
  for (const int8_t extreme : {int8_t{127}, int8_t{-128}}) {
    for (int64_t rows : {1, 12}) {
      Problem p({.rows = rows, .k = 16384, .cols = 16});
      std::fill(p.x.begin(), p.x.end(), 1.0f);
      std::fill(p.w.begin(), p.w.end(), extreme);
      std::fill(p.scale.begin(), p.scale.end(), 1.0f);
      for_variants([&](const auto& variant) {
        const float expected = static_cast<float>(16384 * 127 * int32_t{extreme}) * (1.0f / 127.0f);
        for (const float y : p.run_f32(variant.run)) EXPECT_EQ(y, expected) << variant.name;
      });
    }
  }
}

// The rows of a call do not touch each other; zeros, values that saturate, infinities and NaN stay in theirs.
TEST(LinearInt8, UnusualRows) {
  for (const ActQuant quant : {ActQuant::kInt8PerRow, ActQuant::kInt8Static}) {
    Problem p({.rows = 10, .k = 36, .cols = 20, .quant = quant});
    p.x[0 * 36 + 5] = 1e30f;
    p.x[1 * 36 + 5] = -1e30f;
    p.x[2 * 36 + 7] = std::numeric_limits<float>::infinity();
    p.x[4 * 36 + 9] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> expected = p.run_f32(linear_variants().back().run);
    for_variants([&](const auto& variant) {
      const std::vector<float> y = p.run_f32(variant.run);
      for (int64_t i = 0; i < 200; ++i) {
        if (i / 20 == 4) {
          EXPECT_TRUE(std::isnan(y[i])) << variant.name;
        } else if (!std::isnan(expected[i]) || !std::isnan(y[i])) {
          EXPECT_EQ(y[i], expected[i]) << variant.name << " row " << i / 20;
        }
      }
    });
  }
}

// A sum over ranks: columns in equal slices, each with the largest magnitude of the whole row, the bias with the first one.
TEST(LinearInt8, SlicesOfColumnsAddUpToTheBits) {
  for (const ActQuant quant : {ActQuant::kInt8PerRow, ActQuant::kInt8Static}) {
    for (int64_t rows : {1, 20}) {
      const Problem p({.rows = rows, .k = 256, .cols = 21, .k_blocks = 8, .quant = quant});
      std::vector<float> absmax(static_cast<size_t>(rows), 0.0f);
      for (int64_t i = 0; i < rows * 256; ++i) absmax[i / 256] = std::max(absmax[i / 256], std::fabs(p.x[i]));
      for_variants([&](const auto& variant) {
        const std::vector<float> whole = p.run_f32(variant.run);
        std::vector<float> parts[2];
        for (int64_t part = 0; part < 2; ++part) {
          ThreadPool pool(1);
          std::vector<std::byte> scratch(static_cast<size_t>(linear_scratch_bytes(rows, 128, 21, 1, DType::kI8, 1)) + 64);
          const auto address = reinterpret_cast<uintptr_t>(scratch.data());
          parts[part].assign(whole.size(), NAN);
          const std::vector<std::byte> x = stored(p.x, DType::kF32);
          LinearArgs args = p.args(x, parts[part].data(), scratch.data() + (64 - address % 64) % 64);
          args.x = reinterpret_cast<const float*>(x.data()) + part * 128;
          args.w = weight_columns(args.w, part * 128, (part + 1) * 128);
          args.k_blocks = 4;
          if (quant == ActQuant::kInt8PerRow) args.row_absmax = absmax.data();
          variant.run(args, pool);
        }
        for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(parts[0][i] + parts[1][i], whole[i]) << variant.name << " " << i;
        // Rows of the weight alone.
        ThreadPool pool(1);
        std::vector<std::byte> scratch(static_cast<size_t>(linear_scratch_bytes(rows, 256, 21, 1, DType::kI8, 1)) + 64);
        const auto address = reinterpret_cast<uintptr_t>(scratch.data());
        std::vector<float> some(static_cast<size_t>(rows) * 21, NAN);
        const std::vector<std::byte> x = stored(p.x, DType::kF32);
        LinearArgs args = p.args(x, some.data(), scratch.data() + (64 - address % 64) % 64);
        args.w = weight_rows(args.w, 5, 14);
        variant.run(args, pool);
        for (int64_t i = 0; i < rows * 9; ++i) EXPECT_EQ(some[i / 9 * 21 + i % 9], whole[i / 9 * 21 + 5 + i % 9]) << variant.name;
      });
    }
  }
}

}  // namespace
}  // namespace weft
