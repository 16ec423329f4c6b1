// Sixteen floats: one AVX-512 register or two AVX2 registers, so that a kernel is written once for both.
//
// Included by ISA-specific sources inside an unnamed namespace, after <immintrin.h>; everything is static.
// `count` of masked operations is 1..16: only the first `count` elements are touched.

// GCC 12 takes the deliberately undefined operands inside its own intrinsics for a fault (GCC bug 105593). Stays off to
// the end of the source, since the warning appears where an intrinsic is inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#if defined(__AVX512F__)

using F16 = __m512;
using I16 = __m512i;

static inline __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
static inline F16 f_zero() { return _mm512_setzero_ps(); }
static inline F16 f_set(float x) { return _mm512_set1_ps(x); }
static inline F16 f_load(const float* p) { return _mm512_loadu_ps(p); }
static inline F16 f_load_first(const float* p, int64_t count) { return _mm512_maskz_loadu_ps(first(count), p); }
static inline void f_store(float* p, F16 v) { _mm512_storeu_ps(p, v); }
static inline void f_store_first(float* p, F16 v, int64_t count) { _mm512_mask_storeu_ps(p, first(count), v); }
static inline F16 f_add(F16 a, F16 b) { return _mm512_add_ps(a, b); }
static inline F16 f_sub(F16 a, F16 b) { return _mm512_sub_ps(a, b); }
static inline F16 f_mul(F16 a, F16 b) { return _mm512_mul_ps(a, b); }
static inline F16 f_div(F16 a, F16 b) { return _mm512_div_ps(a, b); }
static inline F16 f_fma(F16 a, F16 b, F16 c) { return _mm512_fmadd_ps(a, b, c); }
// fma in the first `count` elements, c in the others.
static inline F16 f_fma_first(F16 a, F16 b, F16 c, int64_t count) {
  return _mm512_mask3_fmadd_ps(a, b, c, first(count));
}
// The second operand where either is NaN.
static inline F16 f_min(F16 a, F16 b) { return _mm512_min_ps(a, b); }
static inline F16 f_max(F16 a, F16 b) { return _mm512_max_ps(a, b); }
static inline F16 f_rint(F16 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline F16 f_select_nan(F16 test, F16 if_nan, F16 otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(test, test, _CMP_UNORD_Q), otherwise, if_nan);
}
static inline F16 f_select_less(F16 a, F16 b, F16 if_less, F16 otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, if_less);
}
static inline float f_reduce_max(F16 v) { return _mm512_reduce_max_ps(v); }

static inline I16 i_set(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
static inline I16 i_add(I16 a, I16 b) { return _mm512_add_epi32(a, b); }
static inline I16 i_and(I16 a, I16 b) { return _mm512_and_si512(a, b); }
static inline I16 i_or(I16 a, I16 b) { return _mm512_or_si512(a, b); }
template <int kBits>
static inline I16 i_shl(I16 a) {
  return _mm512_slli_epi32(a, kBits);
}
template <int kBits>
static inline I16 i_shr(I16 a) {
  return _mm512_srli_epi32(a, kBits);
}
static inline F16 as_f(I16 a) { return _mm512_castsi512_ps(a); }
static inline I16 as_i(F16 a) { return _mm512_castps_si512(a); }

static inline F16 f_load_bf16(const uint16_t* p) {
  return as_f(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
static inline I16 i_load_i8(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline F16 f_from_i(I16 a) { return _mm512_cvtepi32_ps(a); }
static inline F16 f_load_f16_bits(__m256i halves) { return _mm512_cvtph_ps(halves); }

// Low 16 bits of each element.
static inline void store_low_halves(uint16_t* p, I16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
}

// Dword c (0..3) of the 16 bytes at base + row[r], for 16 rows r: out[c].
__attribute__((always_inline)) static inline void load_transposed(const uint8_t* base, const int64_t* row, I16* out) {
  const auto load = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + row[r])); };
  const auto quad = [&](int q) {
    const __m512i a = _mm512_inserti32x4(_mm512_castsi128_si512(load(q)), load(4 + q), 1);
    return _mm512_inserti32x4(_mm512_inserti32x4(a, load(8 + q), 2), load(12 + q), 3);
  };
  const __m512i q0 = quad(0), q1 = quad(1), q2 = quad(2), q3 = quad(3);
  const __m512i t0 = _mm512_unpacklo_epi32(q0, q1), t1 = _mm512_unpackhi_epi32(q0, q1);
  const __m512i t2 = _mm512_unpacklo_epi32(q2, q3), t3 = _mm512_unpackhi_epi32(q2, q3);
  out[0] = _mm512_unpacklo_epi64(t0, t2);
  out[1] = _mm512_unpackhi_epi64(t0, t2);
  out[2] = _mm512_unpacklo_epi64(t1, t3);
  out[3] = _mm512_unpackhi_epi64(t1, t3);
}

// Adds elements j and j + 8; the eight sums.
static inline __m256 fold_halves(F16 v) {
  return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

#else  // AVX2

struct F16 {
  __m256 lo, hi;
};
struct I16 {
  __m256i lo, hi;
};

static inline __m256i first8(int64_t count) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), index);
}
static inline F16 f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline F16 f_set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline F16 f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline F16 f_load_first(const float* p, int64_t count) {
  return {_mm256_maskload_ps(p, first8(count)), _mm256_maskload_ps(p + 8, first8(count - 8))};
}
static inline void f_store(float* p, F16 v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
static inline void f_store_first(float* p, F16 v, int64_t count) {
  _mm256_maskstore_ps(p, first8(count), v.lo);
  _mm256_maskstore_ps(p + 8, first8(count - 8), v.hi);
}
static inline F16 f_add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline F16 f_sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline F16 f_mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline F16 f_div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline F16 f_fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline F16 f_fma_first(F16 a, F16 b, F16 c, int64_t count) {
  const F16 all = f_fma(a, b, c);
  return {_mm256_blendv_ps(c.lo, all.lo, _mm256_castsi256_ps(first8(count))),
          _mm256_blendv_ps(c.hi, all.hi, _mm256_castsi256_ps(first8(count - 8)))};
}
static inline F16 f_min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline F16 f_max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline F16 f_rint(F16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline F16 f_select_nan(F16 test, F16 if_nan, F16 otherwise) {
  return {_mm256_blendv_ps(otherwise.lo, if_nan.lo, _mm256_cmp_ps(test.lo, test.lo, _CMP_UNORD_Q)),
          _mm256_blendv_ps(otherwise.hi, if_nan.hi, _mm256_cmp_ps(test.hi, test.hi, _CMP_UNORD_Q))};
}
static inline F16 f_select_less(F16 a, F16 b, F16 if_less, F16 otherwise) {
  return {_mm256_blendv_ps(otherwise.lo, if_less.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(otherwise.hi, if_less.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
static inline float f_reduce_max(F16 v) {
  const __m256 m = _mm256_max_ps(v.lo, v.hi);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

static inline I16 i_set(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
static inline I16 i_add(I16 a, I16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static inline I16 i_and(I16 a, I16 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
static inline I16 i_or(I16 a, I16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
template <int kBits>
static inline I16 i_shl(I16 a) {
  return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
}
template <int kBits>
static inline I16 i_shr(I16 a) {
  return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
}
static inline F16 as_f(I16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
static inline I16 as_i(F16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

static inline F16 f_load_bf16(const uint16_t* p) {
  const auto half = [](const uint16_t* q) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  };
  return {half(p), half(p + 8)};
}
static inline I16 i_load_i8(const int8_t* p) {
  const auto half = [](const int8_t* q) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q)));
  };
  return {half(p), half(p + 8)};
}
static inline F16 f_from_i(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static inline F16 f_load_f16_bits(__m256i halves) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

static inline void store_low_halves(uint16_t* p, I16 a) {
  const __m256i mask = _mm256_set1_epi32(0xffff);
  const __m256i both = _mm256_packus_epi32(_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(both, 0xd8));
}

__attribute__((always_inline)) static inline void load_transposed(const uint8_t* base, const int64_t* row, I16* out) {
  const auto load = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(base + row[r])); };
  const auto half = [&](int r0, __m256i* o) {
    const auto quad = [&](int q) {
      return _mm256_inserti128_si256(_mm256_castsi128_si256(load(r0 + q)), load(r0 + 4 + q), 1);
    };
    const __m256i q0 = quad(0), q1 = quad(1), q2 = quad(2), q3 = quad(3);
    const __m256i t0 = _mm256_unpacklo_epi32(q0, q1), t1 = _mm256_unpackhi_epi32(q0, q1);
    const __m256i t2 = _mm256_unpacklo_epi32(q2, q3), t3 = _mm256_unpackhi_epi32(q2, q3);
    o[0] = _mm256_unpacklo_epi64(t0, t2);
    o[1] = _mm256_unpackhi_epi64(t0, t2);
    o[2] = _mm256_unpacklo_epi64(t1, t3);
    o[3] = _mm256_unpackhi_epi64(t1, t3);
  };
  __m256i lo[4], hi[4];
  half(0, lo);
  half(8, hi);
  for (int c = 0; c < 4; ++c) out[c] = {lo[c], hi[c]};
}

static inline __m256 fold_halves(F16 v) { return _mm256_add_ps(v.lo, v.hi); }

#endif

// Rounded to bf16, nearest even; NaN stays NaN (quiet).
static inline I16 bf16_bits(F16 v) {
  const I16 bits = as_i(v);
  const I16 odd = i_and(i_shr<16>(bits), i_set(1));
  const I16 rounded = i_shr<16>(i_add(i_add(bits, i_set(0x7fff)), odd));
  const I16 quiet = i_or(i_shr<16>(bits), i_set(0x40));
  return as_i(f_select_nan(v, as_f(quiet), as_f(rounded)));
}
static inline void f_store_bf16(uint16_t* p, F16 v) { store_low_halves(p, bf16_bits(v)); }
static inline F16 f_abs(F16 v) { return as_f(i_and(as_i(v), i_set(0x7fffffff))); }

// The upper half of the tree of lanes (linear.h): four vectors of eight sums -> their four totals.
static inline __m128 fold_eight(__m256 a, __m256 b, __m256 c, __m256 d) {
  const auto quad = [](__m256 v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); };
  const __m128 qa = quad(a), qb = quad(b), qc = quad(c), qd = quad(d);
  const __m128 ab = _mm_add_ps(_mm_movelh_ps(qa, qb), _mm_movehl_ps(qb, qa));  // a0+a2 a1+a3 b0+b2 b1+b3
  const __m128 cd = _mm_add_ps(_mm_movelh_ps(qc, qd), _mm_movehl_ps(qd, qc));
  return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}
