#include "graph/ops/quantise_op.h"

#include <bit>

namespace weft {
namespace {

constexpr int64_t kRowsPerTask = 16;

QuantiseArgs kernel_args(const Quantise& op, const void* x, void* y, DType dtype, int64_t num_rows, int64_t width) {
  QuantiseArgs args;
  args.x = x;
  args.y = y;
  args.dtype = dtype;
  args.x_stride = args.y_stride = args.width = width;
  args.num_rows = num_rows;
  args.begin = op.begin;
  args.end = op.end;
  args.block = op.block;
  args.format = op.format;
  args.hadamard = op.hadamard;
  return args;
}

}  // namespace

Result<ValueTypes> Quantise::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_rank_2_or_3(kName, in, 0, "x"));
  const int64_t width = in[0].shape().back();
  WEFT_RETURN_IF_ERROR(expect_range(kName, "block", block, 1, kMaxQuantiseSpan));
  if (begin < 0 || end < begin || end > width) {
    return invalid_argument(fmt::format("{}: features [{}, {}) in blocks of {} of a width of {}", kName, begin, end, block, width));
  }
  if (hadamard) WEFT_RETURN_IF_ERROR(expect_range(kName, "width", width, 1, kMaxQuantiseSpan));
  if (hadamard && !std::has_single_bit(static_cast<uint64_t>(width))) {
    return invalid_argument(fmt::format("{}: a Hadamard rotation needs a width that is a power of two, not {}", kName, width));
  }
  return ValueTypes{{in[0].tensor, in[0].rows}};
}

Work Quantise::work(TypeSpan in, TypeSpan out, const WorkEnv&) const { return streaming_work(in, out); }

Status Quantise::run(RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  const int64_t width = x.shape().back(), row_bytes = width * dtype_bits(x.dtype()) / 8;
  auto* kernel = pick_variant(quantise_variants(), ctx.isa);
  ctx.pool.parallel_for(x.shape().num_rows(), kRowsPerTask, [&](int64_t first, int64_t last, int) {
    kernel(kernel_args(*this, x.as<std::byte>() + first * row_bytes, ctx.out[0].as<std::byte>() + first * row_bytes,
                       x.dtype(), last - first, width));
  });
  return {};
}

void Quantise::apply(void* rows, DType dtype, int64_t num_rows, int64_t width, Isa isa) const {
  pick_variant(quantise_variants(), isa)(kernel_args(*this, rows, rows, dtype, num_rows, width));
}

}  // namespace weft
