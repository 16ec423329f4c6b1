// Quantise: round trip of features [begin, end) of every vector through FP8 or FP4, after a Hadamard rotation if asked: kernels/quantise.
//
//   x [T, ..., W] A -> the same type
//
// QuantiseGroups: int8 codes of groups of neighbouring heads, behind them the scale of the row and group: one value, which travels at once.
//
//   x [T, H, d] A -> I8 [T, H / heads, heads*d + 4]: codes, then the four bytes of the F32 scale
//   s = absmax of the group / 127, code = clamp(rint(x / s), -128, 127); all 0 where s is 0. A NaN in the group makes s NaN.
//
// A group is quantised by itself, so neither rows nor ranks that have whole groups of heads change a bit.
#pragma once

#include "graph/op_spec.h"
#include "kernels/quantise/quantise.h"

namespace weft {

inline DType dtype_of(QuantFormat format) { return format == QuantFormat::kFp4 ? DType::kF4E2M1 : DType::kF8E4M3; }

template <>
struct EnumText<QuantFormat> {
  static constexpr std::array<std::string_view, 3> kNames = {"fp8", "fp4", "fp8_any_scale"};
};

struct Quantise {
  static constexpr std::string_view kName = "quantise";
  QuantFormat format = QuantFormat::kFp8;
  int64_t begin = 0, end = 0, block = 0;
  bool hadamard = false;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("format", self.format);
    f("begin", self.begin);
    f("end", self.end);
    f("block", self.block);
    f("hadamard", self.hadamard);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{in[0].shape().rank() == 3 ? "thd" : "td"}, {in[0].shape().rank() == 3 ? "thd" : "td"}, "th", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Quantise&) const = default;

  // Applies the round trip to `num_rows` contiguous vectors in place; other ops that store rounded rows use it.
  void apply(void* rows, DType dtype, int64_t num_rows, int64_t width, Isa isa) const;
};

struct QuantiseGroups {
  static constexpr std::string_view kName = "quantise_groups";
  static constexpr int64_t kScaleBytes = 4;
  int64_t heads = 1;  // of a group

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("heads", self.heads);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {{"thd"}, {"thd"}, "th", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const QuantiseGroups&) const = default;
};

}  // namespace weft
