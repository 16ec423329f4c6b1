// tokenizer.json -> Tokenizer::Impl. Whatever could change an id and is not supported is an error.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "io/tokenizer_alphabet.h"
#include "io/tokenizer_json.h"
#include "io/tokenizer_model.h"
#include "io/unicode_utf8.h"

namespace weft {
namespace {

Status error(std::string_view where, std::string_view what) {
  return invalid_argument(fmt::format("{}: {}", where, what));
}

// `json` is null, of type `type`, or a Sequence (list under `list_key`) of such; required: null and empty do not do.
Status check_only(const Json* json, std::string_view where, std::string_view type, const char* list_key,
                  bool required) {
  if (json == nullptr) {
    if (!required) return {};
    return error(where, fmt::format("is missing; only {} is supported", type));
  }
  if (!type.empty() && type_name(*json) == type) return {};
  const Json* list = type_name(*json) == "Sequence" ? find_member(*json, list_key) : nullptr;
  if (list == nullptr || !list->is_array()) {
    return error(where,
                 fmt::format("type '{}' is not supported; only {} is", type_name(*json), type.empty() ? "none" : type));
  }
  if (list->empty() && required) return error(where, fmt::format("is empty; only {} is supported", type));
  if (list->size() > 1 && required) return error(where, fmt::format("more than one {} is not supported", type));
  for (const Json& item : *list) {
    if (type.empty() || type_name(item) != type) {
      return error(
          where, fmt::format("type '{}' is not supported; only {} is", type_name(item), type.empty() ? "none" : type));
    }
  }
  return {};
}

Result<TokenId> token_id(const Json& json, std::string_view where, std::string_view token) {
  const bool good = json.is_number_integer() && json >= 0 && json <= kMaxTokenId;
  if (!good) {
    return error(
        where, fmt::format("id of '{}': expected an integer from 0 to {}, found {}", token, kMaxTokenId, json.dump()));
  }
  return json.get<TokenId>();
}

Result<std::vector<AddedToken>> read_added_tokens(const Json* json, std::string_view where) {
  std::vector<AddedToken> tokens;
  if (json == nullptr) return tokens;
  if (!json->is_array()) return error(where, "expected a list");
  for (const Json& item : *json) {
    const std::string here = fmt::format("{}[{}]", where, tokens.size());
    if (!item.is_object()) return error(here, "expected an object");
    WEFT_RETURN_IF_ERROR(
        check_known_keys(item, here, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    const Json* content = find_member(item, "content");
    if (content == nullptr || !content->is_string() || content->get_ref<const std::string&>().empty()) {
      return error(here, "content: expected a text that is not empty");
    }
    const Json* id = find_member(item, "id");
    if (id == nullptr) return error(here, "has no id");
    AddedToken token;
    token.content = content->get<std::string>();
    WEFT_ASSIGN_OR_RETURN(token.id, token_id(*id, here, token.content));
    WEFT_ASSIGN_OR_RETURN(token.single_word, read_flag(item, "single_word", here, false));
    WEFT_ASSIGN_OR_RETURN(token.left_strip, read_flag(item, "lstrip", here, false));
    WEFT_ASSIGN_OR_RETURN(token.right_strip, read_flag(item, "rstrip", here, false));
    WEFT_ASSIGN_OR_RETURN(token.normalized, read_flag(item, "normalized", here, false));
    WEFT_ASSIGN_OR_RETURN(token.special, read_flag(item, "special", here, false));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

class Loader {
 public:
  Loader(const TokenizerDocument& document, std::string_view where)
      : document_(document), json_(document.json), where_(where) {}

  Result<std::unique_ptr<Tokenizer::Impl>> run();

 private:
  Status check_top_level() const;
  Status check_model(const Json& model) const;
  Status read_vocabulary();
  Result<BpeMerges> read_merges() const;
  Status add(std::string_view text, TokenId id, std::string_view here);
  std::string part(std::string_view name) const { return fmt::format("{}: {}", where_, name); }

  const TokenizerDocument& document_;
  const Json& json_;
  std::string_view where_;
  std::vector<Tokenizer::Impl::Token> tokens_;
  std::vector<bool> used_;
  TokenMap ids_;
};

Status Loader::check_top_level() const {
  if (!json_.is_object()) return error(where_, "expected an object");
  WEFT_RETURN_IF_ERROR(check_known_keys(json_, where_,
                                        {"version", "truncation", "padding", "added_tokens", "normalizer",
                                         "pre_tokenizer", "post_processor", "decoder", "model"}));
  if (const Json* version = find_member(json_, "version"); version != nullptr && *version != "1.0") {
    return error(where_, fmt::format("version {} is not supported; only \"1.0\" is", version->dump()));
  }
  for (const char* key : {"truncation", "padding"}) {
    if (find_member(json_, key) != nullptr) return error(part(key), "is not supported; it must be null");
  }
  WEFT_RETURN_IF_ERROR(check_only(find_member(json_, "normalizer"), part("normalizer"), "", "normalizers", false));
  WEFT_RETURN_IF_ERROR(
      check_only(find_member(json_, "post_processor"), part("post_processor"), "ByteLevel", "processors", false));
  return check_only(find_member(json_, "decoder"), part("decoder"), "ByteLevel", "decoders", true);
}

Status Loader::check_model(const Json& model) const {
  const std::string here = part("model");
  WEFT_RETURN_IF_ERROR(
      check_known_keys(model, here,
                       {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                        "byte_fallback", "ignore_merges", "vocab", "merges"}));
  if (type_name(model) != "BPE") {
    return error(here, fmt::format("type '{}' is not supported; only BPE is", type_name(model)));
  }
  if (find_member(model, "dropout") != nullptr) return error(here, "dropout is not supported; it must be null");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = find_member(model, key);
    if (value != nullptr && *value != "") return error(here, fmt::format("{} is not supported; it must be null", key));
  }
  WEFT_ASSIGN_OR_RETURN(const bool byte_fallback, read_flag(model, "byte_fallback", here, false));
  if (byte_fallback) return error(here, "byte_fallback is not supported; it must be false");
  // unk_token and fuse_unk have no influence: a vocabulary with all bytes meets nothing unknown.
  return {};
}

Status Loader::add(std::string_view text, TokenId id, std::string_view here) {
  const size_t index = static_cast<size_t>(id);
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1);
    used_.resize(index + 1);
  }
  if (used_[index]) return error(here, fmt::format("id {} is given twice, the second time to '{}'", id, text));
  used_[index] = true;
  if (!ids_.emplace(text, id).second) return error(here, fmt::format("'{}' stands there twice", text));
  // What the library's decoder does with a token that is not all in the alphabet: its text as it is.
  const std::optional<std::string> bytes = alphabet_to_bytes(text);
  tokens_[index].bytes = bytes ? *bytes : std::string(text);
  return {};
}

Status Loader::read_vocabulary() {
  const std::string here = part("model.vocab");
  if (!document_.vocab) return error(here, "expected an object of tokens and their ids");
  ids_.reserve(document_.vocab->size());
  tokens_.reserve(document_.vocab->size());
  for (const auto& [text, id] : *document_.vocab) WEFT_RETURN_IF_ERROR(add(text, id, here));
  return {};
}

Result<BpeMerges> Loader::read_merges() const {
  std::array<TokenId, 256> byte_tokens{};
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, byte_to_alphabet(static_cast<uint8_t>(byte)));
    const auto it = ids_.find(text);
    if (it == ids_.end()) {
      return error(part("model.vocab"), fmt::format("has no token '{}' for byte 0x{:02x}", text, byte));
    }
    byte_tokens[static_cast<size_t>(byte)] = it->second;
  }
  if (!document_.merges) return error(part("model.merges"), "expected a list");
  BpeMerges bpe(byte_tokens, document_.merges->size());
  std::string joined;
  for (const auto& [left, right] : *document_.merges) {
    joined = left;
    joined += right;
    const auto left_id = ids_.find(left), right_id = ids_.find(right), joined_id = ids_.find(joined);
    for (const auto& [id, text] : {std::pair(left_id, &left), {right_id, &right}, {joined_id, &joined}}) {
      if (id == ids_.end()) {
        return error(part("model.merges"),
                     fmt::format("'{}' + '{}': '{}' is not in the vocabulary", left, right, *text));
      }
    }
    bpe.add(left_id->second, right_id->second, joined_id->second);
  }
  return bpe;
}

Result<std::unique_ptr<Tokenizer::Impl>> Loader::run() {
  WEFT_RETURN_IF_ERROR(check_top_level());
  const Json* model = find_member(json_, "model");
  if (model == nullptr || !model->is_object()) return error(where_, "has no model");
  WEFT_RETURN_IF_ERROR(check_model(*model));
  WEFT_RETURN_IF_ERROR(read_vocabulary());
  WEFT_ASSIGN_OR_RETURN(BpeMerges merges, read_merges());
  WEFT_ASSIGN_OR_RETURN(const bool ignore_merges, read_flag(*model, "ignore_merges", part("model"), false));
  std::optional<TokenMap> whole;
  if (ignore_merges) {
    whole.emplace();
    for (const auto& [text, id] : ids_) {
      if (auto bytes = alphabet_to_bytes(text)) whole->emplace(std::move(*bytes), id);
    }
  }

  const std::string added_where = part("added_tokens");
  WEFT_ASSIGN_OR_RETURN(std::vector<AddedToken> added,
                        read_added_tokens(find_member(json_, "added_tokens"), added_where));
  for (const AddedToken& token : added) {
    const auto it = ids_.find(token.content);
    if (it == ids_.end()) {
      WEFT_RETURN_IF_ERROR(add(token.content, token.id, added_where));
    } else if (it->second != token.id) {
      return error(added_where, fmt::format("'{}' has id {}, but the vocabulary or another added token gives it {}",
                                            token.content, token.id, it->second));
    }
    Tokenizer::Impl::Token& entry = tokens_[static_cast<size_t>(token.id)];
    if (entry.added) return error(added_where, fmt::format("'{}' stands there twice", token.content));
    entry.added = true;
    entry.special = token.special;
  }
  WEFT_ASSIGN_OR_RETURN(AddedTokenSet added_set, AddedTokenSet::create(std::move(added), added_where));

  const Json* pre_json = find_member(json_, "pre_tokenizer");
  if (pre_json == nullptr) return error(part("pre_tokenizer"), "is missing; only byte-level BPE is supported");
  WEFT_ASSIGN_OR_RETURN(PreTokenizer pre, PreTokenizer::parse(*pre_json, part("pre_tokenizer")));
  auto impl = std::make_unique<Tokenizer::Impl>(std::move(added_set), std::move(pre), std::move(merges));
  impl->tokens = std::move(tokens_);
  impl->ids = std::move(ids_);
  impl->whole = std::move(whole);
  return impl;
}

}  // namespace

Result<std::unique_ptr<Tokenizer::Impl>> Tokenizer::Impl::build(const TokenizerDocument& document,
                                                                std::string_view where) {
  return Loader(document, where).run();
}

}  // namespace weft
