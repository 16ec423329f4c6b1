// Compiled once per level.
#include "kernels/vector_math/f32_vector-inl.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {
namespace {

template <class F>
inline void map(const VectorMathArgs& args, F f) {
  int64_t i = 0;
  for (; i + kLanes <= args.n; i += kLanes) store(args.y + i, f(load(args.x + i)));
  if (const int64_t rest = args.n - i; rest > 0) store_part(args.y + i, f(load_part(args.x + i, rest)), rest);
}

}  // namespace

void WEFT_NAME(vector_math)(const VectorMathArgs& args);
void WEFT_NAME(vector_math)(const VectorMathArgs& args) {
  switch (args.function) {
    case VectorMathArgs::Function::kExp: return map(args, [](Vector x) { return simd_exp(x); });
    case VectorMathArgs::Function::kSigmoid: return map(args, [](Vector x) { return simd_sigmoid(x); });
    case VectorMathArgs::Function::kSilu: return map(args, [](Vector x) { return simd_silu(x); });
  }
}

}  // namespace weft
