#include "io/tokenizer_alphabet.h"

#include <array>

#include "io/unicode_utf8.h"

namespace weft {
namespace {

constexpr bool is_visible(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

constexpr size_t kAlphabetEnd = 0x144;  // 68 bytes are not visible

struct Alphabet {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};

  constexpr Alphabet() {
    byte.fill(-1);
    uint16_t fresh = 0x100;
    for (int b = 0; b < 256; ++b) {
      const uint16_t c = is_visible(b) ? static_cast<uint16_t>(b) : fresh++;
      character[static_cast<size_t>(b)] = c;
      byte[c] = static_cast<int16_t>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

char32_t byte_to_alphabet(uint8_t byte) { return kAlphabet.character[byte]; }

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    if (unit.code_point >= kAlphabetEnd || kAlphabet.byte[unit.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[unit.code_point]);
    text.remove_prefix(unit.size);
  }
  return bytes;
}

}  // namespace weft
