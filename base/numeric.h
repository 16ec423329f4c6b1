// Number formats of the checkpoints, exact conversions from and to fp32.
//
//   bf16   1-8-7, round to nearest even
//   f16    1-5-10
//   e4m3   1-4-3, bias 7, no infinities, largest 448, 0x7f / 0xff NaN, subnormal step 2^-9   (OCP FP8)
//   e8m0   a power of two: 2^(byte - 127); byte 0 is 2^-127 (an fp32 subnormal), 255 NaN     (OCP MX)
//   e2m1   sign and 0 0.5 1 1.5 2 3 4 6                                                      (OCP MX FP4)
//
// Source: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0.
#pragma once

#include <bit>
#include <cstdint>

namespace weft {

// ISA-specific files must not use these inline functions (a linker may keep the copy that was compiled for a higher
// level): they have their own, `static`.

struct bf16 {
  uint16_t bits;
};

inline float to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};  // quiet NaN
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline float round_bf16(float x) { return to_float(to_bf16(x)); }

float f16_to_float(uint16_t bits);

float e4m3_to_float(uint8_t code);
// Nearest E4M3 value, ties to the even code; magnitudes above 448 saturate; NaN gives 0x7f.
uint8_t float_to_e4m3(float x);

float e8m0_to_float(uint8_t code);

float e2m1_to_float(uint8_t code);  // low four bits
// Nearest E2M1 code, ties to the even code; magnitudes above 6 saturate. NaN is not allowed.
uint8_t float_to_e2m1(float x);

// The smallest power of two >= x. x > 0, normal, result within the normal range.
inline float power_of_two_above(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  return std::bit_cast<float>(exponent << 23);
}

// Blocks of E4M3 with a scale, a power of two (deepseek_v4.md 5.3) or of any value (glm_moe_dsa.md 2.8): that of a block whose largest
// magnitude, at least kE4m3LeastAbsmax, is absmax; and x as it comes back.
enum class E4m3Scale { kPowerOfTwo, kAny };
inline constexpr float kE4m3Max = 448.0f, kE4m3LeastAbsmax = 1e-4f;
inline float e4m3_block_scale(float absmax, E4m3Scale scale) {
  const float exact = absmax * (1.0f / kE4m3Max);
  return scale == E4m3Scale::kAny ? exact : power_of_two_above(exact);
}
inline float e4m3_round_trip(float x, float scale) { return e4m3_to_float(float_to_e4m3(x / scale)) * scale; }

}  // namespace weft
