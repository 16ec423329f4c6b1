// kernels/vector_math/f32_vector-inl.h
//
// One spelling of the fp32 vector operations for sources that are compiled once per level: 16 lanes where AVX-512 is
// on, else 8 lanes (AVX2 + FMA). Loads and stores need no alignment. Keys and activations in BF16 are `uint16_t` here.
//
// Everything is in an unnamed namespace: each source has its own copy, compiled for its own level.
#pragma once

#include "kernels/vector_math/vector_math-inl.h"

#include <cstdint>

// WEFT_NAME(f) is f_avx2, f_avx512: the entry point of a source for the level that it is compiled for.
#define WEFT_NAME_INNER(name, isa) name##_##isa
#define WEFT_NAME_OUTER(name, isa) WEFT_NAME_INNER(name, isa)
#define WEFT_NAME(name) WEFT_NAME_OUTER(name, WEFT_ISA)

namespace weft {
namespace {

#ifdef __AVX512F__

using Vector = __m512;
constexpr int64_t kLanes = 16;

[[maybe_unused]] inline Vector zero() { return _mm512_setzero_ps(); }
[[maybe_unused]] inline Vector set1(float x) { return _mm512_set1_ps(x); }
[[maybe_unused]] inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
[[maybe_unused]] inline Vector load(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
[[maybe_unused]] inline void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
[[maybe_unused]] inline Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
[[maybe_unused]] inline Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
[[maybe_unused]] inline Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
[[maybe_unused]] inline Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
[[maybe_unused]] inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
// a > b ? a : b, so b where one is NaN.
[[maybe_unused]] inline Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }

// The nearest bf16 value (ties to even) in the upper half of each lane, zeros below; NaN stays NaN.
[[maybe_unused]] inline __m512i round_bf16_bits(Vector v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_and_si512(_mm512_mask_mov_epi32(rounded, nan, quiet), _mm512_set1_epi32(-0x10000));
}
[[maybe_unused]] inline Vector round_bf16(Vector v) { return _mm512_castsi512_ps(round_bf16_bits(v)); }
[[maybe_unused]] inline void store(uint16_t* p, Vector v) {
  const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_bf16_bits(v), 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
}

// Makes a loaded value stay in its register: GCC else repeats the load as operand of each fma, and the loads, not the
// multiply-adds, become the limit.
[[maybe_unused]] inline Vector in_register(Vector v) {
  asm("" : "+v"(v));
  return v;
}

// The first `count` lanes only, 0 < count < kLanes; the others load as 0.
[[maybe_unused]] inline Vector load_part(const float* p, int64_t count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
}
[[maybe_unused]] inline void store_part(float* p, Vector v, int64_t count) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), v);
}

#ifdef __AVX512BF16__

// Pairs of bf16 values in each lane: _mm512_dpbf16_ps in place, since GCC 12 copies the accumulators of a loop around it.
[[maybe_unused]] inline Vector add_pairs(Vector a, Vector b, Vector sum) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
[[maybe_unused]] inline uint32_t pair_at(const uint16_t* p) {
  uint32_t pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return pair;
}
[[maybe_unused]] inline Vector set1_pair(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int32_t>(pair_at(p))));
}

#endif

#else

using Vector = __m256;
constexpr int64_t kLanes = 8;

[[maybe_unused]] inline Vector zero() { return _mm256_setzero_ps(); }
[[maybe_unused]] inline Vector set1(float x) { return _mm256_set1_ps(x); }
[[maybe_unused]] inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
[[maybe_unused]] inline Vector load(const uint16_t* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
[[maybe_unused]] inline void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
[[maybe_unused]] inline Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
[[maybe_unused]] inline Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
[[maybe_unused]] inline Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
[[maybe_unused]] inline Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
[[maybe_unused]] inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
[[maybe_unused]] inline Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }

[[maybe_unused]] inline __m256i round_bf16_bits(Vector v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
  return _mm256_and_si256(_mm256_castps_si256(chosen), _mm256_set1_epi32(-0x10000));
}
[[maybe_unused]] inline Vector round_bf16(Vector v) { return _mm256_castsi256_ps(round_bf16_bits(v)); }
[[maybe_unused]] inline void store(uint16_t* p, Vector v) {
  const __m256i half = _mm256_srli_epi32(round_bf16_bits(v), 16);
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

[[maybe_unused]] inline Vector in_register(Vector v) {
  asm("" : "+x"(v));
  return v;
}

[[maybe_unused]] inline __m256i first_lanes(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
[[maybe_unused]] inline Vector load_part(const float* p, int64_t count) {
  return _mm256_maskload_ps(p, first_lanes(count));
}
[[maybe_unused]] inline void store_part(float* p, Vector v, int64_t count) {
  _mm256_maskstore_ps(p, first_lanes(count), v);
}

#endif

}  // namespace
}  // namespace weft
