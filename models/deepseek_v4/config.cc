#include "models/deepseek_v4/config.h"

#include <limits>

#include <fmt/format.h>

#include "kernels/moe_route/moe_route.h"
#include "models/config_fields.h"
#include "models/size_limits.h"

namespace weft::deepseek_v4 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::max();

constexpr std::string_view kSliding = "sliding_attention";
constexpr std::string_view kSparse = "compressed_sparse_attention";
constexpr std::string_view kHeavy = "heavily_compressed_attention";

Status refuse_other_architectures(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    return invalid_argument(fmt::format("{}: expected an object, found {}", where, json_kind(json)));
  }
  const auto text = [&](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (text("model_type").starts_with("deepseek_v41")) {
    return invalid_argument(
        fmt::format("{}: model_type '{}': DeepSeek-V4.1 is another architecture and is not supported; "
                    "supported: deepseek_v4",
                    where, text("model_type")));
  }
  for (const char* key : {"vision_config", "text_config"}) {
    if (json.contains(key)) {
      return invalid_argument(fmt::format("{}: {}: models with vision input are not supported", where, key));
    }
  }
  return {};
}

void read_informational(JsonFields& f) {
  read_informational_fields(f);
  f.informational({"router_jitter_noise", "use_bidirectional_attention"});
}

void read_dims(JsonFields& f, Config& c) {
  c.vocab_size = f.integer("vocab_size", 1);
  c.hidden_size = f.integer("hidden_size", 1);
  c.num_hidden_layers = f.integer("num_hidden_layers", 1, 4096);
  c.max_position_embeddings = f.integer("max_position_embeddings", 1);
  c.rms_norm_eps = f.number("rms_norm_eps", 0, 1);

  c.num_attention_heads = f.integer("num_attention_heads", 1);
  f.integer("num_key_value_heads", 1, 1);  // one K = V vector for all heads is what the architecture is
  c.head_dim = f.integer("head_dim", 2);
  c.q_lora_rank = f.integer("q_lora_rank", 1);
  c.o_lora_rank = f.integer("o_lora_rank", 1);
  c.o_groups = f.integer("o_groups", 1);
  c.sliding_window = f.integer("sliding_window", 1);
  c.index_n_heads = f.integer("index_n_heads", 1);
  c.index_head_dim = f.integer("index_head_dim", 2);
  c.index_topk = f.integer("index_topk", 1);

  c.hc_mult = f.integer("hc_mult", 1, 64);
  c.hc_sinkhorn_iters = f.integer("hc_sinkhorn_iters", 1, 1000);
  c.hc_eps = f.number("hc_eps", 0, 1);

  c.n_routed_experts = f.integer("n_routed_experts", 1, kMaxExperts);
  c.n_shared_experts = f.integer("n_shared_experts", 1, 1);
  c.num_experts_per_tok = f.integer("num_experts_per_tok", 1, 1024);
  c.moe_intermediate_size = f.integer("moe_intermediate_size", 1);
  c.routed_scaling_factor = f.number("routed_scaling_factor", -kInfinity, kInfinity);
  c.swiglu_limit = f.number("swiglu_limit", 0, kInfinity);
  c.num_nextn_predict_layers = f.integer_or("num_nextn_predict_layers", 0, 0, 64);
}

void read_tokens(JsonFields& f, const Json& json, Config& c) {
  c.bos_token_id = f.integer_or("bos_token_id", 0, 0, c.vocab_size - 1);
  c.eos_token_ids = read_eos_token_ids(f, json, c.vocab_size);
}

// Fields with one supported value. Absent ones have that value in the class of either schema.
void read_fixed(JsonFields& f) {
  f.one_of("model_type", {"deepseek_v4"});
  if (f.has("architectures")) {
    for (const std::string& name : f.strings("architectures")) {
      if (name != "DeepseekV4ForCausalLM" && name != "DeepseekV4Model") {
        f.fail("architectures", fmt::format(": '{}' is not supported; supported: DeepseekV4ForCausalLM", name));
      }
    }
  }
  f.one_of_if("hidden_act", {"silu"});
  for (const char* key : {"torch_dtype", "dtype"}) f.one_of_if(key, {"bfloat16", "float16", "float32"});
  f.one_of_if("scoring_func", {"sqrtsoftplus"});
  f.one_of_if("topk_method", {"noaux_tc"});
  f.must_be("norm_topk_prob", true);
  f.must_be("attention_bias", false);
  f.must_be("mlp_bias", false);
  f.must_be("tie_word_embeddings", false);
}

// The attribute map of the Transformers class lets these names stand beside the published ones.
void read_aliases(JsonFields& f, const Config& c) {
  read_alias(f, "num_local_experts", "n_routed_experts", c.n_routed_experts);
  read_alias(f, "intermediate_size", "moe_intermediate_size", c.moe_intermediate_size);
}

void read_rope_dims(JsonFields& f, Config& c) {
  const double factor = f.number_or("partial_rotary_factor", 0, 0, 1);
  const auto from_factor = static_cast<int64_t>(static_cast<double>(c.head_dim) * factor + 1e-6);
  c.qk_rope_head_dim = factor > 0 ? f.integer_or("qk_rope_head_dim", from_factor, 2) : f.integer("qk_rope_head_dim", 2);
  if (factor > 0 && c.qk_rope_head_dim != from_factor) {
    f.fail("partial_rotary_factor", fmt::format(": {} of head_dim {} is not qk_rope_head_dim {}", factor, c.head_dim,
                                                c.qk_rope_head_dim));
  }
}

// One rope object: the scaling of the compressed layers, or none for type "default".
std::optional<RopeScaling> read_scaling(JsonFields& outer, const Json& json, const std::string& prefix,
                                        const ConfigOptions& options, Config& c, double expected_theta) {
  JsonFields f(json, outer.where(), prefix);
  const char* key = f.has("rope_type") ? "rope_type" : "type";
  const std::string type = f.one_of(key, {"yarn", "default"});
  if (f.has("type") && f.one_of("type", {"yarn", "default"}) != type) f.fail("type", " differs from rope_type");
  if (f.has("rope_theta") && f.number("rope_theta", 1, kInfinity) != expected_theta && expected_theta > 0) {
    f.fail("rope_theta", fmt::format(" differs from {}", expected_theta));
  }
  if (f.has("partial_rotary_factor")) {  // as the one of the model
    const double factor = f.number("partial_rotary_factor", 0, 1);
    const auto rotated = static_cast<int64_t>(static_cast<double>(c.head_dim) * factor + 1e-6);
    if (rotated != c.qk_rope_head_dim) {
      f.fail("partial_rotary_factor", fmt::format(": {} of head_dim {} is not qk_rope_head_dim {}", factor, c.head_dim, c.qk_rope_head_dim));
    }
  }
  // cos and sin are never scaled in this architecture.
  f.number_or("attention_factor", 1, 1, 1);
  std::optional<RopeScaling> scaling;
  if (type == "yarn") {
    scaling = RopeScaling{f.number("factor", 1, kInfinity), f.number_or("beta_fast", 32, 0, kInfinity),
                          f.number_or("beta_slow", 1, 0, kInfinity), f.integer("original_max_position_embeddings", 1)};
    if (f.status().ok() && scaling->beta_fast <= scaling->beta_slow) f.fail("beta_fast", " must be above beta_slow");
  }
  outer.absorb(f.finish(options.unknown_keys, &c.warnings));
  return scaling;
}

void read_rope(JsonFields& f, const ConfigOptions& options, Config& c) {
  if (!f.has("rope_parameters")) {
    c.rope_theta = f.number("rope_theta", 1, kInfinity);
    c.compress_rope_theta = f.number("compress_rope_theta", 1, kInfinity);
    if (!f.has("rope_scaling")) return f.informational({"rope_scaling", "rope_parameters"});
    if (const Json* scaling = f.object("rope_scaling")) {
      // Exports by Transformers add the base of the plain layers to the scaling of the others.
      c.rope_scaling = read_scaling(f, *scaling, "rope_scaling.", options, c, c.rope_theta);
    }
    return f.informational({"rope_parameters"});
  }
  if (f.has("rope_scaling")) f.fail("rope_scaling", " and rope_parameters are both given");
  const Json* parameters = f.object("rope_parameters");
  if (parameters == nullptr) return;
  JsonFields nested(*parameters, f.where(), "rope_parameters.");
  const Json* main = nested.object("main");
  const Json* compress = nested.object("compress");
  f.absorb(nested.finish(options.unknown_keys, &c.warnings));
  if (main == nullptr || compress == nullptr) return;
  const auto theta = [&](const Json& rope, const char* prefix) {
    return JsonFields(rope, f.where(), prefix).number_or("rope_theta", 0, 1, kInfinity);
  };
  c.rope_theta = f.number_or("rope_theta", theta(*main, "rope_parameters.main."), 1, kInfinity);
  c.compress_rope_theta =
      f.number_or("compress_rope_theta", theta(*compress, "rope_parameters.compress."), 1, kInfinity);
  if (c.rope_theta < 1) f.fail("rope_theta", " is missing");
  if (c.compress_rope_theta < 1) f.fail("compress_rope_theta", " is missing");
  if (read_scaling(f, *main, "rope_parameters.main.", options, c, c.rope_theta)) {
    f.fail("rope_parameters.main.rope_type", ": 'yarn' is not supported; supported: default");
  }
  c.rope_scaling = read_scaling(f, *compress, "rope_parameters.compress.", options, c, c.compress_rope_theta);
}

void read_compress_rates(JsonFields& f, const ConfigOptions& options, Config& c) {
  f.integer_or("compress_rate_csa", kCsaRatio, kCsaRatio, kCsaRatio);
  f.integer_or("compress_rate_hca", kHcaRatio, kHcaRatio, kHcaRatio);
  if (!f.has("compress_rates")) return;
  if (const Json* rates = f.object("compress_rates")) {
    JsonFields r(*rates, f.where(), "compress_rates.");
    r.integer_or(kSparse, kCsaRatio, kCsaRatio, kCsaRatio);
    r.integer_or(kHeavy, kHcaRatio, kHcaRatio, kHcaRatio);
    r.integer_or(kSliding, 0, 0, 0);
    f.absorb(r.finish(options.unknown_keys, &c.warnings));
  }
}

// compress_ratios, or layer_types of the Transformers schema, which leaves the MTP layers out (their ratio is 0).
void read_layer_kinds(JsonFields& f, Config& c) {
  if (f.has("compress_ratios")) {
    c.compress_ratios = f.integers("compress_ratios");
    for (size_t l = 0; l < c.compress_ratios.size(); ++l) {
      const int64_t ratio = c.compress_ratios[l];
      if (ratio != 0 && ratio != kCsaRatio && ratio != kHcaRatio) {
        f.fail(fmt::format("compress_ratios[{}]", l),
               fmt::format(": {} is not supported; supported: 0, 4, 128", ratio));
      }
    }
  }
  if (f.has("layer_types")) {
    std::vector<int64_t> ratios;
    for (const std::string& type : f.strings("layer_types")) {
      if (type != kSliding && type != kSparse && type != kHeavy) {
        f.fail(fmt::format("layer_types[{}]", ratios.size()),
               fmt::format(": '{}' is not supported; supported: {}, {}, {}", type, kSliding, kSparse, kHeavy));
      }
      ratios.push_back(type == kSparse ? kCsaRatio : type == kHeavy ? kHcaRatio : 0);
    }
    if (static_cast<int64_t>(ratios.size()) != c.num_hidden_layers) {
      f.fail("layer_types", fmt::format(": {} entries for num_hidden_layers {}", ratios.size(), c.num_hidden_layers));
    }
    ratios.resize(c.num_hidden_layers + c.num_mtp_layers(), 0);
    if (c.compress_ratios.empty()) {
      c.compress_ratios = ratios;
    } else if (c.compress_ratios != ratios) {
      f.fail("layer_types", " differs from compress_ratios");
    }
  }
  if (c.compress_ratios.empty()) f.fail("compress_ratios", " is missing");
  const int64_t layers = c.num_hidden_layers + c.num_mtp_layers();
  if (static_cast<int64_t>(c.compress_ratios.size()) != layers) {
    f.fail("compress_ratios", fmt::format(": {} entries for num_hidden_layers {} + {} draft layers",
                                          c.compress_ratios.size(), c.num_hidden_layers, c.num_mtp_layers()));
  }
  for (int64_t l = c.num_hidden_layers; f.status().ok() && l < layers; ++l) {
    if (c.compress_ratios[l] != 0) {
      f.fail(fmt::format("compress_ratios[{}]", l),
             fmt::format(": {} in a draft layer; supported: 0", c.compress_ratios[l]));
    }
  }
}

void read_hash_layers(JsonFields& f, Config& c) {
  if (!f.has("mlp_layer_types")) {
    c.num_hash_layers = f.integer("num_hash_layers", 0, c.num_hidden_layers);
    return f.informational({"mlp_layer_types"});
  }
  int64_t hash = 0, l = 0;
  for (const std::string& type : f.strings("mlp_layer_types")) {
    if (type != "hash_moe" && type != "moe") {
      f.fail(fmt::format("mlp_layer_types[{}]", l),
             fmt::format(": '{}' is not supported; supported: hash_moe, moe", type));
    }
    if (type == "hash_moe" && hash++ != l) f.fail("mlp_layer_types", ": hash_moe layers must come first");
    ++l;
  }
  if (l != c.num_hidden_layers) {
    f.fail("mlp_layer_types", fmt::format(": {} entries for num_hidden_layers {}", l, c.num_hidden_layers));
  }
  c.num_hash_layers = hash;
  if (f.integer_or("num_hash_layers", hash) != hash) f.fail("num_hash_layers", " differs from mlp_layer_types");
}

void read_dspark(JsonFields& f, Config& c) {
  if (!f.has("dspark_target_layer_ids")) {
    for (const char* key : {"dspark_block_size", "dspark_noise_token_id", "dspark_markov_rank"}) {
      if (f.has(key)) f.fail(key, " is given without dspark_target_layer_ids");
    }
    return;
  }
  DSpark d;
  d.target_layer_ids = f.integers("dspark_target_layer_ids", 0, c.num_hidden_layers - 1);
  d.block_size = f.integer("dspark_block_size", 1, 64);
  d.noise_token_id = f.integer("dspark_noise_token_id", 0, c.vocab_size - 1);
  d.markov_rank = f.integer("dspark_markov_rank", 1);
  if (d.target_layer_ids.empty()) f.fail("dspark_target_layer_ids", " is empty");
  c.dspark = std::move(d);
}

void read_quantization(JsonFields& f, const ConfigOptions& options, Config& c) {
  c.expert_dtype = f.one_of_if("expert_dtype", {"fp4", "fp8"});
  if (!f.has("quantization_config")) {
    if (c.expert_dtype) f.fail("expert_dtype", ": given without quantization_config");
    return f.informational({"quantization_config"});
  }
  const Json* quantization = f.object("quantization_config");
  if (quantization == nullptr) return;
  JsonFields q(*quantization, f.where(), "quantization_config.");
  q.one_of("quant_method", {"fp8"});
  q.one_of_if("fmt", {"e4m3"});
  q.one_of_if("scale_fmt", {"ue8m0"});
  q.one_of_if("activation_scheme", {"dynamic"});
  const std::vector<int64_t> block = q.integers("weight_block_size", 1);
  if (block != std::vector<int64_t>{kFp8Block, kFp8Block}) {
    q.fail("weight_block_size", ": only [128, 128] is supported");
  }
  q.must_be("dequantize", false);
  q.informational({"modules_to_not_convert"});  // storage is taken from the files
  f.absorb(q.finish(options.unknown_keys, &c.warnings));
  c.fp8 = true;
}

void check_relations(JsonFields& f, const Config& c) {
  if (!f.status().ok()) return;  // the numbers may be placeholders
  const auto divides = [&](std::string_view key, int64_t value, std::string_view by, int64_t divisor) {
    if (value % divisor != 0) f.fail(key, fmt::format(" {} is not divisible by {} {}", value, by, divisor));
  };
  divides("num_attention_heads", c.num_attention_heads, "o_groups", c.o_groups);
  const Width widths[] = {
      {"vocab_size", {c.vocab_size}},
      {"hidden_size", {c.hidden_size}, true},
      {"hc_mult x hidden_size", {c.hc_mult, c.hidden_size}, true},
      {"q_lora_rank", {c.q_lora_rank}, true},
      {"num_attention_heads x head_dim", {c.num_attention_heads, c.head_dim}},
      {"num_attention_heads / o_groups x head_dim", {c.num_attention_heads / c.o_groups, c.head_dim}, true},
      {"o_groups x o_lora_rank", {c.o_groups, c.o_lora_rank}, true},
      {"head_dim", {2, c.head_dim}},  // of two halves in compressors
      {"index_n_heads x index_head_dim", {c.index_n_heads, c.index_head_dim}},
      {"index_topk", {c.index_topk}},
      {"sliding_window", {c.sliding_window}},
      {"moe_intermediate_size", {c.moe_intermediate_size}, true},
      {"dspark_markov_rank", {c.dspark ? c.dspark->markov_rank : 0}},
      {"draft layers x hidden_size", {c.num_mtp_layers(), c.hidden_size}},
  };
  check_widths(f, widths);
  divides("qk_rope_head_dim", c.qk_rope_head_dim, "the pair size", 2);
  if (c.qk_rope_head_dim > c.head_dim) {
    f.fail("qk_rope_head_dim", fmt::format(" {} is above head_dim {}", c.qk_rope_head_dim, c.head_dim));
  }
  if (c.qk_rope_head_dim > c.index_head_dim) {
    f.fail("qk_rope_head_dim", fmt::format(" {} is above index_head_dim {}", c.qk_rope_head_dim, c.index_head_dim));
  }
  // The index keys are rotated by a Walsh-Hadamard matrix, whose order is a power of two.
  if ((c.index_head_dim & (c.index_head_dim - 1)) != 0) {
    f.fail("index_head_dim", fmt::format(" {} is not a power of two", c.index_head_dim));
  }
  if (c.num_experts_per_tok > c.n_routed_experts) {
    f.fail("num_experts_per_tok",
           fmt::format(" {} is above n_routed_experts {}", c.num_experts_per_tok, c.n_routed_experts));
  }
  if (c.fp8 && c.expert_dtype.value_or("fp4") == "fp4") {
    divides("hidden_size", c.hidden_size, "the FP4 scale block", kFp4Block);
    divides("moe_intermediate_size", c.moe_intermediate_size, "the FP4 scale block", kFp4Block);
  }
}

}  // namespace

int64_t Config::num_mtp_layers() const {
  return dspark ? static_cast<int64_t>(dspark->target_layer_ids.size()) : num_nextn_predict_layers;
}

LayerKind Config::layer_kind(int64_t layer) const {
  WEFT_CHECK(0 <= layer && layer < static_cast<int64_t>(compress_ratios.size()), "layer {}", layer);
  const int64_t ratio = compress_ratios[layer];
  return ratio == kCsaRatio ? LayerKind::kCsa : ratio == kHcaRatio ? LayerKind::kHca : LayerKind::kSwa;
}

Result<Config> parse_config(const Json& json, const std::string& where, const ConfigOptions& options) {
  WEFT_RETURN_IF_ERROR(refuse_other_architectures(json, where));
  JsonFields f(json, where);
  Config c;
  read_fixed(f);
  read_dims(f, c);
  read_tokens(f, json, c);
  read_aliases(f, c);
  read_rope_dims(f, c);
  read_rope(f, options, c);
  read_dspark(f, c);
  read_compress_rates(f, options, c);
  read_layer_kinds(f, c);
  read_hash_layers(f, c);
  read_quantization(f, options, c);
  read_informational(f);
  check_relations(f, c);
  WEFT_RETURN_IF_ERROR(f.finish(options.unknown_keys, &c.warnings));
  return c;
}

}  // namespace weft::deepseek_v4
