// Read-only, memory-mapped safetensors files.
//
//   u64 little-endian header size N | N bytes of JSON | data
//   JSON: { "__metadata__": {text: text}, tensor name: {"dtype", "shape", "data_offsets": [begin, end)} ... }
//
// A file is accepted only if its tensors cover the data section exactly (no overlap, gap or rest) and each starts at a
// multiple of its element size in the file, so that views of the mapping may be used as they are.
// One error names file and tensor. Source: the safetensors format description.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace weft {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the bound of the format

struct SafetensorsEntry {
  std::string name;
  TensorType type;
  int64_t offset = 0;  // of the first byte, from the start of the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;                        // in order of offset
  std::vector<std::pair<std::string, std::string>> metadata;    // in file order
  int64_t data_offset = 0;
};

// Checks everything that can be known without the data. `bytes` is the start of the file (the size field and the whole
// JSON, or all there is), `file_size` the size of the file, `file` its name for messages.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> bytes, int64_t file_size,
                                                   std::string_view file);

// An open file. Immutable, safe to share between threads. Views stay valid as long as the object lives.
class SafetensorsFile {
 public:
  static Result<std::shared_ptr<const SafetensorsFile>> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_->path(); }
  int64_t file_bytes() const { return file_->size(); }
  std::span<const SafetensorsEntry> entries() const { return header_.entries; }
  std::span<const std::pair<std::string, std::string>> metadata() const { return header_.metadata; }

  const SafetensorsEntry* find(std::string_view name) const;  // null if absent
  const std::byte* data(const SafetensorsEntry& entry) const { return file_->data() + entry.offset; }
  // Writing through the view is a fault (the mapping is read-only).
  TensorView view(const SafetensorsEntry& entry) const {
    return {entry.type, const_cast<std::byte*>(data(entry)), {}};
  }

 private:
  SafetensorsFile() = default;
  std::shared_ptr<const MappedFile> file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, const SafetensorsEntry*> by_name_;
};

}  // namespace weft
