// Added tokens: text that is one token wherever it stands, cut out before anything else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer_regex.h"

namespace weft {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;   // looked for after the others, in what is left between them
  bool left_strip = false;   // takes the white space before it along
  bool right_strip = false;  // and behind it
  bool single_word = false;  // only where no word character touches it
};

// A part of a text; with an id it is that token.
struct AddedSplit {
  TextRange range;
  std::optional<int32_t> id;
};

class AddedTokenSet {
 public:
  // At most one token per content, no empty content.
  static Result<AddedTokenSet> create(std::vector<AddedToken> tokens, std::string_view where);

  const std::vector<AddedToken>& tokens() const { return tokens_; }

  // Cuts `text` (valid UTF-8) at its added tokens, the longest at each place, from left to right; ranges without an id
  // are never empty. skip_special: special tokens are left in the text.
  Status split(std::string_view text, bool skip_special, RegexScratch& scratch, std::vector<AddedSplit>& out) const;

 private:
  // All tokens of one kind, by their bytes. Children of a node are a list: tries of a few hundred tokens.
  class Trie {
   public:
    Trie() : nodes_(1) {}
    void insert(std::string_view content, int32_t index);
    bool empty() const { return nodes_.size() == 1; }
    bool may_start(char c) const { return starts_[static_cast<uint8_t>(c)]; }
    // Index of the longest token that `text` starts with; -1 if there is none.
    int32_t longest(std::string_view text) const;

   private:
    struct Node {
      int32_t token = -1;
      std::vector<std::pair<char, int32_t>> children;
    };
    std::vector<Node> nodes_;
    std::array<bool, 256> starts_{};
  };

  Status split_by(const Trie& trie, std::string_view text, size_t offset, bool skip_special, RegexScratch& scratch,
                  std::vector<AddedSplit>& out) const;
  Result<bool> is_word(std::string_view character, RegexScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  Trie plain_, normalized_;
  std::optional<TokenizerRegex> word_;  // one word character; only if a token is single_word
};

}  // namespace weft
