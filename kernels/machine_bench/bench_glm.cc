// What GLM-5 has and DeepSeek-V4 has not: int8 weights and activations, absorbed MLA over picked tokens, index scores of 32 heads.
// Shapes: glm_moe_dsa.md 1.1.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/index_topk/index_topk.h"
#include "kernels/machine_bench/bench_runner.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace weft {
namespace {

constexpr int64_t kHidden = 6144, kHeads = 64, kLatent = 512, kRope = 64, kTopK = 2048;
constexpr int64_t kIndexHeads = 32, kIndexDim = 128;

std::string_view short_name(DType dtype) { return dtype == DType::kBF16 ? "BF16" : "F32"; }
int64_t element_bytes(DType dtype) { return dtype_bits(dtype) / 8; }

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
  row.limit = few ? BenchLimit::kReadBandwidth : dots ? BenchLimit::kInt8Ops : BenchLimit::kF32Flops;
  row.bar = few ? 0.75 : 0.6;
  const int64_t weight_bytes = matrix.rows * matrix.cols;
  const int64_t copies = few ? runner.copies_beyond_cache(weight_bytes) : 1;
  if (!runner.wants(row, copies * weight_bytes)) return {};

  WEFT_ASSIGN_OR_RETURN(const Buffer weights, runner.filled(FillPattern::kFp4, copies * weight_bytes));
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
Status absorbed_attention(BenchRunner& runner, DType dtype, int64_t num_rows) {
  constexpr int64_t kEntries = 65536, kKey = kLatent + kRope;
  KernelBenchResult row;
  row.kernel = "sparse attention";
  row.shape = fmt::format("M={} {} heads x {}/{}, {} keys, glm-5", num_rows, kHeads, kKey, kLatent, kTopK);
  row.dtype = fmt::format("{} x {}", short_name(dtype), short_name(dtype));
  row.limit = BenchLimit::kF32Flops;
  row.bar = 0.6;
  row.flops = 2.0 * static_cast<double>(num_rows * kHeads * (kKey + kLatent)) * kTopK;
  row.bytes = static_cast<double>(element_bytes(dtype) * num_rows * (kHeads * (kKey + kLatent) + kTopK * kKey));
  const int64_t row_bytes = kKey * element_bytes(dtype), q_bytes = kHeads * row_bytes;
  const int64_t out_bytes = kHeads * kLatent * element_bytes(dtype);
  if (!runner.wants(row, kEntries * row_bytes)) return {};

  WEFT_ASSIGN_OR_RETURN(const Buffer cache, runner.filled(fill_pattern(dtype), kEntries * row_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer q, runner.filled(fill_pattern(dtype), num_rows * q_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer out, runner.scratch(num_rows * out_bytes));
  const int64_t scratch_bytes = (sparse_attention_scratch_bytes(kHeads, kKey) + 63) / 64 * 64;
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
                .num_heads = kHeads,
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

// One decode row over a context of 128k tokens. Keys are what --dtype bf16 caches after any norm: no grid that integers could
// hold, so arithmetic may be the limit.
Status index_scores(BenchRunner& runner, DType dtype) {
  constexpr int64_t kEntries = 131072, kPageEntries = 256, kGrain = 512;
  KernelBenchResult row;
  row.kernel = "index scores + top-k";
  row.shape = fmt::format("M=1 {} entries, {} heads x {}, top {}, glm-5", kEntries, kIndexHeads, kIndexDim, kTopK);
  row.dtype = fmt::format("{} x {}", short_name(dtype), short_name(dtype));
  row.limit = BenchLimit::kReadBandwidth;
  row.flops = 2.0 * kEntries * kIndexHeads * (kIndexDim + 1);
  const int64_t page_bytes = kPageEntries * kIndexDim * element_bytes(dtype), layer_bytes = kEntries / kPageEntries * page_bytes;
  row.bytes = static_cast<double>(layer_bytes);
  const int64_t layers = runner.copies_beyond_cache(layer_bytes);
  if (!runner.wants(row, layers * layer_bytes)) return {};

  WEFT_ASSIGN_OR_RETURN(const Buffer keys, runner.filled(fill_pattern(dtype), layers * layer_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer iq, runner.filled(fill_pattern(dtype), kIndexHeads * kIndexDim * element_bytes(dtype)));
  const int64_t scratch_bytes = (index_scores_scratch_bytes(kIndexHeads, kIndexDim) + 63) / 64 * 64;
  WEFT_ASSIGN_OR_RETURN(const Buffer scratch, runner.scratch(scratch_bytes * runner.pool().size()));
  std::vector<const void*> pages;
  for (int64_t i = 0; i < layers * kEntries / kPageEntries; ++i) pages.push_back(keys.data() + i * page_bytes);
  const std::vector<float> w(kIndexHeads, 0.015625f);
  std::vector<float> scores(kEntries);
  std::vector<int32_t> picks(kTopK), select_scratch(kEntries);
  const auto score = pick_variant(index_scores_variants(), runner.isa());
  int64_t layer = 0;
  runner.measure(std::move(row), [&] {
    const auto layer_pages = std::span(pages).subspan(layer * kEntries / kPageEntries, kEntries / kPageEntries);
    layer = (layer + 1) % layers;
    runner.pool().parallel_for(kEntries, kGrain, [&](int64_t begin, int64_t end, int worker) {
      score({.iq = iq.data(),
             .iq_dtype = dtype,
             .w = w.data(),
             .num_heads = kIndexHeads,
             .head_dim = kIndexDim,
             .pages = layer_pages,
             .key_dtype = dtype,
             .page_entries = kPageEntries,
             .begin = begin,
             .end = end,
             .scores = scores.data(),
             .scratch = scratch.data() + worker * scratch_bytes});
    });
    select_topk(scores, picks, select_scratch);
  });
  return {};
}

}  // namespace

Status bench_glm(BenchRunner& runner) {
  for (const Matrix& matrix : kMatrices) {
    for (const int64_t m : {1, 4, 512}) WEFT_RETURN_IF_ERROR(int8_linear(runner, matrix, m));
  }
  for (const DType dtype : {DType::kBF16, DType::kF32}) WEFT_RETURN_IF_ERROR(absorbed_attention(runner, dtype, 64));
  for (const DType dtype : {DType::kBF16, DType::kF32}) WEFT_RETURN_IF_ERROR(index_scores(runner, dtype));
  return {};
}

}  // namespace weft
