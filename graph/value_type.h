// The type of a graph value: tensor type (local, with row capacity), which run-time count its first dimension follows, and
// how it lies over the ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sharding/placement.h"
#include "tensor/tensor.h"

namespace weft {

// The first dimension of kTokens values has room for the step shape's token capacity, of which batch.num_tokens() rows are
// valid in a step (those of its row set, row_sets.h, where they are split over ranks); likewise kLogits with the rows whose
// logits are wanted. kReceived: the rows that the last expert_dispatch brought. kStatic: all of it is valid.
enum class Rows { kStatic, kTokens, kLogits, kReceived };

struct ValueType {
  TensorType tensor;
  Rows rows = Rows::kStatic;
  Placements placement{};

  const Shape& shape() const { return tensor.shape; }
  DType dtype() const { return tensor.dtype; }
  bool operator==(const ValueType&) const = default;
};

using ValueTypes = std::vector<ValueType>;
using TypeSpan = std::span<const ValueType>;

std::string to_string(const ValueType& type);  // "BF16[tokens 512,4,4096] tp:shard(1)"

}  // namespace weft
