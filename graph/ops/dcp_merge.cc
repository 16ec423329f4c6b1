#include "graph/ops/dcp_merge.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"
#include "comm/bytes.h"
#include "graph/cache_rows.h"
#include "graph/ops/between_ranks.h"
#include "graph/ops/scratch.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace weft {
// ---- GatherHeads

Result<ValueTypes> GatherHeads::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "q", 3));
  ValueType out{in[0].tensor, in[0].rows};
  out.tensor.shape[1] *= size;
  return ValueTypes{out};
}

Result<std::vector<Placements>> GatherHeads::placements(TypeSpan in) const {
  Placements heads;
  on(heads, MeshAxis::kTp) = Placement::sharded(1);
  if (in[0].placement == heads) return std::vector<Placements>{heads};
  return invalid_argument(fmt::format("{}: q is {}, expected heads split over tp", kName, to_string(in[0])));
}

Work GatherHeads::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.bytes_sent = all_to_all_bytes(size, in[0].tensor.bytes());
  travels(work, CommPattern::kAllGather, axis, size);
  return work;
}

Status GatherHeads::run(RunContext& ctx) const {
  const TensorView& q = ctx.in[0];
  const int64_t rows = q.shape()[0], slice = rows == 0 ? 0 : q.type.bytes() / rows;
  return group_of(ctx, axis, size).all_to_all(ctx.name, gather_columns(q.data, ctx.out[0].data, static_cast<int>(size), rows, slice));
}

int64_t GatherHeads::bytes_sent(const RunContext& ctx) const { return all_to_all_bytes(size, ctx.in[0].type.bytes()); }

// ---- PartialAttention

namespace {

struct PartialScratch {
  const void** keys;
  float *q, *out, *lse;
  std::byte* kernel;

  PartialScratch(Carver& carver, int64_t columns, int64_t heads, int64_t dim)
      : keys(carver.take<const void*>(columns)), q(carver.take<float>(heads * dim)), out(carver.take<float>(heads * dim)),
        lse(carver.take<float>(heads)), kernel(carver.take<std::byte>(sparse_attention_scratch_bytes(heads, dim))) {}
};

int64_t partial_scratch_bytes(int64_t columns, int64_t heads, int64_t dim) {
  Carver carver(nullptr);
  const PartialScratch scratch(carver, columns, heads, dim);
  return carver.used();
}

}  // namespace

Result<ValueTypes> PartialAttention::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_range(kName, "size", size, 2, 1 << 20));
  if (attention.has_sink || attention.ratio == 0) return invalid_argument(fmt::format("{}: entries, and no sink", kName));
  WEFT_ASSIGN_OR_RETURN(const ValueTypes whole, attention.infer(in));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "heads modulo size", in[0].shape()[1] % size, 0));
  const Shape& out = whole[0].shape();
  return ValueTypes{{{DType::kF32, {out[0], out[1], out[2] + 1}}, in[0].rows}};
}

ShardRule PartialAttention::shard_rule(TypeSpan in) const {
  const ShardRule rule = attention.shard_rule(in);
  return {rule.in, rule.out, "the", "e"};
}

Work PartialAttention::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  // Every rank has the keys of n times as many heads, and about one n-th of them.
  Work work = attention.work(in, out, env);
  const auto n = static_cast<double>(size);
  work.flops /= n;
  work.columns /= n;
  work.vector_beside /= n;
  work.bytes_read -= work.bytes_stored - work.bytes_stored / size;
  work.bytes_stored /= size;
  work.bytes_repeated /= size;
  const SparseAttention::Inputs at = attention.inputs(in.size());
  const int64_t columns = attention.max_columns(at.picks >= 0 ? in[at.picks].shape()[1] : 0);
  work.scratch_bytes = env.num_threads * partial_scratch_bytes(columns, in[0].shape()[1] / size, in[0].shape()[2]);
  return work;
}

Status PartialAttention::run(RunContext& ctx) const {
  const SparseAttention::Inputs at = attention.inputs(ctx.in.size());
  const TensorView& q = ctx.in[0];
  const CacheShard& mine = ctx.cache_shard;
  WEFT_CHECK(mine.shard.ranks == size, "{}: entries on {} ranks, expected {}", ctx.name, mine.shard.ranks, size);
  const int64_t rows = q.shape()[0], heads = q.shape()[1] / size, dim = q.shape()[2], values = ctx.out[0].shape()[2] - 1;
  const DType key_dtype = ctx.in[at.entries].dtype();
  const int64_t key_bytes = TensorType{key_dtype, {dim}}.bytes(), top_k = at.picks >= 0 ? ctx.in[at.picks].shape()[1] : 0;
  const int64_t columns = attention.max_columns(top_k), worker_bytes = partial_scratch_bytes(columns, heads, dim);
  auto* kernel = pick_variant(sparse_attention_variants(), ctx.isa);
  ctx.pool.parallel_for(rows * size, 1, [&](int64_t item, int64_t, int worker) {
    const int64_t t = item / size, block = item % size;  // of heads: those of one rank
    Carver carver(ctx.scratch.data() + worker * worker_bytes);
    const PartialScratch scratch(carver, columns, heads, dim);
    const int64_t row = ctx.batch_row(t);
    const Segment& segment = segment_of_row(ctx.batch.segments, row);
    const int64_t first = segment.first_position(), position = first + (row - segment.row0);
    int64_t n = 0;
    if (attention.window > 0 && block == mine.rank) {
      const RingRows ring(ctx.in[at.ring]);
      for (int64_t p = std::max<int64_t>(0, position - attention.window + 1); p <= position; ++p) {
        scratch.keys[n++] = p >= first ? ctx.in[at.kv].as<std::byte>() + (segment.row0 + p - first) * key_bytes : ring.row(segment.request, p);
      }
    }
    const PagedRows entries(ctx.in[at.entries], ctx.batch.pages[segment.request], mine);
    if (at.picks >= 0) {
      const int32_t* picks = ctx.in[at.picks].as<int32_t>() + t * top_k;
      for (int64_t j = 0; j < top_k && picks[j] >= 0; ++j) {
        if (mine.holds(picks[j])) scratch.keys[n++] = entries.row(picks[j]);
      }
    } else {
      for (int64_t g = mine.rank; g < (position + 1) / attention.ratio; g += size) scratch.keys[n++] = entries.row(g);
    }

    const int64_t head0 = t * q.shape()[1] + block * heads;  // of all rows
    for (int64_t i = 0; i < heads * dim; ++i) {
      const int64_t from = head0 * dim + i;
      scratch.q[i] = q.dtype() == DType::kBF16 ? to_float(q.as<bf16>()[from]) : q.as<float>()[from];
    }
    SparseAttentionArgs args;
    args.q = scratch.q;
    args.out = scratch.out;
    args.kv_dtype = key_dtype;
    args.num_heads = heads;
    args.head_dim = dim;
    args.value_dim = values;
    args.keys = {scratch.keys, static_cast<size_t>(n)};
    args.lse = scratch.lse;
    args.scale = static_cast<float>(attention.scale);
    args.scratch = scratch.kernel;
    kernel(args);
    for (int64_t h = 0; h < heads; ++h) {
      float* to = ctx.out[0].as<float>() + (head0 + h) * (values + 1);
      std::memcpy(to, scratch.out + h * values, static_cast<size_t>(values) * sizeof(float));
      to[values] = scratch.lse[h];
    }
  });
  return {};
}

// ---- MergePartials

Result<ValueTypes> MergePartials::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 2));
  WEFT_RETURN_IF_ERROR(expect_group(kName, size));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "partial results", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "partial results", {DType::kF32}));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "heads modulo size", in[0].shape()[1] % size, 0));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "features", in[0].shape()[2], 2, 1 << 20));
  const int64_t heads = in[0].shape()[1] / size;
  if (in.size() == 2) {
    WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "sink", {DType::kF32}));
    WEFT_RETURN_IF_ERROR(expect_dim(kName, "sink", in[1].shape().num_elements(), heads));
  }
  return ValueTypes{{{dtype, {in[0].shape()[0], heads, in[0].shape()[2] - 1}}, in[0].rows}};
}

Result<std::vector<Placements>> MergePartials::placements(TypeSpan in) const {
  Placements partial, heads;
  on(partial, MeshAxis::kTp) = on(heads, MeshAxis::kTp) = Placement::sharded(1);
  on(partial, axis) = Placement::partial();
  if (in[0].placement != partial) {
    return invalid_argument(fmt::format("{}: the input is {}, expected heads split over tp, partial on {}", kName, to_string(in[0]),
                                        mesh_axis_name(axis)));
  }
  Placements sink;
  on(sink, MeshAxis::kTp) = Placement::sharded(0);
  if (in.size() == 2 && in[1].placement != sink) {
    return invalid_argument(fmt::format("{}: the sink is {}, expected that of the rank's heads", kName, to_string(in[1])));
  }
  return std::vector<Placements>{heads};
}

Work MergePartials::work(TypeSpan in, TypeSpan out, const WorkEnv&) const {
  Work work = streaming_work(in, out);
  work.bytes_sent = all_to_all_bytes(size, in[0].tensor.bytes() / size);
  travels(work, CommPattern::kAllToAll, axis, size);
  work.flops = 2.0 * static_cast<double>(in[0].shape().num_elements());
  work.scratch_bytes = in[0].tensor.bytes();
  return work;
}

int64_t MergePartials::bytes_sent(const RunContext& ctx) const { return all_to_all_bytes(size, ctx.in[0].type.bytes() / size); }

Status MergePartials::run(RunContext& ctx) const {
  const TensorView& x = ctx.in[0];
  const int64_t rows = x.shape()[0], heads = x.shape()[1] / size, dim = x.shape()[2] - 1;
  const int64_t slice = heads * (dim + 1) * static_cast<int64_t>(sizeof(float));
  auto* parts = reinterpret_cast<float*>(ctx.scratch.data());  // [rank, rows, heads, dim + 1]
  Exchange exchange;
  exchange.send = {{x.as<std::byte>(), size * slice, rows, slice}, slice};
  exchange.recv = {{ctx.scratch.data(), slice, rows, slice}, rows * slice};
  WEFT_RETURN_IF_ERROR(group_of(ctx, axis, size).all_to_all(ctx.name, exchange));
  const float* sink = ctx.in.size() == 2 ? ctx.in[1].as<float>() : nullptr;
  ctx.pool.parallel_for(rows * heads, 1, [&](int64_t i, int64_t, int) {
    const auto part = [&](int64_t r) { return parts + (r * rows * heads + i) * (dim + 1); };
    float max = -std::numeric_limits<float>::infinity();
    for (int64_t r = 0; r < size; ++r) max = std::max(max, part(r)[dim]);
    const bool empty = max == -std::numeric_limits<float>::infinity();  // no key on any rank: zeros
    float sum = empty ? 1 : sink == nullptr ? 0 : std::exp(sink[i % heads] - max);
    float* total = part(0);
    for (int64_t r = 0; r < size && !empty; ++r) {
      const float weight = std::exp(part(r)[dim] - max);
      const float* add = part(r);
      sum += weight;
      for (int64_t d = 0; d < dim; ++d) total[d] = r == 0 ? weight * add[d] : std::fma(weight, add[d], total[d]);
    }
    for (int64_t d = 0; d < dim; ++d) {
      const float value = empty ? 0 : total[d] / sum;
      if (dtype == DType::kBF16) {
        ctx.out[0].as<bf16>()[i * dim + d] = to_bf16(value);
      } else {
        ctx.out[0].as<float>()[i * dim + d] = value;
      }
    }
  });
  return {};
}

}  // namespace weft
