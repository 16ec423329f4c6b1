#include "io/tokenizer_added.h"

#include <algorithm>

#include <fmt/format.h>

#include "io/unicode_stand_ins.h"
#include "io/unicode_utf8.h"

namespace weft {
namespace {

bool is_white_space(char32_t c) {  // Unicode White_Space
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string_view last_character(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xc0) == 0x80) --i;
  return text.substr(i);
}

std::string_view first_character(std::string_view text) { return text.substr(0, next_utf8(text).size); }

size_t white_space_at_start(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Unit unit = next_utf8(text.substr(i));
    if (!is_white_space(unit.code_point)) break;
    i += unit.size;
  }
  return i;
}

// Where the white space at the end of `text` starts, not before `lowest`.
size_t white_space_at_end(std::string_view text, size_t lowest) {
  while (text.size() > lowest) {
    const std::string_view last = last_character(text);
    if (!is_white_space(next_utf8(last).code_point)) break;
    text.remove_suffix(last.size());
  }
  return std::max(text.size(), lowest);
}

}  // namespace

void AddedTokenSet::Trie::insert(std::string_view content, int32_t index) {
  starts_[static_cast<uint8_t>(content[0])] = true;
  int32_t at = 0;
  for (char c : content) {
    auto& children = nodes_[static_cast<size_t>(at)].children;
    const auto it = std::ranges::find(children, c, &std::pair<char, int32_t>::first);
    if (it != children.end()) {
      at = it->second;
    } else {
      const int32_t fresh = static_cast<int32_t>(nodes_.size());
      children.emplace_back(c, fresh);
      nodes_.emplace_back();
      at = fresh;
    }
  }
  nodes_[static_cast<size_t>(at)].token = index;
}

int32_t AddedTokenSet::Trie::longest(std::string_view text) const {
  int32_t found = -1;
  const Node* node = &nodes_[0];
  for (char c : text) {
    const auto it = std::ranges::find(node->children, c, &std::pair<char, int32_t>::first);
    if (it == node->children.end()) break;
    node = &nodes_[static_cast<size_t>(it->second)];
    if (node->token >= 0) found = node->token;
  }
  return found;
}

Result<AddedTokenSet> AddedTokenSet::create(std::vector<AddedToken> tokens, std::string_view where) {
  AddedTokenSet set;
  set.tokens_ = std::move(tokens);
  bool single_word = false;
  for (size_t i = 0; i < set.tokens_.size(); ++i) {
    const AddedToken& token = set.tokens_[i];
    (token.normalized ? set.normalized_ : set.plain_).insert(token.content, static_cast<int32_t>(i));
    single_word = single_word || token.single_word;
  }
  if (single_word) {
    // The library's word characters: letters, letter numbers and a few symbols (Alphabetic), marks, decimal digits,
    // connectors. The symbols that are Alphabetic are the circled and squared letters.
    WEFT_ASSIGN_OR_RETURN(
        set.word_, TokenizerRegex::compile("[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}"
                                           "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}]",
                                           where));
  }
  return set;
}

Result<bool> AddedTokenSet::is_word(std::string_view character, RegexScratch& scratch) const {
  const std::string replaced = with_stand_ins(character);
  std::vector<TextRange> matches;
  WEFT_RETURN_IF_ERROR(word_->find_all(replaced.empty() ? character : replaced, scratch, matches));
  return !matches.empty();
}

Status AddedTokenSet::split(std::string_view text, bool skip_special, RegexScratch& scratch,
                            std::vector<AddedSplit>& out) const {
  std::vector<AddedSplit> parts;
  WEFT_RETURN_IF_ERROR(split_by(plain_, text, 0, skip_special, scratch, parts));
  for (const AddedSplit& part : parts) {
    if (part.id || normalized_.empty()) {
      out.push_back(part);
    } else {
      const std::string_view gap = text.substr(part.range.begin, part.range.size());
      WEFT_RETURN_IF_ERROR(split_by(normalized_, gap, part.range.begin, skip_special, scratch, out));
    }
  }
  return {};
}

Status AddedTokenSet::split_by(const Trie& trie, std::string_view text, size_t offset, bool skip_special,
                               RegexScratch& scratch, std::vector<AddedSplit>& out) const {
  size_t copied = 0;  // everything before is in `out`
  size_t at = 0;
  while (at < text.size()) {
    int32_t index = -1;
    if (trie.may_start(text[at])) index = trie.longest(text.substr(at));
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at, end = at + token.content.size();
    at = end;
    if (skip_special && token.special) continue;
    if (token.single_word) {
      bool touched = false;
      if (begin > 0) {
        WEFT_ASSIGN_OR_RETURN(touched, is_word(last_character(text.substr(0, begin)), scratch));
      }
      if (!touched && end < text.size()) {
        WEFT_ASSIGN_OR_RETURN(touched, is_word(first_character(text.substr(end)), scratch));
      }
      if (touched) continue;
    }
    // A token whose white space an earlier one has taken along keeps its own place.
    if (token.left_strip) begin = white_space_at_end(text.substr(0, begin), std::min(begin, copied));
    if (token.right_strip) end += white_space_at_start(text.substr(end));
    if (copied < begin) out.push_back({{offset + copied, offset + begin}, std::nullopt});
    out.push_back({{offset + begin, offset + end}, token.id});
    copied = end;
  }
  if (copied < text.size()) out.push_back({{offset + copied, offset + text.size()}, std::nullopt});
  return {};
}

}  // namespace weft
