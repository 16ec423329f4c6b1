#include "runtime/executor.h"

#include <algorithm>
#include <cstring>

namespace weft {

namespace {

// The part of a weight that a rank uses: the index-th of `size` equal ones along dimension `dim`. Nothing is copied.
TensorView slice_of(const TensorView& whole, int dim, int64_t index, int64_t size) {
  TensorView view = whole;
  int64_t& extent = view.type.shape[dim];
  extent /= size;
  const int64_t first = index * extent;
  if (!whole.parts.empty() && dim == 0) {
    view.parts = whole.parts.subspan(static_cast<size_t>(first), static_cast<size_t>(extent));
    return view;
  }
  const int rank = whole.shape().rank();
  if (!whole.parts.empty()) {  // the same rows of every part
    WEFT_CHECK(rank == 3 && dim == 1, "dimension {} of {}", dim, to_string(whole.type));
    view.row0 += first;
    return view;
  }
  TensorType before = whole.type;  // what lies in front of the slice's first element
  if (dim == 0) {
    before.shape[0] = first;
    if (rank == 2) view.row0 += first;
  } else {
    WEFT_CHECK(rank == 2 && dim == 1, "dimension {} of {}", dim, to_string(whole.type));
    before = {whole.dtype(), {first}};
    view.col0 += first;
    view.row_stride = whole.row_stride != 0 ? whole.row_stride : whole.shape()[1];
  }
  view.data = whole.as<std::byte>() + before.bytes();
  return view;
}

}  // namespace

Result<Executor> Executor::create(Graph graph, const Model& model, const DerivedWeights& derived,
                                  const CacheStore& caches, ThreadPool& pool, Isa isa, const RankContext& ranks) {
  Executor executor;
  executor.plan_ = plan_memory(graph, {pool.size()});
  executor.bound_.resize(graph.values().size());
  for (size_t id = 0; id < graph.values().size(); ++id) {
    const Value& value = graph.values()[id];
    if (value.role == ValueRole::kWeight) {
      WEFT_ASSIGN_OR_RETURN(executor.bound_[id], model.weight(value.name));
      for (int axis = 0; axis < kNumMeshAxes; ++axis) {
        const Placement& p = value.type.placement[axis];
        if (p.kind != Placement::Kind::kSharded) continue;
        executor.bound_[id] = slice_of(executor.bound_[id], p.dim, ranks.index[axis], ranks.size[axis]);
      }
    } else if (value.role == ValueRole::kDerived) {
      executor.bound_[id] = derived.view(value, ranks);
    } else if (value.role == ValueRole::kState) {
      executor.bound_[id] = caches.view(value.name);
    } else {
      continue;
    }
    WEFT_CHECK(executor.bound_[id].type == value.type.tensor, "'{}' is {}, the graph wants {}", value.name,
               to_string(executor.bound_[id].type), to_string(value.type));
  }
  executor.graph_ = std::move(graph);
  executor.pool_ = &pool;
  executor.ranks_ = &ranks;
  executor.isa_ = isa;
  return executor;
}

TensorView Executor::view_of(ValueId id, const StepBatch& batch, const RowSets* rows, std::byte* arena) const {
  if (plan_.value_offset[id] == MemoryPlan::kNotInArena) return bound_[id];
  TensorView view;
  const ValueType& type = graph_.value(id).type;
  view.type = type.tensor;
  view.data = arena + plan_.value_offset[id];
  if (type.rows == Rows::kReceived) view.type.shape[0] = received_rows_;
  if (type.rows != Rows::kTokens && type.rows != Rows::kLogits) return view;
  const RowSet set = row_set(type.placement);
  if (set == RowSet::kAll) {
    view.type.shape[0] =
        type.rows == Rows::kTokens ? batch.num_tokens() : static_cast<int64_t>(batch.logit_rows.size());
  } else {
    WEFT_CHECK(rows != nullptr, "'{}' is split over ranks", graph_.value(id).name);
    view.type.shape[0] = rows->of(type.rows, set).size();
  }
  return view;
}

TensorView Executor::value(std::string_view name, const StepBatch& batch, std::byte* arena) const {
  for (ValueId id :
       graph_.results()) {  // a result that was gathered has the name of what it was gathered from, and more
    const std::string& found = graph_.value(id).name;
    if (found == name || (found.starts_with(name) && found[name.size()] == '.'))
      return view_of(id, batch, nullptr, arena);
  }
  const ValueId id = graph_.find(name);
  WEFT_CHECK(id >= 0, "graph {} has no value '{}'", graph_.name(), name);
  return view_of(id, batch, nullptr, arena);
}

Status Executor::run(const StepBatch& batch, const RowSets& rows, std::span<const Input> inputs, std::byte* arena,
                     const RunWatch& watch) {
  const auto copy_in = [&](std::string_view name, const void* data, int64_t bytes) {
    const TensorView view = value(name, batch, arena);
    WEFT_CHECK(view.type.bytes() == bytes, "input '{}': {} bytes, expected {}", name, bytes, view.type.bytes());
    std::memcpy(view.data, data, bytes);
  };
  copy_in(kTokensInput, batch.tokens.data(), batch.num_tokens() * static_cast<int64_t>(sizeof(int32_t)));
  copy_in(kPositionsInput, batch.positions.data(), batch.num_tokens() * static_cast<int64_t>(sizeof(int32_t)));
  for (const Input& input : inputs) copy_in(input.name, input.view.data, input.view.type.bytes());

  Step step{batch, rows, arena, watch};
  for (size_t n = 0; n < graph_.nodes().size(); ++n) WEFT_RETURN_IF_ERROR(run_node(n, step));
  for (const Step::Started& one : step.started) WEFT_RETURN_IF_ERROR(finish(one, step));
  return {};
}

Status Executor::failed_at(const Node& node, const Status& status) const {
  const std::string where = node.out.empty() ? node.region : graph_.value(node.out[0]).name;
  return Status(status.code(), fmt::format("{} ({}): {}", where, op_name(node.op), status.message()));
}

void Executor::observe(const Node& node, std::span<const TensorView> out, const Step& step) const {
  for (size_t i = 0; step.watch.observer != nullptr && i < out.size(); ++i) {
    const ValueType& type = graph_.value(node.out[i]).type;
    const bool of_step = type.rows == Rows::kTokens || type.rows == Rows::kLogits;
    const RowSet set = of_step ? row_set(type.placement) : RowSet::kAll;
    (*step.watch.observer)(graph_.value(node.out[i]), out[i],
                           set == RowSet::kAll ? std::span<const int32_t>() : step.rows.of(type.rows, set).rows);
  }
}

Status Executor::finish(const Step::Started& one, const Step& step) {
  const Node& node = graph_.nodes()[one.node];
  OpTimer* timer = step.watch.timer;
  const auto start = timer != nullptr ? OpTimer::Clock::now() : OpTimer::Clock::time_point();
  if (const Status status = one.group->wait(one.request); !status.ok()) return failed_at(node, status);
  if (timer != nullptr) timer->add(graph_, node, OpTimer::Clock::now() - start, 0);
  const TensorView view = view_of(node.out[0], step.batch, &step.rows, step.arena);
  observe(node, {&view, 1}, step);
  return {};
}

Status Executor::finish_inputs(const Node& node, Step& step) {
  const auto used = [&](const Step::Started& one) {
    return std::find(node.in.begin(), node.in.end(), graph_.nodes()[one.node].out[0]) != node.in.end();
  };
  for (const Step::Started& one : step.started) {
    if (used(one)) WEFT_RETURN_IF_ERROR(finish(one, step));
  }
  std::erase_if(step.started, used);
  for (const Step::Started& one : step.started) one.group->progress();
  return {};
}

Status Executor::run_node(size_t n, Step& step) {
  const Node& node = graph_.nodes()[n];
  const StepBatch& batch = step.batch;
  const RowSets& rows = step.rows;
  const RunWatch& watch = step.watch;
  std::byte* const arena = step.arena;
  std::vector<TensorView>&in = step.in, &out = step.out;
  if (!step.started.empty()) WEFT_RETURN_IF_ERROR(finish_inputs(node, step));
  in.clear();
  out.clear();
  for (ValueId id : node.in) in.push_back(view_of(id, batch, &rows, arena));
  for (ValueId id : node.out) out.push_back(view_of(id, batch, &rows, arena));
  RunContext ctx{in,    out,    {arena + plan_.scratch_offset[n], static_cast<size_t>(plan_.scratch_bytes[n])},
                 batch, *pool_, isa_};
  ctx.ranks = ranks_;
  ctx.row_sets = &rows;
  ctx.received_rows = &received_rows_;
  if (!node.in.empty()) {
    ctx.rows = graph_.value(node.in[0]).type.rows;
    ctx.row_set = row_set(graph_.value(node.in[0]).type.placement);
  }
  if (node.in.size() > 1) ctx.key_row_set = row_set(graph_.value(node.in[1]).type.placement);
  for (ValueId id : node.in) {
    if (graph_.value(id).role == ValueRole::kState)
      ctx.cache_shard = cache_shard(graph_.value(id).type.placement, *ranks_);
    if (!ctx.cache_shard.whole()) break;
  }
  if (!node.out.empty()) {
    ctx.out_row_set = row_set(graph_.value(node.out[0]).type.placement);
    ctx.name = graph_.value(node.out[0]).name;
  } else {
    ctx.name = graph_.value(node.in.back()).name;  // the cache that it fills
  }
  if (watch.sent != nullptr) {
    std::visit([&](const auto& op) {
      if constexpr (requires { op.axis; op.size; }) (*watch.sent)[static_cast<size_t>(op.axis)] += op.bytes_sent(ctx);
    }, node.op);
  }
  const auto start = watch.timer != nullptr ? OpTimer::Clock::now() : OpTimer::Clock::time_point();
  // On the prefetch stream an op is only begun, if it can be.
  bool goes_on = false;
  const Status status = std::visit([&](const auto& op) -> Status {
    if constexpr (requires { op.start(ctx); }) {
      if (node.stream == Stream::kPrefetch) {
        WEFT_ASSIGN_OR_RETURN(const Communicator::Request request, op.start(ctx));
        step.started.push_back({n, ranks_->group_of(op.axis), request});
        goes_on = true;
        return {};
      }
    }
    return op.run(ctx);
  }, node.op);
  if (watch.timer != nullptr) watch.timer->add(graph_, node, OpTimer::Clock::now() - start);
  if (!status.ok()) return failed_at(node, status);
  // What the dispatch brought is known only now.
  if (std::holds_alternative<ExpertDispatch>(node.op)) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = view_of(node.out[i], batch, &rows, arena);
  }
  if (!goes_on) observe(node, out, step);
  return {};
}

}  // namespace weft
