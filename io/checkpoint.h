// A model folder: config.json and the tensors of model.safetensors, or of the shards that
// model.safetensors.index.json names; quant_model_description.json, if it is there.
//
// Errors: neither of both files; a shard missing; a tensor of the index that its shard lacks, or the reverse; a shard
// name with a path in it; model.safetensors beside an index that does not name it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "io/json.h"
#include "io/quant_description.h"
#include "io/safetensors.h"

namespace weft {

class Checkpoint {
 public:
  enum class Contents {
    kTensors,     // all shards are here: names, types, data
    kNames,       // an index without its shards: names only
    kConfigOnly,  // config.json alone
  };

  struct Entry {
    std::string_view name;
    TensorType type;
    const std::byte* data = nullptr;
    int file = 0;  // index into files()
  };

  // All tensors must be there.
  static Result<Checkpoint> open(const std::filesystem::path& dir);
  // For inspection: what is there. Some shards present and others not is an error here too.
  static Result<Checkpoint> open_headers_only(const std::filesystem::path& dir);

  // A config file alone, of any name.
  static Result<Checkpoint> open_config(const std::filesystem::path& file);

  const std::filesystem::path& dir() const { return dir_; }
  const Json& config() const { return config_; }
  std::string config_name() const { return config_path_.string(); }
  // Of quant_model_description.json beside config.json, where there is one.
  const std::optional<QuantDescription>& quant_description() const { return quant_description_; }
  Contents contents() const { return contents_; }

  std::span<const std::string_view> names() const { return names_; }  // empty for kConfigOnly
  std::span<const Entry> entries() const { return entries_; }         // empty unless kTensors
  const Entry* find(std::string_view name) const;                     // null if absent or not kTensors
  bool has_name(std::string_view name) const { return by_name_.contains(name); }

  // Keep these to keep the data mapped.
  std::span<const std::shared_ptr<const SafetensorsFile>> files() const { return files_; }
  int64_t file_bytes() const;                                          // of all shards, headers included
  std::optional<int64_t> index_total_size() const { return total_size_; }  // metadata.total_size of the index

 private:
  Checkpoint() = default;
  enum class Need { kTensors, kWhatIsThere };
  static Result<Checkpoint> open_folder(const std::filesystem::path& dir, Need need);
  Status read_config(const std::filesystem::path& file);
  Status open_index(const std::filesystem::path& path, Need need);
  void add_name(std::string_view name);
  void add_file(std::shared_ptr<const SafetensorsFile> file);

  std::filesystem::path dir_, config_path_;
  Json config_;
  std::optional<QuantDescription> quant_description_;
  Contents contents_ = Contents::kConfigOnly;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::shared_ptr<const Json> index_;  // owns the names of kNames
  std::vector<std::string_view> names_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;  // position in names_ (and entries_)
  std::optional<int64_t> total_size_;
};

}  // namespace weft
