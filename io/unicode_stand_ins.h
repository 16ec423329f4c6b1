// Unicode properties of the `tokenizers` library, whatever PCRE2's tables say.
//
// A character that PCRE2 may class differently than the library (all that Unicode 14 leaves unassigned, a few that
// changed, U+180E, which PCRE2 counts as white space) is replaced, in the text that a regex sees, by a stand-in: an old
// character of the same general category, the same white-space property and the same length in UTF-8, so that offsets
// stay. What is replaced is fixed by the table, so results do not depend on the installed PCRE2 (Unicode 14 or later).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// Code points first..last have one stand-in. Ascending, disjoint.
struct StandInRange {
  char32_t first, last, stand_in;
};
std::span<const StandInRange> stand_in_ranges();  // unicode_stand_ins_table.cc, generated

// The code point itself if it needs none.
char32_t stand_in(char32_t code_point);

// Whether some code point of first..last has a stand-in, or serves as one.
bool touches_stand_ins(char32_t first, char32_t last);

// Valid UTF-8 with stand-ins, of the same length; empty if the text needs none.
std::string with_stand_ins(std::string_view text);

}  // namespace weft
