// Compiled once per level.
#include <immintrin.h>

#include "kernels/machine_bench/machine_loops.h"

#define WEFT_NAME_INNER(name, isa) name##_##isa
#define WEFT_NAME_OUTER(name, isa) WEFT_NAME_INNER(name, isa)
#define WEFT_NAME(name) WEFT_NAME_OUTER(name, WEFT_ISA)

namespace weft {
namespace {

// Enough to fill two units of latency 4 or 5.
constexpr int kChains = 12;

#ifdef __AVX512F__
using Floats = __m512;
constexpr int kFloats = 16;
inline Floats set(float x) { return _mm512_set1_ps(x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
using Ints = __m512i;
inline Ints set_int(int x) { return _mm512_set1_epi32(x); }
inline Ints load_ints(const char* p) { return _mm512_loadu_si512(p); }
inline Ints bit_xor(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
inline void store_ints(uint64_t* p, Ints x) { _mm512_storeu_si512(p, x); }
#else
using Floats = __m256;
constexpr int kFloats = 8;
inline Floats set(float x) { return _mm256_set1_ps(x); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
using Ints = __m256i;
inline Ints set_int(int x) { return _mm256_set1_epi32(x); }
inline Ints load_ints(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Ints bit_xor(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
inline void store_ints(uint64_t* p, Ints x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
#endif

// Chains that the compiler must keep apart and in registers; sink gets something that depends on all of them.
template <class Vector, class Step>
inline void run_chains(int64_t iterations, Vector start, float* sink, Step step) {
  Vector chain[kChains];
  for (int c = 0; c < kChains; ++c) {
    chain[c] = start;
    asm volatile("" : "+x"(chain[c]));
  }
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) chain[c] = step(chain[c]);
  }
  float values[kFloats];
  for (int c = 0; c < kChains; ++c) {
    static_assert(sizeof(values) == sizeof(Vector));
    __builtin_memcpy(values, &chain[c], sizeof(values));
    sink[0] += values[0];
  }
}

double f32_fma(int64_t iterations, float* sink) {
  const Floats a = set(0.999f), b = set(0.001f);
  run_chains(iterations, set(1.0f), sink, [&](Floats x) { return fma(x, a, b); });
  return 2.0 * kFloats * kChains * static_cast<double>(iterations);
}

#if defined(__AVX512VNNI__)
double int8_dot(int64_t iterations, float* sink) {
  const Ints a = set_int(0x01010101), b = set_int(0x00010001);
  run_chains(iterations, set_int(0), sink, [&](Ints x) { return _mm512_dpbusd_epi32(x, a, b); });
  return 2.0 * 64 * kChains * static_cast<double>(iterations);
}
#elif !defined(__AVX512F__)
double int8_dot(int64_t iterations, float* sink) {
  const Ints a = set_int(0x01010101), b = set_int(0x00010001), ones = _mm256_set1_epi16(1);
  run_chains(iterations, set_int(0), sink, [&](Ints x) {
    Ints factor = a;
    asm volatile("" : "+x"(factor));  // or the products would be computed once
    return _mm256_add_epi32(x, _mm256_madd_epi16(_mm256_maddubs_epi16(factor, b), ones));
  });
  return 2.0 * 32 * kChains * static_cast<double>(iterations);
}
#endif

#if defined(__AVX512BF16__)
double bf16_dot(int64_t iterations, float* sink) {
  const Ints ones = set_int(0x3f803f80);
  __m512bh a;
  __builtin_memcpy(&a, &ones, sizeof(a));
  run_chains(iterations, set(1.0f), sink, [&](Floats x) { return _mm512_dpbf16_ps(x, a, a); });
  return 2.0 * 32 * kChains * static_cast<double>(iterations);
}
#endif

uint64_t read(const void* data, int64_t bytes) {
  constexpr int kLoads = 8;
  const char* p = static_cast<const char*>(data);
  Ints sum[kLoads];
  for (Ints& s : sum) s = set_int(0);
  for (int64_t i = 0; i < bytes; i += kLoads * static_cast<int64_t>(sizeof(Ints))) {
#pragma GCC unroll 8
    for (int j = 0; j < kLoads; ++j)
      sum[j] = bit_xor(sum[j], load_ints(p + i + j * static_cast<int64_t>(sizeof(Ints))));
  }
  uint64_t words[sizeof(Ints) / 8], result = 0;
  for (const Ints& s : sum) {
    store_ints(words, s);
    for (const uint64_t word : words) result ^= word;
  }
  return result;
}

}  // namespace

MachineLoops WEFT_NAME(machine_loops)() {
  MachineLoops loops;
  loops.f32_fma = f32_fma;
  loops.read = read;
#if defined(__AVX512VNNI__) || !defined(__AVX512F__)
  loops.int8_dot = int8_dot;
#endif
#if defined(__AVX512BF16__)
  loops.bf16_dot = bf16_dot;
#endif
  return loops;
}

}  // namespace weft
