// Finds stop strings in streamed text and holds back what could be the beginning of one, so that no part of a stop
// string is ever shown. The result does not depend on how the text is cut into pieces.
//
// The stop string that is complete first ends the text; of those that are complete at the same byte, the longest.
// Nothing of it and nothing after it is given out. Pieces hold whole UTF-8 characters, then so does what is given out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace weft {

class StopStrings {
 public:
  StopStrings() = default;                                            // never stops
  static Result<StopStrings> create(std::vector<std::string> stops);  // errors: an empty string, not UTF-8

  // Text that may be shown now. After a stop: empty.
  std::string push(std::string_view piece);
  // No more text comes: what was held back (empty after a stop).
  std::string finish();

  bool stopped() const { return match_.has_value(); }
  std::optional<size_t> match() const { return match_; }  // index of the stop string

 private:
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<size_t> match_;
};

}  // namespace weft
