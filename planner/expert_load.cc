#include "planner/expert_load.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <fmt/format.h>

#include "io/json_fields.h"

namespace weft {
namespace {

constexpr std::string_view kSchema = "weft.expert_load";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostTokens = int64_t{1} << 40, kMostLayers = 1 << 16, kMostExperts = 1 << 20;

Status read_layer(const Json& json, const std::string& where, size_t place, ExpertCounts& counts) {
  const std::string path = fmt::format("layers[{}]", place);
  JsonFields fields(json, where, path + ".");
  ExpertLayer& layer = counts.layers.emplace_back();
  layer.layer = fields.integer("layer", 0, kMostLayers);
  layer.top_k = fields.integer("experts_per_token", 1, kMostExperts);
  std::vector<int64_t>& picks = counts.picks.emplace_back(fields.integers("picks", 0, kMostTokens));
  WEFT_RETURN_IF_ERROR(fields.finish(UnknownKeys::kError, nullptr));
  layer.experts = static_cast<int64_t>(picks.size());
  if (place > 0 && layer.layer <= counts.layers[place - 1].layer) {
    fields.fail("layer",
                fmt::format(": layers ascend, but {} follows {}", layer.layer, counts.layers[place - 1].layer));
    return fields.status();
  }
  for (size_t e = 0; e < picks.size(); ++e) {
    if (picks[e] <= counts.tokens) continue;
    fields.fail(fmt::format("picks[{}]", e), fmt::format(": {} picks by {} tokens", picks[e], counts.tokens));
    return fields.status();
  }
  const int64_t all = std::accumulate(picks.begin(), picks.end(), int64_t{0});
  if (all != counts.tokens * layer.top_k) {
    fields.fail("picks", fmt::format(": expected {} of {} tokens with {} each, their sum is {}",
                                     counts.tokens * layer.top_k, counts.tokens, layer.top_k, all));
  }
  return fields.status();
}

}  // namespace

int64_t layer_of_region(std::string_view region) {
  constexpr std::string_view kPrefix = "layers.";
  if (!region.starts_with(kPrefix)) return -1;
  int64_t layer = -1;
  const char* end = region.data() + region.size();
  const auto [at, error] = std::from_chars(region.data() + kPrefix.size(), end, layer);
  return error == std::errc() && at == end ? layer : -1;
}

bool computes_experts(const Op& op) {
  return std::holds_alternative<Experts>(op) || std::holds_alternative<ExpertsUp>(op) ||
         std::holds_alternative<ExpertsDown>(op) || std::holds_alternative<ExpertSlots>(op);
}

Result<std::vector<ExpertLayer>> expert_layers(const Model& model, const NumericMode& mode) {
  constexpr int64_t kSomeContext = 1024;  // the routes are the same at any
  GraphOptions options;
  options.mode = mode;
  options.cache.num_slots = options.cache.num_pages = 1;
  options.cache.max_context = kSomeContext;
  WEFT_ASSIGN_OR_RETURN(const Graph graph, model.build(options));
  std::vector<ExpertLayer> layers;
  for (const Node& node : graph.nodes()) {
    const auto* route = std::get_if<MoeRoute>(&node.op);
    const int64_t layer = layer_of_region(node.region);
    if (route == nullptr || layer < 0) continue;
    layers.push_back({layer, graph.value(node.in[0]).type.shape()[1], route->top_k, graph.value(node.out[0]).name});
  }
  return layers;
}

std::map<int64_t, std::vector<double>> ExpertCounts::shares() const {
  std::map<int64_t, std::vector<double>> all;
  for (size_t l = 0; l < layers.size(); ++l) {
    std::vector<double>& of_layer = all[layers[l].layer];
    for (const int64_t n : picks[l]) of_layer.push_back(static_cast<double>(n) / static_cast<double>(tokens));
  }
  return all;
}

Result<ExpertCounts> no_picks(const Model& model, const NumericMode& mode) {
  ExpertCounts counts;
  counts.family = model.family();
  WEFT_ASSIGN_OR_RETURN(counts.layers, expert_layers(model, mode));
  if (counts.layers.empty()) return invalid_argument("--expert-load: this model has no experts to pick from");
  for (const ExpertLayer& layer : counts.layers) counts.picks.emplace_back(static_cast<size_t>(layer.experts));
  return counts;
}

std::string expert_load_json(const ExpertCounts& counts) {
  std::string text =
      fmt::format("{{\n \"schema\": \"{}\",\n \"version\": {},\n \"family\": \"{}\",\n \"tokens\": {},\n \"layers\": [",
                  kSchema, kVersion, counts.family, counts.tokens);
  for (size_t l = 0; l < counts.layers.size(); ++l) {
    text += fmt::format("{}\n  {{\"layer\": {}, \"experts_per_token\": {}, \"picks\": [", l == 0 ? "" : ",",
                        counts.layers[l].layer, counts.layers[l].top_k);
    for (size_t e = 0; e < counts.picks[l].size(); ++e)
      text += fmt::format("{}{}", e == 0 ? "" : ", ", counts.picks[l][e]);
    text += "]}";
  }
  return text + "\n ]\n}\n";
}

Result<ExpertCounts> parse_expert_load(std::string_view text, std::string where) {
  WEFT_ASSIGN_OR_RETURN(const Json json, parse_json(text, where));
  ExpertCounts counts;
  counts.source = where;
  JsonFields fields(json, where);
  fields.one_of("schema", {kSchema});
  if (fields.status().ok()) fields.integer("version", kVersion, kVersion);
  counts.family = fields.string("family");
  counts.tokens = fields.integer("tokens", 1, kMostTokens);
  fields.informational({"layers"});
  WEFT_RETURN_IF_ERROR(fields.finish(UnknownKeys::kError, nullptr));
  if (!json.contains("layers") || !json["layers"].is_array() || json["layers"].empty()) {
    return invalid_argument(fmt::format("{}: layers: expected a list with a line for every layer with experts", where));
  }
  for (size_t l = 0; l < json["layers"].size(); ++l)
    WEFT_RETURN_IF_ERROR(read_layer(json["layers"][l], where, l, counts));
  return counts;
}

Status check_expert_load(const ExpertCounts& counts, const Model& model, const NumericMode& mode) {
  const auto wrong = [&](std::string_view what) {
    return invalid_argument(
        fmt::format("{}: measured on another model: {}; measure this one: weft bench MODEL_DIR --expert-load FILE",
                    counts.source, what));
  };
  if (counts.family != model.family())
    return wrong(fmt::format("family {}, this one is {}", counts.family, model.family()));
  WEFT_ASSIGN_OR_RETURN(const std::vector<ExpertLayer> layers, expert_layers(model, mode));
  if (layers.size() != counts.layers.size()) {
    return wrong(fmt::format("{} layers with experts, this one has {}", counts.layers.size(), layers.size()));
  }
  for (size_t l = 0; l < layers.size(); ++l) {
    const ExpertLayer &here = layers[l], &there = counts.layers[l];
    if (here.layer != there.layer)
      return wrong(fmt::format("layer {} has experts, here it is layer {}", there.layer, here.layer));
    if (here.experts != there.experts)
      return wrong(fmt::format("layer {} has {} experts, here {}", here.layer, there.experts, here.experts));
    if (here.top_k != there.top_k) {
      return wrong(fmt::format("a row of layer {} picks {} experts, here {}", here.layer, there.top_k, here.top_k));
    }
  }
  return {};
}

}  // namespace weft
