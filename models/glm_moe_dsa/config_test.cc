#include "models/glm_moe_dsa/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

namespace weft::glm_moe_dsa {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(WEFT_SOURCE_DIR) / "model_configs";

Json published(const std::string& name) { return *read_json_file(kConfigs / name / "config.json"); }

Config parse(const Json& json) {
  auto config = parse_config(json, "config.json");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : Config{};
}

std::string error_of(const Json& json) {
  const auto config = parse_config(json, "config.json");
  return config.ok() ? "" : std::string(config.status().message());
}

TEST(GlmConfig, PublishedConfigs) {  // glm_moe_dsa.md 1.1
  struct Case {
    const char* name;
    Release release;
    int64_t layers, heads, q_lora, nope, v, index_heads, groups, kept_groups, full, context, experts_inner;
    double theta, eps, scale;
    bool fp8, ue8m0, share_for_mtp;
  };
  constexpr auto kGlm = Release::kGlm;
  const Case cases[] = {
      {"glm-5", kGlm, 78, 64, 2048, 192, 256, 32, 1, 1, 78, 202752, 2048, 1e6, 1e-5, 0.0625, false, false, false},
      {"glm-5-fp8", kGlm, 78, 64, 2048, 192, 256, 32, 1, 1, 78, 202752, 2048, 1e6, 1e-5, 0.0625, true, false, false},
      {"glm-5.1", kGlm, 78, 64, 2048, 192, 256, 32, 1, 1, 78, 202752, 2048, 1e6, 1e-5, 0.0625, false, false, false},
      {"glm-5.1-fp8", kGlm, 78, 64, 2048, 192, 256, 32, 1, 1, 78, 202752, 2048, 1e6, 1e-5, 0.0625, true, false, false},
      {"glm-5.1-w8a8", kGlm, 78, 64, 2048, 192, 256, 32, 1, 1, 78, 202752, 2048, 1e6, 1e-5, 0.0625, false, false, false},
      {"glm-5.2", kGlm, 78, 64, 2048, 192, 256, 32, 1, 1, 21, 1048576, 2048, 8e6, 1e-5, 0.0625, false, false, true},
      {"glm-5.2-fp8", kGlm, 78, 64, 2048, 192, 256, 32, 1, 1, 21, 1048576, 2048, 8e6, 1e-5, 0.0625, true, false, true},
      {"deepseek-v3.2", Release::kDeepseekV32, 61, 128, 1536, 128, 128, 64, 8, 4, 61, 163840, 2048, 1e4, 1e-6, 0.13523378, true, true,
       false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Config config = parse(published(c.name));
    EXPECT_EQ(config.release, c.release);
    EXPECT_EQ(config.num_hidden_layers, c.layers);
    EXPECT_EQ(config.num_nextn_predict_layers, 1);
    EXPECT_EQ(config.num_attention_heads, c.heads);
    EXPECT_EQ(config.q_lora_rank, c.q_lora);
    EXPECT_EQ(config.key_width(), 576);
    EXPECT_EQ(config.qk_nope_head_dim, c.nope);
    EXPECT_EQ(config.v_head_dim, c.v);
    EXPECT_EQ(config.index_n_heads, c.index_heads);
    EXPECT_EQ(config.index_topk, 2048);
    EXPECT_EQ(config.n_group, c.groups);
    EXPECT_EQ(config.topk_group, c.kept_groups);
    EXPECT_EQ(config.first_k_dense_replace, 3);
    EXPECT_EQ(std::count(config.full_indexer.begin(), config.full_indexer.end(), true), c.full);
    EXPECT_EQ(config.max_position_embeddings, c.context);
    EXPECT_EQ(config.moe_intermediate_size, c.experts_inner);
    EXPECT_EQ(config.rope_theta, c.theta);
    EXPECT_EQ(config.rms_norm_eps, c.eps);
    EXPECT_NEAR(config.softmax_scale(), c.scale, 1e-8);
    EXPECT_EQ(config.fp8, c.fp8);
    EXPECT_EQ(config.scale_ue8m0, c.ue8m0);
    EXPECT_EQ(config.index_share_for_mtp_iteration, c.share_for_mtp);
    EXPECT_EQ(config.indexer_rope_interleave, c.release == kGlm);
    EXPECT_TRUE(config.warnings.empty());
    EXPECT_TRUE(config.has_indexer(config.num_hidden_layers));  // the MTP layer
    EXPECT_FALSE(config.is_dense(config.num_hidden_layers));
  }
}

TEST(GlmConfig, WaysToSayWhichLayersHaveAnIndexer) {  // glm_moe_dsa.md 2.10
  const auto letters = [](const Config& c) {
    std::string text;
    for (const bool full : c.full_indexer) text += full ? 'F' : 'S';
    return text;
  };
  const Json glm52 = published("glm-5.2");
  Json j = glm52;
  j.erase("indexer_types");
  const Config scheduled = parse(j);
  EXPECT_EQ(scheduled, parse(glm52));
  EXPECT_EQ(letters(scheduled).substr(0, 12), "FFFSSSFSSSFS");
  EXPECT_EQ(letters(scheduled).substr(72), "SSFSSS");

  j["num_hidden_layers"] = 8;
  j.erase("mlp_layer_types");
  EXPECT_EQ(letters(parse(j)), "FFFSSSFS");
  j["index_topk_pattern"] = "FSFSSSSF";
  EXPECT_EQ(letters(parse(j)), "FSFSSSSF");
  j["index_topk_pattern"] = {"full", "shared", "full", "full", "full", "full", "full", "shared"};
  EXPECT_EQ(letters(parse(j)), "FSFFFFFS");
  j["index_topk_pattern"] = "FSF";
  EXPECT_EQ(error_of(j), "config.json: index_topk_pattern: 3 entries for num_hidden_layers 8");
  j["index_topk_pattern"] = "FSFSSSSX";
  EXPECT_EQ(error_of(j), "config.json: index_topk_pattern[7]: 'X' is not supported; supported: F, S");
  j["index_topk_pattern"] = "SFFFFFFF";
  EXPECT_EQ(error_of(j), "config.json: indexer_types: layer 0 is shared, but there is no layer before it");

  Json other = glm52;
  other["indexer_types"][5] = "full";
  EXPECT_EQ(error_of(other), "config.json: indexer_types differs from index_topk_pattern or index_topk_freq");
}

// The same models in the schema that Transformers writes.
TEST(GlmConfig, TransformersSchema) {
  Json v32 = published("deepseek-v3.2");
  const Config expected = parse(v32);
  Json rope = v32["rope_scaling"];
  rope["rope_type"] = rope["type"];
  rope.erase("type");
  rope["rope_theta"] = v32["rope_theta"];
  for (const char* key : {"rope_scaling", "rope_theta", "torch_dtype", "scoring_func", "topk_method", "moe_layer_freq", "ep_size"}) v32.erase(key);
  v32["rope_parameters"] = rope;
  v32["dtype"] = "bfloat16";
  v32["head_dim"] = 64;
  v32["qk_head_dim"] = 192;
  v32["mlp_bias"] = false;
  v32["layer_types"] = std::vector<std::string>(61, "deepseek_sparse_attention");
  std::vector<std::string> mlp(61, "sparse");
  std::fill_n(mlp.begin(), 3, "dense");
  v32["mlp_layer_types"] = mlp;
  EXPECT_EQ(parse(v32), expected);
}

TEST(GlmConfig, WhatIsRefused) {
  struct Case {
    const char* key;
    Json value;  // null: the key is erased
    const char* message;
  };
  const Case cases[] = {
      {"index_topk", nullptr, "config.json: index_topk is missing"},
      {"scoring_func", "softmax", "config.json: scoring_func: 'softmax' is not supported; supported: sigmoid"},
      {"n_group", 3, "config.json: n_routed_experts 256 is not divisible by n_group 3"},
      {"topk_group", 2, "config.json: topk_group 2 is above n_group 1"},
      {"index_head_dim", 32, "config.json: qk_rope_head_dim 64 is above index_head_dim 32"},
      {"index_head_dim", 96, "config.json: index_head_dim 96 is not a power of two"},
      {"qk_head_dim", 255, "config.json: qk_head_dim differs from qk_nope_head_dim + qk_rope_head_dim 256"},
      {"indexer_rope_interleave", false, "config.json: indexer_rope_interleave: false is not supported"},
      {"attention_bias", true, "config.json: attention_bias: true is not supported"},
      {"index_share_for_mtp_iteration", "yes", "config.json: index_share_for_mtp_iteration: expected true or false, found a string"},
      {"index_top_k", 1, "config.json: unknown key 'index_top_k'; --allow-unknown-config accepts it"},
      {"architectures", {"DeepseekV32ForCausalLM"},
       "config.json: architectures: 'DeepseekV32ForCausalLM' is not supported; supported: GlmMoeDsaForCausalLM"},
      {"n_routed_experts", 65536, "config.json: n_routed_experts: 65536 is outside 1 .. 2048"},
      {"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}, {"partial_rotary_factor", 0.5}},
       "config.json: rope_parameters.partial_rotary_factor: 0.5 is not supported; supported: 1"},
      {"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 4096}},
       "config.json: rope_parameters.mscale is missing or 0 (attention_factor 1 says that cos and sin are not scaled)"},
      {"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 4096}, {"mscale", 1}},
       "config.json: rope_parameters.mscale_all_dim is missing or 0 (attention_factor 1 says that cos and sin are not scaled)"},
      {"rope_parameters",
       {{"rope_theta", 1e6}, {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 4096}, {"mscale", 1}, {"mscale_all_dim", 2}},
       "config.json: rope_parameters.mscale differs from mscale_all_dim"},
      {"rope_parameters", {{"rope_type", "linear"}}, "config.json: rope_parameters.rope_type: 'linear' is not supported; supported: default, yarn"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    Json j = published("glm-5");
    if (c.value.is_null()) {
      j.erase(c.key);
    } else {
      j[c.key] = c.value;
    }
    EXPECT_EQ(error_of(j), c.message);
  }
  Json unknown = published("glm-5");
  unknown["something"] = 1;
  const auto warned = parse_config(unknown, "config.json", {UnknownKeys::kWarn});
  ASSERT_TRUE(warned.ok());
  EXPECT_EQ(warned->warnings, std::vector<std::string>{"config.json: unknown key 'something'"});
}

TEST(GlmConfig, YarnThatSaysThatNothingIsScaled) {
  Json j = published("glm-5");
  j["rope_parameters"] = {{"rope_theta", 1e6}, {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 4096}, {"attention_factor", 1}};
  EXPECT_EQ(parse(j).softmax_scale(), 0.0625);
}

// Sizes that kernels do not take, and products that cannot be counted with.
TEST(GlmConfig, SizesThatAreRefused) {
  struct Case {
    const char *change, *message;
  };
  const Case cases[] = {
      {R"({"hidden_size": 63})", "hidden_size 63 is not divisible by 4, the unit of the sums of linear layers"},
      {R"({"q_lora_rank": 17})", "q_lora_rank 17 is not divisible by 4"},
      {R"({"kv_lora_rank": 33})", "kv_lora_rank 33 is not divisible by 4"},
      {R"({"qk_nope_head_dim": 1})", "qk_nope_head_dim 1 is not divisible by 4"},
      {R"({"num_attention_heads": 3, "v_head_dim": 5})", "num_attention_heads x v_head_dim 15 is not divisible by 4"},
      {R"({"intermediate_size": 1})", "intermediate_size 1 is not divisible by 4"},
      {R"({"moe_intermediate_size": 17})", "moe_intermediate_size 17 is not divisible by 4"},
      {R"({"vocab_size": 2147483647})", "vocab_size is 2147483647; weft takes sizes up to 4194304"},
      {R"({"num_attention_heads": 2147483647, "qk_nope_head_dim": 2147483644, "v_head_dim": 2147483644})", "qk_nope_head_dim is 2147483644"},
      {R"({"num_attention_heads": 2147483644})", "num_attention_heads x v_head_dim is 549755812864; weft takes sizes up to 4194304"},
      {R"({"q_lora_rank": 2147483644})", "q_lora_rank is 2147483644; weft takes sizes up to 4194304"},
      {R"({"index_n_heads": 65536})", "index_n_heads x index_head_dim is 8388608; weft takes sizes up to 4194304"},
      {R"({"index_topk": 2147483647})", "index_topk is 2147483647; weft takes sizes up to 4194304"},
      {R"({"moe_intermediate_size": 4194304, "n_shared_experts": 2})", "moe_intermediate_size x n_shared_experts is 8388608; weft takes sizes"},
  };
  for (const Case& c : cases) {
    Json j = published("glm-5");
    j.erase("qk_head_dim");  // follows from two of them
    const Json change = Json::parse(c.change);
    for (const auto& [key, value] : change.items()) j[key] = value;
    const std::string message = error_of(j);
    EXPECT_TRUE(message.starts_with("config.json: ") && message.find(c.message) != message.npos) << c.change << ": " << message;
  }
}

}  // namespace
}  // namespace weft::glm_moe_dsa
