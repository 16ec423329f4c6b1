// GLM-5 / 5.1 / 5.2 and DeepSeek-V3.2: the model family behind the common interface.
#pragma once

#include "models/glm_moe_dsa/config.h"
#include "models/glm_moe_dsa/weights.h"
#include "models/model.h"

namespace weft::glm_moe_dsa {

// Per-request state of every layer, the MTP layer after the trunk (glm_moe_dsa.md 3):
//   latent      kAppend A, kv_lora_rank + qk_rope_head_dim   normed latent, then the rotated key that all heads share
//   index_keys  kAppend A, index_head_dim                    layers with an indexer of their own
std::vector<CacheSpec> cache_specs(const Config& config, const NumericMode& mode);

// The trunk (results: logits, and what drafts start from when the model has a draft layer) and the draft layer.
// `weights`: the table of the model's storage; it gives the types of the weight values.
Result<Graph> build_trunk(const Config& config, std::span<const Weight> weights, const GraphOptions& options, bool with_drafts);
Result<Graph> build_mtp(const Config& config, std::span<const Weight> weights, const GraphOptions& options);

// Names in the graphs.
std::string hidden_value(int64_t layer);
std::string selection_value(const Config& config, int64_t layer);
inline constexpr const char* kDraftSelectionValue = "mtp.0.topk";
std::vector<Model::DraftLink> draft_links(const Config& config, std::span<const Weight> weights, DraftFrom from);

// Weights that are derived from stored ones when a model is loaded (glm_moe_dsa.md 2.6, 5.3), as values of the graph:
//   <layer>.self_attn.w_uk [H * kv_lora_rank, qk_nope_head_dim], w_uv [H * v_head_dim, kv_lora_rank]: kv_b_proj taken apart,
//     the first of them transposed, so that attention works on the cached latents
//   of int8 weights, F32:
//   <weight>.weight_scale [N, 1]: of a static one without quantised activations, deq_scale / input_scale
//   <weight>.output_scale [N, 1]: of a static one with them, deq_scale
//   <weight>.input_quant, .input_quant_bf16 [3]: divisor, factor and offset of the activations of a static one, in fp32 or as the
//     vendor keeps them: the reciprocal of the scale, both rounded to BF16
//   <weight>.scale_bf16 [.., N, 1]: of a dynamic one, weight_scale rounded to BF16 as the vendor does
struct DerivedWeight {
  enum class Kind { kKeyUp, kValueUp, kWeightScale, kOutputScale, kInputQuant, kInputQuantBf16, kScaleBf16 };
  Kind kind = Kind::kKeyUp;
  std::string source;  // key of the stored weight
  TensorType type;
  WeightSplit split = WeightSplit::kWhole;

  bool is_scale() const { return kind != Kind::kKeyUp && kind != Kind::kValueUp; }
};
std::optional<DerivedWeight> derived_weight(const Config& config, std::span<const Weight> weights, const NumericMode& mode,
                                            std::string_view value_name);
// The rows [first, first + rows.shape()[0]) of it. `stored`: the data of weight values.
Status derive(const Config& config, const DerivedWeight& derived, FunctionRef<Result<TensorView>(std::string_view)> stored, int64_t first,
              const TensorView& rows);

// The contract of the family (models/model.h).
Status check_layout(const Config& config, const Layout& layout);

Result<std::unique_ptr<Model>> open(std::shared_ptr<const Checkpoint> checkpoint, const ModelOptions& options);

}  // namespace weft::glm_moe_dsa
