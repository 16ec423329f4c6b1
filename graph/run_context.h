// What an op gets when it runs: views of its inputs and outputs (first dimension = valid rows), scratch of the size that
// work() asked for, the batch of the step, and the means of this rank. Ops never allocate.
#pragma once

#include <span>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "graph/rank_context.h"
#include "graph/row_sets.h"
#include "graph/step_batch.h"
#include "sharding/dcp.h"
#include "tensor/tensor.h"

namespace weft {

// The part of an appended cache that a rank holds: entries are split over dcp, in turn (placement shard(1)), or whole.
inline CacheShard cache_shard(const Placements& placements, const RankContext& ranks) {
  constexpr auto kDcp = static_cast<size_t>(MeshAxis::kDcp);
  if (placements[kDcp] != Placement::sharded(1)) return {};
  return {{1, ranks.size[kDcp]}, ranks.index[kDcp]};
}

struct RunContext {
  std::span<const TensorView> in;
  std::span<const TensorView> out;
  std::span<std::byte> scratch;  // 64-byte aligned
  const StepBatch& batch;
  ThreadPool& pool;
  Isa isa;
  // Where rows are split over ranks, and for ops that reach other ranks.
  const RankContext* ranks = nullptr;
  const RowSets* row_sets = nullptr;
  Rows rows = Rows::kTokens;          // of input 0
  RowSet row_set = RowSet::kAll;      // of input 0
  RowSet key_row_set = RowSet::kAll;  // of input 1
  RowSet out_row_set = RowSet::kAll;  // of output 0
  CacheShard cache_shard = {};        // of the appended caches among the inputs
  std::string_view name = {};         // of output 0, or of the cache: what errors of collectives call the value
  int64_t* received_rows = nullptr;   // set by expert_dispatch: rows of kReceived values from now on

  // Requests of the rows of input 0, row0 counted in these rows.
  std::span<const Segment> segments() const {
    return row_set == RowSet::kAll ? std::span<const Segment>(batch.segments) : row_sets->of(Rows::kTokens, row_set).segments;
  }
  // Row of the batch that row t of input 0 is.
  int64_t batch_row(int64_t t) const {
    return row_set == RowSet::kAll ? t : row_sets->of(Rows::kTokens, row_set).rows[static_cast<size_t>(t)];
  }
};

}  // namespace weft
