#include "tensor/tensor.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace weft {

Shape::Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  WEFT_CHECK(rank_ <= kMaxRank, "rank {}", rank_);
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

int64_t Shape::operator[](int i) const {
  WEFT_DCHECK(0 <= i && i < rank_, "dim {} of rank {}", i, rank_);
  return dims_[i];
}

int64_t& Shape::operator[](int i) {
  WEFT_DCHECK(0 <= i && i < rank_, "dim {} of rank {}", i, rank_);
  return dims_[i];
}

int64_t Shape::num_elements() const {
  int64_t n = 1;
  for (int64_t d : dims()) n *= d;
  return n;
}

int64_t Shape::num_rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < rank_; ++i) n *= dims_[i];
  return n;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape.dims(), ",")); }

int64_t TensorType::bytes() const {
  const int64_t bits = shape.num_elements() * dtype_bits(dtype);
  WEFT_CHECK(bits % 8 == 0, "{} does not fill whole bytes", to_string(*this));
  return bits / 8;
}

std::string to_string(const TensorType& type) {
  return fmt::format("{}{}", dtype_name(type.dtype), to_string(type.shape));
}

TensorView matrix_at(const TensorView& stacked, int64_t i) {
  const int64_t columns = stacked.shape()[2], stride = stacked.row_stride != 0 ? stacked.row_stride : columns;
  TensorView view = stacked;
  view.parts = {};
  view.type.shape = {stacked.shape()[1], columns};
  if (stacked.parts.empty()) {
    view.data = stacked.as<std::byte>() + i * view.type.bytes();
  } else {
    const TensorType before{stacked.dtype(), {stacked.row0 * stride + stacked.col0}};
    view.data = static_cast<std::byte*>(stacked.parts[static_cast<size_t>(i)]) + before.bytes();
  }
  return view;
}

}  // namespace weft
