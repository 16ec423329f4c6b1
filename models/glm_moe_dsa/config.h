// config.json of the DSA-MLA family: GLM-5 / 5.1 / 5.2 (glm_moe_dsa) and DeepSeek-V3.2 (deepseek_v32), in the schema of the
// releases and in the one that Transformers writes, checked.
//
// Field names are the published ones. Folded into them: rope_parameters gives rope_theta and rope_scaling; indexer_types,
// index_topk_pattern, or index_topk_freq with index_skip_topk_offset give `full_indexer`; mlp_layer_types gives
// first_k_dense_replace. head_dim and num_key_value_heads say nothing about this architecture and are not used.
//
// The schema is closed: a key that is neither used nor known as informational is an error that names it
// (UnknownKeys::kWarn: an entry of Config::warnings).
// Source of fields and defaults: glm_moe_dsa.md sections 1.1, 1.2, 2.4, 2.5, 2.10.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/json_fields.h"

namespace weft::glm_moe_dsa {

enum class Release { kGlm, kDeepseekV32 };  // model_type

struct RopeScaling {  // YaRN
  double factor = 1;
  double beta_fast = 32, beta_slow = 1;
  int64_t original_max_position_embeddings = 0;
  double mscale_all_dim = 0;  // enlarges the scores of attention (2.5)
  bool operator==(const RopeScaling&) const = default;
};

inline constexpr int64_t kFp8Block = 128;      // weight_block_size, both dims
inline constexpr double kIndexNormEps = 1e-6;  // of the indexer's LayerNorm, whatever rms_norm_eps is (2.2)

struct Config {
  Release release = Release::kGlm;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_nextn_predict_layers = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;

  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0, kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  double rope_theta = 0;
  std::optional<RopeScaling> rope_scaling;
  bool indexer_rope_interleave = true;  // false: the indexer rotates pairs (i, i + half), DeepSeek-V3.2

  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  std::vector<bool> full_indexer;             // per layer: an indexer of its own, or the selection of the last such layer
  bool index_share_for_mtp_iteration = false;  // drafts after the first reuse the selection of the first

  int64_t intermediate_size = 0;  // of the dense layers
  int64_t first_k_dense_replace = 0;
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t n_group = 1, topk_group = 1;
  int64_t moe_intermediate_size = 0;
  double routed_scaling_factor = 0;

  int64_t bos_token_id = -1;  // -1: none
  std::vector<int64_t> eos_token_ids;

  bool fp8 = false;           // quantization_config: e4m3, 128 x 128 blocks
  bool scale_ue8m0 = false;   // ... whose scales, and those of activations, are powers of two

  std::vector<std::string> warnings;  // unknown keys that were let through

  // Layers 0 .. num_hidden_layers - 1, then the MTP layers, which are MoE layers with an indexer.
  bool is_dense(int64_t layer) const { return layer < first_k_dense_replace; }
  bool has_indexer(int64_t layer) const { return layer >= num_hidden_layers || full_indexer[static_cast<size_t>(layer)]; }
  bool shares_selections() const;  // between layers or drafts: GLM-5.2
  int64_t key_width() const { return kv_lora_rank + qk_rope_head_dim; }  // latent, then rotated key: what is cached
  double softmax_scale() const;

  bool operator==(const Config&) const = default;
};

struct ConfigOptions {
  UnknownKeys unknown_keys = UnknownKeys::kError;
};

// `where` starts the messages ("DIR/config.json").
Result<Config> parse_config(const Json& json, const std::string& where, const ConfigOptions& options = {});

}  // namespace weft::glm_moe_dsa
