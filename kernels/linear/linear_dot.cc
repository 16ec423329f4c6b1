// Few rows: dot products over the stored rows of w, lanes along K. One source for every instruction set.
//
// A block of output rows (kRows) and of input rows (kCols) is computed at once: enough independent chains of fused
// multiply-adds to hide their latency. While a block is computed, the next one is prefetched (prefetch-inl.h).
#include <immintrin.h>

#include <type_traits>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

#include "kernels/linear/vector16-inl.h"
#include "kernels/linear/weight_view-inl.h"

#include "kernels/linear/dot_sums-inl.h"
#include "kernels/linear/formats-inl.h"
#include "kernels/linear/prefetch-inl.h"

// Output rows at once. Accumulators and decoded weights must fit the registers: 32 of AVX-512, 8 pairs of AVX2.
template <class Format, int kCols>
constexpr int block_rows() {
#if defined(__AVX512F__)
  return 4;
#else
  return kCols == 1 ? 4 : kCols == 2 ? 2 : 1;
#endif
}

struct Job {
  const WeightMatrix* w;
  const float* x;
  int64_t x_stride, k_blocks, row_bytes;
};

// kRows rows of w times kCols rows of x.
template <class Format, class Scales, int kCols>
struct DotBlock {
  static constexpr int kRows = block_rows<Format, kCols>();
  static constexpr int kSums = kRows * kCols;
  static constexpr int kUnit = Format::kUnit;
  using Scale = typename Format::Scale;

  const WeightMatrix* w;
  int64_t number[kRows];  // of the rows of w
  const uint8_t* row[kRows];
  const float* x[kCols];
  Scales scales[kRows];
  const uint8_t* data_end;  // of the last row of w
  int64_t row_bytes;

  static int64_t bytes_of(int64_t k) { return Format::kBits < 8 ? k >> 1 : k * (Format::kBits / 8); }

  DotBlock(const Job& job, int64_t row0, const float* x0) : w(job.w), row_bytes(job.row_bytes) {
    for (int r = 0; r < kRows; ++r) {
      number[r] = at_most(row0 + r, w->rows - 1);
      row[r] = static_cast<const uint8_t*>(w->data) + number[r] * job.row_bytes;
      scales[r] = Scales(*w, number[r]);
    }
    for (int m = 0; m < kCols; ++m) x[m] = x0 + m * job.x_stride;
    data_end = static_cast<const uint8_t*>(w->data) + (w->rows - 1) * job.row_bytes + bytes_of(w->cols);
  }

  // The elements [k, stop) of one scale group that whole units do not cover; `end` is that of the block of K.
  __attribute__((noinline)) int64_t finish_group(int64_t k, int64_t stop, int64_t end, int64_t g, F16* acc) const {
    while (k < stop) {
      const int64_t count = at_most(kChunk, end - k);
      F16 value[kRows];
      if (k + count > stop) {  // elements of several scales
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          alignas(64) float plain[kChunk] = {};
          for (int64_t i = 0; i < count; ++i) plain[i] = weight_value(*w, number[r], k + i);
          value[r] = f_load(plain);
        }
      } else if (row[kRows - 1] + bytes_of(k + kChunk) <= data_end) {
        bool hard = false;  // reported by accumulate(), which has prepared the same scales
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          value[r] = Format::decode_one(row[r] + bytes_of(k), prepare_scale<Format>(scales[r], g, hard));
        }
      } else {  // the last elements of w: nothing beyond may be read
        bool hard = false;
        for (int r = 0; r < kRows; ++r) {
          alignas(64) uint8_t copy[kChunk * 4] = {};
          __builtin_memcpy(copy, row[r] + bytes_of(k), static_cast<size_t>(bytes_of(count)));
          value[r] = Format::decode_one(copy, prepare_scale<Format>(scales[r], g, hard));
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < kCols; ++m) {
        const F16 xv = f_load_first(x[m] + k, count);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          F16& sum = acc[r * kCols + m];
          sum = count == kChunk ? f_fma(value[r], xv, sum) : f_fma_first(value[r], xv, sum, count);
        }
      }
      k += count;
    }
    return k;
  }

  // acc += kUnit vectors from element k on.
  __attribute__((always_inline)) inline void add_unit(int64_t k, const Scale (&scale)[kRows], Ahead& next,
                                                      F16 (&acc)[kSums]) const {
    constexpr int64_t kUnitBytes = kUnit * kChunk * Format::kBits / 8;
    const int64_t offset = bytes_of(k);
    if (kUnitBytes >= kCacheLine || (offset & (kCacheLine - 1)) < kUnitBytes) next.template lines<kRows>();
    typename Format::Unit unit[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) unit[r] = Format::load(row[r] + offset);
#pragma GCC unroll 4
    for (int u = 0; u < kUnit; ++u) {
      F16 value[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) value[r] = Format::expand(unit[r], u, scale[r]);
#pragma GCC unroll 4
      for (int m = 0; m < kCols; ++m) {
        const F16 xv = f_load(x[m] + k + u * kChunk);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) acc[r * kCols + m] = f_fma(value[r], xv, acc[r * kCols + m]);
      }
    }
  }

  __attribute__((always_inline)) inline void add_chunk(int64_t k, const Scale (&scale)[kRows],
                                                       F16 (&acc)[kSums]) const {
    F16 value[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) value[r] = Format::decode_one(row[r] + bytes_of(k), scale[r]);
#pragma GCC unroll 4
    for (int m = 0; m < kCols; ++m) {
      const F16 xv = f_load(x[m] + k);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[r * kCols + m] = f_fma(value[r], xv, acc[r * kCols + m]);
    }
  }

  // The scale group that the next element belongs to.
  struct Position {
    int64_t group, g, group_end;
  };

  // sums += elements [begin, end) of a block of K. Returns true if a scale is hard.
  __attribute__((always_inline)) inline bool accumulate(int64_t begin, int64_t end, Position& at, Ahead& next,
                                                        F16* sums) const {
    const int64_t group = at.group;
    bool hard = false;
    F16 acc[kSums];
    Scale scale[kRows];
    int64_t k = begin, g = at.g, group_end = at.group_end;
    const auto load_scales = [&] {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) scale[r] = prepare_scale<Format>(scales[r], g, hard);
    };
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) acc[i] = sums[i];
    if (group == kUnit * kChunk && k + group == group_end) {  // short groups: a loop without an inner one
      for (; k + kUnit * kChunk <= end; k += kUnit * kChunk, ++g) {
        load_scales();
        add_unit(k, scale, next, acc);
      }
      group_end = k + group;
    }
    while (k < end) {
      load_scales();
      const int64_t stop = at_most(end, group_end);
      for (; k + kUnit * kChunk <= stop; k += kUnit * kChunk) add_unit(k, scale, next, acc);
      if constexpr (kUnit > 1) {
        for (; k + kChunk <= stop; k += kChunk) add_chunk(k, scale, acc);
      }
      if (k < stop) {
#pragma GCC unroll 16
        for (int i = 0; i < kSums; ++i) sums[i] = acc[i];
        k = finish_group(k, stop, end, g, sums);
#pragma GCC unroll 16
        for (int i = 0; i < kSums; ++i) acc[i] = sums[i];
      }
      while (group_end <= k) {  // more than once if a vector crossed into the next group
        ++g;
        group_end += group;
      }
    }
    at.g = g;
    at.group_end = group_end;
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = acc[i];
    return hard;
  }

  // out[r * kCols + m]. Returns false if a row is hard.
  bool run(int64_t k_blocks, float* out) const {
    const int64_t block = w->cols / k_blocks;
    bool hard = false;
    BlockSums<kSums> tree;
    F16 sums[kSums];
    const ScaleGroups groups = scale_groups(*w);
    Position at{groups.columns, 0, groups.end(0)};
    Ahead next(row[0], row_bytes, is_contiguous(*w), kRows);
    for (int64_t b = 0; b < k_blocks; ++b) {
      for (int i = 0; i < kSums; ++i) sums[i] = f_zero();
      hard |= accumulate(b * block, (b + 1) * block, at, next, sums);
      tree.add(b, b + 1 == k_blocks, sums, out);
    }
    for (int r = 0; r < kRows; ++r) hard |= Format::is_hard(row[r], w->cols);
    return !hard;
  }
};

template <class Format, class Scales, int kCols>
void dot_columns(const Job& job, int64_t row0, int64_t row1, int64_t m0, const Output& out, int64_t origin) {
  using Block = DotBlock<Format, Scales, kCols>;
  const float* x = job.x + m0 * job.x_stride;
  for (int64_t row = row0; row < row1; row += Block::kRows) {
    alignas(64) float sum[BlockSums<Block::kSums>::kFloats];
    const bool exact = Block(job, row, x).run(job.k_blocks, sum);
    const int64_t rows = at_most(Block::kRows, row1 - row);
    for (int64_t r = 0; r < rows; ++r) {
      for (int m = 0; m < kCols; ++m) {
        const float value = exact ? sum[r * kCols + m] : dot_ref(*job.w, row + r, x + m * job.x_stride, job.k_blocks);
        put(out, m0 + m, row + r - origin, value);
      }
    }
  }
}

// out = x * scale, where scale is a power of two. False if a product is not exact.
bool scale_exactly(const float* x, float scale, int64_t n, float* out) {
  const F16 least = f_set(0x1p-126f), inf = f_set(__builtin_inff()), none = f_zero(), one = f_set(1);
  F16 bad = none;
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = at_most(kChunk, n - i);
    const F16 v = f_load_first(x + i, count), product = f_mul(v, f_set(scale)), size = f_abs(product);
    // Below the normal range although x is not 0, or an infinity that x is not.
    const F16 lost = f_select_less(size, least, f_select_less(none, f_abs(v), one, none), none);
    const F16 over = f_select_less(size, inf, none, f_select_less(f_abs(v), inf, one, none));
    bad = f_max(bad, f_max(lost, over));
    f_store_first(out + i, product, count);
  }
  return f_reduce_max(bad) == 0;
}

// FP8 with power-of-two scales that many rows share: x is scaled instead of the weights, once for each block of rows.
// fma(q * s, x, c) and fma(q, x * s, c) round the same real number as long as q * s and x * s are exact.
struct ScaledInput {
  static constexpr int64_t kMaxFloats = 4 * 8192;  // 128 KiB of stack
  static constexpr int64_t kMinRows = 32;          // that pay for the scaling
  // Scales for which every e4m3 value times the scale is exact: 2^-9 .. 448 stay within the normal range.
  static constexpr float kLeastScale = 0x1p-117f, kLargestScale = 0x1p118f;

  template <int kCols>
  __attribute__((noinline)) static bool run(const Job& job, int64_t row0, int64_t row1, int64_t m0, const Output& out,
                                            int64_t origin) {
    const WeightMatrix& w = *job.w;
    if (row1 - row0 < kMinRows || kCols * w.cols > kMaxFloats) return false;
    alignas(64) float scaled[kMaxFloats];
    const ScalesE8m0 scales(w, row0);
    const ScaleGroups groups = scale_groups(w);
    for (int64_t k = 0, g = 0, count = 0; k < w.cols; k += count, ++g) {
      const float s = scales.at(g);
      if (!(s >= kLeastScale && s <= kLargestScale)) return false;
      count = at_most(groups.end(g), w.cols) - k;
      for (int m = 0; m < kCols; ++m) {
        const float* x = job.x + (m0 + m) * job.x_stride + k;
        if (!scale_exactly(x, s * FormatFp8Unscaled::kFactor, count, scaled + m * w.cols + k)) return false;
      }
    }
    WeightMatrix plain = w;
    plain.scale = nullptr;
    using Block = DotBlock<FormatFp8Unscaled, ScalesNone, kCols>;
    const Job plain_job{&plain, scaled, w.cols, job.k_blocks, job.row_bytes};
    for (int64_t row = row0; row < row1; row += Block::kRows) {
      alignas(64) float sum[BlockSums<Block::kSums>::kFloats];
      const bool exact = Block(plain_job, row, scaled).run(job.k_blocks, sum);
      const int64_t rows = at_most(Block::kRows, row1 - row);
      if (!exact) {
        dot_columns<FormatFp8, ScalesE8m0, kCols>(job, row, row + rows, m0, out, origin);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        for (int m = 0; m < kCols; ++m) put(out, m0 + m, row + r - origin, sum[r * kCols + m]);
      }
    }
    return true;
  }
};

template <class Format, class Scales, int kCols>
void dot_columns_best(const Job& job, int64_t row0, int64_t row1, int64_t m0, const Output& out, int64_t origin) {
  if constexpr (kCols > 1 && std::is_same_v<Format, FormatFp8> && std::is_same_v<Scales, ScalesE8m0>) {
    while (row0 < row1) {
      const int64_t block = job.w->block_rows, origin_row = job.w->row0;
      const int64_t end = at_most(row1, ((row0 + origin_row) / block + 1) * block - origin_row);
      if (!ScaledInput::run<kCols>(job, row0, end, m0, out, origin)) {
        dot_columns<Format, Scales, kCols>(job, row0, end, m0, out, origin);
      }
      row0 = end;
    }
  } else if constexpr (kCols == 1 && std::is_same_v<Format, FormatFp4>) {
    dot_columns<FormatFp4Single, Scales, kCols>(job, row0, row1, m0, out, origin);
  } else {
    dot_columns<Format, Scales, kCols>(job, row0, row1, m0, out, origin);
  }
}

// Groups of output rows stay in the cache while all input rows pass, kMaxCols at a time.
template <class Format, class Scales>
void dot_rows(const Job& job, int64_t row0, int64_t row1, int64_t rows, const Output& out) {
#if defined(__AVX512F__)
  constexpr int kMaxCols = 4;
#else
  // Cheap formats: four would leave one row of w at a time, so that every operand of an fma had to be loaded.
  constexpr int kMaxCols = Format::kBits >= 16 ? 2 : 4;
#endif
  constexpr int64_t kGroup = 32;
  const int64_t step = rows <= kMaxCols ? row1 - row0 : kGroup;
  for (int64_t row = row0; row < row1; row += step) {
    const int64_t end = at_most(row + step, row1);
    for (int64_t m = 0; m < rows; m += kMaxCols) {
      const int64_t count = at_most(kMaxCols, rows - m);
      if (count == 1) dot_columns_best<Format, Scales, 1>(job, row, end, m, out, row0);
      if (count == 2) dot_columns_best<Format, Scales, 2>(job, row, end, m, out, row0);
      if constexpr (kMaxCols > 2) {
        if (count == 3) dot_columns_best<Format, Scales, 3>(job, row, end, m, out, row0);
        if (count == 4) dot_columns_best<Format, Scales, 4>(job, row, end, m, out, row0);
      }
    }
  }
}

}  // namespace

void WEFT_ISA_NAME(linear_dot)(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride,
                               int64_t rows, int64_t k_blocks, const Output& out);
void WEFT_ISA_NAME(linear_dot)(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride,
                               int64_t rows, int64_t k_blocks, const Output& out) {
  const WeightMatrix view = resolved(w);
  const Job job{&view, x, x_stride, k_blocks, row_bytes_of(view)};
  const bool done =
      with_format(w, [&]<class Format, class Scales>() { dot_rows<Format, Scales>(job, row0, row1, rows, out); });
  if (done) return;
  for (int64_t n = row0; n < row1; ++n) {
    for (int64_t m = 0; m < rows; ++m) put(out, m, n - row0, dot_ref(w, n, x + m * x_stride, k_blocks));
  }
}

}  // namespace weft
