// Oniguruma (Ruby syntax) to PCRE2, construct by construct; what differs or is not needed is refused.
#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "io/tokenizer_regex.h"
#include "io/unicode_stand_ins.h"
#include "io/unicode_utf8.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, 37> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co", "Cs"};

// Under case folding Oniguruma lets these pairs match one character (the ligatures, sharp s); PCRE2 does not.
constexpr std::array<std::string_view, 5> kFoldingPairs = {"ss", "ff", "fi", "fl", "st"};

constexpr int kMaxGroupDepth = 50;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
std::optional<uint32_t> hex_value(std::string_view digits) {
  uint32_t value = 0;
  for (char c : digits) {
    const char lower = static_cast<char>(c | 0x20);
    const int digit = is_digit(c) ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + static_cast<uint32_t>(digit);
  }
  if (digits.empty() || digits.size() > 8 || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
    return std::nullopt;
  return value;
}

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  Result<TranslatedRegex> run() {
    if (const size_t bad = first_invalid_utf8(in_); bad != in_.size()) return error(bad, "is not UTF-8");
    WEFT_RETURN_IF_ERROR(alternatives(0, false));
    if (at_ != in_.size()) return error(at_, "has an unmatched ')'");
    if (out_.uses_properties) {
      for (const auto& [first, last] : literals_) {
        if (touches_stand_ins(first, last)) {
          return invalid_argument(
              fmt::format("{}: regex '{}': properties together with U+{:04X}..U+{:04X}, where Unicode versions differ, "
                          "are not supported",
                          where_, in_, static_cast<uint32_t>(first), static_cast<uint32_t>(last)));
        }
      }
    }
    return std::move(out_);
  }

 private:
  Status error(size_t at, std::string_view what) const {
    return invalid_argument(fmt::format("{}: regex '{}' {} (byte {})", where_, to_valid_utf8(in_), what, at));
  }
  Status unsupported(size_t at, std::string_view construct) const {
    return error(at, fmt::format("uses {}, which is not supported", construct));
  }

  bool done() const { return at_ == in_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (!in_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  // Up to the end or the ')' that closes the group.
  Status alternatives(int depth, bool fold_case) {
    std::optional<char32_t> previous;  // the literal before, for kFoldingPairs
    while (!done() && peek() != ')') {
      const size_t start = at_;
      const char c = peek();
      std::optional<char32_t> literal;
      bool can_repeat = true;
      if (c == '|') {
        ++at_;
        out_.pattern += '|';
        can_repeat = false;
      } else if (c == '(') {
        WEFT_RETURN_IF_ERROR(group(depth, fold_case));
      } else if (c == '[') {
        if (fold_case) return unsupported(start, "a class without regard to case");
        WEFT_RETURN_IF_ERROR(character_class());
      } else if (c == '.') {
        ++at_;
        out_.pattern += '.';
      } else if (c == '\\') {
        WEFT_ASSIGN_OR_RETURN(literal, escape());
        if (!literal && fold_case) return unsupported(start, "a property without regard to case");
      } else if (std::string_view("^$*+?{}]").find(c) != std::string_view::npos) {
        return unsupported(start, fmt::format("'{}' here", c));
      } else {
        literal = take_character();
      }
      if (literal) {
        if (fold_case && *literal >= 0x80) return unsupported(start, "non-ASCII text without regard to case");
        if (fold_case && previous && is_folding_pair(*previous, *literal))
          return unsupported(start, "a pair with a ligature");
        put_literal(*literal);
        literals_.push_back({*literal, *literal});
      }
      previous = literal;
      if (can_repeat) WEFT_RETURN_IF_ERROR(quantifier());
    }
    return {};
  }

  static bool is_folding_pair(char32_t a, char32_t b) {
    const auto lower = [](char32_t c) {
      return c < 0x80 && is_letter(static_cast<char>(c)) ? static_cast<char>(c | 0x20) : '\0';
    };
    const char pair[2] = {lower(a), lower(b)};
    return std::ranges::find(kFoldingPairs, std::string_view(pair, 2)) != kFoldingPairs.end();
  }

  Status group(int depth, bool fold_case) {
    const size_t start = at_;
    if (depth == kMaxGroupDepth) return unsupported(start, fmt::format("groups deeper than {}", kMaxGroupDepth));
    bool opened = false;
    for (std::string_view open : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!take(open)) continue;
      out_.pattern += open;
      fold_case = fold_case || open == "(?i:";
      opened = true;
      break;
    }
    if (!opened) {
      if (peek(1) == '?' || peek(1) == '*') return unsupported(start, "this kind of group");
      ++at_;
      out_.pattern += "(?:";
    }
    WEFT_RETURN_IF_ERROR(alternatives(depth + 1, fold_case));
    if (!take(")")) return error(start, "has a group without ')'");
    out_.pattern += ')';
    return {};
  }

  Status quantifier() {
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      out_.pattern += c;
      if (peek() == '?' || peek() == '+') out_.pattern += in_[at_++];  // lazy, possessive
    } else if (c == '{') {
      WEFT_RETURN_IF_ERROR(counted_quantifier());
      if (peek() == '?' || peek() == '+') return unsupported(at_, "'?' or '+' after '}'");
    } else {
      return {};
    }
    if (!done() && std::string_view("*+?{").find(peek()) != std::string_view::npos) {
      return unsupported(at_, "a quantifier of a quantifier");
    }
    return {};
  }

  // {n} {n,} {n,m}
  Status counted_quantifier() {
    const size_t start = at_++;
    const auto digits = [this] {
      const size_t begin = at_;
      while (is_digit(peek())) ++at_;
      return in_.substr(begin, at_ - begin);
    };
    const std::string_view low = digits();
    bool good = !low.empty() && low.size() <= 4;
    if (peek() == ',') {
      ++at_;
      good = good && digits().size() <= 4;
    }
    if (!good || peek() != '}') return unsupported(start, "a '{' that is not {n}, {n,} or {n,m}");
    ++at_;
    out_.pattern += in_.substr(start, at_ - start);
    return {};
  }

  Status character_class() {
    const size_t start = at_++;
    out_.pattern += '[';
    if (take("^")) out_.pattern += '^';
    if (peek() == ']') return unsupported(at_, "']' as the first of a class");
    while (true) {
      if (done()) return error(start, "has a class without ']'");
      if (take("]")) break;
      WEFT_ASSIGN_OR_RETURN(const std::optional<char32_t> first, class_item());
      if (!first) {
        if (peek() == '-' && peek(1) != ']') return unsupported(at_, "a range that starts with a property");
        continue;
      }
      char32_t last = *first;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        WEFT_ASSIGN_OR_RETURN(const std::optional<char32_t> end, class_item());
        if (!end) return unsupported(at_, "a range that ends with a property");
        if (*end < *first) return error(at_, "has an empty range");
        last = *end;
      }
      put_literal(*first);
      if (last != *first) {
        out_.pattern += '-';
        put_literal(last);
      }
      literals_.push_back({*first, last});
    }
    out_.pattern += ']';
    return {};
  }

  // A literal, or a property (then written out already and nothing returned).
  Result<std::optional<char32_t>> class_item() {
    if (done()) return error(at_, "ends inside a class");
    if (peek() == '[') return unsupported(at_, "a set inside a class");
    if (peek() == '&' && peek(1) == '&') return unsupported(at_, "an intersection of classes");
    if (peek() == '\\') return escape();
    return std::optional<char32_t>(take_character());
  }

  Result<std::optional<char32_t>> escape() {
    const size_t start = at_++;
    if (done()) return error(start, "ends with '\\'");
    const char c = in_[at_];
    if (!is_letter(c) && !is_digit(c)) return std::optional<char32_t>(take_character());
    ++at_;
    switch (c) {
      case 'n': return std::optional<char32_t>('\n');
      case 'r': return std::optional<char32_t>('\r');
      case 't': return std::optional<char32_t>('\t');
      case 'f': return std::optional<char32_t>('\f');
      case 'x':
      case 'u': return hex_escape(start, c);
      case 'p':
      case 'P': return property(start, c == 'P');
      case 's':
      case 'S':
      case 'd':
      case 'D':
        out_.pattern += '\\';
        out_.pattern += c;
        out_.uses_properties = true;
        return std::optional<char32_t>();
      default: return unsupported(start, fmt::format("'\\{}'", c));
    }
  }

  // \uHHHH, \x{H...}
  Result<std::optional<char32_t>> hex_escape(size_t start, char kind) {
    std::string_view digits;
    if (kind == 'u') {
      digits = in_.substr(at_, 4);
      at_ += digits.size();
      if (digits.size() != 4) return error(start, "has '\\u' without four digits");
    } else {
      const size_t close = in_.find('}', at_);
      if (peek() != '{' || close == std::string_view::npos || close - at_ > 9) {
        return unsupported(start, "'\\x' without {...}");
      }
      digits = in_.substr(at_ + 1, close - at_ - 1);
      at_ = close + 1;
    }
    const std::optional<uint32_t> value = hex_value(digits);
    if (!value) return unsupported(start, fmt::format("code point '{}'", digits));
    return std::optional<char32_t>(*value);
  }

  Result<std::optional<char32_t>> property(size_t start, bool negated) {
    const size_t close = in_.find('}', at_);
    if (peek() != '{' || close == std::string_view::npos) return error(start, "has '\\p' without {name}");
    std::string_view name = in_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (std::ranges::find(kCategories, name) == kCategories.end()) {
      return unsupported(start, fmt::format("the property '{}'", name));
    }
    out_.pattern += fmt::format("\\{}{{{}}}", negated ? 'P' : 'p', name);
    out_.uses_properties = true;
    return std::optional<char32_t>();
  }

  char32_t take_character() {
    const Utf8Unit unit = next_utf8(in_.substr(at_));
    at_ += unit.size;
    return unit.code_point;
  }

  void put_literal(char32_t c) {
    if (c < 0x80 && (is_letter(static_cast<char>(c)) || is_digit(static_cast<char>(c)))) {
      out_.pattern += static_cast<char>(c);
    } else {
      out_.pattern += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c));
    }
  }

  std::string_view in_, where_;
  size_t at_ = 0;
  TranslatedRegex out_;
  std::vector<std::pair<char32_t, char32_t>> literals_;
};

}  // namespace

Result<TranslatedRegex> translate_regex(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).run();
}

}  // namespace weft
