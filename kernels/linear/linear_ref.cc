// The reference: plain loops in the order of linear.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/numeric.h"
#include "kernels/linear/linear_internal.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {
namespace {

#include "kernels/linear/weight_view-inl.h"

constexpr int64_t kFp8Block = 128;

float element(const void* x, DType dtype, int64_t i) {
  return dtype == DType::kF32 ? static_cast<const float*>(x)[i] : to_float(static_cast<const bf16*>(x)[i]);
}

float stored_value(const WeightMatrix& w, int64_t row, int64_t k) {
  const int64_t i = row * row_elements(w) + k;
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  switch (w.dtype) {
    case DType::kF8E4M3: return e4m3_to_float(bytes[i]);
    case DType::kF4E2M1: return e2m1_to_float(static_cast<uint8_t>(bytes[i / 2] >> (i % 2 == 0 ? 0 : 4)));
    case DType::kI8: return static_cast<float>(static_cast<const int8_t*>(w.data)[i]);
    default: return element(w.data, w.dtype, i);
  }
}

float scale_of(const WeightMatrix& w, int64_t row, int64_t k) {
  const int64_t i = (row + w.row0) / w.block_rows * scales_in_row(w) + (k + w.col0) / w.block_cols;
  return w.scale_dtype == DType::kF32 ? static_cast<const float*>(w.scale)[i] : e8m0_to_float(static_cast<const uint8_t*>(w.scale)[i]);
}

// NaN is skipped here and propagates through the quotient.
float absmax(const float* x, int64_t n, float least) {
  for (int64_t i = 0; i < n; ++i) least = std::fabs(x[i]) > least ? std::fabs(x[i]) : least;
  return least;
}

void quantise_fp8(float* x, int64_t n, E4m3Scale kind) {
  const float scale = e4m3_block_scale(absmax(x, n, kE4m3LeastAbsmax), kind);
  for (int64_t i = 0; i < n; ++i) x[i] = e4m3_round_trip(x[i], scale);
}

float lane_tree(float (&lane)[kLanes]) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

float block_sum(const WeightMatrix& w, int64_t row, const float* x, int64_t begin, int64_t end) {
  float lane[kLanes] = {};
  for (int64_t j = 0; j < kLanes; ++j) {
    for (int64_t k = begin + j; k < end; k += kLanes) lane[j] = std::fma(weight_value(w, row, k), x[k], lane[j]);
  }
  return lane_tree(lane);
}

float block_sum_bf16(const WeightMatrix& w, int64_t row, const float* x, int64_t begin, int64_t end) {
  float lane[kLanes] = {};
  for (int64_t j = 0; j < kLanes; ++j) {
    for (int64_t step = 0; step < (end - begin) / (2 * kLanes); ++step) {
      const FeaturePair pair = pair_of(w.dtype, j, step);
      for (int64_t i : {begin + pair.second, begin + pair.first}) {
        lane[j] = fma_no_subnormals(weight_value(w, row, i), x[i], lane[j]);
      }
    }
  }
  return lane_tree(lane);
}

// One chain of pairs for each group; codes and scales as convert_groups_ref() leaves them.
float block_sum_groups(const WeightMatrix& w, int64_t row, const float* x, int64_t begin, int64_t end) {
  float sum = 0;
  for (int64_t k = begin; k < end; k += kScaledGroup) {
    float codes[kScaledGroup];
    for (int64_t i = 0; i < kScaledGroup; ++i) codes[i] = stored_value(w, row, k + i);
    const float of_group = dot_bf16_pairs(x + k, codes, kScaledGroup);
    sum = std::fma(of_group * scale_of(w, row, k), x[w.cols + k / kScaledGroup], sum);
  }
  return sum;
}

using BlockSum = float(const WeightMatrix& w, int64_t row, const float* x, int64_t begin, int64_t end);

float dot(BlockSum* block_sum_of, const WeightMatrix& w, int64_t row, const float* x, int64_t k_blocks) {
  float sum[16];
  const int64_t block = w.cols / k_blocks;
  for (int64_t b = 0; b < k_blocks; ++b) sum[b] = block_sum_of(w, row, x, b * block, (b + 1) * block);
  for (int64_t n = k_blocks; n > 1; n /= 2) {
    for (int64_t b = 0; b < n / 2; ++b) sum[b] = sum[2 * b] + sum[2 * b + 1];
  }
  return sum[0];
}

void write(const LinearArgs& args, int64_t m, int64_t n, float y) {
  const int64_t i = y_element(args, m, n);
  if (args.y_dtype == DType::kF32) {
    static_cast<float*>(args.y)[i] = y;
  } else {
    static_cast<bf16*>(args.y)[i] = to_bf16(y);
  }
}

const std::byte* row_of(const LinearArgs& args, int64_t m, int64_t group) {
  return static_cast<const std::byte*>(args.x) + x_element(args, m, group) * dtype_bits(args.x_dtype) / 8;
}

void linear_of_int8(const LinearArgs& args, ThreadPool& pool) {
  const int64_t k = args.w.cols, cols = args.w.rows / args.groups, rows = args.num_rows * args.groups;
  auto* scales = reinterpret_cast<float*>(args.scratch);
  auto* x = reinterpret_cast<int8_t*>(scales + rows);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t m = i / args.groups;
    scales[i] = quantise_row_ref(row_of(args, m, i % args.groups), args.x_dtype, k, row_quant(args, m), x + i * k);
  }
  pool.parallel_for(args.w.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t m = 0; m < args.num_rows; ++m) {
        const int64_t i = m * args.groups + n / cols;
        write(args, m, n, dot_int8_ref(args.w, n, x + i * k, scales[i], args.k_blocks));
      }
    }
  });
}

void linear_with_rows(const RowsRef& rows, const LinearArgs& args, ThreadPool& pool) {
  if (is_int8(args.act_quant)) return linear_of_int8(args, pool);
  const int64_t k = args.w.cols, cols = args.w.rows / args.groups, floats = row_floats_ref(k);
  auto* x = reinterpret_cast<float*>(args.scratch);
  for (int64_t m = 0; m < args.num_rows; ++m) {
    for (int64_t g = 0; g < args.groups; ++g) {
      rows.convert(row_of(args, m, g), args.x_dtype, k, args.act_quant, x + (m * args.groups + g) * floats);
    }
  }
  pool.parallel_for(args.w.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t m = 0; m < args.num_rows; ++m) {
        write(args, m, n, rows.dot(args.w, n, x + (m * args.groups + n / cols) * floats, args.k_blocks));
      }
    }
  });
}

}  // namespace

FeaturePair pair_of(DType weight_dtype, int64_t lane, int64_t step) {
  switch (weight_dtype) {
    case DType::kF8E4M3: {
      const int64_t first = 64 * (step / 2) + 16 * (lane / 4) + 8 * (step % 2) + 2 * (lane % 4);
      return {first, first + 1};
    }
    case DType::kF4E2M1: {
      const int64_t first = 128 * (step / 4) + 8 * lane + step % 4;
      return {first, first + 4};
    }
    default: {
      const int64_t first = 32 * step + 2 * lane;
      return {first, first + 1};
    }
  }
}

float weight_value(const WeightMatrix& w, int64_t row, int64_t k) {
  const float q = stored_value(w, row, k);
  return w.scale == nullptr ? q : q * scale_of(w, row, k);
}

void convert_row_ref(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = element(x, dtype, i);
  if (!is_fp8(act_quant)) return;
  const E4m3Scale kind = act_quant == ActQuant::kFp8Block128 ? E4m3Scale::kPowerOfTwo : E4m3Scale::kAny;
  for (int64_t begin = 0; begin < k; begin += kFp8Block) quantise_fp8(out + begin, std::min(kFp8Block, k - begin), kind);
}

void convert_groups_ref(const void* x, DType dtype, int64_t k, ActQuant act_quant, float* out) {
  const E4m3Scale kind = act_quant == ActQuant::kFp8Block128 ? E4m3Scale::kPowerOfTwo : E4m3Scale::kAny;
  std::vector<float> scales(static_cast<size_t>(k / kScaledGroup), 1.0f);  // x and out may be the same row
  for (int64_t g = 0; g < k / kScaledGroup; ++g) {
    float* group = out + g * kScaledGroup;
    for (int64_t i = 0; i < kScaledGroup; ++i) group[i] = element(x, dtype, g * kScaledGroup + i);
    if (!is_fp8(act_quant)) continue;
    const float scale = e4m3_block_scale(absmax(group, kScaledGroup, kE4m3LeastAbsmax), kind);
    for (int64_t i = 0; i < kScaledGroup; ++i) group[i] = e4m3_round_trip(group[i] / scale, 1);
    scales[static_cast<size_t>(g)] = scale;
  }
  std::copy(scales.begin(), scales.end(), out + k);
}

float dot_ref(const WeightMatrix& w, int64_t row, const float* x, int64_t k_blocks) {
  return dot(block_sum, w, row, x, k_blocks);
}

float dot_bf16_ref(const WeightMatrix& w, int64_t row, const float* x, int64_t k_blocks) {
  return dot(block_sum_bf16, w, row, x, k_blocks);
}

float dot_groups_ref(const WeightMatrix& w, int64_t row, const float* x, int64_t k_blocks) {
  return dot(block_sum_groups, w, row, x, k_blocks);
}

RowsRef rows_ref(Bf16Pairs pairs) {
  switch (pairs) {
    case Bf16Pairs::kNone: break;
    case Bf16Pairs::kValues: return {convert_row_ref, dot_bf16_ref};
    case Bf16Pairs::kGroups: return {convert_groups_ref, dot_groups_ref};
  }
  return {convert_row_ref, dot_ref};
}

void linear_ref(const LinearArgs& args, ThreadPool& pool) { linear_with_rows(rows_ref(Bf16Pairs::kNone), args, pool); }

void linear_bf16_ref(const LinearArgs& args, ThreadPool& pool) {
  linear_with_rows(rows_ref(bf16_pairs(args.w, args.x_dtype, args.act_quant, args.k_blocks)), args, pool);
}

}  // namespace weft
