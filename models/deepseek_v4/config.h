// config.json of the DeepSeek-V4 family, release schema and Transformers schema, checked.
//
// Field names are the published ones (release schema). The Transformers schema is folded into them: layer_types and
// compress_rates give compress_ratios, mlp_layer_types gives num_hash_layers, rope_parameters.{main,compress} give
// rope_theta, compress_rope_theta and rope_scaling, partial_rotary_factor gives qk_rope_head_dim.
//
// The schema is closed: a key that is neither used nor known as informational is an error that names it
// (UnknownKeys::kWarn: an entry of Config::warnings). DeepSeek-V4.1 and vision models are refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/json_fields.h"

namespace weft::deepseek_v4 {

// YaRN of the layers with a compressor; cos and sin are not scaled (attention factor 1).
struct RopeScaling {
  double factor = 1;
  double beta_fast = 32, beta_slow = 1;
  int64_t original_max_position_embeddings = 0;
  bool operator==(const RopeScaling&) const = default;
};

// Draft stages that replace the NextN layer in the DSpark releases.
struct DSpark {
  int64_t block_size = 0;
  int64_t noise_token_id = 0;
  std::vector<int64_t> target_layer_ids;  // one per draft stage
  int64_t markov_rank = 0;
  bool operator==(const DSpark&) const = default;
};

enum class LayerKind { kSwa, kCsa, kHca };  // compress ratio 0, 4, 128

inline constexpr int64_t kCsaRatio = 4;
inline constexpr int64_t kHcaRatio = 128;
inline constexpr int64_t kFp8Block = 128;  // weight_block_size, both dims
inline constexpr int64_t kFp4Block = 32;   // inputs per E8M0 scale of an FP4 weight

struct Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 0;

  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;  // the last dims of a head
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t sliding_window = 0;
  std::vector<int64_t> compress_ratios;  // num_hidden_layers + num_mtp_layers() entries
  double rope_theta = 0;                 // ratio-0 layers
  double compress_rope_theta = 0;        // layers with a compressor
  std::optional<RopeScaling> rope_scaling;

  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;

  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;

  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  int64_t num_hash_layers = 0;
  double routed_scaling_factor = 0;
  double swiglu_limit = 0;

  int64_t bos_token_id = 0;
  std::vector<int64_t> eos_token_ids;

  int64_t num_nextn_predict_layers = 0;
  std::optional<DSpark> dspark;

  bool fp8 = false;                          // quantization_config: fp8 e4m3, ue8m0 scales, 128 x 128 blocks
  std::optional<std::string> expert_dtype;   // "fp4", "fp8" or absent

  std::vector<std::string> warnings;  // unknown keys that were let through

  // NextN layers, or DSpark draft stages.
  int64_t num_mtp_layers() const;
  // Layers 0 .. num_hidden_layers - 1, then the MTP layers.
  LayerKind layer_kind(int64_t layer) const;
  bool is_hash_layer(int64_t layer) const { return layer < num_hash_layers; }
  // Rows of the mHC projection of a sub-block: pre, post and the mixing matrix.
  int64_t hc_rows() const { return (2 + hc_mult) * hc_mult; }

  bool operator==(const Config&) const = default;
};

struct ConfigOptions {
  UnknownKeys unknown_keys = UnknownKeys::kError;
};

// `where` starts the messages ("DIR/config.json").
Result<Config> parse_config(const Json& json, const std::string& where, const ConfigOptions& options = {});

}  // namespace weft::deepseek_v4
