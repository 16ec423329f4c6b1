// Text of users and files as messages quote it.
#pragma once

#include <string>
#include <string_view>

namespace weft {

inline constexpr size_t kShownBytes = 120;     // of one text
inline constexpr size_t kMessageBytes = 3000;  // of a whole message

// One line that a terminal can print: control characters and bytes that are no UTF-8 as \n, \t, \xNN; what is longer
// than `limit` bytes is cut in its middle, with its length: "tp4+aaaa[...]aaaa (100000 bytes)".
std::string shown(std::string_view text, size_t limit = kShownBytes);

}  // namespace weft
