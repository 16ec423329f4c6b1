#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>

#include <fmt/format.h>

#include "io/safetensors_writer.h"
#include "io/test_files.h"
#include "models/deepseek_v4/weights.h"

namespace weft::deepseek_v4 {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(WEFT_SOURCE_DIR) / "testdata/golden/deepseek_v4";

Result<BoundWeights> open_and_bind(const std::filesystem::path& dir) {
  WEFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(dir));
  WEFT_ASSIGN_OR_RETURN(const Config config, parse_config(checkpoint.config(), checkpoint.config_name()));
  return bind(config, checkpoint);
}

// A checkpoint in memory: names with type and bytes, to change and write.
struct Model {
  std::string config;
  std::map<std::string, std::pair<TensorType, std::string>> tensors;

  static Model load(const std::filesystem::path& dir) {
    const auto checkpoint = Checkpoint::open(dir);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    Model m;
    m.config = checkpoint->config().dump();
    for (const auto& e : checkpoint->entries()) {
      m.tensors[std::string(e.name)] = {e.type, std::string(reinterpret_cast<const char*>(e.data), e.type.bytes())};
    }
    return m;
  }

  void write(const TempDir& dir) const {
    dir.put("config.json", config);
    std::vector<NamedTensorType> list;
    for (const auto& [name, tensor] : tensors) list.push_back({name, tensor.first});
    auto writer = SafetensorsWriter::create(dir.path() / "model.safetensors", list);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    for (const auto& [name, tensor] : tensors) ASSERT_TRUE(writer->write(std::as_bytes(std::span(tensor.second))).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
};

TEST(Bind, GoldenCases) {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    SCOPED_TRACE(entry.path());
    const auto bound = open_and_bind(entry.path());
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    ++cases;
    const BoundWeight* wq_a = bound->find("layers.0.attn.wq_a");
    ASSERT_NE(wq_a, nullptr);
    EXPECT_NE(wq_a->weight.data, nullptr);
    EXPECT_EQ(wq_a->scale.has_value(), wq_a->weight.dtype() == DType::kF8E4M3);
    const BoundWeight* w1 = bound->find("layers.0.ffn.experts.w1");
    ASSERT_NE(w1, nullptr);
    EXPECT_EQ(w1->weight.data, nullptr);
    EXPECT_EQ(static_cast<int64_t>(w1->weight.parts.size()), w1->weight.shape()[0]);
    EXPECT_EQ(bound->find("layers.0.attn.wq_a.weight"), nullptr);
    EXPECT_EQ(bound->has_mtp(), bound->find("mtp.0.e_proj") != nullptr);
  }
  EXPECT_EQ(cases, 5);
}

TEST(Bind, StorageIsDetected) {
  const auto bound = open_and_bind(kGolden / "f32_fp8_fp4");
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  EXPECT_EQ(bound->storage().linear, DType::kF8E4M3);
  EXPECT_EQ(bound->storage().expert, DType::kF4E2M1);
  EXPECT_EQ(to_string(bound->find("layers.1.ffn.experts.w2")->weight.type), "F4_E2M1[4,128,128]");
  EXPECT_EQ(to_string(bound->find("layers.1.ffn.experts.w2")->scale->type), "F8_E8M0[4,128,4]");
  EXPECT_EQ(bound->find("layers.1.ffn.experts.w2")->scale->parts.size(), 4u);
  EXPECT_TRUE(bound->notes().empty());

  // Without expert_dtype the files decide, and the result says so.
  TempDir dir;
  Model model = Model::load(kGolden / "f32_fp8_fp4");
  Json config = Json::parse(model.config);
  config.erase("expert_dtype");
  model.config = config.dump();
  model.write(dir);
  const auto detected = open_and_bind(dir.path());
  ASSERT_TRUE(detected.ok()) << detected.status().message();
  ASSERT_EQ(detected->notes().size(), 1u);
  EXPECT_EQ(detected->notes()[0], "config.json has no expert_dtype; the files hold F4_E2M1 experts");

  const auto plain = open_and_bind(kGolden / "f32_small");
  EXPECT_EQ(plain->storage().expert, DType::kBF16);
}

// The official tensors under their Transformers names, experts stacked.
Model to_transformers(const Model& official, const Config& config, const Storage& storage) {
  Model hf;
  hf.config = official.config;
  for (const Weight& w : weights(config, storage)) {
    if (w.mtp) continue;
    if (w.num_experts == 0) {
      hf.tensors[w.hf_name] = official.tensors.at(w.tensor_name);
      if (w.scale) hf.tensors[w.hf_scale_name] = official.tensors.at(w.scale_name);
      continue;
    }
    if (w.name.ends_with(".w3")) continue;  // inside gate_up_proj
    const bool gate_up = w.name.ends_with(".w1");
    for (const bool scale : {false, true}) {
      if (scale && !w.scale) continue;
      auto& [type, bytes] = hf.tensors[scale ? w.hf_scale_name : w.hf_name];
      type = scale ? *w.scale : stored_type(w.type);
      if (gate_up) type.shape[1] *= 2;
      for (int64_t e = 0; e < w.num_experts; ++e) {
        std::string name = expert_name(scale ? w.scale_name : w.tensor_name, e);
        bytes += official.tensors.at(name).second;
        if (gate_up) bytes += official.tensors.at(name.replace(name.rfind(".w1."), 4, ".w3.")).second;
      }
    }
  }
  return hf;
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  if (a.type != b.type || a.parts.size() != b.parts.size()) return false;
  if (a.parts.empty()) return std::memcmp(a.data, b.data, a.type.bytes()) == 0;
  const int64_t each = a.type.bytes() / static_cast<int64_t>(a.parts.size());
  for (size_t e = 0; e < a.parts.size(); ++e) {
    if (std::memcmp(a.parts[e], b.parts[e], each) != 0) return false;
  }
  return true;
}

TEST(Bind, TransformersSpellingGivesTheSameWeights) {
  for (const char* name : {"f32_small", "f32_fp8_fp4", "mtp_f32"}) {
    SCOPED_TRACE(name);
    const auto official = open_and_bind(kGolden / name);
    ASSERT_TRUE(official.ok());
    const Model model = Model::load(kGolden / name);
    const auto config = parse_config(Json::parse(model.config), "config.json");
    TempDir dir;
    Model hf = to_transformers(model, *config, official->storage());
    if (std::string_view(name) == "f32_small") {  // an older name of this one
      auto node = hf.tensors.extract("model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight");
      node.key() = "model.layers.2.self_attn.compressor.indexer.weights_proj.weight";
      hf.tensors.insert(std::move(node));
    }
    hf.write(dir);
    const auto bound = open_and_bind(dir.path());
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    for (const BoundWeight& b : bound->bound()) {
      const BoundWeight* other = official->find(b.spec->name);
      ASSERT_NE(other, nullptr);
      EXPECT_TRUE(same_bytes(b.weight, other->weight)) << b.spec->name;
      ASSERT_EQ(b.scale.has_value(), other->scale.has_value());
      EXPECT_TRUE(!b.scale || same_bytes(*b.scale, *other->scale)) << b.spec->name;
    }
    EXPECT_FALSE(bound->has_mtp());
    EXPECT_EQ(bound->notes().size(), official->has_mtp() ? 1u : 0u);
  }
}

TEST(Bind, Errors) {
  using Tensors = std::map<std::string, std::pair<TensorType, std::string>>;
  struct Case { const char* what; const char* golden; std::function<void(Tensors&)> change; const char* message; };
  const auto set = [](Tensors& t, const char* name, TensorType type) {
    t[name] = {type, std::string(type.bytes(), '\0')};
  };
  const Case cases[] = {
      {"missing", "f32_small",
       [](Tensors& t) {
         t.erase("layers.0.attn.wkv.weight");
         t.erase("norm.weight");
       },
       ": the tensors do not fit config.json; missing (2): layers.0.attn.wkv.weight, norm.weight"},
      {"extra", "f32_small",
       [&](Tensors& t) {
         set(t, "layers.0.attn.bias", {DType::kF32, {4}});
       },
       "do not fit config.json; unexpected (1): layers.0.attn.bias"},
      {"shape", "f32_small",
       [&](Tensors& t) {
         set(t, "layers.0.attn.wkv.weight", {DType::kBF16, {32, 32}});
       },
       "wrong (1): 'layers.0.attn.wkv.weight' is BF16[32,32], expected BF16[32,64]"},
      {"dtype", "f32_small",
       [&](Tensors& t) {
         set(t, "layers.0.attn.wkv.weight", {DType::kF16, {32, 64}});
       },
       "'layers.0.attn.wkv.weight' is F16[32,64], expected BF16[32,64]"},
      {"table dtype", "f32_small",
       [&](Tensors& t) {
         set(t, "layers.0.ffn.gate.tid2eid", {DType::kI32, {256, 2}});
       },
       "'layers.0.ffn.gate.tid2eid' is I32[256,2], expected I64[256,2]"},
      {"FP8 without a config", "f32_small",
       [&](Tensors& t) {
         set(t, "layers.0.attn.wkv.weight", {DType::kF8E4M3, {32, 64}});
         set(t, "layers.0.attn.wkv.scale", {DType::kF8E8M0, {1, 1}});
       },
       "'layers.0.attn.wkv.weight' is F8_E4M3 but config.json has no quantization_config"},
      {"scale missing", "f32_fp8_fp4", [](Tensors& t) { t.erase("layers.0.attn.wkv.scale"); },
       "missing (1): layers.0.attn.wkv.scale"},
      {"scale shape", "f32_fp8_fp4",
       [&](Tensors& t) {
         set(t, "layers.0.attn.wo_a.scale", {DType::kF8E8M0, {1, 1}});
       },
       "'layers.0.attn.wo_a.scale' is F8_E8M0[1,1], expected F8_E8M0[2,1]"},
      {"scale without FP8", "f32_fp8_fp4",
       [&](Tensors& t) {
         set(t, "layers.0.attn.wkv.weight", {DType::kBF16, {64, 128}});
       },
       "unexpected (1): layers.0.attn.wkv.scale"},
      {"an expert missing", "f32_fp8_fp4", [](Tensors& t) { t.erase("layers.1.ffn.experts.3.w2.weight"); },
       "missing (1): layers.1.ffn.experts.3.w2.weight"},
      {"an expert of another type", "f32_fp8_fp4",
       [&](Tensors& t) {
         set(t, "layers.1.ffn.experts.3.w2.weight", {DType::kBF16, {128, 128}});
       },
       "'layers.1.ffn.experts.3.w2.weight' is BF16[128,128], expected I8[128,64]"},
      {"no MTP part", "mtp_f32",
       [](Tensors& t) { std::erase_if(t, [](const auto& e) { return e.first.starts_with("mtp."); }); },
       "missing (47): mtp.0.e_proj.weight, mtp.0.h_proj.weight"},
  };
  for (const Case& c : cases) {
    TempDir dir;
    Model model = Model::load(kGolden / c.golden);
    c.change(model.tensors);
    model.write(dir);
    const auto bound = open_and_bind(dir.path());
    ASSERT_FALSE(bound.ok()) << c.what;
    EXPECT_NE(bound.status().message().find(c.message), std::string::npos)
        << c.what << ": " << bound.status().message();
  }
}

TEST(Bind, LongListsAreCut) {
  TempDir dir;
  Model model = Model::load(kGolden / "f32_small");
  std::erase_if(model.tensors, [](const auto& e) { return e.first.starts_with("layers.5."); });
  model.write(dir);
  const std::string message = open_and_bind(dir.path()).status().message();
  EXPECT_NE(message.find("missing (43): layers.5.attn_norm.weight"), std::string::npos) << message;
  EXPECT_TRUE(message.ends_with(", ...")) << message;
  EXPECT_LT(message.size(), 700u);
}

// Every release that the table describes binds when a file has exactly the tensors of the table; DSpark stages too.
TEST(Bind, DSparkStages) {
  Config config;
  {
    Json json = Json::parse(Model::load(kGolden / "f32_fp8_fp4").config);
    json["compress_ratios"] = {0, 4, 128, 0, 0};
    json["dspark_target_layer_ids"] = {1, 2};
    json["dspark_block_size"] = 5;
    json["dspark_noise_token_id"] = 7;
    json["dspark_markov_rank"] = 16;
    Model model;
    model.config = json.dump();
    const auto parsed = parse_config(json, "config.json");
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    config = *parsed;
    for (const FileTensor& t : file_tensors(weights(config, storage_of(config)))) {
      model.tensors[t.name] = {t.type, std::string(t.type.bytes(), '\0')};
    }
    TempDir dir;
    model.write(dir);
    const auto bound = open_and_bind(dir.path());
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    EXPECT_TRUE(bound->has_mtp());
    EXPECT_NE(bound->find("mtp.0.main_proj"), nullptr);
    EXPECT_EQ(bound->find("mtp.0.norm"), nullptr);
    EXPECT_NE(bound->find("mtp.1.markov_head.markov_w1"), nullptr);
  }
}

TEST(Bind, NeedsData) {
  TempDir dir;
  dir.put("config.json", Model::load(kGolden / "f32_small").config);
  const auto checkpoint = Checkpoint::open_headers_only(dir.path());
  const auto config = parse_config(checkpoint->config(), "config.json");
  EXPECT_NE(bind(*config, *checkpoint).status().message().find("the weights are not here"), std::string::npos);
  EXPECT_EQ(detect_storage(*config, *checkpoint).linear, DType::kBF16);
}

}  // namespace
}  // namespace weft::deepseek_v4
