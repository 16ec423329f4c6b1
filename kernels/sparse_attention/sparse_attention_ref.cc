#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numeric.h"
#include "kernels/sparse_attention/sparse_attention_impl.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {
namespace {

void to_f32(const void* src, DType dtype, int64_t begin, int64_t n, float* dst) {
  for (int64_t i = 0; i < n; ++i) {
    dst[i] = dtype == DType::kBF16 ? to_float(static_cast<const bf16*>(src)[begin + i])
                                   : static_cast<const float*>(src)[begin + i];
  }
}

void write_out(const SparseAttentionArgs& args, int64_t h, const float* acc, float den) {
  for (int64_t d = 0; d < args.value_dim; ++d) {
    const float value = acc[d] / den;
    const int64_t i = h * args.value_dim + d;
    if (args.dtype == DType::kBF16) {
      static_cast<bf16*>(args.out)[i] = to_bf16(value);
    } else {
      static_cast<float*>(args.out)[i] = value;
    }
  }
}

void attend(const SparseAttentionArgs& args, bool pairs) {
  const auto dot = pairs ? dot_bf16_pairs : dot_f32;
  const auto add = [pairs](float p, float value, float sum) { return pairs ? fma_no_subnormals(p, value, sum) : std::fma(p, value, sum); };
  const AttentionScratch layout(args.num_heads, args.head_dim);
  float* const scratch = reinterpret_cast<float*>(args.scratch);
  float* const q = scratch + layout.q;
  float* const keys = scratch + layout.keys;
  float* const score = scratch + layout.scores;
  float* const acc = scratch + layout.acc;
  const int64_t head_dim = args.head_dim, value_dim = args.value_dim;
  const int64_t num_columns = static_cast<int64_t>(args.keys.size());

  for (int64_t h = 0; h < args.num_heads; ++h) {
    to_f32(args.q, args.dtype, h * head_dim, head_dim, q);
    std::fill_n(acc, value_dim, 0.0f);
    float max = -std::numeric_limits<float>::infinity();
    float den = 0;
    bool empty = true;

    for (int64_t begin = 0; begin < num_columns; begin += kAttentionBlock) {
      int64_t n = 0;  // keys of the block, in list order
      float block_max = max;
      for (int64_t column = begin; column < std::min(begin + kAttentionBlock, num_columns); ++column) {
        if (args.keys[column] == nullptr) continue;
        float* const key = keys + n * layout.row_pitch;
        to_f32(args.keys[column], args.kv_dtype, 0, head_dim, key);
        score[n] = dot(q, key, head_dim) * args.scale;
        block_max = score[n] > block_max ? score[n] : block_max;
        ++n;
      }
      if (n == 0) continue;
      empty = false;

      const float factor = exp_f32(max - block_max);
      max = block_max;
      den *= factor;
      for (int64_t d = 0; d < value_dim; ++d) acc[d] *= factor;
      for (int64_t i = 0; i < n; ++i) {
        const float e = exp_f32(score[i] - max);
        den += e;
        const float p = args.dtype == DType::kBF16 ? round_bf16(e) : e;
        const float* const value = keys + i * layout.row_pitch;
        for (int64_t d = 0; d < value_dim; ++d) acc[d] = add(p, value[d], acc[d]);
      }
      if (pairs && n % 2 == 1) {
        for (int64_t d = 0; d < value_dim; ++d) acc[d] = add(0, 0, acc[d]);
      }
    }

    if (empty) {
      den = 1;
    } else if (args.sink != nullptr) {
      den += exp_f32(args.sink[h] - max);
    }
    if (args.lse != nullptr) args.lse[h] = log_sum_exp(max, den);
    write_out(args, h, acc, den);
  }
}

}  // namespace

void sparse_attention_ref(const SparseAttentionArgs& args) { attend(args, false); }

void sparse_attention_bf16_ref(const SparseAttentionArgs& args) { attend(args, takes_bf16_pairs(args)); }

}  // namespace weft
