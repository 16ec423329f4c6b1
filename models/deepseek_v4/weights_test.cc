// The table against published totals: SOURCES of the model configs, deepseek_v4.md 5.1, 8.1, 8.2.
#include "models/deepseek_v4/weights.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

namespace weft::deepseek_v4 {
namespace {

Config config_of(const std::string& folder) {
  const auto path = std::filesystem::path(WEFT_SOURCE_DIR) / "model_configs" / folder / "config.json";
  auto config = parse_config(*read_json_file(path), path.string());
  EXPECT_TRUE(config.ok()) << config.status().message();
  return *config;
}

std::vector<Weight> table_of(const Config& config) { return weights(config, storage_of(config)); }

int64_t layer_bytes(const std::vector<Weight>& table, int64_t layer, bool mtp = false) {
  int64_t bytes = 0;
  for (const Weight& w : table) bytes += w.layer == layer && w.mtp == mtp ? w.bytes() : 0;
  return bytes;
}

int64_t layer_parameters(const std::vector<Weight>& table, int64_t layer, bool mtp = false) {
  int64_t n = 0;
  for (const Weight& w : table) n += w.layer == layer && w.mtp == mtp ? w.parameters() : 0;
  return n;
}

TEST(Weights, Closure) {
  struct Case { const char* folder; int64_t tensors, bytes_main, bytes, main, with_mtp, active; };
  const Case cases[] = {
      {"deepseek-v4-flash", 69187, 156015698140, 159609485896, 284332240471, 290942289362, 13270101591},
      {"deepseek-v4-flash-20260424", 69187, 156015698140, 159609485896, 284332240471, 290942289362, 13270101591},
      {"deepseek-v4-flash-0731", 72317, 156015698140, 166878536440, 284332240471, 284332240471 + 19845850983,
       13270101591},
      {"deepseek-v4-pro", 145116, 850748205004, 864704792696, 1572997201763, 1598837347742, 48852402019},
      {"deepseek-v4-pro-0813", 149782, 850748205004, 892727580904, 1572997201763, 0, 48852402019},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.folder);
    const Config config = config_of(c.folder);
    const std::vector<Weight> table = table_of(config);
    const Totals t = totals(config, table);
    EXPECT_EQ(t.tensors, c.tensors);
    EXPECT_EQ(t.bytes_main, c.bytes_main);
    EXPECT_EQ(t.bytes(), c.bytes);
    EXPECT_EQ(t.parameters_main, c.main);
    EXPECT_TRUE(c.with_mtp == 0 || t.parameters_main + t.parameters_mtp == c.with_mtp) << t.parameters_mtp;
    EXPECT_EQ(t.parameters_active, c.active);

    int64_t by_component = 0, by_dtype = 0, files = 0;
    for (const auto& [component, bytes] : t.bytes_by_component) by_component += bytes;
    for (const auto& [dtype, bytes] : t.bytes_by_dtype) by_dtype += bytes;
    const std::vector<FileTensor> tensors = file_tensors(table);
    for (const FileTensor& tensor : tensors) files += tensor.type.bytes();
    EXPECT_EQ(by_component, c.bytes);
    EXPECT_EQ(by_dtype, c.bytes);
    EXPECT_EQ(files, c.bytes);
    EXPECT_EQ(static_cast<int64_t>(tensors.size()), c.tensors);
    EXPECT_EQ(t.bytes_by_component.at(Component::kMtp), t.bytes_mtp);
  }
}

TEST(Weights, FlashCensus) {  // deepseek_v4.md 5.1
  const Config config = config_of("deepseek-v4-flash");
  const std::map<DType, int64_t> expected = {{DType::kBF16, 433},    {DType::kF32, 417},     {DType::kF8E4M3, 375},
                                             {DType::kF8E8M0, 34167}, {DType::kF4E2M1, 33792}, {DType::kI64, 3}};
  EXPECT_EQ(totals(config, table_of(config)).tensors_by_dtype, expected);
}

TEST(Weights, BytesPerLayer) {  // 8.1
  const auto flash = table_of(config_of("deepseek-v4-flash"));
  EXPECT_EQ(layer_bytes(flash, 0), 3566148952);       // SWA, hash
  EXPECT_EQ(layer_bytes(flash, 2), 3596055640);       // CSA, hash
  EXPECT_EQ(layer_bytes(flash, 4), 3589851224);       // CSA
  EXPECT_EQ(layer_bytes(flash, 3), 3568596312);       // HCA
  EXPECT_EQ(layer_bytes(flash, 0, true), 3593787756);  // MTP
  const auto pro = table_of(config_of("deepseek-v4-pro"));
  EXPECT_EQ(layer_bytes(pro, 0), 13874466328);
  EXPECT_EQ(layer_bytes(pro, 2), 13909746200);
  EXPECT_EQ(layer_bytes(pro, 3), 13868262424);
  EXPECT_EQ(layer_bytes(pro, 4), 13903542296);
  EXPECT_EQ(layer_bytes(pro, 0, true), 13956587692);
}

TEST(Weights, ParametersPerLayer) {  // 8.1; hash layers lack the bias
  const auto flash = table_of(config_of("deepseek-v4-flash"));
  EXPECT_EQ(layer_parameters(flash, 0), 6576416630 - 256);
  EXPECT_EQ(layer_parameters(flash, 4), 6595558902);
  EXPECT_EQ(layer_parameters(flash, 3), 6580676982);
  EXPECT_EQ(layer_parameters(flash, 0, true), 6610048891);
  const auto pro = table_of(config_of("deepseek-v4-pro"));
  EXPECT_EQ(layer_parameters(pro, 4), 25768646838);
  EXPECT_EQ(layer_parameters(pro, 3), 25744655414);
  EXPECT_EQ(layer_parameters(pro, 0, true), 25840145979);
}

TEST(Weights, BytesPerDecodedToken) {  // 8.2
  struct Case { const char* folder; int64_t layer, bytes; };
  const Case cases[] = {{"deepseek-v4-flash", 0, 217607560},
                        {"deepseek-v4-flash", 4, 247515224},
                        {"deepseek-v4-flash", 3, 226260312},
                        {"deepseek-v4-pro", 3, 602530840},
                        {"deepseek-v4-pro", 4, 637810712}};
  for (const Case& c : cases) {
    const Config config = config_of(c.folder);
    int64_t bytes = 0;
    for (const Weight& w : table_of(config))
      bytes += w.layer == c.layer && !w.mtp ? bytes_per_decoded_token(config, w) : 0;
    EXPECT_EQ(bytes, c.bytes) << c.folder << " layer " << c.layer;
  }
  const Config flash = config_of("deepseek-v4-flash"), pro = config_of("deepseek-v4-pro");
  EXPECT_NEAR(totals(flash, table_of(flash)).bytes_per_decoded_token * 1e-9, 11.218, 0.001);
  EXPECT_NEAR(totals(pro, table_of(pro)).bytes_per_decoded_token * 1e-9, 39.667, 0.001);
}

TEST(Weights, NamesAndTypes) {
  const Config config = config_of("deepseek-v4-flash-0731");
  const auto table = table_of(config);
  struct Case {
    const char* key;
    const char* tensor;
    const char* hf;
    const char* type;
    const char* scale;
    Component component;
  };
  const Case cases[] = {
      {"embed", "embed.weight", "model.embed_tokens.weight", "BF16[129280,4096]", "", Component::kEmbedding},
      {"head", "head.weight", "lm_head.weight", "BF16[129280,4096]", "", Component::kHead},
      {"hc_head_fn", "hc_head_fn", "model.hc_head.hc_fn", "F32[4,16384]", "", Component::kMhc},
      {"layers.3.attn.wq_a", "layers.3.attn.wq_a.weight", "model.layers.3.self_attn.q_a_proj.weight",
       "F8_E4M3[1024,4096]", "F8_E8M0[8,32]", Component::kAttention},
      {"layers.3.attn.wo_a", "layers.3.attn.wo_a.weight", "model.layers.3.self_attn.o_a_proj.weight",
       "F8_E4M3[8192,4096]", "F8_E8M0[64,32]", Component::kAttention},
      {"layers.3.attn.compressor.ape", "layers.3.attn.compressor.ape",
       "model.layers.3.self_attn.compressor.position_bias", "F32[128,512]", "", Component::kCompressor},
      {"layers.2.attn.compressor.ape", "layers.2.attn.compressor.ape",
       "model.layers.2.self_attn.compressor.position_bias", "F32[4,1024]", "", Component::kCompressor},
      {"layers.2.attn.indexer.weights_proj", "layers.2.attn.indexer.weights_proj.weight",
       "model.layers.2.self_attn.compressor.indexer.scorer.weights_proj.weight", "BF16[64,4096]", "",
       Component::kIndexer},
      {"layers.2.ffn.gate.tid2eid", "layers.2.ffn.gate.tid2eid", "model.layers.2.mlp.gate.tid2eid", "I64[129280,6]", "",
       Component::kRouter},
      {"layers.3.ffn.gate.bias", "layers.3.ffn.gate.bias", "model.layers.3.mlp.gate.e_score_correction_bias",
       "F32[256]", "", Component::kRouter},
      {"layers.3.ffn.experts.w1", "layers.3.ffn.experts.{}.w1.weight", "model.layers.3.mlp.experts.gate_up_proj",
       "F4_E2M1[256,2048,4096]", "F8_E8M0[256,2048,128]", Component::kRoutedExperts},
      {"layers.3.ffn.experts.w2", "layers.3.ffn.experts.{}.w2.weight", "model.layers.3.mlp.experts.down_proj",
       "F4_E2M1[256,4096,2048]", "F8_E8M0[256,4096,64]", Component::kRoutedExperts},
      {"mtp.0.main_proj", "mtp.0.main_proj.weight", "", "F8_E4M3[4096,12288]", "F8_E8M0[32,96]", Component::kMtp},
      {"mtp.2.markov_head.markov_w1", "mtp.2.markov_head.markov_w1.weight", "", "BF16[129280,256]", "",
       Component::kMtp},
      {"mtp.2.confidence_head.proj", "mtp.2.confidence_head.proj.weight", "", "BF16[1,4352]", "", Component::kMtp},
  };
  for (const Case& c : cases) {
    const auto it = std::find_if(table.begin(), table.end(), [&](const Weight& w) { return w.name == c.key; });
    ASSERT_NE(it, table.end()) << c.key;
    EXPECT_EQ(it->tensor_name, c.tensor);
    EXPECT_EQ(it->hf_name, c.hf);
    EXPECT_EQ(to_string(it->type), c.type);
    EXPECT_EQ(it->scale ? to_string(*it->scale) : "", c.scale) << c.key;
    EXPECT_EQ(it->component, c.component) << c.key;
  }
  std::set<std::string> names;
  for (const FileTensor& t : file_tensors(table)) EXPECT_TRUE(names.insert(t.name).second) << t.name;
}

TEST(Weights, Storage) {
  Config config = config_of("deepseek-v4-flash-20260424");
  EXPECT_EQ(storage_of(config).expert, DType::kF4E2M1);
  EXPECT_TRUE(storage_of(config).expert_assumed);
  config.expert_dtype = "fp8";
  EXPECT_EQ(storage_of(config).expert, DType::kF8E4M3);
  EXPECT_FALSE(storage_of(config).expert_assumed);
  config.expert_dtype.reset();
  config.fp8 = false;
  EXPECT_EQ(storage_of(config).linear, DType::kBF16);
}

}  // namespace
}  // namespace weft::deepseek_v4
