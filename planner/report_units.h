// Numbers for people: the same everywhere in the reports of plans.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

std::string bytes_words(double bytes);                 // "1.25 GiB", "-3.0 MiB"
std::string seconds_words(double seconds);             // "1.23 s", "45.6 ms", "7.8 us"
std::string percent_words(double part, double whole);  // "12.3 %"; "-" of nothing

// Columns of equal width, two blanks apart; numbers stand at the right. Every line ends the last column without blanks.
class TextTable {
 public:
  // One letter a column: 'l' or 'r'.
  explicit TextTable(std::string_view alignment) : alignment_(alignment) {}
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  std::string text(std::string_view indent = "  ") const;

 private:
  std::string alignment_;
  std::vector<std::vector<std::string>> rows_;
};

// "#####....." of `width` characters.
std::string bar(double part, double whole, int width);

}  // namespace weft
