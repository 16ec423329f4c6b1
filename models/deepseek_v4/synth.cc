#include "models/deepseek_v4/synth.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/deepseek_v4/weights.h"

namespace weft::deepseek_v4 {
namespace {

enum class How { kLinear, kNormal, kUniform, kTable };

struct Distribution {
  const char* name;  // of the weight inside its block
  How how;
  double a = 0, b = 0;  // kLinear: gain, std = gain / sqrt(inputs); else as in Fill
};

// Gains that keep every part alive: mixing coefficients of streams and routing far from constant, compressed entries
// and sinks that compete with the window, experts that add to the stream as much as attention does.
constexpr Distribution kDistributions[] = {
    {"embed", How::kNormal, 0, 1},
    {"head", How::kLinear, 2},
    {"norm", How::kUniform, 0.8, 1.2},
    {"attn_norm", How::kUniform, 0.8, 1.2},
    {"ffn_norm", How::kUniform, 0.8, 1.2},
    {"hc_attn_fn", How::kLinear, 1},
    {"hc_attn_base", How::kNormal, 0, 0.5},
    {"hc_attn_scale", How::kUniform, 0.6, 1.2},
    {"hc_ffn_fn", How::kLinear, 1},
    {"hc_ffn_base", How::kNormal, 0, 0.5},
    {"hc_ffn_scale", How::kUniform, 0.6, 1.2},
    {"hc_head_fn", How::kLinear, 1},
    {"hc_head_base", How::kNormal, 0, 0.5},
    {"hc_head_scale", How::kUniform, 0.6, 1.2},
    {"attn.attn_sink", How::kNormal, 0.5, 1},
    {"attn.wq_a", How::kLinear, 1},
    {"attn.q_norm", How::kUniform, 0.8, 1.2},
    {"attn.wq_b", How::kLinear, 1},
    {"attn.wkv", How::kLinear, 1},
    {"attn.kv_norm", How::kUniform, 1.04, 1.56},
    {"attn.wo_a", How::kLinear, 1.5},
    {"attn.wo_b", How::kLinear, 1.5},
    {"attn.compressor.wkv", How::kLinear, 1},
    {"attn.compressor.wgate", How::kLinear, 1.5},
    {"attn.compressor.ape", How::kNormal, 0, 0.8},
    {"attn.compressor.norm", How::kUniform, 1.04, 1.56},
    {"attn.indexer.wq_b", How::kLinear, 1},
    {"attn.indexer.weights_proj", How::kLinear, 1},
    {"attn.indexer.compressor.wkv", How::kLinear, 1},
    {"attn.indexer.compressor.wgate", How::kLinear, 1.5},
    {"attn.indexer.compressor.ape", How::kNormal, 0, 0.8},
    {"attn.indexer.compressor.norm", How::kUniform, 1.04, 1.56},
    {"ffn.gate", How::kLinear, 2},
    {"ffn.gate.bias", How::kNormal, 0, 0.2},
    {"ffn.gate.tid2eid", How::kTable},
    {"ffn.experts.w1", How::kLinear, 1.5},
    {"ffn.experts.w2", How::kLinear, 1.5},
    {"ffn.experts.w3", How::kLinear, 1.5},
    {"ffn.shared_experts.w1", How::kLinear, 1.5},
    {"ffn.shared_experts.w2", How::kLinear, 1},
    {"ffn.shared_experts.w3", How::kLinear, 1.5},
    {"e_proj", How::kLinear, 1},
    {"h_proj", How::kLinear, 1},
    {"enorm", How::kUniform, 0.8, 1.2},
    {"hnorm", How::kUniform, 0.8, 1.2},
    {"main_proj", How::kLinear, 1},
    {"main_norm", How::kUniform, 0.8, 1.2},
    {"markov_head.markov_w1", How::kLinear, 1},
    {"markov_head.markov_w2", How::kLinear, 1},
    {"confidence_head.proj", How::kLinear, 1},
};

// The name inside "layers.N." or "mtp.N.".
std::string_view inner_name(const Weight& w) {
  std::string_view name = w.name;
  if (w.layer < 0) return name;
  for (int dots = 0; dots < 2; ++dots) name.remove_prefix(name.find('.') + 1);
  return name;
}

const Distribution& distribution_of(const Weight& w) {
  const auto* found = std::find_if(std::begin(kDistributions), std::end(kDistributions),
                                   [&](const Distribution& d) { return inner_name(w) == d.name; });
  WEFT_CHECK(found != std::end(kDistributions), "no distribution for '{}'", w.name);
  return *found;
}

RandomTensor random_of(const Config& config, const FileTensor& tensor) {
  const Weight& w = *tensor.weight;
  const Distribution& d = distribution_of(w);
  switch (d.how) {
    case How::kTable: return {tensor.type, Fill::kDistinct, static_cast<double>(config.n_routed_experts), 0};
    case How::kNormal: return {tensor.type, Fill::kNormal, d.a, d.b};
    case How::kUniform: return {tensor.type, Fill::kUniform, d.a, d.b};
    case How::kLinear: break;
  }
  const double std = d.a / std::sqrt(static_cast<double>(w.type.shape.back()));
  if (w.type.dtype == DType::kF8E4M3) {
    return tensor.is_scale ? RandomTensor{tensor.type, Fill::kScale, std / e4m3_std(), 0}
                           : RandomTensor{tensor.type, Fill::kE4m3};
  }
  if (w.type.dtype == DType::kF4E2M1) {
    return tensor.is_scale ? RandomTensor{tensor.type, Fill::kScale, std / kE2m1Std, 0}
                           : RandomTensor{tensor.type, Fill::kE2m1};
  }
  return {tensor.type, Fill::kNormal, 0, std};
}

void drop(Json& json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) json.erase(key);
}

// The draft stages of DSpark read the streams of some layers; those must be among the kept ones.
Status keep_draft_stages(const Config& config, const std::vector<int64_t>& layers, Json& json) {
  std::vector<int64_t> targets;
  for (int64_t target : config.dspark->target_layer_ids) {
    const auto at = std::find(layers.begin(), layers.end(), target);
    if (at == layers.end()) {
      return invalid_argument(fmt::format("--mtp: a draft stage reads layer {}, which --layers leaves out", target));
    }
    targets.push_back(at - layers.begin());
  }
  json["dspark_target_layer_ids"] = targets;
  return {};
}

// config.json for the chosen layers and sizes.
Result<Json> rewrite(const Json& json, const Config& config, const SynthOptions& options) {
  std::vector<int64_t> layers = options.layers;
  if (layers.empty()) {
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) layers.push_back(layer);
  }
  Json out = json;
  std::vector<int64_t> ratios;
  int64_t hash_layers = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t layer = layers[i];
    if (layer < 0 || layer >= config.num_hidden_layers) {
      return invalid_argument(
          fmt::format("--layers: there is no layer {}; this config has 0 to {}", layer, config.num_hidden_layers - 1));
    }
    if (config.is_hash_layer(layer) && hash_layers++ != static_cast<int64_t>(i)) {
      return invalid_argument(
          fmt::format("--layers: layer {} is routed by token id and must come before {}", layer, layers[i - 1]));
    }
    ratios.push_back(config.compress_ratios[layer]);
  }
  if (options.mtp) {
    if (config.num_mtp_layers() == 0) return invalid_argument("--mtp: this config has no draft layer");
    if (config.dspark) WEFT_RETURN_IF_ERROR(keep_draft_stages(config, layers, out));
    ratios.insert(ratios.end(), config.compress_ratios.begin() + config.num_hidden_layers,
                  config.compress_ratios.end());
  } else {
    out["num_nextn_predict_layers"] = 0;
    drop(out, {"dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank"});
  }
  drop(out, {"layer_types", "mlp_layer_types"});  // the Transformers way of saying the same
  out["num_hidden_layers"] = layers.size();
  out["compress_ratios"] = ratios;
  out["num_hash_layers"] = hash_layers;
  if (options.hidden_size) out["hidden_size"] = *options.hidden_size;
  if (options.vocab_size) out["vocab_size"] = *options.vocab_size;
  if (options.experts) {
    out["n_routed_experts"] = *options.experts;
    drop(out, {"num_local_experts"});
  }
  return out;
}

}  // namespace

Result<SynthPlan> plan_synth(const Json& json, const std::string& where, const SynthOptions& options) {
  if (options.int8) return invalid_argument(fmt::format("{}: there are no int8 checkpoints of DeepSeek-V4", where));
  WEFT_ASSIGN_OR_RETURN(const Config published, parse_config(json, where));
  SynthPlan plan;
  WEFT_ASSIGN_OR_RETURN(plan.config, rewrite(json, published, options));
  WEFT_ASSIGN_OR_RETURN(const Config config, parse_config(plan.config, where));
  const std::vector<Weight> table = weights(config, storage_of(config));
  for (const FileTensor& tensor : file_tensors(table)) plan.tensors.push_back({tensor.name, random_of(config, tensor)});
  return plan;
}

}  // namespace weft::deepseek_v4
