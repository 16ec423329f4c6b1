#include "models/random_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "base/numeric.h"

namespace weft {
namespace {

constexpr uint64_t kSeed = 11;

std::vector<std::byte> filled(const RandomTensor& t, const char* name, uint64_t seed = kSeed) {
  std::vector<std::byte> bytes(static_cast<size_t>(t.type.bytes()), std::byte{0xff});
  fill_random(t, random_key(seed, name), 0, bytes);
  return bytes;
}

// Values of a filled tensor.
std::vector<double> values(const RandomTensor& t, const std::vector<std::byte>& bytes) {
  std::vector<double> out;
  const auto* u8 = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t i = 0; i < bytes.size(); ++i) {
    switch (t.type.dtype) {
      case DType::kF32:
        if (i % 4 == 0) out.push_back(*reinterpret_cast<const float*>(u8 + i));
        break;
      case DType::kBF16:
        if (i % 2 == 0) out.push_back(to_float(*reinterpret_cast<const bf16*>(u8 + i)));
        break;
      case DType::kF8E4M3: out.push_back(e4m3_to_float(u8[i])); break;
      case DType::kF8E8M0: out.push_back(e8m0_to_float(u8[i])); break;
      case DType::kI8:
        if (t.fill == Fill::kInt8) {
          out.push_back(static_cast<int8_t>(u8[i]));
          break;
        }
        out.push_back(e2m1_to_float(u8[i] & 15));
        out.push_back(e2m1_to_float(u8[i] >> 4));
        break;
      default: ADD_FAILURE();
    }
  }
  return out;
}

struct Case {
  const char* name;
  RandomTensor tensor;
  double mean, rms;  // rms about the mean
};

std::vector<Case> cases() {
  const Shape shape{512, 128};
  return {
      {"normal f32", {{DType::kF32, shape}, Fill::kNormal, 0.5, 2}, 0.5, 2},
      {"normal bf16", {{DType::kBF16, shape}, Fill::kNormal, 0, 0.02}, 0, 0.02},
      {"uniform f32", {{DType::kF32, shape}, Fill::kUniform, 0.8, 1.2}, 1, 0.4 / std::sqrt(12.0)},
      {"uniform bf16", {{DType::kBF16, shape}, Fill::kUniform, -1, 1}, 0, 2 / std::sqrt(12.0)},
      {"e4m3", {{DType::kF8E4M3, shape}, Fill::kE4m3}, 0, e4m3_std()},
      {"int8", {{DType::kI8, shape}, Fill::kInt8}, 0, kInt8Std},
      {"e2m1", {{DType::kI8, shape}, Fill::kE2m1}, 0, kE2m1Std},
  };
}

TEST(RandomTensor, Distribution) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    double sum = 0, squares = 0;
    const std::vector<double> v = values(c.tensor, filled(c.tensor, c.name));
    for (double x : v) {
      ASSERT_TRUE(std::isfinite(x));
      sum += x;
      squares += (x - c.mean) * (x - c.mean);
    }
    const auto n = static_cast<double>(v.size());
    EXPECT_NEAR(sum / n, c.mean, 5 * c.rms / std::sqrt(n));
    EXPECT_NEAR(std::sqrt(squares / n), c.rms, 0.02 * c.rms);
    EXPECT_GT(std::set<double>(v.begin(), v.end()).size(), 12u);
  }
}

TEST(RandomTensor, ScalesHaveTheRootMeanSquare) {
  for (double rms : {1e-4, 0.03, 0.5, 1.9, 700.0}) {
    const RandomTensor t{{DType::kF8E8M0, {64, 1024}}, Fill::kScale, rms, 0};
    double squares = 0;
    std::set<double> seen;
    const std::vector<double> v = values(t, filled(t, "scale"));
    for (double x : v) {
      squares += x * x;
      seen.insert(x);
    }
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(v.size())), rms, 0.02 * rms);
    EXPECT_LE(seen.size(), 2u);
  }
}

TEST(RandomTensor, DistinctRows) {
  for (const auto& [k, below] : {std::pair{6, 256}, {8, 8}, {1, 1}, {3, 5}}) {
    const RandomTensor t{{DType::kI64, {2000, k}}, Fill::kDistinct, static_cast<double>(below), 0};
    const std::vector<std::byte> bytes = filled(t, "table");
    std::vector<int64_t> ids(bytes.size() / 8);
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    std::vector<int> used(static_cast<size_t>(below));
    for (size_t row = 0; row < ids.size(); row += static_cast<size_t>(k)) {
      const std::set<int64_t> set(ids.begin() + static_cast<int64_t>(row), ids.begin() + static_cast<int64_t>(row) + k);
      ASSERT_EQ(set.size(), static_cast<size_t>(k)) << "row " << row;
      ASSERT_GE(*set.begin(), 0);
      ASSERT_LT(*set.rbegin(), below);
      for (int64_t id : set) ++used[static_cast<size_t>(id)];
    }
    const double expected = 2000.0 * k / below;
    for (int count : used) EXPECT_NEAR(count, expected, 6 * std::sqrt(expected) + 1);
  }
}

TEST(RandomTensor, PiecesGiveTheSameBytes) {
  std::vector<Case> all = cases();
  all.push_back({"table", {{DType::kI64, {512, 6}}, Fill::kDistinct, 64, 0}, 0, 0});
  all.push_back({"scale", {{DType::kF8E8M0, {33, 37}}, Fill::kScale, 0.1, 0}, 0, 0});
  for (const Case& c : all) {
    SCOPED_TRACE(c.name);
    const std::vector<std::byte> whole = filled(c.tensor, c.name);
    std::vector<std::byte> pieces(whole.size(), std::byte{0xff});
    const int64_t granule = fill_granule(c.tensor), total = static_cast<int64_t>(whole.size());
    for (int64_t at = 0, step = granule; at < total; at += step, step = step % (5 * granule) + granule) {
      const int64_t n = std::min(step, total - at);
      fill_random(c.tensor, random_key(kSeed, c.name), at, {pieces.data() + at, static_cast<size_t>(n)});
    }
    EXPECT_EQ(whole, pieces);
  }
}

TEST(RandomTensor, SeedAndNameCount) {
  const RandomTensor t{{DType::kI8, {64, 64}}, Fill::kE2m1};
  const auto a = filled(t, "a");
  EXPECT_EQ(a, filled(t, "a"));
  EXPECT_NE(a, filled(t, "b"));
  EXPECT_NE(a, filled(t, "a", kSeed + 1));
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const char* name : {"a", "b", "layers.0", "layers.1"}) keys.insert(random_key(seed, name));
  }
  EXPECT_EQ(keys.size(), 200u);
}

}  // namespace
}  // namespace weft
