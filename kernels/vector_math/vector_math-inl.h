// kernels/vector_math/vector_math-inl.h
//
// exp, sigmoid and silu for SIMD sources (compiled with -mavx2 -mfma, or more): the operations of vector_math.cc lane
// by lane, so the same bits. Vectors of 8 lanes in every such source; of 16 lanes in those compiled for AVX-512.
//
// Everything is in an unnamed namespace: each source has its own copy, compiled for its own level.
#pragma once

// GCC 12 takes the deliberately undefined operands inside its own AVX-512 intrinsics for a fault (GCC bug 105593).
// Stays off to the end of the source, since the warning appears where an intrinsic is inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

namespace weft {
namespace {

// The constants of vector_math.cc; the test compares the bits of both.
constexpr float kExpLog2E = 0x1.715476p+0f;
constexpr float kExpLn2Hi = 0x1.62e430p-1f;
constexpr float kExpLn2Lo = -0x1.05c610p-29f;
constexpr float kExpLowest = -87.3f;
constexpr float kExpHighest = 88.7f;
constexpr float kExpC6 = 0x1.6a23d0p-10f;
constexpr float kExpC5 = 0x1.123a20p-7f;
constexpr float kExpC4 = 0x1.5558f2p-5f;
constexpr float kExpC3 = 0x1.555492p-3f;
constexpr float kExpC2 = 0x1.fffffcp-2f;

[[maybe_unused]] inline __m256 simd_exp(__m256 x) {
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kExpLog2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kExpLn2Hi), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kExpLn2Lo), r);
  __m256 p = _mm256_set1_ps(kExpC6);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC5));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kExpC2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  // NaN converts to 0x80000000, which the shift turns into 0: p stays the NaN that it is.
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  __m256 result = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  result = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(kExpLowest), _CMP_LT_OQ), result);
  return _mm256_blendv_ps(result, _mm256_set1_ps(__builtin_inff()),
                          _mm256_cmp_ps(x, _mm256_set1_ps(kExpHighest), _CMP_GT_OQ));
}

[[maybe_unused]] inline __m256 simd_one_plus_exp_neg(__m256 x) {
  return _mm256_add_ps(_mm256_set1_ps(1.0f), simd_exp(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f))));
}
[[maybe_unused]] inline __m256 simd_sigmoid(__m256 x) {
  return _mm256_div_ps(_mm256_set1_ps(1.0f), simd_one_plus_exp_neg(x));
}
[[maybe_unused]] inline __m256 simd_silu(__m256 x) { return _mm256_div_ps(x, simd_one_plus_exp_neg(x)); }

#ifdef __AVX512F__

[[maybe_unused]] inline __m512 simd_exp(__m512 x) {
  const __m512 n =
      _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(kExpLog2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kExpLn2Hi), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kExpLn2Lo), r);
  __m512 p = _mm512_set1_ps(kExpC6);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC5));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kExpC2));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
  const __m512 result = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  const __mmask16 not_low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpLowest), _CMP_NLT_UQ);
  const __mmask16 high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpHighest), _CMP_GT_OQ);
  return _mm512_mask_mov_ps(_mm512_maskz_mov_ps(not_low, result), high, _mm512_set1_ps(__builtin_inff()));
}

[[maybe_unused]] inline __m512 simd_one_plus_exp_neg(__m512 x) {
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  const __m512 minus_x = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), sign));
  return _mm512_add_ps(_mm512_set1_ps(1.0f), simd_exp(minus_x));
}
[[maybe_unused]] inline __m512 simd_sigmoid(__m512 x) {
  return _mm512_div_ps(_mm512_set1_ps(1.0f), simd_one_plus_exp_neg(x));
}
[[maybe_unused]] inline __m512 simd_silu(__m512 x) { return _mm512_div_ps(x, simd_one_plus_exp_neg(x)); }

#endif  // __AVX512F__

}  // namespace
}  // namespace weft
