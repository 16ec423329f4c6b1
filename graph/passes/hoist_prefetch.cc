#include "graph/passes/hoist_prefetch.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace weft {
namespace {

// Nodes in their new order.
std::vector<size_t> hoisted_order(const Graph& graph) {
  const auto& nodes = graph.nodes();
  std::unordered_map<std::string_view, std::vector<size_t>> prefetches;  // by region
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (nodes[n].stream == Stream::kPrefetch && !nodes[n].region.empty()) prefetches[nodes[n].region].push_back(n);
  }
  std::vector<bool> made(graph.values().size()), placed(nodes.size(), false);
  for (size_t id = 0; id < made.size(); ++id) made[id] = graph.values()[id].role != ValueRole::kActivation;
  std::vector<size_t> order;
  const auto place = [&](size_t n) {
    order.push_back(n);
    placed[n] = true;
    for (ValueId id : nodes[n].out) made[static_cast<size_t>(id)] = true;
  };
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (const auto at = prefetches.find(nodes[n].region); at != prefetches.end()) {
      for (const size_t p : at->second) {
        const auto& in = nodes[p].in;
        if (std::all_of(in.begin(), in.end(), [&](ValueId id) { return made[static_cast<size_t>(id)]; })) place(p);
      }
      prefetches.erase(at);
    }
    if (!placed[n]) place(n);
  }
  return order;
}

}  // namespace

Result<Graph> hoist_prefetch(const Graph& graph, bool verified) {
  Graph out(graph.name());
  std::vector<ValueId> now(graph.values().size(), -1);
  for (size_t id = 0; id < graph.values().size(); ++id) {
    const Value& value = graph.values()[id];
    if (value.role == ValueRole::kActivation) continue;
    WEFT_ASSIGN_OR_RETURN(now[id], out.add_value(value.name, value.type, value.role));
  }
  for (const size_t n : hoisted_order(graph)) {
    const Node& node = graph.nodes()[n];
    std::vector<ValueId> in;
    for (ValueId id : node.in) in.push_back(now[static_cast<size_t>(id)]);
    const std::string name = node.out.empty() ? "" : graph.value(node.out[0]).name;
    WEFT_ASSIGN_OR_RETURN(const auto made, out.add_node(node.op, std::move(in), name, node.region, node.stream));
    for (size_t i = 0; i < made.size(); ++i) now[static_cast<size_t>(node.out[i])] = made[i];
  }
  for (ValueId id : graph.results()) out.mark_result(now[static_cast<size_t>(id)]);
  if (verified) WEFT_RETURN_IF_ERROR(verify(out));
  return out;
}

}  // namespace weft
