#include "graph/graph.h"

#include <array>
#include <unordered_set>

#include "graph/row_sets.h"

namespace weft {

const Value& Graph::value(ValueId id) const {
  WEFT_CHECK(0 <= id && id < static_cast<ValueId>(values_.size()), "value {} of {}", id, values_.size());
  return values_[id];
}

ValueId Graph::find(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? -1 : at->second;
}

std::vector<ValueType> types_of(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<ValueType> types;
  types.reserve(ids.size());
  for (ValueId id : ids) types.push_back(graph.value(id).type);
  return types;
}

Result<ValueId> Graph::add_value(std::string name, ValueType type, ValueRole role) {
  by_name_.emplace(name, static_cast<ValueId>(values_.size()));
  values_.push_back({std::move(name), type, role});
  return static_cast<ValueId>(values_.size() - 1);
}

namespace {

// Types and placements of a node's outputs.
Result<ValueTypes> infer_outputs(const Op& op, TypeSpan in) {
  return std::visit(
      [&](const auto& o) -> Result<ValueTypes> {
        WEFT_ASSIGN_OR_RETURN(ValueTypes types, o.infer(in));
        const auto place = [&]() -> Result<std::vector<Placements>> {
          if constexpr (requires { o.placements(in); }) {
            return o.placements(in);
          } else {
            return apply_shard_rule(o.shard_rule(in), in);
          }
        };
        WEFT_ASSIGN_OR_RETURN(const auto placements, place());
        WEFT_CHECK(placements.size() == types.size(), "{}: shard_rule has {} outputs, infer {}", o.kName,
                   placements.size(), types.size());
        for (size_t i = 0; i < types.size(); ++i) types[i].placement = placements[i];
        return types;
      },
      op);
}

}  // namespace

Result<std::vector<ValueId>> Graph::add_node(Op op, std::vector<ValueId> in, std::string name, std::string region,
                                             Stream stream) {
  const std::vector<ValueType> in_types = types_of(*this, in);
  auto types = infer_outputs(op, in_types);
  if (!types.ok()) {
    return invalid_argument(fmt::format("graph {}: node '{}' ({}): {}", name_, name, op_name(op), types.status().message()));
  }
  Node node{std::move(op), std::move(in), {}, std::move(region), stream};
  for (size_t i = 0; i < types->size(); ++i) {
    node.out.push_back(static_cast<ValueId>(values_.size()));
    std::string value_name = i == 0 ? name : fmt::format("{}.{}", name, i);
    by_name_.emplace(value_name, node.out.back());
    values_.push_back({std::move(value_name), (*types)[i], ValueRole::kActivation});
  }
  nodes_.push_back(std::move(node));
  return nodes_.back().out;
}

Status verify(const Graph& graph) {
  const auto error = [&](const std::string& what) { return invalid_argument(fmt::format("graph {}: {}", graph.name(), what)); };
  std::unordered_set<std::string_view> names;
  std::vector<bool> ready(graph.values().size(), false);
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const Value& value = graph.values()[i];
    if (!names.insert(value.name).second) return error(fmt::format("two values are named '{}'", value.name));
    ready[i] = value.role != ValueRole::kActivation;
  }
  for (const Node& node : graph.nodes()) {
    for (ValueId id : node.in) {
      if (id < 0 || id >= static_cast<ValueId>(ready.size())) return error(fmt::format("input {} does not exist", id));
      if (!ready[id]) return error(fmt::format("'{}' is used before it is made", graph.value(id).name));
    }
    const std::vector<ValueType> in_types = types_of(graph, node.in);
    auto types = infer_outputs(node.op, in_types);
    const std::string label = node.out.empty() ? std::string(op_name(node.op)) : graph.value(node.out[0]).name;
    if (!types.ok()) return error(fmt::format("node '{}': {}", label, types.status().message()));
    if (types_of(graph, node.out) != *types) return error(fmt::format("node '{}' has outputs of another type than its op gives", label));
    for (int index : std::visit([](const auto& op) { return op.mutates(); }, node.op)) {
      if (graph.value(node.in[index]).role != ValueRole::kState) {
        return error(fmt::format("node '{}' changes '{}', which is not a state", label, graph.value(node.in[index]).name));
      }
    }
    for (ValueId id : node.out) ready[id] = true;
  }
  for (ValueId id : graph.results()) {
    for (const Placement& p : graph.value(id).type.placement) {
      if (p.kind == Placement::Kind::kPartial) return error(fmt::format("result '{}' is a partial sum", graph.value(id).name));
    }
  }
  return {};
}

Status verify(const Graph& graph, const MeshSizes& mesh) {
  WEFT_RETURN_IF_ERROR(verify(graph));
  const auto error = [&](const std::string& what) { return invalid_argument(fmt::format("graph {}: {}", graph.name(), what)); };
  constexpr std::array<std::string_view, kNumRowSets> kSetNames = {"all rows", "rows split over tp", "rows split over pcp",
                                                                   "rows split over pcp and tp"};
  std::array<const Value*, kNumRowSets> first{};
  const auto rows_of = [](const Value* value) { return value->type.shape()[0]; };
  for (const Value& value : graph.values()) {
    for (int axis = 0; axis < kNumMeshAxes; ++axis) {
      if (value.type.placement[axis].kind != Placement::Kind::kReplicated && mesh.size(static_cast<MeshAxis>(axis)) == 1) {
        return error(fmt::format("'{}' is {}, but {} has 1 rank", value.name, to_string(value.type),
                                 mesh_axis_name(static_cast<MeshAxis>(axis))));
      }
    }
    if (value.type.rows != Rows::kTokens || value.type.shape().rank() == 0) continue;
    const auto set = static_cast<size_t>(row_set(value.type.placement));
    if (first[set] == nullptr) first[set] = &value;
    if (rows_of(&value) != rows_of(first[set])) {
      return error(fmt::format("'{}' has room for {} of {}, '{}' for {}", value.name, rows_of(&value), kSetNames[set],
                               first[set]->name, rows_of(first[set])));
    }
  }
  for (const RowSet set : {RowSet::kTp, RowSet::kPcp, RowSet::kPcpTp}) {
    const Value *inner = first[static_cast<size_t>(set)], *outer = first[static_cast<size_t>(parent(set))];
    if (inner == nullptr || outer == nullptr || rows_of(inner) <= rows_of(outer)) continue;
    return error(fmt::format("'{}' has room for {} of {}, '{}' only for {} of {}", inner->name, rows_of(inner),
                             kSetNames[static_cast<size_t>(set)], outer->name, rows_of(outer),
                             kSetNames[static_cast<size_t>(parent(set))]));
  }
  for (const Node& node : graph.nodes()) {
    Status status;
    std::visit(
        [&](const auto& op) {
          if constexpr (requires { op.axis; op.size; }) {
            if (op.size == mesh.size(op.axis)) return;
            status = error(fmt::format("node '{}' ({}): a group of {}, but {} has {} ranks",
                                       node.out.empty() ? std::string() : graph.value(node.out[0]).name, op.kName, op.size,
                                       mesh_axis_name(op.axis), mesh.size(op.axis)));
          }
        },
        node.op);
    WEFT_RETURN_IF_ERROR(status);
  }
  return {};
}

}  // namespace weft
