// What the tests of ops between ranks share: one rank of a group of threads, which runs an op as the executor does.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/thread_comm.h"
#include "graph/graph.h"
#include "graph/test_support.h"

namespace weft {

inline constexpr int64_t kSpare = 3;  // rows of room that a step leaves unused

inline Placements placed(MeshAxis axis, const Placement& placement) {
  Placements placements;
  placements[static_cast<size_t>(axis)] = placement;
  return placements;
}

// A value on one rank: room for all rows of its type, of which some are valid.
struct Piece {
  ValueType type;
  int64_t rows = 0;
  std::unique_ptr<GuardedBytes> memory;

  TensorView view() const {
    TensorView view{type.tensor, memory->data(), {}};
    view.type.shape[0] = rows;
    return view;
  }
  int64_t used() const { return view().type.bytes(); }
  std::vector<uint8_t> bytes() const {
    const auto* begin = reinterpret_cast<const uint8_t*>(memory->data());
    return {begin, begin + used()};
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(memory->data());
  }
};

inline Piece make_piece(DType dtype, Shape shape, Rows kind, const Placements& placements, int64_t rows) {
  Piece piece;
  piece.type = {{dtype, shape}, kind, placements};
  piece.rows = rows;
  piece.memory = std::make_unique<GuardedBytes>(piece.type.tensor.bytes());
  return piece;
}

// One rank of a test: a world that is the group of one axis.
class Rank {
 public:
  Rank(Communicator& comm, MeshAxis axis, const StepBatch& batch, const RowSetOptions& rows) : comm_(comm), batch_(batch) {
    const auto a = static_cast<size_t>(axis);
    ranks_.rank = ranks_.index[a] = comm.rank();
    ranks_.size[a] = comm.size();
    ranks_.group[a] = &comm;
    sets_ = *make_row_sets(batch, rows, ranks_);
  }

  int index() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  const RowSets& sets() const { return sets_; }
  // Bytes sent since the last call.
  int64_t bytes_sent() {
    const int64_t bytes = comm_.counters().bytes_sent();
    comm_.reset_counters();
    return bytes;
  }

  int64_t valid_rows(const ValueType& type) const {
    if (type.rows == Rows::kStatic) return type.shape()[0];
    if (type.rows == Rows::kReceived) return received_;
    const RowSet set = row_set(type.placement);
    if (set != RowSet::kAll) return sets_.of(type.rows, set).size();
    return type.rows == Rows::kTokens ? batch_.num_tokens() : static_cast<int64_t>(batch_.logit_rows.size());
  }

  Piece piece(DType dtype, Shape shape, Rows kind, const Placements& placements) const {
    Piece made = make_piece(dtype, shape, kind, placements, 0);
    made.rows = valid_rows(made.type);
    return made;
  }

  // As the executor runs a node. Only valid rows are written, all of them, and inputs stay as they are.
  std::vector<Piece> run(const Op& op, const std::vector<const Piece*>& in, Work* work = nullptr) {
    const std::vector<int> mutates = std::visit([](const auto& o) { return o.mutates(); }, op);
    Graph graph("test");
    std::vector<ValueId> ids;
    std::vector<TensorView> in_views, out_views;
    std::vector<std::vector<uint8_t>> before;
    for (const Piece* piece : in) {
      ids.push_back(*graph.add_value("in" + std::to_string(ids.size()), piece->type, ValueRole::kInput));
      in_views.push_back(piece->view());
      before.push_back(piece->bytes());
    }
    const auto out = graph.add_node(op, ids, "value");
    EXPECT_TRUE(out.ok()) << out.status().message();
    std::vector<Piece> pieces;
    if (!out.ok()) return pieces;
    const ValueTypes in_types = types_of(graph, ids), out_types = types_of(graph, *out);
    for (const ValueType& type : out_types) {
      pieces.push_back(make_piece(type.dtype(), type.shape(), type.rows, type.placement, 0));
      pieces.back().rows = valid_rows(type);
      if (type.rows == Rows::kReceived && std::holds_alternative<ExpertDispatch>(op)) pieces.back().rows = type.shape()[0];
      out_views.push_back(pieces.back().view());
    }
    const Work costs = std::visit([&](const auto& o) { return o.work(in_types, out_types, {pool_.size()}); }, op);
    if (work != nullptr) *work = costs;
    const GuardedBytes scratch(costs.scratch_bytes);
    RunContext ctx{in_views, out_views, {scratch.data(), static_cast<size_t>(scratch.size())}, batch_, pool_, max_isa()};
    ctx.ranks = &ranks_;
    ctx.row_sets = &sets_;
    ctx.rows = in_types[0].rows;
    ctx.row_set = row_set(in_types[0].placement);
    if (in.size() > 1) ctx.key_row_set = row_set(in_types[1].placement);
    if (!out_types.empty()) ctx.out_row_set = row_set(out_types[0].placement);
    for (const ValueType& type : in_types) {
      if (ctx.cache_shard.whole() && type.rows == Rows::kStatic) ctx.cache_shard = cache_shard(type.placement, ranks_);
    }
    ctx.name = "value";
    ctx.received_rows = &received_;
    const int64_t planned = std::visit([&](const auto& o) -> int64_t {
      if constexpr (requires { o.axis; o.size; }) return o.bytes_sent(ctx);
      return 0;
    }, op);
    const int64_t sent_before = comm_.counters().bytes_sent();
    const Status status = std::visit([&](const auto& o) { return o.run(ctx); }, op);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(comm_.counters().bytes_sent() - sent_before, planned) << op_name(op);
    for (Piece& piece : pieces) piece.rows = valid_rows(piece.type);
    EXPECT_TRUE(scratch.guards_intact()) << op_name(op);
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_TRUE(in[i]->memory->guards_intact()) << op_name(op) << " input " << i;
      if (std::find(mutates.begin(), mutates.end(), static_cast<int>(i)) != mutates.end()) continue;
      EXPECT_EQ(in[i]->bytes(), before[i]) << op_name(op) << " input " << i;
    }
    for (const Piece& piece : pieces) {
      EXPECT_TRUE(piece.memory->guards_intact()) << op_name(op);
      EXPECT_TRUE(piece.memory->poisoned(piece.used(), piece.memory->size() - piece.used())) << op_name(op) << " wrote a tail";
    }
    return pieces;
  }

 private:
  Communicator& comm_;
  const StepBatch& batch_;
  ThreadPool pool_{1};
  RankContext ranks_;
  RowSets sets_;
  int64_t received_ = 0;
};

// `body` on every rank of a world; expectations of several threads one after another.
inline void on_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  const RankRun run = run_thread_ranks(ranks, {}, [&](Communicator& comm) {
    body(comm);
    return Status();
  });
  EXPECT_TRUE(run.status.ok()) << run.status.message();
}

inline float element(const Piece& piece, int64_t i) {
  return piece.type.dtype() == DType::kF32 ? piece.as<float>()[i] : to_float(piece.as<bf16>()[i]);
}
inline void set_element(const Piece& piece, int64_t i, float value) {
  if (piece.type.dtype() == DType::kF32) {
    piece.as<float>()[i] = value;
  } else {
    piece.as<bf16>()[i] = to_bf16(value);
  }
}

}  // namespace weft
