#include "io/tokenizer.h"

#include <algorithm>

#include <fmt/format.h>

#include "io/tokenizer_model.h"
#include "io/unicode_utf8.h"
#include "tensor/buffer.h"

namespace weft {
namespace {

constexpr size_t kRememberFrom = 16384;  // bytes of text

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& file, const std::filesystem::path& config) {
  WEFT_ASSIGN_OR_RETURN(const auto mapped, MappedFile::open(file));
  const std::string_view text(reinterpret_cast<const char*>(mapped->data()), static_cast<size_t>(mapped->size()));
  WEFT_ASSIGN_OR_RETURN(Tokenizer tokenizer, parse(text, file.string()));
  if (!config.empty()) {
    Impl& impl = *tokenizer.impl_;
    WEFT_ASSIGN_OR_RETURN(const Json json, read_json_file(config));
    WEFT_RETURN_IF_ERROR(read_tokenizer_config(json, config.string(), impl.ids, impl.bos, impl.eos, impl.add_bos));
  }
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view where) {
  WEFT_ASSIGN_OR_RETURN(const TokenizerDocument document, parse_tokenizer_document(json, where));
  WEFT_ASSIGN_OR_RETURN(auto built, Impl::build(document, where));
  return Tokenizer(std::move(built));
}

Result<Tokenizer> Tokenizer::load_directory(const std::filesystem::path& directory) {
  const auto existing = [&](const char* name) {
    std::error_code ignored;
    const std::filesystem::path path = directory / name;
    return std::filesystem::exists(path, ignored) ? path : std::filesystem::path();
  };
  WEFT_ASSIGN_OR_RETURN(Tokenizer tokenizer, load(directory / "tokenizer.json", existing("tokenizer_config.json")));
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = existing(name);
    if (path.empty()) continue;
    WEFT_ASSIGN_OR_RETURN(const Json json, read_json_file(path));
    WEFT_RETURN_IF_ERROR(read_model_config(json, path.string(), tokenizer.impl_->bos, tokenizer.impl_->eos));
  }
  return tokenizer;
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, AddedTokens added) const {
  WEFT_RETURN_IF_ERROR(expect_utf8(text, "text to encode"));
  RegexScratch regex_scratch;
  std::vector<AddedSplit> parts;
  if (added != AddedTokens::kNone) {
    WEFT_RETURN_IF_ERROR(impl_->added.split(text, added == AddedTokens::kNotSpecial, regex_scratch, parts));
  } else if (!text.empty()) {
    parts.push_back({{0, text.size()}, std::nullopt});
  }
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4);
  BpeMerges::Scratch scratch(/*remember_pieces=*/text.size() >= kRememberFrom);
  const auto encode_piece = [&](std::string_view piece) {
    if (impl_->whole) {
      if (const auto it = impl_->whole->find(piece); it != impl_->whole->end()) {
        ids.push_back(it->second);
        return;
      }
    }
    impl_->merges.encode(piece, scratch, ids);
  };
  for (const AddedSplit& part : parts) {
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      WEFT_RETURN_IF_ERROR(
          impl_->pre_tokenizer.split(text.substr(part.range.begin, part.range.size()), regex_scratch, encode_piece));
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, SpecialTokens special) const {
  std::string bytes;
  for (TokenId id : ids) {
    if (special == SpecialTokens::kKeep || !is_special(id)) bytes += token_bytes(id);
  }
  return first_invalid_utf8(bytes) == bytes.size() ? bytes : to_valid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->tokens[static_cast<size_t>(id)].bytes;
}

std::optional<TokenId> Tokenizer::find_token(std::string_view text) const {
  const auto it = impl_->ids.find(text);
  return it == impl_->ids.end() ? std::nullopt : std::optional<TokenId>(it->second);
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() && impl_->tokens[static_cast<size_t>(id)].special;
}
bool Tokenizer::is_added(TokenId id) const {
  return id >= 0 && id < vocab_size() && impl_->tokens[static_cast<size_t>(id)].added;
}
int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->tokens.size()); }
std::optional<TokenId> Tokenizer::bos_id() const { return impl_->bos; }
std::span<const TokenId> Tokenizer::eos_ids() const { return impl_->eos; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }

std::string StreamDecoder::push(TokenId id) {
  if (special_ == SpecialTokens::kSkip && tokenizer_->is_special(id)) return {};
  held_ += tokenizer_->token_bytes(id);
  // The certain part ends where the last, incomplete character starts: at most 3 bytes from the end.
  size_t certain = held_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, held_.size()); ++back) {
    const size_t start = held_.size() - back;
    if ((static_cast<uint8_t>(held_[start]) & 0xc0) == 0x80) continue;  // inside a character
    if (next_utf8(std::string_view(held_).substr(start)).kind == Utf8Unit::Kind::kIncomplete) certain = start;
    break;
  }
  std::string text = to_valid_utf8(std::string_view(held_).substr(0, certain));
  held_.erase(0, certain);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text = to_valid_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace weft
