// Compiled once per level.
#include "kernels/vector_math/vector_math-inl.h"
#include "kernels/vector_math/vector_math.h"

#define WEFT_NAME_INNER(name, isa) name##_##isa
#define WEFT_NAME_OUTER(name, isa) WEFT_NAME_INNER(name, isa)
#define WEFT_NAME(name) WEFT_NAME_OUTER(name, WEFT_ISA)

namespace weft {
namespace {

#ifdef __AVX512F__
using Vector = __m512;
constexpr int64_t kLanes = 16;
inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
#else
using Vector = __m256;
constexpr int64_t kLanes = 8;
inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vector v) { _mm256_storeu_ps(p, v); }
#endif

template <class F>
inline void map(const VectorMathArgs& args, F f) {
  int64_t i = 0;
  for (; i + kLanes <= args.n; i += kLanes) store(args.y + i, f(load(args.x + i)));
  if (i == args.n) return;
  alignas(64) float rest[kLanes] = {};
  for (int64_t j = 0; i + j < args.n; ++j) rest[j] = args.x[i + j];
  store(rest, f(load(rest)));
  for (int64_t j = 0; i + j < args.n; ++j) args.y[i + j] = rest[j];
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
