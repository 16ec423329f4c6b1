// The weights of a DeepSeek-V4 model: ONE table that loading, accounting and sharding read.
//
// A logical weight has the official tensor name without ".weight" as key: "embed", "layers.3.attn.wq_a",
// "layers.3.attn.compressor.ape", "layers.3.ffn.gate", "layers.3.ffn.gate.bias", "mtp.0.e_proj". The experts of a layer
// are one stacked weight: "layers.3.ffn.experts.w1" [n_routed_experts, moe_intermediate_size, hidden_size].
//
// Storage of a weight and its scale:
//   BF16, F32       no scale
//   F8_E4M3 [N,K]   F8_E8M0 [ceil(N/128), ceil(K/128)]
//   F4_E2M1 [N,K]   F8_E8M0 [N, K/32]; in the file I8 [N, K/2], low nibble first
// (stacked: each with n_routed_experts in front). Linears and experts may have any of them (FP4: experts only), the
// rest is BF16 or F32 as stored, tid2eid I64.
// Source of names, shapes and dtypes: deepseek_v4.md sections 4.1, 4.2, 5.1, 5.4.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "io/checkpoint.h"
#include "models/checkpoint_tensors.h"
#include "models/deepseek_v4/config.h"
#include "models/weight_split.h"
#include "tensor/tensor.h"

namespace weft::deepseek_v4 {

enum class Component {
  kEmbedding, kAttention, kIndexer, kCompressor, kMhc, kNorm, kRouter, kRoutedExperts, kSharedExpert, kHead, kMtp,
};
std::string_view component_name(Component component);  // "embedding", "routed experts", ...

// What a weight is decides how it may be stored.
enum class WeightKind {
  kLinear,  // FP8 in the releases
  kExpert,  // FP4 in the releases
  kBf16,    // BF16 in the releases
  kF32,     // F32 in the releases
  kTable,   // I64
};

struct Weight {
  std::string name;         // the key
  std::string tensor_name;  // in the official files; "{}" stands for the expert
  std::string scale_name;   // of its scale tensor(s), whether or not this storage has one; empty for other kinds
  std::string hf_name;      // Transformers name; for experts the stacked tensor that holds it; empty: the official one
  std::string hf_scale_name;
  std::string hf_older_name;  // a name that older Transformers versions wrote; mostly empty
  WeightKind kind = WeightKind::kBf16;
  Component component = Component::kAttention;  // MTP layers have the component of the part; see `mtp`
  int64_t layer = -1;       // 0 .. num_hidden_layers - 1, or the MTP layer; -1: outside the layers
  bool mtp = false;
  WeightSplit split = WeightSplit::kWhole;
  int64_t num_experts = 0;  // > 0: stacked, first dim of `type` and `scale`
  TensorType type;                  // logical type: F4_E2M1 for packed FP4
  std::optional<TensorType> scale;

  // As the official files hold it.
  int64_t num_tensors() const { return (num_experts > 0 ? num_experts : 1) * (scale ? 2 : 1); }
  int64_t bytes() const { return type.bytes() + (scale ? scale->bytes() : 0); }
  int64_t parameters() const { return kind == WeightKind::kTable ? 0 : type.shape.num_elements(); }
};

// Element type of linears and of experts.
struct Storage {
  DType linear = DType::kBF16;
  DType expert = DType::kBF16;
  bool expert_assumed = false;  // FP4 was assumed: quantised release without expert_dtype
};

// The storage that the config announces. FP8 without expert_dtype means FP4 experts (first Flash release).
Storage storage_of(const Config& config);

// Every logical weight, in the order embed, layers, final norm and head, MTP.
std::vector<Weight> weights(const Config& config, const Storage& storage);

// Names and types as an official file would have them (FP4 as I8), stacked weights taken apart, scales included.
struct FileTensor {
  std::string name;
  TensorType type;
  const Weight* weight = nullptr;  // into the argument of file_tensors
  bool is_scale = false;
};
std::vector<FileTensor> file_tensors(std::span<const Weight> weights);

// By key; null if there is none.
const Weight* find_weight(std::span<const Weight> weights, std::string_view key);

// Pieces of the table that a loader or writer needs.
Weight with_dtype(const Weight& weight, DType dtype);                  // stored so: type and scale follow
TensorType stored_type(const TensorType& type);                        // FP4 as the files hold it, others unchanged

struct Totals {
  int64_t parameters_main = 0, parameters_mtp = 0;
  // Per token: all of the main model but the embedding table and the experts that are not picked.
  int64_t parameters_active = 0;
  int64_t tensors = 0;
  int64_t bytes_main = 0, bytes_mtp = 0;
  // Read to decode one token with the main model: active weights, head, and one row of each table that is indexed.
  int64_t bytes_per_decoded_token = 0;
  std::map<Component, int64_t> bytes_by_component;      // MTP layers under kMtp
  std::map<DType, int64_t> bytes_by_dtype;              // logical: FP4 as F4_E2M1
  std::map<DType, int64_t> tensors_by_dtype;

  int64_t bytes() const { return bytes_main + bytes_mtp; }
};
Totals totals(const Config& config, std::span<const Weight> weights);
// The share of one weight in Totals::bytes_per_decoded_token.
int64_t bytes_per_decoded_token(const Config& config, const Weight& weight);

// A weight with its data. Stacked: weight.parts and scale->parts have one pointer per expert and `data` is null.
struct BoundWeight {
  const Weight* spec = nullptr;
  TensorView weight;
  std::optional<TensorView> scale;
};

class BoundWeights {
 public:
  const BoundWeight* find(std::string_view key) const;  // null if the model has no such weight
  std::span<const Weight> weights() const { return weights_; }
  std::span<const BoundWeight> bound() const { return bound_; }
  const Storage& storage() const { return storage_; }
  // False: the config has an MTP part, the checkpoint does not (Transformers exports leave it out).
  bool has_mtp() const { return has_mtp_; }
  std::span<const std::string> notes() const { return notes_; }  // what a user should know, a line each

 private:
  friend Result<BoundWeights> bind(const Config& config, const Checkpoint& checkpoint);
  std::vector<Weight> weights_;
  std::vector<BoundWeight> bound_;
  std::vector<std::unique_ptr<void*[]>> parts_;
  std::unordered_map<std::string_view, size_t> by_key_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  Storage storage_;
  bool has_mtp_ = false;
  std::vector<std::string> notes_;
};

// Matches every tensor of the checkpoint with the table, in the official or the Transformers spelling; storage is taken
// from the files. One error lists missing, extra and wrong tensors (the first 10 of each, and how many).
Result<BoundWeights> bind(const Config& config, const Checkpoint& checkpoint);

// The storage that the checkpoint's tensors have (Contents::kTensors), or the one that the config announces.
Storage detect_storage(const Config& config, const Checkpoint& checkpoint);

}  // namespace weft::deepseek_v4
