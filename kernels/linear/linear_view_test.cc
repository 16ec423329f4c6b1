// Weights that are views: rows or columns of a stored weight whose scales are those of the whole.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/linear_problem.h"

namespace weft::linear_testing {
namespace {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// The problem on rows `rows` and columns `cols` of its weight. Refers to the bytes of `whole`.
Problem part_of(const Problem& whole, Range rows, Range cols, int64_t k_blocks) {
  Problem part = whole;
  part.matrix = weight_columns(weight_rows(whole.matrix, rows.begin, rows.end), cols.begin, cols.end);
  part.x.data = whole.x.data + bytes_of(whole.c.x_dtype, cols.begin);
  part.c.k = cols.size();
  part.c.cols = part.y_stride = rows.size();
  part.c.k_blocks = k_blocks;
  part.c.padding = 0;
  return part;
}

// Views of 300 x 640 that begin and end on scale blocks and off them, within one and across several.
struct View {
  Range rows, cols;
  int64_t k_blocks;
};
constexpr View kViews[] = {
    {{96, 300}, {128, 256}, 1},  {{128, 192}, {0, 640}, 4},  {{101, 150}, {64, 640}, 1}, {{7, 8}, {36, 640}, 1},
    {{131, 170}, {36, 100}, 2},  {{3, 20}, {2, 634}, 1},     {{40, 75}, {320, 576}, 4},  {{1, 18}, {102, 342}, 4},
    {{299, 300}, {636, 640}, 1}, {{100, 133}, {32, 160}, 2}, {{7, 45}, {32, 288}, 2},
};

TEST(linear_view, values_are_those_of_the_whole) {
  for (const Format& format : kFormats) {
    const Problem whole({.k = 640, .cols = 300, .format = format});
    for (const View& v : kViews) {
      const Problem part = part_of(whole, v.rows, v.cols, 1);
      for (int64_t r = 0; r < v.rows.size(); r += 1 + r % 7) {
        for (int64_t k = 0; k < v.cols.size(); ++k) {
          const float want = weight_value(whole.matrix, v.rows.begin + r, v.cols.begin + k);
          ASSERT_TRUE(same(want, weight_value(part.matrix, r, k)))
              << format.name << " row " << v.rows.begin << "+" << r << " column " << v.cols.begin << "+" << k;
        }
      }
    }
  }
}

TEST(linear_view, all_variants_equal) {
  int pairs = 0;
  for (const Format& format : kFormats) {
    for (Values values : {Values::kUsual, Values::kAnyCode}) {
      for (int64_t rows : {1, 17}) {
        const Problem whole({.rows = rows,
                             .k = 640,
                             .cols = 300,
                             .format = format,
                             .values = values,
                             .x_dtype = values == Values::kUsual ? DType::kBF16 : DType::kF32});
        for (const View& v : kViews) {
          SCOPED_TRACE(fmt::format("rows {}..{} columns {}..{}", v.rows.begin, v.rows.end, v.cols.begin, v.cols.end));
          const Problem part = part_of(whole, v.rows, v.cols, v.k_blocks);
          pairs += part.takes_pairs() ? 1 : 0;
          expect_all_variants_equal(part);
        }
      }
    }
  }
  // Whole vectors of K: views 0, 2, 6, 9 and 10. View 1 has blocks of 160. FP8 128x128 not from column 32, FP4 in blocks of 128.
  EXPECT_EQ(pairs, 2 * (5 + 5 + 5 + 3 + 2 + 1));  // BF16; FP8 32x32, without scale, 128x128; FP4 E8M0; FP8 F32 in view 0
}

// Rows of blocks that share a scale, for which x is scaled instead of the weights.
TEST(linear_view, scaled_input) {
  for (Values values : {Values::kUsual, Values::kAnyCode}) {
    for (int64_t rows : {2, 4, 7}) {
      const Problem whole({.rows = rows, .k = 512, .cols = 400, .format = kFormats[3], .values = values});
      for (Range cols : {Range{0, 512}, Range{48, 464}, Range{132, 500}}) {
        for (Range w_rows : {Range{0, 256}, Range{77, 400}}) {
          expect_all_variants_equal(part_of(whole, w_rows, cols, 4));
        }
      }
    }
  }
}

// More groups than are transposed at once, from a first one that is no multiple of 16.
TEST(linear_view, many_scales) {
  for (const Format& format : {kFormats[7], kFormats[5]}) {
    for (DType x_dtype : {DType::kF32, DType::kBF16}) {
      const Problem whole({.rows = 18, .k = 2048, .cols = 40, .format = format, .x_dtype = x_dtype});
      for (Range cols : {Range{96, 2016}, Range{992, 2016}, Range{40, 1064}}) {
        expect_all_variants_equal(part_of(whole, {3, 36}, cols, 1));
      }
    }
  }
}

// What ranks rely on: the tree of blocks continues across column slices.
TEST(linear_view, column_slices_add_up_to_the_whole) {
  for (const Format& format : kFormats) {
    for (int64_t rows : {1, 4, 20}) {
      for (DType x_dtype : {DType::kF32, DType::kBF16}) {
        for (int64_t k_blocks : {8, 16}) {
          const Problem whole({.rows = rows,
                               .k = 1024,
                               .cols = 21,
                               .k_blocks = k_blocks,
                               .format = format,
                               .x_dtype = x_dtype,
                               .act_quant = rows == 4 ? ActQuant::kFp8Block128 : ActQuant::kNone,
                               .padding = 3});
          for (const auto& variant : linear_variants()) {
            if (variant.isa > max_isa()) continue;
            const std::vector<float> want = whole.run(variant.run);
            for (int64_t n : {2, 4, 8}) {
              std::vector<std::vector<float>> sums;
              for (int64_t i = 0; i < n; ++i) {
                const Problem part = part_of(whole, {0, 21}, {i * 1024 / n, (i + 1) * 1024 / n}, k_blocks / n);
                EXPECT_EQ(part.takes_pairs(), whole.takes_pairs()) << whole.c.name();
                sums.push_back(part.run(variant.run));
              }
              for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
                for (size_t i = 0; i < sums.size() / 2; ++i) {
                  std::vector<float> sum = sums[2 * i];
                  for (size_t j = 0; j < sum.size(); ++j) sum[j] += sums[2 * i + 1][j];
                  sums[i] = sum;
                }
              }
              for (int64_t i = 0; i < rows * 21; ++i) {
                const int64_t at = i / 21 * whole.y_stride + i % 21;
                ASSERT_TRUE(same(want[static_cast<size_t>(at)], sums[0][static_cast<size_t>(i)]))
                    << variant.name << " slices " << n << " element " << i << " " << whole.c.name();
              }
            }
          }
        }
      }
    }
  }
}

TEST(linear_view, row_slices_side_by_side_are_the_whole) {
  for (const Format& format : kFormats) {
    for (int64_t rows : {1, 4, 20}) {
      for (DType x_dtype : {DType::kF32, DType::kBF16}) {
        const Problem whole({.rows = rows, .k = 256, .cols = 170, .k_blocks = 4, .format = format, .x_dtype = x_dtype});
        for (const auto& variant : linear_variants()) {
          if (variant.isa > max_isa()) continue;
          const std::vector<float> want = whole.run(variant.run);
          for (Range part : {Range{0, 5}, Range{5, 37}, Range{37, 130}, Range{130, 170}}) {
            const std::vector<float> got = part_of(whole, part, {0, 256}, 4).run(variant.run);
            for (int64_t i = 0; i < rows * part.size(); ++i) {
              const int64_t at = i / part.size() * whole.y_stride + part.begin + i % part.size();
              ASSERT_TRUE(same(want[static_cast<size_t>(at)], got[static_cast<size_t>(i)]))
                  << variant.name << " rows from " << part.begin << " element " << i << " " << whole.c.name();
            }
          }
        }
      }
    }
  }
}

TEST(linear_view, slices_take_pairs_where_the_whole_does) {
  for (Format format : kFormats) {
    for (int64_t block_cols : {20, 32, 64, 96, 128, 256}) {
      if (format.scaled) format.block_cols = block_cols;
      for (int64_t k : {256, 384, 512, 1024, 1536, 2048, 7168}) {
        const Problem problem({.k = k, .cols = 2, .format = format, .x_dtype = DType::kBF16});
        for (int64_t k_blocks : {2, 4, 8, 16}) {
          for (int64_t n = 2; n <= k_blocks; n *= 2) {
            if (k % (4 * k_blocks) != 0) continue;
            const bool whole = takes_bf16_pairs(problem.matrix, DType::kBF16, ActQuant::kNone, k_blocks);
            for (int64_t i = 0; i < n; ++i) {
              const WeightMatrix slice = weight_columns(problem.matrix, i * k / n, (i + 1) * k / n);
              EXPECT_EQ(takes_bf16_pairs(slice, DType::kBF16, ActQuant::kNone, k_blocks / n), whole) << fmt::format(
                  "{} group {} K {} k_blocks {} slice {} of {}", format.name, block_cols, k, k_blocks, i, n);
            }
          }
        }
      }
    }
  }
}

// Memory that ends where nothing may be read.
class Guarded {
 public:
  Guarded(const void* bytes, int64_t size) {
    const int64_t page = sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
    size_ = static_cast<size_t>(room + page);
    void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    WEFT_CHECK(base != MAP_FAILED);
    base_ = static_cast<std::byte*>(base);
    WEFT_CHECK(mprotect(base_ + room, static_cast<size_t>(page), PROT_NONE) == 0);
    data_ = base_ + room - size;
    std::memcpy(data_, bytes, static_cast<size_t>(size));
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  const std::byte* data() const { return data_; }

 private:
  std::byte *base_, *data_;
  size_t size_;
};

TEST(linear_view, nothing_beyond_the_view_is_read) {
  for (const Format& format : kFormats) {
    for (int64_t rows : {1, 4, 20}) {
      for (DType x_dtype : {DType::kF32, DType::kBF16}) {
        const Problem whole({.rows = rows, .k = 640, .cols = 300, .format = format, .x_dtype = x_dtype});
        for (const View& v : {kViews[2], kViews[4], kViews[7], kViews[8], kViews[9]}) {
          Problem part = part_of(whole, v.rows, v.cols, v.k_blocks);
          WeightMatrix& w = part.matrix;
          const Guarded data(w.data, bytes_of(w.dtype, (w.rows - 1) * w.stride + w.cols));
          w.data = data.data();
          const int64_t last_row = (w.row0 + w.rows - 1) / w.block_rows;
          const int64_t last = last_row * w.scale_stride + (w.col0 + w.cols - 1) / w.block_cols;
          const Guarded scale(whole.scale.data, bytes_of(w.scale_dtype, format.scaled ? last + 1 : 0));
          if (format.scaled) w.scale = scale.data();
          expect_all_variants_equal(part);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::linear_testing
