#include "io/json.h"

#include <vector>

#include "io/json_sax.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

class DocumentBuilder : public JsonHandler {
 public:
  bool null() { return add(nullptr) != nullptr; }
  bool boolean(bool value) { return add(value) != nullptr; }
  bool number_integer(int64_t value) { return add(value) != nullptr; }
  bool number_unsigned(uint64_t value) { return add(value) != nullptr; }
  bool number_float(double value, const std::string&) { return add(value) != nullptr; }
  bool string(std::string& value) { return add(std::move(value)) != nullptr; }
  bool binary(Json::binary_t&) { return fail("binary value"); }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& value) {
    if (open_.back()->contains(value)) return fail(fmt::format("key '{}' appears twice in one object", value));
    key_ = std::move(value);
    return true;
  }

  Json take() { return std::move(root_); }

 private:
  Json* add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool open(Json empty) {
    if (open_.size() >= kMaxJsonDepth) return fail(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    open_.push_back(add(std::move(empty)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // a parent is not touched while a child is open, so the pointers hold
  std::string key_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view where) {
  DocumentBuilder builder;
  if (!parse_json_events(text, builder)) return invalid_argument(fmt::format("{}: {}", where, builder.error()));
  return builder.take();
}

Result<Json> read_json_file(const std::filesystem::path& path) {
  WEFT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  return parse_json({reinterpret_cast<const char*>(file->data()), static_cast<size_t>(file->size())}, path.string());
}

std::string_view json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::object: return "an object";
    case Json::value_t::array: return "a list";
    case Json::value_t::string: return "a string";
    case Json::value_t::boolean: return "true or false";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return "an integer";
    case Json::value_t::number_float: return "a number";
    default: return "something else";
  }
}

}  // namespace weft
