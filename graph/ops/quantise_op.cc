#include "graph/ops/quantise_op.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/numeric.h"
#include "graph/ops/linear_op.h"

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

// ---- QuantiseGroups

namespace {

constexpr float kInt8Least = -128, kInt8Most = 127;

// Integer maxima and a rounding by addition: plain loops that the compiler makes vectors of.
template <class T>
float quantise_group(const T* x, int64_t n, int8_t* codes) {
  const auto value = [&](int64_t i) {
    if constexpr (std::is_same_v<T, bf16>) return to_float(x[i]);
    else return x[i];
  };
  int32_t most = 0;  // of the bits of magnitudes; those of NaN are above all numbers
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<int32_t>(value(i)) & 0x7fffffff);
  const float scale = std::bit_cast<float>(most) / kInt8Most;
  if (scale == 0) {
    std::fill(codes, codes + n, int8_t{0});
    return scale;
  }
  constexpr float kRound = 0x1.8p23f;  // numbers of this size have no fraction: adding it rounds to nearest even
  for (int64_t i = 0; i < n; ++i) {
    const float v = (value(i) / scale + kRound) - kRound;
    const float clamped = v >= kInt8Least ? (v <= kInt8Most ? v : kInt8Most) : kInt8Least;  // NaN: the least, as in kernels/linear
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(clamped));
  }
  return scale;
}

}  // namespace

Result<ValueTypes> QuantiseGroups::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 3));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "heads of a group", heads, 1, 1 << 20));
  const Shape& x = in[0].shape();
  if (x[1] % heads != 0) {
    return invalid_argument(fmt::format("{}: {} heads of x cut a group of {}, which has one scale", kName, x[1], heads));
  }
  return ValueTypes{{{DType::kI8, {x[0], x[1] / heads, heads * x[2] + kScaleBytes}}, in[0].rows}};
}

Work QuantiseGroups::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.flops = quantising_ops(ActQuant::kInt8PerRow) * static_cast<double>(in[0].shape().num_elements());
  return work;
}

Status QuantiseGroups::run(RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  const int64_t groups = x.shape()[1] / heads, width = heads * x.shape()[2];
  ctx.pool.parallel_for(x.shape()[0] * groups, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t i = first; i < last; ++i) {
      int8_t* codes = ctx.out[0].as<int8_t>() + i * (width + kScaleBytes);
      const float scale = x.dtype() == DType::kBF16 ? quantise_group(x.as<bf16>() + i * width, width, codes)
                                                    : quantise_group(x.as<float>() + i * width, width, codes);
      std::memcpy(codes + width, &scale, sizeof scale);
    }
  });
  return {};
}

}  // namespace weft
