// Test support: a golden checkpoint with other tensors, another config or another description.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/numeric.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/test_files.h"
#include "models/test_support.h"

namespace weft::glm_moe_dsa {

class StoredModel {
 public:
  explicit StoredModel(const std::string& golden) {
    const std::filesystem::path from = std::filesystem::path(WEFT_SOURCE_DIR) / "testdata/golden/glm_moe_dsa" / golden;
    for (const auto& file : std::filesystem::directory_iterator(from)) {
      const std::string name = file.path().filename().string();
      if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
      const auto opened = SafetensorsFile::open(file.path());
      EXPECT_TRUE(opened.ok()) << opened.status().message();
      for (const SafetensorsEntry& entry : (*opened)->entries()) {
        const auto* data = reinterpret_cast<const char*>((*opened)->data(entry));
        tensors_[std::string(entry.name)] = {entry.type, std::string(data, static_cast<size_t>(entry.type.bytes()))};
      }
    }
    config = *read_json_file(from / "config.json");
    if (std::filesystem::exists(from / QuantDescription::kFileName)) description = *read_json_file(from / QuantDescription::kFileName);
  }

  struct Tensor {
    TensorType type;
    std::string bytes;

    template <class T>
    T* as() {
      return reinterpret_cast<T*>(bytes.data());
    }
  };
  Tensor& operator[](const std::string& name) {
    EXPECT_TRUE(tensors_.contains(name)) << name;
    return tensors_[name];
  }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  Tensor& put(const std::string& name, Tensor tensor) { return tensors_[name] = std::move(tensor); }
  void erase(const std::string& name) { EXPECT_EQ(tensors_.erase(name), 1u) << name; }

  // A plain tensor instead of int8 with a scale for every row, or of FP8 blocks.
  void make_plain(const std::string& stem, DType dtype) {
    Tensor& w = (*this)[stem + ".weight"];
    const int64_t rows = w.type.shape[0], cols = w.type.shape[1];
    const bool fp8 = w.type.dtype == DType::kF8E4M3;
    Tensor& scale = (*this)[stem + (fp8 ? ".weight_scale_inv" : ".weight_scale")];
    Tensor plain{{dtype, w.type.shape}, std::string(static_cast<size_t>(TensorType{dtype, w.type.shape}.bytes()), '\0')};
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t i = r * cols + c;
        const float s = fp8 ? scale.as<float>()[r / 128 * scale.type.shape[1] + c / 128] : scale.as<float>()[r];
        const float value = (fp8 ? e4m3_to_float(w.as<uint8_t>()[i]) : static_cast<float>(w.as<int8_t>()[i])) * s;
        if (dtype == DType::kF32) {
          plain.as<float>()[i] = value;
        } else {
          plain.as<bf16>()[i] = to_bf16(value);
        }
      }
    }
    w = plain;
    for (const char* suffix : {".weight_scale_inv", ".weight_scale", ".weight_offset"}) {
      tensors_.erase(stem + suffix);
      if (!description.is_null()) description.erase(stem + suffix);
    }
    if (!description.is_null()) description[stem + ".weight"] = "FLOAT";
  }

  // The experts below `prefix` ("model.layers.1.mlp.experts.") as one tensor of all of them.
  void stack_experts(const std::string& prefix, int64_t experts) {
    struct Part {
      const char *from, *to;
    };
    for (const Part& suffix : {Part{".weight", ""}, Part{".weight_scale", "_scale"}, Part{".weight_offset", "_offset"}}) {
      if (!tensors_.contains(fmt::format("{}0.gate_proj{}", prefix, suffix.from))) continue;
      for (const bool down : {false, true}) {
        Tensor stacked;
        for (int64_t e = 0; e < experts; ++e) {
          for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
            if ((std::string_view(part) == "down_proj") != down) continue;
            const std::string name = fmt::format("{}{}.{}{}", prefix, e, part, suffix.from);
            const Tensor& one = (*this)[name];
            stacked.type = {one.type.dtype, {experts, one.type.shape[0] * (down ? 1 : 2), one.type.shape[1]}};
            stacked.bytes += one.bytes;
            tensors_.erase(name);
          }
        }
        tensors_[fmt::format("{}{}{}", prefix, down ? "down_proj" : "gate_up_proj", suffix.to)] = std::move(stacked);
      }
    }
  }

  Result<std::unique_ptr<Model>> open() {
    dir_.put("config.json", config.dump());
    if (!description.is_null()) dir_.put(QuantDescription::kFileName, description.dump());
    std::vector<NamedTensorType> types;
    for (const auto& [name, tensor] : tensors_) types.push_back({name, tensor.type});
    auto writer = SafetensorsWriter::create(dir_.path() / "model.safetensors", types);
    EXPECT_TRUE(writer.ok()) << writer.status().message();
    for (const auto& [name, tensor] : tensors_) {
      EXPECT_TRUE(writer->write({reinterpret_cast<const std::byte*>(tensor.bytes.data()), tensor.bytes.size()}).ok());
    }
    EXPECT_TRUE(writer->finish().ok());
    WEFT_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(dir_.path()));
    return open_model(std::make_shared<const Checkpoint>(std::move(checkpoint)), {});
  }

  Json config, description;  // description: null without one

 private:
  TempDir dir_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace weft::glm_moe_dsa
