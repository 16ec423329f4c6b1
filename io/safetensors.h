// Read-only, memory-mapped safetensors files.
//
//   u64 little-endian header size N | N bytes of JSON | data
//   JSON: { "__metadata__": {text: text}, tensor name: {"dtype", "shape", "data_offsets": [begin, end)} ... }
//
// A file is accepted only if its tensors cover the data section exactly (no overlap, gap or rest). The format promises
// no alignment: writers that do not pad the header exist, and the reference library reads their files. Tensors that
// start at a multiple of their element size are views of the mapping; the others are copied when the file is opened.
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
  std::vector<SafetensorsEntry> entries;                      // in order of offset
  std::vector<std::pair<std::string, std::string>> metadata;  // in file order
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
  // Aligned to the element size. `entry` is one of entries().
  const std::byte* data(const SafetensorsEntry& entry) const;
  int64_t copied_bytes() const { return aligned_.size(); }  // memory of tensors that are not aligned in the file
  // Writing through the view is a fault (the mapping is read-only).
  TensorView view(const SafetensorsEntry& entry) const { return {entry.type, const_cast<std::byte*>(data(entry)), {}}; }

 private:
  SafetensorsFile() = default;
  Status align();

  std::shared_ptr<const MappedFile> file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, const SafetensorsEntry*> by_name_;
  Buffer aligned_;
  std::unordered_map<int64_t, const std::byte*> copies_;  // by offset in the file: tensors inside aligned_
};

}  // namespace weft
