// Shape, TensorType (dtype + shape) and views of memory with a type. Row-major, always contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "tensor/dtype.h"

namespace weft {

class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t operator[](int i) const;
  int64_t& operator[](int i);
  int64_t back() const { return (*this)[rank_ - 1]; }
  int64_t num_elements() const;     // 1 for rank 0
  int64_t num_rows() const;         // product of all dims but the last; 1 for rank 0
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }

  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxRank> dims_{};  // unused entries stay 0, so that == compares rightly
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[4096,64,512]"

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;

  // Bytes of the contiguous tensor; the last dim of a 4-bit type must be even.
  int64_t bytes() const;
  bool operator==(const TensorType&) const = default;
};

std::string to_string(const TensorType& type);  // "BF16[4096,64,512]"

// Borrowed memory. `parts` is used by a stacked weight whose first dim lies in separate places (experts of the official
// files): parts[i] is the start of slice i, and `data` is null. Otherwise parts is empty.
//
// A matrix (or every part of a stacked one) may be a slice of a larger one: rows then lie `row_stride` elements apart (0: the
// number of columns), and its first element is element (row0, col0) of the whole. `data` is that element, parts[i] is still the
// first of the whole slice i: matrix_at() finds its own.
struct TensorView {
  TensorType type;
  void* data = nullptr;
  std::span<void* const> parts;
  int64_t row_stride = 0, row0 = 0, col0 = 0;

  const Shape& shape() const { return type.shape; }
  DType dtype() const { return type.dtype; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Matrix i of a stack [n, rows, columns].
TensorView matrix_at(const TensorView& stacked, int64_t i);

}  // namespace weft
