#include "graph/ops/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "graph/cache_rows.h"
#include "graph/context_sums.h"
#include "graph/ops/group_compressor.h"
#include "graph/ops/index_scores.h"
#include "graph/ops/scratch.h"
#include "kernels/index_topk/index_topk.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace weft {

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
    const PagedRows entries(ctx.in[1], ctx.batch.pages[segment.request], ctx.cache_shard);
    for (int64_t j = 0; j < segment.len; ++j) {
      const int64_t position = segment.first_position() + j;
      if (entries.holds(position)) std::memcpy(entries.row(position), from + (segment.row0 + j) * row_bytes, entries.row_bytes());
    }
  }
  return {};
}

// ---- Compressor

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
  work.scratch_bytes = env.num_threads * GroupCompressor::scratch_bytes(*this, w, d);
  return work;
}

Status Compressor::run(RunContext& ctx) const {
  const int64_t w = ctx.in[0].shape()[1], d = ctx.in[2].shape()[0];
  const RingRows state(ctx.in[3]);
  const GroupCompressor compressor(*this, ctx.in, ctx.isa);
  const int64_t worker_bytes = GroupCompressor::scratch_bytes(*this, w, d);

  for (const Segment& segment : ctx.segments()) {
    const int64_t first = segment.first_position();
    const int64_t first_group = first / ratio, num_groups = segment.kv_end / ratio - first_group;
    const PagedRows entries(ctx.in[4], ctx.batch.pages[segment.request], ctx.cache_shard);
    // Row of k | s at a position: two halves in the ring, two tensors in the batch.
    const auto rows = [&](int64_t p) -> GroupCompressor::Row {
      if (p >= first) {
        const int64_t at = (segment.row0 + p - first) * w;
        return {ctx.in[0].as<float>() + at, ctx.in[1].as<float>() + at};
      }
      const auto* row = reinterpret_cast<const float*>(state.row(segment.request, p));
      return {row, row + w};
    };
    ctx.pool.parallel_for(num_groups, 1, [&](int64_t begin, int64_t, int worker) {
      const int64_t group = first_group + begin;
      if (entries.holds(group)) compressor.run(group, rows, ctx.scratch.data() + worker * worker_bytes, entries.row(group));
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

Result<ValueTypes> IndexTopK::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_index_inputs(kName, in));
  if (ratio < 1 || top_k < 1 || max_context < 1) {
    return invalid_argument(fmt::format("{}: ratio {}, top_k {}, max_context {}", kName, ratio, top_k, max_context));
  }
  return ValueTypes{{{DType::kI32, {in[0].shape()[0], top_k}}, in[0].rows}};
}

Work IndexTopK::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  return index_scores_work(*this, 1, in, out, env);
}

Status IndexTopK::run(RunContext& ctx) const {
  const auto picks_of = [&](int64_t t) {
    return std::span(ctx.out[0].as<int32_t>() + t * top_k, static_cast<size_t>(top_k));
  };
  const auto count = [&](int64_t t, int64_t position) -> int64_t {
    const int64_t visible = (position + 1) / ratio;
    if (visible > top_k) return visible;
    pick_all(visible, picks_of(t));
    return 0;
  };
  score_entries(ctx, weight_scale, max_context / ratio, count,
                [&](int64_t t, std::span<const float> scores, std::span<int32_t> scratch) {
                  select_topk(scores, picks_of(t), scratch);
                });
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
    if (in[at.entries].shape().rank() == 2) {  // fetched: in the order of the requests, or as the picks say
      WEFT_RETURN_IF_ERROR(expect_dim(kName, "width of entries", in[at.entries].shape()[1], dim));
    } else {
      WEFT_RETURN_IF_ERROR(expect_cache(kName, in, at.entries, "entries", dim));
    }
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
  work.scratch_bytes = env.num_threads * (aligned_scratch(columns * static_cast<int64_t>(sizeof(void*))) +
                                          aligned_scratch(sparse_attention_scratch_bytes(heads, dim)));
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
  const int64_t list_bytes = aligned_scratch(columns * static_cast<int64_t>(sizeof(void*)));
  const int64_t worker_bytes = list_bytes + aligned_scratch(sparse_attention_scratch_bytes(heads, dim));
  const bool fetched = at.entries >= 0 && ctx.in[at.entries].shape().rank() == 2;
  const auto fetched_before = [&](const Segment& segment) {
    int64_t before = 0;
    for (const Segment& s : ctx.batch.segments) before += s.row0 < segment.row0 ? s.kv_end / ratio : 0;
    return before;
  };
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
      const auto list_entries = [&](auto&& row_of) {
        if (at.picks < 0) {
          for (int64_t g = 0; g < (position + 1) / ratio; ++g) list[n++] = row_of(g);
          return;
        }
        const int64_t top_k = ctx.in[at.picks].shape()[1];
        const int32_t* picks = ctx.in[at.picks].as<int32_t>() + t * top_k;
        for (int64_t j = 0; j < top_k && picks[j] >= 0; ++j) list[n++] = row_of(picks[j]);
      };
      if (fetched) {
        const auto* rows_of_request = ctx.in[at.entries].as<std::byte>() + (at.picks >= 0 ? 0 : fetched_before(segment)) * kv_row_bytes;
        list_entries([&](int64_t g) { return rows_of_request + g * kv_row_bytes; });
      } else {
        const PagedRows entries(ctx.in[at.entries], ctx.batch.pages[segment.request]);
        list_entries([&](int64_t g) { return entries.row(g); });
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
