#include "io/checkpoint.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace weft {
namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// A shard lies in the model folder itself: an index from elsewhere must not open other files.
bool plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name.find("..") == name.npos &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// Names of files with tensors, sorted.
std::vector<std::string> tensor_files(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(dir, ignored)) {
    if (file.path().extension() == ".safetensors") names.push_back(file.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Status check_index(const Json& index, const std::string& where) {
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return invalid_argument(fmt::format("{}: weight_map is missing or not an object", where));
  }
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) {
      return invalid_argument(
          fmt::format("{}: tensor '{}': expected a shard name, found {}", where, tensor, json_kind(shard)));
    }
    if (!plain_file_name(shard.get_ref<const std::string&>())) {
      return invalid_argument(fmt::format("{}: tensor '{}': shard '{}' is not a plain file name", where, tensor,
                                          shard.get_ref<const std::string&>()));
    }
  }
  return {};
}

// Both directions: what the index promises is in the shard, what the shard holds is promised.
Status check_shard(const SafetensorsFile& file, const std::string& shard, const Json& weight_map,
                   const std::vector<std::string_view>& promised) {
  for (std::string_view tensor : promised) {
    if (file.find(tensor) == nullptr) {
      return invalid_argument(
          fmt::format("{}: tensor '{}' is in the index but not in this shard", file.path().string(), tensor));
    }
  }
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto it = weight_map.find(entry.name);
    if (it == weight_map.end()) {
      return invalid_argument(
          fmt::format("{}: tensor '{}' is in this shard but not in the index", file.path().string(), entry.name));
    }
    if (const auto& other = it->get_ref<const std::string&>(); other != shard) {
      return invalid_argument(fmt::format("{}: tensor '{}' is in this shard but the index places it in {}",
                                          file.path().string(), entry.name, other));
    }
  }
  return {};
}

}  // namespace

void Checkpoint::add_name(std::string_view name) {
  by_name_.emplace(name, names_.size());
  names_.push_back(name);
}

void Checkpoint::add_file(std::shared_ptr<const SafetensorsFile> file) {
  for (const SafetensorsEntry& entry : file->entries()) {
    add_name(entry.name);
    entries_.push_back({entry.name, entry.type, file->data(entry), static_cast<int>(files_.size())});
  }
  files_.push_back(std::move(file));
  contents_ = Contents::kTensors;
}

Status Checkpoint::read_config(const std::filesystem::path& file) {
  dir_ = file.parent_path();
  config_path_ = file;
  WEFT_ASSIGN_OR_RETURN(config_, read_json_file(file));
  const std::filesystem::path description = dir_ / QuantDescription::kFileName;
  if (file.filename() == kConfigName && std::filesystem::exists(description)) {
    WEFT_ASSIGN_OR_RETURN(quant_description_, read_quant_description(description));
  }
  return {};
}

Status Checkpoint::open_index(const std::filesystem::path& path, Need need) {
  WEFT_ASSIGN_OR_RETURN(Json parsed, read_json_file(path));
  WEFT_RETURN_IF_ERROR(check_index(parsed, path.string()));
  index_ = std::make_shared<const Json>(std::move(parsed));
  const Json& weight_map = (*index_)["weight_map"];
  if (index_->contains("metadata") && (*index_)["metadata"].is_object()) {
    const auto it = (*index_)["metadata"].find("total_size");
    if (it != (*index_)["metadata"].end() && it->is_number_integer()) total_size_ = it->get<int64_t>();
  }

  std::map<std::string, std::vector<std::string_view>> shards;
  for (auto it = weight_map.begin(); it != weight_map.end(); ++it) {
    shards[it->get_ref<const std::string&>()].push_back(it.key());
  }
  std::string missing;
  size_t num_missing = 0;
  for (const auto& [shard, tensors] : shards) {
    if (std::filesystem::exists(dir_ / shard)) continue;
    if (num_missing++ == 0) missing = shard;
  }
  if (num_missing == shards.size() && need == Need::kWhatIsThere) {
    for (auto it = weight_map.begin(); it != weight_map.end(); ++it) add_name(it.key());
    contents_ = Contents::kNames;
    return {};
  }
  if (num_missing > 0) {
    return invalid_argument(fmt::format("{}: shard {} is missing ({} of {} shards are)", path.string(),
                                        (dir_ / missing).string(), num_missing, shards.size()));
  }
  if (std::filesystem::exists(dir_ / kSingleName) && !shards.contains(kSingleName)) {
    return invalid_argument(fmt::format("{}: {} lies beside it and is not one of its shards; remove one of the two",
                                        path.string(), kSingleName));
  }
  for (const auto& [shard, tensors] : shards) {
    WEFT_ASSIGN_OR_RETURN(auto file, SafetensorsFile::open(dir_ / shard));
    WEFT_RETURN_IF_ERROR(check_shard(*file, shard, weight_map, tensors));
    add_file(std::move(file));
  }
  contents_ = Contents::kTensors;
  return {};
}

Result<Checkpoint> Checkpoint::open_folder(const std::filesystem::path& dir, Need need) {
  std::error_code ignored;  // a folder that cannot be read is none for us
  if (!std::filesystem::is_directory(dir, ignored)) {
    return invalid_argument(fmt::format("{}: not a folder with a model", dir.string()));
  }
  Checkpoint checkpoint;
  WEFT_RETURN_IF_ERROR(checkpoint.read_config(dir / kConfigName));
  if (std::filesystem::exists(dir / kIndexName)) {
    WEFT_RETURN_IF_ERROR(checkpoint.open_index(dir / kIndexName, need));
  } else if (std::filesystem::exists(dir / kSingleName)) {
    WEFT_ASSIGN_OR_RETURN(auto file, SafetensorsFile::open(dir / kSingleName));
    checkpoint.add_file(std::move(file));
  } else if (const std::vector<std::string> files = tensor_files(dir); !files.empty()) {
    return invalid_argument(fmt::format("{}: {} .safetensors files ({}{}), but neither {} nor {}, which says what each holds", dir.string(),
                                        files.size(), files[0], files.size() > 1 ? ", ..." : "", kSingleName, kIndexName));
  } else if (need == Need::kTensors) {
    return invalid_argument(
        fmt::format("{}: no weights; expected {} or {} with its shards", dir.string(), kSingleName, kIndexName));
  }
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& dir) { return open_folder(dir, Need::kTensors); }

Result<Checkpoint> Checkpoint::open_headers_only(const std::filesystem::path& dir) {
  return open_folder(dir, Need::kWhatIsThere);
}

Result<Checkpoint> Checkpoint::open_config(const std::filesystem::path& file) {
  Checkpoint checkpoint;
  WEFT_RETURN_IF_ERROR(checkpoint.read_config(file));
  return checkpoint;
}

const Checkpoint::Entry* Checkpoint::find(std::string_view name) const {
  if (contents_ != Contents::kTensors) return nullptr;
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

int64_t Checkpoint::file_bytes() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->file_bytes();
  return bytes;
}

}  // namespace weft
