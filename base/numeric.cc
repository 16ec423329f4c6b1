#include "base/numeric.h"

#include <cmath>

namespace weft {
namespace {

constexpr float kE2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
constexpr float kE4m3SubnormalStep = 0x1p-9f;
constexpr float kE4m3MinNormal = 0x1p-6f;

}  // namespace

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

float e4m3_to_float(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  float value;
  if (exponent == 15 && mantissa == 7) {
    value = std::bit_cast<float>(0x7fc00000u);
  } else if (exponent == 0) {
    value = static_cast<float>(mantissa) * kE4m3SubnormalStep;
  } else {
    value = std::ldexp(1.0f + static_cast<float>(mantissa) / 8, exponent - 7);
  }
  return (code & 0x80) != 0 ? -value : value;
}

uint8_t float_to_e4m3(float x) {
  if (std::isnan(x)) return 0x7f;
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= kE4m3Max) return sign | 0x7e;
  if (magnitude < kE4m3MinNormal) {  // nearbyint: ties to even; 8 steps are the smallest normal, code 8
    return sign | static_cast<uint8_t>(std::nearbyint(magnitude / kE4m3SubnormalStep));
  }
  // Keep three mantissa bits, ties to even; a carry runs into the exponent as it should.
  uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7ffffu + ((bits >> 20) & 1u);
  const uint32_t code = (bits >> 20) - ((127u - 7u) << 3);
  return sign | static_cast<uint8_t>(code > 0x7e ? 0x7e : code);
}

float e8m0_to_float(uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  if (code == 0) return std::bit_cast<float>(0x00400000u);
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

float e2m1_to_float(uint8_t code) { return kE2m1[code & 15]; }

uint8_t float_to_e2m1(float x) {
  const uint8_t sign = std::signbit(x) ? 8 : 0;
  const float magnitude = std::fabs(x);
  // Midpoints between neighbours; a tie goes to the even code.
  constexpr float kMidpoint[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  uint8_t code = 0;
  while (code < 7 && (magnitude > kMidpoint[code] || (magnitude == kMidpoint[code] && (code & 1) == 1))) ++code;
  return sign | code;
}

}  // namespace weft
