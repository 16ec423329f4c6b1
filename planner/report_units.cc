#include "planner/report_units.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace weft {

std::string bytes_words(double bytes) {
  constexpr std::pair<double, const char*> kUnits[] = {
      {1024.0 * 1024 * 1024 * 1024, "TiB"}, {1024.0 * 1024 * 1024, "GiB"}, {1024.0 * 1024, "MiB"}, {1024.0, "KiB"}};
  for (const auto& [size, unit] : kUnits) {
    if (std::fabs(bytes) >= size) return fmt::format("{:.2f} {}", bytes / size, unit);
  }
  return fmt::format("{:.0f} B", bytes);
}

std::string seconds_words(double seconds) {
  if (seconds == 0) return "0";
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} us", seconds * 1e6);
}

std::string percent_words(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

std::string TextTable::text(std::string_view indent) const {
  std::vector<size_t> width;
  for (const auto& cells : rows_) {
    width.resize(std::max(width.size(), cells.size()), 0);
    for (size_t c = 0; c < cells.size(); ++c) width[c] = std::max(width[c], cells[c].size());
  }
  std::string out;
  for (const auto& cells : rows_) {
    std::string line(indent);
    for (size_t c = 0; c < cells.size(); ++c) {
      const bool right = c < alignment_.size() && alignment_[c] == 'r';
      if (right) {
        line += fmt::format("{:>{}}", cells[c], width[c]);
      } else {
        line += fmt::format("{:<{}}", cells[c], width[c]);
      }
      if (c + 1 < cells.size()) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string bar(double part, double whole, int width) {
  const int full = whole <= 0 ? 0 : std::clamp(static_cast<int>(std::lround(part / whole * width)), 0, width);
  return std::string(static_cast<size_t>(full), '#') + std::string(static_cast<size_t>(width - full), '.');
}

}  // namespace weft
