// Matching the tensors of a checkpoint with the weights table (weights.h).
#include <algorithm>

#include <fmt/format.h>

#include "models/deepseek_v4/weights.h"

namespace weft::deepseek_v4 {
namespace {

enum class Spelling { kOfficial, kTransformers };

Spelling spelling_of(const Checkpoint& checkpoint) {
  return checkpoint.has_name("model.embed_tokens.weight") ? Spelling::kTransformers : Spelling::kOfficial;
}

// Where the tensors of one weight are: names of its parts (one for a weight that is not stacked).
struct Source {
  std::string name, scale_name;  // patterns with "{}" if one tensor per expert
  bool per_expert = false;
  bool stacked = false;    // one tensor for all experts
  bool gate_up = false;    // ... that holds w1 and, below it, w3
  int64_t first_row = 0;   // of this weight inside an expert's slice
};

Source source_of(const Weight& w, Spelling spelling, const Checkpoint& checkpoint) {
  if (spelling == Spelling::kOfficial || w.hf_name.empty()) {
    return {.name = w.tensor_name, .scale_name = w.scale_name, .per_expert = w.num_experts > 0};
  }
  Source s{.name = w.hf_name, .scale_name = w.hf_scale_name, .stacked = w.num_experts > 0};
  s.gate_up = s.stacked && !w.name.ends_with(".w2");
  s.first_row = w.name.ends_with(".w3") ? w.type.shape[1] : 0;
  if (!w.hf_older_name.empty() && !checkpoint.has_name(s.name) && checkpoint.has_name(w.hf_older_name)) {
    s.name = w.hf_older_name;
  }
  return s;
}

// The element type that a stored tensor of this kind of weight means; none if the kind does not allow it.
std::optional<DType> logical_dtype(WeightKind kind, DType stored) {
  const bool plain = stored == DType::kBF16 || stored == DType::kF32;
  switch (kind) {
    case WeightKind::kLinear: return plain || stored == DType::kF8E4M3 ? std::optional(stored) : std::nullopt;
    case WeightKind::kExpert:
      if (stored == DType::kI8) return DType::kF4E2M1;
      return plain || stored == DType::kF8E4M3 ? std::optional(stored) : std::nullopt;
    case WeightKind::kBf16:
    case WeightKind::kF32: return plain ? std::optional(stored) : std::nullopt;
    case WeightKind::kTable: return stored == DType::kI64 ? std::optional(stored) : std::nullopt;
  }
  WEFT_CHECK(false, "weight kind {}", static_cast<int>(kind));
}

class Binder {
 public:
  Binder(const Config& config, const Checkpoint& checkpoint)
      : config_(config), checkpoint_(checkpoint), spelling_(spelling_of(checkpoint)), tensors_(checkpoint) {}

  // The table's weight with the storage found in the files.
  Weight resolve(const Weight& announced) {
    const Source s = source_of(announced, spelling_, checkpoint_);
    const std::string name = s.per_expert ? expert_name(s.name, 0) : s.name;
    const Checkpoint::Entry* entry = checkpoint_.find(name);
    if (entry == nullptr) return announced;  // reported by locate()
    const std::optional<DType> dtype = logical_dtype(announced.kind, entry->type.dtype);
    return dtype ? with_dtype(announced, *dtype) : announced;
  }

  // Pointers to the parts of weight and scale; nothing if a part is missing or wrong.
  struct Parts {
    std::vector<const std::byte*> weight, scale;
  };
  Parts locate(const Weight& w) {
    const Source s = source_of(w, spelling_, checkpoint_);
    Parts parts;
    add_parts(s, s.name, w.type, w.num_experts, parts.weight);
    if (w.scale) add_parts(s, s.scale_name, *w.scale, w.num_experts, parts.scale);
    if (w.scale && !config_.fp8) {
      tensors_.wrong(fmt::format("'{}' is {} but config.json has no quantization_config", s.name, dtype_name(w.type.dtype)));
    }
    return parts;
  }

  Status finish() const { return tensors_.finish(); }

 private:
  void add_parts(const Source& s, const std::string& name, const TensorType& type, int64_t num_experts,
                 std::vector<const std::byte*>& out) {
    if (!s.per_expert && !s.stacked) {
      out.push_back(tensors_.take(name, stored_type(type)));
    } else if (s.per_expert) {
      const TensorType each = stored_type(expert_type(type));
      for (int64_t e = 0; e < num_experts; ++e) out.push_back(tensors_.take(expert_name(name, e), each));
    } else {
      add_slices(s, name, stored_type(type), out);
    }
    // One null part makes the whole list useless; the reason is recorded.
    if (std::find(out.begin(), out.end(), nullptr) != out.end()) out.clear();
  }

  // A slice per expert of one stacked tensor. Rows of a scale tensor count in its own units.
  void add_slices(const Source& s, const std::string& name, const TensorType& type,
                  std::vector<const std::byte*>& out) {
    TensorType whole = type;
    if (s.gate_up) whole.shape[1] *= 2;
    const std::byte* data = tensors_.take(name, whole);
    if (data == nullptr) return;
    const int64_t slice = whole.bytes() / whole.shape[0];
    const int64_t first = s.first_row > 0 ? slice / 2 : 0;
    for (int64_t e = 0; e < whole.shape[0]; ++e) out.push_back(data + e * slice + first);
  }

  const Config& config_;
  const Checkpoint& checkpoint_;
  const Spelling spelling_;
  CheckpointTensors tensors_;
};

bool has_prefix(const Checkpoint& checkpoint, std::string_view prefix) {
  return std::any_of(checkpoint.names().begin(), checkpoint.names().end(),
                     [&](std::string_view name) { return name.starts_with(prefix); });
}

std::vector<std::string> notes_about(const Config& config, const Storage& found) {
  std::vector<std::string> notes;
  if (!config.fp8) return notes;
  if (!config.expert_dtype) {
    notes.push_back(
        fmt::format("config.json has no expert_dtype; the files hold {} experts", dtype_name(found.expert)));
  } else if (found.expert != storage_of(config).expert) {
    notes.push_back(fmt::format("config.json says expert_dtype {}; the files hold {} experts", *config.expert_dtype,
                                dtype_name(found.expert)));
  }
  return notes;
}

}  // namespace

Storage detect_storage(const Config& config, const Checkpoint& checkpoint) {
  Storage storage = storage_of(config);
  if (checkpoint.contents() != Checkpoint::Contents::kTensors) return storage;
  Binder binder(config, checkpoint);
  for (const Weight& announced : weights(config, storage)) {
    if (announced.layer != 0 || announced.mtp) continue;
    const DType dtype = binder.resolve(announced).type.dtype;
    if (announced.kind == WeightKind::kLinear) storage.linear = dtype;
    if (announced.kind == WeightKind::kExpert) storage.expert = dtype;
  }
  storage.expert_assumed = false;
  return storage;
}

Result<BoundWeights> bind(const Config& config, const Checkpoint& checkpoint) {
  if (checkpoint.contents() != Checkpoint::Contents::kTensors) {
    return invalid_argument(fmt::format("{}: the weights are not here, only their names", checkpoint.dir().string()));
  }
  BoundWeights result;
  result.storage_ = detect_storage(config, checkpoint);
  result.has_mtp_ = config.num_mtp_layers() > 0;
  result.notes_ = notes_about(config, result.storage_);
  if (result.has_mtp_ && spelling_of(checkpoint) == Spelling::kTransformers && !has_prefix(checkpoint, "mtp.")) {
    result.has_mtp_ = false;
    result.notes_.push_back("the files have no mtp.* tensors (Transformers leaves them out): no drafting");
  }

  Binder binder(config, checkpoint);
  for (const Weight& announced : weights(config, result.storage_)) {
    if (!announced.mtp || result.has_mtp_) result.weights_.push_back(binder.resolve(announced));
  }
  result.bound_.reserve(result.weights_.size());
  for (const Weight& w : result.weights_) {
    const Binder::Parts parts = binder.locate(w);
    BoundWeight bound{.spec = &w, .weight = {}, .scale = {}};
    if (!parts.weight.empty()) bound.weight = weight_view(w.type, w.num_experts, parts.weight, result.parts_);
    if (!parts.scale.empty()) bound.scale = weight_view(*w.scale, w.num_experts, parts.scale, result.parts_);
    result.by_key_.emplace(w.name, result.bound_.size());
    result.bound_.push_back(bound);
  }
  WEFT_RETURN_IF_ERROR(binder.finish());
  result.files_.assign(checkpoint.files().begin(), checkpoint.files().end());
  return result;
}

const BoundWeight* BoundWeights::find(std::string_view key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : &bound_[it->second];
}

}  // namespace weft::deepseek_v4
