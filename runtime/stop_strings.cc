#include "runtime/stop_strings.h"

#include <algorithm>
#include <utility>

#include "io/unicode_utf8.h"

namespace weft {

Result<StopStrings> StopStrings::create(std::vector<std::string> stops) {
  if (std::any_of(stops.begin(), stops.end(), [](const std::string& stop) { return stop.empty(); })) {
    return invalid_argument("stop: a stop string is empty; leave it out or give at least one character");
  }
  for (const std::string& stop : stops) {
    // Text that is shown is UTF-8, so such a string would never be found.
    WEFT_RETURN_IF_ERROR(expect_utf8(stop, "stop: a stop string"));
  }
  StopStrings result;
  result.stops_ = std::move(stops);
  return result;
}

std::string StopStrings::push(std::string_view piece) {
  if (stopped()) return {};
  for (const char byte : piece) {
    held_.push_back(byte);
    for (size_t i = 0; i < stops_.size(); ++i) {
      if (!held_.ends_with(stops_[i])) continue;
      if (!match_ || stops_[i].size() > stops_[*match_].size()) match_ = i;
    }
    if (match_) {
      held_.resize(held_.size() - stops_[*match_].size());
      return finish();
    }
  }
  // Keep the longest end of the text that begins a stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, length))) keep = length;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace weft
