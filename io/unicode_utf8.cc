#include "io/unicode_utf8.h"

#include <cstring>

namespace weft {
namespace {

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

// What a lead byte promises: length, and the range of the second byte (Unicode, table 3-7). size 0: not a lead byte.
struct Lead {
  size_t size;
  uint8_t second_first, second_last;
};

Lead lead(uint8_t byte) {
  if (byte < 0xc2 || byte > 0xf4) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};  // no surrogates
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};  // up to U+10FFFF
  return {4, 0x80, 0xbf};
}

size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (uint64_t word; i + sizeof(word) <= text.size(); i += sizeof(word)) {
    std::memcpy(&word, text.data() + i, sizeof(word));
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < text.size() && byte_at(text, i) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Unit next_utf8(std::string_view text) {
  using Kind = Utf8Unit::Kind;
  const uint8_t first = byte_at(text, 0);
  if (first < 0x80) return {Kind::kCharacter, 1, first};
  const Lead promised = lead(first);
  if (promised.size == 0) return {Kind::kInvalid, 1, 0};
  char32_t code_point = first & (0x7fu >> promised.size);
  for (size_t i = 1; i < promised.size; ++i) {
    if (i == text.size()) return {Kind::kIncomplete, i, 0};
    const uint8_t byte = byte_at(text, i);
    const uint8_t low = i == 1 ? promised.second_first : 0x80, high = i == 1 ? promised.second_last : 0xbf;
    if (byte < low || byte > high) return {Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3fu);
  }
  return {Kind::kCharacter, promised.size, code_point};
}

size_t first_invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (true) {
    i += ascii_prefix(text.substr(i));
    if (i == text.size()) return i;
    const Utf8Unit unit = next_utf8(text.substr(i));
    if (unit.kind != Utf8Unit::Kind::kCharacter) return i;
    i += unit.size;
  }
}

Status expect_utf8(std::string_view text, std::string_view what) {
  const size_t bad = first_invalid_utf8(text);
  if (bad == text.size()) return {};
  return invalid_argument(
      fmt::format("{} is not UTF-8: byte {} is 0x{:02x}", what, bad, static_cast<uint8_t>(text[bad])));
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t valid = first_invalid_utf8(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    out += kReplacementCharacter;
    bytes.remove_prefix(next_utf8(bytes).size);
  }
  return out;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&out](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | (c >> 6));
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3f));
    put(0x80 | ((c >> 6) & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

}  // namespace weft
