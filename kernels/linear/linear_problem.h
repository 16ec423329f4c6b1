// Problems of a linear layer for tests, and what its variants must give.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/numeric.h"
#include "base/thread_pool.h"
#include "kernels/linear/linear_internal.h"

namespace weft::linear_testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr uint32_t kSeed = 20240611;

struct Format {
  const char* name;
  DType dtype;
  bool scaled;
  DType scale_dtype;
  int64_t block_rows, block_cols;  // block_cols 0: all of K
};

inline constexpr Format kFormats[] = {
    {"F32", DType::kF32, false, DType::kF32, 1, 0},
    {"BF16", DType::kBF16, false, DType::kF32, 1, 0},
    {"BF16 with a scale", DType::kBF16, true, DType::kF32, 1, 32},
    {"FP8 E8M0 128x128", DType::kF8E4M3, true, DType::kF8E8M0, 128, 128},
    {"FP8 F32 128x128", DType::kF8E4M3, true, DType::kF32, 128, 128},
    {"FP8 E8M0 32x32", DType::kF8E4M3, true, DType::kF8E8M0, 32, 32},
    {"FP8 without scale", DType::kF8E4M3, false, DType::kF32, 1, 0},
    {"FP4 E8M0 1x32", DType::kF4E2M1, true, DType::kF8E8M0, 1, 32},
    {"FP4 F32 1x20", DType::kF4E2M1, true, DType::kF32, 1, 20},
    {"I8 per row", DType::kI8, true, DType::kF32, 1, 0},
};

enum class Values { kUsual, kAnyCode };  // kAnyCode: NaN codes, extreme scales, infinities and subnormals too

// Bytes at an address that is a multiple of 64 plus `shift`.
struct Bytes {
  std::vector<std::byte> storage;
  std::byte* data = nullptr;
  Bytes(int64_t size, int64_t shift) : storage(static_cast<size_t>(size + shift + 64)) {
    const auto address = reinterpret_cast<uintptr_t>(storage.data());
    data = storage.data() + (64 - address % 64) % 64 + shift;
  }
};

struct Case {
  int64_t rows = 1, k = 16, cols = 1, groups = 1, k_blocks = 1;
  Format format = kFormats[0];
  Values values = Values::kUsual;
  DType x_dtype = DType::kF32, y_dtype = DType::kF32;
  ActQuant act_quant = ActQuant::kNone;
  int64_t shift = 0, padding = 0;  // misalignment in bytes; unused elements between rows of x and y
  int threads = 1;

  std::string name() const {
    return fmt::format("{} M {} K {} N {} groups {} k_blocks {} x {} y {} act_quant {} any_code {} shift {} seed {}",
                       format.name, rows, k, cols, groups, k_blocks, dtype_name(x_dtype), dtype_name(y_dtype),
                       static_cast<int>(act_quant), values == Values::kAnyCode, shift, kSeed);
  }
};

inline int64_t bytes_of(DType dtype, int64_t count) { return (count * dtype_bits(dtype) + 7) / 8; }

inline void put(DType dtype, std::byte* p, int64_t i, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(p + i * 4, &value, 4);
  } else {
    const bf16 rounded = to_bf16(value);
    std::memcpy(p + i * 2, &rounded, 2);
  }
}
inline float get(DType dtype, const std::byte* p, int64_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, p + i * 4, 4);
    return value;
  }
  bf16 value;
  std::memcpy(&value, p + i * 2, 2);
  return to_float(value);
}

struct Problem {
  Case c;
  Bytes x, w, scale;
  int64_t x_stride, y_stride;
  WeightMatrix matrix;

  explicit Problem(const Case& in)
      : c(in),
        x(bytes_of(c.x_dtype, c.rows * (c.groups * c.k + c.padding)), c.shift),
        w(bytes_of(c.format.dtype, c.groups * c.cols * c.k), c.shift),
        scale(4 * c.groups * c.cols * c.k, c.shift),
        x_stride(c.groups * c.k + c.padding),
        y_stride(c.groups * c.cols + c.padding) {
    std::mt19937 random(kSeed);
    fill_x(random);
    fill_w(random);
  }

  void fill_x(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < c.rows * x_stride; ++i) {
      float value = i % x_stride < c.groups * c.k ? normal(random) : kNan;
      if (c.values == Values::kAnyCode && random() % 64 == 0) {
        const float special[] = {kInf, -kInf, kNan, 1e-42f, -0.0f, 3e38f, 1e-30f, 1e20f};
        value = special[random() % 8];
      }
      put(c.x_dtype, x.data, i, value);
    }
  }

  void fill_w(std::mt19937& random) {
    const bool any = c.values == Values::kAnyCode;
    std::normal_distribution<float> normal;
    const int64_t rows = c.groups * c.cols;
    const bool floats = c.format.dtype == DType::kF32 || c.format.dtype == DType::kBF16;
    for (int64_t i = 0; i < rows * c.k && floats; ++i) put(c.format.dtype, w.data, i, normal(random));
    for (int64_t i = 0; i < bytes_of(c.format.dtype, rows * c.k) && !floats; ++i) {
      auto code = static_cast<uint8_t>(random());
      const bool nan = c.format.dtype == DType::kF8E4M3 && (code & 0x7f) == 0x7f;
      if (nan && !(any && random() % 8 == 0)) code ^= 1;
      w.data[i] = static_cast<std::byte>(code);
    }
    matrix = {c.format.dtype, w.data, rows, c.k};
    if (!c.format.scaled) return;
    matrix.scale = scale.data;
    matrix.scale_dtype = c.format.scale_dtype;
    matrix.block_rows = c.format.block_rows;
    matrix.block_cols = c.format.block_cols == 0 ? c.k : c.format.block_cols;
    for (int64_t i = 0; i < rows * c.k; ++i) {
      if (matrix.scale_dtype == DType::kF32) {
        put(DType::kF32, scale.data, i, normal(random) * (any && random() % 8 == 0 ? 3e37f : 0.1f));
      } else {
        const int extreme[] = {0, 1, 2, 134, 135, 253, 254, 255};
        const int code = any && random() % 4 == 0 ? extreme[random() % 8] : 120 + static_cast<int>(random() % 8);
        scale.data[i] = static_cast<std::byte>(code);
      }
    }
  }

  bool takes_pairs() const { return takes_bf16_pairs(matrix, c.x_dtype, c.act_quant, c.k_blocks); }

  LinearArgs args(std::byte* y, std::byte* scratch) const {
    LinearArgs a;
    a.x = x.data;
    a.x_dtype = c.x_dtype;
    a.x_stride = x_stride;
    a.num_rows = c.rows;
    a.w = matrix;
    a.groups = c.groups;
    a.k_blocks = c.k_blocks;
    a.act_quant = c.act_quant;
    a.y = y;
    a.y_dtype = c.y_dtype;
    a.y_stride = y_stride;
    a.scratch = scratch;
    return a;
  }

  // All of y, padding included, as floats.
  std::vector<float> run(LinearFn* function) const {
    Bytes y(bytes_of(c.y_dtype, c.rows * y_stride), c.shift);
    for (int64_t i = 0; i < c.rows * y_stride; ++i) put(c.y_dtype, y.data, i, kNan);
    const int64_t size =
        linear_scratch_bytes(c.rows, c.groups * c.k, c.groups * c.cols, c.groups, c.format.dtype, c.threads);
    Bytes scratch(size, 0);
    std::memset(scratch.data, 0xff, static_cast<size_t>(size));
    ThreadPool pool(c.threads);
    function(args(y.data, scratch.data), pool);
    std::vector<float> out(static_cast<size_t>(c.rows * y_stride));
    for (size_t i = 0; i < out.size(); ++i) out[i] = get(c.y_dtype, y.data, static_cast<int64_t>(i));
    return out;
  }
};

// Bits, except that one NaN is as good as another.
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

inline std::string first_difference(const std::vector<float>& want, const std::vector<float>& got, int64_t stride) {
  for (size_t i = 0; i < want.size(); ++i) {
    const auto n = static_cast<int64_t>(i);
    if (!same(want[i], got[i]))
      return fmt::format("[{}, {}] expected {} got {}", n / stride, n % stride, want[i], got[i]);
  }
  return "";
}

// What a variant must give: the canonical bits, but for avx512_bf16.
class Expected {
 public:
  explicit Expected(const Problem& problem)
      : canonical_(problem.run(linear_ref)),
        pairs_(problem.takes_pairs() ? problem.run(linear_bf16_ref) : canonical_) {}
  const std::vector<float>& of(Isa isa) const { return isa == Isa::kAvx512Bf16 ? pairs_ : canonical_; }
  bool differ() const { return first_difference(canonical_, pairs_, 1) != ""; }

 private:
  std::vector<float> canonical_, pairs_;
};

inline void expect_all_variants_equal(const Problem& problem) {
  const Expected want(problem);
  for (const auto& variant : linear_variants()) {
    if (variant.isa > max_isa()) continue;
    const std::string difference = first_difference(want.of(variant.isa), problem.run(variant.run), problem.y_stride);
    EXPECT_EQ(difference, "") << variant.name << ": " << problem.c.name();
  }
}
inline void expect_all_variants_equal(const Case& c) { expect_all_variants_equal(Problem(c)); }

}  // namespace weft::linear_testing
