#include "io/unicode_stand_ins.h"

#include <algorithm>

#include "io/unicode_utf8.h"

namespace weft {
namespace {

const StandInRange* find_range(char32_t code_point) {
  const auto ranges = stand_in_ranges();
  const auto it = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                   [](char32_t c, const StandInRange& range) { return c < range.first; });
  if (it == ranges.begin() || code_point > (it - 1)->last) return nullptr;
  return &*(it - 1);
}

}  // namespace

char32_t stand_in(char32_t code_point) {
  const StandInRange* range = find_range(code_point);
  return range == nullptr ? code_point : range->stand_in;
}

bool touches_stand_ins(char32_t first, char32_t last) {
  return std::ranges::any_of(stand_in_ranges(), [&](const StandInRange& range) {
    return (range.first <= last && first <= range.last) || (first <= range.stand_in && range.stand_in <= last);
  });
}

std::string with_stand_ins(std::string_view text) {
  const char32_t lowest = stand_in_ranges().front().first;
  std::string out;
  size_t copied = 0;
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Unit unit = next_utf8(text.substr(i));
    if (unit.code_point >= lowest) {
      if (const StandInRange* range = find_range(unit.code_point)) {
        if (out.empty()) out.reserve(text.size());
        out += text.substr(copied, i - copied);
        append_utf8(out, range->stand_in);
        copied = i + unit.size;
      }
    }
    i += unit.size;
  }
  if (copied != 0) out += text.substr(copied);
  return out;
}

}  // namespace weft
