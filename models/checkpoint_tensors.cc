#include "models/checkpoint_tensors.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace weft {

std::string listed_names(std::string_view what, const std::vector<std::string>& names) {
  constexpr size_t kMaxListed = 10;
  if (names.empty()) return "";
  const std::span<const std::string> shown(names.data(), std::min(names.size(), kMaxListed));
  return fmt::format("; {} ({}): {}{}", what, names.size(), fmt::join(shown, ", "), shown.size() < names.size() ? ", ..." : "");
}

const std::byte* CheckpointTensors::take(const std::string& name, const TensorType& type) {
  const Checkpoint::Entry* entry = checkpoint_.find(name);
  if (entry == nullptr) {
    report(missing_, name);
    return nullptr;
  }
  used_[static_cast<size_t>(entry - checkpoint_.entries().data())] = true;
  if (entry->type == type) return entry->data;
  wrong(fmt::format("'{}' is {}, expected {}", name, to_string(entry->type), to_string(type)));
  return nullptr;
}

Status CheckpointTensors::finish(std::string_view problems) const {
  std::vector<std::string> extra;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (!used_[i]) extra.emplace_back(checkpoint_.entries()[i].name);
  }
  if (missing_.empty() && extra.empty() && wrong_.empty() && problems.empty()) return {};
  return invalid_argument(fmt::format("{}: the tensors do not fit config.json{}{}{}{}", checkpoint_.dir().string(), problems,
                                      listed_names("missing", missing_), listed_names("unexpected", extra),
                                      listed_names("wrong", wrong_)));
}

void CheckpointTensors::report(std::vector<std::string>& list, std::string line) {
  const auto recent = list.end() - static_cast<ptrdiff_t>(std::min<size_t>(list.size(), 4));
  if (std::find(recent, list.end(), line) == list.end()) list.push_back(std::move(line));
}

TensorView weight_view(const TensorType& type, int64_t num_experts, std::span<const std::byte* const> parts,
                       std::vector<std::unique_ptr<void*[]>>& storage) {
  const auto writable = [](const std::byte* p) { return const_cast<std::byte*>(p); };
  if (num_experts == 0) return {type, writable(parts[0]), {}};
  storage.push_back(std::make_unique<void*[]>(parts.size()));
  std::transform(parts.begin(), parts.end(), storage.back().get(), writable);
  return {type, nullptr, {storage.back().get(), parts.size()}};
}

std::string expert_name(std::string_view pattern, int64_t expert) {
  const size_t at = pattern.find("{}");
  WEFT_CHECK(at != pattern.npos, "{}", pattern);
  return fmt::format("{}{}{}", pattern.substr(0, at), expert, pattern.substr(at + 2));
}

TensorType expert_type(const TensorType& stacked) { return {stacked.dtype, Shape(stacked.shape.dims().subspan(1))}; }

}  // namespace weft
