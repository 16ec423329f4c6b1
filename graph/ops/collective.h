// Ops that move values between the ranks of a group along one mesh axis: comm/communicator.h. Passes insert them; models
// never do.
//
//   AllReduce       x F32 Partial -> the sum, `dtype`, whole on every rank
//   ReduceScatter   x F32 Partial [rows, ...] -> the sum, `dtype`, rows split over the axis (row_sets.h)
//   AllGather       x sharded on `dim` -> whole. dim 0: rows of a row set -> those of the set above, in its order
//   SliceRows       x [rows, ...] -> this rank's rows of the set that splits them over the axis; moves nothing
//   HeadsToRows     x [local rows, H, d] -> [rows, H / n, d]: all heads of some rows become some heads of all rows
//   ColumnsToRows   x [rows, K/n], some features of all rows -> [local rows, K]: all features of some rows. What a gather of the
//                   features and a slice of the rows give, for 1/n of the bytes
//   SharedQuantise  x [T, K/n], or [T, H/n, d] (heads side by side), a slice of the inputs of a linear layer whose blocks of 128 the axis cuts -> x' of
//                   act_quant fp8_block128 or fp8_block128_any_scale (kernels/linear; of the latter in F32), the largest magnitude of a block
//                   taken over all its slices
//   RowAbsmax       x [T, K/n], a slice of the inputs of a linear layer -> [T] F32, the largest magnitude of each whole row
//   ExpertDispatch  x [t, D] A, expert [t, k] (ascending), weight [t, k] of this rank's rows -> the rows of all ranks of the
//                   group that picked an expert of this rank, each row once, by rank and ascending row: x [R, D],
//                   expert [R, k] (numbers within this rank; -1: not here), weight [R, k], and how many came from each
//                   rank [n] I32
//   ExpertCombine   slots [R, k, D] F32 (the output of every slot, rounded to `dtype`), expert [R, k] and counts of the
//                   dispatch, and the expert [t, k] that was dispatched -> y [t, D] F32: sum over the slots of each row in
//                   ascending expert id, from zero; slots travel in `dtype`
// n is the size of the group. `capacity` is the first dimension of the output. Ranks without rows take part as well.
//
// work() counts the bytes of a full graph, those of experts as the routing of its WorkEnv has them; bytes_sent() those of one
// run: of the rows that this rank and its peers have in the step, and of the experts that these rows picked.
#pragma once

#include "graph/op_spec.h"
#include "graph/ops/linear_op.h"

namespace weft {

template <>
struct EnumText<MeshAxis> {
  static constexpr std::array<std::string_view, 6> kNames = {"dp", "pp", "pcp", "tp", "dcp", "ep"};
};

struct AllReduce {
  static constexpr std::string_view kName = "all_reduce";
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;
  DType dtype = DType::kF32;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("dtype", self.dtype);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const AllReduce&) const = default;
};

struct ReduceScatter {
  static constexpr std::string_view kName = "reduce_scatter";
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;
  DType dtype = DType::kF32;
  int64_t capacity = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("dtype", self.dtype);
    f("capacity", self.capacity);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const ReduceScatter&) const = default;
};

struct AllGather {
  static constexpr std::string_view kName = "all_gather";
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;
  int64_t dim = 0;
  int64_t capacity = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("dim", self.dim);
    f("capacity", self.capacity);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  // Weights only: begins what run() does, the group's wait() ends it.
  Result<Communicator::Request> start(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const AllGather&) const = default;

 private:
  Exchange columns(const TensorView& x, const TensorView& y) const;
};

struct SliceRows {
  static constexpr std::string_view kName = "slice_rows";
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;
  int64_t capacity = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("capacity", self.capacity);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext&) const { return 0; }
  bool operator==(const SliceRows&) const = default;
};

struct HeadsToRows {
  static constexpr std::string_view kName = "heads_to_rows";
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;
  int64_t capacity = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("capacity", self.capacity);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const HeadsToRows&) const = default;
};

struct ColumnsToRows {
  static constexpr std::string_view kName = "columns_to_rows";
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;
  int64_t capacity = 0;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("capacity", self.capacity);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const ColumnsToRows&) const = default;
};

struct SharedQuantise {
  static constexpr std::string_view kName = "shared_quantise";
  static constexpr int64_t kBlock = 128;
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;
  ActQuant act_quant = ActQuant::kFp8Block128;  // of the linear layer

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("act_quant", self.act_quant);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const SharedQuantise&) const = default;
};

struct RowAbsmax {
  static constexpr std::string_view kName = "row_absmax";
  MeshAxis axis = MeshAxis::kTp;
  int64_t size = 1;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const RowAbsmax&) const = default;
};

struct ExpertDispatch {
  static constexpr std::string_view kName = "expert_dispatch";
  MeshAxis axis = MeshAxis::kEp;
  int64_t size = 1;
  int64_t experts = 0;   // of one rank
  int64_t capacity = 0;  // R

  // Every rank may send all of its rows.
  int64_t capacity_for(TypeSpan in) const { return size * in[0].shape()[0]; }

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("experts", self.experts);
    f("capacity", self.capacity);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const ExpertDispatch&) const = default;
};

struct ExpertCombine {
  static constexpr std::string_view kName = "expert_combine";
  MeshAxis axis = MeshAxis::kEp;
  int64_t size = 1;
  int64_t experts = 0;
  DType dtype = DType::kF32;

  template <class Self, class F>
  static void visit_fields(Self& self, F&& f) {
    f("axis", self.axis);
    f("size", self.size);
    f("experts", self.experts);
    f("dtype", self.dtype);
  }
  Result<ValueTypes> infer(TypeSpan in) const;
  Result<std::vector<Placements>> placements(TypeSpan in) const;
  Work work(TypeSpan in, TypeSpan out, const WorkEnv& env) const;
  ShardRule shard_rule(TypeSpan) const { return {}; }
  std::vector<int> mutates() const { return {}; }
  Status run(RunContext& ctx) const;
  int64_t bytes_sent(const RunContext& ctx) const;
  bool operator==(const ExpertCombine&) const = default;
};

}  // namespace weft
