#include "io/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "io/json.h"

namespace weft {
namespace {

constexpr int64_t kHeaderAlignment = 8;             // of the data section: the largest element size
constexpr size_t kMaxWriteBytes = size_t{1} << 30;  // below the limit of one write call

Status io_error(const std::filesystem::path& path, std::string_view what) {
  return machine_failed(fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno)));
}

Status write_at(int fd, const std::filesystem::path& path, std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd, bytes.data(), std::min(bytes.size(), kMaxWriteBytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return io_error(path, "write");
    bytes = bytes.subspan(n);
    offset += n;
  }
  return {};
}

Status check_list(const std::filesystem::path& path, std::span<const NamedTensorType> tensors) {
  std::unordered_set<std::string_view> names;
  for (const NamedTensorType& t : tensors) {
    if (!names.insert(t.name).second || t.name == "__metadata__") {
      return invalid_argument(fmt::format("{}: tensor '{}': the name is used twice", path.string(), t.name));
    }
    if (t.type.dtype == DType::kF4E2M1) {
      return invalid_argument(fmt::format("{}: tensor '{}': {} is stored as I8 with half the columns", path.string(),
                                          t.name, to_string(t.type)));
    }
  }
  return {};
}

// A quoted, escaped JSON string; none for text that is not UTF-8.
std::optional<std::string> quoted(const std::string& text) {
  std::string result = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  // The replacement would change a name silently.
  if (Json::parse(result, nullptr, false) != Json(text)) return std::nullopt;
  return result;
}

// The finished file takes the place of what is at `path`: that may only be a regular file, or nothing.
Status expect_replaceable(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return {};
  return invalid_argument(fmt::format("{}: exists and is not a regular file", path.string()));
}

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::span<const NamedTensorType> tensors,
                                                    std::span<const std::pair<std::string, std::string>> metadata) {
  WEFT_RETURN_IF_ERROR(check_list(path, tensors));

  // Largest elements first: every tensor then starts at a multiple of its element size.
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return dtype_bits(tensors[a].type.dtype) > dtype_bits(tensors[b].type.dtype);
  });

  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      const auto k = quoted(key), v = quoted(value);
      if (!k || !v) return invalid_argument(fmt::format("{}: metadata '{}' is not UTF-8", path.string(), key));
      if (header.back() != '{') header += ',';
      header += fmt::format("{}:{}", *k, *v);
    }
    header += '}';
  }
  std::vector<Slot> slots(tensors.size());
  int64_t offset = 0;
  for (size_t i : order) {
    const NamedTensorType& t = tensors[i];
    const auto name = quoted(t.name);
    if (!name) return invalid_argument(fmt::format("{}: the name of tensor {} is not UTF-8", path.string(), i));
    slots[i] = {offset, t.type.bytes()};
    offset += slots[i].bytes;
    if (header.size() > 1) header += ',';
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", *name,
                          dtype_name(t.type.dtype), to_string(t.type.shape), slots[i].offset, offset);
  }
  header += '}';
  header.resize((header.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');

  WEFT_RETURN_IF_ERROR(expect_replaceable(path));
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.tmp_path_ = path;
  writer.tmp_path_ += ".tmp";
  writer.fd_ = ::open(writer.tmp_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (writer.fd_ < 0) return io_error(writer.tmp_path_, "create");
  const uint64_t header_bytes = header.size();
  std::string prefix(8, '\0');
  for (int i = 0; i < 8; ++i) prefix[i] = static_cast<char>(header_bytes >> (8 * i));
  prefix += header;
  WEFT_RETURN_IF_ERROR(write_at(writer.fd_, writer.tmp_path_, std::as_bytes(std::span(prefix)), 0));

  const int64_t data_offset = static_cast<int64_t>(prefix.size());
  for (Slot& slot : slots) {
    slot.offset += data_offset;
    if (slot.bytes > 0) writer.slots_.push_back(slot);
  }
  writer.file_bytes_ = data_offset + offset;
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept { *this = std::move(other); }

SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(tmp_path_, other.tmp_path_);
  std::swap(fd_, other.fd_);
  std::swap(slots_, other.slots_);
  std::swap(slot_, other.slot_);
  std::swap(written_in_slot_, other.written_in_slot_);
  std::swap(file_bytes_, other.file_bytes_);
  return *this;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(tmp_path_.c_str());
}

Status SafetensorsWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    WEFT_CHECK(slot_ < slots_.size(), "{}: {} bytes more than the list of tensors holds", path_.string(), bytes.size());
    const Slot& slot = slots_[slot_];
    const int64_t n = std::min(static_cast<int64_t>(bytes.size()), slot.bytes - written_in_slot_);
    WEFT_RETURN_IF_ERROR(write_at(fd_, tmp_path_, bytes.first(n), slot.offset + written_in_slot_));
    bytes = bytes.subspan(n);
    written_in_slot_ += n;
    if (written_in_slot_ == slot.bytes) {
      ++slot_;
      written_in_slot_ = 0;
    }
  }
  return {};
}

Status SafetensorsWriter::finish() {
  WEFT_CHECK(slot_ == slots_.size(), "{}: tensor {} of {} is not complete", path_.string(), slot_, slots_.size());
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 || ::rename(tmp_path_.c_str(), path_.c_str()) != 0) {
    Status status = io_error(path_, "finish");  // before unlink changes errno
    ::unlink(tmp_path_.c_str());
    return status;
  }
  return {};
}

std::string shard_file_name(int shard, int num_shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard, num_shards);
}

Status write_safetensors_index(const std::filesystem::path& dir,
                               std::span<const std::pair<std::string, std::string>> weight_map, int64_t total_size) {
  Json map = Json::object();
  for (const auto& [tensor, shard] : weight_map) map[tensor] = shard;
  const Json index = {{"metadata", {{"total_size", total_size}}}, {"weight_map", std::move(map)}};
  return write_file(dir / "model.safetensors.index.json",
                    index.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

namespace {

struct TemporaryFile {
  std::filesystem::path path;
  int fd = -1;
};

// "FILE.tmp", which is to become FILE.
Result<TemporaryFile> create_beside(const std::filesystem::path& path) {
  WEFT_RETURN_IF_ERROR(expect_replaceable(path));
  TemporaryFile file{path};
  file.path += ".tmp";
  file.fd = ::open(file.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file.fd < 0) return io_error(file.path, "create");
  return file;
}

}  // namespace

Status check_writable(const std::filesystem::path& path) {
  WEFT_ASSIGN_OR_RETURN(const TemporaryFile file, create_beside(path));
  ::close(file.fd);
  ::unlink(file.path.c_str());
  return {};
}

Status write_file(const std::filesystem::path& path, std::string_view text) {
  WEFT_ASSIGN_OR_RETURN(const TemporaryFile file, create_beside(path));
  const auto& [tmp, fd] = file;
  Status status = write_at(fd, tmp, std::as_bytes(std::span(text)), 0);
  if (::close(fd) != 0 && status.ok()) status = io_error(tmp, "write");
  if (status.ok() && ::rename(tmp.c_str(), path.c_str()) != 0) status = io_error(path, "finish");
  if (!status.ok()) ::unlink(tmp.c_str());
  return status;
}

}  // namespace weft
