// kernels/lanes/lanes-inl.h
//
// Sixteen fp32 lanes for SIMD sources: two AVX2 registers, or one of AVX-512, with the same results lane by lane.
// Elements in memory are F32 (float) or BF16 (Bf16, a type of its own: ISA files share no inline functions).
//
// Everything is in an unnamed namespace: each source has its own copy, compiled for its own level.
#pragma once

#include <cstdint>

#include "kernels/vector_math/vector_math-inl.h"

#define WEFT_NAME_INNER(name, isa) name##_##isa
#define WEFT_NAME_OUTER(name, isa) WEFT_NAME_INNER(name, isa)
#define WEFT_NAME(name) WEFT_NAME_OUTER(name, WEFT_ISA)

#pragma GCC diagnostic ignored "-Wunused-function"

namespace weft {
namespace {

constexpr int kLanes = 16;

struct Bf16 {
  uint16_t bits;
};

#ifdef __AVX512F__

using Lanes = __m512;

inline Lanes zero_lanes() { return _mm512_setzero_ps(); }
inline Lanes all(float x) { return _mm512_set1_ps(x); }
inline Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
inline Lanes sub(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
inline Lanes mul(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
[[maybe_unused]] inline Lanes div(Lanes a, Lanes b) { return _mm512_div_ps(a, b); }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
// a * b - c in even lanes, a * b + c in odd ones
inline Lanes fma_sub_add(Lanes a, Lanes b, Lanes c) { return _mm512_fmaddsub_ps(a, b, c); }
inline Lanes min(Lanes a, Lanes b) { return _mm512_min_ps(a, b); }  // a < b ? a : b
inline Lanes max(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }  // a > b ? a : b
inline Lanes bit_and(Lanes a, Lanes b) { return _mm512_and_ps(a, b); }
inline Lanes bit_xor(Lanes a, Lanes b) { return _mm512_xor_ps(a, b); }
inline Lanes bit_or(Lanes a, Lanes b) { return _mm512_or_ps(a, b); }
inline Lanes even_twice(Lanes a) { return _mm512_moveldup_ps(a); }
inline Lanes odd_twice(Lanes a) { return _mm512_movehdup_ps(a); }
inline Lanes swap_1(Lanes a) { return _mm512_permute_ps(a, 0xb1); }        // lane j gets j ^ 1
inline Lanes swap_2(Lanes a) { return _mm512_permute_ps(a, 0x4e); }        // j ^ 2
inline Lanes swap_4(Lanes a) { return _mm512_shuffle_f32x4(a, a, 0xb1); }  // j ^ 4
inline Lanes swap_8(Lanes a) { return _mm512_shuffle_f32x4(a, a, 0x4e); }  // j ^ 8
inline Lanes silu(Lanes x) { return simd_silu(x); }

inline __m256 low_half(Lanes a) { return _mm512_castps512_ps256(a); }
inline __m256 high_half(Lanes a) { return _mm512_extractf32x8_ps(a, 1); }

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

inline __m512i bf16_rounded_bits(Lanes x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
}
inline Lanes round_bf16(Lanes x) {
  return _mm512_castsi512_ps(_mm512_and_si512(bf16_rounded_bits(x), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline __m256i to_bf16_bits(Lanes x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bf16_rounded_bits(x), 16)); }
inline Lanes from_bf16_bits(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline Lanes load(const float* p) { return _mm512_loadu_ps(p); }
inline Lanes load(const Bf16* p) { return from_bf16_bits(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline void store(float* p, Lanes x) { _mm512_storeu_ps(p, x); }
inline void store(Bf16* p, Lanes x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_bits(x)); }

// The first n < 16 lanes; the others load as 0.
inline Lanes load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
inline Lanes load_first(const Bf16* p, int64_t n) {
  return from_bf16_bits(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
inline void store_first(float* p, Lanes x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x); }
inline void store_first(Bf16* p, Lanes x, int64_t n) { _mm256_mask_storeu_epi16(p, first_lanes(n), to_bf16_bits(x)); }

#else

struct Lanes {
  __m256 low, high;
};

inline Lanes zero_lanes() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Lanes all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
[[maybe_unused]] inline Lanes div(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes fma_sub_add(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmaddsub_ps(a.low, b.low, c.low), _mm256_fmaddsub_ps(a.high, b.high, c.high)};
}
inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes bit_and(Lanes a, Lanes b) { return {_mm256_and_ps(a.low, b.low), _mm256_and_ps(a.high, b.high)}; }
inline Lanes bit_xor(Lanes a, Lanes b) { return {_mm256_xor_ps(a.low, b.low), _mm256_xor_ps(a.high, b.high)}; }
inline Lanes bit_or(Lanes a, Lanes b) { return {_mm256_or_ps(a.low, b.low), _mm256_or_ps(a.high, b.high)}; }
inline Lanes even_twice(Lanes a) { return {_mm256_moveldup_ps(a.low), _mm256_moveldup_ps(a.high)}; }
inline Lanes odd_twice(Lanes a) { return {_mm256_movehdup_ps(a.low), _mm256_movehdup_ps(a.high)}; }
inline Lanes swap_1(Lanes a) { return {_mm256_permute_ps(a.low, 0xb1), _mm256_permute_ps(a.high, 0xb1)}; }
inline Lanes swap_2(Lanes a) { return {_mm256_permute_ps(a.low, 0x4e), _mm256_permute_ps(a.high, 0x4e)}; }
inline Lanes swap_4(Lanes a) {
  return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
}
inline Lanes swap_8(Lanes a) { return {a.high, a.low}; }
inline Lanes silu(Lanes x) { return {simd_silu(x.low), simd_silu(x.high)}; }

inline __m256 low_half(Lanes a) { return a.low; }
inline __m256 high_half(Lanes a) { return a.high; }

inline __m256i bf16_rounded_bits(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), _mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline Lanes round_bf16(Lanes x) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  return {_mm256_and_ps(_mm256_castsi256_ps(bf16_rounded_bits(x.low)), mask),
          _mm256_and_ps(_mm256_castsi256_ps(bf16_rounded_bits(x.high)), mask)};
}
inline __m256i to_bf16_bits(Lanes x) {
  const __m256i low = _mm256_srli_epi32(bf16_rounded_bits(x.low), 16);
  const __m256i high = _mm256_srli_epi32(bf16_rounded_bits(x.high), 16);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

inline __m256 from_bf16_bits(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline Lanes load(const Bf16* p) {
  return {from_bf16_bits(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          from_bf16_bits(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store(float* p, Lanes x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline void store(Bf16* p, Lanes x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16_bits(x)); }

template <class T>
inline Lanes load_first(const T* p, int64_t n) {
  alignas(32) T elements[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) elements[i] = p[i];
  return load(elements);
}
template <class T>
inline void store_first(T* p, Lanes x, int64_t n) {
  alignas(32) T elements[kLanes];
  store(elements, x);
  for (int64_t i = 0; i < n; ++i) p[i] = elements[i];
}

#endif

inline Lanes magnitude(Lanes x) { return bit_and(x, all(__builtin_bit_cast(float, 0x7fffffff))); }
inline Lanes sign_bit(Lanes x) { return bit_and(x, all(-0.0f)); }

inline float first_lane(Lanes a) { return _mm256_cvtss_f32(low_half(a)); }

// The tree: l[j] += l[j+8], then 4, 2, 1.
inline float sum_lanes(Lanes a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max_of_lanes(Lanes a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// y[i] = f(i, load) for 16 features at a time: f gets a function that loads the lanes at i of any array, so that the
// same body serves whole vectors and the rest.
struct LoadAll {
  template <class T>
  Lanes operator()(const T* p) const {
    return load(p);
  }
};
struct LoadFirst {
  int64_t n;
  template <class T>
  Lanes operator()(const T* p) const {
    return load_first(p, n);
  }
};
template <class T, class F>
inline void for_lanes(int64_t count, T* y, F f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(y + i, f(i, LoadAll{}));
  if (i < count) store_first(y + i, f(i, LoadFirst{count - i}), count - i);
}

template <class T>
inline void copy_elements(const T* x, T* y, int64_t count) {
  if (x == y || count == 0) return;
  __builtin_memcpy(y, x, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace
}  // namespace weft
