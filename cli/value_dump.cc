#include "cli/value_dump.h"

#include <fnmatch.h>

#include <algorithm>
#include <numeric>

#include <fmt/ranges.h>

#include "io/safetensors_writer.h"

namespace weft {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// Letters to insert, delete or replace. Source: Wagner, Fischer, "The string-to-string correction problem", JACM 1974.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
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
        fmt::format("--tensor '{}' matches none of the {} values; close: {} (all of them: weft graph)", pattern,
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
