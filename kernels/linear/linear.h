// kernels/linear/linear.h
//
// Linear layer on weights in their stored bytes.
//
//   y[m, g*N + n] = sum_k  x'[m, g*K + k] * w[g*N + n, k]          g = 0 .. groups-1 (groups 1: an ordinary linear layer)
//
//   x   [num_rows, groups*K]   F32 or BF16, row stride x_stride elements; the groups of a row may lie apart
//   x'  x as fp32, after act_quant (below)
//   w   [groups*N, K]          WeightMatrix: F32, BF16, F8_E4M3 + block scales, F4_E2M1 + block scales; one fp32 value per
//                              weight, round(q * scale), wherever it is used
//   y   [num_rows, groups*N]   F32 or BF16 (one rounding to nearest even at the end), row stride y_stride elements;
//                              the groups of a row may lie apart; must not alias x, w or scratch
//
// Order of the sum (docs/numerics.md): K is cut into `k_blocks` equal blocks (1 = no cut; K / k_blocks is a multiple of 4).
// Inside a block, 16 partial sums: lane j starts from 0 and takes the block's elements k = j, j+16, j+32, ... in ascending
// order by fused multiply-add; a lane without elements stays 0. Lanes are added in the tree
//   l[j] += l[j+8] (j<8); l[j] += l[j+4] (j<4); l[j] += l[j+2] (j<2); l[0] + l[1].
// Blocks are added by a balanced binary tree in fp32: (b0+b1)+(b2+b3) ... ; k_blocks is a power of two <= 16.
// Every other variant gives exactly these bits, for any number of rows and columns and any place among them,
// and so do both paths (few rows: dot products over the stored rows; many rows: packed tiles and an outer-product
// micro-kernel).
// avx512_bf16 has bits of its own where x is BF16 and w is BF16, or FP8 / FP4 with scales of E8M0 or none (K / k_blocks is a
// multiple of 64, for FP4 of 128; scales go by 32 columns, for FP8 also by a multiple of 64; elsewhere it is avx512_vbmi). Lane j
// takes pairs of features of its block one after the other, of each pair (f, g) first feature g, then f, by fused multiply-add
// with subnormal operands and results taken as 0 (the vdpbf16ps instruction, Intel SDM vol. 2; measured equal on AMD Zen 4).
// Trees as above. The pairs of lane j follow from how codes unpack without being moved, c = 0, 1, ...:
//   BF16 (f, f+1), f = 32*c + 2*j; FP8 (f, f+1), f = 64*c + 16*(j/4) + 2*(j%4), then f+8; FP4 (f, f+4), f = 128*c + 8*j, then f+1 .. f+3
// FP8 with scales of F32 by a multiple of 128 columns (as K / k_blocks is) has them outside: of each 128 features, ascending, one chain p
// of such steps over the codes of w and x' (without act_quant: x and scale 1), pairs (f, f+1); sum = fma(p * scale of w, scale of x', sum).
//
// act_quant kFp8Block128 (deepseek_v4.md 5.3): per row of x and block of 128 along the last axis (the last may be shorter;
// groups are quantised within themselves): a = max(absmax, 1e-4); s = smallest power of two >= fp32(a * fp32(1/448));
// x' = e4m3(clamp(x / s, +-448)) * s. kFp8Block128AnyScale (glm_moe_dsa.md 2.8) is the same with s = fp32(a * fp32(1/448)).
// Activations of int8 (glm_moe_dsa.md 5.4) take I8 weights with one F32 scale per row, sum in int32 and multiply afterwards:
//   v = (float(sum_k xq * q) * scale[n]) * s   for each of the k_blocks, added by the tree of blocks
//   kInt8PerRow  s = absmax of the row / 127, xq = rint(x / s); all 0 where s is 0
//   kInt8Static  s = 1, xq = clamp(rint(x / divisor * factor) + offset, -128, 127); w.bias is added to the sum of the first block
// A row with a NaN gives NaN. All variants give the same bits.
//
// Threads: the pool splits rows, columns and packing work, never the inside of a sum.
#pragma once

#include <cstdint>
#include <span>

#include "base/thread_pool.h"
#include "kernels/variant.h"
#include "tensor/tensor.h"

namespace weft {

// A weight [rows, cols] in stored bytes, row-major, or a view of some rows and columns of one. F4_E2M1: two elements a byte,
// low nibble first; cols, stride and col0 even.
//
// Element (r, k) is data[r * stride + k]; its scale is scale[(r + row0) / block_rows * scale_stride + (k + col0) / block_cols].
// The scales are those of the whole weight, wherever the view begins.
struct WeightMatrix {
  DType dtype = DType::kF32;              // kF32, kBF16, kF8E4M3, kF4E2M1, kI8
  const void* data = nullptr;             // the first element of the view
  int64_t rows = 0, cols = 0;
  const void* scale = nullptr;            // [ceil(rows/block_rows), ceil(cols/block_cols)] of the whole; null: no scale
  DType scale_dtype = DType::kF8E8M0;     // kF8E8M0 or kF32
  int64_t block_rows = 1, block_cols = 1; // weights that share one scale
  int64_t stride = 0;                     // elements from one row of data to the next; 0: cols
  int64_t row0 = 0, col0 = 0;             // where the view begins in the weight of those scales
  int64_t scale_stride = 0;               // scales in a row of theirs; 0: ceil(cols / block_cols)
  const int32_t* bias = nullptr;          // kInt8Static: [rows] of the whole, or null; belongs to column 0
};

// Rows or columns [begin, end) of w, which may itself be a view; nothing is copied. y of the whole is y of its row slices side by
// side, and the sum of the y (F32) of n equal column slices of k_blocks / n blocks each, in the balanced tree of blocks, to
// the bit, if x' of a slice is the slice of x' (act_quant kNone, or blocks of FP8 on slices of whole blocks).
WeightMatrix weight_rows(const WeightMatrix& w, int64_t begin, int64_t end);
WeightMatrix weight_columns(const WeightMatrix& w, int64_t begin, int64_t end);

enum class ActQuant { kNone, kFp8Block128, kFp8Block128AnyScale, kInt8PerRow, kInt8Static };
constexpr bool is_int8(ActQuant quant) { return quant == ActQuant::kInt8PerRow || quant == ActQuant::kInt8Static; }
constexpr bool is_fp8(ActQuant quant) { return quant == ActQuant::kFp8Block128 || quant == ActQuant::kFp8Block128AnyScale; }

struct LinearArgs {
  const void* x = nullptr;
  DType x_dtype = DType::kF32;            // kF32 or kBF16
  int64_t x_stride = 0;
  int64_t x_group_stride = 0;             // elements from one group of a row to the next; 0: K
  int64_t num_rows = 0;
  WeightMatrix w;                         // rows = groups * N, cols = K
  int64_t groups = 1;
  int64_t k_blocks = 1;
  ActQuant act_quant = ActQuant::kNone;
  const float* static_quant = nullptr;    // kInt8Static: divisor, factor, offset
  const float* row_absmax = nullptr;      // kInt8PerRow: [num_rows], where x is a slice of longer rows; null: of x
  void* y = nullptr;
  DType y_dtype = DType::kF32;            // kF32 or kBF16
  int64_t y_stride = 0;
  int64_t y_group_stride = 0;             // likewise; 0: N
  std::byte* scratch = nullptr;           // linear_scratch_bytes(...), 64-byte aligned
};

// Scratch for a call with up to `num_rows` rows. The same for every variant; monotone in num_rows.
int64_t linear_scratch_bytes(int64_t num_rows, int64_t k_total, int64_t n_total, int64_t groups, DType weight_dtype,
                             int num_threads);

using LinearFn = void(const LinearArgs& args, ThreadPool& pool);
std::span<const KernelVariant<LinearFn>> linear_variants();
inline void linear(const LinearArgs& args, Isa isa, ThreadPool& pool) { pick_variant(linear_variants(), isa)(args, pool); }

}  // namespace weft
