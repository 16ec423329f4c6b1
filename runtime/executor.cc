#include "runtime/executor.h"

#include <cstring>

namespace weft {

Result<Executor> Executor::create(Graph graph, const Model& model, const CacheStore& caches, ThreadPool& pool, Isa isa) {
  Executor executor;
  executor.plan_ = plan_memory(graph, {pool.size()});
  executor.bound_.resize(graph.values().size());
  for (size_t id = 0; id < graph.values().size(); ++id) {
    const Value& value = graph.values()[id];
    if (value.role == ValueRole::kWeight) {
      WEFT_ASSIGN_OR_RETURN(executor.bound_[id], model.weight(value.name));
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
  executor.isa_ = isa;
  return executor;
}

TensorView Executor::view_of(ValueId id, const StepBatch& batch, std::byte* arena) const {
  if (plan_.value_offset[id] == MemoryPlan::kNotInArena) return bound_[id];
  TensorView view;
  view.type = graph_.value(id).type.tensor;
  view.data = arena + plan_.value_offset[id];
  if (graph_.value(id).type.rows == Rows::kTokens) view.type.shape[0] = batch.num_tokens();
  if (graph_.value(id).type.rows == Rows::kLogits) view.type.shape[0] = static_cast<int64_t>(batch.logit_rows.size());
  return view;
}

TensorView Executor::value(std::string_view name, const StepBatch& batch, std::byte* arena) const {
  const ValueId id = graph_.find(name);
  WEFT_CHECK(id >= 0, "graph {} has no value '{}'", graph_.name(), name);
  return view_of(id, batch, arena);
}

Status Executor::run(const StepBatch& batch, std::span<const Input> inputs, std::byte* arena, const ValueObserver* observer) {
  const auto copy_in = [&](std::string_view name, const void* data, int64_t bytes) {
    const TensorView view = value(name, batch, arena);
    WEFT_CHECK(view.type.bytes() == bytes, "input '{}': {} bytes, expected {}", name, bytes, view.type.bytes());
    std::memcpy(view.data, data, bytes);
  };
  copy_in(kTokensInput, batch.tokens.data(), batch.num_tokens() * static_cast<int64_t>(sizeof(int32_t)));
  copy_in(kPositionsInput, batch.positions.data(), batch.num_tokens() * static_cast<int64_t>(sizeof(int32_t)));
  for (const Input& input : inputs) copy_in(input.name, input.view.data, input.view.type.bytes());

  std::vector<TensorView> in, out;
  for (size_t n = 0; n < graph_.nodes().size(); ++n) {
    const Node& node = graph_.nodes()[n];
    in.clear();
    out.clear();
    for (ValueId id : node.in) in.push_back(view_of(id, batch, arena));
    for (ValueId id : node.out) out.push_back(view_of(id, batch, arena));
    RunContext ctx{in, out, {arena + plan_.scratch_offset[n], static_cast<size_t>(plan_.scratch_bytes[n])}, batch, *pool_, isa_};
    const Status status = std::visit([&](const auto& op) { return op.run(ctx); }, node.op);
    if (!status.ok()) {
      const std::string where = node.out.empty() ? node.region : graph_.value(node.out[0]).name;
      return Status(status.code(), fmt::format("{} ({}): {}", where, op_name(node.op), status.message()));
    }
    if (observer != nullptr) {
      for (size_t i = 0; i < out.size(); ++i) (*observer)(graph_.value(node.out[i]), out[i]);
    }
  }
  return {};
}

}  // namespace weft
