#include "graph/ops/rms_norm_op.h"

#include <cstring>

namespace weft {
namespace {

constexpr int64_t kRowsPerTask = 4;

}  // namespace

Result<ValueTypes> RmsNorm::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 2));
  WEFT_RETURN_IF_ERROR(expect_rank_2_or_3(kName, in, 0, "x"));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  if (in.size() == 2) {
    if (rounding == NormRounding::kEachStep) return invalid_argument(fmt::format("{}: rounding each step takes no weight", kName));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "weight", {DType::kF32, DType::kBF16}));
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "weight", 1));
    WEFT_RETURN_IF_ERROR(expect_range(kName, "weight width", in[1].shape()[0], 1, in[0].shape().back()));
  }
  return ValueTypes{{in[0].tensor, in[0].rows}};
}

Work RmsNorm::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  const int64_t width = in.size() == 2 ? in[1].shape()[0] : in[0].shape().back();
  work.flops = 4.0 * static_cast<double>(in[0].shape().num_rows() * width);
  return work;
}

Status RmsNorm::run(RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  const int64_t stride = x.shape().back(), element = dtype_bits(x.dtype()) / 8;
  const int64_t width = ctx.in.size() == 2 ? ctx.in[1].shape()[0] : stride;
  auto* kernel = pick_variant(rms_norm_variants(), ctx.isa);
  ctx.pool.parallel_for(x.shape().num_rows(), kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    RmsNormArgs args;
    args.x = x.as<std::byte>() + begin * stride * element;
    args.y = ctx.out[0].as<std::byte>() + begin * stride * element;
    args.dtype = x.dtype();
    args.x_stride = args.y_stride = stride;
    args.width = width;
    args.num_rows = end - begin;
    if (ctx.in.size() == 2) {
      args.w = ctx.in[1].data;
      args.w_dtype = ctx.in[1].dtype();
    }
    args.eps = static_cast<float>(eps);
    args.rounding = rounding;
    kernel(args);
    for (int64_t row = begin; row < end && width < stride; ++row) {
      const int64_t rest = (row * stride + width) * element;
      std::memcpy(ctx.out[0].as<std::byte>() + rest, x.as<std::byte>() + rest, (stride - width) * element);
    }
  });
  return {};
}

}  // namespace weft
