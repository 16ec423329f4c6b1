#include "models/deepseek_v4/deepseek_v4.h"

#include <algorithm>
#include <unordered_map>

#include "models/deepseek_v4/inspect.h"
#include "models/size_limits.h"

namespace weft::deepseek_v4 {
namespace {

class DeepseekV4 final : public Model {
 public:
  DeepseekV4(Config config, std::shared_ptr<const Checkpoint> checkpoint) : config_(std::move(config)), checkpoint_(std::move(checkpoint)) {}

  Status bind_weights() {
    WEFT_RETURN_IF_ERROR(read_table());
    WEFT_RETURN_IF_ERROR(check_totals(checkpoint_->config_name(), total_elements(table()),
                                      cache_bytes(cache_specs(config_, {}, {}), config_.max_position_embeddings)));
    for (const Weight& weight : table()) by_name_.emplace(weight.name, &weight);
    return {};
  }

  Status read_table() {
    switch (checkpoint_->contents()) {
      case Checkpoint::Contents::kTensors: {
        WEFT_ASSIGN_OR_RETURN(bound_, bind(config_, *checkpoint_));
        storage_ = bound_->storage();
        return {};
      }
      case Checkpoint::Contents::kNames: {
        storage_ = storage_of_index(config_, *checkpoint_);
        WEFT_ASSIGN_OR_RETURN(table_, match_names(config_, *checkpoint_, storage_));
        return {};
      }
      case Checkpoint::Contents::kConfigOnly:
        storage_ = storage_of(config_);
        table_ = deepseek_v4::weights(config_, storage_);
        return {};
    }
    WEFT_CHECK(false, "contents {}", static_cast<int>(checkpoint_->contents()));
  }

  std::string_view family() const override { return "deepseek_v4"; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t num_layers() const override { return config_.num_hidden_layers; }
  int64_t max_position_embeddings() const override { return config_.max_position_embeddings; }
  std::vector<int32_t> eos_token_ids() const override { return {config_.eos_token_ids.begin(), config_.eos_token_ids.end()}; }
  int64_t bos_token_id() const override { return config_.bos_token_id; }
  ChatFormat chat_format() const override { return ChatFormat::kDeepseekV4; }

  // bf16: the official profile R for the quantised releases; a plain BF16 export has no activation quantisation.
  NumericMode mode(DType dtype, std::optional<bool> act_quant) const override {
    return {.dtype = dtype, .act_quant = act_quant.value_or(dtype == DType::kBF16 && config_.fp8)};
  }

  std::vector<CacheSpec> caches(const NumericMode& mode, const CacheCapacity& capacity) const override {
    return cache_specs(config_, mode, capacity);
  }
  std::string hidden_value(int64_t layer) const override { return fmt::format("layers.{}.ffn_hc_post", layer); }
  std::optional<std::string> selection_value(int64_t layer) const override {
    if (config_.layer_kind(layer) != LayerKind::kCsa) return std::nullopt;
    return fmt::format("layers.{}.topk", layer);
  }

  Result<Graph> build(const GraphOptions& options) const override {
    return build_trunk(config_, table(), options, num_draft_layers() > 0);
  }
  int64_t num_draft_layers() const override {
    if (config_.dspark || std::none_of(table().begin(), table().end(), [](const Weight& w) { return w.mtp; })) return 0;
    return std::min<int64_t>(config_.num_nextn_predict_layers, 1);
  }
  Result<Graph> build_draft(const GraphOptions& options) const override {
    if (num_draft_layers() == 0) return invalid_argument("this checkpoint has no NextN draft layer that weft can run");
    return build_nextn(config_, table(), options);
  }
  std::vector<DraftLink> draft_links(DraftFrom from) const override {
    return {{from == DraftFrom::kTrunk ? hidden_value(num_layers() - 1) : "mtp.0.ffn_hc_post", std::string(kHiddenInput)}};
  }

  // Layers of one kind that are routed alike.
  std::string layer_kind(int64_t layer) const override {
    return fmt::format("{}{}", static_cast<int>(config_.layer_kind(layer)), config_.is_hash_layer(layer) ? " by token" : "");
  }

  WeightSplit weight_split(std::string_view value_name) const override {
    const auto [weight, scale] = find(value_name);
    if (weight == nullptr) return WeightSplit::kWhole;
    if (!scale) return weight->split;
    return weight->num_experts > 0 ? WeightSplit::kExpertScales : WeightSplit::kWhole;
  }
  WeightInfo weight_info(std::string_view value_name) const override {
    const auto [weight, scale] = find(value_name);
    if (weight == nullptr) return {};
    return {component_name(weight->mtp ? Component::kMtp : weight->component), scale ? WeightInfo::Part::kScale : WeightInfo::Part::kPayload};
  }
  Status check_mode(const NumericMode&) const override { return {}; }
  Status check_layout(const Layout& layout) const override { return deepseek_v4::check_layout(config_, layout); }

  ModelSummary summary() const override {
    return summarise(config_, *checkpoint_, table(), storage_, bound_ ? &*bound_ : nullptr);
  }

  Result<TensorView> weight(std::string_view value_name) const override {
    if (!bound_) return invalid_argument(fmt::format("{}: there are no weight files here", checkpoint_->dir().string()));
    if (const BoundWeight* found = bound_->find(value_name)) return found->weight;
    constexpr std::string_view kScale = ".scale";
    if (value_name.ends_with(kScale)) {
      const BoundWeight* found = bound_->find(value_name.substr(0, value_name.size() - kScale.size()));
      if (found != nullptr && found->scale) return *found->scale;
    }
    return invalid_argument(fmt::format("the checkpoint has no weight '{}'", value_name));
  }

 private:
  struct Found {
    const Weight* weight = nullptr;
    bool scale = false;  // the value is its scale, which is stored beside it: whole, or one for each expert
  };
  Found find(std::string_view value_name) const {
    if (const auto at = by_name_.find(value_name); at != by_name_.end()) return {at->second, false};
    const size_t dot = value_name.rfind('.');
    const auto at = dot == value_name.npos ? by_name_.end() : by_name_.find(value_name.substr(0, dot));
    return at == by_name_.end() ? Found() : Found{at->second, true};
  }

  std::span<const Weight> table() const { return bound_ ? bound_->weights() : std::span<const Weight>(table_); }

  Config config_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  Storage storage_;
  std::optional<BoundWeights> bound_;
  std::vector<Weight> table_;  // without weight files
  std::unordered_map<std::string_view, const Weight*> by_name_;
};

}  // namespace

Result<std::unique_ptr<Model>> open(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options) {
  ConfigOptions config_options;
  config_options.unknown_keys = options.allow_unknown_config ? UnknownKeys::kWarn : UnknownKeys::kError;
  WEFT_ASSIGN_OR_RETURN(Config config, parse_config(checkpoint->config(), checkpoint->config_name(), config_options));
  auto model = std::make_unique<DeepseekV4>(std::move(config), std::move(checkpoint));
  WEFT_RETURN_IF_ERROR(model->bind_weights());
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace weft::deepseek_v4
