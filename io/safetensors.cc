#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "io/json_sax.h"

namespace weft {
namespace {

constexpr int64_t kSizeBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

// One tensor as the header spells it; `begin`, `end` count from the start of the data section.
struct RawEntry {
  std::string name;
  TensorType type;
  int64_t begin = 0, end = 0;
};

// Events of the header's JSON: an object of objects, lists of integers inside the tensors, nothing else.
class HeaderHandler : public JsonHandler {
 public:
  std::vector<RawEntry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("true or false"); }
  bool number_integer(int64_t) { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) { return unexpected("a fraction"); }
  bool binary(nlohmann::json::binary_t&) { return unexpected("a binary value"); }

  bool number_unsigned(uint64_t value) {
    if (!in_list_) return unexpected("a number");
    if (value > static_cast<uint64_t>(INT64_MAX)) return fail(where("number too large"));
    if (num_values_ == static_cast<int>(values_.size())) {
      return fail(where(fmt::format("more than {} numbers in '{}'", values_.size(), field_)));
    }
    values_[num_values_++] = static_cast<int64_t>(value);
    return true;
  }

  bool string(std::string& value) {
    if (depth_ == 2 && in_metadata_) {
      metadata.emplace_back(field_, std::move(value));
      return true;
    }
    if (depth_ != 2 || in_list_ || field_ != "dtype") return unexpected("a string");
    // FP4 has no name of its own in the files of the releases: they store it as I8.
    const std::optional<DType> dtype = parse_dtype(value);
    if (!dtype || *dtype == DType::kF4E2M1) return fail(where(fmt::format("unknown dtype '{}'", value)));
    entries.back().type.dtype = *dtype;
    return true;
  }

  bool start_object(size_t) {
    if (in_list_ || depth_ == 2) return unexpected("an object");
    ++depth_;
    if (depth_ == 2 && !in_metadata_) {
      has_dtype_ = has_shape_ = has_offsets_ = false;
      entries.push_back({.name = std::move(name_), .type = {}, .begin = 0, .end = 0});
      name_ = entries.back().name;
    }
    return true;
  }

  bool key(std::string& value) {
    if (depth_ == 1) {
      in_metadata_ = value == kMetadataKey;
      name_ = std::move(value);
      if (in_metadata_ && std::exchange(has_metadata_, true)) return fail(where("appears twice"));
      return true;
    }
    field_ = std::move(value);
    if (in_metadata_) {
      if (!metadata_keys_.insert(field_).second) return fail(where(fmt::format("key '{}' appears twice", field_)));
      return true;
    }
    bool* seen = field_ == "dtype"          ? &has_dtype_
                 : field_ == "shape"        ? &has_shape_
                 : field_ == "data_offsets" ? &has_offsets_
                                            : nullptr;
    if (seen == nullptr) return fail(where(fmt::format("unknown key '{}'", field_)));
    if (std::exchange(*seen, true)) return fail(where(fmt::format("key '{}' appears twice", field_)));
    return true;
  }

  bool end_object() {
    if (depth_ == 2 && !in_metadata_ && !(has_dtype_ && has_shape_ && has_offsets_)) {
      return fail(where(fmt::format("'{}' is missing", !has_dtype_   ? "dtype"
                                                       : !has_shape_ ? "shape"
                                                                     : "data_offsets")));
    }
    --depth_;
    return true;
  }

  bool start_array(size_t) {
    if (depth_ != 2 || in_metadata_ || in_list_ || field_ == "dtype") return unexpected("a list");
    in_list_ = true;
    num_values_ = 0;
    return true;
  }

  bool end_array() {
    in_list_ = false;
    RawEntry& entry = entries.back();
    if (field_ == "shape") {
      entry.type.shape = Shape(std::span(values_.data(), num_values_));
      return true;
    }
    if (num_values_ != 2) return fail(where("data_offsets needs two numbers"));
    entry.begin = values_[0];
    entry.end = values_[1];
    return true;
  }

 private:
  // Before the first tensor there is nothing to name.
  std::string where(std::string_view message) const {
    if (depth_ == 0 || name_.empty()) return std::string(message);
    if (in_metadata_) return fmt::format("{}: {}", kMetadataKey, message);
    return fmt::format("tensor '{}': {}", name_, message);
  }
  bool unexpected(std::string_view what) {
    if (depth_ == 2 || in_list_) return fail(where(fmt::format("'{}' cannot be {}", field_, what)));
    return fail(where(fmt::format("expected an object, found {}", what)));
  }

  int depth_ = 0;
  bool in_metadata_ = false, in_list_ = false, has_metadata_ = false;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::string name_, field_;
  std::unordered_set<std::string> metadata_keys_;
  std::array<int64_t, Shape::kMaxRank> values_{};
  int num_values_ = 0;
};

// Bytes of a tensor whose dims come from a file; none if they do not fit 63 bits.
std::optional<int64_t> checked_bytes(const TensorType& type) {
  int64_t bits = dtype_bits(type.dtype);
  for (int64_t dim : type.shape.dims()) {
    if (__builtin_mul_overflow(bits, dim, &bits)) {
      // A zero later on makes the product zero; such shapes hold nothing and have no use.
      return std::nullopt;
    }
  }
  return bits / 8;
}

Status check_entry(std::string_view file, const RawEntry& entry, int64_t data_bytes) {
  const auto error = [&](std::string_view message) {
    return invalid_argument(fmt::format("{}: tensor '{}': {}", file, entry.name, message));
  };
  if (entry.end < entry.begin) return error(fmt::format("data_offsets end {} < begin {}", entry.end, entry.begin));
  if (entry.end > data_bytes) {
    return error(fmt::format("data_offsets [{}, {}) lie outside the {} bytes of data; is the file truncated?",
                             entry.begin, entry.end, data_bytes));
  }
  const std::optional<int64_t> bytes = checked_bytes(entry.type);
  if (!bytes) return error(fmt::format("shape {} is too large", to_string(entry.type.shape)));
  if (*bytes != entry.end - entry.begin) {
    return error(fmt::format("{} needs {} bytes but data_offsets covers {}", to_string(entry.type), *bytes,
                             entry.end - entry.begin));
  }
  return {};
}

// Names are unique and the tensors, sorted by offset, cover the data without overlap, gap or rest.
Status check_layout(std::string_view file, const std::vector<RawEntry>& entries, int64_t data_bytes) {
  std::unordered_set<std::string_view> names;
  names.reserve(entries.size());
  for (const RawEntry& entry : entries) {
    if (!names.insert(entry.name).second) {
      return invalid_argument(fmt::format("{}: tensor '{}': appears twice in the header", file, entry.name));
    }
  }
  int64_t covered = 0;
  std::string_view previous;
  for (const RawEntry& entry : entries) {
    if (entry.begin < covered) {
      return invalid_argument(fmt::format("{}: tensor '{}': data_offsets [{}, {}) overlap '{}', which ends at {}", file,
                                          entry.name, entry.begin, entry.end, previous, covered));
    }
    if (entry.begin > covered) {
      return invalid_argument(fmt::format("{}: tensor '{}': a gap of {} bytes before its data at {}", file, entry.name,
                                          entry.begin - covered, entry.begin));
    }
    covered = entry.end;
    previous = entry.name;
  }
  if (covered != data_bytes) {
    return invalid_argument(
        fmt::format("{}: {} bytes of data after the last tensor belong to none", file, data_bytes - covered));
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> bytes, int64_t file_size,
                                                   std::string_view file) {
  if (file_size < kSizeBytes || static_cast<int64_t>(bytes.size()) < kSizeBytes) {
    return invalid_argument(fmt::format("{}: {} bytes are too few for a safetensors file", file, file_size));
  }
  uint64_t header_bytes = 0;
  for (int i = 0; i < kSizeBytes; ++i) header_bytes |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return invalid_argument(
        fmt::format("{}: the header claims {} bytes, more than the allowed {}; not a safetensors file?", file,
                    header_bytes, kMaxSafetensorsHeaderBytes));
  }
  const int64_t data_offset = kSizeBytes + static_cast<int64_t>(header_bytes);
  if (data_offset > std::min(file_size, static_cast<int64_t>(bytes.size()))) {
    return invalid_argument(fmt::format("{}: the header claims {} bytes but the file has {}; is it truncated?", file,
                                        header_bytes, file_size));
  }
  HeaderHandler handler;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kSizeBytes, header_bytes);
  if (!parse_json_events(text, handler)) {
    return invalid_argument(fmt::format("{}: header: {}", file, handler.error()));
  }
  const int64_t data_bytes = file_size - data_offset;
  for (const RawEntry& entry : handler.entries) {
    WEFT_RETURN_IF_ERROR(check_entry(file, entry, data_bytes));
  }
  std::stable_sort(handler.entries.begin(), handler.entries.end(), [](const RawEntry& a, const RawEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  WEFT_RETURN_IF_ERROR(check_layout(file, handler.entries, data_bytes));

  SafetensorsHeader header;
  header.data_offset = data_offset;
  header.metadata = std::move(handler.metadata);
  header.entries.reserve(handler.entries.size());
  for (RawEntry& entry : handler.entries) {
    header.entries.push_back({std::move(entry.name), entry.type, data_offset + entry.begin});
  }
  return header;
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const std::filesystem::path& path) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  WEFT_ASSIGN_OR_RETURN(file->file_, MappedFile::open(path));
  const MappedFile& mapped = *file->file_;
  WEFT_ASSIGN_OR_RETURN(file->header_, parse_safetensors_header({mapped.data(), static_cast<size_t>(mapped.size())},
                                                                mapped.size(), path.string()));
  WEFT_RETURN_IF_ERROR(file->align());
  file->by_name_.reserve(file->header_.entries.size());
  for (const SafetensorsEntry& entry : file->header_.entries) file->by_name_.emplace(entry.name, &entry);
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

// The mapping begins at a page, so an offset in the file decides.
Status SafetensorsFile::align() {
  const auto misaligned = [](const SafetensorsEntry& entry) {
    return entry.type.bytes() > 0 && entry.offset % (dtype_bits(entry.type.dtype) / 8) != 0;
  };
  // Each copy begins at a multiple of the widest element.
  constexpr int64_t kAlignment = 8;
  const auto room = [](const SafetensorsEntry& entry) {
    return (entry.type.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  };
  int64_t total = 0;
  for (const SafetensorsEntry& entry : header_.entries) total += misaligned(entry) ? room(entry) : 0;
  if (total == 0) return {};
  WEFT_ASSIGN_OR_RETURN(aligned_, Buffer::allocate(total));
  int64_t at = 0;
  for (const SafetensorsEntry& entry : header_.entries) {
    if (!misaligned(entry)) continue;
    std::memcpy(aligned_.data() + at, file_->data() + entry.offset, static_cast<size_t>(entry.type.bytes()));
    copies_.emplace(entry.offset, aligned_.data() + at);
    at += room(entry);
  }
  return {};
}

const std::byte* SafetensorsFile::data(const SafetensorsEntry& entry) const {
  if (!copies_.empty()) {
    if (const auto copy = copies_.find(entry.offset); copy != copies_.end() && entry.type.bytes() > 0)
      return copy->second;
  }
  return file_->data() + entry.offset;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

}  // namespace weft
