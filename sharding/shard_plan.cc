#include "sharding/shard_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/int_math.h"

namespace weft {
namespace {

// Prefix sums from 0, one entry more than counts.
std::vector<int64_t> prefix_sums(const std::vector<int64_t>& counts) {
  std::vector<int64_t> sums{0};
  sums.reserve(counts.size() + 1);
  for (int64_t count : counts) sums.push_back(sums.back() + count);
  return sums;
}

GlobalView global_view(const GlobalBatch& batch) {
  GlobalView view;
  view.query_start_loc.push_back(0);
  view.positions.assign(batch.num_rows, -1);
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const BatchRequest& request = batch.requests[i];
    const int64_t row0 = view.query_start_loc.back();
    view.query_start_loc.push_back(row0 + request.new_tokens);
    view.seq_lens.push_back(request.length);
    view.start_pos.push_back(request.start_pos());
    if (request.padding() || request.new_tokens == 0) continue;
    view.writers.push_back(static_cast<int64_t>(i));
    for (int64_t j = 0; j < request.new_tokens; ++j) view.positions[row0 + j] = request.start_pos() + j;
  }
  return view;
}

// Index in the batch of the request that row belongs to.
int64_t request_of_row(const GlobalView& global, int64_t row) {
  const auto& starts = global.query_start_loc;
  return std::upper_bound(starts.begin(), starts.end(), row) - starts.begin() - 1;
}

// Visible keys of an entry without rows.
int64_t empty_seq_len(const BatchRequest& request, const ShardPlanOptions& options) {
  if (options.ranks == 1) return request.length;
  if (options.split != TokenSplit::kPerRequest || request.padding()) return 0;
  return request.start_pos() + per_request_rows(request.new_tokens, options.ranks, options.rank).end;
}

// Length and visible keys of the entries, in order.
struct Entries {
  std::vector<int64_t> request, len, seq_lens;
};

Entries entries_by_request(const GlobalBatch& batch, const GlobalView& global, const ShardPlanOptions& options,
                           const std::vector<Segment>& own) {
  Entries entries;
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    entries.request.push_back(static_cast<int64_t>(i));
    entries.len.push_back(0);
    entries.seq_lens.push_back(empty_seq_len(batch.requests[i], options));
  }
  for (const Segment& segment : own) {
    const int64_t i = request_of_row(global, segment.row0);
    WEFT_CHECK(entries.len[i] == 0, "two segments of request {} under {}", i, token_split_name(options.split));
    entries.len[i] = segment.len;
    entries.seq_lens[i] = segment.kv_end;
  }
  return entries;
}

Entries entries_by_segment(const GlobalView& global, const std::vector<Segment>& own) {
  Entries entries;
  for (const Segment& segment : own) {
    entries.request.push_back(request_of_row(global, segment.row0));
    entries.len.push_back(segment.len);
    entries.seq_lens.push_back(segment.kv_end);
  }
  return entries;
}

LocalView local_view(const GlobalBatch& batch, const GlobalView& global, const ShardPlanOptions& options,
                     const std::vector<Segment>& own, int64_t tokens_per_rank) {
  const bool by_segment = options.split == TokenSplit::kZigzag && options.ranks > 1;
  Entries entries = by_segment ? entries_by_segment(global, own) : entries_by_request(batch, global, options, own);
  const std::vector<int64_t> request_row_start = prefix_sums(global.seq_lens);

  LocalView view;
  for (int64_t i : entries.request) view.kv_row_start.push_back(request_row_start[i]);
  view.query_start_loc = prefix_sums(entries.len);
  view.kv_extent = prefix_sums(entries.seq_lens);
  view.entry_request = std::move(entries.request);
  view.seq_lens = std::move(entries.seq_lens);

  for (const Segment& segment : own) {
    Segment local = segment;
    local.row0 = static_cast<int64_t>(view.rows.size());
    if (segment.kv_end > 0) view.segments.push_back(local);  // rows of padding requests see nothing
    for (int64_t j = 0; j < segment.len; ++j) {
      view.rows.push_back(segment.row0 + j);
      view.positions.push_back(segment.kv_end > 0 ? segment.first_position() + j : -1);
    }
  }
  view.rows.resize(tokens_per_rank, -1);
  view.positions.resize(tokens_per_rank, -1);
  return view;
}

bool is_identity(const std::vector<int64_t>& permutation) {
  for (size_t i = 0; i < permutation.size(); ++i) {
    if (permutation[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

Result<ShardPlan> ShardPlan::create(const GlobalBatch& batch, const ShardPlanOptions& options) {
  WEFT_ASSIGN_OR_RETURN(auto by_rank, split_tokens(batch, options.split, options.ranks));
  if (options.rank < 0 || options.rank >= options.ranks) {
    return invalid_argument(
        fmt::format("rank {} of a {} group of {}", options.rank, mesh_axis_name(options.axis), options.ranks));
  }
  return from_segments(batch, options, std::move(by_rank));
}

ShardPlan ShardPlan::from_segments(const GlobalBatch& batch, const ShardPlanOptions& options,
                                   std::vector<std::vector<Segment>> by_rank) {
  WEFT_CHECK(static_cast<int>(by_rank.size()) == options.ranks, "{} lists for {} ranks", by_rank.size(), options.ranks);
  ShardPlan plan;
  plan.options_ = options;
  plan.num_tokens_ = batch.num_tokens();
  plan.num_rows_ = batch.num_rows;
  for (const auto& segments : by_rank) {
    int64_t rows = 0;
    for (const Segment& segment : segments) rows += segment.len;
    plan.valid_.push_back(rows);
  }
  plan.tokens_per_rank_ = options.split == TokenSplit::kFlat || options.ranks == 1
                              ? ceil_div(batch.num_rows, options.ranks)
                              : *std::ranges::max_element(plan.valid_);

  plan.row_owner_.assign(plan.num_tokens_, -1);
  plan.restore_.assign(plan.num_tokens_, -1);
  plan.padded_restore_.assign(plan.num_tokens_, -1);
  int64_t gathered = 0;
  for (int r = 0; r < options.ranks; ++r) {
    int64_t local = 0;
    for (const Segment& segment : by_rank[r]) {
      for (int64_t row = segment.row0; row < segment.row0 + segment.len; ++row, ++local, ++gathered) {
        if (plan.row_owner_[row] >= 0) continue;  // a copy on a lower rank counts
        plan.row_owner_[row] = r;
        plan.restore_[row] = gathered;
        plan.padded_restore_[row] = r * plan.tokens_per_rank_ + local;
      }
    }
  }
  const auto uncovered = std::ranges::find(plan.row_owner_, -1);
  WEFT_CHECK(uncovered == plan.row_owner_.end(), "row {} is on no rank", uncovered - plan.row_owner_.begin());
  if (options.split == TokenSplit::kFlat || options.ranks == 1) {
    WEFT_CHECK(is_identity(plan.restore_) && is_identity(plan.padded_restore_), "a flat split out of order");
    plan.restore_.clear();
    plan.padded_restore_.clear();
  }

  plan.global_ = global_view(batch);
  plan.local_ = local_view(batch, plan.global_, options, by_rank[options.rank], plan.tokens_per_rank_);
  plan.by_rank_ = std::move(by_rank);
  return plan;
}

Status ShardPlan::check_equal_rows(std::string_view what) const {
  if (std::ranges::all_of(valid_, [&](int64_t rows) { return rows == valid_[0]; })) return {};
  return invalid_argument(
      fmt::format("{} needs the same number of rows on every rank, split={} of {} tokens gives [{}]; pad to "
                  "{} rows or exchange with counts",
                  what, token_split_name(split()), num_tokens_, fmt::join(valid_, " "), tokens_per_rank_));
}

}  // namespace weft
