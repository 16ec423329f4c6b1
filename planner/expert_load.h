// How often each expert was picked: measured by `weft bench --expert-load FILE`, used by `weft plan --expert-load
// FILE`.
//
// The picks of a model are the same bits in every layout, so one measurement serves all of them. The schema is in
// docs/planner.md.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"

namespace weft {

// 3 of the region "layers.3" of a graph; -1 for its other parts.
int64_t layer_of_region(std::string_view region);
// Whether the rows of an op are picks: it costs what they hit.
bool computes_experts(const Op& op);

// A layer of the main model whose rows pick experts.
struct ExpertLayer {
  int64_t layer = 0, experts = 0, top_k = 0;
  std::string value;  // of its graph: I32 [rows, top_k], the picks
};

// As the graph has them, ascending; empty: a dense model.
Result<std::vector<ExpertLayer>> expert_layers(const Model& model, const NumericMode& mode);

struct ExpertCounts {
  std::string source;               // the file
  std::string family;               // of the model
  int64_t tokens = 0;               // that were counted
  std::vector<ExpertLayer> layers;  // ascending; of a file without the names of values
  std::vector<std::vector<int64_t>> picks;  // by layer of `layers`, by expert

  // Of a layer of the model, by expert: the probability that a row picks it.
  std::map<int64_t, std::vector<double>> shares() const;
};

// No picks yet. An error for a model without experts.
Result<ExpertCounts> no_picks(const Model& model, const NumericMode& mode);

std::string expert_load_json(const ExpertCounts& counts);
// `where` starts every message.
Result<ExpertCounts> parse_expert_load(std::string_view text, std::string where);
// Whether it was measured on this model: family, layers with experts, experts, picks of a row.
Status check_expert_load(const ExpertCounts& counts, const Model& model, const NumericMode& mode);

}  // namespace weft
