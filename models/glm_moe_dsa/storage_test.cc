// Checkpoints that contradict themselves or are stored as weft cannot take them: one message, with the name of the tensor.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/glm_moe_dsa/stored_model.h"

namespace weft::glm_moe_dsa {
namespace {

const std::string kExperts = "model.layers.1.mlp.experts.";
const std::string kAttention = "model.layers.0.self_attn.";

void set(StoredModel& m, const std::string& name, float value) { m[name].as<float>()[0] = value; }
float quiet_nan() { return std::numeric_limits<float>::quiet_NaN(); }

// W8A8_DYNAMIC to W8A8, with parameters that a quantiser could have written.
void make_static(StoredModel& m, const std::string& stem) {
  const int64_t rows = m[stem + ".weight"].type.shape[0];
  const auto put = [&](const char* suffix, DType dtype, int64_t count) -> StoredModel::Tensor& {
    StoredModel::Tensor tensor{{dtype, {count}}, std::string(static_cast<size_t>(count) * 4, '\0')};
    return m.put(stem + suffix, std::move(tensor));
  };
  put(".input_scale", DType::kF32, 1).as<float>()[0] = 0.01f;
  put(".input_offset", DType::kF32, 1);
  put(".quant_bias", DType::kI32, rows);
  StoredModel::Tensor& deq = put(".deq_scale", DType::kF32, rows);
  std::fill_n(deq.as<float>(), rows, 0.001f);
  for (const char* suffix : {".weight_scale", ".weight_offset"}) {
    if (m.has(stem + suffix)) m.erase(stem + suffix);
    m.description.erase(stem + suffix);
  }
  m.description[stem + ".weight"] = "W8A8";
}

TEST(GlmStorage, WhatIsRefused) {
  struct Case {
    const char* what;
    const char* golden;
    void (*edit)(StoredModel&);
    const char* message;  // "": taken
  };
  const Case cases[] = {
      {"as it is", "glm51_w8a8", [](StoredModel&) {}, ""},
      {"int8 experts in one tensor", "glm51_w8a8", [](StoredModel& m) { m.stack_experts(kExperts, m.config["n_routed_experts"]); }, ""},
      {"float exception on a projection of all experts", "glm51_w8a8",
       [](StoredModel& m) {
         for (int e = 0; e < m.config["n_routed_experts"].get<int>(); ++e) m.make_plain(fmt::format("{}{}.down_proj", kExperts, e), DType::kBF16);
       },
       ""},
      {"... on one of two that work together", "glm51_w8a8",
       [](StoredModel& m) {
         for (int e = 0; e < m.config["n_routed_experts"].get<int>(); ++e) m.make_plain(fmt::format("{}{}.up_proj", kExperts, e), DType::kBF16);
       },
       "; not supported (1): 'model.layers.1.mlp.experts.0.up_proj.weight' is BF16 and 'model.layers.1.mlp.experts.0.gate_proj.weight' "
       "W8A8_DYNAMIC: the two work as one module and must be stored alike"},
      {"... on one expert", "glm51_w8a8", [](StoredModel& m) { m.make_plain(kExperts + "3.down_proj", DType::kBF16); },
       "'model.layers.1.mlp.experts.3.down_proj.weight' is BF16["},
      {"static experts", "glm51_w8a8",
       [](StoredModel& m) {
         for (int e = 0; e < m.config["n_routed_experts"].get<int>(); ++e) {
           for (const char* part : {"gate_proj", "up_proj", "down_proj"}) make_static(m, fmt::format("{}{}.{}", kExperts, e, part));
         }
       },
       "'model.layers.1.mlp.experts.0.gate_proj.weight' is W8A8, experts can be FLOAT, FP8 or W8A8_DYNAMIC"},
      {"static kv_b", "glm51_w8a8",
       [](StoredModel& m) {
         auto& w = m[kAttention + "kv_b_proj.weight"];
         w = {{DType::kI8, w.type.shape}, std::string(static_cast<size_t>(w.type.shape.num_elements()), '\1')};
         make_static(m, kAttention + "kv_b_proj");
       },
       "'model.layers.0.self_attn.kv_b_proj.weight' is W8A8, a weight that is taken apart for attention can be FLOAT, FP8 or W8A8_DYNAMIC"},
      {"bias of the router", "glm51_w8a8",
       [](StoredModel& m) {
         auto& bias = m["model.layers.1.mlp.gate.e_score_correction_bias"];
         bias = {{DType::kBF16, bias.type.shape}, std::string(static_cast<size_t>(bias.type.shape.num_elements()) * 2, '\0')};
       },
       "wrong (1): 'model.layers.1.mlp.gate.e_score_correction_bias' is BF16["},
      {"a norm and its bias", "glm51_w8a8",
       [](StoredModel& m) {
         auto& bias = m[kAttention + "indexer.k_norm.bias"];
         bias = {{DType::kBF16, bias.type.shape}, std::string(static_cast<size_t>(bias.type.shape.num_elements()) * 2, '\0')};
       },
       "wrong (1): 'model.layers.0.self_attn.indexer.k_norm.bias' is BF16["},
      {"offset of an expert", "glm51_w8a8", [](StoredModel& m) { set(m, kExperts + "2.up_proj.weight_offset", 3); },
       "'model.layers.1.mlp.experts.2.up_proj.weight_offset' has 3, expected 0: only symmetric int8 weights are supported"},
      {"input scale 0", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "q_a_proj.input_scale", 0); },
       "'model.layers.0.self_attn.q_a_proj.input_scale' has 0, expected a number above 0 whose reciprocal is one, too"},
      {"input scale NaN", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "q_a_proj.input_scale", quiet_nan()); }, "q_a_proj.input_scale' has nan"},
      {"input scale below 0", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "o_proj.input_scale", -1); }, "o_proj.input_scale' has -1"},
      {"input scale infinite", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "o_proj.input_scale", INFINITY); }, "o_proj.input_scale' has inf"},
      {"input scale tiny", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "o_proj.input_scale", 1e-45f); }, "o_proj.input_scale' has 1e-45"},
      {"input offset 0.5", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "q_b_proj.input_offset", 0.5f); },
       "q_b_proj.input_offset' has 0.5, expected a whole number from -128 to 127"},
      {"input offset 500", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "q_b_proj.input_offset", 500); }, "q_b_proj.input_offset' has 500"},
      {"input offset NaN", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "q_b_proj.input_offset", quiet_nan()); }, "q_b_proj.input_offset' has nan"},
      {"deq scale NaN", "glm51_w8a8", [](StoredModel& m) { set(m, kAttention + "q_b_proj.deq_scale", quiet_nan()); }, "q_b_proj.deq_scale' has nan"},
      {"weight scale infinite", "glm51_w8a8", [](StoredModel& m) { set(m, kExperts + "1.down_proj.weight_scale", INFINITY); },
       "experts.1.down_proj.weight_scale' has inf, expected a number from 0"},
      {"int8 that is said to be fp8", "glm51_w8a8",
       [](StoredModel& m) {
         m.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"activation_scheme", "dynamic"}};
       },
       "; quantization_config of config.json says fp8, but 'model.layers.0.self_attn.q_a_proj.weight' is I8"},
      {"plain that is said to be fp8", "glm5_f32",
       [](StoredModel& m) { m.config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}; },
       "; quantization_config of config.json says fp8, but no weight is F8_E4M3"},
      {"fp8 that is not said", "glm5_fp8", [](StoredModel& m) { m.config.erase("quantization_config"); },
       "; config.json has no quantization_config, but 'model.layers.0.self_attn.q_a_proj.weight' is F8_E4M3"},
      {"description of a later expert", "glm51_w8a8", [](StoredModel& m) { m.description[kExperts + "3.gate_proj.weight"] = "FLOAT"; },
       "; quant_model_description.json says otherwise (1): 'model.layers.1.mlp.experts.3.gate_proj.weight' is FLOAT, the tensors say W8A8_DYNAMIC"},
      {"description of a scale", "glm51_w8a8", [](StoredModel& m) { m.description[kExperts + "3.gate_proj.weight_scale"] = "W8A8"; },
       "says otherwise (1): 'model.layers.1.mlp.experts.3.gate_proj.weight_scale' is W8A8"},
      {"description of what is not there", "glm51_w8a8", [](StoredModel& m) { m.description["model.layers.7.mlp.gate.weight"] = "FLOAT"; },
       "; quant_model_description.json names what is not there (1): model.layers.7.mlp.gate.weight"},
      {"description that leaves something out", "glm51_w8a8", [](StoredModel& m) { m.description.erase(kExperts + "2.up_proj.weight"); },
       "; quant_model_description.json does not name (1): model.layers.1.mlp.experts.2.up_proj.weight"},
      {"description with general keys alone", "glm51_w8a8",
       [](StoredModel& m) { m.description = {{"model_quant_type", "W8A8_DYNAMIC"}, {"is_rot_used", m.description["is_rot_used"]}}; }, ""},
      {"no description", "glm51_w8a8", [](StoredModel& m) { m.description = nullptr; }, ""},
      {"rotation that is not said", "glm51_w8a8", [](StoredModel& m) { m.description["is_rot_used"] = false; },
       "; there is a rot.weight, but quant_model_description.json does not say is_rot_used: true"},
      {"rotation that is not there", "glm51_w8a8",
       [](StoredModel& m) {
         m.erase("rot.weight");
         m.description.erase("rot.weight");
       },
       "; quant_model_description.json says is_rot_used, but there is no rot.weight"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    StoredModel stored(c.golden);
    c.edit(stored);
    const auto model = stored.open();
    if (*c.message == '\0') {
      EXPECT_TRUE(model.ok()) << model.status().message();
      continue;
    }
    ASSERT_FALSE(model.ok());
    EXPECT_NE(model.status().message().find(c.message), std::string::npos) << model.status().message();
  }
}

// What is said about a checkpoint that does not say how it is stored.
TEST(GlmStorage, WhatIsNoted) {
  struct Case {
    Json description;
    const char* note;
  };
  for (const Case& c : {Case{nullptr, "there is no quant_model_description.json: the schemes of the int8 weights are those that the tensors show"},
                        Case{{{"is_rot_used", true}}, "quant_model_description.json names no tensors: the schemes are those that the tensors show"}}) {
    StoredModel stored("glm51_w8a8");
    stored.description = c.description;
    const auto model = stored.open();
    ASSERT_TRUE(model.ok()) << model.status().message();
    const std::vector<std::string> notes = (*model)->summary().notes;
    EXPECT_EQ(std::count(notes.begin(), notes.end(), c.note), 1) << c.note;
  }
}

TEST(GlmStorage, ExpertsOfTwoFormatsAreNotShared) {
  StoredModel stored("glm51_w8a8");
  for (int e = 0; e < stored.config["n_routed_experts"].get<int>(); ++e) stored.make_plain(fmt::format("{}{}.down_proj", kExperts, e), DType::kF32);
  const auto model = stored.open();
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::string message = "'layers.1.mlp.experts.gate_proj' and 'layers.1.mlp.experts.down_proj' are stored in two formats; experts that "
                              "ranks share (ep, moe=tp) must have one";
  for (const char* text : {"tp1", "tp2", "tp2+sp", "tp2+dsa_cp", "pp2"}) EXPECT_EQ((*model)->check_layout(parse_layout(text).value()).message(), "") << text;
  for (const char* text : {"tp2+ep2", "dp2+ep2", "tp2+moe=tp"}) {
    const Layout layout = parse_layout(text).value();
    EXPECT_EQ((*model)->check_layout(layout).message(), fmt::format("layout {}: {}", to_string(layout), message));
  }
}

}  // namespace
}  // namespace weft::glm_moe_dsa
