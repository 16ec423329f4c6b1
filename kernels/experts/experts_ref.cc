// The reference: the formula of experts.h, a row and a slot at a time.
#include <algorithm>
#include <bit>
#include <cstring>

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
  Rows(const RowsRef& rows, ActQuant act_quant, float* values) : rows_(rows), act_quant_(act_quant), values_(values) {}
  void set(const void* x, DType dtype, int64_t k) {
    if (is_int8(act_quant_)) {
      scale_ = quantise_row_ref(x, dtype, k, {}, reinterpret_cast<int8_t*>(values_));
    } else {
      rows_.convert(x, dtype, k, act_quant_, values_);
    }
  }
  float times(const WeightMatrix& w, int64_t row) const {
    return is_int8(act_quant_) ? dot_int8_ref(w, row, reinterpret_cast<const int8_t*>(values_), scale_, 1) : rows_.dot(w, row, values_, 1);
  }

 private:
  RowsRef rows_;
  ActQuant act_quant_;
  float* values_;
  float scale_ = 0;
};

void experts_with_rows(const RowsRef& up_rows, const RowsRef& down_rows, const ExpertsArgs& args) {
  const int64_t hidden = args.hidden, inner = args.inner, a_bytes = inner * dtype_bits(args.x_dtype) / 8;
  const bool round = args.x_dtype == DType::kBF16;
  auto* x = reinterpret_cast<float*>(args.scratch);
  float* gate = x + row_floats_ref(hidden);
  float* up = gate + inner;
  float* o = up + row_floats_ref(inner);
  Rows rows(up_rows, args.act_quant, x), inner_rows(down_rows, args.act_quant, up);
  for (int64_t t = 0; t < args.num_rows; ++t) {
    if (args.part != ExpertsPart::kDown) {
      rows.set(static_cast<const std::byte*>(args.x) + t * hidden * dtype_bits(args.x_dtype) / 8, args.x_dtype, hidden);
    }
    const int64_t y_rows = args.per_slot ? args.top_k : 1;
    float* y = args.y + t * y_rows * hidden;
    if (args.part != ExpertsPart::kUp) std::fill(y, y + y_rows * hidden, 0.0f);
    for (int64_t j = 0; j < args.top_k; ++j) {
      const int64_t slot = t * args.top_k + j, e = args.expert[slot];
      const float weight = args.weight[slot];
      std::byte* a = args.part == ExpertsPart::kAll ? nullptr : static_cast<std::byte*>(args.a) + slot * a_bytes;
      if (e < 0 && args.part == ExpertsPart::kUp) std::memset(a, 0, static_cast<size_t>(a_bytes));
      if (e < 0) continue;
      if (args.part != ExpertsPart::kDown) {
        for (int64_t i = 0; i < inner; ++i) {
          gate[i] = rows.times(args.w1[static_cast<size_t>(e)], i);
          up[i] = rows.times(args.w3[static_cast<size_t>(e)], i);
        }
        gate_ref({gate, up, gate, inner, weight, args.swiglu_limit, round, args.weight_before_w2});
      }
      if (args.part == ExpertsPart::kUp) {
        store_rounded(gate, inner, args.x_dtype, a);
        continue;
      }
      if (args.part == ExpertsPart::kDown) {
        inner_rows.set(a, args.x_dtype, inner);
      } else {
        inner_rows.set(gate, DType::kF32, inner);
      }
      for (int64_t i = 0; i < hidden; ++i) o[i] = inner_rows.times(args.w2[static_cast<size_t>(e)], i);
      add_ref({o, args.per_slot ? y + j * hidden : y, hidden, weight, round, !args.weight_before_w2});
    }
  }
}

}  // namespace

void store_rounded(const float* a, int64_t n, DType dtype, void* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, a, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) static_cast<bf16*>(out)[i] = bf16{static_cast<uint16_t>(std::bit_cast<uint32_t>(a[i]) >> 16)};
}

void experts_ref(const ExpertsArgs& args, ThreadPool&) {
  experts_with_rows(rows_ref(Bf16Pairs::kNone), rows_ref(Bf16Pairs::kNone), args);
}

void experts_bf16_ref(const ExpertsArgs& args, ThreadPool&) {
  const ExpertsPairs pairs = experts_pairs(args);
  experts_with_rows(rows_ref(pairs.up), rows_ref(pairs.down), args);
}

}  // namespace weft
