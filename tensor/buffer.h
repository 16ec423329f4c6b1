// Owned memory: zeroed, page- or cache-line-aligned; and read-only mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/status.h"

namespace weft {

// Anonymous memory of `size` bytes, aligned to a page, all zero. The operating system gives pages when they are first
// touched, so a large buffer that is used in part costs only that part.
class Buffer {
 public:
  Buffer() = default;
  static Result<Buffer> allocate(int64_t size);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// A whole file, mapped read-only and shared. An empty file has size 0 and null data.
class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace weft
