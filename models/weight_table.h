// The weights of a model: ONE table that loading, accounting, sharding and synthesis read.
//
// A logical weight has a key that is also its name in the graph. The experts of a layer are one stacked weight. What a
// storage format keeps beside the values (scales, offsets, ...) are side tensors; in the graph each is a value
// "<key>.<side>".
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

#include "base/function_ref.h"
#include "base/status.h"
#include "io/checkpoint.h"
#include "models/checkpoint_tensors.h"
#include "models/model_summary.h"
#include "models/weight_split.h"
#include "tensor/tensor.h"

namespace weft {

// How much of a weight is read to decode one token.
enum class WeightRead { kAll, kOneRow, kPicked };

struct SideTensor {
  std::string name;            // in the graph, after the key: "scale"
  std::string suffix;          // in the files, in place of ".weight": ".weight_scale_inv"
  std::string stacked_suffix;  // in an export that stacks the experts, after its name; empty: there is no such export
  TensorType type;             // stacked like the weight
};

struct Weight {
  std::string name;           // the key
  std::string tensor_name;    // in the files, with ".weight" where they have it; "{}" stands for the expert
  std::string stacked_name;   // in an export that stacks the experts: one tensor of all of them; empty: none
  int64_t stacked_part = 0, stacked_parts = 1;  // ... which holds several weights below each other: gate and up
  std::string component;      // "routed experts": for accounts
  int64_t layer = -1;         // 0 .. num_hidden_layers - 1, or the MTP layer; -1: outside the layers
  bool mtp = false;
  WeightSplit split = WeightSplit::kWhole;
  WeightRead read = WeightRead::kAll;
  int64_t num_experts = 0;    // > 0: stacked, first dim of all types
  TensorType type;
  std::vector<SideTensor> sides;

  // As the official files hold it.
  int64_t num_tensors() const;
  int64_t bytes() const;
  int64_t elements() const;                             // of all tensors
  int64_t parameters() const { return type.shape.num_elements(); }
};

// Whether the checkpoint has the experts of the weight in one tensor.
bool is_stacked(const Weight& weight, const Checkpoint& checkpoint);

// The name of a tensor of a weight, with the suffix of a side instead of ".weight".
std::string side_name(std::string_view tensor_name, std::string_view suffix);

// Names and types as an official file has them, stacked weights taken apart.
struct FileTensor {
  std::string name;
  TensorType type;
  const Weight* weight = nullptr;    // into the argument of file_tensors
  const SideTensor* side = nullptr;  // null: the values
};
std::vector<FileTensor> file_tensors(std::span<const Weight> weights);

// By key; null if there is none.
const Weight* find_weight(std::span<const Weight> weights, std::string_view key);
// By the name of a value in the graph, a weight or a side of one.
struct WeightValue {
  const Weight* weight = nullptr;
  const SideTensor* side = nullptr;
  const TensorType& type() const { return side != nullptr ? side->type : weight->type; }
};
std::optional<WeightValue> find_weight_value(std::span<const Weight> weights, std::string_view value_name);

// Fills parameters, tensors, bytes and shares of a summary. `picked`: experts per token.
void add_totals(ModelSummary& summary, std::span<const Weight> weights, int64_t picked, int64_t vocab_size);

// The table with the data of a checkpoint. Views of stacked weights have one pointer per expert.
class WeightData {
 public:
  Result<TensorView> view(std::string_view value_name) const;  // an error names the value
  std::span<const Weight> weights() const { return weights_; }

 private:
  friend Result<WeightData> bind_weights(std::vector<Weight> weights, const Checkpoint& checkpoint, std::string_view problems);
  std::vector<Weight> weights_;
  std::unordered_map<std::string, TensorView> views_;
  std::vector<std::unique_ptr<void*[]>> parts_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::string where_;
};

// Matches every tensor of the checkpoint (Contents::kTensors) with the table, whose types say how it is stored. One error lists
// missing, extra and wrong tensors (the first 10 of each, and how many), after `problems`, which the caller found.
Result<WeightData> bind_weights(std::vector<Weight> weights, const Checkpoint& checkpoint, std::string_view problems = "");

// The same for names alone (Contents::kNames).
Status match_names(std::span<const Weight> weights, const Checkpoint& checkpoint);

}  // namespace weft
