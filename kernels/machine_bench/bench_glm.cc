// What GLM-5 has and DeepSeek-V4 has not: int8 weights and activations, absorbed MLA over picked tokens, index scores of 32 heads.
// Shapes: glm_moe_dsa.md 1.1.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/machine_bench/bench_runner.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace weft {
namespace {

constexpr int64_t kHidden = 6144, kLatent = 512, kRope = 64, kTopK = 2048, kIndexDim = 128;

struct Heads {
  std::string_view model;
  int64_t attention, index;
};
constexpr Heads kGlm5{"glm-5", 64, 32}, kDeepseekV32{"deepseek-v3.2", 128, 64};

struct Matrix {
  std::string_view name;
  int64_t rows, cols;
};
constexpr Matrix kMatrices[] = {{"q_b", 16384, 2048}, {"o", kHidden, 16384}, {"expert gate", 2048, kHidden}};

// Few rows: the stored bytes are the limit. Many: the int8 peak where the path has its instruction, else that of f32.
Status int8_linear(BenchRunner& runner, const Matrix& matrix, int64_t num_rows) {
  constexpr int64_t kFewRows = 16;
  KernelBenchResult row;
  row.kernel = "linear";
  row.shape = fmt::format("M={} [{},{}] glm-5 {}", num_rows, matrix.rows, matrix.cols, matrix.name);
  row.dtype = "I8 x I8";
  row.flops = 2.0 * static_cast<double>(num_rows * matrix.rows) * static_cast<double>(matrix.cols);
  const bool few = num_rows <= kFewRows;
  const bool dots = runner.isa() >= Isa::kAvx512Vbmi && runner.machine().int8_dot_ops_per_s > 0;
  if (dots) row.path = ComputePath::kInt8Dot;
  row.limit = few ? BenchLimit::kReadBandwidth : dots ? BenchLimit::kInt8Ops : BenchLimit::kF32Flops;
  row.bar = few ? 0.75 : 0.6;
  const int64_t weight_bytes = matrix.rows * matrix.cols;
  const int64_t copies = few ? runner.copies_beyond_cache(weight_bytes) : 1;
  if (!runner.wants(row, copies * weight_bytes)) return {};

  WEFT_ASSIGN_OR_RETURN(const Buffer weights, runner.filled(FillPattern::kAnyBits, copies * weight_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer scales, runner.filled(FillPattern::kF32, matrix.rows * 4));
  WEFT_ASSIGN_OR_RETURN(const Buffer x, runner.filled(FillPattern::kBF16, num_rows * matrix.cols * 2));
  WEFT_ASSIGN_OR_RETURN(const Buffer y, runner.scratch(num_rows * matrix.rows * 2));
  WEFT_ASSIGN_OR_RETURN(const Buffer scratch, runner.scratch(linear_scratch_bytes(num_rows, matrix.cols, matrix.rows, 1, DType::kI8,
                                                                                  runner.pool().size())));
  LinearArgs args{.x = x.data(),
                  .x_dtype = DType::kBF16,
                  .x_stride = matrix.cols,
                  .num_rows = num_rows,
                  .w = {.dtype = DType::kI8,
                        .rows = matrix.rows,
                        .cols = matrix.cols,
                        .scale = scales.data(),
                        .scale_dtype = DType::kF32,
                        .block_cols = matrix.cols},
                  .act_quant = ActQuant::kInt8PerRow,
                  .y = y.data(),
                  .y_dtype = DType::kBF16,
                  .y_stride = matrix.rows,
                  .scratch = scratch.data()};
  row.bytes = static_cast<double>(weight_bytes + matrix.rows * 4 + num_rows * (matrix.cols + matrix.rows) * 2);
  int64_t copy = 0;
  runner.measure(std::move(row), [&] {
    args.w.data = weights.data() + copy * weight_bytes;
    copy = (copy + 1) % copies;
    linear(args, runner.isa(), runner.pool());
  });
  return {};
}

// Prefill rows, each over its own picks from a long cache.
Status absorbed_attention(BenchRunner& runner, const Heads& model, DType dtype, int64_t num_rows) {
  const int64_t heads = model.attention;
  constexpr int64_t kEntries = 65536, kKey = kLatent + kRope;
  KernelBenchResult row;
  row.kernel = "sparse attention";
  row.shape = fmt::format("M={} {} heads x {}/{}, {} keys, {}", num_rows, heads, kKey, kLatent, kTopK, model.model);
  row.dtype = fmt::format("{} x {}", short_name(dtype), short_name(dtype));
  row.limit = BenchLimit::kF32Flops;
  if (dtype == DType::kBF16 && runner.isa() >= Isa::kAvx512Bf16) row.path = ComputePath::kBf16Dot;
  row.bar = 0.6;
  row.flops = 2.0 * static_cast<double>(num_rows * heads * (kKey + kLatent)) * kTopK;
  row.bytes = static_cast<double>(element_bytes(dtype) * num_rows * (heads * (kKey + kLatent) + kTopK * kKey));
  const int64_t row_bytes = kKey * element_bytes(dtype), q_bytes = heads * row_bytes;
  const int64_t out_bytes = heads * kLatent * element_bytes(dtype);
  if (!runner.wants(row, kEntries * row_bytes)) return {};

  WEFT_ASSIGN_OR_RETURN(const Buffer cache, runner.filled(fill_pattern(dtype), kEntries * row_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer q, runner.filled(fill_pattern(dtype), num_rows * q_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer out, runner.scratch(num_rows * out_bytes));
  const int64_t scratch_bytes = (sparse_attention_scratch_bytes(heads, kKey) + 63) / 64 * 64;
  WEFT_ASSIGN_OR_RETURN(const Buffer scratch, runner.scratch(scratch_bytes * runner.pool().size()));
  std::vector<const void*> lists(num_rows * kTopK);
  uint64_t random = 1;
  for (size_t i = 0; i < lists.size(); ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    constexpr int64_t kStride = kEntries / kTopK;  // ascending and different, as a top-k of a long cache
    const auto at = static_cast<int64_t>(i) % kTopK * kStride + static_cast<int64_t>(random >> 33) % kStride;
    lists[i] = cache.data() + at * row_bytes;
  }
  const auto attend = pick_variant(sparse_attention_variants(), runner.isa());
  runner.measure(std::move(row), [&] {
    runner.pool().parallel_for(num_rows, 1, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t t = begin; t < end; ++t) {
        attend({.q = q.data() + t * q_bytes,
                .out = out.data() + t * out_bytes,
                .dtype = dtype,
                .kv_dtype = dtype,
                .num_heads = heads,
                .head_dim = kKey,
                .value_dim = kLatent,
                .keys = std::span(lists).subspan(t * kTopK, kTopK),
                .scale = 0.0625f,
                .scratch = scratch.data() + worker * scratch_bytes});
      }
    });
  });
  return {};
}

}  // namespace

Status bench_glm(BenchRunner& runner) {
  // Keys are what --dtype bf16 caches after any norm: no grid that integers could hold, so arithmetic may be the limit.
  const auto index = [](const Heads& model) { return IndexShape{model.model, 131072, 256, model.index, kIndexDim, kTopK}; };
  for (const Matrix& matrix : kMatrices) {
    for (const int64_t m : {1, 4, 512}) WEFT_RETURN_IF_ERROR(int8_linear(runner, matrix, m));
  }
  for (const DType dtype : {DType::kBF16, DType::kF32}) WEFT_RETURN_IF_ERROR(absorbed_attention(runner, kGlm5, dtype, 64));
  for (const DType dtype : {DType::kBF16, DType::kF32}) WEFT_RETURN_IF_ERROR(bench_index(runner, index(kGlm5), dtype, IndexValues::kAny));
  WEFT_RETURN_IF_ERROR(absorbed_attention(runner, kDeepseekV32, DType::kBF16, 64));
  return bench_index(runner, index(kDeepseekV32), DType::kBF16, IndexValues::kAny);
}

}  // namespace weft
