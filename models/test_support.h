// Models for tests: those of testdata/, and any model with some answers changed.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "models/model.h"

namespace weft {

inline std::shared_ptr<const Model> model_of(Result<Checkpoint> checkpoint) {
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  auto model = open_model(std::make_shared<const Checkpoint>(std::move(*checkpoint)), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(*model);
}

// By its folder in testdata/: "sample/austen-v4".
inline std::shared_ptr<const Model> load_test_model(const std::string& name) {
  return model_of(Checkpoint::open(std::filesystem::path(WEFT_SOURCE_DIR) / "testdata" / name));
}

// Answers like another model; tests override what is to differ.
class ForwardingModel : public Model {
 public:
  explicit ForwardingModel(std::shared_ptr<const Model> model) : model_(std::move(model)) {}

  std::string_view family() const override { return model_->family(); }
  int64_t vocab_size() const override { return model_->vocab_size(); }
  int64_t num_layers() const override { return model_->num_layers(); }
  int64_t max_position_embeddings() const override { return model_->max_position_embeddings(); }
  std::vector<int32_t> eos_token_ids() const override { return model_->eos_token_ids(); }
  ChatFormat chat_format() const override { return model_->chat_format(); }
  int64_t bos_token_id() const override { return model_->bos_token_id(); }
  NumericMode mode(DType dtype, std::optional<bool> act_quant) const override { return model_->mode(dtype, act_quant); }
  std::vector<CacheSpec> caches(const NumericMode& mode, const CacheCapacity& capacity) const override {
    return model_->caches(mode, capacity);
  }
  std::string hidden_value(int64_t layer) const override { return model_->hidden_value(layer); }
  std::optional<std::string> selection_value(int64_t layer) const override { return model_->selection_value(layer); }
  std::string layer_kind(int64_t layer) const override { return model_->layer_kind(layer); }
  bool begins_stage(int64_t layer) const override { return model_->begins_stage(layer); }
  Result<Graph> build(const GraphOptions& options) const override { return model_->build(options); }
  int64_t num_draft_layers() const override { return model_->num_draft_layers(); }
  Result<Graph> build_draft(const GraphOptions& options) const override { return model_->build_draft(options); }
  std::vector<DraftLink> draft_links(DraftFrom from) const override { return model_->draft_links(from); }
  WeightSplit weight_split(std::string_view value_name) const override { return model_->weight_split(value_name); }
  WeightInfo weight_info(std::string_view value_name) const override { return model_->weight_info(value_name); }
  Status check_layout(const Layout& layout) const override { return model_->check_layout(layout); }
  Status check_mode(const NumericMode& mode) const override { return model_->check_mode(mode); }
  ModelSummary summary() const override { return model_->summary(); }
  Result<TensorView> weight(std::string_view value_name) const override { return model_->weight(value_name); }
  Status derive(std::string_view value_name, int64_t first, const TensorView& rows) const override {
    return model_->derive(value_name, first, rows);
  }

 protected:
  const Model& model() const { return *model_; }

 private:
  std::shared_ptr<const Model> model_;
};

}  // namespace weft
