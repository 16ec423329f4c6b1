// Compiled once per level. Bits of sparse_attention_ref, or with vdpbf16ps of sparse_attention_bf16_ref: scores by tiles of canonical dot products, softmax with lanes
// along the heads, values by tiles of heads x features that stay in registers over the columns of a block.
#include "kernels/sparse_attention/sparse_attention_impl.h"
#include "kernels/vector_math/dot_tile-inl.h"

namespace weft {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

#ifdef __AVX512F__
constexpr int kValueHeads = 4, kValueVectors = 4;  // 16 sums, 4 vectors of values and one probability
#else
constexpr int kValueHeads = 6, kValueVectors = 2;  // 12 sums, 2 vectors of values and one probability
#endif

// Heads whose queries stay in the first-level cache while the keys of a block pass by (8 x 512 floats are half of it).
constexpr int64_t kScoreHeads = 8;

template <class Key>
struct Block {
  const Key* rows[kAttentionBlock];
  int64_t n = 0;

  Vector value(int64_t column, int64_t d) const { return load(rows[column] + d); }
  static Vector add(Vector probability, Vector value, Vector sum) { return fma(probability, value, sum); }
};

template <class Key>
Block<Key> columns_of_block(std::span<const void* const> keys, int64_t begin) {
  Block<Key> block;
  const int64_t num_columns = static_cast<int64_t>(keys.size());
  const int64_t end = begin + kAttentionBlock < num_columns ? begin + kAttentionBlock : num_columns;
  for (int64_t column = begin; column < end; ++column) {
    if (keys[column] != nullptr) block.rows[block.n++] = static_cast<const Key*>(keys[column]);
  }
  return block;
}

// scores[n][h] = <q_h, key_n>
template <class Query, class Key>
void block_scores(const Query* q, int64_t num_heads, int64_t head_dim, const Block<Key>& block, float* scores,
                  int64_t head_pitch) {
  for (int64_t group = 0; group < num_heads; group += kScoreHeads) {
    const int64_t group_end = group + kScoreHeads < num_heads ? group + kScoreHeads : num_heads;
    for (int64_t n = 0; n < block.n; n += kDotTileB) {
      const int nb = static_cast<int>(block.n - n < kDotTileB ? block.n - n : kDotTileB);
      for (int64_t h = group; h < group_end; h += kDotTileA) {
        const int na = static_cast<int>(group_end - h < kDotTileA ? group_end - h : kDotTileA);
        const Query* heads[kDotTileA];
        for (int i = 0; i < kDotTileA; ++i) heads[i] = q + (h + (i < na ? i : 0)) * head_dim;
        dot_tile(na, nb, heads, block.rows + n, head_dim, scores + n * head_pitch + h, head_pitch);
      }
    }
  }
}

struct Softmax {
  float* scores;  // [n][head_pitch], in: dot products, out: probabilities
  int64_t n, head_pitch;
  float scale;
  bool round_probabilities;
  float *max, *den, *factor;  // [head_pitch]
};

// A vector holds whole heads of one column.
void block_softmax_wide(const Softmax& s) {
  const Vector scale = set1(s.scale);
  for (int64_t h = 0; h < s.head_pitch; h += kLanes) {
    const Vector old_max = load(s.max + h);
    Vector new_max = old_max;
    for (int64_t n = 0; n < s.n; ++n) {
      float* const p = s.scores + n * s.head_pitch + h;
      const Vector z = mul(load(p), scale);
      store(p, z);
      new_max = max(z, new_max);
    }
    const Vector factor = simd_exp(sub(old_max, new_max));
    Vector den = mul(load(s.den + h), factor);
    for (int64_t n = 0; n < s.n; ++n) {
      float* const p = s.scores + n * s.head_pitch + h;
      const Vector e = simd_exp(sub(load(p), new_max));
      den = add(den, e);
      store(p, s.round_probabilities ? round_bf16(e) : e);
    }
    store(s.max + h, new_max);
    store(s.den + h, den);
    store(s.factor + h, factor);
  }
}

// The heads of one column, 4 or 8 of them.
template <int kPitch>
struct Column {
  __m128 lanes;
  explicit Column(const float* p) : lanes(_mm_loadu_ps(p)) {}
  void add(const float* p) { lanes = _mm_add_ps(lanes, _mm_loadu_ps(p)); }
  void write(float* p) const { _mm_storeu_ps(p, lanes); }
};
template <>
struct Column<8> {
  __m256 lanes;
  explicit Column(const float* p) : lanes(_mm256_loadu_ps(p)) {}
  void add(const float* p) { lanes = _mm256_add_ps(lanes, _mm256_loadu_ps(p)); }
  void write(float* p) const { _mm256_storeu_ps(p, lanes); }
};

// A vector holds the kPitch heads of several columns; the denominator still adds one column after the other.
template <int kPitch>
void block_softmax_narrow(const Softmax& s) {
  constexpr int64_t kColumns = kLanes / kPitch;
  const Vector scale = set1(s.scale);
  const int64_t size = s.n * kPitch, padded = (s.n + kColumns - 1) / kColumns * kColumns * kPitch;
  for (int64_t i = size; i < padded; ++i) s.scores[i] = kMinusInfinity;

  alignas(64) float lanes[kLanes], old_max[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) old_max[i] = s.max[i % kPitch];
  Vector new_max = load(old_max);
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Vector z = mul(load(s.scores + i), scale);
    store(s.scores + i, z);
    new_max = max(z, new_max);
  }
  store(lanes, new_max);
  for (int64_t i = kPitch; i < kLanes; ++i) {
    lanes[i % kPitch] = lanes[i] > lanes[i % kPitch] ? lanes[i] : lanes[i % kPitch];
  }
  for (int64_t i = kPitch; i < kLanes; ++i) lanes[i] = lanes[i % kPitch];
  new_max = load(lanes);
  for (int64_t i = 0; i < kPitch; ++i) s.max[i] = lanes[i];
  store(lanes, simd_exp(sub(load(old_max), new_max)));
  for (int64_t i = 0; i < kPitch; ++i) {
    s.factor[i] = lanes[i];
    s.den[i] *= lanes[i];
  }

  for (int64_t i = 0; i < padded; i += kLanes) store(s.scores + i, simd_exp(sub(load(s.scores + i), new_max)));
  Column<kPitch> den(s.den);
  for (int64_t i = 0; i < size; i += kPitch) den.add(s.scores + i);
  den.write(s.den);
  if (s.round_probabilities) {
    for (int64_t i = 0; i < padded; i += kLanes) store(s.scores + i, round_bf16(load(s.scores + i)));
  }
}

void block_softmax(const Softmax& s) {
  if (s.head_pitch == 4) return block_softmax_narrow<4>(s);
#ifdef __AVX512F__
  if (s.head_pitch == 8) return block_softmax_narrow<8>(s);
#endif
  block_softmax_wide(s);
}

// acc[h][d..] = acc[h][d..] * factor[h] + sum_n p[n][h] * value_n[d..], for NH heads and NV vectors of features. `p`,
// `factor` and `acc` point to the first head, `acc` also to the first feature.
template <int NH, int NV, class Columns>
inline void value_tile(const Columns& block, int64_t d, const float* p, int64_t head_pitch, const float* factor,
                       float* acc, int64_t value_dim) {
  Vector sum[NH][NV];
  for (int i = 0; i < NH; ++i) {
    const Vector f = set1(factor[i]);
    for (int j = 0; j < NV; ++j) sum[i][j] = mul(load(acc + i * value_dim + j * kLanes), f);
  }
  for (int64_t n = 0; n < block.n; ++n) {
    Vector value[NV];
    for (int j = 0; j < NV; ++j) value[j] = in_register(block.value(n, d + j * kLanes));
    for (int i = 0; i < NH; ++i) {
      const Vector probability = set1(p[n * head_pitch + i]);
      for (int j = 0; j < NV; ++j) sum[i][j] = Columns::add(probability, value[j], sum[i][j]);
    }
  }
  for (int i = 0; i < NH; ++i) {
    for (int j = 0; j < NV; ++j) store(acc + i * value_dim + j * kLanes, sum[i][j]);
  }
}

// All heads of one strip of NV vectors of features.
template <int NV, class Columns>
void value_strip(const Columns& block, int64_t d, const float* p, int64_t head_pitch, const float* factor,
                 float* acc, int64_t num_heads, int64_t value_dim) {
  int64_t h = 0;
  for (; h + kValueHeads <= num_heads; h += kValueHeads) {
    value_tile<kValueHeads, NV>(block, d, p + h, head_pitch, factor + h, acc + h * value_dim + d, value_dim);
  }
  const auto rest = [&]<int NH>() {
    value_tile<NH, NV>(block, d, p + h, head_pitch, factor + h, acc + h * value_dim + d, value_dim);
  };
  switch (num_heads - h) {
    case 1: return rest.template operator()<1>();
    case 2: return rest.template operator()<2>();
    case 3: return rest.template operator()<3>();
#ifndef __AVX512F__
    case 4: return rest.template operator()<4>();
    case 5: return rest.template operator()<5>();
#endif
    default: return;
  }
}

template <class Columns>
void block_values(const Columns& block, const float* p, int64_t head_pitch, const float* factor, float* acc,
                  int64_t num_heads, int64_t value_dim) {
  int64_t d = 0;
  for (; d + kValueVectors * kLanes <= value_dim; d += kValueVectors * kLanes) {
    value_strip<kValueVectors>(block, d, p, head_pitch, factor, acc, num_heads, value_dim);
  }
  for (; d < value_dim; d += kLanes) value_strip<1>(block, d, p, head_pitch, factor, acc, num_heads, value_dim);
}

#ifdef __AVX512BF16__

// q_pairs[k / 2][h] = features k, k + 1 of head h; 0 beyond the last head.
inline void pack_queries(const uint16_t* q, int64_t num_heads, int64_t head_dim, int64_t pitch, uint32_t* q_pairs) {
  for (int64_t k = 0; k < head_dim; k += 2, q_pairs += pitch) {
    for (int64_t h = 0; h < pitch; ++h) q_pairs[h] = h < num_heads ? pair_at(q + h * head_dim + k) : 0;
  }
}

// scores[n][h] of NV vectors of heads and NC columns.
template <int NV, int NC>
inline void pair_score_tile(const float* q_pairs, int64_t pitch, int64_t head_dim, const uint16_t* const* rows, float* scores,
                            int64_t head_pitch) {
  const uint16_t* row[NC];
  for (int c = 0; c < NC; ++c) row[c] = rows[c];
  Vector sum[NC][NV];
  for (auto& column : sum) {
    for (Vector& s : column) s = zero();
  }
  for (int64_t k = 0; k < head_dim; k += 2, q_pairs += pitch) {
    Vector query[NV];
    for (int v = 0; v < NV; ++v) query[v] = in_register(load(q_pairs + v * kLanes));
    for (int c = 0; c < NC; ++c) {
      const Vector key = set1_pair(row[c] + k);
      for (int v = 0; v < NV; ++v) sum[c][v] = add_pairs(key, query[v], sum[c][v]);
    }
  }
  for (int c = 0; c < NC; ++c) {
    for (int v = 0; v < NV; ++v) {
      float* const p = scores + c * head_pitch + v * kLanes;
      head_pitch < kLanes ? store_part(p, sum[c][v], head_pitch) : store(p, sum[c][v]);
    }
  }
}

// scores[n][h] = <q_h, key_n>
inline void pair_scores(const float* q_pairs, int64_t pitch, int64_t head_dim, const Block<uint16_t>& block, float* scores,
                        int64_t head_pitch) {
  constexpr int kColumns = 8;
  const auto columns = [&]<int NV>(int64_t h) {
    int64_t n = 0;
    for (; n + kColumns <= block.n; n += kColumns) {
      pair_score_tile<NV, kColumns>(q_pairs + h, pitch, head_dim, block.rows + n, scores + n * head_pitch + h, head_pitch);
    }
    for (; n < block.n; ++n) {
      pair_score_tile<NV, 1>(q_pairs + h, pitch, head_dim, block.rows + n, scores + n * head_pitch + h, head_pitch);
    }
  };
  int64_t h = 0;
  for (; h + 2 * kLanes <= pitch; h += 2 * kLanes) columns.template operator()<2>(h);
  if (h < pitch) columns.template operator()<1>(h);
}

// Columns n, n + 1 as one: pairs whose high halves, which vdpbf16ps takes first, are of column n.
struct PairBlock {
  const float* pairs;
  int64_t pitch, n;

  Vector value(int64_t column, int64_t d) const { return load(pairs + column * pitch + d); }
  static Vector add(Vector probabilities, Vector values, Vector sum) { return add_pairs(probabilities, values, sum); }
};

inline PairBlock pack_values(const Block<uint16_t>& block, int64_t value_dim, float* pairs, int64_t pitch) {
  for (int64_t n = 0; n < block.n; n += 2) {
    float* const out = pairs + n / 2 * pitch;
    for (int64_t d = 0; d < value_dim; d += kLanes) {
      const __m512i first = _mm512_castps_si512(load(block.rows[n] + d));
      if (n + 1 == block.n) {
        store(out + d, _mm512_castsi512_ps(first));
        continue;
      }
      const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.rows[n + 1] + d));
      store(out + d, _mm512_castsi512_ps(_mm512_or_si512(first, _mm512_cvtepu16_epi32(second))));
    }
  }
  return {pairs, pitch, (block.n + 1) / 2};
}

// Rounded probabilities [n][head_pitch] in place to those of column pairs [n / 2][head_pitch].
inline void pack_probabilities(float* p, int64_t columns, int64_t head_pitch) {
  for (int64_t n = 0; n < columns; n += 2) {
    for (int64_t h = 0; h < head_pitch; ++h) {
      const uint32_t second = n + 1 < columns ? __builtin_bit_cast(uint32_t, p[(n + 1) * head_pitch + h]) >> 16 : 0;
      p[n / 2 * head_pitch + h] = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, p[n * head_pitch + h]) | second);
    }
  }
}

#endif

template <class T>
void write_out(const float* acc, const float* den, int64_t num_heads, int64_t value_dim, T* out) {
  for (int64_t h = 0; h < num_heads; ++h) {
    const Vector d = set1(den[h]);
    for (int64_t k = 0; k < value_dim; k += kLanes) store(out + h * value_dim + k, div(load(acc + h * value_dim + k), d));
  }
}

// Activation is float or uint16_t (bf16), as is Key.
template <class Activation, class Key>
void attend(const SparseAttentionArgs& args) {
  const int64_t num_heads = args.num_heads, head_dim = args.head_dim, value_dim = args.value_dim;
  const AttentionScratch layout(num_heads, head_dim);
  float* const scratch = reinterpret_cast<float*>(args.scratch);
  float* const acc = scratch + layout.acc;
  float* const packed = scratch + layout.keys;
  const Softmax softmax_of_call{scratch + layout.scores, 0,
                                layout.head_pitch,       args.scale,
                                sizeof(Activation) == 2, scratch + layout.max,
                                scratch + layout.den,    scratch + layout.factor};
  Softmax softmax = softmax_of_call;
#ifdef __AVX512BF16__
  constexpr bool kPairs = sizeof(Activation) == 2 && sizeof(Key) == 2;
  [[maybe_unused]] const int64_t pitch = (num_heads + kLanes - 1) / kLanes * kLanes;
#else
  constexpr bool kPairs = false;
#endif

  const float* q;
  if constexpr (kPairs) {
#ifdef __AVX512BF16__
    q = scratch + layout.q;
    pack_queries(static_cast<const uint16_t*>(args.q), num_heads, head_dim, pitch, reinterpret_cast<uint32_t*>(scratch + layout.q));
#endif
  } else if constexpr (sizeof(Activation) == 2) {
    float* const q_f32 = scratch + layout.q;
    const Activation* const src = static_cast<const Activation*>(args.q);
    for (int64_t i = 0; i < num_heads * head_dim; i += kLanes) store(q_f32 + i, load(src + i));
    q = q_f32;
  } else {
    q = static_cast<const float*>(args.q);
  }
  for (int64_t i = 0; i < num_heads * value_dim; i += kLanes) store(acc + i, zero());
  for (int64_t h = 0; h < layout.head_pitch; ++h) {
    softmax.max[h] = kMinusInfinity;
    softmax.den[h] = 0;
  }
  // Heads that only fill up a vector are never scored.
  for (int64_t i = 0; i < kAttentionBlock * layout.head_pitch; i += 4)
    _mm_storeu_ps(softmax.scores + i, _mm_setzero_ps());

  // Few heads read every key once in each phase: converting it into scratch first would only add traffic.
  const bool pack = num_heads > kValueHeads;
  const int64_t num_columns = static_cast<int64_t>(args.keys.size());
  bool empty = true;
  Block<Key> next = columns_of_block<Key>(args.keys, 0);
  for (int64_t begin = 0; begin < num_columns; begin += kAttentionBlock) {
    const Block<Key> block = next;
    // Selected entries lie anywhere in the cache: fetch those of the next block while this one is worked on.
    next = columns_of_block<Key>(args.keys, begin + kAttentionBlock);
    for (int64_t n = 0; n < next.n; ++n) {
      for (int64_t k = 0; k < head_dim; k += 64 / sizeof(Key)) _mm_prefetch(next.rows[n] + k, _MM_HINT_T1);
    }
    if (block.n == 0) continue;
    empty = false;
    softmax.n = block.n;

    if constexpr (kPairs) {
#ifdef __AVX512BF16__
      pair_scores(q, pitch, head_dim, block, softmax.scores, layout.head_pitch);
      block_softmax(softmax);
      pack_probabilities(softmax.scores, block.n, layout.head_pitch);
      const PairBlock pairs = pack_values(block, value_dim, packed, layout.row_pitch);
      block_values(pairs, softmax.scores, layout.head_pitch, softmax.factor, acc, num_heads, value_dim);
#endif
    } else if (pack) {
      Block<float> rows;
      rows.n = block.n;
      for (int64_t n = 0; n < block.n; ++n) {
        float* const row = packed + n * layout.row_pitch;
        for (int64_t k = 0; k < head_dim; k += kLanes) store(row + k, load(block.rows[n] + k));
        rows.rows[n] = row;
      }
      block_scores(q, num_heads, head_dim, rows, softmax.scores, layout.head_pitch);
      block_softmax(softmax);
      block_values(rows, softmax.scores, layout.head_pitch, softmax.factor, acc, num_heads, value_dim);
    } else {
      block_scores(q, num_heads, head_dim, block, softmax.scores, layout.head_pitch);
      block_softmax(softmax);
      block_values(block, softmax.scores, layout.head_pitch, softmax.factor, acc, num_heads, value_dim);
    }
  }

  for (int64_t h = 0; h < layout.head_pitch && empty; ++h) softmax.den[h] = 1;
  if (args.sink != nullptr && !empty) {
    for (int64_t h = 0; h < num_heads; h += kLanes) {
      alignas(64) float lanes[kLanes] = {};
      const int64_t count = num_heads - h < kLanes ? num_heads - h : kLanes;
      for (int64_t i = 0; i < count; ++i) lanes[i] = args.sink[h + i] - softmax.max[h + i];
      store(lanes, simd_exp(load(lanes)));
      for (int64_t i = 0; i < count; ++i) softmax.den[h + i] += lanes[i];
    }
  }
  for (int64_t h = 0; h < num_heads && args.lse != nullptr; ++h) args.lse[h] = log_sum_exp(softmax.max[h], softmax.den[h]);
  write_out(acc, softmax.den, num_heads, value_dim, static_cast<Activation*>(args.out));
}

}  // namespace

void WEFT_NAME(sparse_attention)(const SparseAttentionArgs& args) {
  // No model has such widths; lanes without elements are the reference's business.
  if (args.head_dim % 16 != 0 || args.value_dim % 16 != 0) return sparse_attention_ref(args);
  if (args.dtype == DType::kF32) {
    return args.kv_dtype == DType::kF32 ? attend<float, float>(args) : attend<float, uint16_t>(args);
  }
  return args.kv_dtype == DType::kF32 ? attend<uint16_t, float>(args) : attend<uint16_t, uint16_t>(args);
}

}  // namespace weft
