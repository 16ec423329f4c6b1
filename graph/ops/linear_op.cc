#include "graph/ops/linear_op.h"

#include <cstring>

#include "base/numeric.h"
#include "graph/ops/quantise_op.h"
#include "graph/ops/scratch.h"

namespace weft {

int64_t canonical_blocks(int64_t k) {
  constexpr int64_t kMaxBlocks = 16, kBlockUnit = 4;
  int64_t blocks = kMaxBlocks;
  while (blocks > 1 && k % (blocks * kBlockUnit) != 0) blocks /= 2;
  return blocks;
}

DType quantised_dtype(ActQuant act_quant, DType dtype) {
  switch (act_quant) {
    case ActQuant::kNone: return dtype;
    case ActQuant::kFp8Block128:
    case ActQuant::kFp8Block128AnyScale: return DType::kF8E4M3;
    case ActQuant::kInt8PerRow:
    case ActQuant::kInt8Static: return DType::kI8;
  }
  return dtype;
}

double quantising_ops(ActQuant act_quant) {
  constexpr double kOpsPerElement = 3;  // largest magnitude, scaling, rounding: planner.md 2.1
  return act_quant == ActQuant::kNone ? 0 : kOpsPerElement;
}

WeightMatrix weight_matrix(const TensorView& w, const TensorView* scale, int64_t scale_rows, int64_t scale_cols) {
  WeightMatrix m;
  m.dtype = w.dtype();
  m.data = w.data;
  m.rows = w.shape()[w.shape().rank() - 2];
  m.cols = w.shape().back();
  m.stride = w.row_stride;
  if (scale != nullptr) {
    m.scale = scale->data;
    m.scale_dtype = scale->dtype();
    m.block_rows = scale_rows;
    m.block_cols = scale_cols;
    m.row0 = w.row0;
    m.col0 = w.col0;
    m.scale_stride = scale->shape().back();
  }
  return m;
}

namespace {

// Elements of x behind the inputs of every group: those that pass by, or the scale of codes.
int64_t beside(DType x, int64_t rest) { return x == DType::kI8 ? QuantiseGroups::kScaleBytes : rest; }

// Rows and inputs of x as a matrix, from its shape and the inputs that the weight takes.
struct XMatrix {
  int64_t rows, cols;
  bool per_stream;  // x [T, S, K]: rows = T * S
};

XMatrix x_matrix(const Shape& x, int64_t inputs, int64_t rest) {
  if (rest > 0) return {x[0], x.rank() == 3 ? x[1] * (x[2] - rest) : 0, false};
  const int64_t tokens = x[0], width = x.rank() == 3 ? x[1] * x[2] : x[1];
  if (x.rank() == 3 && width != inputs) return {tokens * x[1], x[2], true};
  return {tokens, width, false};
}

}  // namespace

Status expect_int8_weight(std::string_view op, TypeSpan in, int weight, int scale, int64_t scale_rows, int64_t scale_cols) {
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, weight, "weight of int8 activations", {DType::kI8}));
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, scale, "scale of int8 activations", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_dim(op, "scale_rows of int8 activations", scale_rows, 1));
  return expect_range(op, "scale_cols of int8 activations", scale_cols, in[weight].shape().back(), int64_t{1} << 40);
}

ShardRule Linear::shard_rule(TypeSpan in) const {
  // Behind the weight: scales, biases and numbers for all rows are whole; magnitudes of rows go with the rows.
  const std::string magnitudes = act_quant == ActQuant::kInt8PerRow ? "t" : "";
  const bool codes = in[0].dtype() == DType::kI8;
  const bool rank3 = in[0].shape().rank() == 3;
  if (rank3 && x_matrix(in[0].shape(), groups * in[1].shape()[1], beside(in[0].dtype(), rest)).per_stream) {
    return {{"tsk", "nk", "", magnitudes, ""}, {"tsn"}, "tn", ""};
  }
  // Groups are split whole: their inputs and their outputs together. The letter stands for both. A rank may have one of them.
  bool grouped = groups > 1;
  for (int axis = 0; axis < kNumMeshAxes; ++axis) {
    grouped = grouped || (in[0].placement[axis] == Placement::sharded(1) && in[1].placement[axis] == Placement::sharded(0));
  }
  const std::string n = grouped ? "k" : "n", w = grouped ? "kc" : "nk";
  const std::string x = rank3 ? "tkc" : "tk", y = heads > 0 ? "t" + n + "d" : "t" + n;
  return {{x, w, "", magnitudes, ""}, {y}, grouped || codes ? "tk" : "tnk", grouped || codes ? "" : "k"};
}

Status Linear::expect_codes(TypeSpan in) const {
  if (act_quant != ActQuant::kNone || k_blocks != 1 || rest != 0) {
    return invalid_argument(fmt::format("{}: codes of int8 with act_quant {}, k_blocks {}, rest {}; expected none, 1, 0", kName,
                                        EnumText<ActQuant>::kNames[static_cast<size_t>(act_quant)], k_blocks, rest));
  }
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "codes", 3));
  return expect_dim(kName, "groups of codes", in[0].shape()[1], groups);
}

Result<ValueTypes> Linear::infer(TypeSpan in) const {
  const bool is_static = act_quant == ActQuant::kInt8Static, codes = !in.empty() && in[0].dtype() == DType::kI8;
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, is_static ? 5 : is_int8(act_quant) ? 3 : 2,
                                     is_static ? 5 : act_quant == ActQuant::kInt8PerRow ? 4 : 3));
  if (in[0].shape().rank() != 3) WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 2));
  if (codes) WEFT_RETURN_IF_ERROR(expect_codes(in));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {DType::kF32, DType::kBF16, DType::kI8}));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "weight", 2));
  WEFT_RETURN_IF_ERROR(
      expect_dtype(kName, in, 1, "weight", {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kF4E2M1, DType::kI8}));
  if (groups < 1 || heads < 0) return invalid_argument(fmt::format("{}: {} groups, {} heads", kName, groups, heads));
  if (k_blocks < 1 || k_blocks > 16 || (k_blocks & (k_blocks - 1)) != 0) {
    return invalid_argument(fmt::format("{}: k_blocks is {}, expected a power of two up to 16", kName, k_blocks));
  }
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return invalid_argument(fmt::format("{}: dtype is {}, expected F32 or BF16", kName, dtype_name(dtype)));
  }
  const int64_t n = in[1].shape()[0], k = in[1].shape()[1];
  if (rest != 0) {
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "x", 3));
    WEFT_RETURN_IF_ERROR(expect_range(kName, "rest", rest, 1, in[0].shape()[2] - 1));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "heads", heads, groups));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "heads of x", in[0].shape()[1], groups));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "x", {dtype}));
  }
  const XMatrix x = x_matrix(in[0].shape(), groups * k, beside(in[0].dtype(), rest));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "width of x", x.cols, groups * k));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of weight modulo groups", n % groups, 0));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of weight modulo heads", heads == 0 ? 0 : n % heads, 0));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "inputs modulo 4 * k_blocks", k_blocks == 1 ? 0 : k % (4 * k_blocks), 0));
  const bool scaled = in.size() >= 3;
  if (scaled != (scale_rows > 0)) {
    return invalid_argument(
        fmt::format("{}: scale {} but scale_rows is {}", kName, scaled ? "given" : "missing", scale_rows));
  }
  if (scaled) {
    if (scale_cols < 1) return invalid_argument(fmt::format("{}: scale_cols is {}", kName, scale_cols));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 2, "scale", {DType::kF8E8M0, DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 2, "scale", 2));
    const int64_t rows = (n + scale_rows - 1) / scale_rows, columns = (k + scale_cols - 1) / scale_cols;
    bool split = false;
    for (const Placement& p : in[1].placement) split = split || p.kind == Placement::Kind::kSharded;
    if (split) {
      WEFT_RETURN_IF_ERROR(expect_range(kName, "rows of scale", in[2].shape()[0], rows, int64_t{1} << 40));
      WEFT_RETURN_IF_ERROR(expect_range(kName, "columns of scale", in[2].shape()[1], columns, int64_t{1} << 40));
    } else {
      WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of scale", in[2].shape()[0], rows));
      WEFT_RETURN_IF_ERROR(expect_dim(kName, "columns of scale", in[2].shape()[1], columns));
    }
  }
  const int64_t tokens = in[0].shape()[0];
  if (is_int8(act_quant)) WEFT_RETURN_IF_ERROR(expect_int8_weight(kName, in, 1, 2, scale_rows, scale_cols));
  if (is_static) {
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 3, "bias", {DType::kI32}));
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 3, "bias", 1));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "bias", in[3].shape()[0], in[2].shape()[0]));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 4, "divisor, factor and offset", {DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "divisor, factor and offset", in[4].shape().num_elements(), 3));
  } else if (in.size() == 4) {
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 3, "magnitudes of rows", {DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 3, "magnitudes of rows", 1));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "magnitudes of rows", in[3].shape()[0], tokens));
  }
  Shape y{tokens, n};
  if (x.per_stream) {
    y = {tokens, in[0].shape()[1], n};
  } else if (heads > 0) {
    y = {tokens, heads, n / heads + rest};
  }
  return ValueTypes{{{dtype, y}, in[0].rows}};
}

Work Linear::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  Work work = streaming_work(in, out);
  const int64_t n = in[1].shape()[0], k = in[1].shape()[1];
  const XMatrix x = x_matrix(in[0].shape(), groups * k, beside(in[0].dtype(), rest));
  work.flops = 2.0 * static_cast<double>(x.rows) * static_cast<double>(n) * static_cast<double>(k);
  for (size_t i = 1; i < in.size(); ++i) {
    if (in[i].rows == Rows::kStatic) work.bytes_stored += in[i].tensor.bytes();
  }
  work.rows = static_cast<double>(x.rows);
  work.columns = static_cast<double>(n) / static_cast<double>(groups);
  work.depth = static_cast<double>(k / k_blocks);
  work.count = static_cast<double>(groups);
  work.unit = WorkUnit::kMatrix;
  work.weight = in[1].dtype();
  const bool codes = in[0].dtype() == DType::kI8;
  work.activation = codes ? dtype : quantised_dtype(act_quant, in[0].dtype());
  work.vector_apart = quantising_ops(act_quant) * static_cast<double>(in[0].shape().num_elements());
  work.scratch_bytes = linear_scratch_bytes(x.rows, x.cols, n, groups, in[1].dtype(), env.num_threads);
  if (codes) {
    work.vector_apart = static_cast<double>(in[0].shape().num_elements() + out[0].shape().num_elements());
    work.scratch_bytes = aligned_scratch(work.scratch_bytes) + code_scratch_bytes(x.rows, x.cols, n, dtype);
  }
  return work;
}

// Codes as numbers of `dtype`, which has them exactly, and fp32 sums before they are scaled.
int64_t Linear::code_scratch_bytes(int64_t rows, int64_t k_total, int64_t n_total, DType dtype) {
  return aligned_scratch(rows * k_total * dtype_bits(dtype) / 8) + aligned_scratch(rows * n_total * static_cast<int64_t>(sizeof(float)));
}

Status Linear::run_codes(RunContext& ctx, LinearArgs args) const {
  const int64_t rows = args.num_rows, k = args.w.cols * groups, n = args.w.rows, of_group = n / groups;
  const int64_t of_x = k / groups, coded = of_x + QuantiseGroups::kScaleBytes;
  const auto* x = ctx.in[0].as<int8_t>();
  std::byte* numbers = ctx.scratch.data();
  auto* sums = reinterpret_cast<float*>(numbers + aligned_scratch(rows * k * dtype_bits(dtype) / 8));
  args.x = numbers;
  args.x_stride = k;
  args.x_group_stride = of_x;
  args.x_dtype = dtype;
  args.y = sums;
  args.y_dtype = DType::kF32;
  args.scratch = numbers + code_scratch_bytes(rows, k, n, dtype);
  constexpr int64_t kRowsPerTask = 4;
  const auto each_row = [&](auto&& body) {
    ctx.pool.parallel_for(rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) body(t);
    });
  };
  each_row([&](int64_t t) {
    for (int64_t g = t * groups; g < (t + 1) * groups; ++g) {
      for (int64_t i = 0; i < of_x; ++i) {
        const auto code = static_cast<float>(x[g * coded + i]);
        if (dtype == DType::kBF16) {
          reinterpret_cast<bf16*>(numbers)[g * of_x + i] = to_bf16(code);
        } else {
          reinterpret_cast<float*>(numbers)[g * of_x + i] = code;
        }
      }
    }
  });
  linear(args, ctx.isa, ctx.pool);
  each_row([&](int64_t t) {
    for (int64_t g = t * groups; g < (t + 1) * groups; ++g) {
      float scale;
      std::memcpy(&scale, x + g * coded + of_x, sizeof scale);
      for (int64_t i = g * of_group; i < (g + 1) * of_group; ++i) {
        const float y = scale * sums[i];
        if (dtype == DType::kBF16) {
          ctx.out[0].as<bf16>()[i] = to_bf16(y);
        } else {
          ctx.out[0].as<float>()[i] = y;
        }
      }
    }
  });
  return {};
}

Status Linear::run(RunContext& ctx) const {
  const XMatrix x = x_matrix(ctx.in[0].shape(), groups * ctx.in[1].shape()[1], beside(ctx.in[0].dtype(), rest));
  LinearArgs args;
  args.x = ctx.in[0].data;
  args.x_dtype = ctx.in[0].dtype();
  args.num_rows = x.rows;
  args.x_stride = x.cols + groups * rest;
  args.x_group_stride = x.cols / groups + rest;
  args.w = weight_matrix(ctx.in[1], scale_rows > 0 ? &ctx.in[2] : nullptr, scale_rows, scale_cols);
  args.groups = groups;
  args.k_blocks = k_blocks;
  args.act_quant = act_quant;
  args.y_stride = args.w.rows + groups * rest;
  args.y_group_stride = args.w.rows / groups + rest;
  if (ctx.in[0].dtype() == DType::kI8) return run_codes(ctx, args);
  if (act_quant == ActQuant::kInt8Static) {
    args.w.bias = ctx.in[3].as<int32_t>();
    args.static_quant = ctx.in[4].as<float>();
  } else if (ctx.in.size() == 4) {
    args.row_absmax = ctx.in[3].as<float>();
  }
  args.y = ctx.out[0].data;
  args.y_dtype = dtype;
  args.scratch = ctx.scratch.data();
  linear(args, ctx.isa, ctx.pool);
  if (rest == 0) return {};
  constexpr int64_t kRowsPerTask = 16;
  const int64_t element = dtype_bits(dtype) / 8;
  ctx.pool.parallel_for(x.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin * groups; i < end * groups; ++i) {
      std::memcpy(ctx.out[0].as<std::byte>() + ((i + 1) * args.y_group_stride - rest) * element,
                  ctx.in[0].as<std::byte>() + ((i + 1) * args.x_group_stride - rest) * element, rest * element);
    }
  });
  return {};
}

}  // namespace weft
