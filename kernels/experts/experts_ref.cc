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

// Rows of one expert's linear layers: as fp32 after act_quant, or as int8 and their scale.
class Rows {
 public:
  Rows(DotRef* dot, ActQuant act_quant, float* values) : dot_(dot), act_quant_(act_quant), values_(values) {}
  void set(const void* x, DType dtype, int64_t k) {
    if (is_int8(act_quant_)) {
      scale_ = quantise_row_ref(x, dtype, k, {}, reinterpret_cast<int8_t*>(values_));
    } else {
      convert_row_ref(x, dtype, k, act_quant_, values_);
    }
  }
  float times(const WeightMatrix& w, int64_t row) const {
    return is_int8(act_quant_) ? dot_int8_ref(w, row, reinterpret_cast<const int8_t*>(values_), scale_, 1) : dot_(w, row, values_, 1);
  }

 private:
  DotRef* dot_;
  ActQuant act_quant_;
  float* values_;
  float scale_ = 0;
};

void experts_with_dot(DotRef* dot, const ExpertsArgs& args) {
  const int64_t hidden = args.hidden, inner = args.inner;
  const bool round = args.x_dtype == DType::kBF16;
  auto* x = reinterpret_cast<float*>(args.scratch);
  float* gate = x + hidden;
  float* up = gate + inner;
  float* o = up + inner;
  Rows rows(dot, args.act_quant, x), inner_rows(dot, args.act_quant, up);
  for (int64_t t = 0; t < args.num_rows; ++t) {
    const auto* row = static_cast<const std::byte*>(args.x) + t * hidden * dtype_bits(args.x_dtype) / 8;
    rows.set(row, args.x_dtype, hidden);
    const int64_t y_rows = args.per_slot ? args.top_k : 1;
    float* y = args.y + t * y_rows * hidden;
    std::fill(y, y + y_rows * hidden, 0.0f);
    for (int64_t j = 0; j < args.top_k; ++j) {
      const int64_t e = args.expert[t * args.top_k + j];
      const float weight = args.weight[t * args.top_k + j];
      if (e < 0) continue;
      for (int64_t i = 0; i < inner; ++i) {
        gate[i] = rows.times(args.w1[static_cast<size_t>(e)], i);
        up[i] = rows.times(args.w3[static_cast<size_t>(e)], i);
      }
      gate_ref({gate, up, gate, inner, weight, args.swiglu_limit, round, args.weight_before_w2});
      inner_rows.set(gate, DType::kF32, inner);
      for (int64_t i = 0; i < hidden; ++i) o[i] = inner_rows.times(args.w2[static_cast<size_t>(e)], i);
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
