// tokenizer.json: text to token ids and back, equal to what the `tokenizers` library computes.
//
// Supported: byte-level BPE as the releases use it. Pre-tokenizer: `Split` (regex or literal string, every behavior,
// invert) and one final `ByteLevel`, alone or in a `Sequence`; decoder and post-processor `ByteLevel`; added tokens with
// lstrip, rstrip, single_word; merges as "a b" strings or as pairs; `ignore_merges`. Anything else that would change the
// ids (a normalizer, byte_fallback, dropout, truncation, other types) is an error of load() that names it.
//
//   encode:  added tokens are cut out (longest match at each place), every gap goes through the pre-tokenizer, the bytes
//            of each piece are merged, lowest rank first, leftmost first among equal ranks
//   decode:  the bytes of all tokens one after the other; every maximal part that is not UTF-8 becomes U+FFFD
//
// Unicode properties in the regexes are those of the library (unicode_stand_ins.h), not those of the installed PCRE2.
// Immutable after load(): any number of threads may use one Tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace weft {

using TokenId = int32_t;

// Which added tokens encode() recognises where their text occurs.
enum class AddedTokens {
  kAll,         // the library's default; prompts of the chat format need it
  kNotSpecial,  // those marked "special" are read as plain text (the library's encode_special_tokens)
  kNone,        // all are read as plain text
};

enum class SpecialTokens { kKeep, kSkip };

class Tokenizer {
 public:
  // `config`: tokenizer_config.json, for the ids of BOS and EOS; empty if there is none.
  static Result<Tokenizer> load(const std::filesystem::path& file, const std::filesystem::path& config = {});
  // tokenizer.json of a model directory. BOS and EOS come from tokenizer_config.json, then generation_config.json, then
  // config.json, as far as they exist.
  static Result<Tokenizer> load_directory(const std::filesystem::path& directory);
  // The text of a tokenizer.json; `where` starts every message.
  static Result<Tokenizer> parse(std::string_view json, std::string_view where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Errors: text that is not UTF-8, a pre-tokenizer regex that runs into PCRE2's limits.
  Result<std::vector<TokenId>> encode(std::string_view text, AddedTokens added = AddedTokens::kAll) const;

  // Ids without a token (a model's padded vocabulary has some) give nothing, as in the library.
  std::string decode(std::span<const TokenId> ids, SpecialTokens special = SpecialTokens::kKeep) const;

  // The bytes that a token stands for in decode(); empty for an id without a token.
  std::string_view token_bytes(TokenId id) const;

  // The token with exactly this text: an added token, or a vocabulary entry in its spelling in the file ("Ġthe").
  std::optional<TokenId> find_token(std::string_view text) const;

  bool is_special(TokenId id) const;
  bool is_added(TokenId id) const;
  int32_t vocab_size() const;  // highest id + 1, added tokens included

  std::optional<TokenId> bos_id() const;
  std::span<const TokenId> eos_ids() const;  // each ends an answer; the tokenizer's own first
  bool add_bos() const;                      // tokenizer_config.json: add_bos_token; encode() itself adds nothing

  struct Impl;  // io/tokenizer_model.h

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// decode() token by token: what has come out so far never ends inside a character. The pieces joined, with flush() at
// the end, are the text of Tokenizer::decode. The tokenizer must outlive the decoder.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, SpecialTokens special = SpecialTokens::kKeep)
      : tokenizer_(&tokenizer), special_(special) {}

  // The text that became certain with this token; empty while a character is incomplete.
  std::string push(TokenId id);
  // The end: an incomplete character becomes U+FFFD. The decoder is as new afterwards.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  std::string held_;  // at most 3 bytes: a prefix of a character
};

}  // namespace weft
