// Compiled once per level. Bits of index_scores_ref, or with vdpbf16ps of index_scores_bf16_ref: a panel of entries is transposed, so that vectors run along the
// entries, and scored against a few heads at a time. The lanes of the canonical sum are vectors of their own here.
#include "kernels/index_topk/index_topk_impl.h"
#include "kernels/index_topk/panel-inl.h"
#include "kernels/vector_math/f32_vector-inl.h"

#ifdef __AVX512VNNI__
#include "kernels/index_topk/int8_scores-inl.h"
#endif

namespace weft {
namespace {

// One tile: kVectors vectors of entries x kHeads heads x kLanesAtOnce canonical lanes are summed in registers.
constexpr int kVectors = 2, kHeads = 3;
#ifdef __AVX512F__
constexpr int kLanesAtOnce = 4;  // 24 of 32 registers
#else
constexpr int kLanesAtOnce = 2;  // 12 of 16 registers
#endif
constexpr int64_t kStrip = kVectors * kLanes;
static_assert(kIndexPanel % kStrip == 0);

#ifdef __AVX512F__

// The 16 bytes at `offset` of rows i, i+4, i+8, i+12, one after the other.
template <class Key>
inline __m512i every_fourth_row(const Key* const* rows, int i, int64_t offset) {
  const auto part = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset)); };
  __m512i v = _mm512_castsi128_si512(part(i));
  v = _mm512_inserti32x4(v, part(i + 4), 1);
  v = _mm512_inserti32x4(v, part(i + 8), 2);
  return _mm512_inserti32x4(v, part(i + 12), 3);
}
inline Vector low_words(__m512i words, __m512i other) {
  return _mm512_castsi512_ps(_mm512_unpacklo_epi32(words, other));
}
inline Vector high_words(__m512i words, __m512i other) {
  return _mm512_castsi512_ps(_mm512_unpackhi_epi32(words, other));
}
inline Vector low_pairs(Vector a, Vector b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
inline Vector high_pairs(Vector a, Vector b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
inline Vector even_bf16(Vector v) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 16)); }
inline Vector odd_bf16(Vector v) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(-0x10000)));
}

#else

// The 16 bytes at `offset` of rows i, i+4, one after the other.
template <class Key>
inline __m256i every_fourth_row(const Key* const* rows, int i, int64_t offset) {
  const auto part = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(part(i)), part(i + 4), 1);
}
inline Vector low_words(__m256i words, __m256i other) {
  return _mm256_castsi256_ps(_mm256_unpacklo_epi32(words, other));
}
inline Vector high_words(__m256i words, __m256i other) {
  return _mm256_castsi256_ps(_mm256_unpackhi_epi32(words, other));
}
inline Vector low_pairs(Vector a, Vector b) {
  return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
inline Vector high_pairs(Vector a, Vector b) {
  return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
inline Vector even_bf16(Vector v) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 16)); }
inline Vector odd_bf16(Vector v) { return _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000))); }

#endif

template <class Key>
constexpr int64_t kPerPart = 16 / sizeof(Key);  // elements in 16 bytes

// The four 32-bit words at element k of kLanes rows: a 4 x 4 transpose within every 128-bit part.
template <class Key>
inline void transposed_words(const Key* const* rows, int64_t k, Vector (&word)[4]) {
  const auto r0 = every_fourth_row(rows, 0, k), r1 = every_fourth_row(rows, 1, k);
  const auto r2 = every_fourth_row(rows, 2, k), r3 = every_fourth_row(rows, 3, k);
  const Vector low01 = low_words(r0, r1), low23 = low_words(r2, r3);
  const Vector high01 = high_words(r0, r1), high23 = high_words(r2, r3);
  word[0] = low_pairs(low01, low23);
  word[1] = high_pairs(low01, low23);
  word[2] = low_pairs(high01, high23);
  word[3] = high_pairs(high01, high23);
}

// packed[k][0 .. kLanes) = rows[..][k] as fp32
template <class Key>
void transpose(const Key* const* rows, int64_t head_dim, float* packed) {
  for (int64_t k = 0; k < head_dim; k += kPerPart<Key>) {
    Vector word[4];
    transposed_words(rows, k, word);
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(Key) == 4) {
        store(packed + (k + i) * kIndexPanel, word[i]);
      } else {
        store(packed + (k + 2 * i) * kIndexPanel, even_bf16(word[i]));
        store(packed + (k + 2 * i + 1) * kIndexPanel, odd_bf16(word[i]));
      }
    }
  }
}

// out[h][v] = (l[j] + l[j+8]) + (l[j+4] + l[j+12]) of the canonical lanes l
template <int NH>
inline void sum_quarter(const float* q, const float* packed, int64_t head_dim, int64_t j, Vector (&out)[NH][kVectors]) {
  constexpr int64_t kOrder[4] = {0, 8, 4, 12};
  for (int first = 0; first < 4; first += kLanesAtOnce) {
    Vector sum[kLanesAtOnce][NH][kVectors];
    for (auto& lane : sum) {
      for (auto& head : lane) {
        for (Vector& s : head) s = zero();
      }
    }
    for (int64_t step = j; step < head_dim; step += 16) {
      for (int l = 0; l < kLanesAtOnce; ++l) {
        const int64_t k = step + kOrder[first + l];
        Vector key[kVectors];
        for (int v = 0; v < kVectors; ++v) key[v] = in_register(load(packed + k * kIndexPanel + v * kLanes));
        for (int h = 0; h < NH; ++h) {
          const Vector query = set1(q[h * head_dim + k]);
          for (int v = 0; v < kVectors; ++v) sum[l][h][v] = fma(query, key[v], sum[l][h][v]);
        }
      }
    }
    for (int h = 0; h < NH; ++h) {
      for (int v = 0; v < kVectors; ++v) {
        const Vector pair = add(sum[0][h][v], sum[1][h][v]);
        if constexpr (kLanesAtOnce == 4) {
          out[h][v] = add(pair, add(sum[2][h][v], sum[3][h][v]));
        } else {
          out[h][v] = first == 0 ? pair : add(out[h][v], pair);
        }
      }
    }
  }
}

// Adds the terms of NH heads to the scores of a strip of entries.
template <int NH>
inline void add_heads(const float* q, const float* w, const float* packed, int64_t head_dim,
                      Vector (&score)[kVectors]) {
  Vector even[NH][kVectors], odd[NH][kVectors], quarter[NH][kVectors];
  const auto add_quarter = [&](Vector(&half)[NH][kVectors]) {
    for (int h = 0; h < NH; ++h) {
      for (int v = 0; v < kVectors; ++v) half[h][v] = add(half[h][v], quarter[h][v]);
    }
  };
  sum_quarter<NH>(q, packed, head_dim, 0, even);
  sum_quarter<NH>(q, packed, head_dim, 2, quarter);
  add_quarter(even);
  sum_quarter<NH>(q, packed, head_dim, 1, odd);
  sum_quarter<NH>(q, packed, head_dim, 3, quarter);
  add_quarter(odd);
  for (int h = 0; h < NH; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      score[v] = fma(set1(w[h]), max(zero(), add(even[h][v], odd[h][v])), score[v]);
    }
  }
}

// Writes the scores of the kVectors vectors of entries from `begin` on, of which `count` are there.
inline void store_scores(const Vector (&score)[kVectors], int64_t begin, int64_t count, float* scores) {
  for (int v = 0; v < kVectors; ++v) {
    const int64_t rest = count - v * kLanes;
    if (rest >= kLanes) {
      store(scores + begin + v * kLanes, score[v]);
    } else if (rest > 0) {
      store_part(scores + begin + v * kLanes, score[v], rest);
    }
  }
}

template <class Query, class Key>
void score_entries(const IndexScoresArgs& args) {
  const int64_t num_heads = args.num_heads, head_dim = args.head_dim;
  const IndexScratch layout(num_heads, head_dim);
  float* const scratch = reinterpret_cast<float*>(args.scratch);
  float* const packed = scratch + layout.keys;
  const float* q = static_cast<const float*>(args.iq);
  if constexpr (sizeof(Query) == 2) {
    const Query* const src = static_cast<const Query*>(args.iq);
    for (int64_t i = 0; i < num_heads * head_dim; i += kLanes) store(scratch + layout.q + i, load(src + i));
    q = scratch + layout.q;
  }

  RowCursor<Key> ahead(args, args.begin);
  Panel<Key> next = ahead.next_panel();
  for (int64_t begin = args.begin; begin < args.end; begin += kIndexPanel) {
    const Panel<Key> panel = next;
    const Key* const* const rows = panel.rows;
    const int64_t count = panel.count;
    next = ahead.next_panel();
    PanelFetch<Key> fetch(next, head_dim, kIndexPanel / kStrip * (num_heads + kHeads - 1) / kHeads);
    for (int64_t i = 0; i < count; i += kLanes) transpose(rows + i, head_dim, packed + i);

    for (int64_t strip = 0; strip < count; strip += kStrip) {
      Vector score[kVectors];
      for (Vector& s : score) s = zero();
      const float* const keys = packed + strip;
      int64_t h = 0;
      for (; h + kHeads <= num_heads; h += kHeads) {
        fetch.advance();
        add_heads<kHeads>(q + h * head_dim, args.w + h, keys, head_dim, score);
      }
      if (num_heads - h == 2) add_heads<2>(q + h * head_dim, args.w + h, keys, head_dim, score);
      if (num_heads - h == 1) add_heads<1>(q + h * head_dim, args.w + h, keys, head_dim, score);
      store_scores(score, begin + strip, count - strip, args.scores);
    }
  }
}

#ifdef __AVX512BF16__

constexpr int kPairHeads = 8;  // x kVectors: 16 sums

// Adds the terms of NH heads to the scores of a panel, whose pairs of features k, k + 1 lie at packed[k / 2].
template <int NH>
inline void add_pair_heads(const uint16_t* q, const float* w, const float* packed, int64_t head_dim, Vector (&score)[kVectors]) {
  Vector sum[NH][kVectors];
  for (auto& head : sum) {
    for (Vector& s : head) s = zero();
  }
  for (int64_t k = 0; k < head_dim; k += 2, packed += kIndexPanel) {
    Vector key[kVectors];
    for (int v = 0; v < kVectors; ++v) key[v] = in_register(load(packed + v * kLanes));
    for (int h = 0; h < NH; ++h) {
      const Vector query = set1_pair(q + h * head_dim + k);
      for (int v = 0; v < kVectors; ++v) sum[h][v] = add_pairs(key[v], query, sum[h][v]);
    }
  }
  for (int h = 0; h < NH; ++h) {
    for (int v = 0; v < kVectors; ++v) score[v] = fma(set1(w[h]), max(zero(), sum[h][v]), score[v]);
  }
}

// As score_entries, with pairs of bf16 features as they are stored.
void score_bf16_pairs(const IndexScoresArgs& args) {
  static_assert(kIndexPanel == kStrip);
  const int64_t num_heads = args.num_heads, head_dim = args.head_dim;
  float* const packed = reinterpret_cast<float*>(args.scratch) + IndexScratch(num_heads, head_dim).keys;
  const auto* q = static_cast<const uint16_t*>(args.iq);
  RowCursor<uint16_t> ahead(args, args.begin);
  Panel<uint16_t> next = ahead.next_panel();
  for (int64_t begin = args.begin; begin < args.end; begin += kIndexPanel) {
    const Panel<uint16_t> panel = next;
    next = ahead.next_panel();
    PanelFetch<uint16_t> fetch(next, head_dim, (num_heads + kPairHeads - 1) / kPairHeads);
    for (int64_t i = 0; i < panel.count; i += kLanes) {
      for (int64_t k = 0; k < head_dim; k += kPerPart<uint16_t>) {
        Vector word[4];
        transposed_words(panel.rows + i, k, word);
        for (int n = 0; n < 4; ++n) store(packed + (k / 2 + n) * kIndexPanel + i, word[n]);
      }
    }
    Vector score[kVectors];
    for (Vector& s : score) s = zero();
    int64_t h = 0;
    for (; h + kPairHeads <= num_heads; h += kPairHeads) {
      fetch.advance();
      add_pair_heads<kPairHeads>(q + h * head_dim, args.w + h, packed, head_dim, score);
    }
    for (; h + 2 <= num_heads; h += 2) add_pair_heads<2>(q + h * head_dim, args.w + h, packed, head_dim, score);
    if (h < num_heads) add_pair_heads<1>(q + h * head_dim, args.w + h, packed, head_dim, score);
    store_scores(score, begin, panel.count, args.scores);
  }
}

#endif

#ifdef __AVX512VNNI__

// Rows of any bf16 values.
inline void score_any_bf16(const IndexScoresArgs& args) {
#ifdef __AVX512BF16__
  score_bf16_pairs(args);
#else
  score_entries<uint16_t, uint16_t>(args);
#endif
}

// Panels of exact rows by int8, the others as any bf16 values: the same bits.
void score_bf16_entries(const IndexScoresArgs& args) {
  const int64_t num_heads = args.num_heads, head_dim = args.head_dim;
  const IndexScratch layout(num_heads, head_dim);
  std::byte* const int8 = args.scratch + layout.int8 * static_cast<int64_t>(sizeof(float));
  const Int8Queries queries{reinterpret_cast<int32_t*>(int8), reinterpret_cast<int32_t*>(int8 + num_heads * head_dim),
                            reinterpret_cast<float*>(int8 + num_heads * (head_dim + 4))};
  uint8_t* const numbers = reinterpret_cast<uint8_t*>(int8 + num_heads * (head_dim + 8));
  uint32_t* const packed =
      reinterpret_cast<uint32_t*>(args.scratch + layout.keys * static_cast<int64_t>(sizeof(float)));
  if (head_dim % 64 != 0 || head_dim > kInt8MaxHeadDim || !split_queries(args, queries)) {
    return score_any_bf16(args);
  }

  RowCursor<uint16_t> rows(args, args.begin);
  Int8Panel panels[2];
  Int8Panel *now = &panels[0], *next = &panels[1];
  now->numbers = numbers;
  next->numbers = numbers + kIndexPanel * head_dim;
  const auto start = [&] {
    now->start(rows.next_panel());
    now->advance(head_dim, kIndexPanel);
    next->start(rows.next_panel());
  };
  start();
  for (int64_t begin = args.begin; begin < args.end;) {
    if (now->exact) {
      const Panel<uint16_t> after = rows.next_panel();
      PanelFetch<uint16_t> fetch(after, head_dim, (num_heads + kInt8Heads - 1) / kInt8Heads);
      score_int8_panel(args, queries, *now, begin, *next, fetch, packed);
      begin += now->panel.count;
      Int8Panel* const scored = now;
      now = next;
      next = scored;
      next->start(after);
      continue;
    }
    // Where one row is not exact many are not: go on without for long enough that the attempt costs little.
    IndexScoresArgs part = args;
    part.begin = begin;
    part.end = begin + 8 * kIndexPanel < args.end ? begin + 8 * kIndexPanel : args.end;
    score_any_bf16(part);
    begin = part.end;
    rows = RowCursor<uint16_t>(args, begin);
    start();
  }
}

#endif

}  // namespace

void WEFT_NAME(index_scores)(const IndexScoresArgs& args) {
  // No model has such a head dim; lanes without elements are the reference's business.
  if (args.head_dim % 16 != 0) return index_scores_ref(args);
#ifdef __AVX512VNNI__
  if (args.iq_dtype == DType::kBF16 && args.key_dtype == DType::kBF16) return score_bf16_entries(args);
#endif
  if (args.iq_dtype == DType::kF32) {
    return args.key_dtype == DType::kF32 ? score_entries<float, float>(args) : score_entries<float, uint16_t>(args);
  }
  return args.key_dtype == DType::kF32 ? score_entries<uint16_t, float>(args) : score_entries<uint16_t, uint16_t>(args);
}

}  // namespace weft
