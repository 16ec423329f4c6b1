// kernels/hyper_connection/hyper_connection_parts.h
//
// The steps of hc_pre, for the sources of this folder: project, coefficients, mix.
#pragma once

#include "kernels/hyper_connection/hyper_connection.h"

namespace weft {

constexpr int64_t kMaxHcOutputs = (2 + kMaxHcStreams) * kMaxHcStreams;

// Rows of fn: (2 + S) * S, or S for hc_head.
int64_t hc_outputs(const HcPreArgs& args);

// dots[r, n] for n in [output_begin, output_end): <fn row n, x_r>; n = outputs stands for the sum of squares of x_r.
// dots has rows of outputs + 1; outputs = hc_outputs(pre).
struct HcProjectArgs {
  HcPreArgs pre;
  int64_t outputs = 0, output_begin = 0, output_end = 0;
  float* dots = nullptr;
};

// out[r, d] = A(sum_j coefficient[r, j] * X[r, j, d]) for all rows; coefficient has rows of kMaxHcStreams.
struct HcMixArgs {
  HcPreArgs pre;
  const float* coefficient = nullptr;
};

using HcProjectFn = void(const HcProjectArgs&);
using HcMixFn = void(const HcMixArgs&);

// pre (and the row's part of args.mix, which is for row `row`) from the row's dots. The same code for every variant.
void hc_coefficients(const HcPreArgs& args, int64_t row, const float* dots, float* pre);

// hc_pre by these steps, in groups of a few rows.
void hc_pre_by_steps(const HcPreArgs& args, HcProjectFn* project, HcMixFn* mix);

// The rows [begin, begin + count) of a call.
HcPreArgs hc_pre_rows(const HcPreArgs& args, int64_t begin, int64_t count);

}  // namespace weft
