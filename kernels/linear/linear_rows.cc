// Rows of x: conversion to fp32 with activation quantisation, and packing. One source for every instruction set.
#include <immintrin.h>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

#include "kernels/linear/vector16-inl.h"

constexpr int64_t kVector = 16;
constexpr int64_t kFp8Block = 128;
constexpr float kFp8MinAbsmax = 1e-4f;
constexpr float kFp8Max = 448.0f;

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

void load_row(const void* x, DType dtype, int64_t k, float* out) {
  int64_t i = 0;
  if (dtype == DType::kF32) {
    const auto* p = static_cast<const float*>(x);
    for (; i < k; i += kVector) {
      const int64_t n = at_most(kVector, k - i);
      f_store_first(out + i, f_load_first(p + i, n), n);
    }
    return;
  }
  const auto* p = static_cast<const uint16_t*>(x);
  for (; i + kVector <= k; i += kVector) f_store(out + i, f_load_bf16(p + i));
  for (; i < k; ++i) out[i] = __builtin_bit_cast(float, static_cast<uint32_t>(p[i]) << 16);
}

// NaN is skipped: the second operand of max is returned where either is NaN.
float absmax(const float* x, int64_t n, float least) {
  F16 m = f_set(least);
  for (int64_t i = 0; i < n; i += kVector) m = f_max(f_abs(f_load_first(x + i, at_most(kVector, n - i))), m);
  return f_reduce_max(m);
}

// Nearest e4m3 value of |v| <= 448, ties to even, as a float.
F16 round_e4m3(F16 v) {
  constexpr uint32_t kHalfUlp = 0x7ffff, kKeep = 0xfff00000;
  const F16 magnitude = f_abs(v);
  const I16 bits = as_i(magnitude);
  const I16 odd = i_and(i_shr<20>(bits), i_set(1));
  const F16 normal = as_f(i_and(i_add(i_add(bits, i_set(kHalfUlp)), odd), i_set(kKeep)));
  // Below 2^-6 the step is 2^-9, the spacing of floats around 1.5 * 2^14.
  const F16 magic = f_set(0x1.8p14f);
  const F16 subnormal = f_sub(f_add(magnitude, magic), magic);
  const F16 rounded = f_select_less(magnitude, f_set(0x1p-6f), subnormal, normal);
  const I16 sign = i_and(as_i(v), i_set(0x80000000u));
  return f_select_nan(v, v, as_f(i_or(as_i(rounded), sign)));
}

void quantise_fp8(float* x, int64_t n, bool any_scale) {
  const float wanted = absmax(x, n, kFp8MinAbsmax) * (1.0f / kFp8Max);
  const uint32_t bits = __builtin_bit_cast(uint32_t, wanted);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  const F16 scale = f_set(any_scale ? wanted : __builtin_bit_cast(float, exponent << 23));
  for (int64_t i = 0; i < n; i += kVector) {
    const int64_t count = at_most(kVector, n - i);
    const F16 v = f_div(f_load_first(x + i, count), scale);
    const F16 clamped = f_max(f_set(-kFp8Max), f_min(f_set(kFp8Max), v));
    f_store_first(x + i, f_mul(round_e4m3(clamped), scale), count);
  }
}

}  // namespace

void WEFT_ISA_NAME(linear_convert_row)(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out);
void WEFT_ISA_NAME(linear_convert_row)(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out) {
  load_row(x, dtype, k, out);
  if (act_quant != ActQuant::kFp8Block128 && act_quant != ActQuant::kFp8Block128AnyScale) return;
  const bool any_scale = act_quant == ActQuant::kFp8Block128AnyScale;
  for (int64_t begin = 0; begin < k; begin += kFp8Block) quantise_fp8(out + begin, at_most(kFp8Block, k - begin), any_scale);
}

void WEFT_ISA_NAME(linear_pack_rows)(const float* x, int64_t x_stride, int64_t rows, const PackLayout& layout,
                                     float* packed);
void WEFT_ISA_NAME(linear_pack_rows)(const float* x, int64_t x_stride, int64_t rows, const PackLayout& layout,
                                     float* packed) {
  constexpr int kVisit[kLanes] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};  // its own inverse
  int64_t row[kVector];  // bytes; rows beyond the last repeat it
  for (int64_t r = 0; r < kVector; ++r) row[r] = at_most(r, rows - 1) * x_stride * 4;
  const auto* bytes = reinterpret_cast<const uint8_t*>(x);
  for (int64_t b = 0; b < layout.k_blocks; ++b) {
    for (int64_t k = 0; k < layout.block; k += 4) {  // blocks are multiples of 4
      I16 column[4];
      load_transposed(bytes + (b * layout.block + k) * 4, row, column);
      for (int64_t c = 0; c < 4; ++c) {
        const int64_t visit = kVisit[(k + c) % kLanes], step = (k + c) / kLanes;
        float* p = packed + ((b * kLanes + visit) * layout.lane_steps + step) * rows;
        f_store_first(p, as_f(column[c]), rows);
      }
    }
  }
}

}  // namespace weft
