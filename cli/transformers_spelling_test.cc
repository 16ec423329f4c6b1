// A checkpoint as Transformers writes it (its config schema, its tensor names, experts stacked) gives the text of the
// same checkpoint as released. The names come from a table of this file, not from the one that binds them.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <regex>

#include "cli/test_support.h"
#include "io/checkpoint.h"
#include "io/safetensors_writer.h"
#include "io/test_files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const fs::path kSample = fs::path(WEFT_SOURCE_DIR) / "testdata/sample/austen-v4";

struct Tensor {
  TensorType type;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

// Applied in this order, each to the whole name.
const std::pair<const char*, const char*> kRenames[] = {
    {R"(^embed\.)", "model.embed_tokens."},
    {R"(^head\.)", "lm_head."},
    {R"(^norm\.)", "model.norm."},
    {R"(^hc_head_(fn|base|scale)$)", "model.hc_head.hc_$1"},
    {R"(^layers\.)", "model.layers."},
    {R"(\.attn_norm\.)", ".input_layernorm."},
    {R"(\.ffn_norm\.)", ".post_attention_layernorm."},
    {R"(\.hc_(attn|ffn)_(fn|base|scale)$)", ".$1_hc.$2"},
    {R"(\.attn\.indexer\.wq_b\.)", ".self_attn.compressor.indexer.q_b_proj."},
    {R"(\.attn\.indexer\.weights_proj\.)", ".self_attn.compressor.indexer.scorer.weights_proj."},
    {R"(\.attn\.indexer\.compressor\.)", ".self_attn.compressor.indexer."},
    {R"(\.attn\.compressor\.)", ".self_attn.compressor."},
    {R"(\.(compressor(?:\.indexer)?)\.wkv\.)", ".$1.kv_proj."},
    {R"(\.(compressor(?:\.indexer)?)\.wgate\.)", ".$1.gate_proj."},
    {R"(\.(compressor(?:\.indexer)?)\.ape$)", ".$1.position_bias"},
    {R"(\.(compressor(?:\.indexer)?)\.norm\.)", ".$1.kv_norm."},
    {R"(\.attn\.attn_sink$)", ".self_attn.sinks"},
    {R"(\.attn\.wq_a\.)", ".self_attn.q_a_proj."},
    {R"(\.attn\.q_norm\.)", ".self_attn.q_a_norm."},
    {R"(\.attn\.wq_b\.)", ".self_attn.q_b_proj."},
    {R"(\.attn\.wkv\.)", ".self_attn.kv_proj."},
    {R"(\.attn\.kv_norm\.)", ".self_attn.kv_norm."},
    {R"(\.attn\.wo_(a|b)\.)", ".self_attn.o_$1_proj."},
    {R"(\.ffn\.gate\.bias$)", ".mlp.gate.e_score_correction_bias"},
    {R"(\.ffn\.)", ".mlp."},
    {R"(\.shared_experts\.w1\.)", ".shared_experts.gate_proj."},
    {R"(\.shared_experts\.w2\.)", ".shared_experts.down_proj."},
    {R"(\.shared_experts\.w3\.)", ".shared_experts.up_proj."},
    {R"(_proj\.scale$)", "_proj.weight_scale_inv"},
};

Tensors released() {
  Tensors tensors;
  const Checkpoint checkpoint = Checkpoint::open(kSample).value();
  for (const auto& entry : checkpoint.entries()) {
    tensors[std::string(entry.name)] = {
        entry.type, std::string(reinterpret_cast<const char*>(entry.data), static_cast<size_t>(entry.type.bytes()))};
  }
  return tensors;
}

// [experts, rows, cols]: of each expert w1 and below it w3, or w2.
Tensor stacked(const Tensors& official, const std::string& prefix, int64_t experts, bool gate_up, const char* part) {
  Tensor result;
  for (int64_t e = 0; e < experts; ++e) {
    for (const char* w : gate_up ? std::vector{"w1", "w3"} : std::vector{"w2"}) {
      const Tensor& one = official.at(fmt::format("{}{}.{}.{}", prefix, e, w, part));
      result.bytes += one.bytes;
      result.type = {one.type.dtype, {experts, (gate_up ? 2 : 1) * one.type.shape[0], one.type.shape[1]}};
    }
  }
  return result;
}

Tensors transformers_tensors(const Tensors& official, int64_t experts) {
  Tensors result;
  for (const auto& [name, tensor] : official) {
    if (name.starts_with("mtp.")) continue;  // Transformers leaves the draft layers out
    const size_t at = name.find(".ffn.experts.");
    if (at == std::string::npos) {
      std::string renamed = name;
      for (const auto& [from, to] : kRenames) renamed = std::regex_replace(renamed, std::regex(from), to);
      EXPECT_TRUE(result.emplace(renamed, tensor).second) << renamed;
      continue;
    }
    if (!name.ends_with(".experts.0.w1.weight")) continue;  // once per layer
    const std::string prefix = name.substr(0, at) + ".ffn.experts.";
    const std::string stem = "model." + name.substr(0, at) + ".mlp.experts.";
    result[stem + "gate_up_proj"] = stacked(official, prefix, experts, true, "weight");
    result[stem + "down_proj"] = stacked(official, prefix, experts, false, "weight");
    result[stem + "gate_up_proj_scale_inv"] = stacked(official, prefix, experts, true, "scale");
    result[stem + "down_proj_scale_inv"] = stacked(official, prefix, experts, false, "scale");
  }
  return result;
}

Json transformers_config(Json config) {
  const std::map<int64_t, const char*> kinds = {
      {0, "sliding_attention"}, {4, "compressed_sparse_attention"}, {128, "heavily_compressed_attention"}};
  const auto layers = config["num_hidden_layers"].get<size_t>(), hash = config["num_hash_layers"].get<size_t>();
  Json layer_types = Json::array(), mlp_layer_types = Json::array();
  for (size_t l = 0; l < layers; ++l) {
    layer_types.push_back(kinds.at(config["compress_ratios"][l].get<int64_t>()));
    mlp_layer_types.push_back(l < hash ? "hash_moe" : "moe");
  }
  const double rotary = config["qk_rope_head_dim"].get<double>() / config["head_dim"].get<double>();
  Json compress = config["rope_scaling"];
  compress["rope_type"] = "yarn";
  compress["rope_theta"] = config["compress_rope_theta"];
  compress["partial_rotary_factor"] = rotary;
  compress["attention_factor"] = 1.0;
  config["rope_parameters"] = {
      {"main", {{"rope_type", "default"}, {"rope_theta", config["rope_theta"]}, {"partial_rotary_factor", rotary}}},
      {"compress", compress}};
  config["layer_types"] = layer_types;
  config["mlp_layer_types"] = mlp_layer_types;
  config["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  config["partial_rotary_factor"] = rotary;
  config["dtype"] = "bfloat16";
  for (const char* key : {"compress_ratios", "num_hash_layers", "rope_scaling", "rope_theta", "compress_rope_theta",
                          "topk_method", "torch_dtype", "qk_rope_head_dim"}) {
    config.erase(key);
  }
  return config;
}

TEST(TransformersSpelling, GivesTheSameText) {
  const Json config = read_json_file(kSample / "config.json").value();
  const Tensors tensors = transformers_tensors(released(), config["n_routed_experts"].get<int64_t>());
  const TempDir dir;
  dir.put("config.json", transformers_config(config).dump());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    fs::copy(kSample / name, dir.path() / name);
  }
  std::vector<NamedTensorType> list;
  for (const auto& [name, tensor] : tensors) list.push_back({name, tensor.type});
  auto writer = SafetensorsWriter::create(dir.path() / "model.safetensors", list);
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(writer->write(std::as_bytes(std::span(tensor.bytes))).ok()) << name;
  }
  ASSERT_TRUE(writer->finish().ok());

  const Json want = read_json_file(kSample / "expected.json").value();
  const std::string prompt = want["prompt"];
  ASSERT_EQ(prompt.find('\''), std::string::npos);
  for (const char* dtype : {"f32", "bf16"}) {
    const auto greedy = [&](const fs::path& model) {
      return run_json(fmt::format("run '{}' --dtype {} --temperature 0 --max-tokens {} -p '{}'", model.string(), dtype,
                                  want["greedy_ids"].size(), prompt));
    };
    const Json got = greedy(dir.path()), same = greedy(kSample);
    EXPECT_EQ(got["tokens"].size(), want["greedy_ids"].size());
    EXPECT_EQ(got["tokens"], same["tokens"]) << dtype;
    if (std::string_view(dtype) == "f32") {
      EXPECT_EQ(got["tokens"], want["greedy_ids"]);
    }
  }
  const Json seen = run_json(fmt::format("inspect '{}'", dir.path().string()));
  EXPECT_NE(seen["unusual"].dump().find("the tensors have Transformers names"), std::string::npos) << seen["unusual"];
}

}  // namespace
}  // namespace weft
