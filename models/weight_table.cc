#include "models/weight_table.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/check.h"

namespace weft {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

// Finds the tensors of weights.
class Binder {
 public:
  explicit Binder(const Checkpoint& checkpoint) : checkpoint_(checkpoint), tensors_(checkpoint) {}

  // One pointer per expert, or one for a weight that is not stacked; none if something is missing or wrong.
  std::vector<const std::byte*> locate(const Weight& w, const SideTensor* side) {
    const TensorType& type = side != nullptr ? side->type : w.type;
    std::vector<const std::byte*> parts;
    if (is_stacked(w, checkpoint_)) {
      add_slices(w, w.stacked_name + (side != nullptr ? side->stacked_suffix : ""), type, parts);
    } else if (w.num_experts > 0) {
      for (int64_t e = 0; e < w.num_experts; ++e) parts.push_back(tensors_.take(name_of(expert_name(w.tensor_name, e), side), expert_type(type)));
    } else {
      parts.push_back(tensors_.take(name_of(w.tensor_name, side), type));
    }
    if (std::find(parts.begin(), parts.end(), nullptr) != parts.end()) parts.clear();  // the reason is recorded
    return parts;
  }

  Status finish(std::string_view problems) const { return tensors_.finish(problems); }

 private:
  static std::string name_of(const std::string& tensor_name, const SideTensor* side) {
    return side == nullptr ? tensor_name : side_name(tensor_name, side->suffix);
  }

  // Slices of one tensor that holds all experts, each with `stacked_parts` weights below each other.
  void add_slices(const Weight& w, const std::string& name, const TensorType& type, std::vector<const std::byte*>& out) {
    TensorType whole = type;
    whole.shape[1] *= w.stacked_parts;
    const std::byte* data = tensors_.take(name, whole);
    if (data == nullptr) return;
    const int64_t slice = type.bytes() / type.shape[0];
    for (int64_t e = 0; e < w.num_experts; ++e) out.push_back(data + (e * w.stacked_parts + w.stacked_part) * slice);
  }

  const Checkpoint& checkpoint_;
  CheckpointTensors tensors_;
};

int64_t read_per_token(const Weight& w, int64_t bytes, int64_t picked, int64_t vocab_size) {
  switch (w.read) {
    case WeightRead::kAll: return bytes;
    case WeightRead::kOneRow: return bytes / vocab_size;
    case WeightRead::kPicked: return bytes / w.num_experts * picked;
  }
  WEFT_CHECK(false, "read {}", static_cast<int>(w.read));
}

}  // namespace

bool is_stacked(const Weight& w, const Checkpoint& checkpoint) {
  return w.num_experts > 0 && !w.stacked_name.empty() && checkpoint.has_name(w.stacked_name);
}

int64_t Weight::num_tensors() const { return std::max<int64_t>(num_experts, 1) * static_cast<int64_t>(1 + sides.size()); }

int64_t Weight::bytes() const {
  int64_t bytes = type.bytes();
  for (const SideTensor& side : sides) bytes += side.type.bytes();
  return bytes;
}

int64_t Weight::elements() const {
  int64_t elements = type.shape.num_elements();
  for (const SideTensor& side : sides) elements += side.type.shape.num_elements();
  return elements;
}

std::string side_name(std::string_view tensor_name, std::string_view suffix) {
  WEFT_CHECK(tensor_name.ends_with(kWeightSuffix), "{}", tensor_name);
  return fmt::format("{}{}", tensor_name.substr(0, tensor_name.size() - kWeightSuffix.size()), suffix);
}

std::vector<FileTensor> file_tensors(std::span<const Weight> weights) {
  std::vector<FileTensor> out;
  for (const Weight& w : weights) {
    const auto add = [&](const std::string& name, bool stacked) {
      const auto type = [&](const TensorType& t) { return stacked ? expert_type(t) : t; };
      out.push_back({name, type(w.type), &w, nullptr});
      for (const SideTensor& side : w.sides) out.push_back({side_name(name, side.suffix), type(side.type), &w, &side});
    };
    if (w.num_experts == 0) add(w.tensor_name, false);
    for (int64_t e = 0; e < w.num_experts; ++e) add(expert_name(w.tensor_name, e), true);
  }
  return out;
}

const Weight* find_weight(std::span<const Weight> weights, std::string_view key) {
  const auto at = std::find_if(weights.begin(), weights.end(), [&](const Weight& w) { return w.name == key; });
  return at == weights.end() ? nullptr : &*at;
}

std::optional<WeightValue> find_weight_value(std::span<const Weight> weights, std::string_view value_name) {
  if (const Weight* w = find_weight(weights, value_name)) return WeightValue{w, nullptr};
  const size_t dot = value_name.rfind('.');
  if (dot == value_name.npos) return std::nullopt;
  const Weight* w = find_weight(weights, value_name.substr(0, dot));
  if (w == nullptr) return std::nullopt;
  for (const SideTensor& side : w->sides) {
    if (side.name == value_name.substr(dot + 1)) return WeightValue{w, &side};
  }
  return std::nullopt;
}

void add_totals(ModelSummary& s, std::span<const Weight> weights, int64_t picked, int64_t vocab_size) {
  struct Count {
    int64_t tensors = 0, bytes = 0;
  };
  std::map<DType, Count> by_dtype;
  for (const Weight& w : weights) {
    (w.mtp ? s.parameters_mtp : s.parameters_main) += w.parameters();
    (w.mtp ? s.bytes_mtp : s.bytes_main) += w.bytes();
    if (!w.mtp) {
      s.bytes_per_decoded_token += read_per_token(w, w.bytes(), picked, vocab_size);
      if (w.read != WeightRead::kOneRow) s.parameters_active += read_per_token(w, w.parameters(), picked, vocab_size);
    }
    s.tensors += w.num_tensors();
    const std::string component = w.mtp ? "mtp" : w.component;
    auto share = std::find_if(s.by_component.begin(), s.by_component.end(), [&](const auto& c) { return c.name == component; });
    if (share == s.by_component.end()) share = s.by_component.insert(share, {component, 0, 0});
    share->tensors += w.num_tensors();
    share->bytes += w.bytes();
    const auto count = [&](const TensorType& type) {
      by_dtype[type.dtype].tensors += std::max<int64_t>(w.num_experts, 1);
      by_dtype[type.dtype].bytes += type.bytes();
    };
    count(w.type);
    for (const SideTensor& side : w.sides) count(side.type);
  }
  for (const auto& [dtype, n] : by_dtype) s.by_dtype.push_back({std::string(dtype_name(dtype)), n.tensors, n.bytes});
}

Result<TensorView> WeightData::view(std::string_view value_name) const {
  const auto at = views_.find(std::string(value_name));
  if (at != views_.end()) return at->second;
  return invalid_argument(fmt::format("{}: the checkpoint has no weight '{}'", where_, value_name));
}

Result<WeightData> bind_weights(std::vector<Weight> weights, const Checkpoint& checkpoint, std::string_view problems) {
  WeightData data;
  data.weights_ = std::move(weights);
  data.where_ = checkpoint.dir().string();
  Binder binder(checkpoint);
  const auto add = [&](const Weight& w, const SideTensor* side) {
    const std::vector<const std::byte*> parts = binder.locate(w, side);
    if (parts.empty()) return;
    const TensorView view = weight_view(side != nullptr ? side->type : w.type, w.num_experts, parts, data.parts_);
    data.views_.emplace(side != nullptr ? fmt::format("{}.{}", w.name, side->name) : w.name, view);
  };
  for (const Weight& w : data.weights_) {
    add(w, nullptr);
    for (const SideTensor& side : w.sides) add(w, &side);
  }
  WEFT_RETURN_IF_ERROR(binder.finish(problems));
  data.files_.assign(checkpoint.files().begin(), checkpoint.files().end());
  return data;
}

Status match_names(std::span<const Weight> weights, const Checkpoint& checkpoint) {
  std::set<std::string> expected;
  for (const Weight& w : weights) {
    if (is_stacked(w, checkpoint)) {
      expected.insert(w.stacked_name);
      for (const SideTensor& side : w.sides) expected.insert(w.stacked_name + side.stacked_suffix);
      continue;
    }
    for (FileTensor& tensor : file_tensors({&w, 1})) expected.insert(std::move(tensor.name));
  }
  std::vector<std::string> missing, extra;
  for (const std::string& name : expected) {
    if (!checkpoint.has_name(name)) missing.push_back(name);
  }
  for (std::string_view name : checkpoint.names()) {
    if (!expected.contains(std::string(name))) extra.emplace_back(name);
  }
  if (missing.empty() && extra.empty()) return {};
  return invalid_argument(fmt::format("{}: the names in the index do not fit config.json{}{}", checkpoint.dir().string(),
                                      listed_names("missing", missing), listed_names("unexpected", extra)));
}

}  // namespace weft
