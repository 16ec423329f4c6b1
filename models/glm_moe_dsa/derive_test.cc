// Derived weights against what they stand for, however they are cut.
#include <gtest/gtest.h>

#include <cstring>

#include "base/numeric.h"
#include "models/glm_moe_dsa/glm_moe_dsa.h"
#include "models/test_support.h"

namespace weft::glm_moe_dsa {
namespace {

Config config_of(const std::string& name) {
  const auto path = std::filesystem::path(WEFT_SOURCE_DIR) / "testdata" / name / "config.json";
  auto config = parse_config(*read_json_file(path), path.string());
  EXPECT_TRUE(config.ok()) << config.status().message();
  return *config;
}

std::vector<std::byte> made(const Model& model, const std::string& name, const TensorType& type, int64_t rows_at_a_time) {
  std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()), std::byte{0xff});
  const int64_t row_bytes = type.bytes() / type.shape[0];
  for (int64_t first = 0; first < type.shape[0]; first += rows_at_a_time) {
    TensorView rows{type, bytes.data() + first * row_bytes, {}};
    rows.type.shape[0] = std::min(rows_at_a_time, type.shape[0] - first);
    const Status status = model.derive(name, first, rows);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return bytes;
}

float number(const TensorType& type, const std::vector<std::byte>& bytes, int64_t i) {
  return type.dtype == DType::kF32 ? reinterpret_cast<const float*>(bytes.data())[i] : to_float(reinterpret_cast<const bf16*>(bytes.data())[i]);
}

TEST(GlmDerive, KeyValueProjectionTakenApart) {
  for (const char* name : {"golden/glm_moe_dsa/glm5_fp8", "golden/glm_moe_dsa/glm5_f32"}) {
    SCOPED_TRACE(name);
    const auto model = load_test_model(name);
    const Config c = config_of(name);
    const bool fp8 = c.fp8;
    const TensorView kv_b = *model->weight("layers.1.self_attn.kv_b_proj");
    const auto stored = [&](int64_t row, int64_t col) {
      const int64_t i = row * c.kv_lora_rank + col;
      if (!fp8) return to_float(kv_b.as<bf16>()[i]);
      const TensorView scale = *model->weight("layers.1.self_attn.kv_b_proj.scale");
      return e4m3_to_float(kv_b.as<uint8_t>()[i]) * scale.as<float>()[row / 128 * scale.shape()[1] + col / 128];
    };
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const DType want = dtype == DType::kF32 && fp8 ? DType::kF32 : DType::kBF16;
      const int64_t heads = c.num_attention_heads, head_rows = c.qk_nope_head_dim + c.v_head_dim;
      const TensorType key{want, {heads * c.kv_lora_rank, c.qk_nope_head_dim}}, value{want, {heads * c.v_head_dim, c.kv_lora_rank}};
      const std::vector<std::byte> w_uk = made(*model, "layers.1.self_attn.w_uk", key, 7), w_uv = made(*model, "layers.1.self_attn.w_uv", value, 7);
      EXPECT_EQ(w_uk, made(*model, "layers.1.self_attn.w_uk", key, key.shape[0]));
      EXPECT_EQ(w_uv, made(*model, "layers.1.self_attn.w_uv", value, value.shape[0]));
      const auto rounded = [&](float v) { return want == DType::kF32 ? v : round_bf16(v); };
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t latent = 0; latent < c.kv_lora_rank; ++latent) {
          for (int64_t d = 0; d < c.qk_nope_head_dim; ++d) {
            ASSERT_EQ(number(key, w_uk, (head * c.kv_lora_rank + latent) * c.qk_nope_head_dim + d), rounded(stored(head * head_rows + d, latent)));
          }
          for (int64_t d = 0; d < c.v_head_dim; ++d) {
            ASSERT_EQ(number(value, w_uv, (head * c.v_head_dim + d) * c.kv_lora_rank + latent),
                      rounded(stored(head * head_rows + c.qk_nope_head_dim + d, latent)));
          }
        }
      }
    }
  }
}

TEST(GlmDerive, WhatInt8Needs) {
  const auto model = load_test_model("golden/glm_moe_dsa/glm51_w8a8");
  const std::string o = "layers.0.self_attn.o_proj";
  const TensorView deq = *model->weight(o + ".deq_scale"), input = *model->weight(o + ".input_scale"), offset = *model->weight(o + ".input_offset");
  const float s = input.as<float>()[0];
  const TensorType column{DType::kF32, {deq.shape()[0], 1}}, three{DType::kF32, {3}};
  const std::vector<std::byte> weight = made(*model, o + ".weight_scale", column, 5), output = made(*model, o + ".output_scale", column, 5);
  for (int64_t n = 0; n < deq.shape()[0]; ++n) {
    EXPECT_EQ(number(column, weight, n), deq.as<float>()[n] / s);
    EXPECT_EQ(number(column, output, n), deq.as<float>()[n]);
  }
  const std::vector<std::byte> exact = made(*model, o + ".input_quant", three, 2), rounded = made(*model, o + ".input_quant_bf16", three, 3);
  const float want[] = {s, 1, offset.as<float>()[0]}, want_rounded[] = {1, round_bf16(1 / round_bf16(s)), offset.as<float>()[0]};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(number(three, exact, i), want[i]);
    EXPECT_EQ(number(three, rounded, i), want_rounded[i]);
  }
  const TensorView scales = *model->weight("layers.1.mlp.experts.up_proj.scale");
  const TensorType stacked{DType::kF32, scales.shape()};
  const std::vector<std::byte> of_experts = made(*model, "layers.1.mlp.experts.up_proj.scale_bf16", stacked, 2);
  for (int64_t i = 0; i < scales.shape().num_elements(); ++i) {
    const int64_t n = scales.shape()[1];
    EXPECT_EQ(number(stacked, of_experts, i), round_bf16(static_cast<const float*>(scales.parts[static_cast<size_t>(i / n)])[i % n]));
  }
}

TEST(GlmDerive, WhatIsNotThere) {
  const auto model = load_test_model("golden/glm_moe_dsa/glm5_f32");
  float value = 0;
  for (const char* name : {"layers.9.self_attn.w_uk", "layers.0.self_attn.o_proj.weight_scale", "w_uv"}) {
    EXPECT_EQ(model->derive(name, 0, {{DType::kF32, {1, 1}}, &value, {}}).message(), "there is no derived weight '" + std::string(name) + "'");
  }
}

}  // namespace
}  // namespace weft::glm_moe_dsa
