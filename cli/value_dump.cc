#include "cli/value_dump.h"

#include <fnmatch.h>

#include <algorithm>

#include <fmt/ranges.h>

#include "base/edit_distance.h"
#include "base/shown_text.h"
#include "io/safetensors_writer.h"

namespace weft {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

void ValueDump::record(const Value& value, const TensorView& view, std::string_view prefix) {
  const std::string name = std::string(prefix) + value.name;
  const auto [seen, first] = seen_.try_emplace(name, false);
  if (first) {
    seen->second =
        std::any_of(patterns_.begin(), patterns_.end(), [&](const std::string& p) { return matches(p, name); });
  }
  if (!seen->second) return;
  Tensor& tensor = tensors_[name];
  const auto* data = view.as<std::byte>();
  if (tensor.bytes.empty() || value.type.rows == Rows::kStatic) {
    tensor = {view.type, {data, data + view.type.bytes()}};
    return;
  }
  tensor.type.shape[0] += view.shape()[0];
  tensor.bytes.insert(tensor.bytes.end(), data, data + view.type.bytes());
}

Status ValueDump::check() const {
  constexpr size_t kShown = 5;
  for (const std::string& pattern : patterns_) {
    if (std::any_of(seen_.begin(), seen_.end(), [&](const auto& seen) { return matches(pattern, seen.first); }))
      continue;
    std::vector<std::pair<size_t, std::string>> close;
    for (const auto& [name, matched] : seen_) close.emplace_back(edit_distance(pattern, name), name);
    std::sort(close.begin(), close.end());
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min(kShown, close.size()); ++i) names.push_back(close[i].second);
    return invalid_argument(
        fmt::format("--tensor '{}' matches none of the {} values; close: {} (all of them: weft graph)", shown(pattern),
                    seen_.size(), fmt::join(names, ", ")));
  }
  return {};
}

Status ValueDump::write(const std::filesystem::path& file) const {
  std::vector<NamedTensorType> types;
  for (const auto& [name, tensor] : tensors_) types.push_back({name, tensor.type});
  WEFT_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(file, types));
  for (const auto& [name, tensor] : tensors_) WEFT_RETURN_IF_ERROR(writer.write(tensor.bytes));
  return writer.finish();
}

}  // namespace weft
