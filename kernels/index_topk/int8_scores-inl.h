// kernels/index_topk/int8_scores-inl.h
//
// Index scores by int8 dot products (AVX-512 VNNI) where that gives the bits of index_scores_ref.
//
// A row is exact if every element is n * 2^e with one e for the row and n = 0 or n = 2^i or 3 * 2^i, |n| <= 96. Rows that went
// through the FP4 round trip of deepseek_v4.md 2.6 are: e2m1 values are n / 2 with |n| <= 12, and block scales may differ by up
// to 2^3 within a row. For two exact rows of up to 1024 elements every partial sum, in whatever order, is
// N * 2^(e_q + e_k) with |N| <= 1024 * 96^2 < 2^24: no fp32 addition of the canonical order rounds, so its result is the
// integer dot product times that power of two.
//
// Powers of two also move out of the sum over heads: with w' = w * 2^e_q and acc = acc' * 2^e_k,
//   acc = fma(w, relu(N * 2^(e_q + e_k)), acc)   is   acc' = fma(w', relu(N), acc')
// as long as nothing overflows or becomes subnormal, which kExponentLimit rules out: terms are multiples of
// 2^(-40 - 23 - 40) and below 2^(40 + 24 + 40) each.
//
// Included by index_scores_simd.cc only.
#pragma once

#include "kernels/index_topk/index_topk_impl.h"
#include "kernels/index_topk/panel-inl.h"
#include "kernels/vector_math/f32_vector-inl.h"

namespace weft {
namespace {

constexpr int kExponentLimit = 40;
constexpr int64_t kInt8MaxHeadDim = 1024;
constexpr int kInt8Heads = 8, kInt8Vectors = 2;  // 16 sums of 16 entries each
constexpr int64_t kInt8Part = 32;                // elements that are summed between two rows of the next panel
static_assert(kIndexPanel == kInt8Vectors * 16);

struct ExactRow {
  bool exact;
  int exponent;  // e
};

// Numbers of exact rows, by the bits of an element: 128 + n for index
//   mantissa's top bit * 64 + sign * 32 + min(exponent of the row's largest - its own, 30)      31 instead: it is 0
// 0: there is no such number.
struct NumberTable {
  alignas(64) uint8_t number[128];
};
constexpr NumberTable make_number_table() {
  NumberTable t{};
  for (int i = 0; i < 128; ++i) {
    const int down = i % 32, n = (i & 64) != 0 ? 96 : 64;  // the largest becomes 64 or 96
    if (down == 31) {
      t.number[i] = (i & 64) != 0 ? 0 : 128;
    } else if (down < 7 && n % (1 << down) == 0) {
      t.number[i] = static_cast<uint8_t>((i & 32) != 0 ? 128 - (n >> down) : 128 + (n >> down));
    }
  }
  return t;
}
inline constexpr NumberTable kNumbers = make_number_table();

// c ? a : b, bit by bit.
inline __m512i choose(__m512i a, __m512i b, __m512i c) { return _mm512_ternarylogic_epi32(c, a, b, 0xca); }

inline int largest_byte(__m512i v) {
  const __m256i half = _mm256_max_epu8(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  const __m128i quarter = _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i inverted = _mm_xor_si128(quarter, _mm_set1_epi8(-1));
  return 0xff - (_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_min_epu8(inverted, _mm_srli_epi16(inverted, 8)))) & 0xff);
}

struct SplitConstants {
  NumberTable table = make_number_table();
  alignas(64) uint16_t low_byte[32];
  alignas(64) uint8_t one[64], none[64], mantissa[64], sign[64];
};
constexpr SplitConstants make_split_constants() {
  SplitConstants c{};
  for (uint16_t& v : c.low_byte) v = 0xff;
  for (int i = 0; i < 64; ++i) {
    c.one[i] = 1;
    c.none[i] = 31;
    c.mantissa[i] = 64;
    c.sign[i] = 32;
  }
  return c;
}
inline constexpr SplitConstants kSplit = make_split_constants();

// Splits a bf16 row into numbers = n + 128 and e; size is a multiple of 64, at most kInt8MaxHeadDim. Numbers of 64 elements
// stand in pairs (i, i + 32): any order does, as long as queries and keys have the same. In two steps, so that others can be
// done while the first one's chain of operations takes its time.
class RowSplit {
 public:
  __attribute__((always_inline)) void find_top(const uint16_t* row, int64_t size) {
    const SplitConstants* const constants = hidden(&kSplit);
    const __m512i low_byte = _mm512_load_si512(constants->low_byte);
    __m512i top = _mm512_load_si512(constants->none), any = _mm512_setzero_si512();
    for (int64_t k = 0; k < size; k += 64) {
      const __m512i a = _mm512_loadu_si512(row + k), b = _mm512_loadu_si512(row + k + 32);
      top = _mm512_max_epu8(top, exponents(a, b, low_byte));
      any = _mm512_ternarylogic_epi32(any, a, b, 0xfe);
    }
    row_ = row;
    top_ = largest_byte(top);
    constexpr int16_t kOtherBits = 0x3f;  // of the mantissa
    others_ = _mm512_test_epi16_mask(any, _mm512_set1_epi16(kOtherBits));
  }

  __attribute__((always_inline)) ExactRow finish(int64_t size, uint8_t* numbers) const {
    const SplitConstants* const constants = hidden(&kSplit);
    const __m512i low_byte = _mm512_load_si512(constants->low_byte);
    const __m512i largest = _mm512_set1_epi8(static_cast<char>(top_));
    __m512i least = largest;
    for (int64_t k = 0; k < size; k += 64) {
      const __m512i a = _mm512_loadu_si512(row_ + k), b = _mm512_loadu_si512(row_ + k + 32);
      const __m512i e = exponents(a, b, low_byte);
      // 31 for elements that are 0, or subnormal, whose exponents are 0; 30 for others.
      const __m512i most =
          _mm512_sub_epi8(_mm512_load_si512(constants->none), _mm512_min_epu8(e, _mm512_load_si512(constants->one)));
      const __m512i down = _mm512_min_epu8(_mm512_sub_epi8(largest, e), most);
      const __m512i mantissa = choose(a, _mm512_slli_epi16(b, 8), low_byte);
      const __m512i sign = choose(_mm512_srli_epi16(a, 10), _mm512_srli_epi16(b, 2), low_byte);
      const __m512i index = choose(sign, choose(mantissa, down, _mm512_load_si512(constants->mantissa)),
                                   _mm512_load_si512(constants->sign));
      const __m512i n = _mm512_permutex2var_epi8(_mm512_load_si512(constants->table.number), index,
                                                 _mm512_load_si512(constants->table.number + 64));
      least = _mm512_min_epu8(least, n);
      _mm512_storeu_si512(numbers + k, n);
    }
    constexpr int kNone = 31;  // the least exponent that counts: only a row of zeros has it
    const int exponent = top_ == kNone ? 0 : top_ - 133;
    const bool within = static_cast<unsigned>(exponent + kExponentLimit) <= 2 * kExponentLimit;
    return {within && (others_ | _mm512_testn_epi8_mask(least, least)) == 0, exponent};
  }

 private:
  // The compiler keeps no constants in registers outside of a step, where a loop of sums needs them.
  __attribute__((always_inline)) static const SplitConstants* hidden(const SplitConstants* constants) {
    asm volatile("" : "+r"(constants));
    return constants;
  }
  // Bytes of the exponents of 64 elements: first half low, second half high.
  __attribute__((always_inline)) static __m512i exponents(__m512i a, __m512i b, __m512i low_byte) {
    return choose(_mm512_srli_epi16(a, 7), _mm512_slli_epi16(b, 1), low_byte);
  }

  const uint16_t* row_ = nullptr;
  int top_ = 0;
  uint64_t others_ = 0;
};

inline float power_of_two(int exponent) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((exponent + 127) << 23)));
}

struct Int8Queries {
  int32_t* numbers;  // [head_dim / 4, num_heads]  four successive ones
  int32_t* start;    // [num_heads]  -128 times the sum of the numbers: takes the offset of the keys out again
  float* weight;     // [num_heads]  w'
};

// False if a row or a weight does not allow it.
inline bool split_queries(const IndexScoresArgs& args, const Int8Queries& q) {
  const int64_t head_dim = args.head_dim;
  for (int64_t h = 0; h < args.num_heads; ++h) {
    alignas(64) uint8_t numbers[kInt8MaxHeadDim];
    RowSplit split;
    split.find_top(static_cast<const uint16_t*>(args.iq) + h * head_dim, head_dim);
    const ExactRow row = split.finish(head_dim, numbers);
    if (!row.exact) return false;
    int32_t sum = 0;
    for (int64_t k = 0; k < head_dim; ++k) {
      sum += numbers[k] - 128;
      numbers[k] ^= 0x80;  // n as int8
    }
    for (int64_t k = 0; k < head_dim; k += 4) {
      __builtin_memcpy(q.numbers + k / 4 * args.num_heads + h, numbers + k, sizeof(int32_t));
    }
    q.start[h] = -128 * sum;
    const float w = args.w[h], magnitude = w < 0 ? -w : w;
    const float low = power_of_two(-kExponentLimit), high = power_of_two(kExponentLimit);
    q.weight[h] = w * power_of_two(row.exponent);
    const float moved = q.weight[h] < 0 ? -q.weight[h] : q.weight[h];
    const bool usable = magnitude == 0 || (magnitude >= low && magnitude <= high && moved >= low && moved <= high);
    if (!usable) return false;
  }
  return true;
}

// packed[k / 4][entry] = numbers of four successive k, for the 16 entries whose numbers are rows[0 .. 15]
inline void transpose_numbers(const uint8_t* numbers, int64_t head_dim, uint32_t* packed) {
  const auto gather = [&](int first, int64_t k) {
    const auto part = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + row * head_dim + k));
    };
    __m512i v = _mm512_castsi128_si512(part(first));
    v = _mm512_inserti32x4(v, part(first + 4), 1);
    v = _mm512_inserti32x4(v, part(first + 8), 2);
    return _mm512_inserti32x4(v, part(first + 12), 3);
  };
  for (int64_t k = 0; k < head_dim; k += 16) {
    const __m512i r0 = gather(0, k), r1 = gather(1, k), r2 = gather(2, k), r3 = gather(3, k);
    const __m512i low01 = _mm512_unpacklo_epi32(r0, r1), low23 = _mm512_unpacklo_epi32(r2, r3);
    const __m512i high01 = _mm512_unpackhi_epi32(r0, r1), high23 = _mm512_unpackhi_epi32(r2, r3);
    uint32_t* const out = packed + k / 4 * kIndexPanel;
    _mm512_storeu_si512(out, _mm512_unpacklo_epi64(low01, low23));
    _mm512_storeu_si512(out + kIndexPanel, _mm512_unpackhi_epi64(low01, low23));
    _mm512_storeu_si512(out + 2 * kIndexPanel, _mm512_unpacklo_epi64(high01, high23));
    _mm512_storeu_si512(out + 3 * kIndexPanel, _mm512_unpackhi_epi64(high01, high23));
  }
}

// _mm512_dpbusd_epi32 in place: GCC 12 copies the accumulators of a loop around it.
inline __m512i add_dot_products(__m512i sum, __m512i key, __m512i query) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(key), "v"(query));
  return sum;
}

inline __m512i in_register(__m512i v) {
  asm("" : "+v"(v));
  return v;
}

// A panel whose rows become numbers step by step, while another one is scored: that keeps other units busy than the sums.
struct Int8Panel {
  Panel<uint16_t> panel;
  uint8_t* numbers;  // [kIndexPanel, head_dim]
  alignas(64) float scale[kIndexPanel];
  RowSplit split;
  int64_t done;
  bool exact;

  void start(const Panel<uint16_t>& rows) {
    panel = rows;
    done = rows.count == 0 ? kIndexPanel : 0;
    exact = true;
  }
  void advance(int64_t head_dim, int64_t rows) {
    const int64_t end = done + rows < kIndexPanel ? done + rows : kIndexPanel;
    for (; done < end; ++done) {
      if (done == 0) split.find_top(panel.rows[0], head_dim);
      const ExactRow row = split.finish(head_dim, numbers + done * head_dim);
      split.find_top(panel.rows[done + 1], head_dim);
      exact &= row.exact;
      scale[done] = power_of_two(row.exponent);
    }
  }
};

template <int NH>
inline void add_int8_heads(const IndexScoresArgs& args, const Int8Queries& q, int64_t h, const uint32_t* packed,
                           Int8Panel& next, __m512 (&score)[kInt8Vectors]) {
  __m512i sum[NH][kInt8Vectors];
  for (int i = 0; i < NH; ++i) {
    for (__m512i& s : sum[i]) s = _mm512_set1_epi32(q.start[h + i]);
  }
  const int32_t* numbers = q.numbers + h;
  for (int64_t part = 0; part < args.head_dim; part += kInt8Part) {
    next.advance(args.head_dim, 1);
    for (int64_t k = 0; k < kInt8Part; k += 4, numbers += args.num_heads, packed += kIndexPanel) {
      __m512i key[kInt8Vectors];
      for (int v = 0; v < kInt8Vectors; ++v) {
        key[v] = in_register(_mm512_loadu_si512(packed + 16 * v));
      }
      for (int i = 0; i < NH; ++i) {
        const __m512i query = _mm512_set1_epi32(numbers[i]);
        for (int v = 0; v < kInt8Vectors; ++v) sum[i][v] = add_dot_products(sum[i][v], key[v], query);
      }
    }
  }
  for (int i = 0; i < NH; ++i) {
    for (int v = 0; v < kInt8Vectors; ++v) {
      const __m512i relu = _mm512_max_epi32(sum[i][v], _mm512_setzero_si512());
      score[v] = _mm512_fmadd_ps(_mm512_set1_ps(q.weight[h + i]), _mm512_cvtepi32_ps(relu), score[v]);
    }
  }
}

// Scores of a panel that starts with entry `begin`, with `next` on its way.
inline void score_int8_panel(const IndexScoresArgs& args, const Int8Queries& q, const Int8Panel& now, int64_t begin,
                             Int8Panel& next, PanelFetch<uint16_t>& fetch, uint32_t* packed) {
  const int64_t head_dim = args.head_dim;
  for (int v = 0; v < kInt8Vectors; ++v) {
    transpose_numbers(now.numbers + v * 16 * head_dim, head_dim, packed + v * 16);
  }
  __m512 score[kInt8Vectors];
  for (__m512& s : score) s = _mm512_setzero_ps();
  int64_t h = 0;
  for (; h + kInt8Heads <= args.num_heads; h += kInt8Heads) {
    fetch.advance();
    add_int8_heads<kInt8Heads>(args, q, h, packed, next, score);
  }
  for (; h + 2 <= args.num_heads; h += 2) add_int8_heads<2>(args, q, h, packed, next, score);
  if (h < args.num_heads) add_int8_heads<1>(args, q, h, packed, next, score);
  next.advance(head_dim, kIndexPanel);
  for (int v = 0; v < kInt8Vectors; ++v) {
    const __m512 result = _mm512_mul_ps(score[v], _mm512_load_ps(now.scale + 16 * v));
    const int64_t rest = now.panel.count - 16 * v;
    if (rest >= 16) {
      store(args.scores + begin + 16 * v, result);
    } else if (rest > 0) {
      store_part(args.scores + begin + 16 * v, result, rest);
    }
  }
}

}  // namespace
}  // namespace weft
