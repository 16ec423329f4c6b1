// One entry of compressed attention from the rows of its groups: what the ops that compress share.
#pragma once

#include <vector>

#include "base/function_ref.h"
#include "graph/ops/attention.h"

namespace weft {

class GroupCompressor {
 public:
  // Inputs as Compressor has them.
  GroupCompressor(const Compressor& op, std::span<const TensorView> in, Isa isa);

  // k and s [w] of a position >= 0.
  struct Row {
    const float *k, *s;
  };
  // Entry `group` into `entry`; rows(p) for every position of its one or two groups. scratch: scratch_bytes(), 64-byte aligned.
  void run(int64_t group, FunctionRef<Row(int64_t position)> rows, std::byte* scratch, std::byte* entry) const;

  static int64_t scratch_bytes(const Compressor& op, int64_t w, int64_t d);

 private:
  const Compressor& op_;
  const TensorView norm_;
  const int64_t width_;  // d
  const bool overlap_;
  const DType dtype_;
  const Isa isa_;
  const std::vector<float> frequencies_;
};

}  // namespace weft
