#include "models/synth.h"

#include <unistd.h>

#include <algorithm>
#include <future>

#include <fmt/format.h>

#include "io/quant_description.h"
#include "io/safetensors_writer.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockBytes = int64_t{32} << 20;  // generated while the block before is written
constexpr int64_t kPieceBytes = int64_t{1} << 19;   // of one thread
constexpr double kGiB = 1 << 30;

Status io_error(const fs::path& path, std::string_view what, const std::error_code& error) {
  return machine_failed(fmt::format("{}: cannot {}: {}", path.string(), what, error.message()));
}

// A folder beside `out` that takes its name when complete and vanishes otherwise.
class NewFolder {
 public:
  static Result<std::unique_ptr<NewFolder>> create(const fs::path& out) {
    std::error_code error;
    const fs::file_status status = fs::status(out, error);
    if (fs::exists(status)) {
      if (!fs::is_directory(status)) return invalid_argument(fmt::format("{}: is a file, not a folder", out.string()));
      if (!fs::is_empty(out, error)) {
        return invalid_argument(fmt::format("{}: the folder is not empty; give a new one", out.string()));
      }
    }
    auto folder = std::unique_ptr<NewFolder>(new NewFolder);
    folder->out_ = out;
    folder->tmp_ = out.parent_path() / fmt::format(".{}.{}.tmp", out.filename().string(), getpid());
    if (!fs::create_directory(folder->tmp_, error)) return io_error(folder->tmp_, "create the folder", error);
    folder->made_ = true;
    return folder;
  }
  ~NewFolder() {
    std::error_code ignored;  // nothing better can be done with what is left
    if (made_) fs::remove_all(tmp_, ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const fs::path& path() const { return tmp_; }
  Status finish() {
    std::error_code error;
    fs::rename(tmp_, out_, error);
    if (error) return io_error(out_, "rename the complete folder to it", error);
    made_ = false;
    return {};
  }

 private:
  NewFolder() = default;
  fs::path out_, tmp_;
  bool made_ = false;
};

Status check_space(const fs::path& folder, int64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error) return io_error(folder, "find its free space", error);
  if (static_cast<double>(bytes) <= static_cast<double>(space.available)) return {};
  return machine_failed(fmt::format("{}: {:.2f} GiB are needed, {:.2f} GiB are free on this disk",
                                    folder.parent_path().string(), static_cast<double>(bytes) / kGiB,
                                    static_cast<double>(space.available) / kGiB));
}

// A run of bytes of one tensor.
struct Piece {
  const SynthTensor* tensor;
  uint64_t key;
  int64_t first_byte, bytes, offset_in_block;
};

// Cuts the tensors of a shard into blocks of pieces.
class Blocks {
 public:
  Blocks(std::span<const SynthTensor> tensors, uint64_t seed) : tensors_(tensors), seed_(seed) {}

  // The next block; empty at the end.
  std::vector<Piece> next() {
    std::vector<Piece> pieces;
    int64_t filled = 0;
    for (; at_ < tensors_.size(); ++at_, first_byte_ = 0) {
      const SynthTensor& t = tensors_[at_];
      const uint64_t key = random_key(seed_, t.name);
      const int64_t total = t.random.type.bytes(), granule = fill_granule(t.random);
      const int64_t piece = std::max<int64_t>(kPieceBytes / granule, 1) * granule;
      for (; first_byte_ < total; first_byte_ += pieces.back().bytes) {
        const int64_t bytes = std::min(piece, total - first_byte_);
        if (filled > 0 && filled + bytes > kBlockBytes) return pieces;
        pieces.push_back({&t, key, first_byte_, bytes, filled});
        filled += bytes;
      }
    }
    return pieces;
  }

 private:
  std::span<const SynthTensor> tensors_;
  uint64_t seed_;
  size_t at_ = 0;
  int64_t first_byte_ = 0;
};

class Writer {
 public:
  Writer(const SynthWrite& options, ThreadPool& pool) : options_(options), pool_(pool) {}

  Status write_shard(const fs::path& path, std::span<const SynthTensor> tensors) {
    std::vector<NamedTensorType> types;
    for (const SynthTensor& t : tensors) types.push_back({t.name, t.random.type});
    const std::pair<std::string, std::string> format{"format", "pt"};
    WEFT_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(path, types, {&format, 1}));
    Blocks blocks(tensors, options_.seed);
    std::future<Status> writing;  // waits in its destructor, before the writer and the buffers go
    for (int turn = 0;; turn ^= 1) {
      const std::vector<Piece> pieces = blocks.next();
      const int64_t bytes = pieces.empty() ? 0 : pieces.back().offset_in_block + pieces.back().bytes;
      WEFT_RETURN_IF_ERROR(generate(pieces, bytes, buffers_[turn]));
      if (writing.valid()) WEFT_RETURN_IF_ERROR(writing.get());
      WEFT_RETURN_IF_ERROR(options_.on_progress(written_));
      if (pieces.empty()) break;
      const std::span<const std::byte> block(buffers_[turn].data(), static_cast<size_t>(bytes));
      writing = std::async(std::launch::async, [&writer, block] { return writer.write(block); });
      written_ += bytes;
    }
    return writer.finish();
  }

 private:
  Status generate(std::span<const Piece> pieces, int64_t bytes, Buffer& buffer) {
    if (buffer.size() < bytes) {
      WEFT_ASSIGN_OR_RETURN(buffer, Buffer::allocate(bytes));
    }
    pool_.parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const Piece& p = pieces[i];
        fill_random(p.tensor->random, p.key, p.first_byte,
                    {buffer.data() + p.offset_in_block, static_cast<size_t>(p.bytes)});
      }
    });
    return {};
  }

  const SynthWrite& options_;
  ThreadPool& pool_;
  Buffer buffers_[2];
  int64_t written_ = 0;
};

// Consecutive tensors of at most `limit` bytes together (one at least).
std::vector<std::span<const SynthTensor>> shards_of(std::span<const SynthTensor> tensors, int64_t limit) {
  std::vector<std::span<const SynthTensor>> shards;
  for (size_t begin = 0; begin < tensors.size();) {
    size_t end = begin;
    for (int64_t bytes = 0; end < tensors.size(); ++end) {
      bytes += tensors[end].random.type.bytes();
      if (bytes > limit && end > begin) break;
    }
    shards.push_back(tensors.subspan(begin, end - begin));
    begin = end;
  }
  return shards;
}

}  // namespace

int64_t SynthPlan::bytes() const {
  int64_t bytes = 0;
  for (const SynthTensor& t : tensors) bytes += t.random.type.bytes();
  return bytes;
}

Status write_synth(const SynthPlan& plan, const fs::path& out, const SynthWrite& options, ThreadPool& pool) {
  // "OUT/" names the same folder as "OUT".
  const fs::path target = fs::absolute(out / "").lexically_normal().parent_path();
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NewFolder> folder, NewFolder::create(target));
  constexpr int64_t kHeaderBytesPerTensor = 200;
  WEFT_RETURN_IF_ERROR(
      check_space(folder->path(), plan.bytes() + static_cast<int64_t>(plan.tensors.size()) * kHeaderBytesPerTensor));
  WEFT_RETURN_IF_ERROR(write_file(folder->path() / "config.json", plan.config.dump(2) + "\n"));
  if (!plan.quant_description.is_null()) {
    WEFT_RETURN_IF_ERROR(write_file(folder->path() / QuantDescription::kFileName, plan.quant_description.dump(2) + "\n"));
  }
  for (const fs::path& file : options.copies) {
    std::error_code error;
    fs::copy_file(file, folder->path() / file.filename(), error);
    if (error) return io_error(file, "copy", error);
  }

  const auto shards = shards_of(plan.tensors, options.max_shard_bytes);
  Writer writer(options, pool);
  std::vector<std::pair<std::string, std::string>> weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1
                                 ? "model.safetensors"
                                 : shard_file_name(static_cast<int>(i) + 1, static_cast<int>(shards.size()));
    WEFT_RETURN_IF_ERROR(writer.write_shard(folder->path() / name, shards[i]));
    for (const SynthTensor& t : shards[i]) weight_map.emplace_back(t.name, name);
  }
  if (shards.size() > 1) WEFT_RETURN_IF_ERROR(write_safetensors_index(folder->path(), weight_map, plan.bytes()));
  return folder->finish();
}

}  // namespace weft
