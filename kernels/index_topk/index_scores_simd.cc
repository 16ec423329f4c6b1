// Compiled once per level. Bits of index_scores_ref: a panel of entries is converted, scored against all heads by tiles of
// canonical dot products, and the weighted sum runs head after head with lanes along the entries.
#include "kernels/index_topk/index_topk_impl.h"
#include "kernels/vector_math/dot_tile-inl.h"

namespace weft {
namespace {

template <class Query, class Key>
void score(const IndexScoresArgs& args) {
  const int64_t num_heads = args.num_heads, head_dim = args.head_dim;
  const IndexScratch layout(num_heads, head_dim);
  float* const scratch = reinterpret_cast<float*>(args.scratch);
  float* const keys = scratch + layout.keys;
  float* const dots = scratch + layout.dots;
  const float* q;
  if constexpr (sizeof(Query) == 2) {
    const Query* const src = static_cast<const Query*>(args.iq);
    for (int64_t i = 0; i < num_heads * head_dim; i += kLanes) store(scratch + layout.q + i, load(src + i));
    q = scratch + layout.q;
  } else {
    q = static_cast<const float*>(args.iq);
  }
  const float* rows[kIndexPanel];
  const int64_t row_pitch = head_dim + 16;
  for (int64_t i = 0; i < kIndexPanel; ++i) rows[i] = keys + i * row_pitch;

  for (int64_t begin = args.begin; begin < args.end; begin += kIndexPanel) {
    const int64_t count = args.end - begin < kIndexPanel ? args.end - begin : kIndexPanel;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t g = begin + i;
      const Key* const row =
          static_cast<const Key*>(args.pages[g / args.page_entries]) + g % args.page_entries * head_dim;
      for (int64_t k = 0; k < head_dim; k += kLanes) store(keys + i * row_pitch + k, load(row + k));
    }
    for (int64_t h = 0; h < num_heads; h += kDotTileB) {
      const int nb = static_cast<int>(num_heads - h < kDotTileB ? num_heads - h : kDotTileB);
      const float* heads[kDotTileB];
      for (int i = 0; i < kDotTileB; ++i) heads[i] = q + (h + (i < nb ? i : 0)) * head_dim;
      for (int64_t i = 0; i < count; i += kDotTileA) {
        const int na = static_cast<int>(count - i < kDotTileA ? count - i : kDotTileA);
        dot_tile(na, nb, rows + i, heads, head_dim, dots + h * kIndexPanel + i, kIndexPanel);
      }
    }
    for (int64_t i = 0; i < count; i += kLanes) {
      Vector sum = zero();
      for (int64_t h = 0; h < num_heads; ++h) {
        sum = fma(set1(args.w[h]), max(zero(), load(dots + h * kIndexPanel + i)), sum);
      }
      if (count - i >= kLanes) {
        store(args.scores + begin + i, sum);
      } else {
        store_part(args.scores + begin + i, sum, count - i);
      }
    }
  }
}

}  // namespace

void WEFT_NAME(index_scores)(const IndexScoresArgs& args) {
  // No model has such a head dim; lanes without elements are the reference's business.
  if (args.head_dim % 16 != 0) return index_scores_ref(args);
  if (args.iq_dtype == DType::kF32) {
    return args.key_dtype == DType::kF32 ? score<float, float>(args) : score<float, uint16_t>(args);
  }
  return args.key_dtype == DType::kF32 ? score<uint16_t, float>(args) : score<uint16_t, uint16_t>(args);
}

}  // namespace weft
