#include "models/glm_moe_dsa/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "kernels/moe_route/moe_route.h"
#include "models/config_fields.h"
#include "models/size_limits.h"

namespace weft::glm_moe_dsa {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::max();
constexpr std::string_view kFull = "full", kShared = "shared";

// Training, and sizes that no tensor of this architecture has (head_dim, num_key_value_heads).
void read_informational(JsonFields& f) {
  read_informational_fields(f);
  f.informational({"ep_size", "pretraining_tp", "aux_loss_alpha", "seq_aux", "head_dim", "num_key_value_heads"});
}

void read_dims(JsonFields& f, Config& c) {
  c.vocab_size = f.integer("vocab_size", 1);
  c.hidden_size = f.integer("hidden_size", 1);
  c.num_hidden_layers = f.integer("num_hidden_layers", 1, 4096);
  c.num_nextn_predict_layers = f.integer_or("num_nextn_predict_layers", 0, 0, 64);
  c.max_position_embeddings = f.integer("max_position_embeddings", 1);
  c.rms_norm_eps = f.number("rms_norm_eps", 0, 1);

  c.num_attention_heads = f.integer("num_attention_heads", 1);
  c.q_lora_rank = f.integer("q_lora_rank", 1);
  c.kv_lora_rank = f.integer("kv_lora_rank", 1);
  c.qk_nope_head_dim = f.integer("qk_nope_head_dim", 1);
  c.qk_rope_head_dim = f.integer("qk_rope_head_dim", 2);
  c.v_head_dim = f.integer("v_head_dim", 1);
  c.index_n_heads = f.integer("index_n_heads", 1);
  c.index_head_dim = f.integer("index_head_dim", 2);
  c.index_topk = f.integer("index_topk", 1);

  c.intermediate_size = f.integer("intermediate_size", 1);
  c.n_routed_experts = f.integer("n_routed_experts", 1, kMaxExperts);
  c.n_shared_experts = f.integer("n_shared_experts", 1, 64);
  c.num_experts_per_tok = f.integer("num_experts_per_tok", 1, 1024);
  c.n_group = f.integer_or("n_group", 1, 1);
  c.topk_group = f.integer_or("topk_group", 1, 1);
  c.moe_intermediate_size = f.integer("moe_intermediate_size", 1);
  c.routed_scaling_factor = f.number("routed_scaling_factor", -kInfinity, kInfinity);
}

void read_tokens(JsonFields& f, const Json& json, Config& c) {
  c.bos_token_id = f.integer_or("bos_token_id", -1, 0, c.vocab_size - 1);
  c.eos_token_ids = read_eos_token_ids(f, json, c.vocab_size);
}

// Fields with one supported value. Absent ones have that value in the class of either schema.
void read_fixed(JsonFields& f, Config& c) {
  c.release = f.one_of("model_type", {"glm_moe_dsa", "deepseek_v32"}) == "deepseek_v32" ? Release::kDeepseekV32 : Release::kGlm;
  const std::string_view expected = c.release == Release::kGlm ? "GlmMoeDsaForCausalLM" : "DeepseekV32ForCausalLM";
  if (f.has("architectures")) {
    for (const std::string& name : f.strings("architectures")) {
      if (name != expected) f.fail("architectures", fmt::format(": '{}' is not supported; supported: {}", name, expected));
    }
  }
  f.one_of_if("hidden_act", {"silu"});
  for (const char* key : {"torch_dtype", "dtype"}) f.one_of_if(key, {"bfloat16", "float16", "float32"});
  f.one_of_if("scoring_func", {"sigmoid"});
  f.one_of_if("topk_method", {"noaux_tc"});
  f.one_of_if("moe_router_dtype", {"float32"});  // the router is computed in fp32 with or without it
  f.integer_or("moe_layer_freq", 1, 1, 1);
  f.must_be("norm_topk_prob", true);
  f.must_be("attention_bias", false);
  f.must_be("mlp_bias", false);
  f.must_be("tie_word_embeddings", false);
  // The pairing of the main attention; of the indexer, whose pairing is not a field in DeepSeek-V3.2 (2.4).
  f.must_be("rope_interleave", true);
  f.must_be("indexer_rope_interleave", c.release == Release::kGlm);
  c.indexer_rope_interleave = c.release == Release::kGlm;
}

// Names that may stand beside the published ones.
void read_aliases(JsonFields& f, const Config& c) {
  read_alias(f, "num_local_experts", "n_routed_experts", c.n_routed_experts);
  read_alias(f, "num_experts", "n_routed_experts", c.n_routed_experts);
  read_alias(f, "qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim", c.qk_nope_head_dim + c.qk_rope_head_dim);
  f.informational({"num_local_experts", "num_experts", "qk_head_dim"});
  if (!f.has("layer_types")) return f.informational({"layer_types"});
  const std::vector<std::string> types = f.strings("layer_types");  // every layer is what the architecture is
  for (const std::string& type : types) {
    if (type != "deepseek_sparse_attention" && type != "indexed_attention") {
      f.fail("layer_types", fmt::format(": '{}' is not supported; supported: deepseek_sparse_attention", type));
    }
  }
  if (static_cast<int64_t>(types.size()) != c.num_hidden_layers) {
    f.fail("layer_types", fmt::format(": {} entries for num_hidden_layers {}", types.size(), c.num_hidden_layers));
  }
}

// The object under rope_scaling (releases) or rope_parameters (Transformers, GLM).
void read_rope_object(JsonFields& outer, const Json& json, const std::string& prefix, const ConfigOptions& options, Config& c) {
  JsonFields f(json, outer.where(), prefix);
  const char* key = f.has("rope_type") ? "rope_type" : "type";
  const std::string type = f.one_of(key, {"default", "yarn"});
  if (f.has("type") && f.one_of("type", {"default", "yarn"}) != type) f.fail("type", " differs from rope_type");
  const double theta = f.number_or("rope_theta", c.rope_theta, 1, kInfinity);
  if (c.rope_theta > 0 && theta != c.rope_theta) f.fail("rope_theta", fmt::format(" differs from {}", c.rope_theta));
  c.rope_theta = theta;
  // All of qk_rope_head_dim is rotated.
  const double rotated = f.number_or("partial_rotary_factor", 1, 0, 1);
  if (rotated != 1) f.fail("partial_rotary_factor", fmt::format(": {} is not supported; supported: 1", rotated));
  // cos and sin are not scaled in this architecture: mscale / mscale_all_dim is 1. Where the two are not given, Transformers scales
  // them by 0.1 ln(factor) + 1, unless attention_factor says otherwise, and the release by nothing: such a config is not decided.
  f.number_or("attention_factor", 1, 1, 1);
  if (type == "yarn") {
    RopeScaling s{f.number("factor", 1, kInfinity), f.number_or("beta_fast", 32, 0, kInfinity),
                  f.number_or("beta_slow", 1, 0, kInfinity), f.integer("original_max_position_embeddings", 1),
                  f.number_or("mscale_all_dim", 0, 0, kInfinity)};
    const double mscale = f.number_or("mscale", 0, 0, kInfinity);
    if (!f.has("attention_factor") && s.factor > 1) {
      if (!(mscale > 0)) f.fail("mscale", " is missing or 0 (attention_factor 1 says that cos and sin are not scaled)");
      if (!(s.mscale_all_dim > 0)) f.fail("mscale_all_dim", " is missing or 0 (attention_factor 1 says that cos and sin are not scaled)");
    }
    if (f.has("mscale") && mscale != s.mscale_all_dim) f.fail("mscale", " differs from mscale_all_dim");
    if (f.status().ok() && s.beta_fast <= s.beta_slow) f.fail("beta_fast", " must be above beta_slow");
    c.rope_scaling = s;
  }
  outer.absorb(f.finish(options.unknown_keys, &c.warnings));
}

void read_rope(JsonFields& f, const ConfigOptions& options, Config& c) {
  c.rope_theta = f.number_or("rope_theta", 0, 1, kInfinity);
  if (f.has("rope_parameters") && f.has("rope_scaling")) f.fail("rope_scaling", " and rope_parameters are both given");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    f.informational({key});
    if (!f.has(key)) continue;
    if (const Json* rope = f.object(key)) read_rope_object(f, *rope, std::string(key) + ".", options, c);
  }
  if (c.rope_theta < 1) f.fail("rope_theta", " is missing");
}

// Which layers have an indexer: three ways to say it, the first one given counts and the others must agree.
void read_indexer_types(JsonFields& f, const Json& json, Config& c) {
  std::vector<bool> scheduled;
  const int64_t freq = f.integer_or("index_topk_freq", 1, 1), offset = f.integer_or("index_skip_topk_offset", 2, 0);
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) scheduled.push_back(std::max<int64_t>(l - offset + 1, 0) % freq == 0);

  const auto read = [&](const char* key, const std::vector<std::string>& types, std::string_view full, std::string_view shared) {
    std::vector<bool> is_full;
    for (const std::string& type : types) {
      if (type != full && type != shared) {
        f.fail(fmt::format("{}[{}]", key, is_full.size()),
               fmt::format(": '{}' is not supported; supported: {}, {}", type, full, shared));
      }
      is_full.push_back(type == full);
    }
    if (static_cast<int64_t>(is_full.size()) != c.num_hidden_layers) {
      f.fail(key, fmt::format(": {} entries for num_hidden_layers {}", is_full.size(), c.num_hidden_layers));
    }
    return is_full;
  };
  f.informational({"index_topk_pattern", "indexer_types"});
  if (f.has("index_topk_pattern")) {
    if (json["index_topk_pattern"].is_string()) {
      std::vector<std::string> letters;
      for (const char letter : f.string("index_topk_pattern")) letters.emplace_back(1, letter);
      scheduled = read("index_topk_pattern", letters, "F", "S");
    } else {
      scheduled = read("index_topk_pattern", f.strings("index_topk_pattern"), kFull, kShared);
    }
  }
  c.full_indexer = scheduled;
  if (f.has("indexer_types")) {
    c.full_indexer = read("indexer_types", f.strings("indexer_types"), kFull, kShared);
    const bool schedule_given = f.has("index_topk_pattern") || f.has("index_topk_freq");
    if (schedule_given && c.full_indexer != scheduled) f.fail("indexer_types", " differs from index_topk_pattern or index_topk_freq");
  }
  if (!c.full_indexer.empty() && !c.full_indexer[0]) {
    f.fail("indexer_types", ": layer 0 is shared, but there is no layer before it");
  }
  c.index_share_for_mtp_iteration = f.boolean_or("index_share_for_mtp_iteration", false);
}

void read_dense_layers(JsonFields& f, Config& c) {
  f.informational({"mlp_layer_types"});
  if (!f.has("mlp_layer_types")) {
    c.first_k_dense_replace = std::min(f.integer("first_k_dense_replace"), c.num_hidden_layers);
    return;
  }
  const std::vector<std::string> types = f.strings("mlp_layer_types");
  int64_t dense = 0;
  for (size_t l = 0; l < types.size(); ++l) {
    if (types[l] != "dense" && types[l] != "sparse") {
      f.fail(fmt::format("mlp_layer_types[{}]", l), fmt::format(": '{}' is not supported; supported: dense, sparse", types[l]));
    }
    if (types[l] == "dense" && dense++ != static_cast<int64_t>(l)) f.fail("mlp_layer_types", ": dense layers must come first");
  }
  if (static_cast<int64_t>(types.size()) != c.num_hidden_layers) {
    f.fail("mlp_layer_types", fmt::format(": {} entries for num_hidden_layers {}", types.size(), c.num_hidden_layers));
  }
  c.first_k_dense_replace = dense;
  if (std::min(f.integer_or("first_k_dense_replace", dense), c.num_hidden_layers) != dense) {
    f.fail("first_k_dense_replace", " differs from mlp_layer_types");
  }
}

void read_quantization(JsonFields& f, const ConfigOptions& options, Config& c) {
  f.informational({"quantization_config"});
  if (!f.has("quantization_config")) return;
  const Json* quantization = f.object("quantization_config");
  if (quantization == nullptr) return;
  JsonFields q(*quantization, f.where(), "quantization_config.");
  q.one_of("quant_method", {"fp8"});
  q.one_of_if("fmt", {"e4m3"});
  c.scale_ue8m0 = q.one_of_if("scale_fmt", {"ue8m0"}).has_value();
  q.one_of_if("activation_scheme", {"dynamic"});
  const std::vector<int64_t> block = q.integers("weight_block_size", 1);
  if (block != std::vector<int64_t>{kFp8Block, kFp8Block}) q.fail("weight_block_size", ": only [128, 128] is supported");
  q.must_be("dequantize", false);
  q.informational({"modules_to_not_convert"});  // storage is taken from the files (5.2)
  f.absorb(q.finish(options.unknown_keys, &c.warnings));
  c.fp8 = true;
}

void check_relations(JsonFields& f, const Config& c) {
  if (!f.status().ok()) return;  // the numbers may be placeholders
  const auto divides = [&](std::string_view key, int64_t value, std::string_view by, int64_t divisor) {
    if (value % divisor != 0) f.fail(key, fmt::format(" {} is not divisible by {} {}", value, by, divisor));
  };
  const auto at_most = [&](std::string_view key, int64_t value, std::string_view limit_key, int64_t limit) {
    if (value > limit) f.fail(key, fmt::format(" {} is above {} {}", value, limit_key, limit));
  };
  divides("qk_rope_head_dim", c.qk_rope_head_dim, "the pair size", 2);
  at_most("qk_rope_head_dim", c.qk_rope_head_dim, "index_head_dim", c.index_head_dim);
  // Index queries and keys are rotated by a Walsh-Hadamard matrix before they are quantised; its order is a power of two.
  if ((c.index_head_dim & (c.index_head_dim - 1)) != 0) {
    f.fail("index_head_dim", fmt::format(" {} is not a power of two", c.index_head_dim));
  }
  divides("n_routed_experts", c.n_routed_experts, "n_group", c.n_group);
  at_most("topk_group", c.topk_group, "n_group", c.n_group);
  at_most("num_experts_per_tok", c.num_experts_per_tok, "n_routed_experts in topk_group groups",
          c.n_routed_experts / c.n_group * c.topk_group);
  const Width widths[] = {
      {"vocab_size", {c.vocab_size}},
      {"hidden_size", {c.hidden_size}, true},
      {"q_lora_rank", {c.q_lora_rank}, true},
      {"kv_lora_rank", {c.kv_lora_rank}, true},
      {"qk_nope_head_dim", {c.qk_nope_head_dim}, true},
      {"qk_rope_head_dim", {c.qk_rope_head_dim}},
      {"num_attention_heads x v_head_dim", {c.num_attention_heads, c.v_head_dim}, true},
      {"num_attention_heads x (qk_nope_head_dim + qk_rope_head_dim)", {c.num_attention_heads, c.qk_nope_head_dim + c.qk_rope_head_dim}},
      {"num_attention_heads x (qk_nope_head_dim + v_head_dim)", {c.num_attention_heads, c.qk_nope_head_dim + c.v_head_dim}},
      {"num_attention_heads x (kv_lora_rank + qk_rope_head_dim)", {c.num_attention_heads, c.key_width()}},
      {"index_n_heads x index_head_dim", {c.index_n_heads, c.index_head_dim}},
      {"index_topk", {c.index_topk}},
      {"intermediate_size", {c.intermediate_size}, c.first_k_dense_replace > 0},
      {"moe_intermediate_size", {c.moe_intermediate_size}, true},
      {"moe_intermediate_size x n_shared_experts", {c.moe_intermediate_size, c.n_shared_experts}, true},
  };
  check_widths(f, widths);
  if (c.n_group > 1 && c.n_routed_experts / c.n_group < 2) {
    f.fail("n_group", fmt::format(" {} leaves groups of one expert; a group is ranked by its best two", c.n_group));
  }
}

}  // namespace

bool Config::shares_selections() const {
  return index_share_for_mtp_iteration || std::find(full_indexer.begin(), full_indexer.end(), false) != full_indexer.end();
}

double Config::softmax_scale() const {
  double scale = 1 / std::sqrt(static_cast<double>(qk_nope_head_dim + qk_rope_head_dim));
  if (rope_scaling && rope_scaling->mscale_all_dim > 0) {
    constexpr double kMscaleStep = 0.1;  // per factor of e (2.5)
    const double mscale = kMscaleStep * rope_scaling->mscale_all_dim * std::log(rope_scaling->factor) + 1;
    scale *= mscale * mscale;
  }
  return scale;
}

Result<Config> parse_config(const Json& json, const std::string& where, const ConfigOptions& options) {
  if (!json.is_object()) return invalid_argument(fmt::format("{}: expected an object, found {}", where, json_kind(json)));
  JsonFields f(json, where);
  Config c;
  read_fixed(f, c);
  read_dims(f, c);
  read_tokens(f, json, c);
  read_aliases(f, c);
  read_rope(f, options, c);
  read_indexer_types(f, json, c);
  read_dense_layers(f, c);
  read_quantization(f, options, c);
  read_informational(f);
  check_relations(f, c);
  WEFT_RETURN_IF_ERROR(f.finish(options.unknown_keys, &c.warnings));
  return c;
}

}  // namespace weft::glm_moe_dsa
