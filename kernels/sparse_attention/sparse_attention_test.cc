#include "kernels/sparse_attention/sparse_attention_impl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Storage that starts `offset` elements after a 64-byte boundary and is poisoned with NaN (all bits set).
class Elements {
 public:
  Elements(DType dtype, int64_t size, int64_t offset)
      : dtype_(dtype), size_(size), bytes_(static_cast<size_t>(size + offset) * item() + 64, std::byte{0xff}) {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    start_ = (64 - address % 64) % 64 + static_cast<size_t>(offset * item());
  }
  Elements(const Elements&) = delete;  // a copy would be aligned differently
  Elements(Elements&&) = default;

  std::byte* data() { return bytes_.data() + start_; }
  const std::byte* row(int64_t element) const { return bytes_.data() + start_ + element * item(); }
  void set(int64_t i, float value) {
    if (dtype_ == DType::kBF16) {
      const bf16 rounded = to_bf16(value);
      std::memcpy(data() + i * item(), &rounded, sizeof(rounded));
    } else {
      std::memcpy(data() + i * item(), &value, sizeof(value));
    }
  }
  float get(int64_t i) const {
    if (dtype_ == DType::kBF16) {
      bf16 value;
      std::memcpy(&value, row(i), sizeof(value));
      return to_float(value);
    }
    float value;
    std::memcpy(&value, row(i), sizeof(value));
    return value;
  }
  bool same_bits(const Elements& other) const {
    return std::memcmp(row(0), other.row(0), static_cast<size_t>(size_ * item())) == 0;
  }
  bool all_finite() const {
    for (int64_t i = 0; i < size_; ++i) {
      if (!std::isfinite(get(i))) return false;
    }
    return true;
  }

 private:
  int64_t item() const { return dtype_ == DType::kBF16 ? 2 : 4; }

  DType dtype_;
  int64_t size_;
  std::vector<std::byte> bytes_;
  size_t start_ = 0;
};

struct Sizes {
  int64_t num_heads, head_dim, num_columns;
  int64_t value_width = 0;  // 0: head_dim
  int64_t value_dim() const { return value_width > 0 ? value_width : head_dim; }
};

enum class Holes { kNone, kScattered, kWholeBlocks, kAll };

struct Problem {
  Sizes shape;
  DType dtype, kv_dtype;
  Elements q, keys;
  std::vector<const void*> key_rows;
  std::vector<float> sink;
  float scale;

  Problem(Sizes s, DType a, DType kv, Holes holes, uint32_t seed, int64_t offset = 0)
      : shape(s),
        dtype(a),
        kv_dtype(kv),
        q(a, s.num_heads * s.head_dim, offset),
        keys(kv, s.num_columns * (s.head_dim + 3), offset),
        scale(1.0f / std::sqrt(static_cast<float>(s.head_dim))) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, 1.5f);
    for (int64_t i = 0; i < s.num_heads * s.head_dim; ++i) q.set(i, normal(random));
    for (int64_t n = 0; n < s.num_columns; ++n) {
      // Between the rows the poison stays; a row that is a hole keeps it as well.
      const bool hole = holes == Holes::kAll || (holes == Holes::kScattered && random() % 3 == 0) ||
                        (holes == Holes::kWholeBlocks && n / 64 % 2 == 0);
      key_rows.push_back(hole ? nullptr : keys.row(n * (s.head_dim + 3)));
      for (int64_t d = 0; d < s.head_dim && !hole; ++d) keys.set(n * (s.head_dim + 3) + d, normal(random));
    }
    for (int64_t h = 0; h < s.num_heads; ++h) sink.push_back(normal(random));
  }

  // Heads [first, first + count) only.
  void run(SparseAttentionFn* variant, Elements& out, int64_t first, int64_t count, bool with_sink = true) {
    std::vector<float> scratch(sparse_attention_scratch_bytes(count, shape.head_dim) / 4 + 16, kNan);
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    SparseAttentionArgs args;
    args.q = q.row(first * shape.head_dim);
    args.out = out.data();
    args.dtype = dtype;
    args.kv_dtype = kv_dtype;
    args.num_heads = count;
    args.head_dim = shape.head_dim;
    args.value_dim = shape.value_dim();
    args.keys = key_rows;
    args.sink = with_sink ? sink.data() + first : nullptr;
    args.scale = scale;
    args.scratch = reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
    variant(args);
  }
  Elements run(SparseAttentionFn* variant, int64_t offset = 0) {
    Elements out(dtype, shape.num_heads * shape.value_dim(), offset);
    run(variant, out, 0, shape.num_heads);
    return out;
  }
};

SparseAttentionFn* reference() { return sparse_attention_variants().back().run; }
// Plain code with the bits of a variant.
SparseAttentionFn* reference_of(const KernelVariant<SparseAttentionFn>& variant) {
  return variant.isa == Isa::kAvx512Bf16 ? sparse_attention_bf16_ref : reference();
}

std::string describe(const Problem& p, uint32_t seed) {
  return std::to_string(p.shape.num_heads) + " heads x " + std::to_string(p.shape.head_dim) + "/" + std::to_string(p.shape.value_dim()) + ", " +
         std::to_string(p.shape.num_columns) + " columns, " + std::string(dtype_name(p.dtype)) + ", keys " +
         std::string(dtype_name(p.kv_dtype)) + ", seed " + std::to_string(seed);
}

// deepseek_v4.md 2.5.7: z = [0.5, 1.5], sink 1.0, values [10, 20]. The key is its own value, so q carries the scores.
TEST(SparseAttention, NumericCheckOfTheReference) {
  const float e = std::exp(-1.0f);
  for (const auto& variant : sparse_attention_variants()) {
    if (variant.isa > max_isa()) continue;
    Problem p({1, 16, 2}, DType::kF32, DType::kF32, Holes::kNone, 1);
    for (int64_t d = 0; d < 16; ++d) {
      p.q.set(d, d == 0 ? 0.05f : d == 1 ? 1.0f : 0.0f);
      p.keys.set(d, d == 0 ? 10.0f : 0.0f);
      p.keys.set(19 + d, d == 0 ? 20.0f : d == 1 ? 0.5f : 0.0f);
    }
    p.scale = 1;
    p.sink[0] = 1.0f;
    const Elements out = p.run(variant.run);
    EXPECT_NEAR(out.get(0), 11.992845, 2e-6) << variant.name;
    EXPECT_NEAR(out.get(0), (e * 10 + 20) / (e + 1 + std::exp(-0.5f)), 2e-6) << variant.name;
  }
}

TEST(SparseAttention, ReferenceFollowsTheFormula) {
  for (const Sizes shape : {Sizes{3, 32, 1}, Sizes{2, 96, 64}, Sizes{2, 20, 65}, Sizes{1, 512, 200}, Sizes{2, 48, 70, 32}}) {
    for (const bool with_sink : {true, false}) {
      const uint32_t seed = static_cast<uint32_t>(shape.num_columns);
      Problem p(shape, DType::kF32, DType::kF32, shape.num_columns > 1 ? Holes::kScattered : Holes::kNone, seed);
      Elements out(DType::kF32, shape.num_heads * shape.value_dim(), 0);
      p.run(reference(), out, 0, shape.num_heads, with_sink);
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        std::vector<double> z, value(shape.value_dim(), 0.0);
        double max = -1e300, den = 0;
        for (const void* key : p.key_rows) {
          double dot = 0;
          for (int64_t d = 0; d < shape.head_dim && key != nullptr; ++d) {
            float k;
            std::memcpy(&k, static_cast<const std::byte*>(key) + 4 * d, 4);
            dot += static_cast<double>(p.q.get(h * shape.head_dim + d)) * k;
          }
          z.push_back(key == nullptr ? -1e300 : dot * static_cast<double>(p.scale));
          max = std::max(max, z.back());
        }
        for (size_t n = 0; n < z.size(); ++n) {
          if (p.key_rows[n] == nullptr) continue;
          const double e = std::exp(z[n] - max);
          den += e;
          for (int64_t d = 0; d < shape.value_dim(); ++d) {
            float k;
            std::memcpy(&k, static_cast<const std::byte*>(p.key_rows[n]) + 4 * d, 4);
            value[d] += e * k;
          }
        }
        if (with_sink) den += std::exp(p.sink[h] - max);
        for (int64_t d = 0; d < shape.value_dim(); ++d) {
          // Scores are at most ~10 with a relative error of some 2^-21: some 1e-5 in a probability, values ~3.
          EXPECT_NEAR(out.get(h * shape.value_dim() + d), value[d] / den, 3e-5)
              << describe(p, seed) << " sink " << with_sink;
        }
      }
    }
  }
}

// Both references are sums of the same products, rounded to bf16.
TEST(SparseAttention, ReferencesAgree) {
  Problem p({5, 64, 131, 32}, DType::kBF16, DType::kBF16, Holes::kScattered, 23);
  const Elements a = p.run(reference()), b = p.run(sparse_attention_bf16_ref);
  for (int64_t i = 0; i < 5 * 32; ++i) EXPECT_NEAR(a.get(i), b.get(i), 0x1p-6f) << i;  // values below 4: a bf16 step
}

TEST(SparseAttention, VariantsGiveTheSameBits) {
  std::vector<Sizes> shapes;
  for (int64_t heads : {1, 2, 4, 5, 8, 11, 17}) {
    for (int64_t columns : {0, 1, 3, 63, 64, 65, 128}) {
      shapes.push_back({heads, heads % 2 != 0 ? 32 : 96, columns});
      if (columns % 64 == 1) shapes.push_back({heads, 16, columns});
    }
  }
  shapes.insert(shapes.end(), {{64, 512, 130}, {4, 128, 80}, {2, 512, 640}, {5, 40, 65}, {64, 16, 70},
                              {64, 576, 130, 512}, {1, 576, 65, 512}, {5, 48, 66, 32}, {3, 48, 10, 20}});
  uint32_t seed = 100;
  for (const Sizes& shape : shapes) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const DType kv : {DType::kF32, DType::kBF16}) {
        ++seed;
        const Holes holes = static_cast<Holes>(seed % 3);
        Problem p(shape, dtype, kv, holes, seed, seed % 2);
        for (const auto& variant : sparse_attention_variants()) {
          if (variant.isa > max_isa() || variant.run == reference()) continue;
          const Elements expected = p.run(reference_of(variant));
          EXPECT_TRUE(expected.all_finite()) << describe(p, seed);
          EXPECT_TRUE(p.run(variant.run, seed % 3).same_bits(expected)) << variant.name << " " << describe(p, seed);
        }
      }
    }
  }
}

TEST(SparseAttention, HeadsDoNotDependOnEachOther) {
  for (const auto& variant : sparse_attention_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Problem p({13, 64, 70}, dtype, DType::kBF16, Holes::kScattered, 7);
      const Elements together = p.run(variant.run);
      for (int64_t count : {1, 4, 6}) {
        for (int64_t first = 0; first + count <= 13; first += 3) {
          Elements part(dtype, count * 64, 0);
          p.run(variant.run, part, first, count);
          for (int64_t i = 0; i < count * 64; ++i) {
            ASSERT_EQ(part.get(i), together.get(first * 64 + i)) << variant.name << " heads from " << first;
          }
        }
      }
    }
  }
}

// Appending empty blocks, or none, changes nothing; nor do empty columns within a block at its end.
TEST(SparseAttention, EmptyColumnsAreNeutral) {
  for (const auto& variant : sparse_attention_variants()) {
    if (variant.isa > max_isa()) continue;
    Problem p({4, 64, 64}, DType::kF32, DType::kF32, Holes::kNone, 11);
    p.key_rows.resize(50);
    const Elements expected = p.run(variant.run);
    p.key_rows.resize(64, nullptr);
    EXPECT_TRUE(p.run(variant.run).same_bits(expected)) << variant.name;
    p.key_rows.resize(300, nullptr);
    EXPECT_TRUE(p.run(variant.run).same_bits(expected)) << variant.name;
    p.key_rows.insert(p.key_rows.begin(), 128, nullptr);
    EXPECT_TRUE(p.run(variant.run).same_bits(expected)) << variant.name;
  }
}

TEST(SparseAttention, NoKeysGiveZeros) {
  for (const auto& variant : sparse_attention_variants()) {
    if (variant.isa > max_isa()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t columns : {0, 5, 130}) {
        Problem p({5, 32, columns}, dtype, DType::kBF16, Holes::kAll, 3);
        const Elements out = p.run(variant.run);
        for (int64_t i = 0; i < 5 * 32; ++i) EXPECT_EQ(out.get(i), 0.0f) << variant.name << " " << columns;
      }
    }
  }
}

// Far apart scores: probabilities that vanish, a sink that swallows everything, a maximum that rises late.
TEST(SparseAttention, ExtremeScores) {
  for (const auto& variant : sparse_attention_variants()) {
    if (variant.isa > max_isa()) continue;
    Problem p({4, 32, 150}, DType::kF32, DType::kF32, Holes::kNone, 19);
    p.scale = 30;
    p.sink = {1e4f, -1e4f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
    const Elements expected = p.run(reference());
    const Elements out = p.run(variant.run);
    EXPECT_TRUE(out.same_bits(expected)) << variant.name;
    EXPECT_TRUE(out.all_finite()) << variant.name;
    EXPECT_EQ(out.get(2 * 32), 0.0f) << variant.name;
  }
}

}  // namespace
}  // namespace weft
