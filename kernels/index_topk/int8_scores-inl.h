// kernels/index_topk/int8_scores-inl.h
//
// Index scores by int8 dot products (AVX-512 VNNI) where that gives the bits of index_scores_ref.
//
// A row is exact if every element is n * 2^e with an integer |n| <= 127 and one e for the row. Rows that went through the
// FP4 round trip of deepseek_v4.md 2.6 are: e2m1 values are n / 2 with |n| <= 12, and block scales that differ by up to
// 2^3 within a row leave |n| <= 96. For two exact rows of up to 1024 elements every partial sum, in whatever order, is
// N * 2^(e_q + e_k) with |N| <= 1024 * 127^2 < 2^24: no fp32 addition of the canonical order rounds, so its result is the
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
constexpr int kInt8Heads = 6, kInt8Vectors = 2;  // 12 sums of 16 entries each
static_assert(kIndexPanel == kInt8Vectors * 16);

struct ExactRow {
  bool exact;
  int exponent;  // e
};

// Splits a bf16 row into numbers[k] = n + 128 and e. size is a multiple of 32, at most kInt8MaxHeadDim.
inline ExactRow split_row(const uint16_t* row, int64_t size, uint8_t* numbers) {
  const __m512i magnitude_bits = _mm512_set1_epi16(0x7fff);
  __m512i top = _mm512_setzero_si512();
  for (int64_t k = 0; k < size; k += 32) {
    top = _mm512_max_epu16(top, _mm512_and_si512(_mm512_loadu_si512(row + k), magnitude_bits));
  }
  const __m256i top256 = _mm256_max_epu16(_mm512_castsi512_si256(top), _mm512_extracti64x4_epi64(top, 1));
  const __m128i top128 = _mm_max_epu16(_mm256_castsi256_si128(top256), _mm256_extracti128_si256(top256, 1));
  const __m128i inverted = _mm_minpos_epu16(_mm_xor_si128(top128, _mm_set1_epi16(-1)));
  const int largest = 0xffff - (_mm_cvtsi128_si32(inverted) & 0xffff);

  // An element is m * 2^(E - 134) with 128 <= m < 256 and the stored exponent E; the largest becomes 64 <= n < 128.
  const int top_exponent = largest >> 7, exponent = top_exponent - 133;
  if (largest == 0) {
    for (int64_t k = 0; k < size; k += 32)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(numbers + k), _mm256_set1_epi8(-128));
    return {true, 0};
  }
  if (exponent < -kExponentLimit || exponent > kExponentLimit) return {false, 0};

  const __m512i shift_of_zero_exponent = _mm512_set1_epi16(static_cast<int16_t>(top_exponent + 1));
  __mmask32 inexact = 0;
  for (int64_t k = 0; k < size; k += 32) {
    const __m512i bits = _mm512_loadu_si512(row + k);
    const __m512i magnitude = _mm512_and_si512(bits, magnitude_bits);
    const __mmask32 nonzero = _mm512_test_epi16_mask(bits, magnitude_bits);
    const __m512i m = _mm512_maskz_mov_epi16(
        nonzero, _mm512_or_si512(_mm512_and_si512(bits, _mm512_set1_epi16(0x7f)), _mm512_set1_epi16(0x80)));
    // Shifts of 16 and more give 0, which is inexact but for zeros; so are subnormal elements.
    const __m512i shift = _mm512_sub_epi16(shift_of_zero_exponent, _mm512_srli_epi16(magnitude, 7));
    const __m512i n = _mm512_srlv_epi16(m, shift);
    inexact |= _mm512_cmpneq_epi16_mask(_mm512_sllv_epi16(n, shift), m);
    const __m512i signed_n = _mm512_mask_sub_epi16(n, _mm512_movepi16_mask(bits), _mm512_setzero_si512(), n);
    const __m256i bytes = _mm512_cvtepi16_epi8(_mm512_add_epi16(signed_n, _mm512_set1_epi16(128)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(numbers + k), bytes);
  }
  return {inexact == 0, exponent};
}

inline float power_of_two(int exponent) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((exponent + 127) << 23)));
}

struct Int8Queries {
  int8_t* numbers;  // [num_heads, head_dim]
  int32_t* start;   // [num_heads]  -128 times the sum of the numbers: takes the offset of the keys out again
  float* weight;    // [num_heads]  w'
};

// False if a row or a weight does not allow it.
inline bool split_queries(const IndexScoresArgs& args, const Int8Queries& q) {
  const int64_t head_dim = args.head_dim;
  for (int64_t h = 0; h < args.num_heads; ++h) {
    int8_t* const numbers = q.numbers + h * head_dim;
    const ExactRow row =
        split_row(static_cast<const uint16_t*>(args.iq) + h * head_dim, head_dim, reinterpret_cast<uint8_t*>(numbers));
    if (!row.exact) return false;
    int32_t sum = 0;
    for (int64_t k = 0; k < head_dim; ++k) {
      numbers[k] = static_cast<int8_t>(reinterpret_cast<uint8_t*>(numbers)[k] - 128);
      sum += numbers[k];
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

template <int NH>
inline void add_int8_heads(const Int8Queries& q, int64_t h, const uint32_t* packed, int64_t head_dim,
                           __m512 (&score)[kInt8Vectors]) {
  __m512i sum[NH][kInt8Vectors];
  for (int i = 0; i < NH; ++i) {
    for (__m512i& s : sum[i]) s = _mm512_set1_epi32(q.start[h + i]);
  }
  const int8_t* const numbers = q.numbers + h * head_dim;
  for (int64_t k = 0; k < head_dim; k += 4) {
    __m512i key[kInt8Vectors];
    for (int v = 0; v < kInt8Vectors; ++v) {
      key[v] = in_register(_mm512_loadu_si512(packed + k / 4 * kIndexPanel + 16 * v));
    }
    for (int i = 0; i < NH; ++i) {
      int32_t four;
      __builtin_memcpy(&four, numbers + i * head_dim + k, sizeof(four));
      const __m512i query = _mm512_set1_epi32(four);
      for (int v = 0; v < kInt8Vectors; ++v) sum[i][v] = add_dot_products(sum[i][v], key[v], query);
    }
  }
  for (int i = 0; i < NH; ++i) {
    for (int v = 0; v < kInt8Vectors; ++v) {
      const __m512i relu = _mm512_max_epi32(sum[i][v], _mm512_setzero_si512());
      score[v] = _mm512_fmadd_ps(_mm512_set1_ps(q.weight[h + i]), _mm512_cvtepi32_ps(relu), score[v]);
    }
  }
}

// Scores of a panel of bf16 rows that starts with entry `begin`; false, with nothing written, if a row is not exact.
inline bool score_int8_panel(const IndexScoresArgs& args, const Int8Queries& q, const Panel<uint16_t>& panel,
                             int64_t begin, PanelFetch<uint16_t>& fetch, uint8_t* numbers, uint32_t* packed) {
  const int64_t head_dim = args.head_dim;
  alignas(64) float scale[kIndexPanel];
  for (int64_t i = 0; i < kIndexPanel; ++i) {
    const ExactRow row = split_row(panel.rows[i], head_dim, numbers + i * head_dim);
    if (!row.exact) return false;
    scale[i] = power_of_two(row.exponent);
  }
  for (int v = 0; v < kInt8Vectors; ++v) {
    transpose_numbers(numbers + v * 16 * head_dim, head_dim, packed + v * 16);
  }
  __m512 score[kInt8Vectors];
  for (__m512& s : score) s = _mm512_setzero_ps();
  int64_t h = 0;
  for (; h + kInt8Heads <= args.num_heads; h += kInt8Heads) {
    fetch.advance();
    add_int8_heads<kInt8Heads>(q, h, packed, head_dim, score);
  }
  for (; h + 2 <= args.num_heads; h += 2) add_int8_heads<2>(q, h, packed, head_dim, score);
  if (h < args.num_heads) add_int8_heads<1>(q, h, packed, head_dim, score);
  for (int v = 0; v < kInt8Vectors; ++v) {
    const __m512 result = _mm512_mul_ps(score[v], _mm512_load_ps(scale + 16 * v));
    const int64_t rest = panel.count - 16 * v;
    if (rest >= 16) {
      store(args.scores + begin + 16 * v, result);
    } else if (rest > 0) {
      store_part(args.scores + begin + 16 * v, result, rest);
    }
  }
  return true;
}

}  // namespace
}  // namespace weft
