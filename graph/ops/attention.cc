#include "graph/ops/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/int_math.h"
#include "base/numeric.h"
#include "graph/cache_rows.h"
#include "graph/context_sums.h"
#include "kernels/compressor/compressor.h"
#include "kernels/index_topk/index_topk.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace weft {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return align_up(bytes, kAlignment); }

// Hands out aligned pieces of a scratch, the same way for counting (base null) and for using.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    std::byte* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += aligned(count * static_cast<int64_t>(sizeof(T)));
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

const Segment& segment_of_row(std::span<const Segment> segments, int64_t row) {
  auto after = std::upper_bound(segments.begin(), segments.end(), row,
                                [](int64_t r, const Segment& s) { return r < s.row0; });
  return *(after - 1);
}

Status expect_cache(std::string_view op, TypeSpan in, int input, std::string_view name, int64_t width) {
  WEFT_RETURN_IF_ERROR(expect_rank(op, in, input, name, 3));
  WEFT_RETURN_IF_ERROR(expect_range(op, fmt::format("rows of {}", name), in[input].shape()[1], 1, 1 << 30));
  return expect_dim(op, fmt::format("width of {}", name), in[input].shape()[2], width);
}

}  // namespace

// ---- RingWrite

Result<ValueTypes> RingWrite::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 2, 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "rows", 2));
  WEFT_RETURN_IF_ERROR(expect_cache(kName, in, 1, "ring", in[0].shape()[1]));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "ring", {in[0].dtype()}));
  return ValueTypes{};
}

Work RingWrite::work(TypeSpan in, TypeSpan, const WorkEnv&) const {
  Work work;
  work.bytes_read = work.bytes_written = in[0].tensor.bytes();
  return work;
}

Status RingWrite::run(RunContext& ctx) const {
  const RingRows ring(ctx.in[1]);
  for (const Segment& segment : ctx.segments()) {
    for (int64_t j = std::max<int64_t>(0, segment.len - ring.ring_rows()); j < segment.len; ++j) {
      std::memcpy(ring.row(segment.request, segment.first_position() + j),
                  ctx.in[0].as<std::byte>() + (segment.row0 + j) * ring.row_bytes(), ring.row_bytes());
    }
  }
  return {};
}

// ---- AppendRows

Result<ValueTypes> AppendRows::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 2, 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "rows", 2));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "entries", 3));
  const int64_t width = in[1].shape()[2];
  WEFT_RETURN_IF_ERROR(expect_cache(kName, in, 1, "entries", width));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "entries", {in[0].dtype()}));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "begin", begin, 0, in[0].shape()[1]));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "width of rows", in[0].shape()[1], begin + width, int64_t{1} << 40));
  return ValueTypes{};
}

Work AppendRows::work(TypeSpan in, TypeSpan, const WorkEnv&) const {
  Work work;
  work.bytes_read = work.bytes_written = TensorType{in[0].dtype(), {in[0].shape()[0], in[1].shape()[2]}}.bytes();
  return work;
}

Status AppendRows::run(RunContext& ctx) const {
  const TensorView& rows = ctx.in[0];
  const int64_t row_bytes = TensorType{rows.dtype(), {rows.shape()[1]}}.bytes();
  const std::byte* from = rows.as<std::byte>() + TensorType{rows.dtype(), {begin}}.bytes();
  for (const Segment& segment : ctx.segments()) {
    const PagedRows entries(ctx.in[1], ctx.batch.pages[segment.request]);
    for (int64_t j = 0; j < segment.len; ++j) {
      std::memcpy(entries.row(segment.first_position() + j), from + (segment.row0 + j) * row_bytes, entries.row_bytes());
    }
  }
  return {};
}

// ---- Compressor

namespace {

struct CompressorScratch {
  float* u;                // pooled, then the finished entry
  bf16* rounded;           // the same in bf16
  const float **k, **s;    // row pointers of the slots
  float* table;            // cos, sin

  CompressorScratch(Carver& carver, int64_t slots, int64_t width, int64_t rotary_dims)
      : u(carver.take<float>(width)), rounded(carver.take<bf16>(width)), k(carver.take<const float*>(slots)),
        s(carver.take<const float*>(slots)), table(carver.take<float>(rotary_dims)) {}
};

int64_t compressor_scratch_bytes(int64_t slots, int64_t width, int64_t rotary_dims) {
  Carver carver(nullptr);
  CompressorScratch scratch(carver, slots, width, rotary_dims);
  return carver.used();
}

}  // namespace

Result<ValueTypes> Compressor::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 5, 5));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "k", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "k", {DType::kF32}));
  if (in[1].tensor != in[0].tensor) {
    return invalid_argument(fmt::format("{}: k is {}, s is {}", kName, to_string(in[0]), to_string(in[1])));
  }
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 2, "norm", 1));
  const int64_t w = in[0].shape()[1], d = in[2].shape()[0];
  if (d < 1 || rope.rotary_dims < 2 || rope.rotary_dims % 2 != 0 || rope.rotary_dims > d) {
    return invalid_argument(fmt::format("{}: {} rotary dims of {}", kName, rope.rotary_dims, d));
  }
  if (w != d && w != 2 * d) return invalid_argument(fmt::format("{}: k has {} features, the norm {}", kName, w, d));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 2, "norm", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_cache(kName, in, 3, "state ring", 2 * w));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 3, "state ring", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_cache(kName, in, 4, "entries", d));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 4, "entries", {DType::kF32, DType::kBF16}));
  if (ratio < 1 || in[3].shape()[1] < (w == d ? 1 : 2) * ratio - 1) {
    return invalid_argument(fmt::format("{}: a state ring of {} rows is too short for ratio {}", kName, in[3].shape()[1], ratio));
  }
  if (quantised) {
    const ValueType entries = {{in[4].dtype(), {in[4].shape()[1], d}}};
    WEFT_RETURN_IF_ERROR(quantise.infer({&entries, 1}).status());
  }
  return ValueTypes{};
}

Work Compressor::work(TypeSpan in, TypeSpan, const WorkEnv& env) const {
  const int64_t rows = in[0].shape()[0], w = in[0].shape()[1], d = in[2].shape()[0];
  int64_t groups = rows / ratio, earlier = 0;  // groups that end in the step, and rows of earlier steps that they need
  if (!env.segments.empty()) {
    groups = 0;
    for (const Segment& s : env.segments) {
      const int64_t first_group = s.first_position() / ratio, num_groups = s.kv_end / ratio - first_group;
      if (num_groups == 0) continue;
      groups += num_groups;
      earlier += s.first_position() - std::max<int64_t>(0, (first_group - (w == d ? 0 : 1)) * ratio);
    }
  }
  Work work;
  work.bytes_stored = earlier * 2 * w * dtype_bits(in[3].dtype()) / 8;
  work.bytes_read = 2 * in[0].tensor.bytes() + in[2].tensor.bytes() + work.bytes_stored;
  work.bytes_written = 2 * in[0].tensor.bytes() + groups * d * dtype_bits(in[4].dtype()) / 8;
  work.flops = 4.0 * static_cast<double>(groups * ratio * w);
  work.scratch_bytes = env.num_threads * compressor_scratch_bytes(w / d * ratio, d, rope.rotary_dims);
  return work;
}

Status Compressor::run(RunContext& ctx) const {
  const int64_t w = ctx.in[0].shape()[1], d = ctx.in[2].shape()[0], slots = w / d * ratio;
  const bool overlap = w == 2 * d;
  const RingRows state(ctx.in[3]);
  const DType dtype = ctx.in[4].dtype();
  const std::vector<float> frequencies = rope.frequencies();
  auto* pool_kernel = pick_variant(compressor_pool_variants(), ctx.isa);
  auto* norm_kernel = pick_variant(rms_norm_variants(), ctx.isa);
  auto* rope_kernel = pick_variant(rope_variants(), ctx.isa);
  const int64_t worker_bytes = compressor_scratch_bytes(slots, d, rope.rotary_dims);

  for (const Segment& segment : ctx.segments()) {
    const int64_t first = segment.first_position();
    const int64_t first_group = first / ratio, num_groups = segment.kv_end / ratio - first_group;
    const PagedRows entries(ctx.in[4], ctx.batch.pages[segment.request]);
    // Row of k | s at a position: two halves in the ring, two tensors in the batch.
    const auto k_row = [&](int64_t p) {
      return p >= first ? ctx.in[0].as<float>() + (segment.row0 + p - first) * w
                        : reinterpret_cast<const float*>(state.row(segment.request, p));
    };
    const auto s_row = [&](int64_t p) {
      return p >= first ? ctx.in[1].as<float>() + (segment.row0 + p - first) * w
                        : reinterpret_cast<const float*>(state.row(segment.request, p)) + w;
    };
    ctx.pool.parallel_for(num_groups, 1, [&](int64_t begin, int64_t, int worker) {
      const int64_t group = first_group + begin;
      Carver carver(ctx.scratch.data() + worker * worker_bytes);
      const CompressorScratch scratch(carver, slots, d, rope.rotary_dims);
      for (int64_t n = 0; n < slots; ++n) {
        const bool previous = overlap && n < ratio;
        const int64_t p = group * ratio + n - (overlap ? ratio : 0);
        const int64_t column = overlap && !previous ? d : 0;
        scratch.k[n] = p < 0 ? nullptr : k_row(p) + column;
        scratch.s[n] = p < 0 ? nullptr : s_row(p) + column;
      }
      CompressorPoolArgs pool_args;
      pool_args.k = {scratch.k, static_cast<size_t>(slots)};
      pool_args.s = {scratch.s, static_cast<size_t>(slots)};
      pool_args.width = d;
      pool_args.u = scratch.u;
      pool_kernel(pool_args);

      void* row = scratch.u;
      if (dtype == DType::kBF16) {
        for (int64_t c = 0; c < d; ++c) scratch.rounded[c] = to_bf16(scratch.u[c]);
        row = scratch.rounded;
      }
      RmsNormArgs norm;
      norm.x = norm.y = row;
      norm.dtype = dtype;
      norm.x_stride = norm.y_stride = norm.width = d;
      norm.num_rows = 1;
      norm.w = ctx.in[2].data;
      norm.w_dtype = ctx.in[2].dtype();
      norm.eps = static_cast<float>(eps);
      norm_kernel(norm);

      const int32_t position = static_cast<int32_t>(group * ratio);
      rope_table({&position, 1}, frequencies, scratch.table);
      RopeArgs rotate;
      rotate.x = rotate.y = row;
      rotate.dtype = dtype;
      rotate.num_rows = rotate.num_heads = 1;
      rotate.head_dim = d;
      rotate.rotary_dims = rope.rotary_dims;
      rotate.table = scratch.table;
      rope_kernel(rotate);
      if (quantised) quantise.apply(row, dtype, 1, d, ctx.isa);
      std::memcpy(entries.row(group), row, entries.row_bytes());
    });
    for (int64_t j = std::max<int64_t>(0, segment.len - state.ring_rows()); j < segment.len; ++j) {
      auto* row = reinterpret_cast<float*>(state.row(segment.request, first + j));
      std::memcpy(row, ctx.in[0].as<float>() + (segment.row0 + j) * w, w * sizeof(float));
      std::memcpy(row + w, ctx.in[1].as<float>() + (segment.row0 + j) * w, w * sizeof(float));
    }
  }
  return {};
}

// ---- IndexTopK

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

Result<ValueTypes> IndexTopK::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 3, 3));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "index queries", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "index queries", {DType::kF32, DType::kBF16}));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "head weights", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "head weights", {in[0].dtype(), DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of head weights", in[1].shape()[0], in[0].shape()[0]));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "head weights", in[1].shape()[1], in[0].shape()[1]));
  WEFT_RETURN_IF_ERROR(expect_cache(kName, in, 2, "index keys", in[0].shape()[2]));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 2, "index keys", {DType::kF32, DType::kBF16}));
  if (ratio < 1 || top_k < 1 || max_context < 1) {
    return invalid_argument(fmt::format("{}: ratio {}, top_k {}, max_context {}", kName, ratio, top_k, max_context));
  }
  return ValueTypes{{{DType::kI32, {in[0].shape()[0], top_k}}, in[0].rows}};
}

Work IndexTopK::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  const int64_t rows = in[0].shape()[0], heads = in[0].shape()[1], dim = in[0].shape()[2];
  const int64_t entries = max_context / ratio, key_bytes = dim * dtype_bits(in[2].dtype()) / 8;
  // Rows that see no more than they may pick score nothing.
  ContextSums scored = entry_sums_above(env.segments, ratio, top_k);
  if (env.segments.empty() && entries > top_k) scored = {rows * entries, rows * entries, rows};
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
  work.weight = in[2].dtype();
  work.activation = in[0].dtype();
  Carver carver(nullptr);
  IndexScratch scratch(carver, entries, ceil_div(entries, in[2].shape()[1]), heads,
                       env.num_threads * index_scores_scratch_bytes(heads, dim));
  work.scratch_bytes = env.num_threads * carver.used();
  return work;
}

Status IndexTopK::run(RunContext& ctx) const {
  constexpr int64_t kEntriesPerTask = 256;
  const TensorView &iq = ctx.in[0], &w = ctx.in[1], &keys = ctx.in[2];
  const int64_t rows = iq.shape()[0], heads = iq.shape()[1], dim = iq.shape()[2];
  const int64_t max_entries = max_context / ratio, kernel_bytes = index_scores_scratch_bytes(heads, dim);
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
  const auto pick = [&](int64_t t, const IndexScratch& scratch, auto&& split) {
    const int64_t row = ctx.batch_row(t);
    const Segment& segment = segment_of_row(ctx.batch.segments, row);
    const int64_t visible = (segment.first_position() + (row - segment.row0) + 1) / ratio;
    int32_t* picks = ctx.out[0].as<int32_t>() + t * top_k;
    if (visible <= top_k) {
      for (int64_t j = 0; j < top_k; ++j) picks[j] = j < visible ? static_cast<int32_t>(j) : -1;
      return;
    }
    const PagedRows entries(keys, ctx.batch.pages[segment.request]);
    const int64_t num_pages = ceil_div(visible, entries.page_entries());
    for (int64_t page = 0; page < num_pages; ++page) scratch.pages[page] = entries.page(page);
    for (int64_t h = 0; h < heads; ++h) {
      const bool narrow = w.dtype() == DType::kBF16;
      const float weight = narrow ? to_float(w.as<bf16>()[t * heads + h]) : w.as<float>()[t * heads + h];
      const float scaled = weight * static_cast<float>(weight_scale);
      scratch.weights[h] = narrow ? round_bf16(scaled) : scaled;
    }
    split(visible, [&](int64_t begin, int64_t end, int worker) {
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
    const auto n = static_cast<size_t>(visible);
    select_topk({scratch.scores, n}, {picks, static_cast<size_t>(top_k)}, {scratch.select, n});
  };

  if (rows < threads) {
    const IndexScratch scratch = scratch_of(0);
    for (int64_t t = 0; t < rows; ++t) {
      pick(t, scratch, [&](int64_t visible, auto&& score) { ctx.pool.parallel_for(visible, kEntriesPerTask, score); });
    }
  } else {
    ctx.pool.parallel_for(rows, 1, [&](int64_t t, int64_t, int worker) {
      pick(t, scratch_of(worker), [&](int64_t visible, auto&& score) { score(0, visible, 0); });
    });
  }
  return {};
}

// ---- SparseAttention

SparseAttention::Inputs SparseAttention::inputs(size_t num_inputs) const {
  Inputs at;
  int next = 1;
  if (window > 0) at.kv = next++;
  if (has_sink) at.sink = next++;
  if (window > 0) at.ring = next++;
  if (ratio > 0) at.entries = next++;
  at.count = next;
  if (num_inputs > static_cast<size_t>(next)) at.picks = next;
  return at;
}

// Keys of the step: of all rows, or those of the same requests as the queries.
ShardRule SparseAttention::shard_rule(TypeSpan in) const {
  const Inputs at = inputs(in.size());
  const bool own = own_requests(in[0], in[at.cache()]);
  ShardRule rule{std::vector<std::string>(in.size()), {"thv"}, "th", ""};
  const auto set = [&](int input, std::string_view letters) {
    if (input >= 0) rule.in[static_cast<size_t>(input)] = std::string(letters);
  };
  set(0, "thd");
  set(at.kv, own ? "td" : "kd");
  set(at.sink, "h");
  set(at.ring, own ? "tpd" : "spd");
  set(at.entries, own ? "ted" : "ged");
  set(at.picks, "tj");
  return rule;
}

int64_t SparseAttention::max_columns(int64_t picks) const {
  return window + (ratio == 0 ? 0 : picks > 0 ? picks : max_context / ratio);
}

Result<ValueTypes> SparseAttention::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_range(kName, "ratio", ratio, 0, 1 << 20));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "window", window, ratio == 0 ? 1 : 0, 1 << 20));
  if (ratio > 0) WEFT_RETURN_IF_ERROR(expect_range(kName, "max_context", max_context, 1, std::numeric_limits<int32_t>::max()));
  const Inputs at = inputs(in.size());
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, at.count, at.count + (ratio > 0 ? 1 : 0)));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "q", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "q", {DType::kF32, DType::kBF16}));
  const int64_t rows = in[0].shape()[0], heads = in[0].shape()[1], dim = in[0].shape()[2];
  WEFT_RETURN_IF_ERROR(expect_range(kName, "value_width", value_width, 0, dim));
  if (at.kv >= 0) {
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, at.kv, "kv", 2));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "width of kv", in[at.kv].shape()[1], dim));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, at.kv, "kv", {DType::kF32, DType::kBF16}));
  }
  if (at.sink >= 0) {
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, at.sink, "sink", {DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "sink", in[at.sink].shape().num_elements(), heads));
  }
  if (at.ring >= 0) {
    WEFT_RETURN_IF_ERROR(expect_cache(kName, in, at.ring, "window ring", dim));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, at.ring, "keys", {in[at.kv].dtype()}));
    if (in[at.ring].shape()[1] < window - 1) {
      return invalid_argument(fmt::format("{}: a ring of {} rows for a window of {}", kName, in[at.ring].shape()[1], window));
    }
  }
  if (at.entries >= 0) {
    WEFT_RETURN_IF_ERROR(expect_cache(kName, in, at.entries, "entries", dim));
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, at.entries, "keys", {DType::kF32, DType::kBF16}));
    if (at.kv >= 0) WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, at.entries, "keys", {in[at.kv].dtype()}));
  }
  if (at.picks >= 0) {
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, at.picks, "picks", {DType::kI32}));
    WEFT_RETURN_IF_ERROR(expect_rank(kName, in, at.picks, "picks", 2));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "rows of picks", in[at.picks].shape()[0], rows));
  }
  return ValueTypes{{{in[0].dtype(), {rows, heads, value_width > 0 ? value_width : dim}}, in[0].rows}};
}

Work SparseAttention::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  const Inputs at = inputs(in.size());
  const int64_t rows = in[0].shape()[0], heads = in[0].shape()[1], dim = in[0].shape()[2], values = out[0].shape()[2];
  const int64_t picks = at.picks >= 0 ? in[at.picks].shape()[1] : 0, columns = max_columns(picks);
  ContextSums keys{rows * columns, rows * columns, rows};  // a token's own row among them
  if (!env.segments.empty()) {
    keys = window > 0 ? window_sums(env.segments, window) : ContextSums{};
    if (ratio > 0) {
      const ContextSums entries =
          entry_sums(env.segments, ratio, at.picks >= 0 ? picks : std::numeric_limits<int64_t>::max() / ratio);
      keys.seen += entries.seen;
      keys.distinct += entries.distinct;
      keys.rows = entries.rows;
    }
  }
  const DType key_dtype = in[at.cache()].dtype();
  const int64_t key_bytes = dim * dtype_bits(key_dtype) / 8;
  Work work = streaming_work(in.first(1), out);
  work.bytes_stored = keys.seen * key_bytes;
  work.bytes_repeated = (keys.seen - keys.distinct) * key_bytes;
  work.bytes_read += work.bytes_stored;
  if (at.sink >= 0) work.bytes_read += in[at.sink].tensor.bytes();
  if (at.picks >= 0) work.bytes_read += in[at.picks].tensor.bytes();
  work.flops = 2.0 * static_cast<double>(keys.seen * heads) * static_cast<double>(dim + values);
  work.rows = static_cast<double>(keys.rows);
  work.columns = keys.rows == 0 ? 0 : static_cast<double>(keys.seen) / static_cast<double>(keys.rows);
  work.depth = static_cast<double>(dim + values) / 2;  // of scores and values, on average
  constexpr double kSoftmaxOps = 4;  // planner.md 2.4
  work.vector_beside = kSoftmaxOps * static_cast<double>(keys.seen * heads);
  work.count = static_cast<double>(heads);
  work.unit = WorkUnit::kMatrix;
  work.weight = key_dtype;
  work.activation = in[0].dtype();
  work.scratch_bytes = env.num_threads * (aligned(columns * static_cast<int64_t>(sizeof(void*))) +
                                          aligned(sparse_attention_scratch_bytes(heads, dim)));
  return work;
}

Status SparseAttention::run(RunContext& ctx) const {
  const Inputs at = inputs(ctx.in.size());
  const TensorView& q = ctx.in[0];
  const int64_t rows = q.shape()[0], heads = q.shape()[1], dim = q.shape()[2], values = ctx.out[0].shape()[2];
  const DType key_dtype = ctx.in[at.cache()].dtype();
  const int64_t element = dtype_bits(q.dtype()) / 8, kv_row_bytes = dim * dtype_bits(key_dtype) / 8;
  const bool local_keys = at.kv >= 0 && ctx.row_set != RowSet::kAll && ctx.key_row_set == ctx.row_set;
  const int64_t columns = max_columns(at.picks >= 0 ? ctx.in[at.picks].shape()[1] : 0);
  const int64_t list_bytes = aligned(columns * static_cast<int64_t>(sizeof(void*)));
  const int64_t worker_bytes = list_bytes + aligned(sparse_attention_scratch_bytes(heads, dim));
  auto* kernel = pick_variant(sparse_attention_variants(), ctx.isa);
  // With few rows the heads are split as well; the bits of a head do not depend on the others.
  const int64_t splits = rows >= 2 * ctx.pool.size() ? 1 : std::min<int64_t>(heads, ctx.pool.size());

  ctx.pool.parallel_for(rows * splits, 1, [&](int64_t item, int64_t, int worker) {
    const int64_t t = item / splits, split = item % splits;
    const int64_t head0 = heads * split / splits, head1 = heads * (split + 1) / splits;
    // Keys of this step: all rows, or those of the same ranks as the queries (requests that are whole there).
    const int64_t row = local_keys ? t : ctx.batch_row(t);
    const Segment& segment = segment_of_row(local_keys ? ctx.segments() : std::span<const Segment>(ctx.batch.segments), row);
    const int64_t first = segment.first_position(), position = first + (row - segment.row0);
    auto* list = reinterpret_cast<const void**>(ctx.scratch.data() + worker * worker_bytes);
    int64_t n = 0;
    if (window > 0) {
      const RingRows ring(ctx.in[at.ring]);
      const auto* kv = ctx.in[at.kv].as<std::byte>();
      for (int64_t p = std::max<int64_t>(0, position - window + 1); p <= position; ++p) {
        list[n++] = p >= first ? kv + (segment.row0 + p - first) * kv_row_bytes : ring.row(segment.request, p);
      }
    }
    if (ratio > 0) {
      while (n < window) list[n++] = nullptr;
      const PagedRows entries(ctx.in[at.entries], ctx.batch.pages[segment.request]);
      if (at.picks >= 0) {
        const int64_t top_k = ctx.in[at.picks].shape()[1];
        const int32_t* picks = ctx.in[at.picks].as<int32_t>() + t * top_k;
        for (int64_t j = 0; j < top_k && picks[j] >= 0; ++j) list[n++] = entries.row(picks[j]);
      } else {
        for (int64_t g = 0; g < (position + 1) / ratio; ++g) list[n++] = entries.row(g);
      }
    }
    SparseAttentionArgs args;
    args.q = q.as<std::byte>() + (t * heads + head0) * dim * element;
    args.out = ctx.out[0].as<std::byte>() + (t * heads + head0) * values * element;
    args.dtype = q.dtype();
    args.kv_dtype = key_dtype;
    args.num_heads = head1 - head0;
    args.head_dim = dim;
    args.value_dim = values;
    args.keys = {list, static_cast<size_t>(n)};
    if (at.sink >= 0) args.sink = ctx.in[at.sink].as<float>() + head0;
    args.scale = static_cast<float>(scale);
    args.scratch = ctx.scratch.data() + worker * worker_bytes + list_bytes;
    kernel(args);
  });
  return {};
}

}  // namespace weft
