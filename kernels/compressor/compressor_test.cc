#include "kernels/compressor/compressor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace weft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

CompressorPoolFn* reference() { return compressor_pool_variants().back().run; }

struct Slots {
  std::vector<std::vector<float>> k_rows, s_rows;
  std::vector<const float*> k, s;

  Slots(int64_t num_slots, int64_t width, int64_t masked_begin, int64_t masked_end, int64_t offset, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (int64_t n = 0; n < num_slots; ++n) {
      k_rows.emplace_back(width + offset, kNan);
      s_rows.emplace_back(width + offset, kNan);
      const bool masked = n >= masked_begin && n < masked_end;
      for (int64_t c = 0; c < width && !masked; ++c) {
        k_rows.back()[offset + c] = normal(random);
        s_rows.back()[offset + c] = normal(random);
      }
      k.push_back(masked ? nullptr : k_rows.back().data() + offset);
      s.push_back(masked ? nullptr : s_rows.back().data() + offset);
    }
  }
};

// deepseek_v4.md 2.5.5: d = 1, gates 0, A-values of tokens 0..7 = 10..17, B-values = 20..27.
TEST(CompressorPool, ExampleOfTheReference) {
  std::vector<float> a, b;
  for (int t = 0; t < 8; ++t) {
    a.push_back(10.0f + static_cast<float>(t));
    b.push_back(20.0f + static_cast<float>(t));
  }
  const float zero = 0;
  for (const auto& variant : compressor_pool_variants()) {
    if (variant.isa > max_isa()) continue;
    float u[2] = {kNan, kNan};
    const std::vector<const float*> k0 = {nullptr, nullptr, nullptr, nullptr, &b[0], &b[1], &b[2], &b[3]};
    const std::vector<const float*> s0 = {nullptr, nullptr, nullptr, nullptr, &zero, &zero, &zero, &zero};
    variant.run({k0, s0, 1, &u[0]});
    EXPECT_EQ(u[0], 21.5f) << variant.name;
    EXPECT_TRUE(std::isnan(u[1]));
    const std::vector<const float*> k1 = {&a[0], &a[1], &a[2], &a[3], &b[4], &b[5], &b[6], &b[7]};
    const std::vector<const float*> s1(8, &zero);
    variant.run({k1, s1, 1, &u[0]});
    EXPECT_EQ(u[0], 18.5f) << variant.name;
  }
}

TEST(CompressorPool, ReferenceFollowsTheFormula) {
  for (const int64_t num_slots : {1, 4, 8, 128}) {
    const Slots slots(num_slots, 20, 0, num_slots == 8 ? 4 : 0, 0, 5);
    std::vector<float> u(20, kNan);
    reference()({slots.k, slots.s, 20, u.data()});
    for (int64_t c = 0; c < 20; ++c) {
      double den = 0, num = 0;
      for (int64_t n = 0; n < num_slots; ++n) {
        if (slots.s[n] == nullptr) continue;
        den += std::exp(static_cast<double>(slots.s[n][c]));
        num += std::exp(static_cast<double>(slots.s[n][c])) * slots.k[n][c];
      }
      // Values up to ~12, sums of up to 128 rounded terms: 12 * 128 * 2^-24.
      EXPECT_NEAR(u[c], num / den, 1e-4) << num_slots << " slots, channel " << c;
    }
  }
}

TEST(CompressorPool, VariantsGiveTheSameBits) {
  for (const auto& variant : compressor_pool_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const int64_t width : {1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 128, 512}) {
      for (const int64_t num_slots : {1, 2, 8, 128}) {
        for (const int64_t offset : {0, 1}) {
          const uint32_t seed = static_cast<uint32_t>(width * 1000 + num_slots + offset);
          const Slots slots(num_slots, width, num_slots / 4, num_slots / 2, offset, seed);
          std::vector<float> expected(width, kNan), u(width + 2, kNan);
          reference()({slots.k, slots.s, width, expected.data()});
          variant.run({slots.k, slots.s, width, u.data() + 1});
          EXPECT_TRUE(std::isnan(u[0]) && std::isnan(u[width + 1])) << variant.name;
          for (int64_t c = 0; c < width; ++c) {
            ASSERT_EQ(std::bit_cast<int>(u[c + 1]), std::bit_cast<int>(expected[c]))
                << variant.name << " width " << width << " slots " << num_slots << " seed " << seed << " channel " << c;
          }
        }
      }
    }
  }
}

TEST(CompressorPool, MinusInfinityIsLikeMasked) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& variant : compressor_pool_variants()) {
    if (variant.isa > max_isa()) continue;
    const std::vector<float> gate = {-inf, 1.0f, 2.0f}, value = {0.0f, 5.0f, 7.0f};
    float masked = kNan, plain = kNan;
    const std::vector<const float*> k = {&value[0], &value[1], &value[2]}, s = {&gate[0], &gate[1], &gate[2]};
    variant.run({k, s, 1, &plain});
    const std::vector<const float*> km = {nullptr, &value[1], &value[2]}, sm = {nullptr, &gate[1], &gate[2]};
    variant.run({km, sm, 1, &masked});
    EXPECT_EQ(plain, masked) << variant.name;
  }
}

}  // namespace
}  // namespace weft
