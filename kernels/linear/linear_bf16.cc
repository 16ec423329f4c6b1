// Dot products of bf16 pairs (vdpbf16ps): the avx512_bf16 variant of a linear layer. takes_bf16_pairs() says when it is used:
// K comes in whole vectors and every weight is a bf16 value, so there are no tails here.
#include <immintrin.h>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {

// Rows of elements are transposed as 32-bit words, whatever these are.
void linear_pack_rows_avx512_vbmi(const float* x, int64_t x_stride, int64_t rows, const PackLayout& layout,
                                  float* packed);
void linear_convert_row_avx512_vbmi(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out);

namespace {

#include "kernels/linear/vector16-inl.h"
#include "kernels/linear/weight_view-inl.h"

__attribute__((always_inline)) inline F16 multiply_add(F16 x, F16 w, F16 sum) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
}
__attribute__((always_inline)) inline F16 multiply_add(F16 x, I16 w, F16 sum) { return multiply_add(x, as_f(w), sum); }

#include "kernels/linear/micro_tile-inl.h"
#include "kernels/linear/prefetch-inl.h"

constexpr int kOne = 127;  // e8m0 code of 1

// bf16 of q * 2^(code - 127) for every scale code. Overflow is an infinity; subnormals are 0, as the instruction takes them.
constexpr uint16_t scaled_bits(int exponent, int mantissa7, int code) {  // 2^exponent * 1.mantissa
  const int biased = exponent + 127 + code - kOne;
  return static_cast<uint16_t>(code == 255     ? 0x7fc0
                               : biased >= 255 ? 0x7f80
                               : biased <= 0   ? 0
                                               : biased << 7 | mantissa7);
}

// e4m3: bytes of the 128 magnitudes for byte permutes.
struct E4m3Table {
  alignas(64) uint8_t high[128], low[128];
};
constexpr E4m3Table make_e4m3_table(int code) {
  E4m3Table t{};
  for (int i = 0; i < 128; ++i) {
    int exponent = (i >> 3) - 7, mantissa = i & 7;
    uint16_t bits = 0;
    if (i == 127) {
      bits = 0x7fc0;
    } else if ((i >> 3) == 0 && mantissa != 0) {  // mantissa * 2^-9, normalised
      int shift = 0;
      while ((mantissa << shift) < 8) ++shift;
      bits = scaled_bits(-6 - shift, ((mantissa << shift) & 7) << 4, code);
    } else if (i != 0) {
      bits = scaled_bits(exponent, mantissa << 4, code);
    } else if (code == 255) {
      bits = 0x7fc0;
    }
    t.high[i] = static_cast<uint8_t>(bits >> 8);
    t.low[i] = static_cast<uint8_t>(bits & 255);
  }
  return t;
}

// e2m1: words of the 16 values, twice, since a word permute looks at five bits.
struct E2m1Table {
  alignas(64) uint16_t value[32];
};
constexpr E2m1Table make_e2m1_table(int code) {
  E2m1Table t{};
  for (int i = 0; i < 32; ++i) {
    const int magnitude = i & 7, exponent = magnitude >> 1, mantissa = magnitude & 1;
    uint16_t bits = code == 255 ? 0x7fc0 : 0;
    if (magnitude == 1) bits = scaled_bits(-1, 0, code);
    if (magnitude > 1) bits = scaled_bits(exponent - 1, mantissa << 6, code);
    t.value[i] = static_cast<uint16_t>(bits | (i & 8) << 12);
  }
  return t;
}

template <class Table>
struct ByScale {
  Table of[256];
};
template <class Table>
constexpr ByScale<Table> tables_by_scale(Table (*make)(int)) {
  ByScale<Table> t{};
  for (int code = 0; code < 256; ++code) t.of[code] = make(code);
  return t;
}
constexpr ByScale<E4m3Table> kE4m3 = tables_by_scale(make_e4m3_table);
constexpr ByScale<E2m1Table> kE2m1 = tables_by_scale(make_e2m1_table);

struct ByteOrder {
  alignas(64) uint8_t index[64];
};
// Unpacking takes code 16*q + 8*h + 2*d + o to half o of element 4*q + d of vector h: the source of each code, where element
// and vector have these strides and the second half is the next code.
constexpr ByteOrder byte_order(int element, int vector) {
  ByteOrder order{};
  for (int i = 0; i < 64; ++i) {
    const int q = i / 16, h = i / 8 % 2, d = i / 2 % 4, o = i % 2;
    order.index[i] = static_cast<uint8_t>((4 * q + d) * element + h * vector + o);
  }
  return order;
}
constexpr ByteOrder kConsecutive = byte_order(2, 32);  // 64 features of one row
constexpr ByteOrder kTransposed = byte_order(4, 2);    // 4 features of 16 rows

struct E4m3Registers {
  I16 high0, high1, low0, low1;
  explicit E4m3Registers(uint8_t code) {
    const E4m3Table& t = kE4m3.of[code];
    high0 = _mm512_load_si512(t.high);
    high1 = _mm512_load_si512(t.high + 64);
    low0 = _mm512_load_si512(t.low);
    low1 = _mm512_load_si512(t.low + 64);
  }
  // 64 codes, ordered -> two vectors of 16 pairs.
  __attribute__((always_inline)) void decode(I16 codes, I16* pairs) const {
    constexpr int kOrSign = 0xf8;  // a | (b & c)
    const I16 high = _mm512_permutex2var_epi8(high0, codes, high1), low = _mm512_permutex2var_epi8(low0, codes, low1);
    const I16 top = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(static_cast<char>(0x80)), kOrSign);
    pairs[0] = _mm512_unpacklo_epi8(low, top);
    pairs[1] = _mm512_unpackhi_epi8(low, top);
  }
};

// Scale codes of a row of w, by group of columns (weight_view-inl.h); one group of code kOne if there are none.
struct Scales {
  const uint8_t* code = nullptr;
  uint8_t at(int64_t group) const { return code == nullptr ? kOne : code[group]; }
};
Scales scales_of(const WeightMatrix& w, int64_t row) {
  if (w.scale == nullptr) return {};
  return {static_cast<const uint8_t*>(w.scale) + scale_offset(w, row)};
}

// ---- Few rows: lanes along K over the stored rows.

struct Job {
  const WeightMatrix* w;
  const float* x;
  int64_t x_stride, k_blocks, row_bytes;
};

constexpr int kDotRows = 4;  // rows of w at once: chains that hide the latency of the instruction

template <int kCols>
struct DotBlock {
  static constexpr int kSums = kDotRows * kCols;

  const uint8_t* row[kDotRows];
  Scales scales[kDotRows];
  const float* x[kCols];
  int64_t row_bytes;
  DType dtype;
  ScaleGroups groups;
  bool contiguous, one_scale;  // one_scale: all rows share theirs

  DotBlock(const Job& job, int64_t row0)
      : row_bytes(job.row_bytes),
        dtype(job.w->dtype),
        groups(scale_groups(*job.w)),
        contiguous(is_contiguous(*job.w)) {
    one_scale = true;
    for (int r = 0; r < kDotRows; ++r) {
      const int64_t n = at_most(row0 + r, job.w->rows - 1);
      row[r] = static_cast<const uint8_t*>(job.w->data) + n * job.row_bytes;
      scales[r] = scales_of(*job.w, n);
      one_scale = one_scale && scales[r].code == scales[0].code;
    }
    for (int m = 0; m < kCols; ++m) x[m] = job.x + m * job.x_stride;
  }

  __attribute__((always_inline)) void add(int r, I16 pairs, int64_t k, F16 (&acc)[kSums]) const {
#pragma GCC unroll 4
    for (int m = 0; m < kCols; ++m) acc[r * kCols + m] = multiply_add(f_load(x[m] + k / 2), pairs, acc[r * kCols + m]);
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

  void add_fp4(int64_t begin, int64_t end, Position& at, Ahead& next, F16 (&acc)[kSums]) const {
    // Words 2i and 2i + 1 of a vector get the low and the high four bits of byte i of 16.
    const I16 spread =
        _mm512_setr_epi64(0x0001000100000000, 0x0003000300020002, 0x0005000500040004, 0x0007000700060006,
                          0x0009000900080008, 0x000b000b000a000a, 0x000d000d000c000c, 0x000f000f000e000e);
    const I16 shift = _mm512_set1_epi32(0x00040000);
    Position here = at;
    for (int64_t k = begin; k < end; here.step(groups.columns)) {
      I16 table[kDotRows];
#pragma GCC unroll 4
      for (int r = 0; r < kDotRows; ++r) table[r] = _mm512_load_si512(kE2m1.of[scales[r].at(here.group)].value);
      const int64_t stop = at_most(end, here.end);
      for (; k < stop; k += 32) {
        if (k % 128 == 0) next.lines<kDotRows>();
#pragma GCC unroll 4
        for (int r = 0; r < kDotRows; ++r) {
          const I16 bytes = _mm512_castsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r] + k / 2)));
          const I16 codes = _mm512_srlv_epi16(_mm512_permutexvar_epi8(spread, bytes), shift);
          add(r, _mm512_permutexvar_epi16(codes, table[r]), k, acc);
        }
      }
    }
    here.stop(end, groups.columns);
    at = here;
  }

  template <bool kOneScale>
  void add_fp8(int64_t begin, int64_t end, Position& at, Ahead& next, F16 (&acc)[kSums]) const {
    const I16 order = _mm512_load_si512(kConsecutive.index);
    Position here = at;
    for (int64_t k = begin; k < end; here.step(groups.columns)) {
      const int64_t stop = at_most(end, here.end);
      const E4m3Registers shared(scales[0].at(here.group));
      for (; k < stop; k += 64) {
        next.lines<kDotRows>();
#pragma GCC unroll 4
        for (int r = 0; r < kDotRows; ++r) {
          I16 pairs[2];
          const I16 codes = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(row[r] + k));
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

  // out[r * kCols + m]
  void run(int64_t k, int64_t k_blocks, float* out) const {
    const int64_t block = k / k_blocks;
    float stack[4][kSums];
    Position at{0, groups.end(0)};
    Ahead next(row[0], row_bytes, contiguous, kDotRows);
    for (int64_t b = 0; b < k_blocks; ++b) {
      F16 acc[kSums];
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) acc[i] = f_zero();
      const int64_t begin = b * block, end = begin + block;
      if (dtype == DType::kBF16) add_bf16(begin, end, next, acc);
      if (dtype == DType::kF4E2M1) add_fp4(begin, end, at, next, acc);
      if (dtype == DType::kF8E4M3 && one_scale) add_fp8<true>(begin, end, at, next, acc);
      if (dtype == DType::kF8E4M3 && !one_scale) add_fp8<false>(begin, end, at, next, acc);
#pragma GCC unroll 4
      for (int i = 0; i < kSums; i += 4) {
        _mm_storeu_ps(out + i, fold_eight(fold_halves(acc[i]), fold_halves(acc[i + 1]), fold_halves(acc[i + 2]),
                                          fold_halves(acc[i + 3])));
      }
      // Blocks are leaves of a binary counter: as many finished sums are added as b has trailing one bits.
      int level = 0;
      for (; (b >> level & 1) != 0; ++level) {
        for (int i = 0; i < kSums; ++i) out[i] = stack[level][i] + out[i];
      }
      if (b + 1 < k_blocks) {
        for (int i = 0; i < kSums; ++i) stack[level][i] = out[i];
      }
    }
  }
};

inline void put(const Output& out, int64_t m, int64_t n, float value) {
  const int64_t i = m * out.stride + n;
  if (out.dtype == DType::kF32) {
    static_cast<float*>(out.y)[i] = value;
    return;
  }
  alignas(64) uint16_t rounded[16];
  f_store_bf16(rounded, f_set(value));
  static_cast<uint16_t*>(out.y)[i] = rounded[0];
}

template <int kCols>
void dot_columns(const Job& job, int64_t row0, int64_t row1, int64_t m0, const Output& out, int64_t origin) {
  for (int64_t row = row0; row < row1; row += kDotRows) {
    float sum[DotBlock<kCols>::kSums];
    DotBlock<kCols>(job, row).run(job.w->cols, job.k_blocks, sum);
    for (int64_t r = 0; r < at_most(kDotRows, row1 - row); ++r) {
      for (int m = 0; m < kCols; ++m) put(out, m0 + m, row + r - origin, sum[r * kCols + m]);
    }
  }
}

// Groups of output rows stay in the cache while all input rows pass, four at a time.
void dot(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride, int64_t rows,
         int64_t k_blocks, const Output& out) {
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

// ---- Many rows: panels of pairs.

// Sixteen rows of w, to be columns of a panel.
struct Source {
  const WeightMatrix* w;
  const uint8_t* base;
  int64_t row[16];  // bytes
  Scales scales[16];
};

// Where pair p of a block of K is stored: lane p % 16, step p / 16.
struct Panel {
  int64_t width;
  float* lane[kLanes];
  Panel(float* base, const PackLayout& layout, int64_t panel_width, int64_t block) : width(panel_width) {
    for (int64_t j = 0; j < kLanes; ++j) lane[j] = base + (block * kLanes + kVisit[j]) * layout.lane_steps * width;
  }
  __attribute__((always_inline)) void put(int64_t pair, I16 pairs) const {
    _mm512_storeu_si512(lane[pair % kLanes] + pair / kLanes * width, pairs);
  }
};

// The same bytes of the next 16 rows: memory is read while this panel is computed.
inline void prefetch_next(const Source& s, int64_t offset, int64_t step_bytes) {
  if (step_bytes < kCacheLine && (offset & (kCacheLine - 1)) >= step_bytes) return;
  const int64_t ahead = 16 * (s.row[1] - s.row[0]);
  for (int r = 0; r < 16; ++r) {
    _mm_prefetch(reinterpret_cast<const char*>(s.base + s.row[r] + offset + ahead), _MM_HINT_T1);
  }
}

void pack_bf16(const Source& s, int64_t begin, int64_t end, const Panel& p) {
  for (int64_t k = begin; k < end; k += 8) {
    I16 d[4];
    prefetch_next(s, 2 * k, 16);
    load_transposed(s.base + 2 * k, s.row, d);
    for (int c = 0; c < 4; ++c) p.put((k - begin) / 2 + c, d[c]);
  }
}

void pack_fp8(const Source& s, int64_t begin, int64_t end, const Panel& p) {
  const ScaleGroups groups = scale_groups(*s.w);
  const I16 order = _mm512_load_si512(kTransposed.index);
  bool one_scale = true;
  for (int r = 1; r < 16; ++r) one_scale = one_scale && s.scales[r].code == s.scales[0].code;
  for (int64_t k = begin, g = groups.of(begin); k < end; ++g) {
    const int64_t stop = at_most(end, groups.end(g));
    const E4m3Registers shared(s.scales[0].at(g));
    for (; k < stop; k += 16) {
      I16 d[4], pairs[2];
      prefetch_next(s, k, 16);
      load_transposed(s.base + k, s.row, d);
      for (int c = 0; c < 4; ++c) {
        const I16 codes = _mm512_permutexvar_epi8(order, d[c]);
        shared.decode(codes, pairs);
        for (int r = 1; r < 16 && !one_scale; ++r) {
          I16 own[2];
          E4m3Registers(s.scales[r].at(g)).decode(codes, own);
          const auto mask = static_cast<__mmask16>(1u << r);
          for (int h = 0; h < 2; ++h) pairs[h] = _mm512_mask_mov_epi32(pairs[h], mask, own[h]);
        }
        for (int h = 0; h < 2; ++h) p.put((k - begin) / 2 + 2 * c + h, pairs[h]);
      }
    }
  }
}

// Scale codes of 16 rows of FP4, transposed for 16 groups at a time.
class GroupCodes {
 public:
  explicit GroupCodes(const Source& s) : s_(s), num_groups_(scale_groups(*s.w).of(s.w->cols - 1) + 1) {
    if (s.w->scale == nullptr) return;
    for (int r = 0; r < 16; ++r) row_[r] = s.scales[r].code - static_cast<const uint8_t*>(s.w->scale);
  }
  __attribute__((always_inline)) I16 at(int64_t group) {
    if (group < cached_ || group >= cached_end_) fill(group);
    return _mm512_load_si512(code_[group - cached_]);
  }

 private:
  __attribute__((noinline)) void fill(int64_t group) {
    cached_ = group;
    if (s_.w->scale == nullptr || group + 16 > num_groups_) {  // nothing beyond the scales is read
      for (int r = 0; r < 16; ++r) code_[0][r] = s_.scales[r].at(group);
      cached_end_ = group + 1;
      return;
    }
    I16 d[4];
    load_transposed(static_cast<const uint8_t*>(s_.w->scale) + group, row_, d);
    for (int c = 0; c < 4; ++c) {
      _mm512_store_si512(code_[4 * c], i_and(d[c], i_set(255)));
      _mm512_store_si512(code_[4 * c + 1], i_and(i_shr<8>(d[c]), i_set(255)));
      _mm512_store_si512(code_[4 * c + 2], i_and(i_shr<16>(d[c]), i_set(255)));
      _mm512_store_si512(code_[4 * c + 3], i_shr<24>(d[c]));
    }
    cached_end_ = group + 16;
  }

  const Source& s_;
  int64_t num_groups_, cached_ = 0, cached_end_ = 0;
  int64_t row_[16];
  alignas(64) uint32_t code_[16][16];
};

void pack_fp4(const Source& s, int64_t begin, int64_t end, const Panel& p) {
  constexpr int kLeast = 2, kMost = 252;  // scale codes for which no value leaves the normal range
  const ScaleGroups groups = scale_groups(*s.w);
  const I16 values = _mm512_load_si512(kE2m1.of[kOne].value), magnitude = _mm512_set1_epi16(0x7fff);
  GroupCodes codes(s);
  for (int64_t k = begin, g = groups.of(begin); k < end; ++g) {
    const int64_t stop = at_most(end, groups.end(g));
    const I16 code = codes.at(g), power = _mm512_sub_epi32(code, i_set(kOne));
    const I16 exponent = i_or(i_and(i_shl<7>(power), i_set(0xffff)), i_shl<23>(power));  // in both halves
    const bool hard = (_mm512_cmplt_epi32_mask(code, i_set(kLeast)) | _mm512_cmpgt_epi32_mask(code, i_set(kMost))) != 0;
    for (; k < stop; k += 32) {
      I16 d[4];
      prefetch_next(s, k / 2, 16);
      load_transposed(s.base + k / 2, s.row, d);
      for (int c = 0; c < 4; ++c) {
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {  // bytes 0 and 2 of an element get the bits of codes 2t and 2t + 1
          const I16 low = i_and(_mm512_srl_epi32(d[c], _mm_cvtsi32_si128(8 * t)), i_set(15));
          const I16 high = i_and(_mm512_srl_epi32(d[c], _mm_cvtsi32_si128(8 * t + 4)), i_set(15));
          const I16 index = i_or(low, i_shl<16>(high));
          I16 pairs = _mm512_permutexvar_epi16(index, values);
          if (hard) {
            for (int r = 0; r < 16; ++r) {
              const I16 own = _mm512_permutexvar_epi16(index, _mm512_load_si512(kE2m1.of[s.scales[r].at(g)].value));
              pairs = _mm512_mask_mov_epi32(pairs, static_cast<__mmask16>(1u << r), own);
            }
          } else {
            pairs = _mm512_mask_add_epi16(pairs, _mm512_test_epi16_mask(pairs, magnitude), pairs, exponent);
          }
          p.put((k - begin) / 2 + 4 * c + t, pairs);
        }
      }
    }
  }
}

void pack_weights(const WeightMatrix& w, int64_t row0, int64_t num_rows, int64_t width, const PackLayout& layout,
                  float* panel) {
  const WeightMatrix view = resolved(w);
  const int64_t row_bytes = row_bytes_of(view);
  for (int64_t c = 0; c < width && c < num_rows; c += 16) {
    Source s{&view, static_cast<const uint8_t*>(w.data), {}, {}};
    for (int r = 0; r < 16; ++r) {
      const int64_t n = row0 + at_most(c + r, num_rows - 1);
      s.row[r] = n * row_bytes;
      s.scales[r] = scales_of(view, n);
    }
    for (int64_t b = 0; b < layout.k_blocks; ++b) {
      const Panel p(panel + c, layout, width, b);
      const int64_t begin = 2 * b * layout.block, end = begin + 2 * layout.block;
      if (w.dtype == DType::kBF16) pack_bf16(s, begin, end, p);
      if (w.dtype == DType::kF8E4M3) pack_fp8(s, begin, end, p);
      if (w.dtype == DType::kF4E2M1) pack_fp4(s, begin, end, p);
    }
  }
}

// x' as pairs. Blocks of activation quantisation are whole chunks, and a chunk is read before it is overwritten.
void convert_row(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out) {
  constexpr int64_t kChunk = 128;
  auto* pairs = reinterpret_cast<uint16_t*>(out);
  alignas(64) float value[kChunk];
  for (int64_t begin = 0; begin < k; begin += kChunk) {
    const int64_t count = at_most(kChunk, k - begin);
    const auto* chunk = static_cast<const std::byte*>(x) + begin * dtype_bits(dtype) / 8;
    linear_convert_row_avx512_vbmi(chunk, dtype, count, act_quant, value);
    for (int64_t i = 0; i < count; i += 16) f_store_bf16(pairs + begin + i, f_load(value + i));
  }
}

int64_t max_dot_rows(DType) { return kMostDotRows; }

}  // namespace

const LinearKernels kLinearKernels_avx512_bf16 = {
    2, kTileRows, 16 * kTileVectors, max_dot_rows, convert_row, dot, linear_pack_rows_avx512_vbmi, pack_weights, tile,
};

}  // namespace weft
