#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "kernels/index_topk/index_topk.h"

namespace weft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

IndexScoresFn* reference() { return index_scores_variants().back().run; }

struct Case {
  int64_t num_heads, head_dim, num_entries, page_entries;
};

// Rows of F32 or BF16 values; `offset` shifts them off every alignment but that of an element.
struct Rows {
  DType dtype;
  int64_t offset;
  std::vector<float> f32;
  std::vector<bf16> half;

  Rows(DType type, int64_t size, int64_t shift, std::mt19937& random) : dtype(type), offset(shift) {
    std::normal_distribution<float> normal;
    f32.assign(size + shift, kNan);
    half.assign(size + shift, bf16{0x7fc0});
    for (int64_t i = 0; i < size; ++i) set(i, normal(random));
  }
  void set(int64_t i, float value) {
    half[offset + i] = to_bf16(value);
    f32[offset + i] = dtype == DType::kBF16 ? to_float(half[offset + i]) : value;
  }
  const void* data() const {
    return dtype == DType::kBF16 ? static_cast<const void*>(half.data() + offset) : f32.data() + offset;
  }
  float get(int64_t i) const { return f32[offset + i]; }
};

struct Problem {
  Case c;
  std::mt19937 random;
  Rows iq;
  std::vector<Rows> page_rows;
  std::vector<const void*> pages;
  std::vector<float> w;

  Problem(Case shape, DType iq_dtype, DType key_dtype, uint32_t seed)
      : c(shape), random(seed), iq(iq_dtype, c.num_heads * c.head_dim, seed % 2, random) {
    for (int64_t begin = 0; begin < c.num_entries; begin += c.page_entries) {
      page_rows.emplace_back(key_dtype, c.page_entries * c.head_dim, (seed + begin) % 3, random);
    }
    for (const Rows& rows : page_rows) pages.push_back(rows.data());
    std::normal_distribution<float> normal;
    for (int64_t h = 0; h < c.num_heads; ++h) w.push_back(normal(random));
  }

  std::vector<float> run(IndexScoresFn* variant, int64_t begin, int64_t end) const {
    std::vector<float> scores(c.num_entries, kNan);
    std::vector<float> scratch(index_scores_scratch_bytes(c.num_heads, c.head_dim) / 4 + 16, kNan);
    IndexScoresArgs args;
    args.iq = iq.data();
    args.iq_dtype = iq.dtype;
    args.w = w.data();
    args.num_heads = c.num_heads;
    args.head_dim = c.head_dim;
    args.pages = pages;
    args.key_dtype = page_rows.empty() ? DType::kF32 : page_rows[0].dtype;
    args.page_entries = c.page_entries;
    args.begin = begin;
    args.end = end;
    args.scores = scores.data();
    args.scratch = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
    variant(args);
    return scores;
  }
};

std::string describe(const Case& c, uint32_t seed) {
  return std::to_string(c.num_heads) + " heads x " + std::to_string(c.head_dim) + ", " + std::to_string(c.num_entries) +
         " entries in pages of " + std::to_string(c.page_entries) + ", seed " + std::to_string(seed);
}

TEST(IndexScores, ReferenceFollowsTheFormula) {
  const Case c{5, 128, 40, 16};
  const Problem p(c, DType::kF32, DType::kBF16, 3);
  const std::vector<float> scores = p.run(reference(), 0, c.num_entries);
  for (int64_t g = 0; g < c.num_entries; ++g) {
    double score = 0;
    for (int64_t h = 0; h < c.num_heads; ++h) {
      double dot = 0;
      for (int64_t k = 0; k < c.head_dim; ++k) {
        dot += static_cast<double>(p.iq.get(h * c.head_dim + k)) *
               p.page_rows[g / c.page_entries].get(g % c.page_entries * c.head_dim + k);
      }
      score += p.w[h] * std::max(dot, 0.0);
    }
    EXPECT_NEAR(scores[g], score, 1e-4) << g;  // |dot| <= ~50, 5 heads, weights <= 3, some 10 roundings each
  }
}

TEST(IndexScores, VariantsGiveTheSameBits) {
  const Case cases[] = {{1, 16, 1, 4},    {2, 32, 15, 4},    {4, 64, 16, 16}, {5, 128, 17, 5},   {7, 96, 70, 32},
                        {64, 128, 45, 8}, {16, 128, 33, 64}, {3, 20, 19, 8},  {8, 128, 130, 128}};
  uint32_t seed = 40;
  for (const Case& c : cases) {
    for (const DType iq : {DType::kF32, DType::kBF16}) {
      for (const DType key : {DType::kF32, DType::kBF16}) {
        const Problem p(c, iq, key, ++seed);
        const std::vector<float> expected = p.run(reference(), 0, c.num_entries);
        for (const auto& variant : index_scores_variants()) {
          if (variant.isa > max_isa() || variant.run == reference()) continue;
          const std::vector<float> scores = p.run(variant.run, 0, c.num_entries);
          for (int64_t g = 0; g < c.num_entries; ++g) {
            ASSERT_EQ(std::bit_cast<int>(scores[g]), std::bit_cast<int>(expected[g]))
                << variant.name << " " << describe(c, seed) << " entry " << g;
          }
        }
      }
    }
  }
}

// Threads split the entries anywhere: only [begin, end) is written, with the bits of the whole.
TEST(IndexScores, AnyRangeOfEntries) {
  const Case c{4, 32, 60, 16};
  const Problem p(c, DType::kF32, DType::kF32, 9);
  for (const auto& variant : index_scores_variants()) {
    if (variant.isa > max_isa()) continue;
    const std::vector<float> whole = p.run(variant.run, 0, c.num_entries);
    for (int64_t begin = 0; begin < c.num_entries; begin += 7) {
      for (int64_t end = begin; end <= c.num_entries; end += 5) {
        const std::vector<float> part = p.run(variant.run, begin, end);
        for (int64_t g = 0; g < c.num_entries; ++g) {
          if (g < begin || g >= end) {
            ASSERT_TRUE(std::isnan(part[g]))
                << variant.name << " wrote entry " << g << " outside [" << begin << ", " << end << ")";
          } else {
            ASSERT_EQ(std::bit_cast<int>(part[g]), std::bit_cast<int>(whole[g])) << variant.name << " entry " << g;
          }
        }
      }
    }
  }
}

TEST(IndexScores, NanKeysGiveNanScores) {
  for (const auto& variant : index_scores_variants()) {
    if (variant.isa > max_isa()) continue;
    Problem p({3, 32, 20, 32}, DType::kF32, DType::kF32, 8);
    p.page_rows[0].set(7 * 32 + 5, kNan);
    const std::vector<float> scores = p.run(variant.run, 0, 20);
    for (int64_t g = 0; g < 20; ++g) EXPECT_EQ(std::isnan(scores[g]), g == 7) << variant.name << " entry " << g;
  }
}

}  // namespace
}  // namespace weft
