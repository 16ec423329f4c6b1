#include "graph/cache_spec.h"

#include "base/check.h"

namespace weft {

TensorType cache_type(const CacheSpec& spec, const CacheCapacity& capacity) {
  if (spec.kind == CacheKind::kRing) return {spec.dtype, {capacity.num_slots, spec.ring_rows, spec.width}};
  WEFT_CHECK(capacity.page_tokens % spec.ratio == 0, "page_tokens {} ratio {}", capacity.page_tokens, spec.ratio);
  return {spec.dtype, {capacity.num_pages, capacity.page_tokens / spec.ratio, spec.width}};
}

}  // namespace weft
