#include "kernels/linear/linear.h"

#include <algorithm>

#include "base/int_math.h"
#include "kernels/linear/linear_internal.h"

namespace weft {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kWidestPanel = 32;
constexpr int64_t kPanelBytes = 640 << 10;  // of a second-level cache of 1 MiB, beside a tile of rows
constexpr int64_t kInlineWork = 96 << 10;   // multiply-adds that are done before other threads would help

#include "kernels/linear/weight_view-inl.h"

int64_t aligned(int64_t bytes) { return align_up(bytes, kAlign); }

int64_t panel_bytes(int64_t k, int64_t k_blocks) {
  return aligned(pack_layout(k, k_blocks).steps() * kWidestPanel * static_cast<int64_t>(sizeof(float)));
}

const std::byte* row_of(const LinearArgs& args, int64_t m, int64_t group) {
  return static_cast<const std::byte*>(args.x) + x_element(args, m, group) * dtype_bits(args.x_dtype) / 8;
}

Output output_at(const LinearArgs& args, int64_t m, int64_t n) {
  return {static_cast<std::byte*>(args.y) + y_element(args, m, n) * dtype_bits(args.y_dtype) / 8, args.y_dtype, args.y_stride};
}

void convert(const LinearKernels& kernels, const LinearArgs& args, int64_t m, int64_t group, float* out) {
  if (kernels.quantise_row != nullptr) {
    kernels.quantise_row(row_of(args, m, group), args.x_dtype, args.w.cols, row_quant(args, m), out);
  } else {
    kernels.convert_row(row_of(args, m, group), args.x_dtype, args.w.cols, args.act_quant, out);
  }
}

// Dot products; threads split the output columns.
void few_rows(const LinearKernels& kernels, const LinearArgs& args, ThreadPool& pool) {
  const int64_t k = args.w.cols, cols = args.w.rows / args.groups;
  const int64_t elements = elements_of_row(kernels, k), row_elements = args.groups * elements;
  const float* x = static_cast<const float*>(args.x);
  int64_t x_stride = args.x_stride, group_stride = x_element(args, 0, 1);
  if (args.x_dtype != DType::kF32 || args.act_quant != ActQuant::kNone) {
    auto* converted = reinterpret_cast<float*>(args.scratch);
    for (int64_t m = 0; m < args.num_rows; ++m) {
      for (int64_t g = 0; g < args.groups; ++g) {
        convert(kernels, args, m, g, converted + m * row_elements + g * elements);
      }
    }
    x = converted;
    x_stride = row_elements;
    group_stride = elements;
  }
  // Ranges of whole groups of 8 rows, about eight a thread: even shares without many short streams.
  constexpr int64_t kUnit = 8, kRangesPerThread = 8;
  const int64_t units = (args.w.rows + kUnit - 1) / kUnit;
  const int64_t grain = args.num_rows * args.w.rows * k <= kInlineWork
                            ? args.w.rows
                            : std::max<int64_t>(units / (kRangesPerThread * pool.size()), 1) * kUnit;
  pool.parallel_for(args.w.rows, grain, [&](int64_t begin, int64_t end, int) {
    while (begin < end) {
      const int64_t group = begin / cols, stop = std::min(end, (group + 1) * cols);
      kernels.dot(args.w, begin, stop, x + group * group_stride, x_stride, args.num_rows, args.k_blocks,
                  output_at(args, 0, begin));
      begin = stop;
    }
  });
}

// Packed tiles; threads split the panels of output columns.
void many_rows(const LinearKernels& kernels, const LinearArgs& args, ThreadPool& pool) {
  const int64_t k = args.w.cols, cols = args.w.rows / args.groups, elements = elements_of_row(kernels, k);
  const PackLayout layout = pack_layout(kernels, k, args.k_blocks);
  const RowTiles tiles = row_tiles(args.num_rows, kernels.tile_rows);
  const int64_t width = panel_width(kernels, layout, cols);
  const int64_t panel_floats = panel_bytes(k, args.k_blocks) / static_cast<int64_t>(sizeof(float));
  auto* panels = reinterpret_cast<float*>(args.scratch);  // one a thread; at first, rows being converted
  float* packed = panels + pool.size() * panel_floats;    // [group][tile]
  const auto packed_tile = [&](int64_t group, int64_t i) {
    return packed + layout.steps() * (group * args.num_rows + tiles.begin(i));
  };

  pool.parallel_for(args.groups * tiles.count, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / tiles.count, i = task % tiles.count;
      float* converted = panels + worker * panel_floats;
      for (int64_t r = 0; r < tiles.size(i); ++r) {
        convert(kernels, args, tiles.begin(i) + r, group, converted + r * elements);
      }
      kernels.pack_rows(converted, elements, tiles.size(i), layout, packed_tile(group, i));
    }
  });

  const int64_t panels_per_group = (cols + width - 1) / width;
  pool.parallel_for(args.groups * panels_per_group, 1, [&](int64_t begin, int64_t end, int worker) {
    float* panel = panels + worker * panel_floats;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t group = task / panels_per_group, n = task % panels_per_group * width;
      const int64_t num_cols = std::min(width, cols - n), column = group * cols + n;
      kernels.pack_weights(args.w, column, num_cols, width, layout, panel);
      for (int64_t i = 0; i < tiles.count; ++i) {
        kernels.tile(packed_tile(group, i), tiles.size(i), panel, width, num_cols, layout,
                     output_at(args, tiles.begin(i), column));
      }
    }
  });
}

void check(const LinearArgs& args) {
  WEFT_CHECK(args.groups >= 1 && args.w.rows % args.groups == 0, "rows {} groups {}", args.w.rows, args.groups);
  WEFT_CHECK(args.k_blocks >= 1 && args.k_blocks <= 16 && (args.k_blocks & (args.k_blocks - 1)) == 0, "k_blocks {}",
             args.k_blocks);
  WEFT_CHECK(args.w.cols % (4 * args.k_blocks) == 0, "K {} k_blocks {}", args.w.cols, args.k_blocks);
  WEFT_CHECK(row_elements(args.w) >= args.w.cols, "row stride {} K {}", args.w.stride, args.w.cols);
  WEFT_CHECK(!is_int8(args.act_quant) || takes_int8(args.w), "int8 activations and {} weights", dtype_name(args.w.dtype));
  WEFT_CHECK((args.act_quant == ActQuant::kInt8Static) == (args.static_quant != nullptr));
  WEFT_CHECK(args.w.dtype != DType::kF4E2M1 || (args.w.stride % 2 == 0 && args.w.col0 % 2 == 0),
             "F4_E2M1: row stride {}, first column {}", args.w.stride, args.w.col0);
}

void run_bf16(const LinearArgs& args, ThreadPool& pool) {
  linear_with(bf16_kernels(bf16_pairs(args.w, args.x_dtype, args.act_quant, args.k_blocks), args.w.dtype), args, pool);
}

template <const LinearKernels& kKernels>
void run(const LinearArgs& args, ThreadPool& pool) {
  linear_with(kKernels, args, pool);
}

constexpr KernelVariant<LinearFn> kVariants[] = {
    {"avx512_bf16", Isa::kAvx512Bf16, run_bf16},
    {"avx512_vbmi", Isa::kAvx512Vbmi, run<kLinearKernels_avx512_vbmi>},
    {"avx512", Isa::kAvx512, run<kLinearKernels_avx512>},
    {"avx2", Isa::kAvx2, run<kLinearKernels_avx2>},
    {"ref", Isa::kScalar, linear_ref},
};

}  // namespace

WeightMatrix weight_rows(const WeightMatrix& w, int64_t begin, int64_t end) {
  WEFT_CHECK(begin >= 0 && begin <= end && end <= w.rows, "rows {}..{} of {}", begin, end, w.rows);
  WeightMatrix view = w;
  view.data = static_cast<const std::byte*>(w.data) + begin * row_bytes_of(w);
  view.rows = end - begin;
  view.row0 = w.row0 + begin;
  return view;
}

WeightMatrix weight_columns(const WeightMatrix& w, int64_t begin, int64_t end) {
  WEFT_CHECK(begin >= 0 && begin <= end && end <= w.cols, "columns {}..{} of {}", begin, end, w.cols);
  const int64_t bits = begin * dtype_bits(w.dtype);
  WEFT_CHECK(bits % 8 == 0 && end * dtype_bits(w.dtype) % 8 == 0, "columns {}..{} of {}", begin, end, dtype_name(w.dtype));
  WeightMatrix view = w;
  view.data = static_cast<const std::byte*>(w.data) + bits / 8;
  view.cols = end - begin;
  view.stride = row_elements(w);
  view.col0 = w.col0 + begin;
  view.scale_stride = scales_in_row(w);
  return view;
}

PackLayout pack_layout(int64_t k, int64_t k_blocks) {
  const int64_t block = k / k_blocks;
  return {k, k_blocks, block, (block + kLanes - 1) / kLanes + 1, 0};
}

PackLayout pack_layout(const LinearKernels& kernels, int64_t k, int64_t k_blocks) {
  if (kernels.group_elements > 0) {
    const int64_t elements = elements_of_row(kernels, k);
    return {elements, k_blocks, elements / k_blocks, 0, elements};
  }
  const int64_t elements = k / kernels.element_features;
  if (kernels.quantise_row == nullptr) return pack_layout(elements, k_blocks);
  return {elements, k_blocks, elements / k_blocks, 0, elements + k_blocks + 1};
}

RowQuant row_quant(const LinearArgs& args, int64_t row) {
  return {args.static_quant, args.row_absmax == nullptr ? nullptr : args.row_absmax + row};
}

bool takes_int8(const WeightMatrix& w) {
  return w.dtype == DType::kI8 && w.scale != nullptr && w.scale_dtype == DType::kF32 && w.block_rows == 1 &&
         w.col0 + w.cols <= w.block_cols;
}

Bf16Pairs bf16_pairs(const WeightMatrix& w, DType x_dtype, ActQuant act_quant, int64_t k_blocks) {
  constexpr int64_t kFeatures = 64, kFp4Features = 128;  // that are decoded at once
  constexpr int64_t kGroup = 32;                         // the fewest that share a scale
  if (x_dtype != DType::kBF16 || is_int8(act_quant)) return Bf16Pairs::kNone;
  const auto whole = [&](int64_t features) { return w.cols / k_blocks % features == 0; };
  if (w.dtype == DType::kF8E4M3 && w.scale != nullptr && w.scale_dtype == DType::kF32) {
    const bool groups = w.block_cols % kScaledGroup == 0 && w.col0 % kScaledGroup == 0 && whole(kScaledGroup);
    return groups ? Bf16Pairs::kGroups : Bf16Pairs::kNone;
  }
  if (act_quant == ActQuant::kFp8Block128AnyScale) return Bf16Pairs::kNone;
  const bool plain = w.scale == nullptr, powers = plain || w.scale_dtype == DType::kF8E8M0;
  const bool small_groups = w.block_cols == kGroup && w.col0 % kGroup == 0;
  const bool large_groups = w.block_cols % kFeatures == 0 && w.col0 % kFeatures == 0;
  bool values = false;
  switch (w.dtype) {
    case DType::kBF16: values = plain && whole(kFeatures); break;
    case DType::kF8E4M3: values = powers && whole(kFeatures) && (plain || small_groups || large_groups); break;
    case DType::kF4E2M1: values = powers && whole(kFp4Features) && (plain || small_groups); break;
    default: break;
  }
  return values ? Bf16Pairs::kValues : Bf16Pairs::kNone;
}

const LinearKernels& bf16_kernels(Bf16Pairs pairs, DType weight_dtype) {
  if (pairs == Bf16Pairs::kNone) return kLinearKernels_avx512_vbmi;
  if (pairs == Bf16Pairs::kGroups) return kLinearKernels_avx512_bf16_groups;
  switch (weight_dtype) {
    case DType::kF8E4M3: return kLinearKernels_avx512_bf16_fp8;
    case DType::kF4E2M1: return kLinearKernels_avx512_bf16_fp4;
    default: return kLinearKernels_avx512_bf16;
  }
}

RowTiles row_tiles(int64_t rows, int64_t max_tile) { return {rows, (rows + max_tile - 1) / max_tile}; }

int64_t panel_width(const LinearKernels& kernels, const PackLayout& layout, int64_t num_cols) {
  constexpr int64_t kNarrow = 16;
  const bool wide = num_cols > kNarrow &&
                    layout.k * kernels.tile_cols * static_cast<int64_t>(sizeof(float)) <= kPanelBytes;
  return wide ? kernels.tile_cols : kNarrow;
}

void linear_with(const LinearKernels& usual, const LinearArgs& args, ThreadPool& pool) {
  check(args);
  const LinearKernels& kernels = kernels_for(usual, args.act_quant);
  if (args.num_rows == 0 || args.w.rows == 0) return;
  if (args.num_rows <= kernels.max_dot_rows(args.w.dtype)) {
    few_rows(kernels, args, pool);
  } else {
    many_rows(kernels, args, pool);
  }
}

int64_t linear_scratch_bytes(int64_t num_rows, int64_t k_total, int64_t n_total, int64_t groups, DType weight_dtype,
                             int num_threads) {
  // The lane padding of pack_layout is largest with 16 blocks.
  constexpr int64_t kMostBlocks = 16;
  const int64_t k = k_total / groups;
  const int64_t steps = std::max({pack_layout(k, 1).steps(), k + kMostBlocks * kLanes * 2, row_floats_ref(k)});
  const int64_t panel = aligned(steps * kWidestPanel * static_cast<int64_t>(sizeof(float)));
  const int64_t rows = aligned(steps * groups * num_rows * static_cast<int64_t>(sizeof(float)));
  return num_threads * panel + rows;
}

std::span<const KernelVariant<LinearFn>> linear_variants() { return kVariants; }

}  // namespace weft
