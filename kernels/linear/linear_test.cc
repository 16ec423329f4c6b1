#include "kernels/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/linear/linear_problem.h"

namespace weft::linear_testing {
namespace {

TEST(linear, sizes) {
  for (const Format& format : kFormats) {
    for (int64_t k : {4, 16, 60, 128, 256}) {
      for (int64_t rows : {0, 1, 2, 3, 4, 5, 8, 13, 64}) {
        const int64_t cols = 1 + (k * 7 + rows * 13) % 70;
        expect_all_variants_equal({.rows = rows, .k = k, .cols = cols, .format = format});
      }
    }
  }
}

TEST(linear, columns) {
  for (int64_t cols : {1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 70}) {
    for (int64_t rows : {1, 6, 20}) {
      expect_all_variants_equal({.rows = rows, .k = 96, .cols = cols, .format = kFormats[7], .threads = 2});
    }
  }
}

TEST(linear, every_tile_height) {
  for (int64_t rows = 1; rows <= 30; ++rows) expect_all_variants_equal({.rows = rows, .k = 36, .cols = 33});
}

TEST(linear, long_rows) {
  for (const Format& format : kFormats) {
    for (int64_t rows : {1, 3, 9, 100}) {
      if (rows == 100 && format.dtype != DType::kF4E2M1 && format.dtype != DType::kBF16) continue;
      expect_all_variants_equal({.rows = rows, .k = 4096, .cols = 18, .format = format, .threads = 2});
    }
  }
}

// Panels of a K that leaves no room for the wide panel in the cache.
TEST(linear, narrow_panel) { expect_all_variants_equal({.rows = 20, .k = 8192, .cols = 33, .format = kFormats[1]}); }

TEST(linear, k_blocks) {
  for (const Format& format : kFormats) {
    for (int64_t k_blocks : {2, 4, 8, 16}) {
      for (int64_t k : {64, 192, 512}) {
        if (k % (4 * k_blocks) != 0) continue;
        for (int64_t rows : {1, 4, 20}) {
          expect_all_variants_equal({.rows = rows, .k = k, .cols = 21, .k_blocks = k_blocks, .format = format});
        }
      }
    }
  }
}

TEST(linear, groups_strides_dtypes_and_alignment) {
  for (const Format& format : kFormats) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (int64_t rows : {1, 3, 17}) {
        for (int64_t shift : {0, 4}) {
          expect_all_variants_equal({.rows = rows,
                                     .k = 64,
                                     .cols = 37,
                                     .groups = 3,
                                     .format = format,
                                     .x_dtype = dtype,
                                     .y_dtype = dtype,
                                     .shift = shift,
                                     .padding = 5,
                                     .threads = 2});
        }
      }
    }
  }
}

TEST(linear, weights_at_odd_addresses) {
  for (const Format& format : kFormats) {
    if (dtype_bits(format.dtype) > 8 || format.scale_dtype == DType::kF32) continue;
    Case c{.rows = 1, .k = 160, .cols = 9, .format = format};
    for (int64_t rows : {1, 4, 20}) {
      c.rows = rows;
      Problem problem(c);
      Bytes moved(bytes_of(format.dtype, c.cols * c.k), 1);
      std::memcpy(moved.data, problem.w.data, static_cast<size_t>(bytes_of(format.dtype, c.cols * c.k)));
      problem.matrix.data = moved.data;
      expect_all_variants_equal(problem);
    }
  }
}

TEST(linear, activation_quantisation) {
  for (ActQuant act_quant : {ActQuant::kFp8Block128, ActQuant::kFp8Block128AnyScale}) {
    for (Values values : {Values::kUsual, Values::kAnyCode}) {
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        for (int64_t k : {60, 128, 320}) {
          for (int64_t rows : {1, 5, 16}) {
            expect_all_variants_equal({.rows = rows,
                                       .k = k,
                                       .cols = 19,
                                       .groups = 2,
                                       .values = values,
                                       .x_dtype = dtype,
                                       .act_quant = act_quant});
          }
        }
      }
    }
  }
}

// deepseek_v4.md 2.5.6: block max 3.0 -> scale 2^-7.
TEST(linear, activation_quantisation_example) {
  const float x[] = {3.0f, 0.10009766f, -0.00099945f, 1.0e-5f};
  const float want[] = {3.0f, 0.1015625f, -0.00097656f, 0x1p-16f};  // 2^-9 * 2^-7
  const float want_any[] = {3.0f, 3.0f * 15 / 448, -3.0f * 0x1.4p-3f / 448, 3.0f * 0x1p-9f / 448};  // of 14.95, 0.149, 0.0015
  const float identity[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  for (const auto& variant : linear_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const ActQuant act_quant : {ActQuant::kFp8Block128, ActQuant::kFp8Block128AnyScale}) {
      float y[4] = {kNan, kNan, kNan, kNan};
      LinearArgs args;
      args.x = x;
      args.x_stride = args.y_stride = 4;
      args.num_rows = 1;
      args.w = {DType::kF32, identity, 4, 4};
      args.act_quant = act_quant;
      args.y = y;
      Bytes scratch(linear_scratch_bytes(1, 4, 4, 1, DType::kF32, 1), 0);
      args.scratch = scratch.data;
      ThreadPool pool(1);
      variant.run(args, pool);
      const float* wanted = act_quant == ActQuant::kFp8Block128 ? want : want_any;
      for (int i = 0; i < 4; ++i) EXPECT_NEAR(y[i], wanted[i], 1e-8f + 1e-6f * std::fabs(wanted[i])) << variant.name << " " << i;
    }
  }
}

TEST(linear, special_values) {
  for (const Format& format : kFormats) {
    for (int64_t rows : {1, 4, 20}) {
      for (int64_t k : {60, 128, 256}) {
        expect_all_variants_equal({.rows = rows, .k = k, .cols = 40, .format = format, .values = Values::kAnyCode});
      }
      expect_all_variants_equal({.rows = rows, .k = 1056, .cols = 18, .format = format, .values = Values::kAnyCode});
    }
  }
}

// Blocks of 128 rows, for which x is scaled instead of the weights: usual values, and those where that is not exact.
TEST(linear, scaled_input) {
  for (Values values : {Values::kUsual, Values::kAnyCode}) {
    for (int64_t rows : {2, 3, 4, 6, 7}) {
      for (int64_t k_blocks : {1, 4}) {
        expect_all_variants_equal(
            {.rows = rows, .k = 592, .cols = 301, .k_blocks = k_blocks, .format = kFormats[3], .values = values});
      }
    }
  }
  // Tiny and huge x beside usual scales.
  Case c{.rows = 4, .k = 256, .cols = 130, .format = kFormats[3]};
  for (float factor : {1e-36f, 1e36f, 1e-42f}) {
    Problem problem(c);
    for (int64_t i = 0; i < c.rows * c.k; i += 3)
      put(DType::kF32, problem.x.data, i, get(DType::kF32, problem.x.data, i) * factor);
    expect_all_variants_equal(problem);
  }
}

// BF16 rows with every format whose values are bf16, and neighbours that are not taken: every width of a block of rows, scale
// rows that end inside of one, blocks of K, codes and scales without a number, tails of the normal range.
TEST(linear, bf16_pairs) {
  int taken = 0;
  for (const Format& format : kFormats) {
    for (Values values : {Values::kUsual, Values::kAnyCode}) {
      for (int64_t rows : {1, 2, 3, 4, 7, 17, 30}) {
        for (auto [k, k_blocks] : {std::pair<int64_t, int64_t>{64, 1}, {128, 2}, {640, 1}, {2048, 16}}) {
          if ((rows == 30 && k > 128) || (k == 2048 && rows != 1 && rows != 4 && rows != 17)) continue;
          Case c{.rows = rows,
                 .k = k,
                 .cols = rows == 3 ? 131 : 37,
                 .k_blocks = k_blocks,
                 .format = format,
                 .values = values,
                 .x_dtype = DType::kBF16,
                 .y_dtype = rows == 4 ? DType::kBF16 : DType::kF32,
                 .act_quant = rows % 2 == 1 ? ActQuant::kFp8Block128 : ActQuant::kNone,
                 .padding = 3,
                 .threads = rows == 7 ? 2 : 1};
          const Problem problem(c);
          taken += takes_bf16_pairs(problem.matrix, c.x_dtype, c.act_quant, k_blocks) ? 1 : 0;
          expect_all_variants_equal(problem);
        }
      }
    }
  }
  // BF16, FP8 without scale or E8M0 in groups of 128 or 32; FP4 E8M0, FP8 F32 in blocks of 128.
  EXPECT_EQ(taken, 2 * ((7 + 7 + 6 + 3) * 4 + 2 * (6 + 3)));
}

// FP8 with fp32 scales: groups of 128 features, whatever their scale and that of x; scale rows that end inside of 16 or 32 columns.
TEST(linear, bf16_groups) {
  for (ActQuant act_quant : {ActQuant::kNone, ActQuant::kFp8Block128, ActQuant::kFp8Block128AnyScale}) {
    for (Values values : {Values::kUsual, Values::kAnyCode}) {
      for (int64_t rows : {1, 2, 3, 4, 5, 14, 31}) {
        for (auto [k, k_blocks] : {std::pair<int64_t, int64_t>{128, 1}, {768, 1}, {1024, 4}, {2048, 16}}) {
          if ((rows > 5 && k > 768) || (k == 2048 && rows != 1 && rows != 4)) continue;
          Case c{.rows = rows,
                 .k = k,
                 .cols = rows == 3 ? 131 : rows == 5 ? 7 : 38,
                 .groups = rows == 2 ? 3 : 1,
                 .k_blocks = k_blocks,
                 .format = kFormats[4],
                 .values = values,
                 .x_dtype = DType::kBF16,
                 .y_dtype = rows == 4 ? DType::kBF16 : DType::kF32,
                 .act_quant = act_quant,
                 .padding = 3,
                 .threads = rows == 14 ? 2 : 1};
          if (rows == 5) c.format.block_cols = 256;
          if (rows == 4) c.format.block_rows = 20;
          const Problem problem(c);
          ASSERT_EQ(bf16_pairs(problem.matrix, c.x_dtype, act_quant, k_blocks), Bf16Pairs::kGroups);
          expect_all_variants_equal(problem);
        }
      }
    }
  }
}

// The sums of groups are those of the weights' values up to roundings: of x' and of weights, which groups do without, and of sums.
TEST(linear, bf16_groups_are_close_to_the_values) {
  for (ActQuant act_quant : {ActQuant::kNone, ActQuant::kFp8Block128, ActQuant::kFp8Block128AnyScale}) {
    const Problem problem({.rows = 6, .k = 1024, .cols = 40, .k_blocks = 2, .format = kFormats[4], .x_dtype = DType::kBF16, .act_quant = act_quant});
    const std::vector<float> values = problem.run(linear_ref), groups = problem.run(linear_bf16_ref);
    EXPECT_NE(first_difference(values, groups, problem.y_stride), "");
    std::vector<float> x(1024);
    for (int64_t m = 0; m < 6; ++m) {
      convert_row_ref(problem.x.data + 2 * m * problem.x_stride, DType::kBF16, 1024, act_quant, x.data());
      for (int64_t n = 0; n < 40; ++n) {
        double magnitude = 0;
        for (int64_t k = 0; k < 1024; ++k) magnitude += std::fabs(static_cast<double>(x[static_cast<size_t>(k)]) * weight_value(problem.matrix, n, k));
        // Chains of 128 and of 4 groups, or of 32 in lanes; a tree; four roundings of factors: each 2^-24 of the sum of magnitudes.
        const auto i = static_cast<size_t>(m * problem.y_stride + n);
        EXPECT_NEAR(values[i], groups[i], (128 + 4 + 32 + 5 + 4) * 0x1p-24 * magnitude) << problem.c.name();
      }
    }
  }
}

// FP4 sums are held in units of their scales only where no result can leave the normal range: numbers at both ends of that
// range, and beyond.
TEST(linear, bf16_pairs_of_fp4_at_the_ends_of_the_range) {
  struct Ends {
    int least_x, most_x, least_code, most_code;  // exponents of x; scale codes
  };
  for (const Ends& e :
       {Ends{-62, 40, 103, 143}, Ends{-63, 40, 110, 130}, Ends{-62, 41, 110, 130}, Ends{-20, 20, 102, 143},
        Ends{-20, 20, 103, 144}, Ends{-62, -62, 103, 143}, Ends{40, 40, 103, 143}}) {
    for (int64_t rows : {1, 4, 17}) {
      Problem problem({.rows = rows,
                       .k = 2304,
                       .cols = 21,
                       .k_blocks = rows == 4 ? 2 : 1,
                       .format = kFormats[7],
                       .x_dtype = DType::kBF16});
      std::mt19937 random(kSeed);
      const auto between = [&](int least, int most) {
        return least + static_cast<int>(random() % static_cast<uint32_t>(most - least + 1));
      };
      for (int64_t i = 0; i < rows * problem.c.k; ++i) {
        const float mantissa = 1 + static_cast<float>(random() % 128) / 128;
        const float x = random() % 8 == 0 ? 0 : std::ldexp(mantissa, between(e.least_x, e.most_x));
        put(DType::kBF16, problem.x.data, i, random() % 2 == 0 ? x : -x);
      }
      for (int64_t i = 0; i < problem.c.cols * problem.c.k / 32; ++i) {
        problem.scale.data[i] = static_cast<std::byte>(between(e.least_code, e.most_code));
      }
      ASSERT_TRUE(problem.takes_pairs());
      SCOPED_TRACE(fmt::format("x 2^{} .. 2^{}, codes {} .. {}", e.least_x, e.most_x, e.least_code, e.most_code));
      expect_all_variants_equal(problem);
    }
  }
}

TEST(linear, bf16_pairs_have_their_own_order) {
  const Problem problem({.rows = 4, .k = 1024, .cols = 64, .format = kFormats[1], .x_dtype = DType::kBF16});
  EXPECT_TRUE(Expected(problem).differ());
}

// The bits of an output do not depend on the other rows and columns of the call.
TEST(linear, rows_and_columns_are_independent) {
  for (const Format& format : kFormats) {
    for (DType x_dtype : {DType::kF32, DType::kBF16}) {
      Case c{.rows = 40, .k = 256, .cols = 64, .format = format, .x_dtype = x_dtype};
      const Problem problem(c);
      for (const auto& variant : linear_variants()) {
        if (variant.isa > max_isa() || variant.name == "ref") continue;
        const std::vector<float> whole = problem.run(variant.run);
        for (int64_t rows : {1, 3, 8, 25}) {
          for (int64_t first : {int64_t{0}, int64_t{7}, c.rows - rows}) {
            Problem part = problem;
            part.c.rows = rows;
            part.x.data = problem.x.data + bytes_of(x_dtype, first * problem.x_stride);
            part.matrix.data = problem.w.data;
            part.matrix.scale = format.scaled ? problem.scale.data : nullptr;
            const std::vector<float> got = part.run(variant.run);
            for (size_t i = 0; i < got.size(); ++i) {
              ASSERT_TRUE(same(got[i], whole[i + static_cast<size_t>(first * problem.y_stride)]))
                  << variant.name << " rows " << first << "+" << rows << " element " << i << " " << c.name();
            }
            // And of a narrower weight: the first columns only.
            part.c.cols = part.y_stride = 5;
            part.matrix.rows = 5;
            const std::vector<float> narrow = part.run(variant.run);
            for (int64_t i = 0; i < rows * 5; ++i) {
              ASSERT_TRUE(same(narrow[static_cast<size_t>(i)],
                               whole[static_cast<size_t>((first + i / 5) * problem.y_stride + i % 5)]))
                  << variant.name << " narrow element " << i << " " << c.name();
            }
          }
        }
      }
    }
  }
}

// Against double precision: the order of sums may not matter beyond rounding.
TEST(linear, close_to_the_exact_sum) {
  Case c{.rows = 20, .k = 512, .cols = 20, .k_blocks = 4};
  const Problem problem(c);
  for (const auto& variant : linear_variants()) {
    if (variant.isa > max_isa()) continue;
    const std::vector<float> got = problem.run(variant.run);
    for (int64_t m = 0; m < c.rows; ++m) {
      for (int64_t n = 0; n < c.cols; ++n) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          const double product = static_cast<double>(get(DType::kF32, problem.x.data, m * problem.x_stride + k)) *
                                 get(DType::kF32, problem.w.data, n * c.k + k);
          sum += product;
          magnitude += std::fabs(product);
        }
        // At most K/16 roundings in a lane and 4 + 2 in the trees, each of 2^-24 of at most the sum of magnitudes.
        const double bound = (static_cast<double>(c.k) / 16 + 6) * 0x1p-24 * magnitude;
        EXPECT_NEAR(got[static_cast<size_t>(m * problem.y_stride + n)], sum, bound) << variant.name;
      }
    }
  }
}

}  // namespace
}  // namespace weft::linear_testing
