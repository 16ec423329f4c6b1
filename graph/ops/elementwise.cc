#include "graph/ops/elementwise.h"

#include <algorithm>
#include <cstring>

#include "base/numeric.h"
#include "kernels/swiglu/swiglu.h"

namespace weft {
namespace {

constexpr int64_t kElementsPerTask = 4096;
constexpr int64_t kRowsPerTask = 8;

float load(const TensorView& x, int64_t i) {
  return x.dtype() == DType::kF32 ? x.as<float>()[i] : to_float(x.as<bf16>()[i]);
}

void store(const TensorView& x, int64_t i, float value) {
  if (x.dtype() == DType::kF32) {
    x.as<float>()[i] = value;
  } else {
    x.as<bf16>()[i] = to_bf16(value);
  }
}

}  // namespace

Result<ValueTypes> Swiglu::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 2, 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "gate", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "gate", 2));
  if (in[0].tensor != in[1].tensor) {
    return invalid_argument(fmt::format("{}: gate is {}, up is {}", kName, to_string(in[0]), to_string(in[1])));
  }
  return ValueTypes{{in[0].tensor, in[0].rows}};
}

Work Swiglu::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.flops = 4.0 * static_cast<double>(in[0].shape().num_elements());
  return work;
}

Status Swiglu::run(RunContext& ctx) const {
  const DType dtype = ctx.out[0].dtype();
  const int64_t element = dtype_bits(dtype) / 8;
  auto* kernel = pick_variant(swiglu_variants(), ctx.isa);
  ctx.pool.parallel_for(ctx.out[0].shape().num_elements(), kElementsPerTask, [&](int64_t begin, int64_t end, int) {
    SwigluArgs args;
    args.g = ctx.in[0].as<std::byte>() + begin * element;
    args.u = ctx.in[1].as<std::byte>() + begin * element;
    args.y = ctx.out[0].as<std::byte>() + begin * element;
    args.dtype = dtype;
    args.count = end - begin;
    args.limit = static_cast<float>(limit);
    kernel(args);
  });
  return {};
}

Result<ValueTypes> Add::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 2, 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "a", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "a", {DType::kF32, in[1].dtype()}));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "b", {DType::kF32, DType::kBF16}));
  if (in[0].shape() != in[1].shape()) {
    return invalid_argument(fmt::format("{}: a is {}, b is {}", kName, to_string(in[0]), to_string(in[1])));
  }
  return ValueTypes{{in[1].tensor, in[1].rows}};
}

Work Add::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.flops = static_cast<double>(in[0].shape().num_elements());
  return work;
}

Status Add::run(RunContext& ctx) const {
  ctx.pool.parallel_for(ctx.out[0].shape().num_elements(), kElementsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) store(ctx.out[0], i, load(ctx.in[0], i) + load(ctx.in[1], i));
  });
  return {};
}

Result<ValueTypes> AddStreams::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 2, 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "e", 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "streams", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "streams", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "e", {in[1].dtype()}));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of e", in[0].shape()[0], in[1].shape()[0]));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "width of e", in[0].shape()[1], in[1].shape()[2]));
  return ValueTypes{{in[1].tensor, in[1].rows}};
}

Work AddStreams::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.flops = static_cast<double>(in[1].shape().num_elements());
  return work;
}

Status AddStreams::run(RunContext& ctx) const {
  const int64_t streams = ctx.in[1].shape()[1], width = ctx.in[1].shape()[2];
  ctx.pool.parallel_for(ctx.in[1].shape()[0], kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t s = 0; s < streams; ++s) {
        for (int64_t d = 0; d < width; ++d) {
          const int64_t i = (t * streams + s) * width + d;
          store(ctx.out[0], i, load(ctx.in[0], t * width + d) + load(ctx.in[1], i));
        }
      }
    }
  });
  return {};
}

Result<ValueTypes> AddPositionBias::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 3, 3));
  for (int i = 0; i < 2; ++i) {
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, i, i == 0 ? "x" : "bias", {DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, i, i == 0 ? "x" : "bias", 2));
  }
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 2, "positions", {DType::kI32}));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "rows of bias", in[1].shape()[0], 1, 1 << 30));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "width of bias", in[1].shape()[1], in[0].shape()[1]));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "positions", in[2].shape()[0], in[0].shape()[0]));
  return ValueTypes{{in[0].tensor, in[0].rows}};
}

Work AddPositionBias::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.flops = static_cast<double>(in[0].shape().num_elements());
  return work;
}

Status AddPositionBias::run(RunContext& ctx) const {
  const int64_t width = ctx.in[0].shape()[1], period = ctx.in[1].shape()[0];
  ctx.pool.parallel_for(ctx.in[0].shape()[0], kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = ctx.in[0].as<float>() + t * width;
      const float* bias = ctx.in[1].as<float>() + (ctx.in[2].as<int32_t>()[t] % period) * width;
      float* y = ctx.out[0].as<float>() + t * width;
      for (int64_t d = 0; d < width; ++d) y[d] = x[d] + bias[d];
    }
  });
  return {};
}

Result<ValueTypes> Concat::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 2, 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "a", 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "b", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "a", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "b", {in[0].dtype()}));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of b", in[1].shape()[0], in[0].shape()[0]));
  return ValueTypes{{{in[0].dtype(), {in[0].shape()[0], in[0].shape()[1] + in[1].shape()[1]}}, in[0].rows}};
}

Work Concat::work(TypeSpan in, TypeSpan out, const WorkEnv&) const { return streaming_work(in, out); }

Status Concat::run(RunContext& ctx) const {
  const auto row_bytes = [](const TensorView& x) { return TensorType{x.dtype(), {x.shape()[1]}}.bytes(); };
  const int64_t a = row_bytes(ctx.in[0]), b = row_bytes(ctx.in[1]);
  for (int64_t t = 0; t < ctx.out[0].shape()[0]; ++t) {
    std::byte* row = ctx.out[0].as<std::byte>() + t * (a + b);
    std::memcpy(row, ctx.in[0].as<std::byte>() + t * a, a);
    std::memcpy(row + a, ctx.in[1].as<std::byte>() + t * b, b);
  }
  return {};
}

Result<ValueTypes> GatherRows::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_rank_2_or_3(kName, in, 0, "x"));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "capacity", capacity, 0, 1 << 30));
  if (in[0].rows != Rows::kTokens) {
    return invalid_argument(fmt::format("{}: x is {}, expected one row per token", kName, to_string(in[0])));
  }
  TensorType type = in[0].tensor;
  type.shape[0] = capacity;
  return ValueTypes{{type, Rows::kLogits}};
}

Work GatherRows::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work;
  work.bytes_read = work.bytes_written = out[0].tensor.bytes();
  return work;
}

Status GatherRows::run(RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  if (x.shape()[0] == 0) return {};
  const int64_t row_bytes = x.type.bytes() / x.shape()[0];
  const auto copy = [&](size_t to, int64_t from) {
    std::memcpy(ctx.out[0].as<std::byte>() + static_cast<int64_t>(to) * row_bytes, x.as<std::byte>() + from * row_bytes, row_bytes);
  };
  if (ctx.row_set == RowSet::kAll) {
    for (size_t i = 0; i < ctx.batch.logit_rows.size(); ++i) copy(i, ctx.batch.logit_rows[i]);
    return {};
  }
  const std::vector<int32_t>& held = ctx.row_sets->of(Rows::kTokens, ctx.row_set).rows;  // ascending
  const std::vector<int32_t>& wanted = ctx.row_sets->of(Rows::kLogits, ctx.row_set).rows;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int32_t row = ctx.batch.logit_rows[static_cast<size_t>(wanted[i])];
    copy(i, std::lower_bound(held.begin(), held.end(), row) - held.begin());
  }
  return {};
}

}  // namespace weft
