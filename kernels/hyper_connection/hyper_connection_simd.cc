#include "kernels/hyper_connection/hyper_connection_parts.h"
#include "kernels/lanes/lanes-inl.h"

namespace weft {
namespace {

// The projection of many rows works on tiles of kTileRows rows and kTileOutputs outputs whose sums stay in registers:
// all 16 lanes at once, or with AVX2 eight lanes after the others.
#ifdef __AVX512F__
using Vector = __m512;
constexpr int kVectorLanes = 16, kTileRows = 4, kTileOutputs = 6;
inline Vector load_vector(const float* p) { return _mm512_loadu_ps(p); }
inline void store_vector(float* p, Vector x) { _mm512_storeu_ps(p, x); }
inline Vector fma_vector(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
#else
using Vector = __m256;
constexpr int kVectorLanes = 8, kTileRows = 4, kTileOutputs = 3;
inline Vector load_vector(const float* p) { return _mm256_loadu_ps(p); }
inline void store_vector(float* p, Vector x) { _mm256_storeu_ps(p, x); }
inline Vector fma_vector(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
#endif
constexpr int kSingleRowOutputs = 6;

// Rows are projected in groups whose lane sums live on the stack, so that fn is read once per group. Inside a group K
// is cut into parts; the rows' part is converted and packed, because rows that lie a power of two apart share their
// cache sets.
constexpr int64_t kGroupRows = 16;
constexpr int64_t kPart = 256;

using LaneSums = float[kMaxHcOutputs + 1][kLanes];

// Adds the part's whole vectors of R packed rows and N outputs; `count` is a multiple of 16.
template <int R, int N>
inline void tile(const float* x, const float* fn, int64_t fn_stride, int64_t count, LaneSums* sums, int64_t output) {
  for (int lane = 0; lane < kLanes; lane += kVectorLanes) {
    Vector sum[R][N];
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) sum[r][n] = load_vector(sums[r][output + n] + lane);
    }
    for (int64_t i = lane; i < count; i += kLanes) {
      Vector f[N];
      for (int n = 0; n < N; ++n) f[n] = load_vector(fn + n * fn_stride + i);
      for (int r = 0; r < R; ++r) {
        const Vector row = load_vector(x + r * kPart + i);
        for (int n = 0; n < N; ++n) sum[r][n] = fma_vector(row, f[n], sum[r][n]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) store_vector(sums[r][output + n] + lane, sum[r][n]);
    }
  }
}

template <int N>
inline void tile_all_rows(const float* x, int64_t rows, const float* fn, int64_t fn_stride, int64_t count,
                          LaneSums* sums, int64_t output) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    tile<kTileRows, N>(x + r * kPart, fn, fn_stride, count, sums + r, output);
  }
  for (; r < rows; ++r) tile<1, N>(x + r * kPart, fn, fn_stride, count, sums + r, output);
}

template <int R>
inline void squares(const float* x, int64_t count, LaneSums* sums, int64_t output) {
  Lanes sum[R];
  for (int r = 0; r < R; ++r) sum[r] = load(sums[r][output]);
  for (int64_t i = 0; i < count; i += kLanes) {  // zeros follow the last value
    for (int r = 0; r < R; ++r) {
      const Lanes v = load(x + r * kPart + i);
      sum[r] = fma(v, v, sum[r]);
    }
  }
  for (int r = 0; r < R; ++r) store(sums[r][output], sum[r]);
}

// One part of K, count <= kPart values of every row: outputs [begin, end); number `outputs` is the squares.
inline void project_part(const float* x, int64_t rows, const float* fn, int64_t fn_stride, int64_t count,
                         LaneSums* sums, int64_t begin, int64_t end, int64_t outputs) {
  const int64_t whole = count / kLanes * kLanes, rest = count - whole, products_end = end < outputs ? end : outputs;
  int64_t n = begin;
  for (; n + kTileOutputs <= products_end; n += kTileOutputs) {
    tile_all_rows<kTileOutputs>(x, rows, fn + n * fn_stride, fn_stride, whole, sums, n);
  }
  for (; n < products_end; ++n) tile_all_rows<1>(x, rows, fn + n * fn_stride, fn_stride, whole, sums, n);
  for (n = begin; rest > 0 && n < products_end; ++n) {
    const Lanes f = load_first(fn + n * fn_stride + whole, rest);
    for (int64_t r = 0; r < rows; ++r) {
      store(sums[r][n], fma(load(x + r * kPart + whole), f, load(sums[r][n])));
    }
  }
  if (end <= outputs) return;
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) squares<kTileRows>(x + r * kPart, count, sums + r, outputs);
  for (; r < rows; ++r) squares<1>(x + r * kPart, count, sums + r, outputs);
}

template <class T>
inline void project_group(const HcProjectArgs& args, const T* x, int64_t rows, LaneSums* sums) {
  const int64_t width = args.pre.streams * args.pre.hidden;
  alignas(64) float packed[kGroupRows * kPart];
  for (int64_t k = 0; k < width; k += kPart) {
    const int64_t count = k + kPart < width ? kPart : width - k, rest = count % kLanes;
    for (int64_t r = 0; r < rows; ++r) {
      float* to = packed + r * kPart;
      for_lanes(count - rest, to, [&](int64_t i, auto get) { return get(x + r * width + k + i); });
      if (rest > 0) store(to + count - rest, load_first(x + r * width + k + count - rest, rest));
    }
    project_part(packed, rows, args.pre.weights.fn + k, width, count, sums, args.output_begin, args.output_end,
                 args.outputs);
  }
}

// A row alone waits for fn: no parts, several long streams.
template <int N, class T, class Row>
inline void dot_products(const T* x, Row fn_row, int64_t width, LaneSums& sums, int64_t output) {
  Lanes sum[N];
  for (int n = 0; n < N; ++n) sum[n] = zero_lanes();
  const auto step = [&](int64_t i, auto get) __attribute__((always_inline)) {
    const Lanes v = get(x + i);
    for (int n = 0; n < N; ++n) sum[n] = fma(v, get(fn_row(n) + i), sum[n]);
  };
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) step(i, LoadAll{});
  if (i < width) step(i, LoadFirst{width - i});
  for (int n = 0; n < N; ++n) store(sums[output + n], sum[n]);
}

template <class T>
inline void project_row(const HcProjectArgs& args, const T* x, LaneSums& sums) {
  const int64_t width = args.pre.streams * args.pre.hidden;
  const int64_t products_end = args.output_end < args.outputs ? args.output_end : args.outputs;
  int64_t n = args.output_begin;
  const auto fn_row = [&](int64_t i) { return args.pre.weights.fn + (n + i) * width; };
  for (; n + kSingleRowOutputs <= products_end; n += kSingleRowOutputs) {
    dot_products<kSingleRowOutputs>(x, fn_row, width, sums, n);
  }
  for (; n < products_end; ++n) dot_products<1>(x, fn_row, width, sums, n);
  if (args.output_end > args.outputs)
    dot_products<1>(
        x, [&](int64_t) { return x; }, width, sums, args.outputs);
}

template <class T>
void project(const HcProjectArgs& args) {
  const int64_t width = args.pre.streams * args.pre.hidden, begin = args.output_begin, end = args.output_end;
  alignas(64) LaneSums sums[kGroupRows];
  for (int64_t first = 0; first < args.pre.num_rows; first += kGroupRows) {
    const int64_t rows = args.pre.num_rows - first < kGroupRows ? args.pre.num_rows - first : kGroupRows;
    const T* x = static_cast<const T*>(args.pre.x) + first * width;
    if (rows == 1) {
      project_row(args, x, sums[0]);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = begin; n < end; ++n) store(sums[r][n], zero_lanes());
      }
      project_group(args, x, rows, sums);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = begin; n < end; ++n) {
        args.dots[(first + r) * (args.outputs + 1) + n] = sum_lanes(load(sums[r][n]));
      }
    }
  }
}

// S = 0: any number of streams.
template <int S, class T>
void mix(const HcMixArgs& args) {
  const int64_t s = S != 0 ? S : args.pre.streams, hidden = args.pre.hidden;
  for (int64_t row = 0; row < args.pre.num_rows; ++row) {
    const float* pre = args.coefficient + row * kMaxHcStreams;
    const T* x = static_cast<const T*>(args.pre.x) + row * s * hidden;
    for_lanes(hidden, static_cast<T*>(args.pre.out) + row * hidden, [&](int64_t d, auto get) {
      Lanes sum = mul(all(pre[0]), get(x + d));
      for (int64_t j = 1; j < s; ++j) sum = fma(all(pre[j]), get(x + j * hidden + d), sum);
      return sum;
    });
  }
}

template <int S, class T>
void post(const HcPostArgs& args) {
  const int64_t s = S != 0 ? S : args.streams, hidden = args.hidden;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const float *post = args.mix + row * (s + s * s), *c = post + s;
    const T *x = static_cast<const T*>(args.x) + row * s * hidden, *y = static_cast<const T*>(args.y) + row * hidden;
    T* out = static_cast<T*>(args.out) + row * s * hidden;
    // Loads all streams before it stores any: out may be x.
    const auto step = [&](int64_t d, auto get, auto put) __attribute__((always_inline)) {
      Lanes streams[kMaxHcStreams];
      for (int64_t j = 0; j < s; ++j) streams[j] = get(x + j * hidden + d);
      const Lanes y_lanes = get(y + d);
      for (int64_t k = 0; k < s; ++k) {
        Lanes sum = mul(all(post[k]), y_lanes);
        for (int64_t j = 0; j < s; ++j) sum = fma(all(c[j * s + k]), streams[j], sum);
        put(out + k * hidden + d, sum);
      }
    };
    int64_t d = 0;
    for (; d + kLanes <= hidden; d += kLanes) step(d, LoadAll{}, [](T* p, Lanes v) { store(p, v); });
    const int64_t rest = hidden - d;
    if (rest > 0) step(d, LoadFirst{rest}, [rest](T* p, Lanes v) { store_first(p, v, rest); });
  }
}

}  // namespace

void WEFT_NAME(hc_project)(const HcProjectArgs& args);
void WEFT_NAME(hc_project)(const HcProjectArgs& args) {
  args.pre.dtype == DType::kBF16 ? project<Bf16>(args) : project<float>(args);
}

void WEFT_NAME(hc_mix)(const HcMixArgs& args);
void WEFT_NAME(hc_mix)(const HcMixArgs& args) {
  const bool is_bf16 = args.pre.dtype == DType::kBF16;
  if (args.pre.streams == 4) return is_bf16 ? mix<4, Bf16>(args) : mix<4, float>(args);
  is_bf16 ? mix<0, Bf16>(args) : mix<0, float>(args);
}

void WEFT_NAME(hc_pre)(const HcPreArgs& args);
void WEFT_NAME(hc_pre)(const HcPreArgs& args) { hc_pre_by_steps(args, WEFT_NAME(hc_project), WEFT_NAME(hc_mix)); }

void WEFT_NAME(hc_post)(const HcPostArgs& args);
void WEFT_NAME(hc_post)(const HcPostArgs& args) {
  const bool is_bf16 = args.dtype == DType::kBF16;
  if (args.streams == 4) return is_bf16 ? post<4, Bf16>(args) : post<4, float>(args);
  is_bf16 ? post<0, Bf16>(args) : post<0, float>(args);
}

}  // namespace weft
