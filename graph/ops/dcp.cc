#include "graph/ops/dcp.h"

#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "comm/bytes.h"
#include "graph/cache_rows.h"
#include "graph/context_sums.h"
#include "graph/ops/between_ranks.h"
#include "graph/ops/index_scores.h"
#include "graph/ops/scratch.h"
#include "kernels/index_topk/index_topk.h"

namespace weft {
namespace {

Status expect_split_entries(std::string_view op, const ValueType& entries, MeshAxis axis) {
  if (on(entries.placement, axis) == Placement::sharded(1)) return {};
  return invalid_argument(fmt::format("{}: entries are {}, not split over {}", op, to_string(entries), mesh_axis_name(axis)));
}

}  // namespace

// ---- FetchEntries

namespace {

struct FetchScratch {
  int32_t* marks;           // picked: by entry of one request
  const std::byte** own;    // picked: rows of this rank, in order
  std::byte* gathered;      // visible: rows before they are put in order

  FetchScratch(Carver& carver, const FetchEntries& op, bool picks, int64_t row_bytes)
      : marks(picks ? carver.take<int32_t>(op.max_context / op.ratio) : nullptr),
        own(picks ? carver.take<const std::byte*>(op.capacity) : nullptr),
        gathered(picks ? nullptr : carver.take<std::byte>(op.capacity * row_bytes)) {}
};

int64_t entry_bytes(const TensorType& entries) { return TensorType{entries.dtype, {entries.shape[2]}}.bytes(); }

}  // namespace

int64_t FetchEntries::capacity_for(TypeSpan in, int64_t rows) const {
  const Shape& cache = in[0].shape();
  const int64_t of_request = max_context / ratio;
  const int64_t of_row = in.size() == 1 ? of_request : std::min(of_request, in[1].shape()[1]);
  return std::max<int64_t>(1, std::min(size * cache[0] * cache[1], rows * of_row));
}

Result<ValueTypes> FetchEntries::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 2));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "size of the group", size, 2, 1 << 20));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "ratio", ratio, 1, 1 << 20));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "max_context", max_context, 1, std::numeric_limits<int32_t>::max()));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "capacity", capacity, 1, std::numeric_limits<int32_t>::max()));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "entries", 3));
  const ValueType rows{{in[0].dtype(), {capacity, in[0].shape()[2]}}};
  if (in.size() == 1) return ValueTypes{rows};
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 1, "picks", 2));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 1, "picks", {DType::kI32}));
  return ValueTypes{rows, {in[1].tensor, in[1].rows}};
}

Result<std::vector<Placements>> FetchEntries::placements(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_split_entries(kName, in[0], axis));
  for (const ValueType& type : in.subspan(1)) {
    if (to_string(type.placement).empty()) continue;
    return invalid_argument(fmt::format("{}: picks are {}; all ranks need all of them", kName, to_string(type)));
  }
  return std::vector<Placements>(in.size());
}

Work FetchEntries::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  const int64_t row = entry_bytes(in[0].tensor);
  const int64_t at_most = in.size() == 2 ? in[1].shape()[1] : max_context / ratio;
  const int64_t rows = env.segments.empty() ? capacity : std::min(capacity, entry_sums(env.segments, ratio, at_most).distinct);
  Work work;
  work.bytes_sent = all_gather_bytes(size, rows, row);
  travels(work, CommPattern::kAllGather, axis, size);
  work.bytes_stored = ceil_div(rows, size) * row;
  work.bytes_read = work.bytes_stored;
  work.bytes_written = rows * row;
  if (in.size() == 2) {
    work.bytes_read += in[1].tensor.bytes();
    work.bytes_written += out[1].tensor.bytes();
  }
  Carver carver(nullptr);
  const FetchScratch scratch(carver, *this, in.size() == 2, row);
  work.scratch_bytes = carver.used();
  return work;
}

Status FetchEntries::run(RunContext& ctx) const {
  Communicator& group = group_of(ctx, axis, size);
  WEFT_CHECK(ctx.cache_shard.shard.ranks == size, "{}: entries on {} ranks, expected {}", ctx.name, ctx.cache_shard.shard.ranks, size);
  return ctx.in.size() == 2 ? fetch_picked(ctx, group) : fetch_visible(ctx, group);
}

int64_t FetchEntries::bytes_sent(const RunContext& ctx) const {
  const CacheShard& mine = ctx.cache_shard;
  int64_t own = 0;
  std::vector<bool> picked;
  for (const Segment& segment : ctx.batch.segments) {
    const int64_t visible = segment.kv_end / ratio;
    if (ctx.in.size() == 1) {
      own += mine.shard.local_length(visible, mine.rank);
      continue;
    }
    picked.assign(static_cast<size_t>(visible), false);
    const int64_t top_k = ctx.in[1].shape()[1];
    for (int64_t i = segment.row0 * top_k; i < (segment.row0 + segment.len) * top_k; ++i) {
      const int32_t pick = ctx.in[1].as<int32_t>()[i];
      if (pick < 0 || picked[static_cast<size_t>(pick)]) continue;
      picked[static_cast<size_t>(pick)] = true;
      own += mine.holds(pick) ? 1 : 0;
    }
  }
  return all_gather_v_bytes(size, own, entry_bytes(ctx.in[0].type));
}

Status FetchEntries::fetch_visible(RunContext& ctx, Communicator& group) const {
  const CacheShard& mine = ctx.cache_shard;
  const int64_t row = entry_bytes(ctx.in[0].type);
  Carver carver(ctx.scratch.data());
  const FetchScratch scratch(carver, *this, false, row);
  std::vector<int64_t> counts(static_cast<size_t>(size), 0);
  for (const Segment& segment : ctx.batch.segments) {
    for (int r = 0; r < size; ++r) counts[static_cast<size_t>(r)] += mine.shard.local_length(segment.kv_end / ratio, r);
  }
  std::vector<int64_t> next = first_places(counts);
  const int64_t total = next.back() + counts.back();
  WEFT_CHECK(total <= capacity, "{}: {} entries, room for {}", ctx.name, total, capacity);
  std::byte* own = scratch.gathered + next[static_cast<size_t>(mine.rank)] * row;
  std::byte* to = own;
  for (const Segment& segment : ctx.batch.segments) {
    const PagedRows entries(ctx.in[0], ctx.batch.pages[segment.request], mine);
    for (int64_t g = mine.rank; g < segment.kv_end / ratio; g += size, to += row) {
      std::memcpy(to, entries.row(g), static_cast<size_t>(row));
    }
  }
  WEFT_RETURN_IF_ERROR(group.all_gather_v(ctx.name, {own, scratch.gathered, total, row}, counts));
  auto* out = ctx.out[0].as<std::byte>();
  for (const Segment& segment : ctx.batch.segments) {
    for (int64_t g = 0; g < segment.kv_end / ratio; ++g, out += row) {
      std::memcpy(out, scratch.gathered + next[static_cast<size_t>(mine.shard.owner(g))]++ * row, static_cast<size_t>(row));
    }
  }
  return {};
}

Status FetchEntries::fetch_picked(RunContext& ctx, Communicator& group) const {
  const CacheShard& mine = ctx.cache_shard;
  const int64_t row = entry_bytes(ctx.in[0].type), top_k = ctx.in[1].shape()[1];
  Carver carver(ctx.scratch.data());
  const FetchScratch scratch(carver, *this, true, row);
  const auto* picks = ctx.in[1].as<int32_t>();
  auto* places = ctx.out[1].as<int32_t>();
  // A pick's place among the rows of its owner; then, when all are counted, among all rows.
  constexpr int32_t kUnpicked = -1, kPicked = -2;
  std::vector<int64_t> counts(static_cast<size_t>(size), 0);
  for (const Segment& segment : ctx.batch.segments) {
    const int64_t visible = segment.kv_end / ratio, begin = segment.row0 * top_k, end = begin + segment.len * top_k;
    const PagedRows entries(ctx.in[0], ctx.batch.pages[segment.request], mine);
    std::fill_n(scratch.marks, visible, kUnpicked);
    for (int64_t i = begin; i < end; ++i) {
      if (picks[i] >= 0) scratch.marks[picks[i]] = kPicked;
    }
    for (int64_t g = 0; g < visible; ++g) {
      if (scratch.marks[g] != kPicked) continue;
      int64_t& count = counts[static_cast<size_t>(mine.shard.owner(g))];
      WEFT_CHECK(count < capacity, "{}: more than {} entries", ctx.name, capacity);
      if (mine.holds(g)) scratch.own[count] = entries.row(g);
      scratch.marks[g] = static_cast<int32_t>(count++);
    }
    for (int64_t i = begin; i < end; ++i) places[i] = picks[i] < 0 ? -1 : scratch.marks[picks[i]];
  }
  const std::vector<int64_t> first = first_places(counts);
  const int64_t total = first.back() + counts.back();
  WEFT_CHECK(total <= capacity, "{}: {} entries, room for {}", ctx.name, total, capacity);
  for (int64_t i = 0; i < ctx.in[1].shape().num_elements(); ++i) {
    if (picks[i] >= 0) places[i] += static_cast<int32_t>(first[static_cast<size_t>(mine.shard.owner(picks[i]))]);
  }
  std::byte* own = ctx.out[0].as<std::byte>() + first[static_cast<size_t>(mine.rank)] * row;
  for (int64_t i = 0; i < counts[static_cast<size_t>(mine.rank)]; ++i) {
    std::memcpy(own + i * row, scratch.own[i], static_cast<size_t>(row));
  }
  return group.all_gather_v(ctx.name, {own, ctx.out[0].data, total, row}, counts);
}

// ---- IndexCandidates

Result<ValueTypes> IndexCandidates::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(index.infer(in).status());
  WEFT_RETURN_IF_ERROR(expect_range(kName, "size", size, 2, 1 << 20));
  return ValueTypes{{{DType::kI32, {in[0].shape()[0], index.top_k, 2}}, in[0].rows}};
}

Work IndexCandidates::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  return index_scores_work(index, size, in, out, env);
}

Status IndexCandidates::run(RunContext& ctx) const {
  const CacheShard& mine = ctx.cache_shard;
  WEFT_CHECK(mine.shard.ranks == size, "{}: keys on {} ranks, expected {}", ctx.name, mine.shard.ranks, size);
  const int64_t top_k = index.top_k;
  const auto row_of = [&](int64_t t) { return ctx.out[0].as<int32_t>() + t * 2 * top_k; };
  const auto count = [&](int64_t t, int64_t position) {
    const int64_t visible = (position + 1) / index.ratio, here = visible > top_k ? mine.length(visible) : 0;
    for (int64_t j = 0; here == 0 && j < top_k; ++j) {
      row_of(t)[2 * j] = 0;
      row_of(t)[2 * j + 1] = -1;
    }
    return here;
  };
  const auto keep = [&](int64_t t, std::span<const float> scores, std::span<int32_t> scratch) {
    // The picks wait in the second half of the row, which is filled from the front.
    int32_t* row = row_of(t);
    const std::span<int32_t> picks(row + top_k, static_cast<size_t>(top_k));
    select_topk(scores, picks, scratch);
    for (int64_t j = 0; j < top_k; ++j) {
      const int32_t local = picks[static_cast<size_t>(j)];
      row[2 * j] = local < 0 ? 0 : std::bit_cast<int32_t>(scores[static_cast<size_t>(local)]);
      row[2 * j + 1] = local < 0 ? -1 : static_cast<int32_t>(mine.shard.global_row(mine.rank, local));
    }
  };
  score_entries(ctx, index.weight_scale, ceil_div(index.max_context / index.ratio, size), count, keep);
  return {};
}

// ---- MergeTopK

namespace {

struct MergeScratch {
  float* scores;
  int32_t *entries, *order, *select;

  MergeScratch(Carver& carver, int64_t candidates)
      : scores(carver.take<float>(candidates)), entries(carver.take<int32_t>(candidates)), order(carver.take<int32_t>(candidates)),
        select(carver.take<int32_t>(candidates)) {}
};

int64_t merge_scratch_bytes(int64_t candidates) {
  Carver carver(nullptr);
  const MergeScratch scratch(carver, candidates);
  return carver.used();
}

}  // namespace

Result<ValueTypes> MergeTopK::infer(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_inputs(kName, in, 1, 1));
  WEFT_RETURN_IF_ERROR(expect_rank(kName, in, 0, "candidates", 3));
  WEFT_RETURN_IF_ERROR(expect_dtype(kName, in, 0, "candidates", {DType::kI32}));
  WEFT_RETURN_IF_ERROR(expect_dim(kName, "score and entry", in[0].shape()[2], 2));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "ratio", ratio, 1, 1 << 20));
  WEFT_RETURN_IF_ERROR(expect_range(kName, "top_k", top_k, 1, in[0].shape()[1]));
  return ValueTypes{{{DType::kI32, {in[0].shape()[0], top_k}}, in[0].rows}};
}

Work MergeTopK::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  Work work = streaming_work(in, out);
  work.scratch_bytes = env.num_threads * merge_scratch_bytes(in[0].shape()[1]);
  return work;
}

Status MergeTopK::run(RunContext& ctx) const {
  const int64_t rows = ctx.in[0].shape()[0], candidates = ctx.in[0].shape()[1], worker_bytes = merge_scratch_bytes(candidates);
  ctx.pool.parallel_for(rows, 1, [&](int64_t t, int64_t, int worker) {
    const std::span<int32_t> picks(ctx.out[0].as<int32_t>() + t * top_k, static_cast<size_t>(top_k));
    const int64_t row = ctx.batch_row(t);
    const Segment& segment = segment_of_row(ctx.batch.segments, row);
    const int64_t visible = (segment.first_position() + (row - segment.row0) + 1) / ratio;
    if (visible <= top_k) return pick_all(visible, picks);
    // By ascending entry, so that the place of a candidate decides between equal scores as its entry does.
    Carver carver(ctx.scratch.data() + worker * worker_bytes);
    const MergeScratch scratch(carver, candidates);
    const int32_t* all = ctx.in[0].as<int32_t>() + t * candidates * 2;
    int64_t n = 0;
    for (int64_t i = 0; i < candidates; ++i) {
      if (all[2 * i + 1] >= 0) scratch.order[n++] = static_cast<int32_t>(i);
    }
    std::sort(scratch.order, scratch.order + n, [&](int32_t a, int32_t b) { return all[2 * a + 1] < all[2 * b + 1]; });
    for (int64_t i = 0; i < n; ++i) {
      scratch.scores[i] = std::bit_cast<float>(all[2 * scratch.order[i]]);
      scratch.entries[i] = all[2 * scratch.order[i] + 1];
    }
    const auto count = static_cast<size_t>(n);
    select_topk({scratch.scores, count}, picks, {scratch.select, count});
    for (int32_t& pick : picks) pick = pick < 0 ? -1 : scratch.entries[pick];
  });
  return {};
}

}  // namespace weft
