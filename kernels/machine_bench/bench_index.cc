// Index scores and the selection behind them.
#include <fmt/format.h>

#include <cmath>

#include "kernels/index_topk/index_topk.h"
#include "kernels/machine_bench/bench_runner.h"
#include "kernels/quantise/quantise.h"

namespace weft {
namespace {

// Rows of `width` values after the indexer's round trip: what --dtype bf16 has in its caches.
void put_on_fp4_grid(const Buffer& rows, int64_t width, BenchRunner& runner) {
  constexpr int64_t kBlock = 32, kGrain = 1024;
  const auto quantise = pick_variant(quantise_variants(), runner.isa());
  runner.pool().parallel_for(rows.size() / (2 * width), kGrain, [&](int64_t begin, int64_t end, int) {
    std::byte* part = rows.data() + begin * 2 * width;
    quantise({.x = part,
              .y = part,
              .dtype = DType::kBF16,
              .x_stride = width,
              .y_stride = width,
              .num_rows = end - begin,
              .width = width,
              .begin = 0,
              .end = width,
              .block = kBlock,
              .format = QuantFormat::kFp4,
              .hadamard = true});
  });
}

}  // namespace

// One decode row over a context of 128k tokens. The keys of as many layers as it takes to leave the cache, in turn.
Status bench_index(BenchRunner& runner, const IndexShape& shape, DType dtype, IndexValues values) {
  constexpr int64_t kGrain = 512;
  constexpr double kBar = 0.6;
  KernelBenchResult row;
  row.kernel = "index scores + top-k";
  row.shape =
      fmt::format("M=1 {} entries, {} heads x {}, top {}, {}", shape.entries, shape.heads, shape.dim, shape.top_k, shape.model);
  row.dtype = fmt::format("{} x {}", short_name(dtype), short_name(dtype));
  row.limit = BenchLimit::kReadBandwidth;
  if (values == IndexValues::kFp4Grid) {
    row.dtype += ", FP4 values";
    row.bar = kBar;
    if (runner.isa() >= Isa::kAvx512Vbmi) row.path = ComputePath::kInt8Dot;
  } else if (dtype == DType::kBF16 && runner.isa() >= Isa::kAvx512Bf16) {
    row.path = ComputePath::kBf16Dot;
  }
  row.flops = 2.0 * static_cast<double>(shape.entries * shape.heads * (shape.dim + 1));
  row.bytes = static_cast<double>(shape.entries * shape.dim * element_bytes(dtype));
  const int64_t page_bytes = shape.page_entries * shape.dim * element_bytes(dtype),
                layer_bytes = shape.entries / shape.page_entries * page_bytes;
  const int64_t layers = runner.copies_beyond_cache(layer_bytes);
  if (!runner.wants(row, layers * layer_bytes)) return {};

  WEFT_ASSIGN_OR_RETURN(const Buffer keys, runner.filled(fill_pattern(dtype), layers * layer_bytes));
  WEFT_ASSIGN_OR_RETURN(const Buffer iq, runner.filled(fill_pattern(dtype), shape.heads * shape.dim * element_bytes(dtype)));
  if (values == IndexValues::kFp4Grid) {
    put_on_fp4_grid(keys, shape.dim, runner);
    put_on_fp4_grid(iq, shape.dim, runner);
  }
  const int64_t scratch_bytes = (index_scores_scratch_bytes(shape.heads, shape.dim) + 63) / 64 * 64;
  WEFT_ASSIGN_OR_RETURN(const Buffer scratch, runner.scratch(scratch_bytes * runner.pool().size()));
  std::vector<const void*> pages;
  for (int64_t i = 0; i < layers * shape.entries / shape.page_entries; ++i) pages.push_back(keys.data() + i * page_bytes);
  const std::vector<float> w(shape.heads, static_cast<float>(1 / std::sqrt(static_cast<double>(shape.heads * shape.dim))));
  std::vector<float> scores(shape.entries);
  std::vector<int32_t> picks(shape.top_k), select_scratch(shape.entries);
  const auto score = pick_variant(index_scores_variants(), runner.isa());
  int64_t layer = 0;
  runner.measure(std::move(row), [&] {
    const auto layer_pages = std::span(pages).subspan(layer * shape.entries / shape.page_entries, shape.entries / shape.page_entries);
    layer = (layer + 1) % layers;
    runner.pool().parallel_for(shape.entries, kGrain, [&](int64_t begin, int64_t end, int worker) {
      score({.iq = iq.data(),
             .iq_dtype = dtype,
             .w = w.data(),
             .num_heads = shape.heads,
             .head_dim = shape.dim,
             .pages = layer_pages,
             .key_dtype = dtype,
             .page_entries = shape.page_entries,
             .begin = begin,
             .end = end,
             .scores = scores.data(),
             .scratch = scratch.data() + worker * scratch_bytes});
    });
    select_topk(scores, picks, select_scratch);
  });
  return {};
}

}  // namespace weft
