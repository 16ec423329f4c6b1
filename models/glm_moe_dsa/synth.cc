#include "models/glm_moe_dsa/synth.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/glm_moe_dsa/weights.h"

namespace weft::glm_moe_dsa {
namespace {

struct Distribution {
  const char* ending;  // of the key
  Fill how;            // kNormal: of a linear layer, std = a / sqrt(inputs); else as in Fill
  double a = 0, b = 0;
};

// Gains that keep every part alive: routing far from constant, index scores of both signs, experts that add to the stream as much
// as attention does. The first that fits counts.
constexpr Distribution kDistributions[] = {
    {"e_score_correction_bias", Fill::kUniform, -0.3, 0.3},
    {"k_norm.bias", Fill::kUniform, -0.5, 0.5},
    {"norm", Fill::kUniform, 0.8, 1.2},
    {"embed_tokens", Fill::kNormal, 0},
    {"head", Fill::kNormal, 2},
    {"indexer.wq_b", Fill::kNormal, 1},
    {"indexer.wk", Fill::kNormal, 1},
    {"indexer.weights_proj", Fill::kNormal, 1},
    {"mlp.gate", Fill::kNormal, 2},
    {"_proj_with_mqa", Fill::kNormal, 1.5},
    {"_proj", Fill::kNormal, 1.5},
};

RandomTensor random_of(const FileTensor& tensor) {
  const Weight& w = *tensor.weight;
  const auto* d = std::find_if(std::begin(kDistributions), std::end(kDistributions),
                               [&](const Distribution& row) { return std::string_view(w.name).ends_with(row.ending); });
  WEFT_CHECK(d != std::end(kDistributions), "no distribution for '{}'", w.name);
  if (d->how == Fill::kUniform) return {tensor.type, Fill::kUniform, d->a, d->b};
  const double std = d->a == 0 ? 1 : d->a / std::sqrt(static_cast<double>(w.type.shape.back()));
  // Scales around the one that gives the deviation, none a power of two.
  const auto scales = [&](double middle) {
    constexpr double kSpread = 0.2;
    return RandomTensor{tensor.type, Fill::kUniform, middle * (1 - kSpread), middle * (1 + kSpread)};
  };
  const std::string_view side = tensor.side != nullptr ? std::string_view(tensor.side->name) : "";
  constexpr double kInputScale = 4.0 / 127;  // of static int8: activations of deviation 1, cut at 4
  switch (format_of(w)) {
    case WeightFormat::kPlain: return {tensor.type, Fill::kNormal, 0, std};
    case WeightFormat::kFp8: return side.empty() ? RandomTensor{tensor.type, Fill::kE4m3} : scales(std / e4m3_std());
    case WeightFormat::kInt8Dynamic:
    case WeightFormat::kInt8Static: break;
  }
  if (side.empty()) return {tensor.type, Fill::kInt8};
  if (side == "scale") return scales(std / kInt8Std);
  if (side == "deq_scale") return scales(std / kInt8Std * kInputScale);
  if (side == "input_scale") return {tensor.type, Fill::kUniform, kInputScale, kInputScale};
  return {tensor.type, Fill::kZero};  // offsets, and the bias that stands for one
}

// quant_model_description.json of these tensors.
Json describe(std::span<const FileTensor> tensors) {
  Json json = {{"model_quant_type", quant_scheme_name(QuantScheme::kW8A8Dynamic)}, {"version", "1.0.0"}, {"is_rot_used", false}};
  for (const FileTensor& tensor : tensors) {
    const WeightFormat format = format_of(*tensor.weight);
    json[tensor.name] = quant_scheme_name(format == WeightFormat::kInt8Static    ? QuantScheme::kW8A8
                                          : format == WeightFormat::kInt8Dynamic ? QuantScheme::kW8A8Dynamic
                                                                                 : QuantScheme::kFloat);
  }
  return json;
}

// config.json for the chosen layers and sizes.
Result<Json> rewrite(const Json& json, const Config& config, const SynthOptions& options) {
  std::vector<int64_t> layers = options.layers;
  if (layers.empty()) {
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) layers.push_back(layer);
  }
  std::vector<std::string> types;
  int64_t dense = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t layer = layers[i];
    if (layer < 0 || layer >= config.num_hidden_layers) {
      return invalid_argument(fmt::format("--layers: there is no layer {}; this config has 0 to {}", layer, config.num_hidden_layers - 1));
    }
    if (config.is_dense(layer) && dense++ != static_cast<int64_t>(i)) {
      return invalid_argument(fmt::format("--layers: layer {} is dense and must come before {}", layer, layers[i - 1]));
    }
    types.emplace_back(config.has_indexer(layer) ? "full" : "shared");
  }
  if (types[0] == "shared") {
    return invalid_argument(fmt::format("--layers: layer {} reuses the selection of a layer before it; begin with one that has an indexer",
                                        layers[0]));
  }
  if (options.mtp && config.num_nextn_predict_layers == 0) return invalid_argument("--mtp: this config has no draft layer");
  Json out = json;
  for (const char* key : {"layer_types", "mlp_layer_types", "indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"}) {
    out.erase(key);
  }
  const bool shares = std::find(types.begin(), types.end(), "shared") != types.end();
  if (shares) out["indexer_types"] = types;
  out["num_hidden_layers"] = layers.size();
  out["first_k_dense_replace"] = dense;
  if (!options.mtp) out["num_nextn_predict_layers"] = 0;
  if (options.hidden_size) out["hidden_size"] = *options.hidden_size;
  if (options.vocab_size) {
    out["vocab_size"] = *options.vocab_size;
    const auto outside = [&](int64_t id) { return id >= *options.vocab_size; };
    if (std::any_of(config.eos_token_ids.begin(), config.eos_token_ids.end(), outside)) out["eos_token_id"] = *options.vocab_size - 1;
  }
  if (options.experts) {
    out["n_routed_experts"] = *options.experts;
    out.erase("num_local_experts");
  }
  return out;
}

}  // namespace

Result<SynthPlan> plan_synth(const Json& json, const std::string& where, const SynthOptions& options) {
  WEFT_ASSIGN_OR_RETURN(const Config published, parse_config(json, where));
  SynthPlan plan;
  WEFT_ASSIGN_OR_RETURN(plan.config, rewrite(json, published, options));
  WEFT_ASSIGN_OR_RETURN(const Config config, parse_config(plan.config, where));
  Storage storage = storage_of(config);
  if (options.int8) storage = {Storage::Format::kW8A8, config.num_nextn_predict_layers > 0, false};
  const std::vector<Weight> table = weights(config, storage);
  const std::vector<FileTensor> tensors = file_tensors(table);
  for (const FileTensor& tensor : tensors) plan.tensors.push_back({tensor.name, random_of(tensor)});
  if (options.int8) plan.quant_description = describe(tensors);
  return plan;
}

}  // namespace weft::glm_moe_dsa
