#include "models/distinct_layers.h"

#include <algorithm>

#include "base/check.h"

namespace weft {
namespace {

constexpr size_t kLongestPeriod = 8;  // as layer_repetition.cc

size_t equal_periods(std::span<const std::string> kinds, size_t period) {
  size_t count = 1;
  while ((count + 1) * period <= kinds.size() &&
         std::equal(kinds.begin(), kinds.begin() + static_cast<ptrdiff_t>(period), kinds.begin() + static_cast<ptrdiff_t>(count * period))) {
    ++count;
  }
  return count;
}

}  // namespace

std::vector<LayerShare> distinct_layers(std::span<const std::string> kinds, int64_t first, int64_t periods) {
  WEFT_CHECK(periods >= 2, "{} periods", periods);
  std::vector<LayerShare> shares;
  for (size_t at = 0; at < kinds.size();) {
    size_t period = 1, count = 1;
    for (size_t p = 1; p <= kLongestPeriod && at + 2 * p <= kinds.size(); ++p) {
      const size_t n = equal_periods(kinds.subspan(at), p);
      if ((n - 1) * p > (count - 1) * period) period = p, count = n;
    }
    size_t kept = std::min(count, static_cast<size_t>(periods));
    if (kept < count && (count - kept) % 2 != 0) ++kept;
    for (size_t k = 0; k < kept; ++k) {
      // The last period is the last layers of the run, by name too: nothing but the middle is left out.
      const size_t number = k + 1 == kept ? count - 1 : k;
      for (size_t l = 0; l < period; ++l) {
        const auto layer = first + static_cast<int64_t>(at + number * period + l);
        shares.push_back({layer, k + 2 == kept ? 1 + static_cast<int64_t>(count - kept) : 1});
      }
    }
    at += count * period;
  }
  return shares;
}

}  // namespace weft
