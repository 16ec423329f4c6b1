// Rows of x: conversion to fp32 with activation quantisation, and packing. One source for every instruction set.
#include <immintrin.h>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

#include "kernels/linear/vector16-inl.h"

#include "kernels/linear/quantise_fp8-inl.h"

void quantise_fp8(float* x, int64_t n, bool any_scale) {
  const F16 scale = f_set(fp8_scale(x, n, any_scale));
  for (int64_t i = 0; i < n; i += kVector) {
    const int64_t count = at_most(kVector, n - i);
    f_store_first(x + i, f_mul(fp8_code(f_load_first(x + i, count), scale), scale), count);
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
