// y[t] = A(table[tokens[t]])                       streams 0: y [T, D]
// y[t, s] = A(table[tokens[t]]), s < streams       streams S: y [T, S, D], the residual streams of mHC
//
//   tokens I32[T], table [V, D] BF16 or F32.  A id outside the table is an error.
#pragma once

#include "graph/op_spec.h"

namespace weft {

struct Embedding {
  static constexpr std::string_view kName = "embedding";
  int64_t streams = 0;
  DType dtype = DType::kF32;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("streams", self.streams);
    f("dtype", self.dtype);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan in) const { return {{"t", "vd"}, {streams == 0 ? "td" : "tsd"}, "td", ""}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  bool operator==(const Embedding&) const = default;
};

}  // namespace weft
