// kernels/vector_math/dot_tile-inl.h
//
// A tile of canonical dot products (dot_f32) for SIMD sources: every row of a with every row of b, bits of dot_f32.
//
//   out[b * out_stride + a] = dot_f32(a_rows[a], b_rows[b], dim)      a < NA <= 4, b < NB <= kDotTileB
//
// dim is a multiple of 16. Each out row gets four floats; those beyond NA are 0. The lanes of the canonical sum are the
// lanes of the vectors, so rows are read as they lie; the tree over the lanes is done for a whole tile at once.
#pragma once

#include "kernels/vector_math/f32_vector-inl.h"

namespace weft {
namespace {

constexpr int kDotTileA = 4;

#ifdef __AVX512F__

constexpr int kDotTileB = 4;

// The sums over the 16 lanes of v[0..15]; v[4 i + c] becomes lane i of 128-bit part c.
[[maybe_unused]] inline __m512 sum_lanes(const __m512 (&v)[16]) {
  __m512 halves[8];  // lanes 0..7 of two products each
  for (int i = 0; i < 8; ++i) {
    const __m512 x = v[2 * i], y = v[2 * i + 1];
    halves[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, x, y), _mm512_shuffle_f32x4(x, y, 0x4e));
  }
  __m512 quarters[4];  // lanes 0..3 of four products each
  for (int i = 0; i < 4; ++i) {
    const __m512 x = halves[2 * i], y = halves[2 * i + 1];
    quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  }
  __m512 eighths[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 x = quarters[2 * i], y = quarters[2 * i + 1];
    eighths[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, x, y), _mm512_shuffle_ps(x, y, 0x4e));
  }
  return _mm512_add_ps(_mm512_shuffle_ps(eighths[0], eighths[1], 0x88),
                       _mm512_shuffle_ps(eighths[0], eighths[1], 0xdd));
}

template <int NA, int NB, class A, class B>
inline void dot_tile(const A* const* a_rows, const B* const* b_rows, int64_t dim, float* out, int64_t out_stride) {
  __m512 acc[16];
  for (int i = 0; i < 16; ++i) acc[i] = _mm512_setzero_ps();
  for (int64_t k = 0; k < dim; k += 16) {
    __m512 a[NA];
    for (int i = 0; i < NA; ++i) a[i] = in_register(load(a_rows[i] + k));
    for (int j = 0; j < NB; ++j) {
      const __m512 b = load(b_rows[j] + k);
      for (int i = 0; i < NA; ++i) acc[4 * i + j] = _mm512_fmadd_ps(a[i], b, acc[4 * i + j]);
    }
  }
  const __m512 sums = sum_lanes(acc);
  _mm_storeu_ps(out, _mm512_castps512_ps128(sums));
  if constexpr (NB > 1) _mm_storeu_ps(out + out_stride, _mm512_extractf32x4_ps(sums, 1));
  if constexpr (NB > 2) _mm_storeu_ps(out + 2 * out_stride, _mm512_extractf32x4_ps(sums, 2));
  if constexpr (NB > 3) _mm_storeu_ps(out + 3 * out_stride, _mm512_extractf32x4_ps(sums, 3));
}

#else

constexpr int kDotTileB = 3;  // 12 sums, 3 vectors of b and one of a fill the 16 registers

// Lanes 0..7 of four products, to their sums.
[[maybe_unused]] inline __m128 sum_lanes(__m256 v0, __m256 v1, __m256 v2, __m256 v3) {
  const __m256 v02 = _mm256_add_ps(_mm256_blend_ps(v0, v2, 0xf0), _mm256_permute2f128_ps(v0, v2, 0x21));
  const __m256 v13 = _mm256_add_ps(_mm256_blend_ps(v1, v3, 0xf0), _mm256_permute2f128_ps(v1, v3, 0x21));
  const __m256 pairs = _mm256_add_ps(_mm256_blend_ps(v02, v13, 0xcc), _mm256_shuffle_ps(v02, v13, 0x4e));
  const __m128 v01 = _mm256_castps256_ps128(pairs), v23 = _mm256_extractf128_ps(pairs, 1);
  return _mm_add_ps(_mm_shuffle_ps(v01, v23, 0x88), _mm_shuffle_ps(v01, v23, 0xdd));
}

// Lanes 0..7 (first = 0) or 8..15 (first = 8) of the canonical sums.
template <int NA, int NB, class A, class B>
inline void dot_half_tile(const A* const* a_rows, const B* const* b_rows, int64_t first, int64_t dim,
                          __m256 (&acc)[NB][4]) {
  __m256 sum[NB][NA];
  for (int j = 0; j < NB; ++j) {
    for (int i = 0; i < NA; ++i) sum[j][i] = _mm256_setzero_ps();
  }
  for (int64_t k = first; k < dim; k += 16) {
    __m256 b[NB];
    for (int j = 0; j < NB; ++j) b[j] = in_register(load(b_rows[j] + k));
    for (int i = 0; i < NA; ++i) {
      const __m256 a = load(a_rows[i] + k);
      for (int j = 0; j < NB; ++j) sum[j][i] = _mm256_fmadd_ps(a, b[j], sum[j][i]);
    }
  }
  for (int j = 0; j < NB; ++j) {
    for (int i = 0; i < 4; ++i) acc[j][i] = i < NA ? sum[j][i < NA ? i : 0] : _mm256_setzero_ps();
  }
}

template <int NA, int NB, class A, class B>
inline void dot_tile(const A* const* a_rows, const B* const* b_rows, int64_t dim, float* out, int64_t out_stride) {
  __m256 low[NB][4], high[NB][4];
  dot_half_tile<NA, NB>(a_rows, b_rows, 0, dim, low);
  dot_half_tile<NA, NB>(a_rows, b_rows, 8, dim, high);
  for (int j = 0; j < NB; ++j) {
    __m256 v[4];
    for (int i = 0; i < 4; ++i) v[i] = _mm256_add_ps(low[j][i], high[j][i]);
    _mm_storeu_ps(out + j * out_stride, sum_lanes(v[0], v[1], v[2], v[3]));
  }
}

#endif

template <int NB, class A, class B>
inline void dot_tile_b(int na, const A* const* a, const B* const* b, int64_t dim, float* out, int64_t out_stride) {
  switch (na) {
    case 1: return dot_tile<1, NB>(a, b, dim, out, out_stride);
    case 2: return dot_tile<2, NB>(a, b, dim, out, out_stride);
    case 3: return dot_tile<3, NB>(a, b, dim, out, out_stride);
    default: return dot_tile<4, NB>(a, b, dim, out, out_stride);
  }
}

// The tile for 1 <= na <= kDotTileA and 1 <= nb <= kDotTileB rows.
template <class A, class B>
inline void dot_tile(int na, int nb, const A* const* a, const B* const* b, int64_t dim, float* out,
                     int64_t out_stride) {
  switch (nb) {
    case 1: return dot_tile_b<1>(na, a, b, dim, out, out_stride);
    case 2: return dot_tile_b<2>(na, a, b, dim, out, out_stride);
#ifdef __AVX512F__
    case 3: return dot_tile_b<3>(na, a, b, dim, out, out_stride);
#endif
    default: return dot_tile_b<kDotTileB>(na, a, b, dim, out, out_stride);
  }
}

}  // namespace
}  // namespace weft
