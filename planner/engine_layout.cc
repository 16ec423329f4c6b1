#include "planner/engine_layout.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace weft {

bool has_dsa_structure(const Graph& graph) {
  std::vector<bool> selected(graph.values().size(), false);  // made by an index selection
  for (const Node& node : graph.nodes()) {
    if (std::holds_alternative<IndexTopK>(node.op)) selected[static_cast<size_t>(node.out[0])] = true;
    const SparseAttention* attention = std::get_if<SparseAttention>(&node.op);
    if (attention == nullptr) continue;
    const SparseAttention::Inputs at = attention->inputs(node.in.size());
    if (at.picks < 0 || at.entries < 0 || !selected[static_cast<size_t>(node.in[static_cast<size_t>(at.picks)])])
      continue;
    const int64_t heads = graph.value(node.in[0]).type.shape()[1], values = graph.value(node.out[0]).type.shape()[2];
    if (heads > 1 && values <= graph.value(node.in[static_cast<size_t>(at.entries)]).type.shape().back()) return true;
  }
  return false;
}

Result<bool> has_dsa_structure(const Model& model) {
  GraphOptions options;
  options.mode = model.mode(DType::kBF16, std::nullopt);
  options.cache.num_pages = 1;
  options.cache.max_context = options.cache.page_tokens;
  // The first layer of each kind; one that uses what an earlier layer selected comes after it.
  std::vector<std::string> seen;
  for (int64_t layer = 0; layer < model.num_layers(); ++layer) {
    const std::string kind = model.layer_kind(layer);
    if (std::find(seen.begin(), seen.end(), kind) != seen.end()) continue;
    seen.push_back(kind);
    options.layers.push_back(layer);
  }
  WEFT_ASSIGN_OR_RETURN(const Graph graph, model.build(options));
  return has_dsa_structure(graph);
}

Result<Layout> engine_layout(const EngineProfile& engine, const Model& model, const Layout& layout) {
  if (!engine.dsa_cp_with_sequence_parallel || layout.mesh.tp == 1) return layout;
  if (!layout.sequence_parallel) {
    if (layout.attention != AttentionChoice::kDsaCp) return layout;
    return invalid_argument(
        fmt::format("layout {}: engine {} has dsa_cp where sequence parallelism is on; add +sp, or leave dsa_cp out",
                    to_string(layout), engine.name));
  }
  WEFT_ASSIGN_OR_RETURN(const bool dsa, has_dsa_structure(model));
  if (!dsa) return layout;
  Layout changed = layout;
  changed.attention = AttentionChoice::kDsaCp;
  changed.o_proj = OProjChoice::kReplicated;
  if (layout.mesh.ep > 1) changed.router = RouterChoice::kFull;  // else experts see the rows that are routed
  changed.queries = QueryRows::kFull;
  return changed;
}

}  // namespace weft
