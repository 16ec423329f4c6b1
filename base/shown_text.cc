#include "base/shown_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace weft {
namespace {

// Bytes of the character at the front that can be printed as it is; 0: the first byte cannot. Well-formed UTF-8:
// Unicode 15, table 3-7; without the controls C0, DEL and C1.
size_t printable(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto in = [&](size_t i, unsigned least, unsigned most) { return byte(i) >= least && byte(i) <= most; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  if (first == 0xc2) return in(1, 0xa0, 0xbf) ? 2 : 0;
  if (first >= 0xc3 && first <= 0xdf) return in(1, 0x80, 0xbf) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const unsigned least = first == 0xe0 ? 0xa0 : 0x80, most = first == 0xed ? 0x9f : 0xbf;
    return in(1, least, most) && in(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const unsigned least = first == 0xf0 ? 0x90 : 0x80, most = first == 0xf4 ? 0x8f : 0xbf;
    return in(1, least, most) && in(2, 0x80, 0xbf) && in(3, 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

bool inside_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

std::string escaped(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const size_t length = printable(text);
    if (length > 0) {
      line += text.substr(0, length);
    } else if (text[0] == '\n') {
      line += "\\n";
    } else if (text[0] == '\t') {
      line += "\\t";
    } else {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return line;
}

}  // namespace

std::string shown(std::string_view text, size_t limit) {
  if (text.size() <= limit) return escaped(text);
  // Whole characters, where there are any.
  size_t head = limit / 2, tail = text.size() - (limit - head);
  while (head > 0 && inside_character(text[head])) --head;
  while (tail < text.size() && inside_character(text[tail])) ++tail;
  return fmt::format("{}[...]{} ({} bytes)", escaped(text.substr(0, head)), escaped(text.substr(tail)),
                     text.size());
}

}  // namespace weft
