// The byte alphabet of byte-level BPE (GPT-2): each byte has a visible character, and vocabulary files spell bytes so.
//
// Bytes that are visible in Latin-1 stand for themselves; the others are U+0100, U+0101, ... in ascending order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

char32_t byte_to_alphabet(uint8_t byte);

// "Ġthe" -> " the"; nullopt if a character is not in the alphabet. `text` is valid UTF-8.
std::optional<std::string> alphabet_to_bytes(std::string_view text);

}  // namespace weft
