// The weights table against published totals: SOURCES of the model configs, glm_moe_dsa.md 5.2, 5.3, 8.1; and against the golden
// checkpoints, whose tensors must all be used.
#include "models/glm_moe_dsa/inspect.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>
#include <set>

#include "io/test_files.h"

namespace weft::glm_moe_dsa {
namespace {

const std::filesystem::path kSource = WEFT_SOURCE_DIR;

Config config_of(const Checkpoint& checkpoint) {
  auto config = parse_config(checkpoint.config(), checkpoint.config_name());
  EXPECT_TRUE(config.ok()) << config.status().message();
  return *config;
}

Checkpoint shipped(const std::string& name) {
  auto checkpoint = Checkpoint::open_config(kSource / "model_configs" / name / "config.json");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  return std::move(*checkpoint);
}

std::vector<Weight> table_of(const Checkpoint& checkpoint) {
  std::string problems;
  std::vector<Weight> table = weights_of(config_of(checkpoint), checkpoint, &problems);
  EXPECT_EQ(problems, "");
  return table;
}

TEST(GlmInspect, ClosureOfThePublishedConfigs) {
  struct Case {
    const char* name;
    int64_t tensors, bytes, main, with_mtp, elements;  // 0: not published
  };
  const Case cases[] = {
      {"glm-5", 59870, 1507728316928, 743911218432, 753864139008, 753864139008},
      {"glm-5.1", 59870, 1507728316928, 743911218432, 753864139008, 753864139008},
      {"glm-5-fp8", 119028, 756162687872, 743911218432, 753864139008, 0},
      {"glm-5.1-fp8", 119028, 756162687872, 743911218432, 753864139008, 0},
      {"glm-5.2", 59585, 1506659919872, 743377019904, 753329940480, 753329940480},
      {"glm-5.2-fp8", 118629, 755617140416, 743377019904, 753329940480, 751226191872 + 2103729152 + 45872560},
      {"glm-5.1-w8a8", 178663, 764607680088, 743911218432, 0, 756209874838},
      {"deepseek-v3.2", 92425, 689468986496, 671877944064, 685355329792, 0},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Checkpoint checkpoint = shipped(c.name);
    const std::vector<Weight> table = table_of(checkpoint);
    const ModelSummary s = summarise(config_of(checkpoint), checkpoint, table);
    EXPECT_EQ(s.tensors, c.tensors);
    EXPECT_EQ(s.bytes(), c.bytes);
    EXPECT_EQ(s.parameters_main, c.main);
    EXPECT_TRUE(c.with_mtp == 0 || s.parameters() == c.with_mtp) << s.parameters();
    int64_t elements = 0, files = 0, shares = 0, dtypes = 0;
    std::set<std::string> names;
    for (const Weight& w : table) elements += w.elements();
    for (const FileTensor& t : file_tensors(table)) {
      files += t.type.bytes();
      EXPECT_TRUE(names.insert(t.name).second) << t.name;
    }
    for (const auto& share : s.by_component) shares += share.bytes;
    for (const auto& share : s.by_dtype) dtypes += share.bytes;
    EXPECT_TRUE(c.elements == 0 || elements == c.elements) << elements;
    EXPECT_EQ(files, c.bytes);
    EXPECT_EQ(shares, c.bytes);
    EXPECT_EQ(dtypes, c.bytes);
    EXPECT_EQ(static_cast<int64_t>(names.size()), c.tensors);
  }
}

TEST(GlmInspect, BytesByElementType) {
  const auto of = [](const std::string& name) {
    const Checkpoint checkpoint = shipped(name);
    std::map<std::string, int64_t> bytes;
    for (const auto& share : summarise(config_of(checkpoint), checkpoint, table_of(checkpoint)).by_dtype) bytes[share.name] = share.bytes;
    return bytes;
  };
  EXPECT_EQ(of("glm-5.2-fp8"), (std::map<std::string, int64_t>{
                                   {"BF16", 2 * 2103729152LL}, {"F32", 4 * 45872560LL}, {"F8_E4M3", 751226191872LL}}));
  const auto w8a8 = of("glm-5.1-w8a8");
  EXPECT_NEAR(static_cast<double>(w8a8.at("I8")) / (1 << 30), 698.983, 5e-4);
  EXPECT_NEAR(static_cast<double>(w8a8.at("BF16")) / (1 << 30), 8.056, 5e-4);
}

TEST(GlmInspect, ParametersPerToken) {  // 8.1, in billions, there without norms and router biases
  for (const auto& [name, active] : {std::pair{"deepseek-v3.2", 37.476}, {"glm-5", 40.832}, {"glm-5.2", 40.298}}) {
    const Checkpoint checkpoint = shipped(name);
    const ModelSummary s = summarise(config_of(checkpoint), checkpoint, table_of(checkpoint));
    EXPECT_NEAR(static_cast<double>(s.parameters_active) * 1e-9, active, 1.5e-3) << name;
  }
}

TEST(GlmInspect, TheMtpLayer) {  // glm_moe_dsa.md 4
  const Checkpoint checkpoint = shipped("glm-5.2");
  int64_t tensors = 0, parameters = 0;
  for (const Weight& w : table_of(checkpoint)) {
    if (!w.mtp) continue;
    EXPECT_TRUE(w.tensor_name.starts_with("model.layers.78.")) << w.tensor_name;
    tensors += w.num_tensors();
    parameters += w.parameters();
  }
  EXPECT_EQ(tensors, 791);
  EXPECT_EQ(parameters, 9952920576);
}

TEST(GlmInspect, SharedLayersHaveNoIndexer) {
  std::set<int64_t> layers;
  for (const Weight& w : table_of(shipped("glm-5.2"))) {
    if (w.component == "indexer" && !w.mtp) layers.insert(w.layer);
  }
  std::set<int64_t> expected = {0, 1, 2};
  for (int64_t l = 6; l < 78; l += 4) expected.insert(l);
  EXPECT_EQ(layers, expected);
}

TEST(GlmInspect, GoldenCheckpointsAreBound) {
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "testdata/golden/glm_moe_dsa")) {
    SCOPED_TRACE(entry.path());
    const auto checkpoint = Checkpoint::open(entry.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const auto bound = bind_weights(table_of(*checkpoint), *checkpoint);
    ASSERT_TRUE(bound.ok()) << bound.status().message();
    for (const Weight& w : bound->weights()) {
      const auto view = bound->view(w.name);
      ASSERT_TRUE(view.ok()) << w.name;
      EXPECT_EQ(view->type, w.type) << w.name;
      EXPECT_EQ(static_cast<int64_t>(view->parts.size()), w.num_experts) << w.name;
      for (const SideTensor& side : w.sides) EXPECT_TRUE(bound->view(w.name + "." + side.name).ok()) << w.name << side.name;
    }
  }
}

TEST(GlmInspect, WhatDoesNotFit) {
  const auto checkpoint = Checkpoint::open(kSource / "testdata/golden/glm_moe_dsa/glm51_w8a8");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  Config config = config_of(*checkpoint);
  std::string problems;
  config.index_n_heads += 1;
  const auto wrong = bind_weights(weights_of(config, *checkpoint, &problems), *checkpoint);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("wrong (16): 'model.layers.0.self_attn.indexer.wq_b.weight' is I8[128,64], expected I8[160,64]"),
            std::string::npos)
      << wrong.status().message();
  config = config_of(*checkpoint);
  config.full_indexer[1] = false;
  const auto extra = bind_weights(weights_of(config, *checkpoint, &problems), *checkpoint);
  ASSERT_FALSE(extra.ok());
  EXPECT_NE(extra.status().message().find("unexpected (9): "), std::string::npos) << extra.status().message();
}

TEST(GlmInspect, DescriptionAgainstTensors) {
  const TempDir dir;
  const std::filesystem::path from = kSource / "testdata/golden/glm_moe_dsa/glm51_w8a8";
  for (const char* file : {"config.json", "model.safetensors"}) std::filesystem::create_symlink(from / file, dir.path() / file);
  Json description = *read_json_file(from / QuantDescription::kFileName);
  description["model.layers.0.self_attn.q_a_proj.weight"] = "FLOAT";
  dir.put(QuantDescription::kFileName, description.dump());
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::string problems;
  weights_of(config_of(*checkpoint), *checkpoint, &problems);
  EXPECT_EQ(problems, "; quant_model_description.json says otherwise (1): 'model.layers.0.self_attn.q_a_proj.weight' is FLOAT, the tensors say W8A8");

  description["model.layers.0.self_attn.q_a_proj.weight"] = "W4A8";
  dir.put(QuantDescription::kFileName, description.dump());
  EXPECT_NE(Checkpoint::open(dir.path()).status().message().find("scheme 'W4A8' is not supported; supported: FLOAT, W8A8, W8A8_DYNAMIC"),
            std::string::npos);
}

}  // namespace
}  // namespace weft::glm_moe_dsa
