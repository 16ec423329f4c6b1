// UTF-8: well-formed parts, and what to do with the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace weft {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// The first character of a non-empty text. kIncomplete: the text ends inside a character that could still become valid.
// For kInvalid and kIncomplete `size` is the length of the maximal part that one U+FFFD stands for (Unicode 3.9, U+FFFD
// substitution of maximal subparts).
struct Utf8Unit {
  enum class Kind { kCharacter, kInvalid, kIncomplete };
  Kind kind;
  size_t size;
  char32_t code_point;  // kCharacter only
};
Utf8Unit next_utf8(std::string_view text);

// Offset of the first byte that is not part of a well-formed character; text.size() if there is none.
size_t first_invalid_utf8(std::string_view text);

// "WHAT is not UTF-8: byte 1 is 0xff".
Status expect_utf8(std::string_view text, std::string_view what);

// Every maximal ill-formed part becomes U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace weft
