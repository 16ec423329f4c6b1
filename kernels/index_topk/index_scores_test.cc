#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "kernels/index_topk/index_topk_impl.h"

namespace weft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

IndexScoresFn* reference() { return index_scores_variants().back().run; }
// Plain code with the bits of a variant.
IndexScoresFn* reference_of(const KernelVariant<IndexScoresFn>& variant) {
  return variant.isa == Isa::kAvx512Bf16 ? index_scores_bf16_ref : reference();
}

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

// Both references are sums of the same products.
TEST(IndexScores, ReferencesAgree) {
  const Case c{64, 128, 40, 16};
  const Problem p(c, DType::kBF16, DType::kBF16, 5);
  const std::vector<float> a = p.run(reference(), 0, c.num_entries), b = p.run(index_scores_bf16_ref, 0, c.num_entries);
  for (int64_t g = 0; g < c.num_entries; ++g) EXPECT_NEAR(a[g], b[g], 1e-3) << g;  // 64 dots of size 11, 130 roundings each
  EXPECT_NE(a, b);
}

TEST(IndexScores, VariantsGiveTheSameBits) {
  const Case cases[] = {{1, 16, 1, 4},    {2, 32, 15, 4},    {4, 64, 16, 16}, {5, 128, 17, 5},   {7, 96, 70, 32},
                        {64, 128, 45, 8}, {16, 128, 33, 64}, {3, 20, 19, 8},  {8, 128, 130, 128}};
  uint32_t seed = 40;
  for (const Case& c : cases) {
    for (const DType iq : {DType::kF32, DType::kBF16}) {
      for (const DType key : {DType::kF32, DType::kBF16}) {
        const Problem p(c, iq, key, ++seed);
        for (const auto& variant : index_scores_variants()) {
          if (variant.isa > max_isa() || variant.run == reference()) continue;
          const std::vector<float> expected = p.run(reference_of(variant), 0, c.num_entries);
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

// What the values of a row are: those of the FP4 round trip (e2m1 codes times a power of two per block of 32) and what
// comes close to them without being usable as int8.
enum class RowKind {
  kFp4,
  kZero,
  kFarScales,
  kOneOddElement,
  kTiny,
  kHasNan,
  kSubnormalElement,
  kRoundUpTo128,
  kCount
};

void fill_row(Rows& rows, int64_t begin, int64_t head_dim, RowKind kind, std::mt19937& random) {
  const int exponent = static_cast<int>(random() % 12) - 8;
  for (int64_t k = 0; k < head_dim; ++k) {
    const int block = static_cast<int>(k / 32 * 7 % 4);
    const float code = e2m1_to_float(static_cast<uint8_t>(random() % 16));
    rows.set(begin + k, std::ldexp(code, exponent + (kind == RowKind::kFarScales ? 5 * block : block)));
  }
  const int64_t k = static_cast<int64_t>(random() % head_dim);
  switch (kind) {
    case RowKind::kZero:
      for (int64_t i = 0; i < head_dim; ++i) rows.set(begin + i, i % 3 == 0 ? -0.0f : 0.0f);
      break;
    case RowKind::kOneOddElement: rows.set(begin + k, std::ldexp(1.0f + 0x1p-6f, exponent)); break;
    case RowKind::kTiny:
      for (int64_t i = 0; i < head_dim; ++i) rows.set(begin + i, std::ldexp(rows.get(begin + i), -60));
      break;
    case RowKind::kHasNan: rows.set(begin + k, kNan); break;
    case RowKind::kSubnormalElement: rows.set(begin + k, 0x1p-130f); break;
    case RowKind::kRoundUpTo128: rows.set(begin + k, std::ldexp(1.9921875f, exponent + 6)); break;  // n = 127.5
    default: break;
  }
}

bool same_score(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<int>(a) == std::bit_cast<int>(b);
}

TEST(IndexScores, Fp4RowsGiveTheSameBits) {
  constexpr int kKinds = static_cast<int>(RowKind::kCount);
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    std::mt19937 random(seed);
    const Case c{static_cast<int64_t>(seed % 3 == 0 ? 64 : 1 + random() % 20), seed % 4 == 0 ? 192 : 128,
                 static_cast<int64_t>(1 + random() % 700), 64};
    Problem p(c, DType::kBF16, DType::kBF16, seed);
    const int bad_head = seed % 6 == 5 ? static_cast<int>(random() % c.num_heads) : -1;
    for (int64_t h = 0; h < c.num_heads; ++h) {
      const RowKind kind = h == bad_head ? static_cast<RowKind>(random() % kKinds) : RowKind::kFp4;
      fill_row(p.iq, h * c.head_dim, c.head_dim, kind, random);
    }
    if (seed % 6 == 3) p.w[0] = seed % 12 == 3 ? 0.0f : 1e-20f;
    for (int64_t g = 0; g < c.num_entries; ++g) {
      const bool plain = seed % 2 == 0 || random() % 60 != 0;
      const RowKind kind =
          plain ? (random() % 5 == 0 ? RowKind::kZero : RowKind::kFp4) : static_cast<RowKind>(random() % kKinds);
      fill_row(p.page_rows[g / 64], g % 64 * c.head_dim, c.head_dim, kind, random);
    }
    for (const auto& variant : index_scores_variants()) {
      if (variant.isa > max_isa() || variant.run == reference()) continue;
      const std::vector<float> expected = p.run(reference_of(variant), 0, c.num_entries);
      const std::vector<float> scores = p.run(variant.run, 0, c.num_entries);
      for (int64_t g = 0; g < c.num_entries; ++g) {
        ASSERT_TRUE(same_score(scores[g], expected[g])) << variant.name << " " << describe(c, seed) << " entry " << g
                                                        << ": " << scores[g] << ", not " << expected[g];
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
