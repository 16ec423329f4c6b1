// Random tensors in stored formats, fast and addressable: a byte of a tensor depends on (seed, name, its place)
// alone. So one tensor never changes another, and any number of threads gives the same file.
//
// Words come from a counter: word i of a tensor is a bijective mix of key + i * odd constant. Source: Steele, Lea,
// Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/tensor.h"

namespace weft {

enum class Fill {
  kZero,      // any type
  kNormal,    // F32, BF16: mean a, standard deviation b (a sum of four uniform numbers: within 3.5 b)
  kUniform,   // F32, BF16: in [a, b)
  kE4m3,      // F8_E4M3: a normal distribution over the whole range, std kE4m3Std
  kInt8,      // I8: all codes from -127 to 127 alike (0 twice as often), std kInt8Std
  kE2m1,      // I8, two FP4 codes a byte: all codes alike, std kE2m1Std
  kScale,     // F8_E8M0: two neighbouring powers of two whose root mean square is a
  kDistinct,  // I64 [rows, k]: k different numbers of 0 .. a - 1 in every row, a >= k
};

// Standard deviation of what the codes stand for, before the scale.
double e4m3_std();
inline constexpr double kInt8Std = 73.46767997681357;  // sqrt(2 * (1 + 4 + ... + 127^2) / 256)
inline constexpr double kE2m1Std = 2.926174978967905;  // sqrt(mean of 0, 0.25, 1, 2.25, 4, 9, 16, 36)

struct RandomTensor {
  TensorType type = {};
  Fill fill = Fill::kNormal;
  double a = 0, b = 0;
};

uint64_t random_key(uint64_t seed, std::string_view name);

// Pieces of a tensor start at multiples of this many bytes.
int64_t fill_granule(const RandomTensor& tensor);

// The bytes first_byte .. first_byte + out.size() - 1. first_byte is a multiple of the granule; so is the size, or
// the piece ends with the tensor. A fill that does not fit the dtype is our own fault.
void fill_random(const RandomTensor& tensor, uint64_t key, int64_t first_byte, std::span<std::byte> out);

}  // namespace weft
