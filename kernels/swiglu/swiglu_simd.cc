#include "kernels/lanes/lanes-inl.h"
#include "kernels/swiglu/swiglu.h"

namespace weft {
namespace {

template <class T>
void swiglu(const SwigluArgs& args) {
  const T *g = static_cast<const T*>(args.g), *u = static_cast<const T*>(args.u);
  T* y = static_cast<T*>(args.y);
  if (args.limit == 0) {
    return for_lanes(args.count, y, [&](int64_t i, auto get) { return mul(silu(get(g + i)), get(u + i)); });
  }
  const Lanes high = all(args.limit), low = all(-args.limit);
  for_lanes(args.count, y,
            [&](int64_t i, auto get) { return mul(silu(min(high, get(g + i))), max(low, min(high, get(u + i)))); });
}

}  // namespace

void WEFT_NAME(swiglu)(const SwigluArgs& args);
void WEFT_NAME(swiglu)(const SwigluArgs& args) {
  args.dtype == DType::kBF16 ? swiglu<Bf16>(args) : swiglu<float>(args);
}

}  // namespace weft
