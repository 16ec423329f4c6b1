#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft {

void rope_avx512(const RopeArgs& args);
void rope_avx2(const RopeArgs& args);
void rope_ref(const RopeArgs& args);

std::span<const KernelVariant<RopeFn>> rope_variants() {
  static constexpr KernelVariant<RopeFn> kVariants[] = {
      {"avx512", Isa::kAvx512, rope_avx512},
      {"avx2", Isa::kAvx2, rope_avx2},
      {"ref", Isa::kScalar, rope_ref},
  };
  return kVariants;
}

std::vector<float> rope_frequencies(double theta, int64_t rotary_dims, const RopeScaling& scaling) {
  std::vector<float> frequencies(static_cast<size_t>(rotary_dims / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dims);
    frequencies[i] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  if (scaling.factor == 1) return frequencies;

  // The (fractional) index whose frequency turns `rotations` times within the original context.
  const auto correction = [&](double rotations) {
    const double turns =
        static_cast<double>(scaling.original_max_position_embeddings) / (rotations * 2 * std::numbers::pi);
    return static_cast<double>(rotary_dims) * std::log(turns) / (2 * std::log(theta));
  };
  // The clamp to rotary_dims - 1, not to the number of frequencies, is that of the published code.
  const double low = std::max(std::floor(correction(scaling.beta_fast)), 0.0);
  double high = std::min(std::ceil(correction(scaling.beta_slow)), static_cast<double>(rotary_dims - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float smooth = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    const float f = frequencies[i];
    frequencies[i] = f / static_cast<float>(scaling.factor) * (1.0f - smooth) + f * smooth;
  }
  return frequencies;
}

void rope_table(std::span<const int32_t> positions, std::span<const float> frequencies, float* table) {
  for (const int32_t position : positions) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      *table++ = static_cast<float>(std::cos(static_cast<double>(angle)));
      *table++ = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

}  // namespace weft
