// Few rows in the avx512_bf16 variant of a linear layer: dot products of bf16 pairs over the stored rows of w, lanes along K.
//
// FP4: vdpbf16ps, the permutes that look up values and the shifts before them share four units, so what counts is operations
// for each 64 bytes (128 weights) of a row. With pairs in the order of linear.h these are four permutes, three shifts and, for
// each row of x, four dot products and one multiplication. The multiplication stands for the scales: instead of weights by s,
// the sum is held in units of s. Both round the same real numbers as long as no result leaves the normal range, which the
// magnitudes of x and the scale codes guarantee (kNarrow...); elsewhere weights are scaled one by one.
#include <immintrin.h>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

#include "kernels/linear/vector16-inl.h"
#include "kernels/linear/weight_view-inl.h"

#include "kernels/linear/bf16_formats-inl.h"
#include "kernels/linear/dot_sums-inl.h"
#include "kernels/linear/prefetch-inl.h"

struct Job {
  const WeightMatrix* w;
  const float* x;
  int64_t x_stride, k_blocks, row_bytes;
};

// Sums of FP4 in units of their scales are exact if every x is 0 or in [2^-62, 2^41) and every scale in [2^-24, 2^16]. x is then
// a multiple of 2^-69 and a weight one of 2^-25, so a sum is 0 or at least 2^-94, in units of s at least 2^-110; and with up to
// 2^24 features it is below 2^41 * 6 * 2^16 * 2^24 < 2^84, in units of s below 2^108.
constexpr int kNarrowLeastCode = kOne - 24, kNarrowMostCode = kOne + 16;
constexpr int kNarrowLeastX = (127 - 62) << 7, kNarrowMostX = ((127 + 40) << 7) + 127;  // bf16 magnitudes

bool is_narrow(const float* pairs, int64_t count) {
  const I16 magnitude = _mm512_set1_epi16(0x7fff), least = _mm512_set1_epi16(kNarrowLeastX);
  const I16 span = _mm512_set1_epi16(kNarrowMostX - kNarrowLeastX), normal = _mm512_set1_epi16(0x80);
  __mmask32 bad = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const I16 v = i_and(_mm512_loadu_si512(pairs + i), magnitude);
    const __mmask32 counts = _mm512_cmpge_epu16_mask(v, normal);  // subnormals are taken as 0
    bad |= _mm512_mask_cmpgt_epu16_mask(counts, _mm512_sub_epi16(v, least), span);
  }
  return bad == 0;
}

enum class Path { kBf16, kFp8, kFp8Halves, kFp4, kFp4Any };  // kFp4: where x and the scales are narrow

constexpr int kDotRows = 4;  // rows of w at once: chains that hide the latency of the instruction

template <int kCols>
struct DotBlock {
  static constexpr int kSums = kDotRows * kCols;

  const uint8_t* row[kDotRows];
  Scales scales[kDotRows];
  const float* x[kCols];
  int64_t row_bytes;
  ScaleGroups groups;
  bool contiguous, one_scale;  // one_scale: all rows share theirs

  DotBlock(const Job& job, int64_t row0)
      : row_bytes(job.row_bytes), groups(scale_groups(*job.w)), contiguous(is_contiguous(*job.w)) {
    const WeightMatrix& w = *job.w;
    int64_t line = 0, next_line = w.rows;  // of scales; the first row that has the next one
    const auto find_line = [&](int64_t n) {
      line = w.block_rows == 1 ? n + w.row0 : (n + w.row0) / w.block_rows;
      next_line = (line + 1) * w.block_rows - w.row0;
    };
    if (w.scale != nullptr) find_line(row0);
    one_scale = true;
    for (int r = 0; r < kDotRows; ++r) {
      const int64_t n = at_most(row0 + r, w.rows - 1);
      row[r] = static_cast<const uint8_t*>(w.data) + n * job.row_bytes;
      if (n >= next_line) find_line(n);  // short rows would notice a division for each
      if (w.scale != nullptr) scales[r].code = static_cast<const uint8_t*>(w.scale) + line * w.scale_stride;
      one_scale = one_scale && scales[r].code == scales[0].code;
    }
    for (int m = 0; m < kCols; ++m) x[m] = job.x + m * job.x_stride;
  }

  __attribute__((always_inline)) void add(int r, I16 pairs, int64_t k, F16 (&acc)[kSums]) const {
#pragma GCC unroll 4
    for (int m = 0; m < kCols; ++m) {
      acc[r * kCols + m] = multiply_add(f_load(x[m] + (k >> 1)), pairs, acc[r * kCols + m]);
    }
  }

  // The scale group that the next element belongs to.
  struct Position {
    int64_t group, end;
    void step(int64_t columns) {
      ++group;
      end += columns;
    }
    // After steps over all groups that a block of K touches, which ends at k: back if that is inside of the last one.
    void stop(int64_t k, int64_t columns) {
      if (end - columns == k) return;
      --group;
      end -= columns;
    }
  };

  void add_bf16(int64_t begin, int64_t end, Ahead& next, F16 (&acc)[kSums]) const {
    for (int64_t k = begin; k < end; k += 32) {
      next.lines<kDotRows>();
#pragma GCC unroll 4
      for (int r = 0; r < kDotRows; ++r) add(r, _mm512_loadu_si512(row[r] + 2 * k), k, acc);
    }
  }

  template <bool kOneScale>
  void add_fp8(int64_t begin, int64_t end, Position& at, Ahead& next, F16 (&acc)[kSums]) const {
    Position here = at;
    for (int64_t k = begin; k < end; here.step(groups.columns)) {
      const int64_t stop = at_most(end, here.end);
      const E4m3Registers shared(scales[0].at(here.group));
      for (; k < stop; k += 64) {
        next.lines<kDotRows>();
#pragma GCC unroll 4
        for (int r = 0; r < kDotRows; ++r) {
          I16 pairs[2];
          I16 codes = _mm512_loadu_si512(row[r] + k);
          asm("" : "+v"(codes));  // in a register: three operations need it, and loads are scarce
          if constexpr (kOneScale) {
            shared.decode(codes, pairs);
          } else {
            E4m3Registers(scales[r].at(here.group)).decode(codes, pairs);
          }
          add(r, pairs[0], k, acc);
          add(r, pairs[1], k + 32, acc);
        }
      }
    }
    here.stop(end, groups.columns);
    at = here;
  }

  // Groups of 32 columns: two in each vector of codes.
  template <bool kOneScale>
  void add_fp8_halves(int64_t begin, int64_t end, Ahead& next, F16 (&acc)[kSums]) const {
    int64_t group = groups.of(begin);
    for (int64_t k = begin; k < end; k += 64, group += 2) {
      next.lines<kDotRows>();
      const E4m3Registers shared(scales[0].at(group)), shared_upper(scales[0].at(group + 1));
#pragma GCC unroll 4
      for (int r = 0; r < kDotRows; ++r) {
        I16 pairs[2];
        const I16 codes = _mm512_loadu_si512(row[r] + k);
        if constexpr (kOneScale) {
          shared.decode_halves(codes, shared_upper, pairs);
        } else {
          E4m3Registers(scales[r].at(group)).decode_halves(codes, E4m3Registers(scales[r].at(group + 1)), pairs);
        }
        add(r, pairs[0], k, acc);
        add(r, pairs[1], k + 32, acc);
      }
    }
  }

  // Scale codes of row r: lane i gets that of group `group` + i, or kOne where i is not in `lanes`.
  I16 codes_of(int r, int64_t group, __mmask64 lanes) const {
    const I16 none = _mm512_set1_epi8(kOne);
    return scales[r].code == nullptr ? none : _mm512_mask_loadu_epi8(none, lanes, scales[r].code + group);
  }

  // Floats of four e8m0 codes, each in four lanes: by shifts, since permutes are scarce.
  __attribute__((always_inline)) static F16 powers(const uint8_t* codes) {
    const I16 to_top = _mm512_setr_epi32(24, 24, 24, 24, 16, 16, 16, 16, 8, 8, 8, 8, 0, 0, 0, 0);
    uint32_t four;
    __builtin_memcpy(&four, codes, sizeof(four));
    return as_f(i_and(i_shr<1>(_mm512_sllv_epi32(i_set(four), to_top)), i_set(0x7f800000)));
  }

  __attribute__((always_inline)) static void multiply(int r, F16 scale, F16 (&acc)[kSums]) {
#pragma GCC unroll 4
    for (int m = 0; m < kCols; ++m) acc[r * kCols + m] = f_mul(acc[r * kCols + m], scale);
  }

  // True if a scale is not narrow; acc, zeros at first, is of no use then.
  bool add_fp4(int64_t begin, int64_t end, Ahead& next, F16 (&acc)[kSums]) const {
    constexpr int64_t kChunk = 128, kGroup = 32, kGroups = 64;  // features, features, groups that are prepared at once
    const I16 values = _mm512_load_si512(kE2m1.of[kOne].value), one = _mm512_set1_epi8(kOne);
    const I16 least = _mm512_set1_epi8(kNarrowLeastCode), span = _mm512_set1_epi8(kNarrowMostCode - kNarrowLeastCode);
    const int64_t first_group = groups.of(begin), last_chunk = first_group + (end - begin) / kGroup - kChunk / kGroup;
    __mmask64 hard = 0;
    alignas(64) uint8_t change[kDotRows][kGroups];
    for (int64_t k = begin, group = first_group; k < end; group += kGroups) {
      const int64_t count = at_most(kGroups, (end - k) / kGroup);
      const __mmask64 these = ~__mmask64{0} >> (kGroups - count);
#pragma GCC unroll 4
      for (int r = 0; r < kDotRows; ++r) {
        const I16 codes = codes_of(r, group, these);
        hard |= _mm512_cmpgt_epu8_mask(_mm512_sub_epi8(codes, least), span);
        if (first_group == last_chunk) continue;
        // From one chunk to the next; the first chunk of all has none before it, and its units are the first ones.
        const __mmask64 before = k == begin ? these & ~__mmask64{15} : these;
        _mm512_store_si512(change[r], _mm512_add_epi8(_mm512_sub_epi8(codes_of(r, group - 4, before), codes), one));
      }
      for (int64_t g = 0; g < count; g += kChunk / kGroup, k += kChunk) {
        next.lines<kDotRows>();
        I16 bytes[kDotRows];
#pragma GCC unroll 4
        for (int r = 0; r < kDotRows; ++r) {
          bytes[r] = _mm512_loadu_si512(row[r] + (k >> 1));
          if (k > begin) multiply(r, powers(change[r] + g), acc);
        }
        add_quarters(
            bytes, k, [&](int, I16 codes) { return _mm512_permutexvar_epi16(codes, values); }, acc);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kDotRows; ++r) {
      if (scales[r].code != nullptr) multiply(r, powers(scales[r].code + last_chunk), acc);
    }
    return hard != 0;
  }

  // acc += 128 features: pair q of every eight are the codes 4 * q bits up.
  template <class Decode>
  __attribute__((always_inline)) void add_quarters(const I16 (&bytes)[kDotRows], int64_t k, Decode decode,
                                                   F16 (&acc)[kSums]) const {
    const auto quarter = [&](int q, auto shifted) __attribute__((always_inline)) {
      F16 xv[kCols];
#pragma GCC unroll 4
      for (int m = 0; m < kCols; ++m) xv[m] = f_load(x[m] + (k >> 1) + 16 * q);
#pragma GCC unroll 4
      for (int r = 0; r < kDotRows; ++r) {
        const I16 pairs = decode(r, shifted(bytes[r]));
#pragma GCC unroll 4
        for (int m = 0; m < kCols; ++m) acc[r * kCols + m] = multiply_add(xv[m], pairs, acc[r * kCols + m]);
      }
    };
    quarter(0, [](I16 v) { return v; });
    quarter(1, [](I16 v) { return _mm512_srli_epi16(v, 4); });
    quarter(2, [](I16 v) { return _mm512_srli_epi16(v, 8); });
    quarter(3, [](I16 v) { return _mm512_srli_epi16(v, 12); });
  }

  // Any x and any scale: a table of scaled values for each of the four groups of a chunk.
  void add_fp4_any(int64_t begin, int64_t end, F16 (&acc)[kSums]) const {
    for (int64_t k = begin; k < end; k += 128) {
      I16 bytes[kDotRows], table[kDotRows][4];
      for (int r = 0; r < kDotRows; ++r) {
        bytes[r] = _mm512_loadu_si512(row[r] + k / 2);
        for (int g = 0; g < 4; ++g) {
          const int64_t group = scales[r].code == nullptr ? 0 : groups.of(k) + g;
          table[r][g] = _mm512_load_si512(kE2m1.of[scales[r].at(group)].value);
        }
      }
      const auto decode = [&](int r, I16 codes) {
        I16 value = _mm512_permutexvar_epi16(codes, table[r][0]);
        for (int g = 1; g < 4; ++g) {
          value = _mm512_mask_permutexvar_epi16(value, __mmask32{0xff} << 8 * g, codes, table[r][g]);
        }
        return value;
      };
      add_quarters(bytes, k, decode, acc);
    }
  }

  // out[r * kCols + m]. False if kPath does not take the scales.
  template <Path kPath>
  bool run(int64_t k, int64_t k_blocks, float* out) const {
    const int64_t block = k / k_blocks;
    bool exact = true;
    BlockSums<kSums> sums;
    Position at{0, groups.end(0)};
    Ahead next(row[0], row_bytes, contiguous, kDotRows);
    for (int64_t b = 0; b < k_blocks; ++b) {
      F16 acc[kSums];
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) acc[i] = f_zero();
      const int64_t begin = b * block, end = begin + block;
      if constexpr (kPath == Path::kBf16) add_bf16(begin, end, next, acc);
      if constexpr (kPath == Path::kFp4) exact = !add_fp4(begin, end, next, acc) && exact;
      if constexpr (kPath == Path::kFp4Any) add_fp4_any(begin, end, acc);
      if constexpr (kPath == Path::kFp8) {
        one_scale ? add_fp8<true>(begin, end, at, next, acc) : add_fp8<false>(begin, end, at, next, acc);
      }
      if constexpr (kPath == Path::kFp8Halves) {
        one_scale ? add_fp8_halves<true>(begin, end, next, acc) : add_fp8_halves<false>(begin, end, next, acc);
      }
      sums.add(b, b + 1 == k_blocks, acc, out);
    }
    return exact;
  }
};

template <int kCols, Path kPath>
__attribute__((noinline)) void dot_columns_by(const Job& job, int64_t row0, int64_t row1, int64_t m0, const Output& out,
                                              int64_t origin) {
  for (int64_t row = row0; row < row1; row += kDotRows) {
    float sum[DotBlock<kCols>::kSums];
    if (!DotBlock<kCols>(job, row).template run<kPath>(job.w->cols, job.k_blocks, sum)) {
      dot_columns_by<kCols, Path::kFp4Any>(job, row, at_most(row + kDotRows, row1), m0, out, origin);
      continue;
    }
    for (int64_t r = 0; r < at_most(kDotRows, row1 - row); ++r) {
      for (int m = 0; m < kCols; ++m) put(out, m0 + m, row + r - origin, sum[r * kCols + m]);
    }
  }
}

template <int kCols>
void dot_columns(const Job& job, int64_t row0, int64_t row1, int64_t m0, const Output& out, int64_t origin) {
  const auto by = [&]<Path kPath>() { dot_columns_by<kCols, kPath>(job, row0, row1, m0, out, origin); };
  const WeightMatrix& w = *job.w;
  if (w.dtype == DType::kBF16) return by.template operator()<Path::kBf16>();
  if (w.dtype == DType::kF8E4M3) {
    const bool halves = w.scale != nullptr && w.block_cols == 32;
    return halves ? by.template operator()<Path::kFp8Halves>() : by.template operator()<Path::kFp8>();
  }
  bool narrow = true;
  for (int m = 0; m < kCols; ++m) narrow = narrow && is_narrow(job.x + m * job.x_stride, w.cols / 2);
  narrow ? by.template operator()<Path::kFp4>() : by.template operator()<Path::kFp4Any>();
}

}  // namespace

void linear_dot_avx512_bf16(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride,
                            int64_t rows, int64_t k_blocks, const Output& out);
// Groups of output rows stay in the cache while all input rows pass, four at a time.
void linear_dot_avx512_bf16(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride,
                            int64_t rows, int64_t k_blocks, const Output& out) {
  constexpr int64_t kMaxCols = 4, kGroup = 32;
  const WeightMatrix view = resolved(w);
  const int64_t step = rows <= kMaxCols ? row1 - row0 : kGroup;
  for (int64_t row = row0; row < row1; row += step) {
    const int64_t end = at_most(row + step, row1);
    for (int64_t m = 0; m < rows; m += kMaxCols) {
      const Job job{&view, x + m * x_stride, x_stride, k_blocks, row_bytes_of(view)};
      switch (at_most(kMaxCols, rows - m)) {
        case 1: dot_columns<1>(job, row, end, m, out, row0); break;
        case 2: dot_columns<2>(job, row, end, m, out, row0); break;
        case 3: dot_columns<3>(job, row, end, m, out, row0); break;
        default: dot_columns<4>(job, row, end, m, out, row0); break;
      }
    }
  }
}

}  // namespace weft
