#include "graph/ops/index_scores.h"

#include "base/numeric.h"
#include "graph/cache_rows.h"
#include "graph/context_sums.h"
#include "graph/ops/scratch.h"
#include "kernels/index_topk/index_topk.h"

namespace weft {
namespace {

struct IndexScratch {
  float* scores;
  int32_t* select;
  const void** pages;
  float* weights;
  std::byte* kernel;  // one piece per thread

  IndexScratch(Carver& carver, int64_t max_entries, int64_t max_pages, int64_t heads, int64_t kernel_bytes)
      : scores(carver.take<float>(max_entries)), select(carver.take<int32_t>(max_entries)),
        pages(carver.take<const void*>(max_pages)), weights(carver.take<float>(heads)),
        kernel(carver.take<std::byte>(kernel_bytes)) {}
};

}  // namespace

Status expect_index_inputs(std::string_view op, TypeSpan in) {
  WEFT_RETURN_IF_ERROR(expect_inputs(op, in, 3, 3));
  WEFT_RETURN_IF_ERROR(expect_rank(op, in, 0, "index queries", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, 0, "index queries", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_rank(op, in, 1, "head weights", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(op, in, 1, "head weights", {in[0].dtype(), DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_dim(op, "rows of head weights", in[1].shape()[0], in[0].shape()[0]));
  WEFT_RETURN_IF_ERROR(expect_dim(op, "head weights", in[1].shape()[1], in[0].shape()[1]));
  WEFT_RETURN_IF_ERROR(expect_cache(op, in, 2, "index keys", in[0].shape()[2]));
  return expect_dtype(op, in, 2, "index keys", {DType::kF32, DType::kBF16});
}

Work index_scores_work(const IndexTopK& op, int64_t ranks, TypeSpan in, TypeSpan out, const WorkEnv& env) {
  const int64_t rows = in[0].shape()[0], heads = in[0].shape()[1], dim = in[0].shape()[2];
  const int64_t entries = op.max_context / op.ratio, key_bytes = dim * dtype_bits(in[2].dtype()) / 8;
  // Rows that see no more than they may pick score nothing.
  ContextSums scored = entry_sums_above(env.segments, op.ratio, op.top_k);
  if (env.segments.empty() && entries > op.top_k) scored = {rows * entries, rows * entries, rows};
  scored.seen = ceil_div(scored.seen, ranks);
  scored.distinct = ceil_div(scored.distinct, ranks);
  const int64_t row_bytes = rows == 0 ? 0 : (in[0].tensor.bytes() + in[1].tensor.bytes()) / rows;
  Work work;
  work.bytes_stored = scored.seen * key_bytes;
  work.bytes_read = scored.rows * row_bytes + work.bytes_stored;
  work.bytes_repeated = (scored.seen - scored.distinct) * key_bytes;
  work.bytes_written = out[0].tensor.bytes();
  work.flops = 2.0 * static_cast<double>(scored.seen) * static_cast<double>(heads * dim);
  work.rows = static_cast<double>(scored.rows);
  work.columns = scored.rows == 0 ? 0 : static_cast<double>(scored.seen) / static_cast<double>(scored.rows);
  constexpr double kSumOps = 2, kSelectOps = 2;  // ReLU and weighted sum over heads; compares and selection: planner.md 2.3
  work.vector_beside = kSumOps * static_cast<double>(scored.seen * heads);
  work.vector_apart = kSelectOps * static_cast<double>(scored.seen);
  work.depth = static_cast<double>(dim);
  work.count = static_cast<double>(heads);
  work.unit = WorkUnit::kMatrix;
  const bool rounded = op.rounded_to != DType::kF32;
  work.weight = rounded ? op.rounded_to : in[2].dtype();
  work.activation = rounded ? op.rounded_to : in[0].dtype();
  const int64_t max_entries = ceil_div(entries, ranks);
  Carver carver(nullptr);
  IndexScratch scratch(carver, max_entries, ceil_div(max_entries, in[2].shape()[1]), heads,
                       env.num_threads * index_scores_scratch_bytes(heads, dim));
  work.scratch_bytes = env.num_threads * carver.used();
  return work;
}

void score_entries(RunContext& ctx, double weight_scale, int64_t max_entries, CountEntries count, UseScores use) {
  constexpr int64_t kEntriesPerTask = 256;
  const TensorView &iq = ctx.in[0], &w = ctx.in[1], &keys = ctx.in[2];
  const int64_t rows = iq.shape()[0], heads = iq.shape()[1], dim = iq.shape()[2];
  const int64_t kernel_bytes = index_scores_scratch_bytes(heads, dim);
  auto* kernel = pick_variant(index_scores_variants(), ctx.isa);
  const int threads = ctx.pool.size();
  const auto scratch_of = [&](int worker) {
    const auto make = [&](std::byte* base) {
      Carver carver(base);
      IndexScratch scratch(carver, max_entries, ceil_div(max_entries, keys.shape()[1]), heads, threads * kernel_bytes);
      return std::pair(scratch, carver.used());
    };
    return make(ctx.scratch.data() + worker * make(nullptr).second).first;
  };

  // Scores of row t: `split` hands ranges of entries to a function that may run on several threads.
  const auto score_row = [&](int64_t t, const IndexScratch& scratch, auto&& split) {
    const int64_t row = ctx.batch_row(t);
    const Segment& segment = segment_of_row(ctx.batch.segments, row);
    const int64_t n = count(t, segment.first_position() + (row - segment.row0));
    if (n == 0) return;
    const PagedRows entries(keys, ctx.batch.pages[segment.request], ctx.cache_shard);
    const int64_t num_pages = ceil_div(n, entries.page_entries());
    for (int64_t page = 0; page < num_pages; ++page) scratch.pages[page] = entries.page(page);
    for (int64_t h = 0; h < heads; ++h) {
      const bool narrow = w.dtype() == DType::kBF16;
      const float weight = narrow ? to_float(w.as<bf16>()[t * heads + h]) : w.as<float>()[t * heads + h];
      const float scaled = weight * static_cast<float>(weight_scale);
      scratch.weights[h] = narrow ? round_bf16(scaled) : scaled;
    }
    split(n, [&](int64_t begin, int64_t end, int worker) {
      IndexScoresArgs args;
      args.iq = iq.as<std::byte>() + t * heads * dim * dtype_bits(iq.dtype()) / 8;
      args.iq_dtype = iq.dtype();
      args.w = scratch.weights;
      args.num_heads = heads;
      args.head_dim = dim;
      args.pages = {scratch.pages, static_cast<size_t>(num_pages)};
      args.key_dtype = keys.dtype();
      args.page_entries = entries.page_entries();
      args.begin = begin;
      args.end = end;
      args.scores = scratch.scores;
      args.scratch = scratch.kernel + worker * kernel_bytes;
      kernel(args);
    });
    use(t, {scratch.scores, static_cast<size_t>(n)}, {scratch.select, static_cast<size_t>(n)});
  };

  if (rows < threads) {
    const IndexScratch scratch = scratch_of(0);
    for (int64_t t = 0; t < rows; ++t) {
      score_row(t, scratch, [&](int64_t n, auto&& score) { ctx.pool.parallel_for(n, kEntriesPerTask, score); });
    }
  } else {
    ctx.pool.parallel_for(rows, 1, [&](int64_t t, int64_t, int worker) {
      score_row(t, scratch_of(worker), [&](int64_t n, auto&& score) { score(0, n, 0); });
    });
  }
}

}  // namespace weft
