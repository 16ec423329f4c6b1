#include "models/size_limits.h"

#include <fmt/format.h>

namespace weft {

void check_widths(JsonFields& fields, std::span<const Width> widths) {
  for (const Width& width : widths) {
    int64_t size = 1;
    bool counted = true;
    for (const int64_t factor : width.factors) counted = counted && !__builtin_mul_overflow(size, factor, &size);
    if (!counted || size > kMaxWidth) {
      const std::string found = counted ? fmt::format("{}", size) : std::string("beyond 64 bits");
      fields.fail(width.what, fmt::format(" is {}; weft takes sizes up to {}", found, kMaxWidth));
    } else if (width.summed && size % kSumUnit != 0) {
      fields.fail(width.what, fmt::format(" {} is not divisible by {}, the unit of the sums of linear layers", size, kSumUnit));
    }
  }
}

Status check_totals(const std::string& where, double elements, double cache_bytes) {
  constexpr auto kMost = static_cast<double>(kMaxElements);
  constexpr double kMostCacheBytes = 0x1p60;
  if (elements > kMost) {
    return invalid_argument(fmt::format("{}: the sizes give weights of {:.3g} elements; weft takes up to {:.3g}", where, elements, kMost));
  }
  if (cache_bytes > kMostCacheBytes) {
    return invalid_argument(fmt::format("{}: the caches of max_position_embeddings tokens would have {:.3g} bytes; weft takes up to {:.3g}",
                                        where, cache_bytes, kMostCacheBytes));
  }
  return {};
}

}  // namespace weft
