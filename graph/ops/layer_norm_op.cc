#include "graph/ops/layer_norm_op.h"

#include "kernels/layer_norm/layer_norm.h"

namespace weft {
namespace {

constexpr int64_t kRowsPerTask = 16;

}  // namespace

Result<ValueTypes> LayerNorm::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 3, 3));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "weight", {DType::kF32, DType::kBF16}));
  for (int i = 1; i < 3; ++i) {
    const std::string_view name = i == 1 ? "weight" : "bias";
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, i, name, 1));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, fmt::format("width of {}", name), in[i].shape()[0], in[0].shape()[1]));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, i, name, {in[1].dtype()}));
  }
  return ValueTypes{{in[0].tensor, in[0].rows}};
}

Work LayerNorm::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.flops = 7.0 * static_cast<double>(in[0].shape().num_elements());
  return work;
}

Status LayerNorm::run(RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  const int64_t width = x.shape()[1], row_bytes = width * dtype_bits(x.dtype()) / 8;
  auto* kernel = pick_variant(layer_norm_variants(), ctx.isa);
  ctx.pool.parallel_for(x.shape()[0], kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    LayerNormArgs args;
    args.x = x.as<std::byte>() + begin * row_bytes;
    args.y = ctx.out[0].as<std::byte>() + begin * row_bytes;
    args.dtype = x.dtype();
    args.num_rows = end - begin;
    args.width = width;
    args.w = ctx.in[1].data;
    args.b = ctx.in[2].data;
    args.w_dtype = ctx.in[1].dtype();
    args.eps = static_cast<float>(eps);
    kernel(args);
  });
  return {};
}

}  // namespace weft
