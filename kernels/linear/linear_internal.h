// kernels/linear/linear_internal.h
//
// The parts of a linear layer that kernels/experts shares: one table of functions per instruction set, and the layout of
// packed operands. Included by ISA-specific sources, so it has declarations only.
//
// Packed operands (many rows). K is stored by (block, visit, step): lane j of a block holds k = block_begin + j + 16 * step;
// lanes are visited in bit-reversed order 0 8 4 12 2 10 6 14 1 9 5 13 3 11 7 15, so that the tree of lanes is a binary
// counter: after visit v, as many finished partial tiles are added as v has trailing one bits. The blocks of K continue
// the same counter. Element (block, visit, step, c) of an operand of width W (rows of x, or columns of y) lies at
//   ((block * 16 + visit) * lane_steps + step) * W + c.
//
// Elements: a float each (f32 kernels), or a pair of features as bf16, the first in the low half (avx512_bf16, whose K, layouts
// and row strides count pairs; their order is that of pair_of()). Both take 32 bits, so rows are packed alike.
// Elements and packed operands of their own have activations of int8 (linear_int8.cc; a row of them ends with its scale) and groups
// of features with a scale (linear_bf16_groups.cc).
#pragma once

#include <cstdint>

#include "kernels/linear/linear.h"

namespace weft {

constexpr int64_t kLanes = 16;
constexpr int64_t kMostDotRows = 16;
constexpr int64_t kScaledGroup = 128;  // features of a group with a scale: a block of activation quantisation

struct PackLayout {
  int64_t k = 0, k_blocks = 1, block = 0;  // block = k / k_blocks
  int64_t lane_steps = 0;                  // one more than needed: lanes must not start a power of two apart (cache sets)
  int64_t more_steps = 0;                  // int8, groups: K elements in their order, and what stands behind them
  int64_t steps() const { return k_blocks * kLanes * lane_steps + more_steps; }
};
PackLayout pack_layout(int64_t k, int64_t k_blocks);

// Rows of y to be written: element (m, n) at y[m * stride + n].
struct Output {
  void* y = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;
};

// How a row becomes int8.
struct RowQuant {
  const float* input = nullptr;   // kInt8Static: divisor, factor, offset
  const float* absmax = nullptr;  // of a longer row
};

struct LinearKernels {
  int64_t element_features;  // 1; 2: pairs of bf16; of int8: 4, or 2 as int16
  int64_t tile_rows;  // largest number of rows of a tile
  int64_t tile_cols;  // columns of a wide panel; a narrow one has 16

  // Up to this many rows dot products are the faster path; at most kMostDotRows.
  int64_t (*max_dot_rows)(DType weight_dtype);

  // out[e] = element e of x', for one row of `k` features. x and out may be the same F32 row.
  void (*convert_row)(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out);

  // y[m, n - row0] = dot(x[m], w[n]) for n in [row0, row1), m in [0, rows); rows of elements with row stride x_stride.
  void (*dot)(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride, int64_t rows,
              int64_t k_blocks, const Output& out);

  // Rows of elements (row stride x_stride, rows <= tile_rows) -> packed operand of width `rows`.
  void (*pack_rows)(const float* x, int64_t x_stride, int64_t rows, const PackLayout& layout, float* packed);

  // Rows [row0, row0 + num_rows) of w -> packed operand of width `width` (16 or tile_cols >= num_rows); columns beyond
  // num_rows hold anything.
  void (*pack_weights)(const WeightMatrix& w, int64_t row0, int64_t num_rows, int64_t width, const PackLayout& layout,
                       float* panel);

  // y[0..rows, 0..cols) from both packed operands; panel width `width`, cols <= width.
  void (*tile)(const float* packed_rows, int64_t rows, const float* panel, int64_t width, int64_t cols,
               const PackLayout& layout, const Output& out);

  const LinearKernels* int8 = nullptr;  // of the same level, for activations of int8
  // Of those kernels, instead of convert_row; out may be an F32 row of x.
  void (*quantise_row)(const void* x, DType dtype, int64_t k, const RowQuant& quant, float* out) = nullptr;
  int64_t group_elements = 0;  // of a group of features, its scale being the last; 0: no groups
};

// The kernels for a call, the elements of one row, and the layout of packed operands.
inline const LinearKernels& kernels_for(const LinearKernels& usual, ActQuant act_quant) {
  return is_int8(act_quant) ? *usual.int8 : usual;
}
inline int64_t elements_of_row(const LinearKernels& kernels, int64_t k) {
  if (kernels.group_elements > 0) return k / kScaledGroup * kernels.group_elements;
  return k / kernels.element_features + (kernels.quantise_row != nullptr ? 1 : 0);
}
PackLayout pack_layout(const LinearKernels& kernels, int64_t k, int64_t k_blocks);

extern const LinearKernels kLinearKernels_avx2;
extern const LinearKernels kLinearKernels_avx512;
extern const LinearKernels kLinearKernels_avx512_vbmi;
extern const LinearKernels kLinearKernels_avx512_bf16;      // BF16 weights
extern const LinearKernels kLinearKernels_avx512_bf16_fp8;  // the same, but for the order of pairs
extern const LinearKernels kLinearKernels_avx512_bf16_fp4;
extern const LinearKernels kLinearKernels_avx512_bf16_groups;

// Weights that activations of int8 can be multiplied with: numbers with a scale for each row.
bool takes_int8(const WeightMatrix& w);

// What dot products of bf16 pairs can compute: rows of x whose elements are bf16 values, weights whose fp32 values are bf16
// values too (but for subnormals, which the instruction takes as 0), K in whole vectors. Or both are so but for a scale that whole
// groups of features share (kGroups). Depends on no count of rows.
enum class Bf16Pairs { kNone, kValues, kGroups };
Bf16Pairs bf16_pairs(const WeightMatrix& w, DType x_dtype, ActQuant act_quant, int64_t k_blocks);
inline bool takes_bf16_pairs(const WeightMatrix& w, DType x_dtype, ActQuant act_quant, int64_t k_blocks) {
  return bf16_pairs(w, x_dtype, act_quant, k_blocks) != Bf16Pairs::kNone;
}
const LinearKernels& bf16_kernels(Bf16Pairs pairs, DType weight_dtype);  // kNone: those of avx512_vbmi

// Features of the pair that lane `lane` takes in step `step` of a block of K (linear.h).
struct FeaturePair {
  int64_t first, second;
};
FeaturePair pair_of(DType weight_dtype, int64_t lane, int64_t step);
// Plain code of linear_int8_ref.cc. quantise_row_ref returns the row's scale.
float quantise_row_ref(const void* x, DType dtype, int64_t k, const RowQuant& quant, int8_t* out);
float dot_int8_ref(const WeightMatrix& w, int64_t row, const int8_t* x, float x_scale, int64_t k_blocks);
RowQuant row_quant(const LinearArgs& args, int64_t row);

// Plain code of linear_ref.cc.
float weight_value(const WeightMatrix& w, int64_t row, int64_t k);
void convert_row_ref(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out);
// Of groups: k codes, then a scale for each group.
void convert_groups_ref(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out);
inline int64_t row_floats_ref(int64_t k) { return k + k / kScaledGroup; }  // room for either
using DotRef = float(const WeightMatrix& w, int64_t row, const float* x, int64_t k_blocks);
DotRef dot_ref;
void linear_ref(const LinearArgs& args, ThreadPool& pool);
// The arithmetic of avx512_bf16 (linear.h) in plain code; x holds bf16 values.
DotRef dot_bf16_ref;
DotRef dot_groups_ref;
void linear_bf16_ref(const LinearArgs& args, ThreadPool& pool);
// What goes with each.
struct RowsRef {
  void (*convert)(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out);
  DotRef* dot;
};
RowsRef rows_ref(Bf16Pairs pairs);

// Where element k = 0 of a group of a row of x, and where y of weight row n, lie in elements.
inline int64_t x_element(const LinearArgs& args, int64_t m, int64_t group) {
  return m * args.x_stride + group * (args.x_group_stride != 0 ? args.x_group_stride : args.w.cols);
}
inline int64_t y_element(const LinearArgs& args, int64_t m, int64_t n) {
  const int64_t cols = args.w.rows / args.groups, apart = args.y_group_stride != 0 ? args.y_group_stride - cols : 0;
  return m * args.y_stride + n + n / cols * apart;
}

// Drivers of linear.cc; kernels are those of the level, whatever the activations.
void linear_with(const LinearKernels& kernels, const LinearArgs& args, ThreadPool& pool);

// Tiles of at most `max_tile` rows, as even as possible: tile i of count covers [begin, begin + size).
struct RowTiles {
  int64_t rows = 0, count = 0;
  int64_t begin(int64_t i) const { return i * rows / count; }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
};
RowTiles row_tiles(int64_t rows, int64_t max_tile);

// Columns of a panel: as many as keep a panel of all of K in the second-level cache.
int64_t panel_width(const LinearKernels& kernels, const PackLayout& layout, int64_t num_cols);

}  // namespace weft
