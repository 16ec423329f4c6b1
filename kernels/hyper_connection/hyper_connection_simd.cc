#include "kernels/hyper_connection/hyper_connection_parts.h"
#include "kernels/lanes/lanes-inl.h"

namespace weft {
namespace {

// A tile of R rows and N outputs keeps R * N lane sums in registers.
#ifdef __AVX512F__
constexpr int kTileRows = 4, kTileOutputs = 6;
#else
constexpr int kTileRows = 2, kTileOutputs = 3;
#endif
constexpr int kSingleRowOutputs = 6;

// Rows are projected in groups whose lane sums live on the stack, so that fn is read once per group; inside a group K is
// cut so that a part of x and of fn stays in the caches between the tiles. A few rows read fn in whole rows instead: the
// memory is the limit then, and long streams are what it serves best.
constexpr int64_t kGroupRows = 16;
constexpr int64_t kPart = 512;
constexpr int64_t kFewRows = kTileRows - 1;

using LaneSums = float[kMaxHcOutputs + 1][kLanes];

template <class T>
struct Part {
  const T* x;        // first row of the tile
  const float* fn;   // first output of the tile
  int64_t width;     // stride of both
  int64_t begin, end;
};

template <int R, int N, class T>
inline void tile(const Part<T>& part, LaneSums* sums, int64_t output) {
  Lanes sum[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) sum[r][n] = load(sums[r][output + n]);
  }
  const auto step = [&](int64_t i, auto get) __attribute__((always_inline)) {
    Lanes x[R];
    for (int r = 0; r < R; ++r) x[r] = get(part.x + r * part.width + i);
    for (int n = 0; n < N; ++n) {
      const Lanes f = get(part.fn + n * part.width + i);
      for (int r = 0; r < R; ++r) sum[r][n] = fma(x[r], f, sum[r][n]);
    }
  };
  int64_t i = part.begin;
  for (; i + kLanes <= part.end; i += kLanes) step(i, LoadAll{});
  if (i < part.end) step(i, LoadFirst{part.end - i});
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) store(sums[r][output + n], sum[r][n]);
  }
}

template <int R, class T>
inline void squares(const Part<T>& part, LaneSums* sums, int64_t output) {
  Lanes sum[R];
  for (int r = 0; r < R; ++r) sum[r] = load(sums[r][output]);
  int64_t i = part.begin;
  for (; i + kLanes <= part.end; i += kLanes) {
    for (int r = 0; r < R; ++r) {
      const Lanes x = load(part.x + r * part.width + i);
      sum[r] = fma(x, x, sum[r]);
    }
  }
  if (i < part.end) {
    for (int r = 0; r < R; ++r) {
      const Lanes x = load_first(part.x + r * part.width + i, part.end - i);
      sum[r] = fma(x, x, sum[r]);
    }
  }
  for (int r = 0; r < R; ++r) store(sums[r][output], sum[r]);
}

// R rows, outputs [begin, end) of which the one numbered `outputs` is the sum of squares.
template <int R, int N, class T>
inline void tile_row(Part<T> part, LaneSums* sums, int64_t begin, int64_t end, int64_t outputs) {
  const float* fn = part.fn;
  const int64_t products_end = end < outputs ? end : outputs;
  int64_t n = begin;
  for (; n + N <= products_end; n += N) {
    part.fn = fn + n * part.width;
    tile<R, N>(part, sums, n);
  }
  for (; n < products_end; ++n) {
    part.fn = fn + n * part.width;
    tile<R, 1>(part, sums, n);
  }
  if (end > outputs) squares<R>(part, sums, outputs);
}

template <class T>
void project(const HcProjectArgs& args) {
  const int64_t width = args.pre.streams * args.pre.hidden, outputs = args.outputs;
  const int64_t begin = args.output_begin, end = args.output_end;
  alignas(64) LaneSums sums[kGroupRows];
  for (int64_t first = 0; first < args.pre.num_rows; first += kGroupRows) {
    const int64_t rows = args.pre.num_rows - first < kGroupRows ? args.pre.num_rows - first : kGroupRows;
    const T* x = static_cast<const T*>(args.pre.x) + first * width;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = begin; n < end; ++n) store(sums[r][n], zero_lanes());
    }
    const int64_t part = rows <= kFewRows ? width : kPart;
    for (int64_t k = 0; k < width; k += part) {
      const int64_t k_end = k + part < width ? k + part : width;
      int64_t r = 0;
      for (; r + kTileRows <= rows; r += kTileRows) {
        tile_row<kTileRows, kTileOutputs>(Part<T>{x + r * width, args.pre.weights.fn, width, k, k_end}, sums + r, begin,
                                          end, outputs);
      }
      for (; r < rows; ++r) {
        tile_row<1, kSingleRowOutputs>(Part<T>{x + r * width, args.pre.weights.fn, width, k, k_end}, sums + r, begin, end,
                                       outputs);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t n = begin; n < end; ++n) args.dots[(first + r) * (outputs + 1) + n] = sum_lanes(load(sums[r][n]));
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
