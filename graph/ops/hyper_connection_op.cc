#include "graph/ops/hyper_connection_op.h"

#include "kernels/hyper_connection/hyper_connection.h"

namespace weft {
namespace {

constexpr int64_t kRowsPerTask = 8;

Status expect_weights(std::string_view op, TypeSpan in, int64_t mixes, int64_t scales) {
  WEFT_RETURN_IF_ERROR(expect_inputs(op, in, 4, 4));
  WEFT_RETURN_IF_ERROR(expect_rank(op, in, 0, "streams", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, 0, "streams", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_range(op, "streams", in[0].shape()[1], 1, kMaxHcStreams));
  for (int i = 1; i < 4; ++i) WEFT_RETURN_IF_ERROR(expect_dtype(op, in, i, "mixing weights", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_rank(op, in, 1, "fn", 2));
  WEFT_RETURN_IF_ERROR(expect_dim(op, "rows of fn", in[1].shape()[0], mixes));
  WEFT_RETURN_IF_ERROR(expect_dim(op, "columns of fn", in[1].shape()[1], in[0].shape()[1] * in[0].shape()[2]));
  WEFT_RETURN_IF_ERROR(expect_dim(op, "base", in[2].shape().num_elements(), mixes));
  return expect_dim(op, "scale", in[3].shape().num_elements(), scales);
}

// hc_pre and hc_head: the same kernel, with and without `mix`.
Status run_pre(RunContext& ctx, int64_t iterations, double rms_eps, double hc_eps, float* mix) {
  const TensorView& x = ctx.in[0];
  const int64_t streams = x.shape()[1], hidden = x.shape()[2];
  HcPreArgs args;
  args.x = x.data;
  args.dtype = x.dtype();
  args.num_rows = x.shape()[0];
  args.streams = streams;
  args.hidden = hidden;
  args.weights = {ctx.in[1].as<float>(), ctx.in[2].as<float>(), ctx.in[3].as<float>()};
  args.iterations = static_cast<int>(iterations);
  args.rms_eps = static_cast<float>(rms_eps);
  args.hc_eps = static_cast<float>(hc_eps);
  args.out = ctx.out[0].data;
  args.mix = mix;
  hc_pre(args, ctx.isa, ctx.pool);
  return {};
}

Work pre_work(TypeSpan in, TypeSpan out) {
  Work work = streaming_work(in, out);
  const double rows = static_cast<double>(in[0].shape()[0]);
  work.bytes_stored = in[1].tensor.bytes();
  work.flops = rows * (2.0 * static_cast<double>(in[1].shape().num_elements()) + 4.0 * static_cast<double>(in[1].shape()[1]));
  return work;
}

}  // namespace

Result<ValueTypes> HcPre::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 4, 4));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "streams", 3));
  const int64_t streams = in[0].shape()[1];
  WEFT_RETURN_IF_ERROR(expect_weights(kName, in, (2 + streams) * streams, 3));
  const int64_t rows = in[0].shape()[0];
  return ValueTypes{{{in[0].dtype(), {rows, in[0].shape()[2]}}, in[0].rows},
                    {{DType::kF32, {rows, streams + streams * streams}}, in[0].rows}};
}

Work HcPre::work(TypeSpan in, TypeSpan out, const WorkEnv&) const { return pre_work(in, out); }

Status HcPre::run(RunContext& ctx) const {
  return run_pre(ctx, iterations, rms_eps, hc_eps, ctx.out[1].as<float>());
}

Result<ValueTypes> HcPost::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 3, 3));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "y", 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "streams", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "y", {in[1].dtype()}));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "streams", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 2, "mix", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "streams", in[1].shape()[1], 1, kMaxHcStreams));
  const int64_t rows = in[1].shape()[0], streams = in[1].shape()[1];
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of y", in[0].shape()[0], rows));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "width of y", in[0].shape()[1], in[1].shape()[2]));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "elements of mix", in[2].shape().num_elements(), rows * (streams + streams * streams)));
  return ValueTypes{{in[1].tensor, in[1].rows}};
}

Work HcPost::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  const double streams = static_cast<double>(in[1].shape()[1]);
  work.flops = 2.0 * static_cast<double>(in[1].shape().num_elements()) * (streams + 1);
  return work;
}

Status HcPost::run(RunContext& ctx) const {
  const TensorView& x = ctx.in[1];
  const int64_t streams = x.shape()[1], hidden = x.shape()[2], element = dtype_bits(x.dtype()) / 8;
  auto* kernel = pick_variant(hc_post_variants(), ctx.isa);
  ctx.pool.parallel_for(x.shape()[0], kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    HcPostArgs args;
    args.x = x.as<std::byte>() + begin * streams * hidden * element;
    args.y = ctx.in[0].as<std::byte>() + begin * hidden * element;
    args.mix = ctx.in[2].as<float>() + begin * (streams + streams * streams);
    args.out = ctx.out[0].as<std::byte>() + begin * streams * hidden * element;
    args.dtype = x.dtype();
    args.num_rows = end - begin;
    args.streams = streams;
    args.hidden = hidden;
    kernel(args);
  });
  return {};
}

Result<ValueTypes> HcHead::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 4, 4));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "streams", 3));
  WEFT_RETURN_IF_ERROR(expect_weights(kName, in, in[0].shape()[1], 1));
  return ValueTypes{{{in[0].dtype(), {in[0].shape()[0], in[0].shape()[2]}}, in[0].rows}};
}

Work HcHead::work(TypeSpan in, TypeSpan out, const WorkEnv&) const { return pre_work(in, out); }

Status HcHead::run(RunContext& ctx) const { return run_pre(ctx, 0, rms_eps, hc_eps, nullptr); }

}  // namespace weft
