#include "graph/ops/split_compressor.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/int_math.h"
#include "comm/bytes.h"
#include "graph/cache_rows.h"
#include "graph/ops/between_ranks.h"
#include "graph/ops/group_compressor.h"
#include "graph/ops/scratch.h"

namespace weft {
namespace {

constexpr int32_t kNowhere = -1;

// Rows and entries that cross, in a step or at most.
struct Room {
  int64_t received = 0, sent = 0, tails = 0, entries = 0;

  Room() = default;
  // The most in a step of this shape.
  Room(const SplitCompressor& op, const Shape& rows, const Shape& norm, const Shape& ring) {
    const int64_t ratio = op.compressor.ratio, window = rows[1] / norm[0] * ratio, local = rows[0], all = op.size * local;
    const int64_t requests = std::min(ring[0], all);
    // A rank has at most two runs of consecutive rows of a request (zigzag), and each lacks what lies before it.
    constexpr int64_t kRuns = 2;
    received = std::min(all, kRuns * requests * (window - 1));
    sent = (op.size - 1) * std::min(local, received);
    tails = std::min(all, requests * ring[1]);
    entries = std::min(all, all / ratio + requests);
  }
};

struct Scratch {
  float *received, *sent, *tails;  // rows k | s
  std::byte *entries, *workers;

  Scratch(Carver& carver, const Room& room, int64_t w, int64_t entry_bytes, int64_t worker_bytes)
      : received(carver.take<float>(room.received * 2 * w)), sent(carver.take<float>(room.sent * 2 * w)),
        tails(carver.take<float>(room.tails * 2 * w)), entries(carver.take<std::byte>(room.entries * entry_bytes)),
        workers(carver.take<std::byte>(worker_bytes)) {}
};

// Which rank has which row of the step, and where: the same on all ranks.
class Holders {
 public:
  Holders(const RowSplit& split, int64_t rows) : at_(split.counts.size(), std::vector<int32_t>(static_cast<size_t>(rows), kNowhere)) {
    size_t gathered = 0;
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      for (int32_t j = 0; j < split.counts[rank]; ++j, ++gathered) {
        at_[rank][split.order.empty() ? gathered : static_cast<size_t>(split.order[gathered])] = j;
      }
    }
  }
  int32_t place(int rank, int64_t row) const { return at_[static_cast<size_t>(rank)][static_cast<size_t>(row)]; }
  // The first rank that has it: of copies, one is the row's owner.
  int owner(int64_t row) const {
    int rank = 0;
    while (place(rank, row) == kNowhere) ++rank;
    return rank;
  }

 private:
  std::vector<std::vector<int32_t>> at_;
};

// What every rank computes and misses.
struct Exchanged {
  struct Group {
    const Segment* segment;
    int64_t group;
  };
  std::vector<Group> own;                          // entries of this rank
  std::vector<int64_t> entries, tails;             // by rank: how many it computes, how many rows of rings it has
  std::vector<std::vector<int64_t>> sent, received;  // by peer: rows of the step, ascending

  Exchanged(const Holders& holders, std::span<const Segment> segments, int size, int rank, int64_t ratio, int64_t window,
            int64_t ring_rows)
      : entries(static_cast<size_t>(size), 0), tails(entries), sent(entries.size()), received(entries.size()) {
    std::vector<int64_t> missing_from(static_cast<size_t>(size), 0);  // rows below are already on their way, by rank
    for (const Segment& s : segments) {
      const int64_t first = s.first_position();
      std::fill(missing_from.begin(), missing_from.end(), first);
      for (int64_t group = first / ratio; group < s.kv_end / ratio; ++group) {
        const int64_t end = (group + 1) * ratio;
        const int to = holders.owner(s.row0 + end - 1 - first);
        ++entries[static_cast<size_t>(to)];
        if (to == rank) own.push_back({&s, group});
        int64_t& from = missing_from[static_cast<size_t>(to)];
        for (int64_t p = std::max(from, end - window); p < end; ++p) {
          const int64_t row = s.row0 + p - first;
          if (holders.place(to, row) != kNowhere) continue;
          const int owner = holders.owner(row);
          if (to == rank) received[static_cast<size_t>(owner)].push_back(row);
          if (owner == rank) sent[static_cast<size_t>(to)].push_back(row);
        }
        from = std::max(from, end);
      }
      for (int64_t j = std::max<int64_t>(0, s.len - ring_rows); j < s.len; ++j) {
        ++tails[static_cast<size_t>(holders.owner(s.row0 + j))];
      }
    }
  }
};

int64_t total_of(const std::vector<std::vector<int64_t>>& rows) {
  int64_t total = 0;
  for (const auto& list : rows) total += static_cast<int64_t>(list.size());
  return total;
}

}  // namespace

Result<std::vector<Placements>> SplitCompressor::placements(TypeSpan in) const {
  WEFT_RETURN_IF_ERROR(expect_range(kName, "size of the group", size, 2, 1 << 20));
  Placements rows;
  rows[static_cast<size_t>(axis)] = Placement::sharded(0);
  for (size_t i = 0; i < in.size(); ++i) {
    const bool right = i < 2 ? in[i].placement == rows : to_string(in[i].placement).empty();
    if (right) continue;
    return invalid_argument(fmt::format("{}: input {} is {}, expected {}", kName, i, to_string(in[i]),
                                        i < 2 ? fmt::format("rows split over {} alone", mesh_axis_name(axis)) : "whole"));
  }
  return std::vector<Placements>{};
}

Work SplitCompressor::work(TypeSpan in, TypeSpan out, const WorkEnv& env) const {
  const int64_t local = in[0].shape()[0], w = in[0].shape()[1], d = in[2].shape()[0], row = 2 * w * dtype_bits(DType::kF32) / 8;
  const int64_t entry = TensorType{in[4].dtype(), {d}}.bytes(), all = size * local;
  const bool overlap = w == 2 * d;
  Work work = compressor.work(in, out, env);
  work.bytes_sent = (overlap ? compressor.ratio * row : 0) + all_gather_bytes(size, std::min(all, in[3].shape()[1]), row) +
                    all_gather_bytes(size, all / compressor.ratio, entry);
  travels(work, CommPattern::kAllGather, axis, size, 3);
  Carver carver(nullptr);
  const Scratch scratch(carver, Room(*this, in[0].shape(), in[2].shape(), in[3].shape()), w, entry,
                        env.num_threads * GroupCompressor::scratch_bytes(compressor, w, d));
  work.scratch_bytes = carver.used();
  return work;
}

int64_t SplitCompressor::bytes_sent(const RunContext& ctx) const {
  const int64_t w = ctx.in[0].shape()[1], d = ctx.in[2].shape()[0];
  const int64_t row_bytes = 2 * w * static_cast<int64_t>(sizeof(float)), entry_bytes = TensorType{ctx.in[4].dtype(), {d}}.bytes();
  const int rank = ctx.ranks->index_of(axis);
  const Holders holders(ctx.row_sets->of(Rows::kTokens, ctx.row_set), ctx.batch.num_tokens());
  const Exchanged plan(holders, ctx.batch.segments, static_cast<int>(size), rank, compressor.ratio, w / d * compressor.ratio,
                       RingRows(ctx.in[3]).ring_rows());
  const auto own = static_cast<size_t>(rank);
  return total_of(plan.sent) * row_bytes + all_gather_v_bytes(size, plan.entries[own], entry_bytes) +
         all_gather_v_bytes(size, plan.tails[own], row_bytes);
}

Status SplitCompressor::run(RunContext& ctx) const {
  Communicator& group = group_of(ctx, axis, size);
  WEFT_CHECK(ctx.row_set != RowSet::kAll && parent(ctx.row_set) == RowSet::kAll, "{}: rows are not split over {} ranks along {}", kName,
             size, mesh_axis_name(axis));
  const int64_t w = ctx.in[0].shape()[1], d = ctx.in[2].shape()[0], ratio = compressor.ratio, window = w / d * ratio;
  const int64_t row_bytes = 2 * w * static_cast<int64_t>(sizeof(float)), entry_bytes = TensorType{ctx.in[4].dtype(), {d}}.bytes();
  const RingRows ring(ctx.in[3]);
  const int rank = group.rank();
  const Holders holders(ctx.row_sets->of(Rows::kTokens, ctx.row_set), ctx.batch.num_tokens());
  const Exchanged plan(holders, ctx.batch.segments, static_cast<int>(size), rank, ratio, window, ring.ring_rows());
  const std::vector<int64_t> first_entry = first_places(plan.entries), first_tail = first_places(plan.tails);
  const int64_t num_entries = first_entry.back() + plan.entries.back(), num_tails = first_tail.back() + plan.tails.back();

  const int64_t worker_bytes = GroupCompressor::scratch_bytes(compressor, w, d);
  Room room;
  room.received = total_of(plan.received);
  room.sent = total_of(plan.sent);
  room.tails = num_tails;
  room.entries = num_entries;
  Carver carver(ctx.scratch.data());
  const Scratch scratch(carver, room, w, entry_bytes, ctx.pool.size() * worker_bytes);
  WEFT_CHECK(carver.used() <= static_cast<int64_t>(ctx.scratch.size()), "{}: more rows cross than there is room for", kName);

  const auto copy_row = [&](int64_t row, float* to) {
    const int64_t at = holders.place(rank, row) * w;
    std::memcpy(to, ctx.in[0].as<float>() + at, static_cast<size_t>(row_bytes / 2));
    std::memcpy(to + w, ctx.in[1].as<float>() + at, static_cast<size_t>(row_bytes / 2));
  };
  // Rows before a rank's own that its first groups need.
  std::vector<Blocks> send, recv;
  std::vector<int32_t> received_at(static_cast<size_t>(ctx.batch.num_tokens()), kNowhere);
  int64_t sent = 0, received = 0;
  for (size_t peer = 0; peer < plan.sent.size(); ++peer) {
    send.push_back(contiguous_block(scratch.sent + sent * 2 * w, static_cast<int64_t>(plan.sent[peer].size()) * row_bytes));
    for (const int64_t row : plan.sent[peer]) copy_row(row, scratch.sent + sent++ * 2 * w);
    recv.push_back(contiguous_block(scratch.received + received * 2 * w, static_cast<int64_t>(plan.received[peer].size()) * row_bytes));
    for (const int64_t row : plan.received[peer]) received_at[static_cast<size_t>(row)] = static_cast<int32_t>(received++);
  }
  WEFT_RETURN_IF_ERROR(group.all_to_all_v(ctx.name, send, recv));

  // Own entries.
  const GroupCompressor groups(compressor, ctx.in, ctx.isa);
  std::byte* own = scratch.entries + first_entry[static_cast<size_t>(rank)] * entry_bytes;
  ctx.pool.parallel_for(static_cast<int64_t>(plan.own.size()), 1, [&](int64_t i, int64_t, int worker) {
    const Segment& s = *plan.own[static_cast<size_t>(i)].segment;
    const auto rows = [&](int64_t p) -> GroupCompressor::Row {
      if (p < s.first_position()) {
        const auto* row = reinterpret_cast<const float*>(ring.row(s.request, p));
        return {row, row + w};
      }
      const int64_t row = s.row0 + p - s.first_position();
      if (const int32_t at = holders.place(rank, row); at != kNowhere) {
        return {ctx.in[0].as<float>() + at * w, ctx.in[1].as<float>() + at * w};
      }
      const float* there = scratch.received + received_at[static_cast<size_t>(row)] * 2 * w;
      return {there, there + w};
    };
    groups.run(plan.own[static_cast<size_t>(i)].group, rows, scratch.workers + worker * worker_bytes, own + i * entry_bytes);
  });
  WEFT_RETURN_IF_ERROR(group.all_gather_v(ctx.name, {own, scratch.entries, num_entries, entry_bytes}, plan.entries));

  // The last rows of every request.
  float* own_tails = scratch.tails + first_tail[static_cast<size_t>(rank)] * 2 * w;
  const auto for_tails = [&](auto&& visit) {
    for (const Segment& s : ctx.batch.segments) {
      for (int64_t j = std::max<int64_t>(0, s.len - ring.ring_rows()); j < s.len; ++j) visit(s, s.row0 + j);
    }
  };
  for_tails([&](const Segment&, int64_t row) {
    if (holders.owner(row) != rank) return;
    copy_row(row, own_tails);
    own_tails += 2 * w;
  });
  own_tails = scratch.tails + first_tail[static_cast<size_t>(rank)] * 2 * w;
  WEFT_RETURN_IF_ERROR(group.all_gather_v(ctx.name, {own_tails, scratch.tails, num_tails, row_bytes}, plan.tails));

  // All caches.
  std::vector<int64_t> next = first_entry;
  for (const Segment& s : ctx.batch.segments) {
    const PagedRows entries(ctx.in[4], ctx.batch.pages[s.request]);
    for (int64_t g = s.first_position() / ratio; g < s.kv_end / ratio; ++g) {
      const auto owner = static_cast<size_t>(holders.owner(s.row0 + (g + 1) * ratio - 1 - s.first_position()));
      std::memcpy(entries.row(g), scratch.entries + next[owner]++ * entry_bytes, static_cast<size_t>(entry_bytes));
    }
  }
  next = first_tail;
  for_tails([&](const Segment& s, int64_t row) {
    const auto owner = static_cast<size_t>(holders.owner(row));
    std::memcpy(ring.row(s.request, s.first_position() + row - s.row0), scratch.tails + next[owner]++ * 2 * w, static_cast<size_t>(row_bytes));
  });
  return {};
}

}  // namespace weft
