// Writes safetensors files as a stream: the header first, then tensor after tensor in the order of the list.
//
// Everything goes to "FILE.tmp"; finish() renames it to FILE, and a writer that ends without finish() removes it, so no
// half-written file keeps the final name. Data is not forced to the disk (fsync).
// In the file tensors lie by element size, largest first, so that each is aligned; the caller need not care.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace weft {

struct NamedTensorType {
  std::string name;
  TensorType type;  // a stored type: FP4 weights are I8 with half the columns
};

class SafetensorsWriter {
 public:
  // Creates FILE.tmp and writes the header. Errors: a name twice, a type that the format lacks, FILE exists and is not a
  // regular file, I/O.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::span<const NamedTensorType> tensors,
                                          std::span<const std::pair<std::string, std::string>> metadata = {});
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) noexcept;
  ~SafetensorsWriter();

  // The next bytes of the data of all tensors, concatenated in list order. Pieces may be of any size and may cross
  // tensors. Writing more than the list needs is a fault of the caller.
  Status write(std::span<const std::byte> bytes);

  // All bytes must have been written. After it the file has its final name.
  Status finish();

  int64_t file_bytes() const { return file_bytes_; }

 private:
  struct Slot {
    int64_t offset = 0, bytes = 0;
  };
  SafetensorsWriter() = default;

  std::filesystem::path path_, tmp_path_;
  int fd_ = -1;
  std::vector<Slot> slots_;  // list order, empty tensors left out
  size_t slot_ = 0;
  int64_t written_in_slot_ = 0;
  int64_t file_bytes_ = 0;
};

// Writes a whole small file (a config, an index) the same way: through FILE.tmp, renamed when complete.
Status write_file(const std::filesystem::path& path, std::string_view text);

// Whether write_file could make that file now: what takes long asks before it begins. Nothing is left behind.
Status check_writable(const std::filesystem::path& path);

// model-00003-of-00046.safetensors; numbers start at 1.
std::string shard_file_name(int shard, int num_shards);

// Writes model.safetensors.index.json into `dir`, by write_file. `weight_map`: tensor name and
// file name of its shard. `total_size`: bytes of all tensors.
Status write_safetensors_index(const std::filesystem::path& dir,
                               std::span<const std::pair<std::string, std::string>> weight_map, int64_t total_size);

}  // namespace weft
