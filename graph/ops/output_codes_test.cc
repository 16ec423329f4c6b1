// int8 codes of the input of the output projection, one scale for each row and group: the quantiser against plain code, the linear
// layer on codes against the plain one, and that groups know nothing of each other.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "graph/test_support.h"

namespace weft {
namespace {

constexpr int64_t kRows = 6, kHeads = 8, kOfGroup = 2, kGroups = kHeads / kOfGroup, kDim = 12, kWidth = kOfGroup * kDim;

StepBatch batch_of_rows() {
  StepBatch batch;
  batch.segments = {{0, 0, kRows, kRows}};
  for (int32_t t = 0; t < kRows; ++t) {
    batch.tokens.push_back(t);
    batch.positions.push_back(t);
  }
  return batch;
}

// Groups of all sizes: ties, outliers, zeros, the least magnitudes, infinities and NaN.
HostTensor sample(DType dtype) {
  HostTensor x(DType(dtype), {kRows, kHeads, kDim}, Rows::kTokens);
  x.fill(3);
  const auto group = [&](int64_t i) { return i * kWidth; };
  for (int64_t i = 0; i < kWidth; ++i) {
    x.set(group(1) + i, 0);
    x.set(group(2) + i, static_cast<float>(i % 5 - 2) * std::numeric_limits<float>::denorm_min() * 100);
    x.set(group(3) + i, i == 4 ? 127 : static_cast<float>(i) + 0.5F);  // scale 1: every second one a tie to even
    x.set(group(5) + i, x.get(group(5) + i) * 1e30F);
    x.set(group(9) + i, i == 0 ? -std::numeric_limits<float>::infinity() : 1);
  }
  x.set(group(7) + 5, std::numeric_limits<float>::quiet_NaN());
  return x;
}

struct Codes {
  std::vector<int8_t> codes;
  std::vector<float> scales;
};

// The definition of quantise_op.h, word by word.
Codes plain(const HostTensor& x) {
  Codes all;
  for (int64_t g = 0; g < x.count() / kWidth; ++g) {
    float absmax = 0;
    bool nan = false;
    for (int64_t i = 0; i < kWidth; ++i) {
      const float v = x.get(g * kWidth + i);
      nan = nan || std::isnan(v);
      absmax = std::max(absmax, std::fabs(v));
    }
    const float scale = nan ? std::numeric_limits<float>::quiet_NaN() : absmax / 127.0F;
    all.scales.push_back(scale);
    for (int64_t i = 0; i < kWidth; ++i) {
      const float step = std::nearbyint(x.get(g * kWidth + i) / scale);
      all.codes.push_back(scale == 0 ? int8_t{0} : std::isnan(step) ? int8_t{-128} : static_cast<int8_t>(std::clamp(step, -128.0F, 127.0F)));
    }
  }
  return all;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b)); }

TEST(OutputCodes, QuantiserAgainstPlainCode) {
  const StepBatch batch = batch_of_rows();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const HostTensor x = sample(dtype);
    const Codes want = plain(x);
    for (const int threads : {1, 2}) {
      ThreadPool pool(threads);
      const auto out = run_op(QuantiseGroups{kOfGroup}, {&x}, {batch, pool, max_isa(), false});
      ASSERT_EQ(out.size(), 1u);
      ASSERT_EQ(out[0].type().shape(), (Shape{kRows, kGroups, kWidth + 4}));
      for (size_t g = 0; g < want.scales.size(); ++g) {
        const int8_t* group = out[0].as<int8_t>() + static_cast<int64_t>(g) * (kWidth + 4);
        for (size_t i = 0; i < kWidth; ++i) EXPECT_EQ(group[i], want.codes[g * kWidth + i]) << dtype_name(dtype) << " group " << g << ", " << i;
        float scale;
        std::memcpy(&scale, group + kWidth, sizeof scale);
        EXPECT_TRUE(same_bits(scale, want.scales[g])) << dtype_name(dtype) << " group " << g << ": " << scale;
      }
    }
    EXPECT_EQ(want.codes[3 * kWidth + 2], 2);  // 2.5
    EXPECT_EQ(want.codes[3 * kWidth + 3], 4);  // 3.5
  }
}

HostTensor heads_of(const HostTensor& x, int64_t first, int64_t heads) {
  const Shape shape = x.type().shape();
  HostTensor part(x.type().dtype(), {shape[0], heads, shape[2]}, Rows::kTokens);
  const int64_t bits = dtype_bits(x.type().dtype()) / 8, row = shape[1] * shape[2] * bits, slice = heads * shape[2] * bits;
  for (int64_t t = 0; t < shape[0]; ++t) {
    std::memcpy(part.as<std::byte>() + t * slice, x.as<std::byte>() + t * row + first * shape[2] * bits, static_cast<size_t>(slice));
  }
  return part;
}

// y of some groups, by the op, from the codes of these groups alone.
std::vector<float> project(const HostTensor& x, const HostTensor& w, int64_t groups, DType dtype, Isa isa, ThreadPool& pool) {
  const StepBatch batch = batch_of_rows();
  const auto codes = run_op(QuantiseGroups{kOfGroup}, {&x}, {batch, pool, isa, false});
  const auto y = run_op(Linear{.dtype = dtype, .groups = groups}, {&codes[0], &w}, {batch, pool, isa, false});
  std::vector<float> values;
  for (int64_t i = 0; i < y[0].count(); ++i) values.push_back(y[0].get(i));
  return values;
}

TEST(OutputCodes, LinearMultipliesTheSumByTheScale) {
  constexpr int64_t kOutputs = 5;  // of a group
  const StepBatch batch = batch_of_rows();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    HostTensor x(DType(dtype), {kRows, kHeads, kDim}, Rows::kTokens), w(DType::kBF16, {kGroups * kOutputs, kWidth});
    x.fill(5);
    w.fill(6);
    const Codes want = plain(x);
    for (const int threads : {1, 2}) {
      for (const Isa isa : {Isa::kScalar, max_isa()}) {
        ThreadPool pool(threads);
        const std::vector<float> y = project(x, w, kGroups, dtype, isa, pool);
        ASSERT_EQ(y.size(), static_cast<size_t>(kRows * kGroups * kOutputs));
        double difference = 0, size = 0;
        for (int64_t i = 0; i < static_cast<int64_t>(y.size()); ++i) {
          const int64_t t = i / (kGroups * kOutputs), n = i % (kGroups * kOutputs), g = t * kGroups + n / kOutputs;
          double sum = 0, exact = 0;
          for (int64_t k = 0; k < kWidth; ++k) {
            sum += want.codes[static_cast<size_t>(g * kWidth + k)] * static_cast<double>(w.get(n * kWidth + k));
            exact += static_cast<double>(x.get(g * kWidth + k)) * w.get(n * kWidth + k);
          }
          sum *= want.scales[static_cast<size_t>(g)];
          const double tolerance = dtype == DType::kBF16 ? 1.0 / 256 : 1e-5;  // of the result; one rounding of bf16
          EXPECT_NEAR(y[static_cast<size_t>(i)], sum, tolerance * std::max(1.0, std::abs(sum))) << dtype_name(dtype) << " " << i;
          difference += std::pow(y[static_cast<size_t>(i)] - exact, 2);
          size += exact * exact;
        }
        EXPECT_LT(std::sqrt(difference / size), 0.02);  // 7 bits of the largest of 24
        EXPECT_GT(difference, 0);
      }
    }
  }
}

// What a rank has of the groups is what it would have of all of them: no bit depends on how many.
TEST(OutputCodes, GroupsOfARankGiveTheBitsOfAll) {
  constexpr int64_t kOutputs = 4;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const HostTensor x = sample(dtype);
    HostTensor w(DType::kBF16, {kGroups * kOutputs, kWidth});
    w.fill(6);
    ThreadPool pool(1);
    const std::vector<float> all = project(x, w, kGroups, dtype, max_isa(), pool);
    for (const int64_t ranks : {2, 4}) {
      const int64_t groups = kGroups / ranks, heads = kHeads / ranks;
      for (int64_t r = 0; r < ranks; ++r) {
        HostTensor part(DType::kBF16, {groups * kOutputs, kWidth});
        for (int64_t i = 0; i < part.count(); ++i) part.set(i, w.get(r * part.count() + i));
        const std::vector<float> own = project(heads_of(x, r * heads, heads), part, groups, dtype, max_isa(), pool);
        for (int64_t i = 0; i < static_cast<int64_t>(own.size()); ++i) {
          const int64_t of_row = groups * kOutputs, at = i / of_row * ranks * of_row + r * of_row + i % of_row;
          EXPECT_TRUE(same_bits(own[static_cast<size_t>(i)], all[static_cast<size_t>(at)])) << ranks << " ranks, rank " << r << ", " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
