// kernels/lanes/test_array.h
//
// Arrays for kernel tests: F32 or BF16, at any misalignment, NaN everywhere before they are filled, with guard zones.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/lanes/scalar.h"

namespace weft {

class TestArray {
 public:
  // The first element lies `offset` elements after a 64-byte boundary.
  TestArray(DType dtype, int64_t count, int64_t offset = 0)
      : dtype_(dtype), count_(count), size_(dtype_bits(dtype) / 8), storage_((count + 2 * kGuard + 64) * size_) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    first_ = static_cast<int64_t>((64 - address % 64) % 64) + (kGuard + offset) * size_;
    for (int64_t i = -kGuard; i < count + kGuard - 16; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
  }
  TestArray(const TestArray&) = delete;
  TestArray& operator=(const TestArray&) = delete;

  void* data() { return storage_.data() + first_; }
  const float* f32() { return static_cast<const float*>(data()); }
  DType dtype() const { return dtype_; }
  int64_t count() const { return count_; }
  float get(int64_t i) { return load_element(data(), dtype_, i); }
  void set(int64_t i, float value) { store_element(data(), dtype_, i, value); }

  // Mostly numbers around `scale`, some much smaller or larger, some zeros.
  template <class Random>
  void fill(Random& random, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    for (int64_t i = 0; i < count_; ++i) {
      const auto kind = random() % 64;
      const float factor = kind == 0 ? 0.0f : kind == 1 ? 1e-3f : kind == 2 ? 30.0f : 1.0f;
      set(i, normal(random) * factor);
    }
  }

  std::vector<uint32_t> bits(int64_t begin, int64_t count) {
    std::vector<uint32_t> result;
    for (int64_t i = begin; i < begin + count; ++i) result.push_back(std::bit_cast<uint32_t>(get(i)));
    return result;
  }
  std::vector<uint32_t> bits() { return bits(0, count_); }
  bool guards_are_nan() {
    for (int64_t i = 1; i <= kGuard; ++i) {
      if (!std::isnan(get(-i))) return false;
    }
    for (int64_t i = count_; i < count_ + kGuard - 16; ++i) {
      if (!std::isnan(get(i))) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 64;
  DType dtype_;
  int64_t count_, size_, first_ = 0;
  std::vector<std::byte> storage_;
};

constexpr DType kFloatTypes[] = {DType::kF32, DType::kBF16};

}  // namespace weft
