// Many rows and the table of functions of the avx512_bf16 variant of a linear layer: panels of bf16 pairs for vdpbf16ps.
// takes_bf16_pairs() says when it is used: K comes in whole vectors and every weight is a bf16 value, so there are no tails.
#include <immintrin.h>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {

// Rows of elements are transposed as 32-bit words, whatever these are.
void linear_pack_rows_avx512_vbmi(const float* x, int64_t x_stride, int64_t rows, const PackLayout& layout,
                                  float* packed);
void linear_convert_row_avx512_vbmi(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out);
void linear_dot_avx512_bf16(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride,
                            int64_t rows, int64_t k_blocks, const Output& out);

namespace {

#include "kernels/linear/vector16-inl.h"
#include "kernels/linear/weight_view-inl.h"

#include "kernels/linear/bf16_formats-inl.h"
#include "kernels/linear/micro_tile-inl.h"
#include "kernels/linear/prefetch-inl.h"

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
  // Features c of 16 rows, d[c] bytes -> where decode() takes pairs from: feature pair h of row 4*q + d at 16*q + 8*h + 2*d.
  const I16 order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
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
        const I16 codes = _mm512_shuffle_epi8(d[c], order);
        shared.decode(codes, pairs);
        for (int r = 1; r < 16 && !one_scale; ++r) {
          I16 own[2];
          E4m3Registers(s.scales[r].at(g)).decode(codes, own);
          const auto mask = static_cast<__mmask16>(1u << r);
          for (int h = 0; h < 2; ++h) pairs[h] = _mm512_mask_mov_epi32(pairs[h], mask, own[h]);
        }
        // Two pairs of eight; four pairs of one vector, then four of the next.
        const int64_t pair = (k - begin) / 64 * 32 + (k - begin) % 64 / 16 * 4 + c / 2 * 16 + c % 2 * 2;
        for (int h = 0; h < 2; ++h) p.put(pair + h, pairs[h]);
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
      const int64_t chunk = (k - begin) / 128 * 64, first = (k - begin) % 128 / 8;  // pairs; eights of features
      for (int c = 0; c < 4; ++c) {
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {  // codes q and 4 + q of eight: the low bits of both halves
          const I16 index = _mm512_srl_epi32(d[c], _mm_cvtsi32_si128(4 * q));
          I16 pairs = _mm512_permutexvar_epi16(index, values);
          if (hard) {
            for (int r = 0; r < 16; ++r) {
              const I16 own = _mm512_permutexvar_epi16(index, _mm512_load_si512(kE2m1.of[s.scales[r].at(g)].value));
              pairs = _mm512_mask_mov_epi32(pairs, static_cast<__mmask16>(1u << r), own);
            }
          } else {
            pairs = _mm512_mask_add_epi16(pairs, _mm512_test_epi16_mask(pairs, magnitude), pairs, exponent);
          }
          p.put(chunk + 16 * q + first + c, pairs);
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

// Order of pairs: chunks of 128 bf16 values in features' order -> as a row of elements has them.
using OrderFn = void(const uint16_t* values, uint16_t* pairs, int64_t count);

void order_neighbours(const uint16_t* values, uint16_t* pairs, int64_t count) {
  __builtin_memcpy(pairs, values, static_cast<size_t>(count) * sizeof(uint16_t));
}

// Of each 64 values, vector h gets those of every second eight.
void order_fp8(const uint16_t* values, uint16_t* pairs, int64_t count) {
  for (int64_t i = 0; i < count; i += 64) {
    const I16 a = _mm512_load_si512(values + i), b = _mm512_load_si512(values + i + 32);
    _mm512_storeu_si512(pairs + i, _mm512_shuffle_i32x4(a, b, 0x88));
    _mm512_storeu_si512(pairs + i + 32, _mm512_shuffle_i32x4(a, b, 0xdd));
  }
}

// Half j of vector q is value 4 * j + q.
void order_fp4(const uint16_t* values, uint16_t* pairs, int64_t) {
  const I16 every_fourth =
      _mm512_setr_epi64(0x000c000800040000, 0x001c001800140010, 0x002c002800240020, 0x003c003800340030, 0, 0, 0, 0);
  I16 v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm512_load_si512(values + 32 * i);
  for (int q = 0; q < 4; ++q) {
    const I16 index = _mm512_add_epi16(every_fourth, _mm512_set1_epi16(static_cast<int16_t>(q)));
    const I16 low = _mm512_permutex2var_epi16(v[0], index, v[1]), high = _mm512_permutex2var_epi16(v[2], index, v[3]);
    _mm512_storeu_si512(pairs + 32 * q, _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1));
  }
}

// x' as pairs. Blocks of activation quantisation are whole chunks, and a chunk is read before it is overwritten.
template <OrderFn& kOrder>
void convert_row(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out) {
  constexpr int64_t kChunk = 128;
  auto* pairs = reinterpret_cast<uint16_t*>(out);
  alignas(64) float value[kChunk];
  alignas(64) uint16_t rounded[kChunk];
  for (int64_t begin = 0; begin < k; begin += kChunk) {
    const int64_t count = at_most(kChunk, k - begin);
    const auto* chunk = static_cast<const std::byte*>(x) + begin * dtype_bits(dtype) / 8;
    linear_convert_row_avx512_vbmi(chunk, dtype, count, act_quant, value);
    for (int64_t i = 0; i < count; i += 16) f_store_bf16(rounded + i, f_load(value + i));
    kOrder(rounded, pairs + begin, count);
  }
}

int64_t max_dot_rows(DType) { return kMostDotRows; }

}  // namespace

template <OrderFn& kOrder>
constexpr LinearKernels kKernels = {
    2,
    kTileRows,
    16 * kTileVectors,
    max_dot_rows,
    convert_row<kOrder>,
    linear_dot_avx512_bf16,
    linear_pack_rows_avx512_vbmi,
    pack_weights,
    tile,
};
const LinearKernels kLinearKernels_avx512_bf16 = kKernels<order_neighbours>;
const LinearKernels kLinearKernels_avx512_bf16_fp8 = kKernels<order_fp8>;
const LinearKernels kLinearKernels_avx512_bf16_fp4 = kKernels<order_fp4>;

}  // namespace weft
