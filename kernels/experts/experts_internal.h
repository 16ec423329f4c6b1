// kernels/experts/experts_internal.h
//
// The elementwise steps between the linear layers of an expert, one pair of functions for each instruction set.
#pragma once

#include <cstdint>

#include "kernels/experts/experts.h"
#include "kernels/linear/linear_internal.h"

namespace weft {

// a[i] = A(p * (silu(g) * u)) or A(silu(g) * u), g = A(gate[i]), u = A(up[i]), clamped; a may be gate.
struct GateArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  float* a = nullptr;
  int64_t n = 0;
  float weight = 1;
  float limit = 0;
  bool round = false;         // A rounds to bf16
  bool apply_weight = false;
};
using GateFn = void(const GateArgs& args);

// y[i] += A(o[i])  or  weight * A(o[i])
struct AddArgs {
  const float* o = nullptr;
  float* y = nullptr;
  int64_t n = 0;
  float weight = 1;
  bool round = false;
  bool apply_weight = false;
};
using AddFn = void(const AddArgs& args);

struct ExpertsKernels {
  const LinearKernels *up, *down;  // of w1 and w3, of w2
  GateFn* gate;
  AddFn* add;
};

extern const ExpertsKernels kExpertsKernels_avx2;
extern const ExpertsKernels kExpertsKernels_avx512;
extern const ExpertsKernels kExpertsKernels_avx512_vbmi;

// What of w1 and w3, and of w2 the level avx512_bf16 takes: bf16_pairs() of kernels/linear.
struct ExpertsPairs {
  Bf16Pairs up = Bf16Pairs::kNone, down = Bf16Pairs::kNone;
};
ExpertsPairs experts_pairs(const ExpertsArgs& args);

// Numbers that are already values of `dtype` (F32 or BF16), as those.
void store_rounded(const float* a, int64_t n, DType dtype, void* out);

void gate_ref(const GateArgs& args);
void add_ref(const AddArgs& args);
void experts_ref(const ExpertsArgs& args, ThreadPool& pool);
void experts_bf16_ref(const ExpertsArgs& args, ThreadPool& pool);  // the arithmetic of avx512_bf16
void experts_with(const ExpertsKernels& kernels, const ExpertsArgs& args, ThreadPool& pool);

}  // namespace weft
