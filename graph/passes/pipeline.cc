#include "graph/passes/pipeline.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace weft {
namespace {

constexpr int kEverywhere = -1;

std::optional<int64_t> layer_of(const std::string& region) {
  constexpr std::string_view kPrefix = "layers.";
  if (!region.starts_with(kPrefix)) return std::nullopt;
  int64_t layer = 0;
  const char* begin = region.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, region.data() + region.size(), layer);
  return error == std::errc() && end != begin ? std::optional(layer) : std::nullopt;
}

// By node: its stage, or kEverywhere.
std::vector<int> assign(const Graph& graph, std::span<const int64_t> begins) {
  const auto stages = static_cast<int>(begins.size());
  const bool layers = std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) { return layer_of(node.region).has_value(); });
  std::vector<int> stage_of_value(graph.values().size(), kEverywhere);
  std::vector<int> stage_of_node;
  for (const Node& node : graph.nodes()) {
    bool own = false;  // weights or states
    int fed_by = kEverywhere;
    for (ValueId id : node.in) {
      const ValueRole role = graph.value(id).role;
      own = own || is_weight(role) || role == ValueRole::kState;
      fed_by = std::max(fed_by, stage_of_value[static_cast<size_t>(id)]);
    }
    int stage = kEverywhere;
    if (const auto layer = layer_of(node.region); layer && (own || fed_by != kEverywhere)) {
      stage = static_cast<int>(std::upper_bound(begins.begin(), begins.end(), *layer) - begins.begin()) - 1;
    } else if (!layers || fed_by != kEverywhere) {
      stage = stages - 1;
    } else if (own) {
      stage = 0;
    }
    // Outside of the layers what is fed by the first stage alone (slices of the embedding) stays there.
    if (!layer_of(node.region) && layers && fed_by == 0 && !own) stage = 0;
    stage_of_node.push_back(stage);
    for (ValueId id : node.out) stage_of_value[static_cast<size_t>(id)] = stage;
  }
  return stage_of_node;
}

// Values that nodes of `stage` take from others, in the order of their first use; `made_in`: by value.
Result<std::vector<ValueId>> received_by(const Graph& graph, const std::vector<int>& stage_of_node, const std::vector<int>& made_in,
                                         int stage) {
  std::vector<ValueId> ids;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (stage_of_node[n] != stage) continue;
    for (ValueId id : graph.nodes()[n].in) {
      const int from = made_in[static_cast<size_t>(id)];
      if (graph.value(id).role != ValueRole::kActivation || from == kEverywhere || from == stage) continue;
      if (from != stage - 1) {
        return invalid_argument(fmt::format("'{}' is made in pipeline stage {} and used in stage {}: only neighbours exchange values",
                                            graph.value(id).name, from, stage));
      }
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
  }
  return ids;
}

}  // namespace

Result<StageGraph> pipeline_stage(const Graph& graph, int stage, std::span<const int64_t> begins, bool verified) {
  const auto stages = static_cast<int>(begins.size());
  const std::vector<int> stage_of_node = assign(graph, begins);
  std::vector<int> made_in(graph.values().size(), kEverywhere);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    for (ValueId id : graph.nodes()[n].out) made_in[static_cast<size_t>(id)] = stage_of_node[n];
  }
  WEFT_ASSIGN_OR_RETURN(const auto received, received_by(graph, stage_of_node, made_in, stage));
  std::vector<ValueId> sent;
  if (stage + 1 < stages) {
    WEFT_ASSIGN_OR_RETURN(sent, received_by(graph, stage_of_node, made_in, stage + 1));
  }

  // A result that no stage makes (an input, or what every stage can make) is one of the last stage, as the others are.
  std::vector<ValueId> results;
  for (ValueId id : graph.results()) {
    const int from = made_in[static_cast<size_t>(id)];
    if ((from == kEverywhere ? stages - 1 : from) == stage) results.push_back(id);
  }

  // Backwards: nodes of the stage, and those of everywhere that it needs.
  std::vector<bool> needed(graph.values().size(), false), kept(graph.nodes().size(), false);
  for (ValueId id : results) needed[static_cast<size_t>(id)] = true;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    const Node& node = graph.nodes()[n];
    kept[n] = stage_of_node[n] == stage;
    for (ValueId id : node.out) kept[n] = kept[n] || (stage_of_node[n] == kEverywhere && needed[static_cast<size_t>(id)]);
    if (!kept[n]) continue;
    for (ValueId id : node.in) needed[static_cast<size_t>(id)] = true;
  }

  StageGraph out{Graph(graph.name()), {}, {}};
  std::vector<ValueId> now(graph.values().size(), -1);
  for (size_t id = 0; id < graph.values().size(); ++id) {
    const Value& value = graph.values()[id];
    const bool take = value.role == ValueRole::kInput ||
                      (value.role != ValueRole::kActivation && needed[id]);
    if (!take) continue;
    WEFT_ASSIGN_OR_RETURN(now[id], out.graph.add_value(value.name, value.type, value.role));
  }
  for (ValueId id : received) {
    const Value& value = graph.value(id);
    WEFT_ASSIGN_OR_RETURN(now[static_cast<size_t>(id)], out.graph.add_value(value.name, value.type, ValueRole::kInput));
    out.received.push_back(value.name);
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (!kept[n]) continue;
    const Node& node = graph.nodes()[n];
    std::vector<ValueId> in;
    for (ValueId id : node.in) in.push_back(now[static_cast<size_t>(id)]);
    const std::string name = node.out.empty() ? "" : graph.value(node.out[0]).name;
    WEFT_ASSIGN_OR_RETURN(const auto made, out.graph.add_node(node.op, std::move(in), name, node.region, node.stream));
    for (size_t i = 0; i < made.size(); ++i) now[static_cast<size_t>(node.out[i])] = made[i];
  }
  for (ValueId id : results) out.graph.mark_result(now[static_cast<size_t>(id)]);
  for (ValueId id : sent) {
    out.graph.mark_result(now[static_cast<size_t>(id)]);
    out.sent.push_back(graph.value(id).name);
  }
  if (verified) WEFT_RETURN_IF_ERROR(verify(out.graph));
  return out;
}

}  // namespace weft
