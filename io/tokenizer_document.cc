#include "io/tokenizer_document.h"

#include <fmt/format.h>

#include "io/json_sax.h"

namespace weft {
namespace {

class DocumentHandler : public JsonHandler {
 public:
  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(int64_t value) { return scalar(value); }
  bool number_float(double value, const std::string&) { return scalar(value); }
  bool binary(Json::binary_t&) { return fail("binary value"); }

  bool number_unsigned(uint64_t value) {
    if (table_ != Table::kVocab) return scalar(value);
    if (value > static_cast<uint64_t>(kMaxTokenId)) return bad_id();
    document_.vocab->emplace_back(std::move(key_), static_cast<int32_t>(value));
    return true;
  }

  bool string(std::string& value) {
    if (table_ == Table::kMerge) {
      halves_.push_back(std::move(value));
      return halves_.size() <= 2 || bad_merge();
    }
    if (table_ != Table::kMerges) return scalar(std::move(value));
    const size_t space = value.find(' ');
    if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos) return bad_merge();
    document_.merges->emplace_back(value.substr(0, space), value.substr(space + 1));
    return true;
  }

  bool start_object(size_t) {
    if (table_ != Table::kNone) return bad_entry();
    if (!in_model("vocab")) return open(Json::object());
    document_.vocab.emplace();
    table_ = Table::kVocab;
    return true;
  }

  bool end_object() {
    if (table_ != Table::kVocab) return close();
    table_ = Table::kNone;
    return true;
  }

  bool start_array(size_t) {
    if (table_ == Table::kMerges) {
      table_ = Table::kMerge;
      halves_.clear();
      return true;
    }
    if (table_ != Table::kNone) return bad_entry();
    if (!in_model("merges")) return open(Json::array());
    document_.merges.emplace();
    table_ = Table::kMerges;
    return true;
  }

  bool end_array() {
    if (table_ == Table::kNone) return close();
    if (table_ == Table::kMerges) {
      table_ = Table::kNone;
      return true;
    }
    if (halves_.size() != 2) return bad_merge();
    document_.merges->emplace_back(std::move(halves_[0]), std::move(halves_[1]));
    table_ = Table::kMerges;
    return true;
  }

  bool key(std::string& value) {
    key_ = std::move(value);
    if (table_ != Table::kNone) return true;  // twice the same token: seen by whoever makes the map
    const bool twice = open_.back()->contains(key_) || (in_model("vocab") && document_.vocab) ||
                       (in_model("merges") && document_.merges);
    return !twice || fail(fmt::format("key '{}' appears twice in one object", key_));
  }

  TokenizerDocument take() { return std::move(document_); }

 private:
  enum class Table { kNone, kVocab, kMerges, kMerge };

  // The value to come is `name` of the model at the top.
  bool in_model(std::string_view name) const { return model_ && open_.size() == 2 && key_ == name; }

  bool bad_id() { return fail(fmt::format("id of '{}': expected an integer from 0 to {}", key_, kMaxTokenId)); }
  bool bad_merge() {
    return fail(fmt::format("merge {}: expected \"a b\" or [\"a\", \"b\"]", document_.merges->size()));
  }
  bool bad_entry() { return table_ == Table::kVocab ? bad_id() : bad_merge(); }

  bool scalar(Json value) {
    if (table_ != Table::kNone) return bad_entry();
    add(std::move(value));
    return true;
  }

  Json* add(Json value) {
    if (open_.empty()) return &(document_.json = std::move(value));
    Json& parent = *open_.back();
    if (!parent.is_array()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }

  bool open(Json empty) {
    if (open_.size() >= static_cast<size_t>(kMaxJsonDepth)) {
      return fail(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    }
    if (open_.size() == 1) model_ = open_.back()->is_object() && key_ == "model";
    open_.push_back(add(std::move(empty)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  TokenizerDocument document_;
  std::vector<Json*> open_;  // a parent is not touched while a child is open, so the pointers hold
  std::string key_;
  bool model_ = false;  // the open (or last) value of the top level is the model
  Table table_ = Table::kNone;
  std::vector<std::string> halves_;
};

}  // namespace

Result<TokenizerDocument> parse_tokenizer_document(std::string_view text, std::string_view where) {
  DocumentHandler handler;
  if (!parse_json_events(text, handler)) return invalid_argument(fmt::format("{}: {}", where, handler.error()));
  return handler.take();
}

}  // namespace weft
