// The outer-product micro-kernel over packed operands (linear_internal.h).
//
// Included by ISA-specific sources inside an unnamed namespace, after vector16-inl.h and after
//   F16 multiply_add(F16 x, F16 w, F16 sum)    one step of all sixteen chains
// An element of a packed operand is what one step takes: a float, or a pair of bf16.

constexpr int kVisit[kLanes] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};  // its own inverse

#if defined(__AVX512F__)
constexpr int kTileRows = 14;  // 28 accumulators, two weights, one broadcast
constexpr int kTileVectors = 2;
#else
constexpr int kTileRows = 6;  // 12 accumulators of 8, two weights, one broadcast
constexpr int kTileVectors = 1;
#endif

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

// A tile of kRows x (16 * kVectors). Partial tiles wait in `stack` until the binary counter adds them.
template <int kRows, int kVectors>
void run_tile(const float* rows, const float* panel, int64_t cols, const PackLayout& layout, const Output& out) {
  constexpr int kSize = kRows * kVectors, kWidth = 16 * kVectors, kLevels = 8;
  alignas(64) float stack[kLevels][kSize * 16];
  F16 acc[kSize];
  const int64_t visits = layout.k_blocks * kLanes;
  for (int64_t v = 0; v < visits; ++v) {
    const int64_t lane = kVisit[v % kLanes];
    const int64_t steps = lane < layout.block ? (layout.block - lane + kLanes - 1) / kLanes : 0;
    const float* x = rows + v * layout.lane_steps * kRows;
    const float* w = panel + v * layout.lane_steps * kWidth;
#pragma GCC unroll 28
    for (int i = 0; i < kSize; ++i) acc[i] = f_zero();
    for (int64_t step = 0; step < steps; ++step, x += kRows, w += kWidth) {
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
    int level = 0;
    for (; (v >> level & 1) != 0; ++level) {
#pragma GCC unroll 28
      for (int i = 0; i < kSize; ++i) acc[i] = f_add(f_load(stack[level] + 16 * i), acc[i]);
    }
    if (v + 1 == visits) break;
#pragma GCC unroll 28
    for (int i = 0; i < kSize; ++i) f_store(stack[level] + 16 * i, acc[i]);
  }
#pragma GCC unroll 28
  for (int i = 0; i < kSize; ++i) {
    const int64_t m = i / kVectors, n = i % kVectors * 16, count = at_most(16, cols - n);
    if (count <= 0) continue;
    if (out.dtype == DType::kF32) {
      f_store_first(static_cast<float*>(out.y) + m * out.stride + n, acc[i], count);
    } else if (count == 16) {
      f_store_bf16(static_cast<uint16_t*>(out.y) + m * out.stride + n, acc[i]);
    } else {
      alignas(64) uint16_t rounded[16];
      f_store_bf16(rounded, acc[i]);
      __builtin_memcpy(static_cast<uint16_t*>(out.y) + m * out.stride + n, rounded, static_cast<size_t>(count) * 2);
    }
  }
}

using TileFn = void(const float* rows, const float* panel, int64_t cols, const PackLayout& layout, const Output& out);

template <int kVectors, int... kRows>
struct TileTable {
  static constexpr TileFn* run[] = {run_tile<kRows, kVectors>...};
};
#if defined(__AVX512F__)
template <int kVectors>
using Tiles = TileTable<kVectors, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14>;
#else
template <int kVectors>
using Tiles = TileTable<kVectors, 1, 2, 3, 4, 5, 6>;
#endif

void tile(const float* packed_rows, int64_t rows, const float* panel, int64_t width, int64_t cols,
          const PackLayout& layout, const Output& out) {
  if (width == 16) return Tiles<1>::run[rows - 1](packed_rows, panel, cols, layout, out);
  Tiles<kTileVectors>::run[rows - 1](packed_rows, panel, cols, layout, out);
}
