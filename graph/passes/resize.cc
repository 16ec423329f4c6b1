#include "graph/passes/resize.h"

#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

namespace weft {
namespace {

// Finds equals among what was kept before.
template <class T>
class Numbering {
 public:
  // equal(kept number) compares with what is looked for; add: keeps it.
  template <class Equal>
  int32_t find_or_add(size_t hash, T item, Equal&& equal) {
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto at = begin; at != end; ++at) {
      if (equal(items_[static_cast<size_t>(at->second)])) return at->second;
    }
    items_.push_back(std::move(item));
    const auto number = static_cast<int32_t>(items_.size()) - 1;
    by_hash_.emplace(hash, number);
    return number;
  }
  const T& operator[](int32_t number) const { return items_[static_cast<size_t>(number)]; }

 private:
  std::vector<T> items_;
  std::unordered_multimap<size_t, int32_t> by_hash_;
};

size_t mix(size_t seed, size_t value) { return (seed ^ value) * 0x9E3779B97F4A7C15u + (seed >> 29); }

size_t hash_of(const ValueType& type) {
  size_t hash = static_cast<size_t>(type.dtype()) * 31 + static_cast<size_t>(type.rows);
  for (const int64_t dim : type.shape().dims()) hash = mix(hash, static_cast<size_t>(dim));
  for (const Placement& p : type.placement) hash = mix(hash, static_cast<size_t>(p.kind) * 8 + static_cast<size_t>(p.dim));
  return hash;
}

// A kind of value: equal kinds have equal types in all sizes. What a type does not tell of that is `source`: whether a state has slots
// or pages, and by which kind of node a value is made whose first dimension is no row set of the step.
struct ValueKind {
  ValueType type;
  ValueRole role;
  int32_t source;
};

struct NodeKind {
  int32_t first;           // node
  std::vector<int32_t> in; // kinds of its inputs
};

}  // namespace

SizeFreeFacts size_free_facts(const Graph& graph, std::span<const CacheSpec> caches) {
  SizeFreeFacts facts;
  std::unordered_map<std::string_view, CacheKind> kinds;
  for (const CacheSpec& spec : caches) kinds.emplace(spec.name, spec.kind);
  Numbering<ValueKind> value_kinds;
  Numbering<NodeKind> node_kinds;
  std::vector<int32_t> kind_of(graph.values().size());
  const auto number = [&](const ValueType& type, ValueRole role, int32_t source) {
    return value_kinds.find_or_add(mix(hash_of(type), static_cast<size_t>(source)), {type, role, source},
                                   [&](const ValueKind& k) { return k.role == role && k.source == source && k.type == type; });
  };
  facts.caches.assign(graph.values().size(), CacheKind::kRing);
  for (size_t id = 0; id < graph.values().size(); ++id) {
    const Value& value = graph.values()[id];
    if (value.role == ValueRole::kActivation) continue;
    if (value.role == ValueRole::kState) {
      const auto at = kinds.find(value.name);
      WEFT_CHECK(at != kinds.end(), "state '{}' is no cache of the model", value.name);
      facts.caches[id] = at->second;
    }
    kind_of[id] = number(value.type, value.role, static_cast<int32_t>(facts.caches[id]));
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    NodeKind kind{static_cast<int32_t>(n), {}};
    size_t hash = node.op.index();
    for (const ValueId id : node.in) {
      kind.in.push_back(kind_of[static_cast<size_t>(id)]);
      hash = mix(hash, static_cast<size_t>(kind.in.back()));
    }
    const auto equal = [&](const NodeKind& k) {
      const Node& first = graph.nodes()[static_cast<size_t>(k.first)];
      return k.in == kind.in && first.stream == node.stream && first.op == node.op && first.out.size() == node.out.size();
    };
    const int32_t made_by = node_kinds.find_or_add(hash, kind, equal);
    facts.alike.push_back(node_kinds[made_by].first);
    for (const ValueId id : node.out) {
      const ValueType& type = graph.value(id).type;
      const bool of_step = type.rows == Rows::kTokens || type.rows == Rows::kLogits;
      kind_of[static_cast<size_t>(id)] = number(type, ValueRole::kActivation, of_step ? -1 : made_by);
    }
  }
  return facts;
}

namespace {

// Room for rows that the op itself names.
void give_room(Op& op, TypeSpan in, const ValueType& out, const StepRoom& room) {
  std::visit(
      [&]<class T>(T& o) {
        if constexpr (std::is_same_v<T, ExpertDispatch>) {
          o.capacity = o.capacity_for(in);
        } else if constexpr (std::is_same_v<T, FetchEntries>) {
          o.capacity = o.capacity_for(in, room.tokens[static_cast<size_t>(RowSet::kAll)]);
        } else if constexpr (requires { o.capacity; }) {
          if (out.rows == Rows::kTokens) o.capacity = room.tokens[static_cast<size_t>(row_set(out.placement))];
          if (out.rows == Rows::kLogits) o.capacity = room.logits;
        }
      },
      op);
}

bool names_room(const Op& op) {
  return std::visit([](const auto& o) { return requires { o.capacity; }; }, op);
}

}  // namespace

Status resize(Graph& graph, const StepRoom& room, const SizeFreeFacts& facts) {
  for (size_t i = 0; i < graph.values().size(); ++i) {
    const Value& value = graph.values()[i];
    if (value.role != ValueRole::kInput && value.role != ValueRole::kState) continue;
    TensorType type = value.type.tensor;
    if (value.role == ValueRole::kState) {
      type.shape[0] = facts.caches[i] == CacheKind::kAppend ? room.num_pages : room.num_slots;
    } else if (value.type.rows == Rows::kTokens) {
      type.shape[0] = room.tokens[static_cast<size_t>(row_set(value.type.placement))];
    } else if (value.type.rows == Rows::kLogits) {
      type.shape[0] = room.logits;
    }
    graph.set_type(static_cast<ValueId>(i), type);
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    const auto first = static_cast<size_t>(facts.alike[n]);
    if (first != n) {
      const Node& same = graph.nodes()[first];
      if (names_room(node.op)) graph.set_op(n, same.op);
      for (size_t i = 0; i < node.out.size(); ++i) graph.set_type(node.out[i], graph.value(same.out[i]).type.tensor);
      continue;
    }
    const std::vector<ValueType> in = types_of(graph, node.in);
    if (names_room(node.op)) {
      Op op = node.op;
      give_room(op, in, graph.value(node.out[0]).type, room);
      graph.set_op(n, std::move(op));
    }
    const Result<ValueTypes> types = std::visit([&](const auto& op) { return op.infer(in); }, node.op);
    if (!types.ok()) {
      const std::string name = node.out.empty() ? std::string(op_name(node.op)) : graph.value(node.out[0]).name;
      return invalid_argument(fmt::format("graph {}: node '{}': {}", graph.name(), name, types.status().message()));
    }
    for (size_t i = 0; i < node.out.size(); ++i) graph.set_type(node.out[i], (*types)[i].tensor);
  }
  return {};
}

}  // namespace weft
