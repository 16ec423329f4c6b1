#include "kernels/lanes/scalar.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/vector_math/vector_math.h"

namespace weft {

void swiglu_ref(const SwigluArgs& args);
void swiglu_ref(const SwigluArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    float g = load_element(args.g, args.dtype, i), u = load_element(args.u, args.dtype, i);
    if (args.limit != 0) {
      g = args.limit < g ? args.limit : g;  // NaN stays NaN
      u = args.limit < u ? args.limit : u;
      u = -args.limit > u ? -args.limit : u;
    }
    store_element(args.y, args.dtype, i, silu_f32(g) * u);
  }
}

}  // namespace weft
