#include "models/glm_moe_dsa/glm_moe_dsa.h"

#include <algorithm>

#include "models/glm_moe_dsa/check_storage.h"
#include "models/glm_moe_dsa/inspect.h"
#include "models/size_limits.h"

namespace weft::glm_moe_dsa {
namespace {

constexpr std::string_view kDraftComponent = "mtp";

class GlmMoeDsa final : public Model {
 public:
  GlmMoeDsa(Config config, std::shared_ptr<const Checkpoint> checkpoint) : config_(std::move(config)), checkpoint_(std::move(checkpoint)) {}

  Status bind() {
    std::string problems;
    table_ = weights_of(config_, *checkpoint_, &problems);
    WEFT_RETURN_IF_ERROR(check_totals(checkpoint_->config_name(), total_elements(table_),
                                      cache_bytes(cache_specs(config_, {}), config_.max_position_embeddings)));
    switch (checkpoint_->contents()) {
      case Checkpoint::Contents::kConfigOnly: return {};
      case Checkpoint::Contents::kNames: return match_names(table_, *checkpoint_);
      case Checkpoint::Contents::kTensors: break;
    }
    WEFT_ASSIGN_OR_RETURN(data_, bind_weights(table_, *checkpoint_, problems));
    return check_side_values(*data_, *checkpoint_);
  }

  std::string_view family() const override { return "glm_moe_dsa"; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t num_layers() const override { return config_.num_hidden_layers; }
  int64_t max_position_embeddings() const override { return config_.max_position_embeddings; }
  std::vector<int32_t> eos_token_ids() const override { return {config_.eos_token_ids.begin(), config_.eos_token_ids.end()}; }
  int64_t bos_token_id() const override { return config_.bos_token_id; }
  ChatFormat chat_format() const override {
    if (config_.release == Release::kDeepseekV32) return ChatFormat::kDeepseekV32;
    return config_.shares_selections() ? ChatFormat::kGlm52 : ChatFormat::kGlm5;
  }

  // bf16: the vendor's profile for quantised storage, P1 for FP8 and P4 for int8; plain files have no activation quantisation.
  NumericMode mode(DType dtype, std::optional<bool> act_quant) const override {
    const bool quantised = std::any_of(table_.begin(), table_.end(), [](const Weight& w) { return !w.sides.empty(); });
    return {dtype, act_quant.value_or(dtype == DType::kBF16 && quantised)};
  }

  std::vector<CacheSpec> caches(const NumericMode& mode, const CacheCapacity&) const override { return cache_specs(config_, mode); }
  std::string hidden_value(int64_t layer) const override { return glm_moe_dsa::hidden_value(layer); }
  std::optional<std::string> selection_value(int64_t layer) const override {
    if (!config_.has_indexer(layer)) return std::nullopt;
    return glm_moe_dsa::selection_value(config_, layer);
  }

  std::string layer_kind(int64_t layer) const override {
    std::string kind = config_.has_indexer(layer) ? "full" : "shared";
    for (const Weight& w : table_) {
      if (w.layer == layer && !w.mtp) kind += fmt::format(" {}{}", dtype_name(w.type.dtype), w.sides.size());
    }
    return kind;
  }

  bool begins_stage(int64_t layer) const override { return config_.has_indexer(layer); }

  Result<Graph> build(const GraphOptions& options) const override { return build_trunk(config_, table_, options, num_draft_layers() > 0); }
  int64_t num_draft_layers() const override { return std::min<int64_t>(config_.num_nextn_predict_layers, 1); }
  Result<Graph> build_draft(const GraphOptions& options) const override {
    if (num_draft_layers() == 0) return invalid_argument("this checkpoint has no draft layer");
    return build_mtp(config_, table_, options);
  }
  std::vector<DraftLink> draft_links(DraftFrom from) const override { return glm_moe_dsa::draft_links(config_, table_, from); }

  WeightSplit weight_split(std::string_view value_name) const override {
    // The derived types do not depend on the mode in what is split.
    if (const auto derived = derived_weight(config_, table_, {}, value_name)) return derived->split;
    const auto value = find_weight_value(table_, value_name);
    if (!value) return WeightSplit::kWhole;
    if (value->side == nullptr) return value->weight->split;
    return value->weight->num_experts > 0 ? WeightSplit::kExpertScales : WeightSplit::kWhole;
  }
  WeightInfo weight_info(std::string_view value_name) const override {
    if (const auto derived = derived_weight(config_, table_, {}, value_name)) {
      const Weight& source = *find_weight(table_, derived->source);
      return {source.mtp ? kDraftComponent : std::string_view(source.component), derived->is_scale() ? WeightInfo::Part::kScale : WeightInfo::Part::kDerived};
    }
    const auto value = find_weight_value(table_, value_name);
    if (!value) return {};
    const std::string_view component = value->weight->mtp ? kDraftComponent : std::string_view(value->weight->component);
    return {component, value->side == nullptr ? WeightInfo::Part::kPayload : WeightInfo::Part::kScale};
  }
  Status check_layout(const Layout& layout) const override {
    WEFT_RETURN_IF_ERROR(glm_moe_dsa::check_layout(config_, layout));
    if (layout.mesh.ep == 1 && layout.moe != MoeChoice::kTp) return {};
    for (const Weight& gate : table_) {
      if (gate.num_experts == 0 || !gate.name.ends_with(".gate_proj")) continue;
      const std::string layer = gate.name.substr(0, gate.name.rfind('.') + 1);
      const Weight& down = *find_weight(table_, layer + "down_proj");
      if (gate.type.dtype == down.type.dtype && format_of(gate) == format_of(down)) continue;
      return invalid_argument(fmt::format("layout {}: '{}gate_proj' and '{}down_proj' are stored in two formats; experts that ranks share "
                                          "(ep, moe=tp) must have one", to_string(layout), layer, layer));
    }
    return {};
  }

  ModelSummary summary() const override { return summarise(config_, *checkpoint_, table_); }

  Result<TensorView> weight(std::string_view value_name) const override {
    if (!data_) return invalid_argument(fmt::format("{}: there are no weight files here", checkpoint_->dir().string()));
    return data_->view(value_name);
  }
  Status derive(std::string_view value_name, int64_t first, const TensorView& rows) const override {
    const auto derived = derived_weight(config_, table_, {rows.dtype(), false}, value_name);
    if (!derived) return invalid_argument(fmt::format("there is no derived weight '{}'", value_name));
    return glm_moe_dsa::derive(config_, *derived, [this](std::string_view name) { return weight(name); }, first, rows);
  }

 private:
  Config config_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<Weight> table_;
  std::optional<WeightData> data_;
};

}  // namespace

Result<std::unique_ptr<Model>> open(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options) {
  ConfigOptions config_options;
  config_options.unknown_keys = options.allow_unknown_config ? UnknownKeys::kWarn : UnknownKeys::kError;
  WEFT_ASSIGN_OR_RETURN(Config config, parse_config(checkpoint->config(), checkpoint->config_name(), config_options));
  auto model = std::make_unique<GlmMoeDsa>(std::move(config), std::move(checkpoint));
  WEFT_RETURN_IF_ERROR(model->bind());
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace weft::glm_moe_dsa
