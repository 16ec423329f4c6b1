// Many rows: packing of weights for the micro-kernel of micro_tile-inl.h. One source for every instruction set.
#include <immintrin.h>

#include <type_traits>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

#include "kernels/linear/vector16-inl.h"
#include "kernels/linear/weight_view-inl.h"

#include "kernels/linear/formats-inl.h"

__attribute__((always_inline)) inline F16 multiply_add(F16 x, F16 w, F16 sum) { return f_fma(x, w, sum); }

#include "kernels/linear/micro_tile-inl.h"
#include "kernels/linear/prefetch-inl.h"

// Where 16 columns of a block of a panel are stored: element k of the block at lane[k % 16] + k / 16 * width.
struct Panel {
  int64_t width;
  float* lane[kLanes];

  Panel(float* base, const PackLayout& layout, int64_t panel_width, int64_t block) : width(panel_width) {
    for (int64_t j = 0; j < kLanes; ++j) lane[j] = base + (block * kLanes + kVisit[j]) * layout.lane_steps * width;
  }
  float* at(int64_t k) const { return lane[k % kLanes] + k / kLanes * width; }
};

// Sixteen rows of w.
struct Source {
  const WeightMatrix* w;
  const uint8_t* base;
  int64_t row[16];  // bytes
  int64_t n[16];    // row numbers; those beyond the last repeat it
};

// pack_step: kStep elements of K of all 16 rows, at byte `offset` of each, times `scale`, to vectors step, step + 1, ...
// of all lanes of the panel.
template <class Format>
constexpr int64_t kStep = Format::kBits == 4 ? 32 : 16;

__attribute__((always_inline)) inline void put(const Panel& p, int lane, int64_t element, F16 v) {
  f_store(p.lane[lane] + element, v);
}

__attribute__((always_inline)) inline void pack_step(FormatF32, const Source& s, int64_t offset, F16, const Panel& p, int64_t element) {
#pragma GCC unroll 4
  for (int j = 0; j < 16; j += 4) {
    I16 d[4];
    load_transposed(s.base + offset + j * 4, s.row, d);
    for (int c = 0; c < 4; ++c) put(p, j + c, element, as_f(d[c]));
  }
}

__attribute__((always_inline)) inline void pack_step(FormatBf16, const Source& s, int64_t offset, F16, const Panel& p, int64_t element) {
#pragma GCC unroll 2
  for (int j = 0; j < 16; j += 8) {
    I16 d[4];
    load_transposed(s.base + offset + j * 2, s.row, d);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      put(p, j + 2 * c, element, as_f(i_shl<16>(d[c])));
      put(p, j + 2 * c + 1, element, as_f(i_and(d[c], i_set(0xffff0000u))));
    }
  }
}

__attribute__((always_inline)) inline void pack_step(FormatFp4, const Source& s, int64_t offset, F16 scale, const Panel& p, int64_t element) {
  I16 d[4];
  load_transposed(s.base + offset, s.row, d);
  const FormatFp4::Scale table = FormatFp4::prepare(1);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const auto value = [&](I16 codes) { return f_mul(FormatFp4::lookup(codes, table), scale); };
    const int lane = c % 2 * 8;
    const int64_t at = element + c / 2 * p.width;
    put(p, lane, at, value(d[c]));
    put(p, lane + 1, at, value(i_shr<4>(d[c])));
    put(p, lane + 2, at, value(i_shr<8>(d[c])));
    put(p, lane + 3, at, value(i_shr<12>(d[c])));
    put(p, lane + 4, at, value(i_shr<16>(d[c])));
    put(p, lane + 5, at, value(i_shr<20>(d[c])));
    put(p, lane + 6, at, value(i_shr<24>(d[c])));
    put(p, lane + 7, at, value(i_shr<28>(d[c])));
  }
}

#if defined(__AVX512VBMI__)
__attribute__((always_inline)) inline void pack_step(FormatFp8, const Source& s, int64_t offset, F16 scale, const Panel& p, int64_t element) {
  I16 d[4];
  load_transposed(s.base + offset, s.row, d);
  const __m512i order = _mm512_load_si512(kTransposed.index);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    F16 w[4];
    FormatFp8::decode_ordered(_mm512_permutexvar_epi8(order, d[c]), scale, w);
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) put(p, 4 * c + u, element, w[u]);
  }
}
#endif

// Decoded along K row by row, then transposed as floats.
template <class Format>
__attribute__((always_inline)) inline void pack_step(Format, const Source& s, int64_t offset, F16 scale, const Panel& p, int64_t element) {
  alignas(64) float value[16][16], row_scale[16];
  f_store(row_scale, scale);
  for (int r = 0; r < 16; ++r) {
    f_store(value[r], Format::decode_one(s.base + s.row[r] + offset, Format::prepare(row_scale[r])));
  }
  int64_t row[16];
  for (int r = 0; r < 16; ++r) row[r] = r * 64;
#pragma GCC unroll 4
  for (int c = 0; c < 16; c += 4) {
    I16 d[4];
    load_transposed(reinterpret_cast<const uint8_t*>(value) + c * 4, row, d);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) put(p, c + i, element, as_f(d[i]));
  }
}

// Elements one by one: what is left of a block, and steps that cross a scale.
__attribute__((noinline)) void pack_plain(const Source& s, const Panel& p, int64_t begin, int64_t k, int64_t count) {
  for (int64_t i = k; i < k + count; ++i) {
    float* out = p.at(i - begin);
    for (int r = 0; r < 16; ++r) out[r] = weight_value(*s.w, s.n[r], i);
  }
}

// Scales of 16 rows, groups of K in ascending order.
template <class Format, class Scales>
struct GroupScales {
  Scales scales[16];
  bool hard = false;  // of the last group

  explicit GroupScales(const Source& s) {
    for (int r = 0; r < 16; ++r) scales[r] = Scales(*s.w, s.n[r]);
  }
  F16 at(int64_t group) {
    alignas(64) float value[16];
    hard = false;
    for (int r = 0; r < 16; ++r) {
      value[r] = scales[r].at(group);
      hard |= Format::is_hard_scale(value[r]);
    }
    return f_load(value);
  }
};

// Short groups: 16 of them are transposed at once.
template <>
struct GroupScales<FormatFp4, ScalesE8m0> {
  static constexpr bool hard = false;
  const WeightMatrix* w;
  ScalesE8m0 scales[16];
  int64_t row[16];
  int64_t num_groups, cached = 0, cached_end = 0;
  alignas(64) float value[16][16];

  explicit GroupScales(const Source& s) : w(s.w), num_groups(scale_groups(*w).of(w->cols - 1) + 1) {
    for (int r = 0; r < 16; ++r) {
      scales[r] = ScalesE8m0(*w, s.n[r]);
      row[r] = scale_offset(*w, s.n[r]);
    }
  }
  __attribute__((always_inline)) F16 at(int64_t group) {
    if (group < cached || group >= cached_end) fill(group);
    return f_load(value[group - cached]);
  }
  __attribute__((noinline)) void fill(int64_t group) {
    cached = group;
    if (group + 16 > num_groups) {  // nothing beyond the scales is read
      for (int r = 0; r < 16; ++r) value[0][r] = scales[r].at(group);
      cached_end = group + 1;
      return;
    }
    I16 codes[4];
    load_transposed(static_cast<const uint8_t*>(w->scale) + group, row, codes);
    for (int c = 0; c < 4; ++c) {
      f_store(value[4 * c], power(codes[c]));
      f_store(value[4 * c + 1], power(i_shr<8>(codes[c])));
      f_store(value[4 * c + 2], power(i_shr<16>(codes[c])));
      f_store(value[4 * c + 3], power(i_shr<24>(codes[c])));
    }
    cached_end = group + 16;
  }
  // 2^(code - 127) of the lowest byte; code 0 has its bit in the mantissa, 255 (an infinity by its exponent) is NaN.
  static F16 power(I16 codes) {
    const F16 plain = as_f(i_shl<23>(i_and(codes, i_set(0xff))));
    const F16 tiny = f_select_less(f_zero(), plain, plain, f_set(0x1p-127f));
    return f_select_less(plain, f_set(__builtin_inff()), tiny, f_set(__builtin_nanf("")));
  }
};

// The same bytes of the next 16 rows, once for each cache line: memory is read while this panel is computed.
inline void prefetch_next(const Source& s, int64_t offset, int64_t step_bytes) {
  if (step_bytes < kCacheLine && (offset & (kCacheLine - 1)) >= step_bytes) return;
  const int64_t ahead = 16 * (s.row[1] - s.row[0]);
  for (int r = 0; r < 16; ++r) {
    _mm_prefetch(reinterpret_cast<const char*>(s.base + s.row[r] + offset + ahead), _MM_HINT_T1);
  }
}

// Whole steps of [k, stop), which share `scale`; returns where they end. Apart from the walk over blocks and groups for codes
// of a byte: there are not enough registers for both.
template <class Format>
__attribute__((always_inline)) inline int64_t pack_steps(const Source& s, const Panel& p, int64_t begin, int64_t k,
                                                         int64_t stop, F16 scale) {
  for (; k + kStep<Format> <= stop; k += kStep<Format>) {
    const int64_t offset = Format::kBits < 8 ? k >> 1 : k * (Format::kBits / 8);
    prefetch_next(s, offset, kStep<Format> * Format::kBits / 8);
    pack_step(Format{}, s, offset, scale, p, (k - begin) / kLanes * p.width);
  }
  return k;
}
template <class Format>
__attribute__((noinline)) int64_t pack_steps_apart(const Source& s, const Panel& p, int64_t begin, int64_t k,
                                                   int64_t stop, const F16& scale) {
  return pack_steps<Format>(s, p, begin, k, stop, scale);
}

template <class Format, class Scales>
void pack_columns(const Source& s, const PackLayout& layout, int64_t width, float* panel) {
  const ScaleGroups groups = scale_groups(*s.w);
  GroupScales<Format, Scales> scales(s);
  bool hard_codes = false;
  for (int r = 0; r < 16; ++r) hard_codes |= Format::is_hard(s.base + s.row[r], layout.k);
  for (int64_t b = 0; b < layout.k_blocks; ++b) {
    const Panel p(panel, layout, width, b);
    const int64_t begin = b * layout.block, end = begin + layout.block;
    int64_t k = begin, g = groups.of(k), group_end = groups.end(g);
    while (k < end) {
      const F16 scale = scales.at(g);
      const int64_t stop = at_most(end, group_end);
      const int64_t to_lane0 = at_most((begin - k) & (kLanes - 1), stop - k);  // whole vectors begin in lane 0
      if (to_lane0 > 0) pack_plain(s, p, begin, k, to_lane0);
      k += to_lane0;
      if (!scales.hard && !hard_codes) {
        k = Format::kBits == 8 ? pack_steps_apart<Format>(s, p, begin, k, stop, scale)
                               : pack_steps<Format>(s, p, begin, k, stop, scale);
      }
      if (k < stop) pack_plain(s, p, begin, k, stop - k);
      k = stop;
      ++g;
      group_end += groups.columns;
    }
  }
}

}  // namespace

void WEFT_ISA_NAME(linear_convert_row)(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out);
void WEFT_ISA_NAME(linear_pack_rows)(const float* x, int64_t x_stride, int64_t rows, const PackLayout& layout,
                                     float* packed);
void WEFT_ISA_NAME(linear_dot)(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride,
                               int64_t rows, int64_t k_blocks, const Output& out);

namespace {

void pack_weights(const WeightMatrix& w, int64_t row0, int64_t num_rows, int64_t width, const PackLayout& layout,
                  float* panel) {
  const WeightMatrix view = resolved(w);
  const int64_t row_bytes = row_bytes_of(view);
  for (int64_t c = 0; c < width && c < num_rows; c += 16) {
    Source s{&view, static_cast<const uint8_t*>(w.data), {}, {}};
    for (int r = 0; r < 16; ++r) {
      s.n[r] = row0 + at_most(c + r, num_rows - 1);
      s.row[r] = s.n[r] * row_bytes;
    }
    const bool done = with_format(
        w, [&]<class Format, class Scales>() { pack_columns<Format, Scales>(s, layout, width, panel + c); });
    for (int64_t b = 0; b < layout.k_blocks && !done; ++b) {
      pack_plain(s, Panel(panel + c, layout, width, b), b * layout.block, b * layout.block, layout.block);
    }
  }
}

// Measured, K = 4096: where dot products, which decode weights again for every four rows, cost what packing does.
int64_t max_dot_rows(DType weight_dtype) {
#if defined(__AVX512F__)
  return kMostDotRows;
#else
  constexpr int64_t kFourBits = 4, kOthers = 8;
  return weight_dtype == DType::kF4E2M1 ? kFourBits : kOthers;
#endif
}

}  // namespace

extern const LinearKernels WEFT_ISA_NAME(kLinearKernels);
extern const LinearKernels WEFT_ISA_NAME(kInt8Kernels);
const LinearKernels WEFT_ISA_NAME(kLinearKernels) = {
    1,
    kTileRows,
    16 * kTileVectors,
    max_dot_rows,
    WEFT_ISA_NAME(linear_convert_row),
    WEFT_ISA_NAME(linear_dot),
    WEFT_ISA_NAME(linear_pack_rows),
    pack_weights,
    tile,
    &WEFT_ISA_NAME(kInt8Kernels),
};

}  // namespace weft
