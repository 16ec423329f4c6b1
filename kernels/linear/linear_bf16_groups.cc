// FP8 weights with fp32 scales in the avx512_bf16 variant of a linear layer: bf16 pairs of codes, scaled by groups of features.
// takes_bf16_pairs() says when it is used.
//
// Columns of w are the lanes of both paths, so that a sum is one chain whatever the number of rows.
//
// Elements (linear_internal.h): the pairs of a group of 128 features, then its scale, and so on. Packed operands have the
// elements of all rows, or columns, in the order of a row.
#include <immintrin.h>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

#include "kernels/linear/vector16-inl.h"
#include "kernels/linear/weight_view-inl.h"

#include "kernels/linear/bf16_formats-inl.h"
#include "kernels/linear/prefetch-inl.h"
#include "kernels/linear/quantise_fp8-inl.h"

constexpr int64_t kPairs = kFp8Block / 2, kElements = kPairs + 1;  // of a group

// ---- Rows

// A group is read before its elements are written, which lie before the end of it.
void convert_row(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out) {
  alignas(64) float value[kFp8Block];
  alignas(64) uint16_t codes[kFp8Block];
  for (int64_t begin = 0; begin < k; begin += kFp8Block, out += kElements) {
    load_row(static_cast<const uint8_t*>(x) + begin * dtype_bits(dtype) / 8, dtype, kFp8Block, value);
    float scale = 1;
    if (act_quant != ActQuant::kNone) {
      scale = fp8_scale(value, kFp8Block, act_quant == ActQuant::kFp8Block128AnyScale);
      for (int64_t i = 0; i < kFp8Block; i += 16) f_store(value + i, fp8_code(f_load(value + i), f_set(scale)));
    }
    for (int64_t i = 0; i < kFp8Block; i += 16) f_store_bf16(codes + i, f_load(value + i));
    __builtin_memcpy(out, codes, sizeof codes);
    out[kPairs] = scale;
  }
}

void pack_rows(const float* x, int64_t x_stride, int64_t rows, const PackLayout& layout, float* packed) {
  constexpr int64_t kRun = 16;  // elements of a row that are read together: a cache line
  for (int64_t s = 0; s < layout.k; s += kRun) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = s; i < at_most(s + kRun, layout.k); ++i) packed[i * rows + r] = x[r * x_stride + i];
    }
  }
}

// ---- Weights

// Sixteen rows of w side by side: columns of y. Beyond the last of them it is repeated.
struct Columns {
  const uint8_t* base;
  int64_t row[16];      // bytes
  const float* scale[16];
  bool one_scale = true;

  Columns(const WeightMatrix& view, int64_t n, int64_t end) : base(static_cast<const uint8_t*>(view.data)) {
    const int64_t row_bytes = row_bytes_of(view);
    int64_t line = -1, next_line = n;  // of scales; the first row that has the next one
    for (int r = 0; r < 16; ++r) {
      const int64_t at = at_most(n + r, end - 1);
      if (at >= next_line) {
        line = (at + view.row0) / view.block_rows;
        next_line = (line + 1) * view.block_rows - view.row0;
      }
      row[r] = at * row_bytes;
      scale[r] = static_cast<const float*>(view.scale) + line * view.scale_stride;
      one_scale = one_scale && scale[r] == scale[0];
    }
  }
  F16 scales(int64_t group) const {
    if (one_scale) return f_set(scale[0][group]);
    alignas(64) float of[16];
    for (int r = 0; r < 16; ++r) of[r] = scale[r][group];
    return f_load(of);
  }
  void prefetch(int64_t k, int64_t rows_ahead) const {
    const int64_t ahead = k + rows_ahead * (row[1] - row[0]);
    for (int r = 0; r < 16; ++r) _mm_prefetch(reinterpret_cast<const char*>(base + row[r] + ahead), _MM_HINT_T1);
  }
  // 64 features from k on: out[f] has features 4 * f .. 4 * f + 3 of the 16 rows, so that decode() makes pairs of them. A cache line of
  // every row is read at once: rows are often a multiple of 2 KiB apart, and then few of their lines stay in the first-level cache.
  __attribute__((always_inline)) void line(int64_t k, I16 (&out)[16]) const {
    // Feature pair h of row 4*q + d at 16*q + 8*h + 2*d.
    const I16 order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    I16 quad[4][4];  // [rows 4*i ..][f % 4]
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      I16 v[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) v[r] = _mm512_loadu_si512(base + row[4 * i + r] + k);
      const I16 t0 = _mm512_unpacklo_epi32(v[0], v[1]), t1 = _mm512_unpackhi_epi32(v[0], v[1]);
      const I16 t2 = _mm512_unpacklo_epi32(v[2], v[3]), t3 = _mm512_unpackhi_epi32(v[2], v[3]);
      quad[i][0] = _mm512_unpacklo_epi64(t0, t2);
      quad[i][1] = _mm512_unpackhi_epi64(t0, t2);
      quad[i][2] = _mm512_unpacklo_epi64(t1, t3);
      quad[i][3] = _mm512_unpackhi_epi64(t1, t3);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const I16 a = _mm512_shuffle_i32x4(quad[0][c], quad[1][c], 0x44), b = _mm512_shuffle_i32x4(quad[2][c], quad[3][c], 0x44);
      const I16 d = _mm512_shuffle_i32x4(quad[0][c], quad[1][c], 0xee), e = _mm512_shuffle_i32x4(quad[2][c], quad[3][c], 0xee);
      out[c] = _mm512_shuffle_epi8(_mm512_shuffle_i32x4(a, b, 0x88), order);
      out[4 + c] = _mm512_shuffle_epi8(_mm512_shuffle_i32x4(a, b, 0xdd), order);
      out[8 + c] = _mm512_shuffle_epi8(_mm512_shuffle_i32x4(d, e, 0x88), order);
      out[12 + c] = _mm512_shuffle_epi8(_mm512_shuffle_i32x4(d, e, 0xdd), order);
    }
  }
};

void pack_weights(const WeightMatrix& w, int64_t row0, int64_t num_rows, int64_t width, const PackLayout& layout, float* panel) {
  const WeightMatrix view = resolved(w);
  const ScaleGroups groups = scale_groups(view);
  const E4m3Registers table(kOne);
  for (int64_t c = 0; c < width && c < num_rows; c += 16) {
    const Columns columns(view, row0 + c, row0 + num_rows);
    float* to = panel + c;
    for (int64_t k = 0; k < w.cols; k += kFp8Block) {
      for (int64_t i = k; i < k + kFp8Block; i += kCacheLine) {
        I16 codes[16];
        columns.prefetch(i, 16);
        columns.line(i, codes);
#pragma GCC unroll 16
        for (int f = 0; f < 16; ++f, to += 2 * width) {
          I16 pairs[2];
          table.decode(codes[f], pairs);
          _mm512_storeu_si512(to, pairs[0]);
          _mm512_storeu_si512(to + width, pairs[1]);
        }
      }
      f_store(to, columns.scales(groups.of(k)));
      to += width;
    }
  }
}

// ---- Outputs

void store_outputs(const Output& out, int64_t m, int64_t n, F16 v, int64_t count) {
  if (out.dtype == DType::kF32) {
    f_store_first(static_cast<float*>(out.y) + m * out.stride + n, v, count);
  } else {
    alignas(64) uint16_t rounded[16];
    f_store_bf16(rounded, v);
    __builtin_memcpy(static_cast<uint16_t*>(out.y) + m * out.stride + n, rounded, static_cast<size_t>(count) * 2);
  }
}

// Sums of kSize vectors of outputs: of a group, of a block of K, of the blocks so far.
template <int kSize>
class Sums {
 public:
  Sums() { clear(block_); }
  void add_group(int i, F16 sum, F16 weight_scales, F16 row_scale) {
    f_store(block_[i], f_fma(f_mul(sum, weight_scales), row_scale, f_load(block_[i])));
  }
  // Blocks are leaves of a binary counter. After the last one, of(i) is the sum of all.
  void end_block(int64_t number, bool last) {
    int level = 0;
    for (; (number >> level & 1) != 0; ++level) {
      for (int i = 0; i < kSize; ++i) f_store(block_[i], f_add(f_load(stack_[level][i]), f_load(block_[i])));
    }
    if (last) return;
    __builtin_memcpy(stack_[level], block_, sizeof block_);
    clear(block_);
  }
  F16 of(int i) const { return f_load(block_[i]); }

 private:
  static void clear(float (&values)[kSize][16]) {
    for (int i = 0; i < kSize; ++i) f_store(values[i], f_zero());
  }
  alignas(64) float block_[kSize][16];
  alignas(64) float stack_[4][kSize][16];
};

// ---- Many rows: packed tiles.

constexpr int kTileRows = 14;  // 28 sums, two weights, one broadcast
constexpr int kTileVectors = 2;

template <int kRows, int kVectors>
void run_tile(const float* rows, const float* panel, int64_t cols, const PackLayout& layout, const Output& out) {
  constexpr int kSize = kRows * kVectors, kWidth = 16 * kVectors;
  Sums<kSize> sums;
  const float *x = rows, *w = panel;
  for (int64_t b = 0; b < layout.k_blocks; ++b) {
    for (int64_t at = 0; at < layout.block; at += kElements) {
      F16 acc[kSize];
#pragma GCC unroll 28
      for (int i = 0; i < kSize; ++i) acc[i] = f_zero();
      for (int64_t p = 0; p < kPairs; ++p, x += kRows, w += kWidth) {
        F16 wv[kVectors];
#pragma GCC unroll 2
        for (int c = 0; c < kVectors; ++c) wv[c] = f_load(w + 16 * c);
#pragma GCC unroll 14
        for (int r = 0; r < kRows; ++r) {
          const F16 xv = f_set(x[r]);
#pragma GCC unroll 2
          for (int c = 0; c < kVectors; ++c) acc[r * kVectors + c] = multiply_add(xv, wv[c], acc[r * kVectors + c]);
        }
      }
#pragma GCC unroll 28
      for (int i = 0; i < kSize; ++i) sums.add_group(i, acc[i], f_load(w + i % kVectors * 16), f_set(x[i / kVectors]));
      x += kRows;
      w += kWidth;
    }
    sums.end_block(b, b + 1 == layout.k_blocks);
  }
  for (int i = 0; i < kSize; ++i) {
    const int64_t n = i % kVectors * 16, count = at_most(16, cols - n);
    if (count > 0) store_outputs(out, i / kVectors, n, sums.of(i), count);
  }
}

using TileFn = void(const float* rows, const float* panel, int64_t cols, const PackLayout& layout, const Output& out);

template <int kVectors, int... kRows>
struct TileTable {
  static constexpr TileFn* run[] = {run_tile<kRows, kVectors>...};
};
template <int kVectors>
using Tiles = TileTable<kVectors, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;

void tile(const float* packed_rows, int64_t rows, const float* panel, int64_t width, int64_t cols, const PackLayout& layout,
          const Output& out) {
  if (width == 16) return Tiles<1>::run[rows - 1](packed_rows, panel, cols, layout, out);
  Tiles<kTileVectors>::run[rows - 1](packed_rows, panel, cols, layout, out);
}

// ---- Few rows: the stored rows of w are turned into columns on the way.

constexpr int64_t kMostRows = 4;
constexpr int kDotVectors = 2;

template <int kRows>
void dot_columns(const WeightMatrix& view, int64_t n, int64_t end, const float* x, int64_t x_stride, int64_t k_blocks,
                 const Output& out, int64_t origin) {
  const ScaleGroups groups = scale_groups(view);
  const E4m3Registers table(kOne);
  const Columns columns[kDotVectors] = {{view, n, end}, {view, at_most(n + 16, end - 1), end}};
  const int64_t block = view.cols / k_blocks;
  Sums<kRows * kDotVectors> sums;
  for (int64_t b = 0; b < k_blocks; ++b) {
    for (int64_t k = b * block; k < (b + 1) * block; k += kFp8Block) {
      const float* elements = x + k / kFp8Block * kElements;
      F16 acc[kDotVectors * kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kDotVectors * kRows; ++i) acc[i] = f_zero();
      for (int64_t i = 0; i < kFp8Block; i += kCacheLine) {
        // Chains of all columns advance together: one by itself would wait for its own sums.
        I16 codes[kDotVectors][16];
#pragma GCC unroll 2
        for (int c = 0; c < kDotVectors; ++c) {
          columns[c].prefetch(k + i, 16 * kDotVectors);
          columns[c].line(k + i, codes[c]);
        }
        for (int f = 0; f < 16; ++f) {
          I16 pairs[kDotVectors][2];
#pragma GCC unroll 2
          for (int c = 0; c < kDotVectors; ++c) table.decode(codes[c][f], pairs[c]);
#pragma GCC unroll 2
          for (int h = 0; h < 2; ++h) {
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
              const F16 xv = f_set(elements[r * x_stride + i / 2 + 2 * f + h]);
#pragma GCC unroll 2
              for (int c = 0; c < kDotVectors; ++c) {
                acc[r * kDotVectors + c] = multiply_add(xv, as_f(pairs[c][h]), acc[r * kDotVectors + c]);
              }
            }
          }
        }
      }
      for (int c = 0; c < kDotVectors; ++c) {
        const F16 scales = columns[c].scales(groups.of(k));
        for (int r = 0; r < kRows; ++r) {
          sums.add_group(r * kDotVectors + c, acc[r * kDotVectors + c], scales, f_set(elements[r * x_stride + kPairs]));
        }
      }
    }
    sums.end_block(b, b + 1 == k_blocks);
  }
  for (int i = 0; i < kDotVectors * kRows; ++i) {
    const int64_t column = n + i % kDotVectors * 16, count = at_most(16, end - column);
    if (count > 0) store_outputs(out, i / kDotVectors, column - origin, sums.of(i), count);
  }
}

void dot(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride, int64_t rows, int64_t k_blocks,
         const Output& out) {
  const WeightMatrix view = resolved(w);
  const auto run = rows == 1 ? dot_columns<1> : rows == 2 ? dot_columns<2> : rows == 3 ? dot_columns<3> : dot_columns<4>;
  for (int64_t n = row0; n < row1; n += 16 * kDotVectors) run(view, n, row1, x, x_stride, k_blocks, out, row0);
}

int64_t max_dot_rows(DType) { return kMostRows; }

}  // namespace

const LinearKernels kLinearKernels_avx512_bf16_groups = {
    .element_features = 2,
    .tile_rows = kTileRows,
    .tile_cols = 16 * kTileVectors,
    .max_dot_rows = max_dot_rows,
    .convert_row = convert_row,
    .dot = dot,
    .pack_rows = pack_rows,
    .pack_weights = pack_weights,
    .tile = tile,
    .group_elements = kElements,
};

}  // namespace weft
