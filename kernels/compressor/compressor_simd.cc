// Compiled once per level: the loops of the reference with lanes along the channels.
#include "kernels/compressor/compressor_impl.h"
#include "kernels/vector_math/f32_vector-inl.h"

namespace weft {
namespace {

template <class Load>
inline Vector pool(const CompressorPoolArgs& args, int64_t c, Load load_at) {
  const size_t num_slots = args.s.size();
  Vector top = set1(-__builtin_inff());
  for (size_t n = 0; n < num_slots; ++n) {
    if (args.s[n] != nullptr) top = max(load_at(args.s[n] + c), top);
  }
  Vector den = zero(), num = zero();
  for (size_t n = 0; n < num_slots; ++n) {
    if (args.s[n] == nullptr) continue;
    const Vector e = simd_exp(sub(load_at(args.s[n] + c), top));
    den = add(den, e);
    num = fma(e, load_at(args.k[n] + c), num);
  }
  return div(num, den);
}

}  // namespace

void WEFT_NAME(compressor_pool)(const CompressorPoolArgs& args) {
  int64_t c = 0;
  for (; c + kLanes <= args.width; c += kLanes) {
    store(args.u + c, pool(args, c, [](const float* p) { return load(p); }));
  }
  if (const int64_t rest = args.width - c; rest > 0) {
    store_part(args.u + c, pool(args, c, [rest](const float* p) { return load_part(p, rest); }), rest);
  }
}

}  // namespace weft
