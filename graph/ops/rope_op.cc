#include "graph/ops/rope_op.h"

namespace weft {
namespace {

constexpr int64_t kRowsPerTask = 4;

}  // namespace

Result<ValueTypes> RopeTable::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "positions", 1));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "positions", {DType::kI32}));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "rotary_dims", rope.rotary_dims, 2, 1 << 20));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rotary_dims modulo 2", rope.rotary_dims % 2, 0));
  return ValueTypes{{{DType::kF32, {in[0].shape()[0], rope.rotary_dims / 2, 2}}, in[0].rows}};
}

Work RopeTable::work(TypeSpan in, TypeSpan out, const WorkEnv&) const { return streaming_work(in, out); }

Status RopeTable::run(RunContext& ctx) const {
  const std::vector<float> frequencies = rope.frequencies();
  const int32_t* positions = ctx.in[0].as<int32_t>();
  ctx.pool.parallel_for(ctx.in[0].shape()[0], kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    rope_table({positions + begin, static_cast<size_t>(end - begin)}, frequencies,
               ctx.out[0].as<float>() + begin * rope.rotary_dims);
  });
  return {};
}

Result<ValueTypes> Rope::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 2, 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_rank_2_or_3(kName, in, 0, "x"));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "table", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "table", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of table", in[1].shape()[0], in[0].shape()[0]));
  if (in[0].shape().back() < 2 * in[1].shape()[1]) {
    return invalid_argument(fmt::format("{}: heads of {} features are shorter than {} rotary ones", kName,
                                        in[0].shape().back(), 2 * in[1].shape()[1]));
  }
  return ValueTypes{{in[0].tensor, in[0].rows}};
}

Work Rope::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  const double heads = static_cast<double>(in[0].shape().num_elements()) / static_cast<double>(in[0].shape().back());
  work.flops = 6.0 * heads * static_cast<double>(in[1].shape()[1]);
  return work;
}

Status Rope::run(RunContext& ctx) const {
  const TensorView &x = ctx.in[0], &table = ctx.in[1];
  const int64_t rows = x.shape()[0], width = x.shape().back(), half = table.shape()[1];
  if (rows == 0) return {};
  const int64_t row_elements = x.shape().num_elements() / rows, element = dtype_bits(x.dtype()) / 8;
  auto* kernel = pick_variant(rope_variants(), ctx.isa);
  ctx.pool.parallel_for(rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    RopeArgs args;
    args.x = x.as<std::byte>() + begin * row_elements * element;
    args.y = ctx.out[0].as<std::byte>() + begin * row_elements * element;
    args.dtype = x.dtype();
    args.num_rows = end - begin;
    args.num_heads = row_elements / width;
    args.head_dim = width;
    args.rotary_dims = 2 * half;
    args.table = table.as<float>() + begin * 2 * half;
    args.direction = direction;
    args.pairs = pairs;
    args.place = place;
    kernel(args);
  });
  return {};
}

}  // namespace weft
