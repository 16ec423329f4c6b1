#include "graph/cache_spec.h"

#include "base/check.h"

namespace weft {

TensorType cache_type(const CacheSpec& spec, const CacheCapacity& capacity, int64_t ranks) {
  if (spec.kind == CacheKind::kRing) return {spec.dtype, {capacity.num_slots, spec.ring_rows, spec.width}};
  WEFT_CHECK(capacity.page_tokens % (spec.ratio * ranks) == 0, "'{}': page_tokens {} ratio {} ranks {}", spec.name,
             capacity.page_tokens, spec.ratio, ranks);
  return {spec.dtype, {capacity.num_pages, capacity.page_tokens / spec.ratio / ranks, spec.width}};
}

}  // namespace weft
