#include "graph/row_sets.h"

#include <algorithm>

#include "base/check.h"
#include "comm/bytes.h"

namespace weft {
namespace {

bool splits_rows(const Placements& placements, MeshAxis axis) {
  return placements[static_cast<int>(axis)] == Placement::sharded(0);
}

}  // namespace

RowSet row_set(const Placements& placements) {
  const bool tp = splits_rows(placements, MeshAxis::kTp), pcp = splits_rows(placements, MeshAxis::kPcp);
  return pcp ? (tp ? RowSet::kPcpTp : RowSet::kPcp) : tp ? RowSet::kTp : RowSet::kAll;
}

Placements with_row_set(const Placements& placements, RowSet set) {
  Placements out = placements;
  const auto place = [&](MeshAxis axis, bool split) {
    Placement& p = out[static_cast<int>(axis)];
    if (split) {
      p = Placement::sharded(0);
    } else if (p == Placement::sharded(0)) {
      p = Placement::replicated();
    }
  };
  place(MeshAxis::kTp, set == RowSet::kTp || set == RowSet::kPcpTp);
  place(MeshAxis::kPcp, set == RowSet::kPcp || set == RowSet::kPcpTp);
  return out;
}

RowSet parent(RowSet set) {
  WEFT_CHECK(set != RowSet::kAll);
  return set == RowSet::kPcpTp ? RowSet::kPcp : RowSet::kAll;
}

MeshAxis last_axis(RowSet set) {
  WEFT_CHECK(set != RowSet::kAll);
  return set == RowSet::kPcp ? MeshAxis::kPcp : MeshAxis::kTp;
}

bool contains(RowSet outer, RowSet inner) {
  while (inner != outer && inner != RowSet::kAll) inner = parent(inner);
  return inner == outer;
}

namespace {

using Lists = std::vector<std::vector<int32_t>>;  // by rank of the group

// Lists hold indices into the parent set's rows, ascending within a rank.
RowSplit split_from(const Lists& by_rank, int rank, const std::vector<int32_t>* parent_rows) {
  RowSplit split;
  split.local = by_rank[static_cast<size_t>(rank)];
  for (int32_t i : split.local) split.rows.push_back(parent_rows == nullptr ? i : (*parent_rows)[static_cast<size_t>(i)]);
  std::vector<int32_t> gathered;
  for (const auto& list : by_rank) {
    split.counts.push_back(static_cast<int64_t>(list.size()));
    gathered.insert(gathered.end(), list.begin(), list.end());
  }
  bool in_order = true;
  for (size_t i = 0; i < gathered.size(); ++i) in_order = in_order && gathered[i] == static_cast<int32_t>(i);
  if (!in_order) split.order = gathered;
  const auto n = static_cast<int64_t>(by_rank.size()), total = static_cast<int64_t>(gathered.size());
  split.flat = in_order;
  for (int64_t r = 0; r < n; ++r) {
    const int64_t flat = first_row_of_rank(n, total, r + 1) - first_row_of_rank(n, total, r);
    split.flat = split.flat && split.counts[static_cast<size_t>(r)] == flat;
  }
  std::sort(gathered.begin(), gathered.end());
  split.unique = std::adjacent_find(gathered.begin(), gathered.end()) == gathered.end();
  return split;
}

Lists flat_lists(int64_t rows, int64_t n) {
  Lists lists(static_cast<size_t>(n));
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t i = first_row_of_rank(n, rows, r); i < first_row_of_rank(n, rows, r + 1); ++i) {
      lists[static_cast<size_t>(r)].push_back(static_cast<int32_t>(i));
    }
  }
  return lists;
}

using SegmentLists = std::vector<std::vector<Segment>>;

Result<SegmentLists> segment_lists(const StepBatch& batch, TokenSplit how, int ranks) {
  GlobalBatch global;
  for (const Segment& s : batch.segments) global.requests.push_back({s.request, s.len, s.kv_end, false});
  global.num_rows = batch.num_tokens();
  return split_tokens(global, how, ranks);
}

Lists token_lists(const SegmentLists& by_rank) {
  Lists lists(by_rank.size());
  for (size_t r = 0; r < by_rank.size(); ++r) {
    for (const Segment& s : by_rank[r]) {
      for (int64_t j = 0; j < s.len; ++j) lists[r].push_back(static_cast<int32_t>(s.row0 + j));
    }
  }
  return lists;
}

// By rank: which of `wanted` (rows of the step, ascending; all of them if null) lie among the rank's token rows.
Lists logit_lists(const StepBatch& batch, const Lists& tokens, const std::vector<int32_t>* token_parent, const RowSplit* parent) {
  Lists lists(tokens.size());
  const size_t count = parent == nullptr ? batch.logit_rows.size() : parent->rows.size();
  for (size_t r = 0; r < tokens.size(); ++r) {
    std::vector<int32_t> held;
    for (int32_t i : tokens[r]) held.push_back(token_parent == nullptr ? i : (*token_parent)[static_cast<size_t>(i)]);
    for (size_t i = 0; i < count; ++i) {
      const auto logit = static_cast<size_t>(parent == nullptr ? static_cast<int32_t>(i) : parent->rows[i]);
      if (std::binary_search(held.begin(), held.end(), batch.logit_rows[logit])) lists[r].push_back(static_cast<int32_t>(i));
    }
  }
  return lists;
}

}  // namespace

Result<RowSets> make_row_sets(const StepBatch& batch, const RowSetOptions& options, const RankContext& ranks) {
  RowSets sets;
  const int tp = ranks.index_of(MeshAxis::kTp), pcp = ranks.index_of(MeshAxis::kPcp);
  const int tp_size = ranks.size_of(MeshAxis::kTp), pcp_size = ranks.size_of(MeshAxis::kPcp);
  const auto fill = [&](RowSet set, const Lists& tokens, int rank, RowSet above) {
    const RowSplit* token_parent = above == RowSet::kAll ? nullptr : &sets.tokens[static_cast<size_t>(above)];
    const RowSplit* logit_parent = above == RowSet::kAll ? nullptr : &sets.logits[static_cast<size_t>(above)];
    const std::vector<int32_t>* parent_rows = token_parent == nullptr ? nullptr : &token_parent->rows;
    sets.tokens[static_cast<size_t>(set)] = split_from(tokens, rank, parent_rows);
    sets.logits[static_cast<size_t>(set)] = split_from(logit_lists(batch, tokens, parent_rows, logit_parent), rank,
                                                       logit_parent == nullptr ? nullptr : &logit_parent->rows);
  };
  if (options.tp && tp_size > 1) {
    WEFT_ASSIGN_OR_RETURN(const SegmentLists segments, segment_lists(batch, options.tp_split, tp_size));
    fill(RowSet::kTp, token_lists(segments), tp, RowSet::kAll);
    RowSplit& split = sets.tokens[static_cast<size_t>(RowSet::kTp)];
    split.segments = segments[static_cast<size_t>(tp)];
    int64_t row = 0;
    for (Segment& s : split.segments) {
      s.row0 = row;
      row += s.len;
    }
  }
  if (options.pcp && pcp_size > 1) {
    WEFT_ASSIGN_OR_RETURN(const SegmentLists segments, segment_lists(batch, options.pcp_split, pcp_size));
    fill(RowSet::kPcp, token_lists(segments), pcp, RowSet::kAll);
    if (options.tp && tp_size > 1) {
      fill(RowSet::kPcpTp, flat_lists(sets.tokens[static_cast<size_t>(RowSet::kPcp)].size(), tp_size), tp, RowSet::kPcp);
    }
  }
  return sets;
}

}  // namespace weft
