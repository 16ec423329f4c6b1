// Tensors of a checkpoint, taken by name, with account of what is missing, wrong and left over.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"
#include "tensor/tensor.h"

namespace weft {

// "; missing (12): a, b, ..." of the first 10; nothing without names.
std::string listed_names(std::string_view what, const std::vector<std::string>& names);

class CheckpointTensors {
 public:
  // Borrowed; Checkpoint::Contents::kTensors.
  explicit CheckpointTensors(const Checkpoint& checkpoint) : checkpoint_(checkpoint), used_(checkpoint.entries().size(), false) {}

  // Null, and on record, if the tensor is not there or is of another type.
  const std::byte* take(const std::string& name, const TensorType& type);
  void wrong(std::string line) { report(wrong_, std::move(line)); }

  // One error lists everything on record and the tensors that nobody took, after `problems`, which the caller found.
  Status finish(std::string_view problems = "") const;

 private:
  // Weights that share a tensor give one line.
  static void report(std::vector<std::string>& list, std::string line);

  const Checkpoint& checkpoint_;
  std::vector<bool> used_;
  std::vector<std::string> missing_, wrong_;
};

// A view of a weight, never written through. Of several parts: one for each expert; `storage` keeps the list of pointers.
TensorView weight_view(const TensorType& type, int64_t num_experts, std::span<const std::byte* const> parts,
                       std::vector<std::unique_ptr<void*[]>>& storage);

// Names of stacked weights and types: "{}" filled in; without the first dim.
std::string expert_name(std::string_view pattern, int64_t expert);
TensorType expert_type(const TensorType& stacked);

}  // namespace weft
