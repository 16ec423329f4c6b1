// The reference: the formula of experts.h, a row and a slot at a time.
#include <algorithm>

#include "base/numeric.h"
#include "kernels/experts/experts_internal.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {

void gate_ref(const GateArgs& args) {
  const auto rounded = [&](float v) { return args.round ? round_bf16(v) : v; };
  for (int64_t i = 0; i < args.n; ++i) {
    float g = rounded(args.gate[i]), u = rounded(args.up[i]);
    if (args.limit != 0) {  // comparisons that let NaN pass
      g = g > args.limit ? args.limit : g;
      u = u > args.limit ? args.limit : u < -args.limit ? -args.limit : u;
    }
    const float product = silu_f32(g) * u;
    args.a[i] = rounded(args.apply_weight ? args.weight * product : product);
  }
}

void add_ref(const AddArgs& args) {
  for (int64_t i = 0; i < args.n; ++i) {
    const float o = args.round ? round_bf16(args.o[i]) : args.o[i];
    args.y[i] += args.apply_weight ? args.weight * o : o;
  }
}

namespace {

void experts_with_dot(DotRef* dot, const ExpertsArgs& args) {
  const int64_t hidden = args.hidden, inner = args.inner;
  const bool round = args.x_dtype == DType::kBF16;
  auto* x = reinterpret_cast<float*>(args.scratch);
  float* gate = x + hidden;
  float* up = gate + inner;
  float* o = up + inner;
  for (int64_t t = 0; t < args.num_rows; ++t) {
    const auto* row = static_cast<const std::byte*>(args.x) + t * hidden * dtype_bits(args.x_dtype) / 8;
    convert_row_ref(row, args.x_dtype, hidden, args.act_quant, x);
    const int64_t y_rows = args.per_slot ? args.top_k : 1;
    float* y = args.y + t * y_rows * hidden;
    std::fill(y, y + y_rows * hidden, 0.0f);
    for (int64_t j = 0; j < args.top_k; ++j) {
      const int64_t e = args.expert[t * args.top_k + j];
      const float weight = args.weight[t * args.top_k + j];
      if (e < 0) continue;
      for (int64_t i = 0; i < inner; ++i) {
        gate[i] = dot(args.w1[static_cast<size_t>(e)], i, x, 1);
        up[i] = dot(args.w3[static_cast<size_t>(e)], i, x, 1);
      }
      gate_ref({gate, up, gate, inner, weight, args.swiglu_limit, round, args.weight_before_w2});
      convert_row_ref(gate, DType::kF32, inner, args.act_quant, up);
      for (int64_t i = 0; i < hidden; ++i) o[i] = dot(args.w2[static_cast<size_t>(e)], i, up, 1);
      add_ref({o, args.per_slot ? y + j * hidden : y, hidden, weight, round, !args.weight_before_w2});
    }
  }
}

}  // namespace

void experts_ref(const ExpertsArgs& args, ThreadPool&) { experts_with_dot(dot_ref, args); }

void experts_bf16_ref(const ExpertsArgs& args, ThreadPool&) {
  experts_with_dot(experts_take_bf16_pairs(args) ? dot_bf16_ref : dot_ref, args);
}

}  // namespace weft
