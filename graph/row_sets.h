// Which rows of a step a rank holds of a value whose first dimension is split: the run-time side of a token placement.
//
// A row set is named by the axes that split it. Sets are nested: kPcpTp is a split of kPcp over tp, kPcp and kTp are splits of
// all rows. A rank's rows of a set stand in the order of `rows`; gathering over the axis that split last gives the rows of the
// set above.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/rank_context.h"
#include "graph/step_batch.h"
#include "graph/value_type.h"
#include "sharding/token_split.h"

namespace weft {

enum class RowSet { kAll, kTp, kPcp, kPcpTp };
inline constexpr int kNumRowSets = 4;

// The set that a value's placement names. The value's rows are kTokens or kLogits.
RowSet row_set(const Placements& placements);
// Placements of that set (dimension 0 sharded over its axes); other axes as in `placements`.
Placements with_row_set(const Placements& placements, RowSet set);
// The set above, and the axis that splits it. Not for kAll.
RowSet parent(RowSet set);
MeshAxis last_axis(RowSet set);
// Whether every row that a rank holds of `inner` is one that it holds of `outer`.
bool contains(RowSet outer, RowSet inner);

// Of an op that keeps rows in caches: whether the caches, like the rows, are those of the requests of each rank (split=owned).
// A state that is split so keeps the shape of the whole: every slot has its place on every rank, but only its owner fills it.
inline bool own_requests(const ValueType& rows, const ValueType& state) {
  return row_set(rows.placement) != RowSet::kAll && row_set(rows.placement) == row_set(state.placement);
}

// One set on one rank in one step.
struct RowSplit {
  std::vector<int32_t> rows;    // by local row: its index among all rows of the step
  std::vector<int32_t> local;   // by local row: its index among this rank's rows of the parent set
  std::vector<int64_t> counts;  // rows of each rank of the last axis's group
  std::vector<int32_t> order;   // by gathered row (rank after rank): its index in the parent set; empty: the same index
  std::vector<Segment> segments; // of the rows, row0 counted in local rows (tokens of kTp only)
  bool flat = false;            // equal blocks of consecutive rows, the last ones shorter (comm/bytes.h)
  bool unique = true;           // no row is on two ranks of the group (zigzag copies decode rows)

  int64_t size() const { return static_cast<int64_t>(rows.size()); }
};

// All sets of a step that the layout uses, of its rows and of the rows whose logits are wanted.
struct RowSets {
  std::array<RowSplit, kNumRowSets> tokens, logits;  // [kAll] unused

  const RowSplit& of(Rows kind, RowSet set) const {
    return (kind == Rows::kLogits ? logits : tokens)[static_cast<int>(set)];
  }
};

// How a layout splits the rows of its steps.
struct RowSetOptions {
  bool tp = false, pcp = false;                 // whether the sets that split over these axes are used
  TokenSplit tp_split = TokenSplit::kFlat;      // of kTp; kPcpTp is a flat split of kPcp
  TokenSplit pcp_split = TokenSplit::kFlat;

  bool operator==(const RowSetOptions&) const = default;
};

// The sets of one rank for a step. The same on all ranks of a group up to whose rows they are; no communication.
Result<RowSets> make_row_sets(const StepBatch& batch, const RowSetOptions& options, const RankContext& ranks);

}  // namespace weft
