// Elementwise steps of experts.h; one source for every instruction set.
#include "kernels/vector_math/vector_math-inl.h"

#include "kernels/experts/experts_internal.h"
#include "kernels/linear/isa_name.h"

namespace weft {
namespace {

#include "kernels/linear/vector16-inl.h"

constexpr int64_t kVector = 16;

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

#if defined(__AVX512F__)
inline F16 silu(F16 v) { return simd_silu(v); }
#else
inline F16 silu(F16 v) { return {simd_silu(v.lo), simd_silu(v.hi)}; }
#endif

inline F16 round_bf16(F16 v) { return as_f(i_shl<16>(bf16_bits(v))); }

void gate(const GateArgs& args) {
  const F16 limit = f_set(args.limit), lower = f_set(-args.limit), weight = f_set(args.weight);
  for (int64_t i = 0; i < args.n; i += kVector) {
    const int64_t count = at_most(kVector, args.n - i);
    F16 g = f_load_first(args.gate + i, count), u = f_load_first(args.up + i, count);
    if (args.round) {
      g = round_bf16(g);
      u = round_bf16(u);
    }
    if (args.limit != 0) {  // NaN, the second operand, passes
      g = f_min(limit, g);
      u = f_max(lower, f_min(limit, u));
    }
    F16 a = f_mul(silu(g), u);
    if (args.apply_weight) a = f_mul(weight, a);
    if (args.round) a = round_bf16(a);
    f_store_first(args.a + i, a, count);
  }
}

void add(const AddArgs& args) {
  const F16 weight = f_set(args.weight);
  for (int64_t i = 0; i < args.n; i += kVector) {
    const int64_t count = at_most(kVector, args.n - i);
    F16 o = f_load_first(args.o + i, count);
    if (args.round) o = round_bf16(o);
    if (args.apply_weight) o = f_mul(weight, o);
    f_store_first(args.y + i, f_add(f_load_first(args.y + i, count), o), count);
  }
}

}  // namespace

extern const ExpertsKernels WEFT_ISA_NAME(kExpertsKernels);
const ExpertsKernels WEFT_ISA_NAME(kExpertsKernels) = {&WEFT_ISA_NAME(kLinearKernels), &WEFT_ISA_NAME(kLinearKernels), gate, add};

}  // namespace weft
