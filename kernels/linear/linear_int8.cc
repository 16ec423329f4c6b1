// Activations of int8 on weights of int8, summed in int32: rows, dot products and tiles. One source for every instruction set.
//
// Elements (linear_internal.h): four features as int8 where there is vpdpbusd, else two as int16; a row ends with one more word,
// its scale. vpdpbusd takes one operand without a sign: weights are xored with 0x80, which adds 128 to each, and 128 times the sum
// of the row's numbers is taken off again.
//
// Packed operands of K elements: word (step, c) at step * W + c for step < K; behind them, of rows: what the sums of each block
// start from, then the scales; of columns: the scales, then the biases of the first block.
#include <immintrin.h>

#include "kernels/linear/isa_name.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

#include "kernels/linear/prefetch-inl.h"
#include "kernels/linear/vector16-inl.h"
#include "kernels/linear/weight_view-inl.h"

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

#if defined(__AVX512VNNI__)
constexpr int64_t kFeatures = 4;
using Number = int8_t;
#else
constexpr int64_t kFeatures = 2;
using Number = int16_t;
#endif

#if defined(__AVX512F__)
constexpr int kTileRows = 12;  // 24 sums, two weights, one broadcast
constexpr int kTileVectors = 2;

inline I16 i_zero() { return _mm512_setzero_si512(); }
inline I16 i_load(const void* p) { return _mm512_loadu_si512(p); }
inline void i_store(void* p, I16 v) { _mm512_storeu_si512(p, v); }
inline F16 to_f(I16 v) { return _mm512_cvtepi32_ps(v); }
inline I16 to_i(F16 v) { return _mm512_cvtps_epi32(v); }  // nearest even, NaN the least
inline __m256i halves_added(I16 v) { return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1)); }
#else
constexpr int kTileRows = 4;
constexpr int kTileVectors = 1;

inline I16 i_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I16 i_load(const void* p) {
  const auto* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
inline void i_store(void* p, I16 v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v.lo);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, v.hi);
}
inline F16 to_f(I16 v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
inline I16 to_i(F16 v) { return {_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)}; }
inline __m256i halves_added(I16 v) { return _mm256_add_epi32(v.lo, v.hi); }
#endif

// The sums of all elements of four vectors.
inline __m128i sums_of(I16 a, I16 b, I16 c, I16 d) {
  const __m256i ab = _mm256_hadd_epi32(halves_added(a), halves_added(b)), cd = _mm256_hadd_epi32(halves_added(c), halves_added(d));
  const __m256i abcd = _mm256_hadd_epi32(ab, cd);
  return _mm_add_epi32(_mm256_castsi256_si128(abcd), _mm256_extracti128_si256(abcd, 1));
}
inline int32_t sum_of(I16 v) { return _mm_cvtsi128_si32(sums_of(v, v, v, v)); }

// sum + the products of the features of 16 elements of each.
#if defined(__AVX512VNNI__)
// In place: GCC 12 copies the accumulators of a loop around _mm512_dpbusd_epi32.
__attribute__((always_inline)) inline I16 multiply_add(I16 w, I16 x, I16 sum) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  return sum;
}
#elif defined(__AVX512F__)
__attribute__((always_inline)) inline I16 multiply_add(I16 w, I16 x, I16 sum) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x));
}
#else
__attribute__((always_inline)) inline I16 multiply_add(I16 w, I16 x, I16 sum) {
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(w.lo, x.lo)), _mm256_add_epi32(sum.hi, _mm256_madd_epi16(w.hi, x.hi))};
}
#endif

// ---- Rows

inline float f32_of(const void* x, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(x)[i];
  return __builtin_bit_cast(float, static_cast<uint32_t>(static_cast<const uint16_t*>(x)[i]) << 16);
}

// Features [i, i + 16) of a row, zeros beyond its end.
inline F16 load_features(const void* x, DType dtype, int64_t i, int64_t k) {
  if (i + 16 <= k) {
    return dtype == DType::kF32 ? f_load(static_cast<const float*>(x) + i) : f_load_bf16(static_cast<const uint16_t*>(x) + i);
  }
  alignas(64) float rest[16] = {};
  for (int64_t j = i; j < k; ++j) rest[j - i] = f32_of(x, dtype, j);
  return f_load(rest);
}

inline void store_numbers(Number* out, F16 v, int64_t count) {
  const F16 clamped = f_max(f_set(-128.0f), f_min(f_set(127.0f), v));
  alignas(64) int32_t numbers[16];
  i_store(numbers, to_i(clamped));
  alignas(64) Number narrow[16];
  for (int j = 0; j < 16; ++j) narrow[j] = static_cast<Number>(numbers[j] < -128 ? -128 : numbers[j]);
  __builtin_memcpy(out, narrow, static_cast<size_t>(count) * sizeof(Number));
}

// x and out may be the same F32 row: what is written lies behind what was read.
void quantise_row(const void* x, DType dtype, int64_t k, const RowQuant& quant, float* out) {
  F16 most = f_zero(), nans = f_zero();
  for (int64_t i = 0; i < k; i += 16) {
    const F16 v = load_features(x, dtype, i, k);
    most = f_max(f_abs(v), most);
    nans = f_max(f_select_nan(v, f_set(1.0f), f_zero()), nans);
  }
  float absmax = quant.absmax != nullptr ? *quant.absmax : f_reduce_max(most);
  const bool has_nan = f_reduce_max(nans) > 0;
  if (has_nan) absmax = __builtin_nanf("");
  auto* numbers = reinterpret_cast<Number*>(out);
  float scale = 1;
  if (quant.input != nullptr) {
    const F16 divisor = f_set(quant.input[0]), factor = f_set(quant.input[1]), offset = f_set(quant.input[2]);
    for (int64_t i = 0; i < k; i += 16) {
      const F16 steps = f_rint(f_mul(f_div(load_features(x, dtype, i, k), divisor), factor));
      store_numbers(numbers + i, f_add(steps, offset), at_most(16, k - i));
    }
    if (has_nan) scale = absmax;
  } else {
    scale = absmax / 127.0f;
    for (int64_t i = 0; i < k; i += 16) {
      const F16 v = load_features(x, dtype, i, k);
      store_numbers(numbers + i, scale == 0 ? f_zero() : f_rint(f_div(v, f_set(scale))), at_most(16, k - i));
    }
  }
  out[k / kFeatures] = scale;
}

void pack_rows(const float* x, int64_t x_stride, int64_t rows, const PackLayout& layout, float* packed) {
  const auto* from = reinterpret_cast<const uint32_t*>(x);
  auto* to = reinterpret_cast<uint32_t*>(packed);
  constexpr int64_t kRun = 16;  // words of a row that are read together: a cache line
  for (int64_t s = 0; s < layout.k; s += kRun) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = s; i < at_most(s + kRun, layout.k); ++i) to[i * rows + r] = from[r * x_stride + i];
    }
  }
  auto* start = reinterpret_cast<int32_t*>(to + layout.k * rows);
  for (int64_t b = 0; b < layout.k_blocks; ++b) {
    for (int64_t r = 0; r < rows; ++r) {
      int32_t sum = 0;
      if constexpr (kFeatures == 4) {
        const auto* numbers = reinterpret_cast<const int8_t*>(from + r * x_stride + b * layout.block);
        for (int64_t i = 0; i < layout.block * kFeatures; ++i) sum += numbers[i];
      }
      start[b * rows + r] = -128 * sum;
    }
  }
  for (int64_t r = 0; r < rows; ++r) to[(layout.k + layout.k_blocks) * rows + r] = from[r * x_stride + layout.k];
}

// ---- Weights

inline float scale_of(const WeightMatrix& w, int64_t row) {
  return static_cast<const float*>(w.scale)[(row + w.row0) * scales_in_row(w)];  // takes_int8: one for each row
}
inline int32_t bias_of(const WeightMatrix& w, int64_t row) {
  return w.bias != nullptr && w.col0 == 0 ? w.bias[row + w.row0] : 0;
}
inline const int8_t* row_of(const WeightMatrix& w, int64_t row) {
  return static_cast<const int8_t*>(w.data) + row * row_elements(w);
}

#if defined(__AVX512VNNI__)
// Numbers of 4 features of 16 columns -> elements.
inline void unfold(I16 words, int64_t width, uint32_t* out) { i_store(out, _mm512_xor_si512(words, i_set(0x80808080u))); }
#elif defined(__AVX512F__)
inline void unfold(I16 words, int64_t width, uint32_t* out) {
  const I16 even = _mm512_srai_epi16(_mm512_slli_epi16(words, 8), 8), odd = _mm512_srai_epi16(words, 8);
  i_store(out, _mm512_or_si512(_mm512_and_si512(even, i_set(0xffff)), _mm512_slli_epi32(odd, 16)));
  i_store(out + width, _mm512_or_si512(_mm512_srli_epi32(even, 16), _mm512_and_si512(odd, i_set(0xffff0000u))));
}
#else
inline void unfold(__m256i words, int64_t width, uint32_t* out) {
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(words, 8), 8), odd = _mm256_srai_epi16(words, 8);
  const __m256i low = _mm256_set1_epi32(0xffff);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                      _mm256_or_si256(_mm256_and_si256(even, low), _mm256_slli_epi32(odd, 16)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + width),
                      _mm256_or_si256(_mm256_srli_epi32(even, 16), _mm256_andnot_si256(low, odd)));
}
inline void unfold(I16 words, int64_t width, uint32_t* out) {
  unfold(words.lo, width, out);
  unfold(words.hi, width, out + 8);
}
#endif

void pack_weights(const WeightMatrix& w, int64_t row0, int64_t num_rows, int64_t width, const PackLayout& layout, float* panel) {
  auto* to = reinterpret_cast<uint32_t*>(panel);
  const int64_t words = layout.k * kFeatures / 4;  // of 4 features, as they are stored
  for (int64_t c = 0; c < width; c += 16) {
    const auto* base = reinterpret_cast<const uint8_t*>(row_of(w, row0));
    int64_t row[16];  // bytes; rows beyond the last repeat it
    for (int64_t r = 0; r < 16; ++r) row[r] = at_most(c + r, num_rows - 1) * row_elements(w);
    int64_t s = 0;
    for (; s + 4 <= words; s += 4) {
      I16 d[4];
      load_transposed(base + 4 * s, row, d);
      for (int64_t i = 0; i < 4; ++i) unfold(d[i], width, to + (s + i) * 4 / kFeatures * width + c);
    }
    for (; s < words; ++s) {
      alignas(64) uint32_t word[16];
      for (int r = 0; r < 16; ++r) __builtin_memcpy(&word[r], base + row[r] + 4 * s, 4);
      unfold(i_load(word), width, to + s * 4 / kFeatures * width + c);
    }
    for (int64_t r = 0; r < 16; ++r) {
      const int64_t n = row0 + at_most(c + r, num_rows - 1);
      panel[layout.k * width + c + r] = scale_of(w, n);
      to[(layout.k + 1) * width + c + r] = static_cast<uint32_t>(bias_of(w, n));
    }
  }
}

// ---- Tiles

void store_outputs(const Output& out, int64_t m, int64_t n, F16 v, int64_t count) {
  if (out.dtype == DType::kF32) {
    f_store_first(static_cast<float*>(out.y) + m * out.stride + n, v, count);
  } else {
    alignas(64) uint16_t rounded[16];
    f_store_bf16(rounded, v);
    __builtin_memcpy(static_cast<uint16_t*>(out.y) + m * out.stride + n, rounded, static_cast<size_t>(count) * 2);
  }
}

// A tile of kRows x (16 * kVectors). Blocks wait in `stack` until the binary counter adds them.
template <int kRows, int kVectors>
void run_tile(const float* rows, const float* panel, int64_t cols, const PackLayout& layout, const Output& out) {
  constexpr int kSize = kRows * kVectors, kWidth = 16 * kVectors, kLevels = 5;
  alignas(64) float stack[kLevels][kSize * 16];
  const auto* start = reinterpret_cast<const int32_t*>(rows + layout.k * kRows);
  const float* row_scales = rows + (layout.k + layout.k_blocks) * kRows;
  const float* column_scales = panel + layout.k * kWidth;
  const float* bias = panel + (layout.k + 1) * kWidth;
  F16 value[kSize];
  for (int64_t b = 0; b < layout.k_blocks; ++b) {
    I16 acc[kSize];
#pragma GCC unroll 24
    for (int i = 0; i < kSize; ++i) acc[i] = i_set(static_cast<uint32_t>(start[b * kRows + i / kVectors]));
    const float* x = rows + b * layout.block * kRows;
    const float* w = panel + b * layout.block * kWidth;
    for (int64_t step = 0; step < layout.block; ++step, x += kRows, w += kWidth) {
      I16 wv[kVectors];
#pragma GCC unroll 2
      for (int c = 0; c < kVectors; ++c) wv[c] = i_load(w + 16 * c);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const I16 xv = as_i(f_set(x[r]));
#pragma GCC unroll 2
        for (int c = 0; c < kVectors; ++c) acc[r * kVectors + c] = multiply_add(wv[c], xv, acc[r * kVectors + c]);
      }
    }
    for (int i = 0; i < kSize; ++i) {
      const int c = i % kVectors * 16;
      const I16 sum = b == 0 ? i_add(acc[i], i_load(bias + c)) : acc[i];
      value[i] = f_mul(f_mul(to_f(sum), f_load(column_scales + c)), f_set(row_scales[i / kVectors]));
    }
    int level = 0;
    for (; (b >> level & 1) != 0; ++level) {
      for (int i = 0; i < kSize; ++i) value[i] = f_add(f_load(stack[level] + 16 * i), value[i]);
    }
    if (b + 1 == layout.k_blocks) break;
    for (int i = 0; i < kSize; ++i) f_store(stack[level] + 16 * i, value[i]);
  }
  for (int i = 0; i < kSize; ++i) {
    const int64_t n = i % kVectors * 16, count = at_most(16, cols - n);
    if (count > 0) store_outputs(out, i / kVectors, n, value[i], count);
  }
}

using TileFn = void(const float* rows, const float* panel, int64_t cols, const PackLayout& layout, const Output& out);

template <int kVectors, int... kRows>
struct TileTable {
  static constexpr TileFn* run[] = {run_tile<kRows, kVectors>...};
};
#if defined(__AVX512F__)
template <int kVectors>
using Tiles = TileTable<kVectors, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
#else
template <int kVectors>
using Tiles = TileTable<kVectors, 1, 2, 3, 4>;
#endif

void tile(const float* packed_rows, int64_t rows, const float* panel, int64_t width, int64_t cols, const PackLayout& layout,
          const Output& out) {
  if (width == 16) return Tiles<1>::run[rows - 1](packed_rows, panel, cols, layout, out);
  Tiles<kTileVectors>::run[rows - 1](packed_rows, panel, cols, layout, out);
}

// ---- Dot products: lanes along K over the stored rows.

constexpr int64_t kStep = 16 * kFeatures;  // features of a vector

#if defined(__AVX512VNNI__)
__attribute__((always_inline)) inline I16 load_weights(const int8_t* w, int64_t count) {
  const __mmask64 mask = count >= kStep ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
  return _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, w), i_set(0x80808080u));
}
__attribute__((always_inline)) inline I16 load_numbers(const Number* x, int64_t count) {
  const __mmask64 mask = count >= kStep ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
  return _mm512_maskz_loadu_epi8(mask, x);
}
#else
inline I16 widen(const int8_t* w) {
#if defined(__AVX512F__)
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)));
#else
  const auto* v = reinterpret_cast<const __m128i*>(w);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(v)), _mm256_cvtepi8_epi16(_mm_loadu_si128(v + 1))};
#endif
}
__attribute__((always_inline)) inline I16 load_weights(const int8_t* w, int64_t count) {
  if (count >= kStep) return widen(w);
  alignas(64) int8_t rest[kStep] = {};
  for (int64_t i = 0; i < count; ++i) rest[i] = w[i];
  return widen(rest);
}
__attribute__((always_inline)) inline I16 load_numbers(const Number* x, int64_t count) {
  if (count >= kStep) return i_load(x);
  alignas(64) Number rest[kStep] = {};
  for (int64_t i = 0; i < count; ++i) rest[i] = x[i];
  return i_load(rest);
}
#endif

constexpr int kMostBlocks = 16;

// What the sums of a row of x start from, by block.
struct RowStart {
  int32_t of[kMostBlocks];
};
RowStart row_start(const Number* x, int64_t block, int64_t k_blocks) {
  RowStart start{};
  if constexpr (kFeatures == 4) {
    for (int64_t b = 0; b < k_blocks; ++b) {
      I16 sum = i_zero();
      for (int64_t i = 0; i < block; i += kStep) {
        sum = multiply_add(i_set(0x01010101u), load_numbers(x + b * block + i, block - i), sum);
      }
      start.of[b] = -128 * sum_of(sum);
    }
  }
  return start;
}

struct DotJob {
  const WeightMatrix* w;
  const float* x;
  int64_t x_stride, k_blocks;
  const RowStart* starts;
};

template <int kWeights, int kRows>
void dot_block(const DotJob& job, int64_t n, int64_t m, int64_t row0, const Output& out) {
  const WeightMatrix& w = *job.w;
  const int64_t block = w.cols / job.k_blocks;
  const int8_t* weights[kWeights];
  const Number* numbers[kRows];
  for (int i = 0; i < kWeights; ++i) weights[i] = row_of(w, n + i);
  for (int r = 0; r < kRows; ++r) numbers[r] = reinterpret_cast<const Number*>(job.x + (m + r) * job.x_stride);
  // Output of row r and weight i: lane r * kWeights + i. A short sum takes no longer than what follows it: all lanes at once.
  constexpr int kSums = kWeights * kRows;
  alignas(64) float weight_scales[16] = {}, row_scales[16] = {};
  for (int i = 0; i < kSums; ++i) {
    weight_scales[i] = i < kWeights ? scale_of(w, n + i) : weight_scales[i - kWeights];
    row_scales[i] = job.x[(m + i / kWeights) * job.x_stride + w.cols / kFeatures];
  }
  F16 stack[5], value = f_zero();
  Ahead ahead(reinterpret_cast<const uint8_t*>(weights[0]), row_elements(w), is_contiguous(w), kWeights);
  for (int64_t b = 0; b < job.k_blocks; ++b) {
    I16 acc[kSums];
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) acc[i] = i_zero();
    const int64_t begin = b * block, end = begin + block;
    const auto step = [&](int64_t k, int64_t count) __attribute__((always_inline)) {
      I16 xv[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) xv[r] = load_numbers(numbers[r] + k, count);
#pragma GCC unroll 4
      for (int i = 0; i < kWeights; ++i) {
        const I16 wv = load_weights(weights[i] + k, count);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) acc[r * kWeights + i] = multiply_add(wv, xv[r], acc[r * kWeights + i]);
      }
    };
    int64_t k = begin;
    for (; k + kStep <= end; k += kStep) {
      if (m == 0 && k % kCacheLine < kStep) ahead.lines<kWeights>();
      step(k, kStep);
    }
    if (k < end) step(k, end - k);
    alignas(64) int32_t sums[16] = {}, starts[16] = {};
    const auto acc_of = [&](int i) __attribute__((always_inline)) { return acc[at_most(i, kSums - 1)]; };
#pragma GCC unroll 4
    for (int i = 0; i < kSums; i += 4) {
      _mm_store_si128(reinterpret_cast<__m128i*>(sums + i), sums_of(acc_of(i), acc_of(i + 1), acc_of(i + 2), acc_of(i + 3)));
    }
    for (int i = 0; i < kSums; ++i) starts[i] = job.starts[m + i / kWeights].of[b] + (b == 0 ? bias_of(w, n + i % kWeights) : 0);
    value = f_mul(f_mul(to_f(i_add(i_load(sums), i_load(starts))), f_load(weight_scales)), f_load(row_scales));
    int level = 0;
    for (; (b >> level & 1) != 0; ++level) value = f_add(stack[level], value);
    if (b + 1 == job.k_blocks) break;
    stack[level] = value;
  }
  const auto put = [&](const auto* lanes, auto* y) {
    for (int r = 0; r < kRows; ++r) __builtin_memcpy(y + (m + r) * out.stride + n - row0, lanes + r * kWeights, kWeights * sizeof *lanes);
  };
  if (out.dtype == DType::kF32) {
    alignas(64) float lanes[16];
    f_store(lanes, value);
    put(lanes, static_cast<float*>(out.y));
  } else {
    alignas(64) uint16_t lanes[16];
    f_store_bf16(lanes, value);
    put(lanes, static_cast<uint16_t*>(out.y));
  }
}

template <int kWeights>
void dot_rows(const DotJob& job, int64_t n, int64_t rows, int64_t row0, const Output& out) {
  int64_t m = 0;
  for (; m + 4 <= rows; m += 4) dot_block<kWeights, 4>(job, n, m, row0, out);
  if (m + 2 <= rows) {
    dot_block<kWeights, 2>(job, n, m, row0, out);
    m += 2;
  }
  if (m < rows) dot_block<kWeights, 1>(job, n, m, row0, out);
}

void dot(const WeightMatrix& w, int64_t row0, int64_t row1, const float* x, int64_t x_stride, int64_t rows, int64_t k_blocks,
         const Output& out) {
  RowStart starts[kMostDotRows];
  for (int64_t m = 0; m < rows; ++m) {
    starts[m] = row_start(reinterpret_cast<const Number*>(x + m * x_stride), w.cols / k_blocks, k_blocks);
  }
  const DotJob job{&w, x, x_stride, k_blocks, starts};
  int64_t n = row0;
  for (; n + 4 <= row1; n += 4) dot_rows<4>(job, n, rows, row0, out);
  for (; n < row1; ++n) dot_rows<1>(job, n, rows, row0, out);
}

int64_t max_dot_rows(DType) { return 8; }

}  // namespace

extern const LinearKernels WEFT_ISA_NAME(kInt8Kernels);
const LinearKernels WEFT_ISA_NAME(kInt8Kernels) = {
    kFeatures, kTileRows, 16 * kTileVectors, max_dot_rows, nullptr, dot, pack_rows, pack_weights, tile, nullptr, quantise_row,
};

}  // namespace weft
