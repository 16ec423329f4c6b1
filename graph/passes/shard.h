// The pass that turns the graph of one rank into the SPMD graph of a layout: weights and rows get placements, ops their local
// shapes, and collectives are inserted where a value does not lie as an op needs it.
//
// The layout is given as three decisions:
//   weights      which weight is split, along which axis and dimension: the ops that use it are split with it (its letter in
//                their shard_rule), and a split sum leaves a partial sum
//   residual     row set of the residual streams: ops on them (hyper-connections, the sum that is the stream, the norm behind it or
//                behind hc_pre) work on those rows
//   queries      row set of the queries: sparse attention, with the projections of single heads that follow it, and (selection)
//                the index selection work on those rows; what writes a cache works on all rows, or (writers) on those of the
//                requests that the rank owns; rows that are appended to a cache are made where the queries are, and gathered as
//                they are written
// All other ops follow: a linear layer or a norm works on the rows that its consumers need, an op without weights on the rows
// that it is given. So rows are gathered once, behind a norm, never as residual streams.
//
// expand(shard(g)) is the same for every layer: nothing looks at a layer's number.
#pragma once

#include <array>
#include <functional>
#include <optional>

#include "graph/graph.h"
#include "graph/row_sets.h"
#include "sharding/mesh.h"

namespace weft {

struct ShardOptions {
  MeshSizes mesh;
  // Where a weight lies; whole on all axes unless the layout splits it. Scales are asked for like weights.
  std::function<Placements(const Value& weight)> weight_placement;
  // Weights that are gathered whole before their use (streamed): their placement says what each rank holds.
  std::function<bool(const Value& weight)> gathered;
  // Appended caches whose entries lie on the dcp ranks in turn: written by their owners, fetched from them before attention, and
  // scored by them for the index selection. None: all of them are whole on every rank.
  std::function<bool(const Value& state)> split_entries;
  // Attention over them merges partial results of their owners instead of fetching entries: near the bits of one rank.
  bool merge_partials = false;
  RowSet writers = RowSet::kAll;  // rows of what writes caches; kTp: every rank has requests and caches of its own
  RowSet residual = RowSet::kAll;
  RowSet queries = RowSet::kAll;
  std::optional<RowSet> selection;  // rows of the index selection; none: those of the queries
  // Rows on which keys, and what entries are compressed of, are computed: then keys are gathered instead of what they are made of,
  // and entries are computed by the ranks that have the last row of their groups. None: those of the writers.
  std::optional<RowSet> keys;
  std::optional<RowSet> router;  // rows of the product that routing is made from; none: those of the experts that it feeds
  RowSet unique = RowSet::kAll;  // rows that no other rank of an expert group has
  bool canonical_sums = true;    // a sum over ranks follows its canonical tree; false: plans of other engines
  bool verified = true;          // the result is verified; false: for those who build many graphs of what is verified elsewhere
  // Most rows of each set in a step of this shape; [kAll] is the step's own capacity.
  std::array<int64_t, kNumRowSets> capacity{};
};

// Errors name the node and what cannot be split. One rank: the graph as it is.
Result<Graph> shard(const Graph& graph, const ShardOptions& options);

}  // namespace weft
