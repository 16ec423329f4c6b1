#include "models/deepseek_v4/config.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace weft::deepseek_v4 {
namespace {

const std::filesystem::path kRoot = WEFT_SOURCE_DIR;

Json flash() { return *read_json_file(kRoot / "model_configs/deepseek-v4-flash/config.json"); }

Config parse(const Json& json) {
  auto config = parse_config(json, "config.json");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : Config{};
}

TEST(Config, ReleasedFlash) {  // deepseek_v4.md 1.1
  const Config c = parse(flash());
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.num_hidden_layers, 43);
  EXPECT_EQ(c.head_dim, 512);
  EXPECT_EQ(c.index_topk, 512);
  EXPECT_EQ(c.swiglu_limit, 10.0);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.compress_rope_theta, 160000.0);
  EXPECT_EQ(c.rope_scaling, (RopeScaling{16, 32, 1, 65536}));
  EXPECT_EQ(c.num_mtp_layers(), 1);
  EXPECT_EQ(c.layer_kind(1), LayerKind::kSwa);
  EXPECT_EQ(c.layer_kind(2), LayerKind::kCsa);
  EXPECT_EQ(c.layer_kind(3), LayerKind::kHca);
  EXPECT_EQ(c.layer_kind(43), LayerKind::kSwa);
  EXPECT_TRUE(c.is_hash_layer(2));
  EXPECT_FALSE(c.is_hash_layer(3));
  EXPECT_TRUE(c.fp8);
  EXPECT_EQ(c.expert_dtype, "fp4");
  EXPECT_FALSE(c.dspark);
  EXPECT_EQ(c.hc_rows(), 24);
  EXPECT_TRUE(c.warnings.empty());
}

TEST(Config, EveryReleaseAndGoldenCase) {
  for (const char* folder : {"deepseek-v4-flash", "deepseek-v4-flash-0731", "deepseek-v4-flash-20260424",
                             "deepseek-v4-pro", "deepseek-v4-pro-0813"}) {
    SCOPED_TRACE(folder);
    parse(*read_json_file(kRoot / "model_configs" / folder / "config.json"));
  }
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "testdata/golden/deepseek_v4")) {
    SCOPED_TRACE(entry.path());
    parse(*read_json_file(entry.path() / "config.json"));
  }
  const Config pro = parse(*read_json_file(kRoot / "model_configs/deepseek-v4-pro-0813/config.json"));
  ASSERT_TRUE(pro.dspark);
  EXPECT_EQ(*pro.dspark, (DSpark{5, 128799, {58, 59, 60}, 512}));
  EXPECT_EQ(pro.num_mtp_layers(), 3);
  EXPECT_EQ(pro.compress_ratios.size(), 64u);
}

TEST(Config, OtherArchitecturesAreRefused) {
  const auto v41 =
      parse_config(*read_json_file(kRoot / "model_configs/deepseek-v4.1-flash/config.json"), "config.json");
  EXPECT_EQ(v41.status().message(),
            "config.json: model_type 'deepseek_v41': DeepSeek-V4.1 is another architecture and is "
            "not supported; supported: deepseek_v4");
  Json vision = flash();
  vision["vision_config"] = Json::object();
  EXPECT_EQ(parse_config(vision, "config.json").status().message(),
            "config.json: vision_config: models with vision input are not supported");
}

// The same model in the schema that Transformers writes.
Json transformers_flash() {
  Json j = flash();
  Json layer_types = Json::array(), mlp = Json::array();
  for (int l = 0; l < 43; ++l) {
    layer_types.push_back(l < 2        ? "sliding_attention"
                          : l % 2 == 0 ? "compressed_sparse_attention"
                                       : "heavily_compressed_attention");
    mlp.push_back(l < 3 ? "hash_moe" : "moe");
  }
  for (const char* key : {"compress_ratios", "num_hash_layers", "rope_scaling", "rope_theta", "topk_method",
                          "torch_dtype", "qk_rope_head_dim"})
    j.erase(key);
  j["layer_types"] = layer_types;
  j["mlp_layer_types"] = mlp;
  j["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  j["partial_rotary_factor"] = 0.125;
  j["rope_theta"] = 10000.0;
  j["rope_parameters"] = {
      {"main", {{"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.125}}},
      {"compress",
       {{"rope_type", "yarn"},
        {"rope_theta", 160000.0},
        {"partial_rotary_factor", 0.125},
        {"factor", 16},
        {"beta_fast", 32},
        {"beta_slow", 1},
        {"original_max_position_embeddings", 65536},
        {"attention_factor", 1.0},
        {"type", "yarn"}}}};
  j["dtype"] = "bfloat16";
  j["mlp_bias"] = false;
  j["output_router_logits"] = false;
  j["router_aux_loss_coef"] = 0.001;
  j["router_jitter_noise"] = 0.0;
  j["pad_token_id"] = nullptr;
  return j;
}

TEST(Config, TransformersSchemaEqualsReleaseSchema) { EXPECT_EQ(parse(transformers_flash()), parse(flash())); }

// One row per rule: a change of the released config and the message it must give.
TEST(Config, Errors) {
  struct Case { const char* change; const char* message; };
  const Case cases[] = {
      {R"({"model_type": "llama"})", "model_type: 'llama' is not supported; supported: deepseek_v4"},
      {R"({"architectures": ["X"]})", "architectures: 'X' is not supported"},
      {R"({"hidden_size": null})", "hidden_size is missing"},
      {R"({"index_topk": null})", "index_topk is missing"},
      {R"({"swiglu_limit": null})", "swiglu_limit is missing"},
      {R"({"compress_rope_theta": null})", "compress_rope_theta is missing"},
      {R"({"qk_rope_head_dim": null})", "qk_rope_head_dim is missing"},
      {R"({"hidden_size": 0})", "hidden_size: 0 is outside 1 .. 2147483647"},
      {R"({"hidden_size": "4096"})", "hidden_size: expected an integer, found a string"},
      {R"({"index_topk": 0})", "index_topk: 0 is outside"},
      {R"({"num_key_value_heads": 8})", "num_key_value_heads: 8 is outside 1 .. 1"},
      {R"({"n_shared_experts": 2})", "n_shared_experts: 2 is outside 1 .. 1"},
      {R"({"num_experts_per_tok": 257})", "num_experts_per_tok 257 is above n_routed_experts 256"},
      {R"({"o_groups": 7})", "num_attention_heads 64 is not divisible by o_groups 7"},
      {R"({"qk_rope_head_dim": 63})", "qk_rope_head_dim 63 is not divisible by the pair size 2"},
      {R"({"qk_rope_head_dim": 1024})", "qk_rope_head_dim 1024 is above head_dim 512"},
      {R"({"qk_rope_head_dim": 256})", "qk_rope_head_dim 256 is above index_head_dim 128"},
      {R"({"index_head_dim": 96})", "index_head_dim 96 is not a power of two"},
      {R"({"moe_intermediate_size": 2040})", "moe_intermediate_size 2040 is not divisible by the FP4 scale block 32"},
      {R"({"torch_dtype": "int3"})", "torch_dtype: 'int3' is not supported; supported: bfloat16, float16, float32"},
      {R"({"hidden_act": "gelu"})", "hidden_act: 'gelu' is not supported; supported: silu"},
      {R"({"scoring_func": "sigmoid"})", "scoring_func: 'sigmoid' is not supported; supported: sqrtsoftplus"},
      {R"({"topk_method": "greedy"})", "topk_method: 'greedy' is not supported; supported: noaux_tc"},
      {R"({"norm_topk_prob": false})", "norm_topk_prob: false is not supported"},
      {R"({"attention_bias": true})", "attention_bias: true is not supported"},
      {R"({"tie_word_embeddings": true})", "tie_word_embeddings: true is not supported"},
      {R"({"num_hash_layers": 44})", "num_hash_layers: 44 is outside 0 .. 43"},
      {R"({"compress_ratios": [0, 0, 8]})", "compress_ratios[2]: 8 is not supported; supported: 0, 4, 128"},
      {R"({"compress_ratios": [0, 0, 4]})", "compress_ratios: 3 entries for num_hidden_layers 43 + 1 draft layers"},
      {R"({"num_nextn_predict_layers": 2})", "compress_ratios: 44 entries for num_hidden_layers 43 + 2 draft layers"},
      {R"({"num_nextn_predict_layers": 0})", "compress_ratios: 44 entries for num_hidden_layers 43 + 0 draft layers"},
      {R"({"rope_scaling": {"type": "linear", "factor": 2}})",
       "rope_scaling.type: 'linear' is not supported; supported: yarn, default"},
      {R"({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 65536}})",
       "rope_scaling.factor is missing"},
      {R"({"rope_scaling": {"type": "yarn", "rope_type": "default"}})", "rope_scaling.type differs from rope_type"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 1, "mscale": 1}})",
       "unknown key 'rope_scaling.mscale'"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 1, "rope_theta": 5}})",
       "rope_scaling.rope_theta differs from 10000"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 1, "beta_fast": 1}})",
       "rope_scaling.beta_fast must be above beta_slow"},
      {R"({"rope_scaling": 1})", "rope_scaling: expected an object, found an integer"},
      {R"({"quantization_config": {"quant_method": "awq", "weight_block_size": [128, 128]}})",
       "quantization_config.quant_method: 'awq' is not supported; supported: fp8"},
      {R"({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128]}})",
       "quantization_config.fmt: 'e5m2' is not supported"},
      {R"({"quantization_config": {"quant_method": "fp8", "scale_fmt": "f32", "weight_block_size": [128, 128]}})",
       "quantization_config.scale_fmt: 'f32' is not supported"},
      {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}})",
       "quantization_config.weight_block_size: only [128, 128] is supported"},
      {R"({"quantization_config": {"quant_method": "fp8"}})", "quantization_config.weight_block_size is missing"},
      {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "x": 1}})",
       "unknown key 'quantization_config.x'"},
      {R"({"quantization_config": null})", "expert_dtype: given without quantization_config"},
      {R"({"expert_dtype": "int4"})", "expert_dtype: 'int4' is not supported; supported: fp4, fp8"},
      {R"({"dspark_markov_rank": 256})", "dspark_markov_rank is given without dspark_target_layer_ids"},
      {R"({"dspark_target_layer_ids": [43]})", "dspark_target_layer_ids[0]: 43 is outside 0 .. 42"},
      {R"({"dspark_target_layer_ids": [40, 41, 42]})", "dspark_block_size is missing"},
      {R"({"eos_token_id": 129280})", "eos_token_id: 129280 is outside 0 .. 129279"},
      {R"({"intermediate_size": 1})", "intermediate_size differs from moe_intermediate_size 2048"},
      {R"({"layer_types": ["sliding_attention"]})", "layer_types: 1 entries for num_hidden_layers 43"},
      {R"({"mlp_layer_types": ["moe", "hash_moe"]})", "mlp_layer_types: hash_moe layers must come first"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor: 0.5 of head_dim 512 is not qk_rope_head_dim 64"},
      {R"({"n_routed_experts": 65536})", "n_routed_experts: 65536 is outside 1 .. 2048"},
      {R"({"hidden_size": 4099})", "hidden_size 4099 is not divisible by 4, the unit of the sums of linear layers"},
      {R"({"q_lora_rank": 1})", "q_lora_rank 1 is not divisible by 4"},
      {R"({"o_lora_rank": 3, "o_groups": 2})", "o_groups x o_lora_rank 6 is not divisible by 4"},
      {R"({"moe_intermediate_size": 2147483644})", "moe_intermediate_size is 2147483644; weft takes sizes up to 4194304"},
      {R"({"num_attention_heads": 2147483640})", "num_attention_heads x head_dim is 1099511623680; weft takes sizes up to 4194304"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 1, "partial_rotary_factor": 0.5}})",
       "rope_scaling.partial_rotary_factor: 0.5 of head_dim 512 is not qk_rope_head_dim 64"},
      {R"({"engram_layer_ids": [1]})", "unknown key 'engram_layer_ids'; --allow-unknown-config"},
  };
  for (const Case& c : cases) {
    Json json = flash();
    const Json change = Json::parse(c.change);
    for (const auto& [key, value] : change.items()) json[key] = value;
    const auto config = parse_config(json, "config.json");
    ASSERT_FALSE(config.ok()) << c.change;
    EXPECT_TRUE(config.status().message().starts_with("config.json: ")) << config.status().message();
    EXPECT_NE(config.status().message().find(c.message), std::string::npos)
        << c.change << ": " << config.status().message();
  }
}

TEST(Config, UnknownKeysAsWarnings) {
  Json json = flash();
  json["new_field"] = 1;
  json["rope_scaling"]["other"] = 2;
  const auto config = parse_config(json, "config.json", {.unknown_keys = UnknownKeys::kWarn});
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->warnings, (std::vector<std::string>{"config.json: unknown key 'rope_scaling.other'",
                                                        "config.json: unknown key 'new_field'"}));
}

}  // namespace
}  // namespace weft::deepseek_v4
